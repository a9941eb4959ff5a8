import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * Does one thing as fast as it can, to test how a tracer copes with the events.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done COUNT". The
 * property "storm" selects the thing: dumps (of another thread's stack, each at a safepoint), gc,
 * exceptions, classes (loaded and unloaded) or waits (of 300 threads, which wake each other up in a ring).
 */
public class StormLoad {
    /** Prevents the compiler from removing the work. */
    static volatile Object sink;

    static class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass("Many0000", bytes, 0, bytes.length);
        }
    }

    public static void main(String[] args) throws Exception {
        String storm = System.getProperty("storm", "dumps");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ManagementFactory.getRuntimeMXBean().getName().split("@")[0]);
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                System.out.println("done " + run(storm, end));
            }
        }
    }

    private static long run(String storm, long end) throws Exception {
        if (storm.equals("waits")) {
            return waits(end);
        }
        Thread other = new Thread(StormLoad::sleep, "sleeper");
        other.setDaemon(true);
        other.start();
        byte[] bytes;
        try (InputStream in = StormLoad.class.getResourceAsStream("Many0000.class")) {
            bytes = in.readAllBytes();
        }
        long count = 0;
        for (; System.nanoTime() < end; count++) {
            switch (storm) {
                case "dumps":
                    sink = other.getStackTrace();
                    break;
                case "gc":
                    System.gc();
                    break;
                case "exceptions":
                    try {
                        throw new IllegalStateException("storm " + count);
                    } catch (IllegalStateException e) {
                        sink = e;
                    }
                    break;
                case "classes":
                    sink = new Loader().define(bytes);
                    break;
                default:
                    throw new IllegalArgumentException(storm);
            }
        }
        return count;
    }

    /** Each thread waits for its turn, and then wakes up the next one. */
    private static long waits(long end) throws Exception {
        Thread[] threads = new Thread[300];
        AtomicLong turn = new AtomicLong();
        for (int i = 0; i < threads.length; i++) {
            int own = i;
            threads[i] = new Thread(() -> {
                while (System.nanoTime() < end) {
                    long now = turn.get();
                    if (now % threads.length != own) {
                        LockSupport.parkNanos(end - System.nanoTime());
                        continue;
                    }
                    turn.set(now + 1);
                    LockSupport.unpark(threads[(own + 1) % threads.length]);
                }
            }, "ring-" + i);
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return turn.get();
    }

    private static void sleep() {
        try {
            Thread.sleep(Long.MAX_VALUE);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
