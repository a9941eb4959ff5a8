import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.SplittableRandom;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

/**
 * Allocates objects of known classes and sizes along known call paths, on command, and counts them.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once;
 * "go SECONDS [MB_PER_SECOND|work [THREADS [shared|stay]]]" runs the load; "quit" ends. With "work", the
 * threads also compute, in proportion to what they allocate. With "shared", two call paths allocate
 * objects of one class. With "stay", the threads sleep for five seconds after the load and then end. The
 * answer to "go" is one line:
 * "done CLASS=OBJECTS/BYTES ... path:NAME=BYTES ... allocated=BYTES". The last number is the sum of
 * ThreadMXBean.getThreadAllocatedBytes for the allocating threads.
 */
public class AllocLoad {
    /** Prevents the compiler from removing allocations. */
    static volatile Object sink;
    static volatile long result;
    private static final long[] table = new SplittableRandom(1).longs(1024).toArray();

    /** Size of a reference in bytes. ZGC does not compress references. */
    static final int reference = sizeOfReference();

    /** 16 bytes of header and fields. */
    static class Small {
        int a;
    }

    /** 32 bytes with compressed class pointers. */
    static class Node {
        long a;
        long b;
        int c;
    }

    /** 64 bytes with compressed class pointers. */
    static class Wide {
        long a;
        long b;
        long c;
        long d;
        long e;
        long f;
    }

    /**
     * Number of classes in {@link #NAMES}. Most are array classes, because large objects of other classes
     * are rare.
     */
    private static final int KINDS = 12;

    /** Allocation of one thread: objects and bytes by kind, bytes by path. */
    private static final class Counts {
        final long[] objects = new long[KINDS];
        final long[] bytes = new long[KINDS];
        final long[] paths = new long[4];
        long allocated;
    }

