import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.locks.LockSupport;

/**
 * Threads with names that the kernel truncates, each in a method of its own.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" makes all threads allocate for a part of
 * SECONDS, and the last one also request collections, and is answered by "done"; "quit" ends.
 */
public class LongNameLoad {
    /** The last name contains letters of two bytes. */
    static final String[] NAMES = {
        "order-service-worker-0", "order-service-worker-1", "order-service-worker-2", "order-service-\u0437\u0430\u043a\u0430\u0437-3",
    };

    static volatile Object sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            long end = System.nanoTime() + (long) (Double.parseDouble(line.split(" ")[1]) * 1e9);
            Runnable[] all = {() -> work0(end), () -> work1(end), () -> work2(end), () -> work3(end)};
            Thread[] threads = new Thread[NAMES.length];
            for (int i = 0; i < threads.length; i++) {
                threads[i] = new Thread(all[i], NAMES[i]);
                threads[i].start();
            }
            for (Thread thread : threads) {
                thread.join();
            }
            System.out.println("done");
        }
    }

    static void work0(long end) {
        while (System.nanoTime() < end) {
            allocate();
        }
    }

    static void work1(long end) {
        while (System.nanoTime() < end) {
            allocate();
        }
    }

    static void work2(long end) {
        while (System.nanoTime() < end) {
            allocate();
        }
    }

    /** The only thread that requests collections. */
    static void work3(long end) {
        for (int i = 0; System.nanoTime() < end; i++) {
            allocate();
            if (i % 2_000 == 1_999) {
                System.gc();
            }
        }
    }

    private static void allocate() {
        for (int i = 0; i < 100; i++) {
            sink = new byte[100];
        }
        if (ThreadLocalRandom.current().nextInt(100) == 0) {
            LockSupport.parkNanos(1_000_000);
        }
    }
}
