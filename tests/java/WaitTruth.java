import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.Pipe;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Threads that wait in many ways, each of which logs all its waits.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" starts the threads, which repeat their waits
 * for that time. With "go SECONDS spin", one more thread spins and sleeps by turns. The answer has one line per wait, one
 * for this thread and a last line:
 *
 * wait THREAD KIND BEGIN END HOLDER
 * spun THREAD CPU ELAPSED
 * done waits=N
 *
 * CPU and ELAPSED are the thread's CPU time as the kernel accounts it and its lifetime, in nanoseconds.
 * KIND has underscores instead of spaces. BEGIN and END are times of CLOCK_MONOTONIC, in nanoseconds. They are taken
 * in Java code before and after the call that waits, so a logged wait is slightly longer than the real one. HOLDER is
 * the thread that released the awaited lock last, or that ended the wait by another action; "-" if a timeout ended the
 * wait. Calls that did not wait, for example for a lock that was free, are logged, too: these are short.
 */
public class WaitTruth {
    static final int MILLISECOND = 1_000_000;

    static volatile long end;
    /** Threads of the current command. Each waiter is in front of its partner. */
    static List<Actor> actors;
    /** Resources of the current command. */
    static List<AutoCloseable> resources;
    static int logLength;

    interface Action {
        void run() throws Exception;
    }

    interface Turn {
        /** Waits once or more, and logs each wait. */
        void run(Actor actor) throws Exception;
    }

    /** A thread that repeats its waits until the end of the command, or until another thread has exited. */
    static class Actor extends Thread {
        final Random random = new Random(actors.size());
        /** Allocated before the thread starts. */
        final StringBuilder log = new StringBuilder(logLength);
        final Turn turn;
        final Thread waiter;
        int waits;
        /** Line about the thread's times; empty except for the spinner. */
        String total = "";

        Actor(String name, Thread waiter, Turn turn) {
            super(name);
            this.waiter = waiter;
            this.turn = turn;
            actors.add(this);
        }

        @Override
        public void run() {
            try {
                while (waiter == null ? System.nanoTime() < end : waiter.isAlive()) {
                    turn.run(this);
                    compute();
                }
            } catch (Exception e) {
                e.printStackTrace();
                System.exit(1);
            }
        }

        /** Logs a wait that has ended just now. */
        void log(String kind, long begin, String holder) {
            long now = System.nanoTime();
            log.append("wait ").append(getName()).append(' ').append(kind).append(' ').append(begin).append(' ');
            log.append(now).append(' ').append(holder).append('\n');
            waits++;
        }

        /** Calls a method that waits. */
        void await(String kind, String holder, Action call) throws Exception {
            long begin = System.nanoTime();
            call.run();
            log(kind, begin, holder);
        }

        void sleepNow(long nanos) throws Exception {
            await("sleep", "-", () -> Thread.sleep(nanos / MILLISECOND, (int) (nanos % MILLISECOND)));
        }

        /** Uses the processor for 0.2 to 0.4 ms, so that the next wait is distinct from the last one. */
        void compute() {
            long until = System.nanoTime() + 200_000 + random.nextInt(200_000);
            while (System.nanoTime() < until) {
                // Nothing else to do.
            }
        }

        /** Returns a random length: 2 to 60 ms, or 60 to 300 ms in one of 16 cases. */
        long nanos() {
            return random.nextInt(16) > 0
                ? 2 * MILLISECOND + random.nextInt(58 * MILLISECOND)
                : 60 * MILLISECOND + random.nextInt(240 * MILLISECOND);
        }

        long millis() {
            return nanos() / MILLISECOND;
        }
    }

    interface Holding {
        /** Acquires the lock, and holds it for some time. */
        void run(Actor actor, Lock lock) throws Exception;
    }

