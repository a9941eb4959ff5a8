import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;

/**
 * Burns CPU time in known methods, on command, and measures how much each method uses.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by
 * "done ROUNDS METHOD=NANOS ..." with the number of rounds and the CPU time of each method in
 * nanoseconds.
 *
 * Call graph: run > work > small | medium | large; large > deep > ... > deep (DEPTH times);
 * medium > mix.
 */
public class CpuLoad {
    private static final int DEPTH = 20;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    static volatile long sink;

    private static long rounds;
    private static long small;
    private static long medium;
    private static long deep;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        // JDK 8 has no ProcessHandle.
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                double seconds = Double.parseDouble(line.substring(3));
                rounds = small = medium = deep = 0;
                Thread worker = new Thread(() -> work(seconds), "cpu-worker");
                worker.start();
                worker.join();
                System.out.println("done " + rounds + " small=" + small + " medium=" + medium + " deep=" + deep);
            }
        }
    }

    static void work(double seconds) {
        Thread.currentThread().setName("cpu-worker");
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            long t0 = THREADS.getCurrentThreadCpuTime();
            small(2_000_000);
            long t1 = THREADS.getCurrentThreadCpuTime();
            medium(6_000_000);
            long t2 = THREADS.getCurrentThreadCpuTime();
            large(12_000_000);
            long t3 = THREADS.getCurrentThreadCpuTime();
            small += t1 - t0;
            medium += t2 - t1;
            deep += t3 - t2;
            rounds++;
        }
    }

    static void small(int rounds) {
        long x = 1;
        for (int i = 0; i < rounds; i++) {
            x = x * 6364136223846793005L + i;
        }
        sink = x;
    }

    static void medium(int rounds) {
        long x = 2;
        for (int i = 0; i < rounds; i++) {
            x = mix(x, i);
        }
        sink = x;
    }

    /** Small enough to be inlined unless a flag forbids it. */
    static long mix(long x, int i) {
        return (x ^ x << 13) + (x >>> 7) + i;
    }

    static void large(int rounds) {
        deep(DEPTH, rounds);
    }

    static void deep(int depth, int rounds) {
        if (depth > 1) {
            deep(depth - 1, rounds);
            return;
        }
        long x = 3;
        for (int i = 0; i < rounds; i++) {
            x = x * 31 + (x >>> 3) + i;
        }
        sink = x;
    }
}
