import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;

/**
 * Keeps a share of the heap full and allocates garbage beside it.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS SHARE MB_PER_SECOND" is answered by "done"; "quit" ends.
 * The share is of the maximum heap; what does not fit is left out.
 */
public class FillLoad {
    private static final int CHUNK = 16 << 10;

    private static final List<byte[]> kept = new ArrayList<>();
    static volatile Object sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            long end = System.nanoTime() + (long) (Double.parseDouble(words[1]) * 1e9);
            long chunks = (long) (Double.parseDouble(words[2]) * Runtime.getRuntime().maxMemory() / CHUNK);
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
            } catch (OutOfMemoryError e) {
                // Not as much is kept from here on.
                chunks = kept.size() * 99L / 100;
                while (kept.size() > chunks) {
                    kept.remove(kept.size() - 1);
                }
            }
            Thread.sleep(20);
        }
    }
}
