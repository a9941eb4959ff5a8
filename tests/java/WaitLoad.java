import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;

/**
 * Threads that each wait in a different way, in a method of their own, and measure how long.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "go SECONDS" is answered by "done" and
 * THREAD=NANOSECONDS, the time that each thread has spent in its method. "switch SECONDS" makes ten
 * pairs of threads notify each other as fast as they can; the answer is "done switches=N".
 */
public class WaitLoad {
    interface Wait {
        /** Waits once. Returns the time that it took, in nanoseconds. */
        long turn() throws Exception;
    }

    static final Object lock = new Object();
    static volatile double sink;
    static volatile long end;

    public static void main(String[] args) throws Exception {
        // A pool whose workers have nothing to do.
        ExecutorService pool = Executors.newFixedThreadPool(2);
        pool.submit(() -> sink = 1).get();
        pool.submit(() -> sink = 2).get();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            long length = (long) (Double.parseDouble(words[1]) * 1e9);
            System.out.println("done " + (words[0].equals("go") ? go(length) : switches(length)));
        }
        pool.shutdownNow();
    }

    static String go(long length) throws Exception {
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket writer = new Socket(server.getInetAddress(), server.getLocalPort());
        Socket reader = server.accept();
        end = System.nanoTime() + length;
        List<Thread> threads = new ArrayList<>();
        StringBuffer answer = new StringBuffer();
        threads.add(thread("sleeps", WaitLoad::sleeps, answer));
        threads.add(thread("holds", WaitLoad::holdsNow, answer));
        threads.add(thread("blocks", WaitLoad::blocksNow, answer));
        threads.add(thread("parks", WaitLoad::parks, answer));
        threads.add(thread("computes", WaitLoad::computes, answer));
        InputStream from = reader.getInputStream();
        threads.add(thread("reads", () -> reads(from), answer));
        OutputStream to = writer.getOutputStream();
        threads.add(thread("writes", () -> {
            long begin = System.nanoTime();
            Thread.sleep(25);
            to.write(1);
            return System.nanoTime() - begin;
        }, answer));
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            // Wakes the reader, which would wait forever if the writer ended first.
            if (thread.getName().equals("reads")) {
                Thread.sleep(Math.max(0, (end - System.nanoTime()) / 1_000_000));
                to.write(1);
            }
            thread.join();
        }
        writer.close();
        reader.close();
        server.close();
        return answer.toString().trim();
    }

    static Thread thread(String name, Wait wait, StringBuffer answer) {
        return new Thread(() -> {
            long all = 0;
            try {
                while (System.nanoTime() < end) {
                    all += wait.turn();
                }
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            // One call, because other threads append at the same time.
            answer.append(" " + name + "=" + all);
        }, name);
    }

    static long sleeps() throws Exception {
        long begin = System.nanoTime();
        Thread.sleep(30);
        return System.nanoTime() - begin;
    }

    /** Holds the lock two thirds of the time, so that other threads have to wait for it. */
    static long holds() throws Exception {
        long begin = System.nanoTime();
        synchronized (lock) {
            Thread.sleep(40);
        }
        return System.nanoTime() - begin;
    }

    static long holdsNow() throws Exception {
        long time = holds();
        Thread.sleep(20);
        return time;
    }

    static long blocks() throws Exception {
        long begin = System.nanoTime();
        synchronized (lock) {
            sink = begin;
        }
        return System.nanoTime() - begin;
    }

    static long blocksNow() throws Exception {
        long time = blocks();
        LockSupport.parkNanos(3_000_000);
        return time;
    }

    static long parks() {
        long begin = System.nanoTime();
        LockSupport.parkNanos(15_000_000);
        return System.nanoTime() - begin;
    }

    static long computes() {
        long begin = System.nanoTime();
        double sum = 0;
        for (int i = 0; i < 2_000_000; i++) {
            sum += Math.sqrt(i);
        }
        sink = sum;
        return System.nanoTime() - begin;
    }

    static long reads(InputStream from) throws Exception {
        long begin = System.nanoTime();
        from.read();
        return System.nanoTime() - begin;
    }

    static String switches(long length) throws Exception {
        int pairs = 10;
        long until = System.nanoTime() + length;
        long[] turns = new long[2 * pairs];
        Thread[] threads = new Thread[2 * pairs];
        int[] turn = new int[pairs];
        Object[] locks = new Object[pairs];
        for (int i = 0; i < 2 * pairs; i++) {
            int own = i;
            int pair = i / 2;
            locks[pair] = new Object();
            threads[i] = new Thread(() -> {
                Object pairLock = locks[pair];
                synchronized (pairLock) {
                    while (System.nanoTime() < until) {
                        while (turn[pair] != own % 2 && System.nanoTime() < until) {
                            try {
                                pairLock.wait(100);
                            } catch (InterruptedException e) {
                                return;
                            }
                        }
                        turn[pair] = 1 - own % 2;
                        turns[own]++;
                        pairLock.notify();
                    }
                    pairLock.notify();
                }
            }, "switcher-" + i);
        }
        for (Thread thread : threads) {
            thread.start();
        }
        long all = 0;
        for (int i = 0; i < 2 * pairs; i++) {
            threads[i].join();
            all += turns[i];
        }
        return "switches=" + all;
    }
}
