import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Has very many compiled methods: 500 classes of 41.
 *
 * Commands as CpuLoad's: "go SECONDS" calls all of them again and again and is answered by
 * "done rounds=N"; each round calls each method once.
 */
public class ManyLoad {
    private static final int CLASSES = 500;

    public static void main(String[] args) throws Exception {
        byte[] template;
        try (InputStream file = ManyLoad.class.getResourceAsStream("Many0000.class")) {
            template = file.readAllBytes();
        }
        Runnable[] all = new Runnable[CLASSES];
        for (int i = 0; i < CLASSES; i++) {
            all[i] = make(template, String.format("Many%04d", i + 1));
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

    private static Runnable make(byte[] template, String name) throws Exception {
        // Names are as long as the template's, so that the bytes can be replaced in place.
        String text = new String(template, StandardCharsets.ISO_8859_1).replace("Many0000", name);
        byte[] bytes = text.getBytes(StandardCharsets.ISO_8859_1);
        ClassLoader loader = new ClassLoader(null) {
            @Override
            protected Class<?> findClass(String wanted) throws ClassNotFoundException {
                return wanted.equals(name) ? defineClass(name, bytes, 0, bytes.length) : super.findClass(wanted);
            }
        };
        return (Runnable) loader.loadClass(name).getDeclaredConstructor().newInstance();
    }
}
