import java.io.BufferedReader;
import java.io.InputStreamReader;

/**
 * Almost never has the same stack twice, because each call of spin() is reached through a random sequence
 * of calls of left() and right().
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done".
 */
public class WideLoad {
    private static final int DEPTH = 24;
    private static final long SPIN = 300_000;

    static volatile long sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        long way = 0;
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                while (System.nanoTime() < end) {
                    way = way * 6364136223846793005L + 1442695040888963407L;
                    turn(way >>> 32, DEPTH);
                }
                System.out.println("done");
            }
        }
    }

    static void turn(long way, int depth) {
        if (depth == 0) {
            spin();
        } else if ((way & 1) == 0) {
            left(way >>> 1, depth - 1);
        } else {
            right(way >>> 1, depth - 1);
        }
    }

    static void left(long way, int depth) {
        turn(way, depth);
    }

    static void right(long way, int depth) {
        turn(way, depth);
    }

    static void spin() {
        long end = System.nanoTime() + SPIN;
        while (System.nanoTime() < end) {
            sink++;
        }
    }
}
