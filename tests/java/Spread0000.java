import java.util.concurrent.ThreadLocalRandom;

/** Template of the classes that SpreadLoad generates: methods that call each other at random, 600 deep. */
public class Spread0000 implements Runnable {
    private static final int DEPTH = 600;
    static volatile long sink;

    @Override
    public void run() {
        long end = System.nanoTime() + 200_000_000L;
        while (System.nanoTime() < end) {
            call(DEPTH);
        }
    }

    static void call(int depth) {
        if (depth == 0) {
            long x = 1;
            for (int i = 0; i < 200_000; i++) {
                x = x * 31 + i;
            }
            sink = x;
            return;
        }
        switch (ThreadLocalRandom.current().nextInt(4)) {
            case 0:
                first(depth);
                break;
            case 1:
                second(depth);
                break;
            case 2:
                third(depth);
                break;
            default:
                fourth(depth);
        }
    }

    static void first(int depth) {
        call(depth - 1);
    }

    static void second(int depth) {
        call(depth - 1);
    }

    static void third(int depth) {
        call(depth - 1);
    }

    static void fourth(int depth) {
        call(depth - 1);
    }
}
