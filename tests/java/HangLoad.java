import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;

/**
 * A program that hangs: two threads wait for each other's lock, one is parked inside calls of compiled
 * methods, one waits for a notification, one sleeps for hours, and a thread pool has no work.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "hang" is answered by "done" when all
 * threads hang; "dump" is answered by "done" and, for each thread, NAME=FRAME,FRAME,...: its stack as
 * the JVM itself reports it, innermost frame first.
 */
public class HangLoad {
    static final Object one = new Object();
    static final Object other = new Object();
    static final CountDownLatch both = new CountDownLatch(2);
    static final Thread[] threads = new Thread[5];
    static volatile boolean isHot;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            System.out.println("done " + (line.equals("hang") ? hang() : dump()));
        }
        // The other threads never end.
        Runtime.getRuntime().halt(0);
    }

    static String hang() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(2);
        pool.submit(() -> isHot = true).get();
        pool.submit(() -> isHot = true).get();
        threads[0] = new Thread(HangLoad::takesOne, "takes-one");
        threads[1] = new Thread(HangLoad::takesOther, "takes-other");
        threads[2] = new Thread(HangLoad::parks, "parks");
        threads[3] = new Thread(HangLoad::sleeps, "sleeps");
        threads[4] = new Thread(HangLoad::waits, "waits");
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            while (thread.getState() == Thread.State.RUNNABLE) {
                Thread.sleep(10);
            }
        }
        // All threads hang. Waits until compilers and other threads are idle.
        Thread.sleep(1000);
        return "";
    }

    static String dump() {
        StringBuilder answer = new StringBuilder();
        for (Map.Entry<Thread, StackTraceElement[]> entry : Thread.getAllStackTraces().entrySet()) {
            String name = entry.getKey().getName();
            StringBuilder frames = new StringBuilder();
            for (StackTraceElement frame : entry.getValue()) {
                frames.append(frames.length() == 0 ? "" : ",");
                frames.append(frame.getClassName()).append('.').append(frame.getMethodName());
            }
            if (frames.length() > 0 && !name.equals("main")) {
                answer.append(name.replace(' ', '_')).append('=').append(frames).append(' ');
            }
        }
        return answer.toString();
    }

    static void takesOne() {
        synchronized (one) {
            wantsOther();
        }
    }

    static void wantsOther() {
        meet();
        synchronized (other) {
            isHot = false;
        }
    }

    static void takesOther() {
        synchronized (other) {
            wantsOne();
        }
    }

    static void wantsOne() {
        meet();
        synchronized (one) {
            isHot = false;
        }
    }

    static void meet() {
        both.countDown();
        try {
            both.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Parks in a recursive method that was compiled before. */
    static void parks() {
        for (int i = 0; i < 50_000; i++) {
            down(20, false);
        }
        for (;;) {
            down(20, true);
        }
    }

    static int down(int levels, boolean stays) {
        if (levels == 0) {
            if (stays) {
                LockSupport.park();
            }
            return 1;
        }
        return down(levels - 1, stays) + levels;
    }

    static void sleeps() {
        try {
            Thread.sleep(86_400_000);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void waits() {
        Object never = new Object();
        synchronized (never) {
            try {
                never.wait();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
