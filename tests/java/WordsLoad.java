import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Runs a class in a thread. The names of the thread, the class and its method are hostile: they change a
 * terminal's title, contain line breaks and reverse the direction of text. The class is a copy of
 * {@link WordsBase0000} with other names.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" computes, allocates and
 * collects for SECONDS and is answered by "done"; "quit" ends.
 */
public class WordsLoad {
    /** Parts of names in {@link WordsBase0000}, and hostile replacements of the same length in bytes. */
    private static final String[][] REPLACEMENTS = {
        {"titleZZZ", "\u001b]2owne\u0007"},
        {"lineZ", "\rown\n"},
        {"bidiZ", "\u202eab"},
    };

    public static void main(String[] args) throws Exception {
        byte[] bytes;
        try (InputStream in = WordsLoad.class.getResourceAsStream("WordsBase0000.class")) {
            bytes = in.readAllBytes();
        }
        // One character per byte, so that replacing text replaces bytes.
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        for (String[] replacement : REPLACEMENTS) {
            String hostile = new String(replacement[1].getBytes(StandardCharsets.UTF_8), StandardCharsets.ISO_8859_1);
            if (hostile.length() != replacement[0].length()) {
                throw new IllegalStateException(replacement[0]);
            }
            text = text.replace(replacement[0], hostile);
        }
        text = text.replace("WordsBase0000", "Words\u001b\nBase00");
        Runnable work = (Runnable) new Loader().define(text.getBytes(StandardCharsets.ISO_8859_1))
                .getDeclaredConstructor().newInstance();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
            Thread thread = new Thread(() -> {
                while (System.nanoTime() < end) {
                    work.run();
                }
            }, "\u001b]2own\u0007\n\u202ex");
            thread.start();
            thread.join();
            System.out.println("done");
        }
    }

    private static final class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass(null, bytes, 0, bytes.length);
        }
    }
}
