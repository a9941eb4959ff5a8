/** Template of the classes that ChurnLoad generates. */
public class Churn0000 implements Runnable {
    static volatile long sink;

    @Override
    public void run() {
        Thread.currentThread().setName("Churn0000");
        long end = System.nanoTime() + 60_000_000L;
        while (System.nanoTime() < end) {
            for (int i = 0; i < 50; i++) {
                first(i);
                second(i);
            }
        }
    }

    static void first(int seed) {
        long x = seed;
        for (int i = 0; i < 2000; i++) {
            x = x * 31 + i;
        }
        sink = x;
    }

    static void second(int seed) {
        long x = seed;
        for (int i = 0; i < 2000; i++) {
            x = (x ^ x << 7) + i;
        }
        sink = x;
    }
}
