import java.io.IOException;
import java.net.URI;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Set;
import java.util.stream.Stream;
import java.util.zip.Deflater;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;

/** Writes to a jar the class files of the Java runtime that runs this program. */
public class ClassFiles {
    public static void main(String[] args) throws IOException {
        Path modules = FileSystems.getFileSystem(URI.create("jrt:/")).getPath("/modules");
        Set<String> written = new HashSet<>();
        try (ZipOutputStream jar = new ZipOutputStream(Files.newOutputStream(Path.of(args[0])));
                Stream<Path> all = Files.walk(modules)) {
            jar.setLevel(Deflater.BEST_SPEED);
            Iterator<Path> files = all.filter(f -> f.toString().endsWith(".class")).iterator();
            while (files.hasNext()) {
                Path file = files.next();
                // /modules/MODULE/PACKAGE/CLASS.class
                String name = file.subpath(2, file.getNameCount()).toString();
                // Only module-info occurs more than once.
                if (written.add(name)) {
                    jar.putNextEntry(new ZipEntry(name));
                    jar.write(Files.readAllBytes(file));
                    jar.closeEntry();
                }
            }
        }
    }
}
