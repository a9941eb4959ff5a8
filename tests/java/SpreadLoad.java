import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Always has a new, deep stack, in classes that are continuously loaded, compiled and unloaded. Such stacks
 * are expensive to walk and to name.
 *
 * Has the commands of CpuLoad: "go SECONDS" is answered by "done generations=N".
 */
public class SpreadLoad {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Copy copy = new Copy("Spread0000");
        System.out.println("ready " + ProcessHandle.current().pid());
        int generation = 0;
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                int first = generation;
                while (System.nanoTime() < end) {
                    generation = generation % 9999 + 1;
                    copy.make(String.format("Spread%04d", generation)).run();
                    if (generation % 16 == 0) {
                        System.gc();
                    }
                }
                System.out.println("done generations=" + (generation - first));
            }
        }
    }
}
