import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Continuously causes collections at little cost, so that many JVMs can run on a small machine.
 *
 * Has the commands of GcLoad: "go SECONDS" allocates two megabytes every 20 ms and is answered by "done".
 */
public class TrickleLoad {
    /** Prevents the compiler from removing allocations. */
    static volatile Object sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
            while (System.nanoTime() < end) {
                for (int i = 0; i < 200; i++) {
                    sink = new byte[10_000];
                }
                Thread.sleep(20);
            }
            System.out.println("done");
        }
    }
}
