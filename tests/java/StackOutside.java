import java.io.DataInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntUnaryOperator;

/** The thread "outside": native code, interpreted code, classes that are loaded and unloaded, waiting. */
class StackOutside implements Runnable {
    private final long end;

    StackOutside(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        try {
            while (System.nanoTime() < end) {
                if (Native.IS_LOADED) {
                    Native.turn();
                }
                Slow.turn();
                Gone.turn();
                Waiting.turn();
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** Java code that calls C code that calls Java code. The C code is in stackload.c. */
    static class Native {
        static final boolean IS_LOADED = load();

        static boolean load() {
            String file = System.getProperty("stackload.native");
            if (file != null) {
                System.load(file);
            }
            return file != null;
        }

        /** Calls back(depth - 1) or bottom(), through several functions. */
        static native void enter(int depth);

        /** Sorts numbers with qsort(), which calls compare(). */
        static native int sort(int seed);

        /** Burns time in C. */
        static native long spin(int rounds);

        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                enter(3);
                StackLoad.sink = sort(7) + spin(20_000);
            }
        }

        static void back(int depth) {
            enter(depth);
        }

        static void bottom(int seed) {
            long x = seed;
            for (int i = 0; i < 20_000; i++) {
                x = x * 31 + i;
            }
            StackLoad.sink = x;
        }

        static int compare(int a, int b) {
            return rank(a) < rank(b) ? -1 : 1;
        }

        static int rank(int x) {
            for (int i = 0; i < 200; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /**
     * Methods that the test excludes from compilation, so that they are interpreted. They and the
     * compiled methods of Fast call each other, with arguments in registers and on the stack.
     */
    static class Slow {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 20; i++) {
                    StackLoad.sink = outer(20, i);
                }
            }
        }

        static long outer(int depth, long x) {
            if (depth > 1) {
                return outer(depth - 1, x + 1) + 1;
            }
            return Fast.between(x) + Fast.crowd(1, 2, 3, 4, 5, 6, 7, 8, 9, x);
        }

        static long leaf(long x) {
            for (int i = 0; i < 500; i++) {
                x = x * 31 + i;
            }
            return x;
        }

        static long packed(long a, long b, long c, long d, long e, long f, long g, long h, long i, int j) {
            return leaf(a + b) + Fast.end(c + d + e + f + g + h + i + j);
        }
    }

    static class Fast {
        static long between(long x) {
            return Slow.leaf(x + 1) + end(x);
        }

        static long crowd(int a, long b, int c, long d, int e, long f, int g, long h, int i, long j) {
            return Slow.packed(j, h, f, d, b, a, c, e, g, i) + end(j);
        }

        static long end(long x) {
            for (int i = 0; i < 2_000; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /** Classes that are loaded, compiled, deoptimised and unloaded: see StackGone0000. */
    static class Gone {
        private static int number;

        static void turn() throws Exception {
            number = number % 9999 + 1;
            String digits = String.format("%04d", number);
            ClassLoader loader = new Loader(digits);
            Class<?> gone = loader.loadClass("StackGone" + digits);
            IntUnaryOperator scene = (IntUnaryOperator) gone.getDeclaredConstructor().newInstance();
            for (long end = StackLoad.turn() + 40_000_000; System.nanoTime() < end; ) {
                StackLoad.sink = scene.applyAsInt(0);
            }
            // Phase 1 loads the subclass Sub and executes the rare case; the compiled code assumes that
            // neither happens.
            StackLoad.sink = scene.applyAsInt(1);
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = scene.applyAsInt(2);
            }
            if (number % 16 == 0) {
                System.gc();
            }
        }

        /** Generates, for example, StackGone1234 and its nested classes from StackGone0000. */
        static class Loader extends ClassLoader {
            private final String digits;

            Loader(String digits) {
                super(StackOutside.class.getClassLoader());
                this.digits = digits;
            }

            @Override
            protected Class<?> findClass(String wanted) throws ClassNotFoundException {
                String template = wanted.replace(digits, "0000") + ".class";
                try (InputStream file = getResourceAsStream(template)) {
                    if (file == null) {
                        throw new ClassNotFoundException(wanted);
                    }
                    byte[] read = new byte[file.available()];
                    new DataInputStream(file).readFully(read);
                    // Names are as long as the template's, so that the bytes can be replaced in place.
                    String text = new String(read, StandardCharsets.ISO_8859_1);
                    byte[] bytes = text.replace("Gone0000", "Gone" + digits).getBytes(StandardCharsets.ISO_8859_1);
                    return defineClass(wanted, bytes, 0, bytes.length);
                } catch (java.io.IOException e) {
                    throw new ClassNotFoundException(wanted, e);
                }
            }
        }
    }

    /** Short waits in the kernel. */
    static class Waiting {
        static void turn() throws InterruptedException {
            for (long end = StackLoad.turn() - 5_000_000; System.nanoTime() < end; ) {
                nap();
            }
        }

        static void nap() throws InterruptedException {
            LockSupport.parkNanos(1);
            Thread.yield();
            synchronized (Waiting.class) {
                Waiting.class.wait(0, 1);
            }
            StackLoad.sink = awake(3);
        }

        static long awake(long x) {
            for (int i = 0; i < 100_000; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }
}
