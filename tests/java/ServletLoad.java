import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.reflect.Method;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Runs Tomcat, which must be on the class path, in this process, and sends it requests for files. All
 * calls of Tomcat use reflection, so that this class compiles without Tomcat.
 *
 * "go ROUNDS" starts Tomcat, sends the requests and stops Tomcat, ROUNDS times, and is answered by
 * "done SUM". SUM depends only on ROUNDS.
 */
public class ServletLoad {
    private static long sum;

    public static void main(String[] args) throws Exception {
        Logger.getLogger("").setLevel(Level.SEVERE);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Path folder = Files.createTempDirectory("servlet");
        Files.createDirectory(folder.resolve("webapps"));
        Path files = Files.createDirectory(folder.resolve("files"));
        Files.write(files.resolve("hello.txt"), "hello".repeat(2000).getBytes(StandardCharsets.UTF_8));
        Files.write(files.resolve("page.html"), "<html><body>page</body></html>".getBytes(StandardCharsets.UTF_8));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int rounds = Integer.parseInt(line.substring("go ".length()));
            sum = 0;
            for (int round = 0; round < rounds; round++) {
                serve(folder, files);
            }
            System.out.println("done " + sum);
        }
        try (java.util.stream.Stream<Path> all = Files.walk(folder)) {
            all.sorted(java.util.Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        }
    }

    private static void serve(Path folder, Path files) throws Exception {
        Class<?> type = Class.forName("org.apache.catalina.startup.Tomcat");
        Object tomcat = type.getConstructor().newInstance();
        call(tomcat, "setBaseDir", folder.toString());
        type.getMethod("setPort", int.class).invoke(tomcat, 0);
        Object connector = call(tomcat, "getConnector");
        Object context = type.getMethod("addWebapp", String.class, String.class)
                .invoke(tomcat, "", files.toString());
        call(tomcat, "start");
        int port = (int) call(connector, "getLocalPort");
        for (String path : new String[] {"/hello.txt", "/page.html", "/nothing", "/hello.txt?a=%20b"}) {
            request(port, path, null, null);
            request(port, path, "Range", "bytes=10-99");
            request(port, path, "Accept-Encoding", "gzip");
        }
        request(port, "/hello.txt", "If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT");
        call(tomcat, "stop");
        call(tomcat, "destroy");
        sum += context.toString().length();
    }

    private static void request(int port, String path, String header, String value) throws IOException {
        HttpURLConnection connection =
                (HttpURLConnection) new URL("http://127.0.0.1:" + port + path).openConnection();
        if (header != null) {
            connection.setRequestProperty(header, value);
        }
        int status = connection.getResponseCode();
        sum = sum * 31 + status;
        try (InputStream body = status < 400 ? connection.getInputStream() : connection.getErrorStream()) {
            int bytes = body == null ? 0 : (int) body.transferTo(OutputStream.nullOutputStream());
            sum = sum * 31 + (status < 400 ? bytes : 0);
        }
    }

    private static Object call(Object object, String name, Object... arguments) throws Exception {
        Class<?>[] types = java.util.Arrays.stream(arguments).map(Object::getClass).toArray(Class<?>[]::new);
        Method method = object.getClass().getMethod(name, types);
        return method.invoke(object, arguments);
    }
}
