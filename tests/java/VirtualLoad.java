import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A program with virtual threads in each state. It reads commands from stdin.
 *
 * `start` starts one virtual thread for each state. `park N` starts N virtual threads with equal stacks.
 * `deadlock KINDS LOCKS` starts threads of which each waits for a lock of the next one, and the last one for
 * a lock of the first. KINDS has one character for each thread: `p` for a platform thread, `v` for a virtual
 * one. LOCKS is `monitors`, `reentrant` (for ReentrantLocks) or `both` (alternately). `collect` requests a
 * collection. The answer to `dump` contains NAME;NUMBER;STATE;FRAME,FRAME,... for each thread that `start`
 * has started, as the thread's own methods report it.
 *
 * The program uses reflection, because the compiler may be older than virtual threads.
 */
public class VirtualLoad {
    static final Object monitor = new Object();
    static final Object signal = new Object();
    static final ReentrantLock lock = new ReentrantLock();
    static final List<Thread> threads = new ArrayList<>();
    static final List<Object> kept = new ArrayList<>();
    static volatile long count;
    static Object ofVirtual;
    static Class<?> builder;

    static Thread virtual(String name, Runnable task) throws Exception {
        Object named = builder.getMethod("name", String.class).invoke(ofVirtual, name);
        return (Thread) builder.getMethod("unstarted", Runnable.class).invoke(named, task);
    }

    interface Act {
        void act() throws Exception;
    }

    static Thread start(String name, Act act) throws Exception {
        Thread thread = virtual(name, () -> run(act));
        thread.start();
        threads.add(thread);
        return thread;
    }

    static void run(Act act) {
        try {
            outer(act, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** Has more arguments than there are registers, so that some are on the stack. */
    static long outer(Act act, long a, long b, long c, long d, long e, long f, long g, long h, long i, long j)
            throws Exception {
        act.act();
        return a + b + c + d + e + f + g + h + i + j;
    }

    static void await(Thread thread) throws Exception {
        while (thread.getState() == Thread.State.RUNNABLE || thread.getState() == Thread.State.NEW) {
            Thread.sleep(1);
        }
    }

    static void spin() {
        while (true) {
            count++;
        }
    }

    static void deep(int depth) {
        if (depth == 0) {
            LockSupport.park();
        } else {
            deep(depth - 1);
        }
    }

    static void wait(Object on) throws Exception {
        synchronized (on) {
            on.wait();
        }
    }

    static void enter(Object on) {
        synchronized (on) {
            count++;
        }
    }

    static void pinned() throws Exception {
        synchronized (new Object()) {
            LockSupport.park(VirtualLoad.class);
        }
    }

    static void startAll() throws Exception {
        CountDownLatch held = new CountDownLatch(1);
        start("holder", () -> {
            lock.lock();
            synchronized (monitor) {
                held.countDown();
                Thread.sleep(Long.MAX_VALUE);
            }
        });
        held.await();
        await(start("parker", () -> LockSupport.park()));
        await(start("deep", () -> deep(30)));
        await(start("timed-parker", () -> LockSupport.parkNanos(VirtualLoad.class, Long.MAX_VALUE)));
        await(start("sleeper", () -> Thread.sleep(Long.MAX_VALUE)));
        await(start("locker", () -> lock.lock()));
        await(start("enterer", () -> enter(monitor)));
        await(start("waiter", () -> wait(signal)));
        await(start("pinned", () -> pinned()));
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
        InputStream in = server.accept().getInputStream();
        kept.add(client);
        start("socket-reader", () -> in.read());
        start("spinner", () -> spin());
        ExecutorService executor = (ExecutorService)
                Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        kept.add(executor);
        executor.execute(() -> {
            Thread.currentThread().setName("in-executor");
            synchronized (threads) {
                threads.add(Thread.currentThread());
            }
            LockSupport.park();
        });
        flock();
        while (count < 10_000_000) {
            Thread.sleep(10);
        }
        Thread.sleep(200);
    }

    /**
     * Starts a virtual thread that owns a thread container, and in this container another virtual thread.
     * Needs --add-exports.
     */
    static void flock() throws Exception {
        Class<?> flocks = Class.forName("jdk.internal.misc.ThreadFlock");
        Method open = flocks.getMethod("open", String.class);
        Method add = flocks.getMethod("start", Thread.class);
        Thread member = virtual("in-flock", () -> run(() -> LockSupport.park()));
        threads.add(member);
        await(start("flock-owner", () -> {
            Object flock;
            try {
                flock = open.invoke(null, "the-flock");
                add.invoke(flock, member);
            } catch (ReflectiveOperationException withoutExports) {
                throw new IllegalStateException(withoutExports);
            }
            LockSupport.park(flock);
        }));
    }

    static void park(int number) throws Exception {
        List<Thread> parked = new ArrayList<>();
        for (int i = 0; i < number; i++) {
            Thread thread = virtual("many-" + i, () -> deep(10));
            thread.start();
            parked.add(thread);
        }
        for (Thread thread : parked) {
            await(thread);
        }
        // Until the carriers are idle.
        Thread.sleep(1000);
    }

    static int deadlocks;

    static void take(Object lock, Act then) throws Exception {
        if (lock instanceof ReentrantLock) {
            ((ReentrantLock) lock).lock();
            then.act();
        } else {
            synchronized (lock) {
                then.act();
            }
        }
    }

    static void deadlock(String kinds, String locks) throws Exception {
        int number = kinds.length();
        Object[] all = new Object[number];
        for (int i = 0; i < number; i++) {
            boolean isMonitor = locks.equals("monitors") || locks.equals("both") && i % 2 == 0;
            all[i] = isMonitor ? new Object() : new ReentrantLock();
        }
        CountDownLatch held = new CountDownLatch(number);
        for (int i = 0; i < number; i++) {
            Object first = all[i];
            Object second = all[(i + 1) % number];
            Runnable run = () -> run(() -> take(first, () -> {
                held.countDown();
                held.await();
                take(second, () -> count++);
            }));
            String name = "dead-" + deadlocks + "-" + i;
            Thread thread = kinds.charAt(i) == 'p' ? new Thread(run, name) : virtual(name, run);
            thread.start();
        }
        deadlocks++;
        held.await();
        Thread.sleep(200);
    }

    static String dump() {
        StringBuilder answer = new StringBuilder();
        for (Thread thread : threads) {
            StringBuilder frames = new StringBuilder();
            for (StackTraceElement frame : thread.getStackTrace()) {
                frames.append(frames.length() == 0 ? "" : ",");
                frames.append(frame.getClassName()).append('.').append(frame.getMethodName());
                frames.append(':').append(Math.max(0, frame.getLineNumber()));
            }
            answer.append(' ').append(thread.getName()).append(';').append(thread.getId());
            answer.append(';').append(thread.getState()).append(';').append(frames);
        }
        return answer.toString();
    }

    public static void main(String[] args) throws Exception {
        ofVirtual = Thread.class.getMethod("ofVirtual").invoke(null);
        builder = Class.forName("java.lang.Thread$Builder");
        String name = ManagementFactory.getRuntimeMXBean().getName();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + name.substring(0, name.indexOf('@')));
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            String answer = "";
            switch (words[0]) {
                case "start":
                    startAll();
                    break;
                case "park":
                    park(Integer.parseInt(words[1]));
                    break;
                case "deadlock":
                    deadlock(words[1], words[2]);
                    break;
                case "collect":
                    System.gc();
                    break;
                case "dump":
                    answer = dump();
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            System.out.println("done" + answer);
        }
        Runtime.getRuntime().halt(0);
    }
}
