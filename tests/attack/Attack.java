import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.lang.reflect.Array;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.zip.CRC32;

/**
 * A hostile JVM, to test what a tracing daemon does beside it. Prints "ready" and runs until it is killed.
 *
 * <p>burn: computes and allocates. exit MILLIS: computes for this time, then ends. lock N: N threads wait for one lock,
 * and two for each other's. classes N: allocates arrays of N classes with names of 60,000 letters. waits N: N threads
 * wake each other up in a ring.
 */
public class Attack {
    static volatile Object sink;

    static class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass(null, bytes, 0, bytes.length);
        }
    }

    public static void main(String[] args) throws Exception {
        int number = args.length > 1 ? Integer.parseInt(args[1]) : 0;
        switch (args[0]) {
            case "burn":
                ready();
                burn(Long.MAX_VALUE);
                break;
            case "exit":
                ready();
                burn(System.nanoTime() + number * 1_000_000L);
                break;
            case "lock":
                lock(number);
                break;
            case "classes":
                classes(number);
                break;
            case "waits":
                waits(number);
                break;
            default:
                throw new IllegalArgumentException(args[0]);
        }
    }

    private static void ready() {
        System.out.println("ready");
    }

    private static void burn(long end) {
        CRC32 sum = new CRC32();
        for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
            byte[] bytes = new byte[10_000];
            sum.update(bytes);
            sink = bytes;
        }
    }

    private static void lock(int number) throws InterruptedException {
        Object all = new Object();
        Object a = new Object();
        Object b = new Object();
        synchronized (all) {
            for (int i = 0; i < number; i++) {
                start(() -> hold(all, null));
            }
            start(() -> hold(a, b));
            start(() -> hold(b, a));
            ready();
            Thread.sleep(Long.MAX_VALUE);
        }
    }

    private static void start(Runnable run) {
        // The stack is the smallest one that HotSpot allows.
        new Thread(null, run, "waits", 160 << 10).start();
    }

    private static void hold(Object first, Object second) {
        synchronized (first) {
            if (second != null) {
                try {
                    Thread.sleep(100);
                } catch (InterruptedException e) {
                    return;
                }
                hold(second, null);
            }
        }
    }

    private static void waits(int number) {
        Thread[] threads = new Thread[number];
        AtomicLong turn = new AtomicLong();
        for (int i = 0; i < number; i++) {
            int own = i;
            threads[i] = new Thread(() -> {
                while (true) {
                    long now = turn.get();
                    if (now % number != own) {
                        LockSupport.park();
                        continue;
                    }
                    turn.set(now + 1);
                    LockSupport.unpark(threads[(own + 1) % number]);
                }
            });
        }
        for (Thread thread : threads) {
            thread.start();
        }
        ready();
    }

    private static void classes(int number) throws IOException {
        Class<?>[] classes = new Class<?>[number];
        Loader loader = new Loader();
        for (int i = 0; i < number; i++) {
            classes[i] = loader.define(classFile("x".repeat(60_000) + i));
        }
        ready();
        for (int i = 0; ; i = (i + 1) % number) {
            sink = Array.newInstance(classes[i], 5000);
        }
    }

    /** Returns an empty class. Source: The Java Virtual Machine Specification, chapter 4. */
    private static byte[] classFile(String name) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(0xcafebabe);
        out.writeInt(52);
        out.writeShort(5);
        String[] constants = {name, "java/lang/Object"};
        for (int i = 0; i < 2; i++) {
            out.writeByte(1);
            out.writeUTF(constants[i]);
            out.writeByte(7);
            out.writeShort(1 + 2 * i);
        }
        // Flags, this class and its superclass; no interfaces, fields, methods and attributes.
        for (int half : new int[] {0x21, 2, 4, 0, 0, 0, 0}) {
            out.writeShort(half);
        }
        return bytes.toByteArray();
    }
}
