import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Burns CPU time in known call paths. Their call graph is in tests/lib/callgraph.rs, which checks the
 * stacks; this program checks nothing.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done" when
 * the threads have ended. Properties of the JVM choose what runs:
 *
 * stackload.parts=PART,...: the threads, each with the name of its part: calls, library, outside,
 * virtual (JDK 21 and later), lines, changes. The default is the first four.
 * stackload.native=FILE: the compiled stackload.c. Without it, no native code is called.
 * stackload.self=FILE: during "go", the program samples the stacks of these threads with
 * Thread.getAllStackTraces() and then writes them to FILE as folded stacks.
 */
public class StackLoad {
    /**
     * Duration of one turn in nanoseconds. A thread runs its scenes, which are classes with a method
     * turn(), one after the other.
     */
    private static final long TURN = 10_000_000;

    static final boolean IS_JDK_8 = System.getProperty("java.specification.version").equals("1.8");

    static volatile long sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String parts = System.getProperty("stackload.parts", "calls,library,outside,virtual");
        // JDK 8 has no ProcessHandle.
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go ")) {
                long end = System.nanoTime() + (long) (Double.parseDouble(line.substring(3)) * 1e9);
                List<Thread> threads = new ArrayList<>();
                for (String part : parts.split(",")) {
                    threads.add(new Thread(part(part, end), part));
                }
                for (Thread thread : threads) {
                    thread.start();
                }
                if (System.getProperty("stackload.self") != null) {
                    watch(threads, System.getProperty("stackload.self"));
                }
                for (Thread thread : threads) {
                    thread.join();
                }
                System.out.println("done");
            }
        }
    }

    private static Runnable part(String name, long end) {
        switch (name) {
            case "calls":
                return new StackCalls(end);
            case "library":
                return new StackLibrary(end);
            case "outside":
                return new StackOutside(end);
            case "virtual":
                return new StackVirtual(end);
            case "lines":
                return new StackLines(end);
            case "changes":
                return new StackChanges(end);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** Returns the end time of a turn that begins now, on the clock of System.nanoTime(). */
    static long turn() {
        return System.nanoTime() + TURN;
    }

    private static void watch(List<Thread> threads, String file) throws Exception {
        Set<String> stacks = new HashSet<>();
        boolean isAlive = true;
        while (isAlive) {
            isAlive = false;
            for (Thread thread : threads) {
                isAlive |= thread.isAlive();
            }
            for (Map.Entry<Thread, StackTraceElement[]> entry : Thread.getAllStackTraces().entrySet()) {
                if (threads.contains(entry.getKey())) {
                    stacks.add(folded(entry.getKey().getName(), entry.getValue()));
                }
            }
            Thread.sleep(1);
        }
        java.nio.file.Files.write(java.nio.file.Paths.get(file), stacks);
    }

    private static String folded(String thread, StackTraceElement[] trace) {
        StringBuilder text = new StringBuilder("java;").append(thread).append("-0;start_thread");
        for (int i = trace.length - 1; i >= 0; i--) {
            text.append(';').append(trace[i].getClassName()).append('.').append(trace[i].getMethodName());
        }
        return text.append(" 1").toString();
    }
}
