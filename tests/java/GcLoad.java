import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;

/**
 * Keeps a garbage collector busy on command.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done" when
 * the load is over; "quit" ends. Between ready and go, and after done, nothing is allocated, so that
 * a trace can begin and end while no collection runs.
 */
public class GcLoad {
    private static final int THREADS = 2;
    private static final int LIVE = 6000;
    /** Pause after each 4 to 5 MB that a thread has allocated, in milliseconds. With 1, the threads use most of a processor. */
    private static final int PAUSE_MS = Integer.getInteger("gcload.pause", 5);

    /** Prevents the compiler from removing allocations. */
    static volatile Object sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        // PID@HOST: JDK 8 has no ProcessHandle.
        System.out.println("ready " + ManagementFactory.getRuntimeMXBean().getName().split("@")[0]);
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                run((long) (Double.parseDouble(line.substring(3)) * 1e9));
                System.out.println("done");
            }
        }
    }

    private static void run(long nanos) throws InterruptedException {
        long end = System.nanoTime() + nanos;
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> allocate(end), "allocator-" + i);
            threads[i].start();
        }
        // Explicit collections, and stops without collections.
        for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
            Thread.sleep(Math.min(400, (end - now) / 1_000_000 + 1));
            System.gc();
            ManagementFactory.getThreadMXBean().dumpAllThreads(true, true);
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Allocates objects most of which die young. Some live long enough to be promoted, and then die. */
    private static void allocate(long end) {
        byte[][] live = new byte[LIVE][];
        for (int i = 0; System.nanoTime() < end; i++) {
            byte[] block = new byte[1000 + i * 7 % 3000];
            sink = block;
            live[i * 31 % LIVE & Integer.MAX_VALUE] = block;
            if (i % 1000 == 0) {
                sink = new byte[2_000_000];
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(PAUSE_MS);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
