import java.util.concurrent.ThreadLocalRandom;

/**
 * A program that does little, like most JVMs on a machine with a hundred of them. Five times per second it
 * creates some objects, sorts them and drops them. It ends when its standard input is closed.
 *
 * Prints "ready PID" once.
 */
public class LightLoad {
    static volatile int sink;

    public static void main(String[] args) throws Exception {
        Thread worker = new Thread(LightLoad::run, "light-worker");
        worker.setDaemon(true);
        worker.start();
        System.out.println("ready " + ProcessHandle.current().pid());
        while (System.in.read() >= 0) {}
    }

    private static void run() {
        while (true) {
            sink += work();
            try {
                Thread.sleep(200);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    private static int work() {
        String[] words = new String[500];
        for (int i = 0; i < words.length; i++) {
            words[i] = "word" + ThreadLocalRandom.current().nextInt(10_000);
        }
        java.util.Arrays.sort(words);
        return words[0].length();
    }
}
