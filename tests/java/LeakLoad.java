import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Array;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * Loads classes that are never unloaded. "grow N" creates N loaders with one class each, and "hide N"
 * creates N hidden classes (JDK 15 and later). Both are answered by "done" and the number of all classes.
 */
public class LeakLoad {
    private static final List<Class<?>> KEPT = new ArrayList<>();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        byte[] bytes;
        try (InputStream file = LeakLoad.class.getResourceAsStream("LeakLoad$Kept.class")) {
            bytes = file.readAllBytes();
        }
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int count = Integer.parseInt(line.substring("grow ".length()));
            for (int i = 0; i < count; i++) {
                KEPT.add(line.startsWith("hide") ? hidden(bytes) : new Loader().define(bytes));
            }
            System.out.println("done " + KEPT.size());
        }
    }

    /** Calls MethodHandles.Lookup.defineHiddenClass() by reflection, because older JDKs lack it. */
    private static Class<?> hidden(byte[] bytes) throws Exception {
        Class<?> option = Class.forName("java.lang.invoke.MethodHandles$Lookup$ClassOption");
        Object strong = option.getField("STRONG").get(null);
        Object options = Array.newInstance(option, 1);
        Array.set(options, 0, strong);
        Method define = MethodHandles.Lookup.class.getMethod(
                "defineHiddenClass", byte[].class, boolean.class, options.getClass());
        MethodHandles.Lookup made =
                (MethodHandles.Lookup) define.invoke(MethodHandles.lookup(), bytes, false, options);
        return made.lookupClass();
    }

    private static final class Loader extends ClassLoader {
        Loader() {
            super(LeakLoad.class.getClassLoader());
        }

        Class<?> define(byte[] bytes) {
            return defineClass("LeakLoad$Kept", bytes, 0, bytes.length);
        }
    }

    /** The class that is loaded repeatedly. */
    static class Kept {
        int value() {
            return 7;
        }
    }
}
