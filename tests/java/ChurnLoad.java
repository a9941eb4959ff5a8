import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Continuously loads, compiles, runs and unloads classes, so that addresses in the code cache are
 * reused.
 *
 * Each generation has a number, which is part of its class's and its thread's name. A stack of a
 * generation's thread must never contain a Churn class with another number. This program has the
 * commands of CpuLoad.
 */
public class ChurnLoad {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Copy copy = new Copy("Churn0000");
        System.out.println("ready " + ProcessHandle.current().pid());
        int generation = 0;
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                int first = generation;
                while (System.nanoTime() < end) {
                    generation = generation % 9999 + 1;
                    run(copy, generation);
                    if (generation % 8 == 0) {
                        System.gc();
                    }
                }
                System.out.println("done generations=" + (generation - first));
            }
        }
    }

    private static void run(Copy copy, int generation) throws Exception {
        String name = String.format("Churn%04d", generation);
        Runnable churn = copy.make(name);
        Thread thread = new Thread(churn, name);
        thread.start();
        thread.join();
    }
}
