import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.invoke.MethodHandles;
import java.lang.reflect.Array;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Paths;

/**
 * Causes events a given number of times, from known methods.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; each command is answered by "done" and
 * its counts: "throw N" (exceptions), "flood N" (exceptions in two threads, as fast as possible),
 * "define N" (classes), "start N" (threads), "touch MEGABYTES" (writes to new memory), "linger BLOCKS"
 * (slowly writes to new blocks of 64 KiB), "collect N" (calls System.gc()), "surprise N" (takes a
 * branch that compiled code does not contain), "stall MILLISECONDS" (allocates faster than a collector
 * can free), "spin N" (one loop of N million iterations).
 */
public class EventLoad {
    /** An exception class of this program. */
    static class Worse extends RuntimeException {
        Worse(String message) {
            super(message);
        }
    }

    /** An exception without a stack trace. */
    static class Silent extends RuntimeException {
        Silent() {
            super("silent", null, false, false);
        }
    }

    static class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass("Many0000", bytes, 0, bytes.length);
        }
    }

    /** Caught exceptions are stored here. */
    static volatile Object sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            int n = Integer.parseInt(words[1]);
            switch (words[0]) {
                case "throw":
                    for (int i = 0; i < n; i++) {
                        caught(i);
                    }
                    System.out.println("done bad=" + n + " worse=" + 2 * n + " silent=" + n);
                    break;
                case "flood":
                    Thread a = new Thread(() -> flood(n), "flood-1");
                    Thread b = new Thread(() -> flood(n), "flood-2");
                    a.start();
                    b.start();
                    a.join();
                    b.join();
                    System.out.println("done worse=" + 2L * n);
                    break;
                case "define":
                    System.out.println("done " + define(n));
                    break;
                case "start":
                    for (int i = 0; i < n; i++) {
                        starts();
                    }
                    System.out.println("done started=" + n);
                    break;
                case "touch":
                case "linger":
                    long before = faults("self");
                    long mine = faults("thread-self");
                    if (words[0].equals("touch")) {
                        touch(n, 1 << 20, 0);
                    } else {
                        touch(n, 1 << 16, 16);
                    }
                    mine = faults("thread-self") - mine;
                    System.out.println("done faults=" + (faults("self") - before) + " own=" + mine);
                    break;
                case "spin":
                    sink = spins(n * 1_000_000);
                    System.out.println("done spun");
                    break;
                case "stall":
                    Thread[] stallers = new Thread[3];
                    long end = System.nanoTime() + n * 1_000_000L;
                    for (int i = 0; i < stallers.length; i++) {
                        stallers[i] = new Thread(() -> stalls(end), "staller-" + i);
                        stallers[i].start();
                    }
                    for (Thread staller : stallers) {
                        staller.join();
                    }
                    System.out.println("done stalled");
                    break;
                case "surprise":
                    int sum = 0;
                    for (int i = 0; i < 3000; i++) {
                        sum = loops(sum, false);
                    }
                    // Waits until the loop is compiled without the rare branch.
                    Thread.sleep(300);
                    for (int i = 0; i < n; i++) {
                        sum = loops(sum, true);
                    }
                    sink = sum;
                    System.out.println("done surprised=" + n);
                    break;
                case "collect":
                    for (int i = 0; i < n; i++) {
                        collects();
                    }
                    System.out.println("done collected=" + n);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
    }

    static void caught(int i) {
        try {
            bad(3);
        } catch (IllegalStateException e) {
            sink = e;
        }
        for (int k = 0; k < 2; k++) {
            try {
                worse();
            } catch (Worse e) {
                sink = e;
            }
        }
        try {
            throw new Silent();
        } catch (Silent e) {
            sink = e;
        }
    }

    static void bad(int depth) {
        if (depth > 0) {
            bad(depth - 1);
            return;
        }
        throw new IllegalStateException("bad");
    }

    static void worse() {
        throw new Worse("worse");
    }

    static void flood(int n) {
        for (int i = 0; i < n; i++) {
            try {
                worse();
            } catch (Worse e) {
                sink = e;
            }
        }
    }

    static String define(int n) throws Exception {
        byte[] bytes;
        try (InputStream in = EventLoad.class.getResourceAsStream("Many0000.class")) {
            bytes = in.readAllBytes();
        }
        for (int i = 0; i < n; i++) {
            sink = new Loader().define(bytes);
        }
        int hidden = 0;
        try {
            MethodHandles.Lookup lookup = MethodHandles.lookup();
            Class<?> option = Class.forName("java.lang.invoke.MethodHandles$Lookup$ClassOption");
            Object none = Array.newInstance(option, 0);
            Method define = MethodHandles.Lookup.class.getMethod(
                "defineHiddenClass", byte[].class, boolean.class, none.getClass());
            for (int i = 0; i < n; i++) {
                sink = define.invoke(lookup, bytes, false, none);
                hidden++;
            }
        } catch (ClassNotFoundException e) {
            // JDKs before 15 have no hidden classes.
        }
        return "defined=" + n + " hidden=" + hidden;
    }

    static long spins(int turns) {
        long sum = 0;
        for (int i = 0; i < turns; i++) {
            sum = sum * 31 + i;
        }
        return sum;
    }

    static void stalls(long end) {
        while (System.nanoTime() < end) {
            sink = new byte[1 << 20];
        }
    }

    static void starts() throws InterruptedException {
        Thread thread = new Thread(() -> sink = "run");
        thread.start();
        thread.join();
    }

    /** Allocates blocks of memory and writes to each of their pages, with a pause after each block. */
    static void touch(int pieces, int bytes, int millis) throws InterruptedException {
        for (int i = 0; i < pieces; i++) {
            java.nio.ByteBuffer piece = java.nio.ByteBuffer.allocateDirect(bytes);
            for (int at = 0; at < bytes; at += 4096) {
                piece.put(at, (byte) 1);
            }
            sink = piece;
            Thread.sleep(millis);
        }
    }

    /** Minor and major faults so far of this process ("self") or this thread ("thread-self"). */
    static long faults(String whose) throws Exception {
        String stat = new String(Files.readAllBytes(Paths.get("/proc/" + whose + "/stat")));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return Long.parseLong(fields[7]) + Long.parseLong(fields[9]);
    }

    /** The rare branch is not compiled until it has been taken, so taking it causes an uncommon trap. */
    static int expects(int sum, boolean rare) {
        if (rare) {
            return Integer.bitCount(sum) + 7;
        }
        return sum + 1;
    }

    static int loops(int sum, boolean rare) {
        for (int i = 0; i < 2000; i++) {
            sum = expects(sum, rare);
        }
        return sum;
    }

    static void collects() {
        System.gc();
    }
}