    /** A lock, and the name of the thread that released it last, which the lock guards. */
    static class Lock extends ReentrantLock {
        String last = "-";
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(go(Double.parseDouble(words[1]), words.length > 2));
        }
    }

    static String go(double seconds, boolean spins) throws Exception {
        logLength = (int) (seconds * 20_000) + 10_000;
        actors = new ArrayList<>();
        resources = new ArrayList<>();
        new Actor("sleep", null, actor -> actor.sleepNow(actor.nanos()));
        addMonitors();
        addLocks();
        addParks();
        addSockets();
        addPipes();
        addSelectors();
        if (spins) {
            addSpinner();
        }
        end = System.nanoTime() + (long) (seconds * 1e9);
        for (Actor actor : actors) {
            actor.start();
        }
        StringBuilder answer = new StringBuilder();
        int waits = 0;
        for (Actor actor : actors) {
            actor.join();
            answer.append(actor.log).append(actor.total);
            waits += actor.waits;
        }
        for (AutoCloseable resource : resources) {
            resource.close();
        }
        return answer.append("done waits=").append(waits).toString();
    }

    /** Adds a thread that spins for 20 to 80 ms, and sleeps for a random time, by turns. */
    static void addSpinner() {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long[] since = new long[1];
        new Actor("spinner", null, actor -> {
            if (since[0] == 0) {
                since[0] = System.nanoTime();
            }
            spin(threads, 20 * MILLISECOND + actor.random.nextInt(60 * MILLISECOND));
            actor.sleepNow(actor.nanos());
            actor.total = "spun " + actor.getName() + ' ' + threads.getCurrentThreadCpuTime() + ' '
                + (System.nanoTime() - since[0]) + '\n';
        });
    }

    static void spin(ThreadMXBean threads, long nanos) {
        long until = threads.getCurrentThreadCpuTime() + nanos;
        while (threads.getCurrentThreadCpuTime() < until) {
            // Nothing else to do.
        }
    }

    /** Adds a thread that ends the waits of another one by this action. Between two actions, it sleeps. */
    static void addPartner(String name, Thread waiter, Action action) {
        new Actor(name, waiter, actor -> {
            actor.sleepNow(actor.nanos());
            action.run();
        });
    }

    /** Adds a thread that calls a method that waits, and a partner that ends these waits. */
    static void addPair(String name, String kind, Action call, String partner, Action action) {
        addPartner(partner, new Actor(name, null, actor -> actor.await(kind, partner, call)), action);
    }

    /**
     * Adds five threads that hold a lock most of the time. Three of them sleep after each release, so that the thread
     * that was woken gets the lock. The other two, with a lock of their own, often acquire it again before the other
     * thread runs, which has to wait again then. That is one wait in the log.
     */
    static void addContenders(String prefix, String barging, Holding hold) {
        Lock handed = new Lock();
        Lock barged = new Lock();
        for (int i = 1; i <= 3; i++) {
            new Actor(prefix + i, null, actor -> {
                hold.run(actor, handed);
                actor.sleepNow((3 + actor.random.nextInt(3)) * MILLISECOND);
            });
        }
        for (int i = 1; i <= 2; i++) {
            new Actor(barging + i, null, actor -> hold.run(actor, barged));
        }
    }

    static void addMonitors() {
        addContenders("monitor-", "monitor-barge-", WaitTruth::monitor);
        boolean[] isSet = new boolean[1];
        Actor waiter = new Actor("wait", null, actor -> {
            synchronized (isSet) {
                long begin = System.nanoTime();
                while (!isSet[0]) {
                    isSet.wait();
                }
                actor.log("wait", begin, "notifier");
                isSet[0] = false;
            }
        });
        addPartner("notifier", waiter, () -> {
            synchronized (isSet) {
                isSet[0] = true;
                isSet.notify();
            }
        });
        Object never = new Object();
        new Actor("wait-timeout", null, actor -> {
            long millis = actor.millis();
            synchronized (never) {
                actor.await("wait", "-", () -> never.wait(millis));
            }
        });
    }

    static void monitor(Actor actor, Lock lock) throws Exception {
        long begin = System.nanoTime();
        synchronized (lock) {
            actor.log("monitor", begin, lock.last);
            actor.sleepNow(actor.nanos());
            lock.last = actor.getName();
        }
    }

    static void addLocks() {
        addContenders("reentrant-", "lock-barge-", WaitTruth::reentrant);
        ReentrantLock lock = new ReentrantLock();
        Condition condition = lock.newCondition();
        boolean[] isSet = new boolean[1];
        Actor waiter = new Actor("condition", null, actor -> {
            lock.lock();
            long begin = System.nanoTime();
            while (!isSet[0]) {
                condition.await();
            }
            actor.log("park", begin, "signaler");
            isSet[0] = false;
            lock.unlock();
        });
        addPartner("signaler", waiter, () -> {
            lock.lock();
            isSet[0] = true;
            condition.signal();
            lock.unlock();
        });
    }

    static void reentrant(Actor actor, Lock lock) throws Exception {
        long begin = System.nanoTime();
        lock.lock();
        actor.log("park", begin, lock.last);
        actor.sleepNow(actor.nanos());
        lock.last = actor.getName();
        lock.unlock();
    }

    static void addParks() {
        Semaphore semaphore = new Semaphore(0);
        addPair("semaphore", "park", semaphore::acquire, "releaser", semaphore::release);
        ArrayBlockingQueue<String> queue = new ArrayBlockingQueue<>(1);
        addPair("queue", "park", queue::take, "putter", () -> queue.offer(""));
        AtomicReference<CountDownLatch> latch = new AtomicReference<>(new CountDownLatch(1));
        Actor waiter = new Actor("latch", null, actor -> {
            latch.set(new CountDownLatch(1));
            actor.await("park", "counter", latch.get()::await);
        });
        addPartner("counter", waiter, () -> latch.get().countDown());
        Actor parked = new Actor("park", null, a -> a.await("park", "unparker", () -> LockSupport.park(latch)));
        addPartner("unparker", parked, () -> LockSupport.unpark(parked));
        new Actor("park-timeout", null, actor -> {
            long nanos = actor.nanos();
            actor.await("park", "-", () -> LockSupport.parkNanos(nanos));
        });
    }

    static void addSockets() throws Exception {
        ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        Socket writer = new Socket(server.getInetAddress(), server.getLocalPort());
        Socket reader = server.accept();
        // Otherwise, the kernel delays a byte until the previous one was acknowledged.
        writer.setTcpNoDelay(true);
        OutputStream out = writer.getOutputStream();
        addPair("socket", "socket_read", reader.getInputStream()::read, "socket-writer", () -> out.write(1));
        Socket[] accepted = new Socket[1];
        Actor waiter = new Actor("accept", null, actor -> {
            actor.await("accept", "connector", () -> accepted[0] = server.accept());
            accepted[0].close();
        });
        addPartner("connector", waiter, () -> new Socket(server.getInetAddress(), server.getLocalPort()).close());
        Collections.addAll(resources, server, reader, writer);
    }

    static void addPipes() throws Exception {
        File fifo = new File("/tmp", "WaitTruth-" + new File("/proc/self").getCanonicalFile().getName());
        new ProcessBuilder("mkfifo", fifo.getPath()).start().waitFor();
        // Opening it only to read would wait until another thread opens it to write.
        RandomAccessFile both = new RandomAccessFile(fifo, "rw");
        addPair("fifo", "pipe", both::read, "fifo-writer", () -> both.write(1));
        String script = "while read -r seconds; do sleep $seconds; echo; done";
        Process child = new ProcessBuilder("sh", "-c", script).start();
        new Actor("child", null, actor -> {
            child.getOutputStream().write(String.format("0.%03d%n", actor.millis()).getBytes());
            child.getOutputStream().flush();
            actor.await("pipe", "sh", child.getInputStream()::read);
        });
        Collections.<AutoCloseable>addAll(resources, both, fifo::delete, child::destroy);
    }

    static void addSelectors() throws Exception {
        Pipe pipe = Pipe.open();
        Selector selector = Selector.open();
        pipe.source().configureBlocking(false);
        pipe.source().register(selector, SelectionKey.OP_READ);
        ByteBuffer read = ByteBuffer.allocateDirect(64);
        Actor waiter = new Actor("poll", null, actor -> {
            actor.await("poll", "poll-writer", selector::select);
            selector.selectedKeys().clear();
            read.clear();
            pipe.source().read(read);
        });
        ByteBuffer written = ByteBuffer.allocateDirect(1);
        addPartner("poll-writer", waiter, () -> {
            written.clear();
            pipe.sink().write(written);
        });
        Selector idle = Selector.open();
        new Actor("poll-timeout", null, actor -> {
            long millis = actor.millis();
            actor.await("poll", "-", () -> idle.select(millis));
        });
        Collections.addAll(resources, selector, idle, pipe.source(), pipe.sink());
    }
}
