import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Requests garbage collections in two threads, each from a call path that the test expects.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by
 * "done first=N second=N" with the number of collections that each thread has requested.
 */
public class AskLoad {
    private static int first;
    private static int second;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new java.io.File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                first = second = 0;
                Thread a = new Thread(() -> {
                    while (System.nanoTime() < end) {
                        cleanUp(5);
                        first++;
                        pause();
                    }
                }, "first");
                Thread b = new Thread(() -> {
                    while (System.nanoTime() < end) {
                        tidy();
                        second++;
                        pause();
                    }
                }, "second");
                a.start();
                b.start();
                a.join();
                b.join();
                System.out.println("done first=" + first + " second=" + second);
            }
        }
    }

    static void cleanUp(int depth) {
        if (depth > 1) {
            cleanUp(depth - 1);
            return;
        }
        System.gc(); // @first
    }

    static void tidy() {
        Runnable sweep = () -> Runtime.getRuntime().gc(); // @second
        sweep.run();
    }

    private static void pause() {
        try {
            Thread.sleep(20);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
