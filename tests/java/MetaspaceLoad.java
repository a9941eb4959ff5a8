import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;

/**
 * Fills the metaspace on command, so that the JVM collects garbage to unload classes.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done" when
 * the load is over; "quit" ends.
 */
public class MetaspaceLoad {
    private static final int KEPT = 1000;

    private static byte[] code;

    /** The class that each loader defines. */
    public static class Defined {
        int number;

        long add(long other) {
            return other * number + 1;
        }
    }

    private static class Loader extends ClassLoader {
        Class<?> define() {
            return defineClass("MetaspaceLoad$Defined", code, 0, code.length);
        }
    }

    public static void main(String[] args) throws Exception {
        code = read();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                run((long) (Double.parseDouble(line.substring(3)) * 1e9));
                System.out.println("done");
            }
        }
    }

    private static byte[] read() throws IOException {
        try (InputStream in = MetaspaceLoad.class.getResourceAsStream("MetaspaceLoad$Defined.class")) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            in.transferTo(out);
            return out.toByteArray();
        }
    }

    private static void run(long nanos) throws Exception {
        long end = System.nanoTime() + nanos;
        Object[] kept = new Object[KEPT];
        for (int i = 0; System.nanoTime() < end; i++) {
            Object made = new Loader().define().getDeclaredConstructor().newInstance();
            // Every tenth class lives for a while.
            if (i % 10 == 0) {
                kept[i / 10 % KEPT] = made;
            }
        }
    }
}
