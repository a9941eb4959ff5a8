import java.io.InputStream;
import java.nio.charset.StandardCharsets;

/** Copies of a class under other names, each in a loader of its own. */
class Copy {
    private final String original;
    private final byte[] bytes;

    Copy(String original) throws Exception {
        this.original = original;
        try (InputStream file = Copy.class.getResourceAsStream(original + ".class")) {
            bytes = file.readAllBytes();
        }
    }

    /**
     * Makes a copy. Its name must be as long as the original's name, because bytes are replaced in
     * place.
     */
    Runnable make(String name) throws Exception {
        String text = new String(bytes, StandardCharsets.ISO_8859_1).replace(original, name);
        byte[] renamed = text.getBytes(StandardCharsets.ISO_8859_1);
        ClassLoader loader = new ClassLoader(null) {
            @Override
            protected Class<?> findClass(String wanted) throws ClassNotFoundException {
                return wanted.equals(name) ? defineClass(name, renamed, 0, renamed.length) : super.findClass(wanted);
            }
        };
        return (Runnable) loader.loadClass(name).getDeclaredConstructor().newInstance();
    }
}
