import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.LockInfo;
import java.lang.management.ManagementFactory;
import java.lang.management.MonitorInfo;
import java.lang.management.ThreadInfo;
import java.lang.management.ThreadMXBean;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.AbstractOwnableSynchronizer;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * A program with threads that sleep, wait for a notification, are parked or run, and with threads that wait
 * for a monitor, a ReentrantLock or a ReentrantReadWriteLock that another thread holds.
 *
 * Reads commands from stdin and writes answers to stdout, first "ready PID". After each command, the answer
 * begins with "done".
 *
 * "block" starts the threads described above. The answer comes when all of them wait, except the thread that
 * runs.
 * "deadlock N" starts N threads. Each of them waits for a lock of the next one, and the last one for a lock
 * of the first. The locks are alternately monitors and ReentrantLocks. The answer comes when all these
 * threads wait.
 * "dump" is answered by NAME;STATE;LOCKCLASS;OWNER;FRAME,FRAME,...;DEPTH:CLASS,DEPTH:CLASS,... for each Java
 * thread, as ThreadMXBean reports the thread. The innermost frame is the first. The last field lists the
 * monitors that the thread holds.
 * "busy SECONDS" starts four threads, which repeatedly take the same four locks in the same order. The answer
 * comes when these threads have ended.
 * "socket N" starts a thread that reads from a socket while it holds a lock, and N threads that wait for this
 * lock. The first of these N threads holds another lock, and one further thread waits for that lock. The
 * answer contains the address at the other end of the connection.
 * "metaspace" defines classes until the JVM has no metaspace left.
 * "take N" starts two threads at the first time. Each of them takes N further ownable synchronizers, for which no
 * other thread waits. "release" makes each of them release every second synchronizer that it holds. "churn N"
 * allocates N megabytes, and "collect" requests a full collection. "owned" is answered by NAME;CLASS,CLASS,... for
 * each thread that owns synchronizers, as ThreadMXBean reports them.
 * "stuck" starts a thread that does not reach a safepoint, and then a thread that requests a collection.
 */
public class LockLoad {
    static final Object monitor = new Object();
    static final Object signal = new Object();
    static final ReentrantLock lock = new ReentrantLock();
    static final ReentrantReadWriteLock readWrite = new ReentrantReadWriteLock();
    static volatile long count;
    static volatile boolean isBusy;
    static volatile boolean isCompiled;

    /** A thread of this program. */
    abstract static class Load extends Thread {
        Load(String name) {
            super(name);
            setDaemon(true);
        }

        abstract void act() throws Exception;