    private static final String[] NAMES = {
        "byte[]", "AllocLoad$Small", "AllocLoad$Node", "AllocLoad$Wide", "char[]", "int[]",
        "java.lang.Object[]", "long[]", "java.lang.String[][]", "double[]", "short[]", "float[]",
    };

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        // JDK 8 has no ProcessHandle.
        System.out.println("ready " + new File("/proc/self").getCanonicalFile().getName());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("go")) {
                boolean works = words.length > 2 && words[2].equals("work");
                double rate = words.length > 2 && !works ? Double.parseDouble(words[2]) * 1e6 : Double.MAX_VALUE;
                int threads = words.length > 3 ? Integer.parseInt(words[3]) : 2;
                boolean shared = words.length > 4 && words[4].equals("shared");
                boolean stay = words.length > 4 && words[4].equals("stay");
                long nanos = (long) (Double.parseDouble(words[1]) * 1e9);
                System.out.println(run(nanos, rate / threads, threads, works, shared, stay));
            }
        }
    }

    private static int sizeOfReference() {
        com.sun.management.ThreadMXBean bean =
                (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        long id = Thread.currentThread().getId();
        long before = bean.getThreadAllocatedBytes(id);
        sink = new Object[100_000];
        return bean.getThreadAllocatedBytes(id) - before > 600_000 ? 8 : 4;
    }

    private static String run(
            long nanos, double rate, int number, boolean works, boolean shared, boolean stay)
            throws InterruptedException {
        long end = System.nanoTime() + nanos;
        Counts[] counts = new Counts[number];
        Thread[] threads = new Thread[number];
        CountDownLatch done = new CountDownLatch(number);
        for (int i = 0; i < number; i++) {
            Counts own = counts[i] = new Counts();
            long seed = i;
            Runnable work = () -> {
                allocate(own, seed, end, rate, works, shared);
                done.countDown();
                if (stay) {
                    LockSupport.parkNanos(5_000_000_000L);
                }
            };
            threads[i] = new Thread(work, "allocator-" + i);
            threads[i].start();
        }
        done.await();
        for (Thread thread : threads) {
            if (!stay) {
                thread.join();
            }
        }
        return report(counts);
    }

    private static String report(Counts[] counts) {
        StringBuilder text = new StringBuilder("done");
        for (int kind = 0; kind < KINDS; kind++) {
            long objects = 0;
            long bytes = 0;
            for (Counts own : counts) {
                objects += own.objects[kind];
                bytes += own.bytes[kind];
            }
            text.append(' ').append(NAMES[kind]).append('=').append(objects).append('/').append(bytes);
        }
        String[] paths = {"a", "b", "c", "d"};
        for (int path = 0; path < paths.length; path++) {
            long bytes = 0;
            for (Counts own : counts) {
                bytes += own.paths[path];
            }
            text.append(" path:").append(paths[path]).append('=').append(bytes);
        }
        long allocated = 0;
        for (Counts own : counts) {
            allocated += own.allocated;
        }
        return text.append(" allocated=").append(allocated).toString();
    }

    private static void allocate(
            Counts counts, long seed, long end, double rate, boolean works, boolean shared) {
        com.sun.management.ThreadMXBean bean =
                (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        SplittableRandom random = new SplittableRandom(seed);
        long id = Thread.currentThread().getId();
        long first = bean.getThreadAllocatedBytes(id);
        long begin = System.nanoTime();
        long bytes = 0;
        for (long now = begin; now < end; now = System.nanoTime()) {
            long before = bytes;
            for (int i = 0; i < 200; i++) {
                int turn = random.nextInt(100);
                bytes += turn < 50
                        ? a(counts, random)
                        : turn < 80 ? b(counts, random) : shared ? d(counts, random) : c(counts, random);
            }
            if (works) {
                work((bytes - before) / 2);
            }
            long due = begin + (long) (bytes * 1e9 / rate);
            if (due > now + 2_000_000) {
                LockSupport.parkNanos(due - now);
            }
        }
        counts.allocated = bean.getThreadAllocatedBytes(id) - first;
    }

    /** Computes for a few nanoseconds per turn, to resemble an application that allocates about 1 GB/s. */
    private static void work(long turns) {
        long x = turns;
        for (long i = 0; i < turns; i++) {
            x = x * 6364136223846793005L + table[(int) (x >>> 54)];
        }
        result = x;
    }

    /** Many small objects. */
    private static int a(Counts counts, SplittableRandom random) {
        int bytes = a1(counts, random);
        counts.paths[0] += bytes;
        return bytes;
    }

    private static int a1(Counts counts, SplittableRandom random) {
        return make(counts, random.nextInt(4), 16 + random.nextInt(400));
    }

    /** Arrays of medium length. */
    private static int b(Counts counts, SplittableRandom random) {
        int bytes = b1(counts, random);
        counts.paths[1] += bytes;
        return bytes;
    }

    private static int b1(Counts counts, SplittableRandom random) {
        return b2(counts, random);
    }

    private static int b2(Counts counts, SplittableRandom random) {
        return make(counts, 4 + random.nextInt(4), 100 + random.nextInt(900));
    }

    /** Short arrays, and a few large ones that may not fit into the rest of a TLAB, or into any TLAB. */
    private static int c(Counts counts, SplittableRandom random) {
        int turn = random.nextInt(200);
        int bytes = make(
                counts,
                turn == 0 ? 9 : turn < 4 ? 10 : turn < 40 ? 8 : 11,
                turn == 0 ? 40_000 : turn < 4 ? 10_000 : turn < 40 ? 300 : 40);
        counts.paths[2] += bytes;
        return bytes;
    }

    /** Arrays of one of the classes that path b allocates, with the same range of lengths. */
    private static int d(Counts counts, SplittableRandom random) {
        int bytes = make(counts, 7, 100 + random.nextInt(900));
        counts.paths[3] += bytes;
        return bytes;
    }

    private static int make(Counts counts, int kind, int length) {
        int bytes;
        switch (kind) {
            case 0:
                sink = new byte[length];
                bytes = 16 + length;
                break;
            case 1:
                sink = new Small();
                bytes = 16;
                break;
            case 2:
                sink = new Node();
                bytes = 32;
                break;
            case 3:
                sink = new Wide();
                bytes = 64;
                break;
            case 4:
                sink = new char[length];
                bytes = 16 + 2 * length;
                break;
            case 5:
                sink = new int[length];
                bytes = 16 + 4 * length;
                break;
            case 6:
                sink = new Object[length];
                bytes = 16 + reference * length;
                break;
            case 7:
                sink = new long[length];
                bytes = 16 + 8 * length;
                break;
            case 8:
                sink = new String[length][];
                bytes = 16 + reference * length;
                break;
            case 9:
                sink = new double[length];
                bytes = 16 + 8 * length;
                break;
            case 10:
                sink = new short[length];
                bytes = 16 + 2 * length;
                break;
            default:
                sink = new float[length];
                bytes = 16 + 4 * length;
                break;
        }
        bytes = (bytes + 7) & ~7;
        counts.objects[kind]++;
        counts.bytes[kind] += bytes;
        return bytes;
    }
}
