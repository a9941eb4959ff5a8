import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Has many compiled methods: 500 classes with 41 methods each.
 *
 * Has the commands of CpuLoad: "go SECONDS" calls all methods repeatedly and is answered by
 * "done rounds=N"; each round calls each method once.
 */
public class ManyLoad {
    private static final int CLASSES = 500;

    public static void main(String[] args) throws Exception {
        Copy copy = new Copy("Many0000");
        Runnable[] all = new Runnable[CLASSES];
        for (int i = 0; i < CLASSES; i++) {
            all[i] = copy.make(String.format("Many%04d", i + 1));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
            int rounds = 0;
            for (; System.nanoTime() < end; rounds++) {
                for (Runnable one : all) {
                    one.run();
                }
            }
            System.out.println("done rounds=" + rounds);
        }
    }
}
