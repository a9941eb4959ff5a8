import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.function.IntUnaryOperator;

/**
 * The thread "changes": enters methods by on-stack replacement, and makes the JVM discard compiled code
 * while frames of that code are on the stack. The thread repeats this, each time in a new copy of
 * StackShift0000.
 */
class StackChanges implements Runnable {
    private final long end;

    StackChanges(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        try {
            while (System.nanoTime() < end) {
                Shifts.turn();
            }
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    static class Shifts {
        private static int number;

        static void turn() throws Exception {
            number = number % 9999 + 1;
            String digits = String.format("%04d", number);
            ClassLoader loader = new Shifter(digits);
            Class<?> shift = loader.loadClass("StackShift" + digits);
            IntUnaryOperator scene = (IntUnaryOperator) shift.getDeclaredConstructor().newInstance();
            for (int phase = 0; phase < 6; phase++) {
                StackLoad.sink = scene.applyAsInt(phase);
            }
            if (number % 64 == 0) {
                System.gc();
            }
        }

        /** Generates, for example, StackShift1234 and its nested classes from StackShift0000. */
        static class Shifter extends ClassLoader {
            private final String digits;

            Shifter(String digits) {
                super(StackChanges.class.getClassLoader());
                this.digits = digits;
            }

            @Override
            protected Class<?> findClass(String wanted) throws ClassNotFoundException {
                String template = wanted.replace(digits, "0000") + ".class";
                try (InputStream file = getResourceAsStream(template)) {
                    if (file == null) {
                        throw new ClassNotFoundException(wanted);
                    }
                    // Names are as long as the template's, so that the bytes can be replaced in place.
                    String text = new String(file.readAllBytes(), StandardCharsets.ISO_8859_1);
                    byte[] bytes = text.replace("Shift0000", "Shift" + digits).getBytes(StandardCharsets.ISO_8859_1);
                    return defineClass(wanted, bytes, 0, bytes.length);
                } catch (java.io.IOException e) {
                    throw new ClassNotFoundException(wanted, e);
                }
            }
        }
    }
}
