import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Loads, compiles, runs and unloads classes all the time, so that the code cache's addresses are
 * used again and again.
 *
 * Each generation runs in a thread of the same number: nothing named Churn of another number may
 * ever be seen in it. Commands as CpuLoad's.
 */
public class ChurnLoad {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        byte[] template;
        try (InputStream file = ChurnLoad.class.getResourceAsStream("Churn0000.class")) {
            template = file.readAllBytes();
        }
        System.out.println("ready " + ProcessHandle.current().pid());
        int generation = 0;
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                int first = generation;
                while (System.nanoTime() < end) {
                    generation = generation % 9999 + 1;
                    run(template, generation);
                    if (generation % 8 == 0) {
                        System.gc();
                    }
                }
                System.out.println("done generations=" + (generation - first));
            }
        }
    }

    private static void run(byte[] template, int generation) throws Exception {
        String name = String.format("Churn%04d", generation);
        // Names are as long as the template's, so that the bytes can be replaced in place.
        String text = new String(template, StandardCharsets.ISO_8859_1).replace("Churn0000", name);
        byte[] bytes = text.getBytes(StandardCharsets.ISO_8859_1);
        ClassLoader loader = new ClassLoader(null) {
            @Override
            protected Class<?> findClass(String wanted) throws ClassNotFoundException {
                return wanted.equals(name) ? defineClass(name, bytes, 0, bytes.length) : super.findClass(wanted);
            }
        };
        Runnable churn = (Runnable) loader.loadClass(name).getDeclaredConstructor().newInstance();
        Thread thread = new Thread(churn, name);
        thread.start();
        thread.join();
    }
}
