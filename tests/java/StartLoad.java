import java.io.InputStream;
import java.nio.charset.StandardCharsets;

/**
 * Loads and initialises many classes as fast as it can, as a large program does while it starts, and
 * then ends. The argument is the number of classes.
 */
public class StartLoad extends ClassLoader {
    private static final String ORIGINAL = "Start00000";
    private final String template;

    StartLoad() throws Exception {
        try (InputStream file = StartLoad.class.getResourceAsStream(ORIGINAL + ".class")) {
            template = new String(file.readAllBytes(), StandardCharsets.ISO_8859_1);
        }
    }

    @Override
    protected Class<?> findClass(String name) {
        byte[] bytes = template.replace(ORIGINAL, name).getBytes(StandardCharsets.ISO_8859_1);
        return defineClass(name, bytes, 0, bytes.length);
    }

    public static void main(String[] args) throws Exception {
        StartLoad loader = new StartLoad();
        int classes = Integer.parseInt(args[0]);
        long begin = System.nanoTime();
        for (int i = 1; i <= classes; i++) {
            Class.forName(String.format("Start%05d", i), true, loader);
        }
        System.out.println("took " + (System.nanoTime() - begin) / 1000000 + " ms");
    }
}
