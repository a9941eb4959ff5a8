import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;

/**
 * Continuously reads the clock, in a stack of forty frames. Gaps between the readings are interruptions.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done
 * NANOS ...", the total length of all gaps longer than GAP, for each half second.
 */
public class GapLoad {
    private static final int DEPTH = 40;
    /** In nanoseconds. Longer than a reading of the clock, and shorter than an interrupt. */
    private static final long GAP = 1_500;
    private static final long SLOT_NS = 500_000_000;

    private static final long[] slots = new long[1000];

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                int count = Math.min(slots.length, (int) (Double.parseDouble(line.substring(3)) * 2));
                // Frequent calls make the JVM compile the complete methods instead of only their loops.
                for (int i = 0; i < 20_000; i++) {
                    deep(DEPTH, 0);
                }
                deep(DEPTH, count);
                StringBuilder answer = new StringBuilder("done");
                for (int i = 0; i < count; i++) {
                    answer.append(' ').append(slots[i]);
                }
                System.out.println(answer);
            }
        }
    }

    private static long deep(int depth, int count) {
        return depth > 1 ? deep(depth - 1, count) + 1 : read(count);
    }

    private static long read(int count) {
        long last = System.nanoTime();
        for (int i = 0; i < count; i++) {
            long gaps = 0;
            long end = last + SLOT_NS;
            while (last < end) {
                long now = System.nanoTime();
                if (now - last > GAP) {
                    gaps += now - last;
                }
                last = now;
            }
            slots[i] = gaps;
        }
        return last;
    }
}