        @Override
        public void run() {
            try {
                act();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
    }

    static Load load(final String name) {
        return new Load(name) {
            @Override
            void act() throws Exception {
                LockLoad.act(name);
            }
        };
    }

    static void act(String name) throws Exception {
        switch (name) {
            case "sleeper":
                Thread.sleep(Long.MAX_VALUE);
                break;
            case "waiter":
                synchronized (signal) {
                    signal.wait();
                }
                break;
            case "timed-waiter":
                synchronized (signal) {
                    signal.wait(1_000_000_000);
                }
                break;
            case "parker":
                LockSupport.park();
                break;
            case "timed-parker":
                LockSupport.parkNanos(LockLoad.class, Long.MAX_VALUE);
                break;
            case "holder":
                synchronized (monitor) {
                    lock.lock();
                    readWrite.writeLock().lock();
                    Thread.sleep(Long.MAX_VALUE);
                }
                break;
            case "compiled-holder":
                holdCompiled();
                break;
            case "enterer":
            case "enterer-2":
                synchronized (monitor) {
                    count++;
                }
                break;
            case "locker":
                lock.lock();
                break;
            case "reader":
                readWrite.readLock().lock();
                break;
            case "spinner":
                while (true) {
                    count++;
                }
            default:
                throw new IllegalArgumentException(name);
        }
    }

    static final Object first = new Object();
    static final Object second = new StringBuilder();

    /** Holds three monitors in compiled methods. Some of these methods are inlined into their callers. */
    static void holdCompiled() {
        for (int i = 0; i < 400_000; i++) {
            outer(i % 1024 == 0, 1);
        }
        isCompiled = true;
        outer(true, Long.MAX_VALUE);
    }

    static void outer(boolean parks, long nanos) {
        synchronized (first) {
            middle(parks, nanos);
        }
    }

    static synchronized void middle(boolean parks, long nanos) {
        count++;
        synchronized (second) {
            synchronized (first) {
                inner(parks, nanos);
            }
        }
    }

    static void inner(boolean parks, long nanos) {
        if (parks) {
            LockSupport.parkNanos(nanos);
        }
    }

    static final String[] NAMES = {
        "sleeper", "waiter", "timed-waiter", "parker", "timed-parker", "enterer", "enterer-2", "locker", "reader", "compiled-holder",
    };

    static void block() throws Exception {
        startAndWait(load("holder"));
        for (String name : NAMES) {
            startAndWait(load(name));
        }
        while (!isCompiled) {
            Thread.sleep(1);
        }
        load("spinner").start();
        // Until it runs compiled code.
        long before = count;
        while (count - before < 10_000_000) {
            Thread.sleep(10);
        }
        Thread.sleep(200);
    }

    static void startAndWait(Thread thread) throws Exception {
        thread.start();
        while (thread.getState() == Thread.State.RUNNABLE || thread.getState() == Thread.State.NEW) {
            Thread.sleep(1);
        }
    }

    /**
     * Takes a first lock, waits until all threads of the deadlock have taken their first locks, and then
     * takes a second lock.
     */
    static class Dead extends Load {
        final Object first;
        final Object second;
        final java.util.concurrent.CountDownLatch all;

        Dead(String name, Object first, Object second, java.util.concurrent.CountDownLatch all) {
            super(name);
            this.first = first;
            this.second = second;
            this.all = all;
        }

        @Override
        void act() throws Exception {
            if (first instanceof ReentrantLock) {
                ((ReentrantLock) first).lock();
                takeSecond();
            } else {
                synchronized (first) {
                    takeSecond();
                }
            }
        }

        void takeSecond() throws Exception {
            all.countDown();
            all.await();
            if (second instanceof ReentrantLock) {
                ((ReentrantLock) second).lock();
            } else {
                synchronized (second) {
                    count++;
                }
            }
        }
    }

    static int deadlocks;
    static int deadlocked;

    static void deadlock(int number) throws Exception {
        Object[] locks = new Object[number];
        for (int i = 0; i < number; i++) {
            locks[i] = (i + deadlocks) % 2 == 0 ? new Object() : new ReentrantLock();
        }
        java.util.concurrent.CountDownLatch all = new java.util.concurrent.CountDownLatch(number);
        Thread[] threads = new Thread[number];
        for (int i = 0; i < number; i++) {
            threads[i] = new Dead("dead-" + deadlocks + "-" + i, locks[i], locks[(i + 1) % number], all);
            threads[i].start();
        }
        deadlocks++;
        deadlocked += number;
        // A thread that still waits for the latch would look like one that waits for its second lock.
        long[] found = null;
        while (found == null || found.length < deadlocked) {
            Thread.sleep(10);
            found = ManagementFactory.getThreadMXBean().findDeadlockedThreads();
        }
    }

    static void busy(double seconds) throws Exception {
        final Object[] locks = {new Object(), new ReentrantLock(), new Object(), new ReentrantLock()};
        isBusy = true;
        Thread[] threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread("busy-" + i) {
                @Override
                public void run() {
                    while (isBusy) {
                        take(locks, 0);
                    }
                }
            };
            threads[i].start();
        }
        Thread.sleep((long) (seconds * 1000));
        isBusy = false;
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static void take(Object[] locks, int at) {
        if (at == locks.length) {
            count++;
            LockSupport.parkNanos(20_000);
        } else if (locks[at] instanceof ReentrantLock) {
            ((ReentrantLock) locks[at]).lock();
            try {
                take(locks, at + 1);
            } finally {
                ((ReentrantLock) locks[at]).unlock();
            }
        } else {
            synchronized (locks[at]) {
                take(locks, at + 1);
            }
        }
    }

    /**
     * Runs for many seconds. With -XX:-UseCountedLoopSafepoints, the compiled loop contains no safepoint
     * poll, so the thread reaches no safepoint before the loop ends.
     */
    static int loop() {
        int sum = 1;
        for (int i = 1; i < Integer.MAX_VALUE; i++) {
            sum += i % (sum | 1) + sum % i;
        }
        return sum;
    }

    /**
     * Starts a thread that does not reach a safepoint. Two seconds later, starts another thread, which
     * requests a collection after half a second.
     */
    static void stuck() throws Exception {
        new Load("looper") {
            @Override
            void act() {
                while (true) {
                    count += loop();
                }
            }
        }.start();
        Thread.sleep(2000);
        new Load("collector") {
            @Override
            void act() throws Exception {
                Thread.sleep(500);
                System.gc();
            }
        }.start();
    }

    /**
     * Starts a thread that holds a lock while it reads from a socket, and threads that wait for this lock.
     * The first of them holds another lock, for which one further thread waits. Returns the address at the
     * other end of the connection.
     */
    static String socket(int waiting) throws Exception {
        final ServerSocket server = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"));
        final Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
        server.accept();
        final Object pool = new StringBuffer();
        final Object last = new Object();
        Load owner = new Load("socket-owner") {
            @Override
            void act() throws Exception {
                synchronized (pool) {
                    client.getInputStream().read();
                }
            }
        };
        owner.start();
        Thread.sleep(300);
        for (int i = 0; i < waiting; i++) {
            final boolean isFirst = i == 0;
            startAndWait(new Load("socket-waiter-" + i) {
                @Override
                void act() {
                    synchronized (isFirst ? last : new Object()) {
                        synchronized (pool) {
                            count++;
                        }
                    }
                }
            });
        }
        startAndWait(new Load("socket-last") {
            @Override
            void act() {
                synchronized (last) {
                    count++;
                }
            }
        });
        return "127.0.0.1:" + server.getLocalPort();
    }

    static final List<Class<?>> defined = new ArrayList<>();

    /** Defines one class again and again, each time with a new class loader. */
    static void fillMetaspace() throws Exception {
        byte[] code = new byte[1 << 16];
        int size;
        try (InputStream in = LockLoad.class.getResourceAsStream("LockLoad$Load.class")) {
            size = in.read(code);
        }
        try {
            while (true) {
                defined.add(new Loader().define(code, size));
            }
        } catch (OutOfMemoryError e) {
            // The metaspace is full.
        }
    }

    static class Loader extends ClassLoader {
        Class<?> define(byte[] code, int size) {
            return defineClass("LockLoad$Load", code, 0, size);
        }
    }

    /** A synchronizer of this program. */
    static class Flag extends AbstractOwnableSynchronizer {
        private static final long serialVersionUID = 1;

        void set(Thread owner) {
            setExclusiveOwnerThread(owner);
        }
    }

    /** Holds ownable synchronizers. */
    static class Owner extends Load {
        final List<Object> held = new ArrayList<>();
        /** Number of synchronizers to take, or -1 to release every second one; 0 if there is nothing to do. */
        int order;

        Owner(String name) {
            super(name);
        }

        synchronized void order(int number) throws Exception {
            order = number;
            notifyAll();
            while (order != 0) {
                wait();
            }
        }

        @Override
        synchronized void act() throws Exception {
            while (true) {
                while (order == 0) {
                    wait();
                }
                if (order < 0) {
                    List<Object> kept = new ArrayList<>();
                    for (int i = 0; i < held.size(); i++) {
                        if (i % 2 == 0) {
                            kept.add(held.get(i));
                        } else {
                            change(held.get(i), false);
                        }
                    }
                    held.retainAll(kept);
                } else {
                    for (int i = 0; i < order; i++) {
                        Object[] kinds = {
                            new ReentrantLock(), new Flag(), new ReentrantReadWriteLock(), new ReentrantLock(true),
                        };
                        change(kinds[i % kinds.length], true);
                        held.add(kinds[i % kinds.length]);
                    }
                }
                order = 0;
                notifyAll();
            }
        }

        static void change(Object object, boolean takes) {
            if (object instanceof Flag) {
                ((Flag) object).set(takes ? Thread.currentThread() : null);
                return;
            }
            Lock lock = object instanceof Lock ? (Lock) object : ((ReentrantReadWriteLock) object).writeLock();
            if (takes) {
                lock.lock();
            } else {
                lock.unlock();
            }
        }
    }

    static final List<Owner> owners = new ArrayList<>();
    static volatile byte[] garbage;

    static void take(int number) throws Exception {
        if (owners.isEmpty()) {
            for (int i = 0; i < 2; i++) {
                owners.add(new Owner("owner-" + i));
                owners.get(i).start();
            }
            // A thread of a pool owns its Worker while it runs a task.
            ExecutorService pool = Executors.newFixedThreadPool(1, task -> new Thread(task, "pool-owner"));
            pool.execute(LockSupport::park);
        }
        order(number);
        Thread.sleep(200);
    }

    static void order(int number) throws Exception {
        for (Owner owner : owners) {
            owner.order(number);
        }
    }

    static void churn(int megabytes) {
        for (int i = 0; i < megabytes * 1024; i++) {
            garbage = new byte[1000];
        }
    }

    static String owned() {
        StringBuilder answer = new StringBuilder();
        for (ThreadInfo info : ManagementFactory.getThreadMXBean().dumpAllThreads(false, true)) {
            if (info.getLockedSynchronizers().length > 0) {
                answer.append(' ').append(info.getThreadName().replace(' ', '_')).append(';');
                for (LockInfo lock : info.getLockedSynchronizers()) {
                    answer.append(lock.getClassName()).append(',');
                }
            }
        }
        return answer.toString();
    }

    static String dump() {
        ThreadMXBean bean = ManagementFactory.getThreadMXBean();
        StringBuilder answer = new StringBuilder();
        for (ThreadInfo info : bean.dumpAllThreads(true, false)) {
            LockInfo lockInfo = info.getLockInfo();
            StringBuilder frames = new StringBuilder();
            for (StackTraceElement frame : info.getStackTrace()) {
                frames.append(frames.length() == 0 ? "" : ",");
                frames.append(frame.getClassName()).append('.').append(frame.getMethodName());
                frames.append(':').append(Math.max(0, frame.getLineNumber()));
            }
            answer.append(' ').append(info.getThreadName().replace(' ', '_'));
            answer.append(';').append(info.getThreadState());
            answer.append(';').append(lockInfo == null ? "" : lockInfo.getClassName());
            answer.append(';').append(info.getLockOwnerName() == null ? "" : info.getLockOwnerName());
            answer.append(';').append(frames);
            StringBuilder held = new StringBuilder();
            for (MonitorInfo monitor : info.getLockedMonitors()) {
                held.append(held.length() == 0 ? "" : ",");
                held.append(monitor.getLockedStackDepth()).append(':').append(monitor.getClassName());
            }
            answer.append(';').append(held);
        }
        return answer.toString();
    }

    public static void main(String[] args) throws Exception {
        String name = ManagementFactory.getRuntimeMXBean().getName();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + name.substring(0, name.indexOf('@')));
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            String answer = "";
            switch (words[0]) {
                case "block":
                    block();
                    break;
                case "deadlock":
                    deadlock(Integer.parseInt(words[1]));
                    break;
                case "busy":
                    busy(Double.parseDouble(words[1]));
                    break;
                case "metaspace":
                    fillMetaspace();
                    break;
                case "stuck":
                    stuck();
                    break;
                case "socket":
                    answer = " " + socket(Integer.parseInt(words[1]));
                    break;
                case "take":
                    take(Integer.parseInt(words[1]));
                    break;
                case "release":
                    order(-1);
                    break;
                case "churn":
                    churn(Integer.parseInt(words[1]));
                    break;
                case "collect":
                    System.gc();
                    break;
                case "owned":
                    answer = owned();
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
