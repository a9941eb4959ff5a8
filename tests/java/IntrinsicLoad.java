import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import javax.crypto.Cipher;
import javax.crypto.spec.SecretKeySpec;

/**
 * Threads that spend their time in HotSpot's intrinsics, stubs, native methods and exception handling.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS [KIND]" runs one thread for each
 * kind of work, or only the thread for KIND, and is answered by "done"; "quit" ends.
 */
public class IntrinsicLoad {
    static volatile Object sink;
    static volatile double number;

    private static final Map<String, Callable<?>> kinds = new LinkedHashMap<>();

    static {
        kinds.put("exceptions", IntrinsicLoad::exceptions);
        kinds.put("trigonometry", IntrinsicLoad::trigonometry);
        kinds.put("logarithms", IntrinsicLoad::logarithms);
        kinds.put("checksums", IntrinsicLoad::checksums);
        kinds.put("natives", IntrinsicLoad::natives);
        kinds.put("reflection", IntrinsicLoad::reflection);
        kinds.put("copies", IntrinsicLoad::copies);
        kinds.put("ciphers", IntrinsicLoad::ciphers);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            long end = System.nanoTime() + (long) (Double.parseDouble(words[1]) * 1e9);
            Map<String, Thread> threads = new LinkedHashMap<>();
            for (String kind : kinds.keySet()) {
                if (words.length < 3 || words[2].equals(kind)) {
                    Thread thread = new Thread(() -> run(kinds.get(kind), end), kind);
                    threads.put(kind, thread);
                    thread.start();
                }
            }
            for (Thread thread : threads.values()) {
                thread.join();
            }
            System.out.println("done");
        }
    }

    private static void run(Callable<?> kind, long end) {
        try {
            while (System.nanoTime() < end) {
                sink = kind.call();
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** Exceptions that are thrown several frames below their handlers. */
    static Object exceptions() {
        int caught = 0;
        for (int i = 0; i < 100; i++) {
            try {
                caught += deep(i % 12);
            } catch (IllegalStateException e) {
                caught++;
            }
        }
        return caught;
    }

    private static int deep(int depth) {
        if (depth == 0) {
            throw new IllegalStateException();
        }
        return deep(depth - 1) + 1;
    }

    static Object trigonometry() {
        double sum = 0;
        for (int i = 0; i < 1000; i++) {
            double x = i * 0.7 + number;
            sum += Math.tan(x) + Math.sin(x) + Math.cos(x);
        }
        number = sum % 10;
        return null;
    }

    static Object logarithms() {
        double sum = 0;
        for (int i = 1; i < 1000; i++) {
            double x = i * 0.7 + Math.abs(number);
            sum += Math.log(x) + Math.pow(x, 1.3) + Math.exp(x * 0.001) + Math.log10(x);
        }
        number = sum % 10;
        return null;
    }

    private static final byte[] bytes = new byte[4096];

    static Object checksums() {
        CRC32 crc = new CRC32();
        for (int i = 0; i < 100; i++) {
            crc.update(bytes, 0, bytes.length);
        }
        Deflater deflater = new Deflater();
        deflater.setInput(bytes);
        deflater.finish();
        deflater.deflate(new byte[4096]);
        deflater.end();
        return crc.getValue();
    }

    private static final File file = new File("/proc/self/status");

    static Object natives() {
        long sum = 0;
        for (int i = 0; i < 100; i++) {
            sum += System.currentTimeMillis() + System.identityHashCode(new Object()) + Thread.currentThread().hashCode();
            Thread.yield();
        }
        return sum + file.lastModified();
    }

    static Object reflection() throws Exception {
        Method method = IntrinsicLoad.class.getMethod("called", int.class);
        int sum = 0;
        for (int i = 0; i < 100; i++) {
            sum += (Integer) method.invoke(null, i);
        }
        return sum;
    }

    public static int called(int x) {
        return Integer.toString(x).hashCode();
    }

    private static final int[] small = new int[100];
    private static final Object[] objects = new Object[100];

    static Object copies() {
        for (int i = 0; i < 100; i++) {
            System.arraycopy(small, 0, small, 1, 90);
            System.arraycopy(objects, 0, objects, i % 3, 90);
            System.arraycopy(bytes, 0, bytes, 100 + i, 3000);
            sink = small.clone();
        }
        return sink;
    }

    static Object ciphers() throws Exception {
        Cipher cipher = Cipher.getInstance("AES/CBC/PKCS5Padding");
        cipher.init(Cipher.ENCRYPT_MODE, new SecretKeySpec(new byte[16], "AES"));
        return cipher.doFinal(bytes);
    }
}
