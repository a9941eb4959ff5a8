import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.List;

/**
 * Retains objects in a share of the heap, and allocates garbage in the rest.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS SHARE MB_PER_SECOND [HOLD]" is
 * answered by "done"; "quit" ends. SHARE is the fraction of the maximum heap to retain; if it does not
 * fit, less is retained. With HOLD, one thread computes every ten seconds for HOLD seconds in a loop
 * without safepoint polls (if -XX:-UseCountedLoopSafepoints is set) while another thread dumps all
 * threads.
 */
public class FillLoad {
    private static final int CHUNK = 16 << 10;

    private static final List<byte[]> kept = new ArrayList<>();
    private static final long PERIOD_MS = 10_000;

    private static final ThreadMXBean threads = ManagementFactory.getThreadMXBean();
    static volatile Object sink;
    static volatile int result;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            long end = System.nanoTime() + (long) (Double.parseDouble(words[1]) * 1e9);
            long chunks = (long) (Double.parseDouble(words[2]) * Runtime.getRuntime().maxMemory() / CHUNK);
            if (words.length > 4) {
                holdThreads(end, Double.parseDouble(words[4]));
            }
            work(end, chunks, Double.parseDouble(words[3]));
            kept.clear();
            System.out.println("done");
        }
    }

    private static void work(long end, long chunks, double rate) throws InterruptedException {
        long begin = System.nanoTime();
        double allocated = 0;
        while (System.nanoTime() < end) {
            try {
                while (kept.size() < chunks) {
                    kept.add(new byte[CHUNK]);
                }
                while (allocated < (System.nanoTime() - begin) / 1e9 * rate) {
                    sink = new byte[1024];
                    allocated += 1024 / 1e6;
                }
                Thread.sleep(20);
            } catch (OutOfMemoryError e) {
                // Retains one percent less from now on.
                chunks = kept.size() * 99L / 100;
                while (kept.size() > chunks) {
                    kept.remove(kept.size() - 1);
                }
            }
        }
    }

    /**
     * Starts the thread that computes. Before each computation, that thread starts another one, which
     * requests a dump of all threads 100 ms later. From then until the computation ends, all other
     * threads wait.
     */
    private static void holdThreads(long end, double seconds) {
        Thread holder = new Thread(() -> {
            for (int i = 0; i < 20_000; i++) {
                compute(1_000);
            }
            int trial = 100_000_000;
            long begin = threads.getCurrentThreadCpuTime();
            compute(trial);
            double each = (threads.getCurrentThreadCpuTime() - begin) / 1e9 / trial;
            int rounds = (int) Math.min(seconds / each, Integer.MAX_VALUE);
            while (System.nanoTime() < end) {
                Thread dumper = new Thread(() -> {
                    sleep(100);
                    threads.dumpAllThreads(false, false);
                });
                dumper.start();
                compute(rounds);
                sleep(PERIOD_MS - (long) (seconds * 1e3));
            }
        });
        holder.setDaemon(true);
        holder.start();
    }

    private static void compute(int rounds) {
        int value = rounds;
        for (int i = 0; i < rounds; i++) {
            value = value * 31 ^ value >>> 7 ^ i;
        }
        result = value;
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }
}
