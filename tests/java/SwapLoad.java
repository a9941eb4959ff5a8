import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Loads a native library, and then replaces it with another.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "load FILE" unloads the previous library
 * and loads FILE; "spin SECONDS" spends SECONDS in it; both are answered by "done ADDRESS" with the
 * address of its code; "quit" ends.
 */
public class SwapLoad {
    /** Interface of {@link SwapNative}, which is defined by another class loader than this class. */
    public interface Spinner {
        void spin(double seconds);
    }

    private static Spinner spinner;
    private static String file;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("load")) {
                unload();
                file = words[1];
                System.setProperty("swap.native", file);
                spinner = (Spinner) new Loader().define().getDeclaredConstructor().newInstance();
            } else {
                spinner.spin(Double.parseDouble(words[1]));
            }
            System.out.println("done " + address());
        }
    }

    /** Waits until the JVM has unloaded the library together with the class loader that loaded it. */
    private static void unload() throws Exception {
        spinner = null;
        while (file != null && address() != null) {
            System.gc();
            Thread.sleep(50);
        }
    }

    private static String address() throws IOException {
        for (String line : Files.readAllLines(Path.of("/proc/self/maps"))) {
            if (line.endsWith(file) && line.contains(" r-xp ")) {
                return line.split("-")[0];
            }
        }
        return null;
    }

    private static final class Loader extends ClassLoader {
        Class<?> define() throws IOException {
            try (InputStream in = SwapLoad.class.getResourceAsStream("SwapNative.class")) {
                byte[] bytes = in.readAllBytes();
                return defineClass(null, bytes, 0, bytes.length);
            }
        }
    }
}
