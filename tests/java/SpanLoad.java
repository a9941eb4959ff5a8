import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.invoke.VarHandle;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Threads that publish the trace contexts for which they work, by a native library (spanload.c).
 *
 * <p>Trace N has the id 4bf92f3577b34da6a3ce929d0e0e470N, and its span has the id 00f067aa0ba9020N.
 *
 * <p>Commands on stdin, answers on stdout: "ready" once; "load FILE" loads the library, answered by
 * "done"; "go SECONDS" runs the threads, answered by "done" with pairs NAME=NUMBER: the CPU time in
 * nanoseconds or, with "bytes" in the name, the bytes that were allocated in each span; "bad ADDRESS"
 * makes each further thread publish this address; "quit" ends.
 */
public class SpanLoad {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final int OTEL = 1;
    private static long badAddress;
    private static boolean isLoaded;
    static Object sink;

    /** Returns the convention that the library was compiled for. */
    static native int convention();

    /** Returns the address of a direct buffer. */
    static native long address(ByteBuffer buffer);

    /** Sets the thread-local pointer of the current thread. */
    static native void publish(long address);

    /** The record of a thread. */
    static final class Context {
        private final ByteBuffer record = ByteBuffer.allocateDirect(64).order(ByteOrder.nativeOrder());
        private final boolean isOtel = isLoaded && convention() == OTEL;

        Context() {
            if (isLoaded) {
                publish(badAddress != 0 ? badAddress : address(record));
            }
        }

        /** Begins the span of this number; 0 for none. */
        void begin(int span) {
            int valid = isOtel ? 24 : 2;
            int ids = isOtel ? 0 : 5;
            record.put(valid, (byte) 0);
            VarHandle.fullFence();
            ByteBuffer big = record.duplicate().order(ByteOrder.BIG_ENDIAN);
            big.putLong(ids, 0x4bf92f3577b34da6L);
            big.putLong(ids + 8, 0xa3ce929d0e0e4700L + span);
            big.putLong(ids + 16, 0x00f067aa0ba90200L + span);
            if (!isOtel) {
                record.putShort(0, (short) 1).put(3, (byte) (span == 0 ? 0 : 1));
            }
            VarHandle.fullFence();
            record.put(valid, (byte) (isOtel && span == 0 ? 0 : 1));
        }
    }

    /** Computes for this CPU time. Returns the CPU time that it took. */
    static long work(long ns) {
        long begin = THREADS.getCurrentThreadCpuTime();
        long sum = 0;
        long now = begin;
        while (now < begin + ns) {
            for (int i = 0; i < 20_000; i++) {
                sum = sum * 31 + i;
            }
            now = THREADS.getCurrentThreadCpuTime();
        }
        sink = sum;
        return now - begin;
    }

    /** Allocates arrays of this total size. Returns the size with the arrays' headers. */
    static long allocate(int arrays) {
        for (int i = 0; i < arrays; i++) {
            sink = new byte[1000];
        }
        return arrays * 1016L;
    }

    interface Body {
        void run(Context context, Map<String, Long> counts) throws Exception;
    }

    private static Map<String, Long> go(double seconds) throws Exception {
        Map<String, Long> all = new TreeMap<>();
        List<Thread> threads = new ArrayList<>();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        start(threads, all, "one", (context, counts) -> {
            context.begin(1);
            while (System.nanoTime() < end) {
                counts.merge("1", work(5_000_000), Long::sum);
            }
            context.begin(0);
        });
        start(threads, all, "two", (context, counts) -> {
            while (System.nanoTime() < end) {
                context.begin(2);
                counts.merge("2", work(30_000_000), Long::sum);
                context.begin(3);
                counts.merge("3", work(10_000_000), Long::sum);
            }
            context.begin(0);
        });
        start(threads, all, "none", (context, counts) -> {
            context.begin(0);
            while (System.nanoTime() < end) {
                counts.merge("0", work(5_000_000), Long::sum);
            }
        });
        start(threads, all, "sleeps", (context, counts) -> {
            context.begin(4);
            while (System.nanoTime() < end) {
                Thread.sleep(20);
            }
            context.begin(0);
        });
        start(threads, all, "allocates", (context, counts) -> {
            while (System.nanoTime() < end) {
                context.begin(5);
                counts.merge("bytes5", allocate(3000), Long::sum);
                context.begin(6);
                counts.merge("bytes6", allocate(1000), Long::sum);
                context.begin(0);
                counts.merge("bytes0", allocate(1000), Long::sum);
                Thread.sleep(1);
            }
        });
        for (Thread thread : threads) {
            thread.join();
        }
        return all;
    }

    private static void start(List<Thread> threads, Map<String, Long> all, String name, Body body) {
        Thread thread = new Thread(() -> {
            Map<String, Long> counts = new TreeMap<>();
            try {
                body.run(new Context(), counts);
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            if (isLoaded) {
                publish(0);
            }
            synchronized (all) {
                all.putAll(counts);
            }
        }, name);
        threads.add(thread);
        thread.start();
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            StringBuilder answer = new StringBuilder("done");
            if (words[0].equals("load")) {
                System.load(words[1]);
                isLoaded = true;
            } else if (words[0].equals("bad")) {
                badAddress = Long.parseUnsignedLong(words[1], 16);
            } else {
                go(Double.parseDouble(words[1])).forEach((k, v) -> answer.append(" " + k + "=" + v));
            }
            System.out.println(answer);
        }
    }
}
