import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.math.BigInteger;
import java.util.Arrays;
import java.util.function.IntFunction;
import java.util.function.LongUnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.zip.CRC32;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.IvParameterSpec;
import javax.crypto.spec.SecretKeySpec;

/** The thread "library": calls through the JDK, its stubs and intrinsics. */
class StackLibrary implements Runnable {
    private final long end;

    StackLibrary(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        try {
            while (System.nanoTime() < end) {
                Lambdas.turn();
                Streams.turn();
                Sorting.turn();
                Mirror.turn();
                Handles.turn();
                Proxies.turn();
                Copying.turn();
                Checksums.turn();
                Ciphers.turn();
                Texts.turn();
                Garbage.turn();
                Numbers.turn();
                Shared.turn();
            }
        } catch (Throwable e) {
            throw new IllegalStateException(e);
        }
    }

    static class Lambdas {
        static void turn() {
            int factor = 3;
            LongUnaryOperator[] all = {
                x -> lambdaBurn(x), x -> lambdaBurn(x * factor), Lambdas::referenced, x -> x + 1,
            };
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 200; i++) {
                    StackLoad.sink = apply(all[i % all.length], i);
                }
            }
        }

        static long apply(LongUnaryOperator function, long x) {
            return function.applyAsLong(x);
        }

        static long referenced(long x) {
            return lambdaBurn(x);
        }

        static long lambdaBurn(long x) {
            for (int i = 0; i < 100; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    static class Streams {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = primitive() + boxed();
            }
        }

        static long primitive() {
            return LongStream.range(0, 1_000).map(x -> weigh(x)).filter(x -> x % 3 != 0).sum();
        }

        static long boxed() {
            return IntStream.range(0, 200).boxed().flatMap(Streams::pair).sorted()
                .collect(Collectors.groupingBy(x -> weigh(x) % 7, Collectors.counting())).size();
        }

        static java.util.stream.Stream<Integer> pair(int x) {
            return java.util.stream.Stream.of(x, x * 31);
        }

        static long weigh(long x) {
            for (int i = 0; i < 20; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    static class Sorting {
        static void turn() {
            Integer[] numbers = new Integer[500];
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < numbers.length; i++) {
                    numbers[i] = i * 7919 % 500;
                }
                Arrays.sort(numbers, Sorting::compare);
                StackLoad.sink = numbers[3];
            }
        }

        static int compare(Integer a, Integer b) {
            return key(a) < key(b) ? -1 : 1;
        }

        static int key(int x) {
            for (int i = 0; i < 5; i++) {
                x ^= x << 3;
            }
            return x;
        }
    }

    static class Mirror {
        final long value;

        Mirror(long value) {
            this.value = seen(value);
        }

        static void turn() throws Exception {
            Method target = Mirror.class.getDeclaredMethod("target", long.class);
            Constructor<Mirror> maker = Mirror.class.getDeclaredConstructor(long.class);
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = (Long) target.invoke(null, (long) i) + maker.newInstance((long) i).value;
                }
            }
        }

        static long target(long x) {
            return seen(x + 1);
        }

        static long seen(long x) {
            for (int i = 0; i < 200; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    static class Handles {
        static final MethodHandle CONSTANT = find();

        static MethodHandle find() {
            try {
                MethodType type = MethodType.methodType(long.class, long.class, int.class);
                return MethodHandles.lookup().findStatic(Handles.class, "handled", type);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        }

        static void turn() throws Throwable {
            MethodHandle bound = MethodHandles.insertArguments(find(), 1, 5);
            MethodHandle[] some = {bound, bound.asType(MethodType.methodType(long.class, int.class))};
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = (long) CONSTANT.invokeExact((long) i, i);
                    StackLoad.sink = (long) some[0].invokeExact((long) i) + (long) some[1].invokeExact(i);
                }
            }
        }

        static long handled(long x, int y) {
            for (int i = 0; i < 200; i++) {
                x = x * 31 + y;
            }
            return x;
        }
    }

    static class Proxies implements InvocationHandler {
        static void turn() {
            ClassLoader loader = StackLibrary.class.getClassLoader();
            Class<?>[] interfaces = {IntFunction.class};
            Object proxy = Proxy.newProxyInstance(loader, interfaces, new Proxies());
            IntFunction<?> function = (IntFunction<?>) proxy;
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = (Long) function.apply(i);
                }
            }
        }

        @Override
        public Object invoke(Object proxy, Method method, Object[] args) {
            return handler((Integer) args[0]);
        }

        static long handler(long x) {
            for (int i = 0; i < 200; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /** Copies arrays of many sizes with the JVM's stubs. */
    static class Copying {
        static void turn() {
            byte[] bytes = new byte[100_000];
            long[] longs = new long[20_000];
            Object[] objects = new Object[5_000];
            Arrays.fill(objects, "x");
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int size = 1; size < 5_000; size = size * 3 + 1) {
                    copyBytes(bytes, size);
                    copyLongs(longs, size);
                    copyObjects(objects, size);
                }
                copyBytes(bytes, 49_999);
                StackLoad.sink = compareBytes(bytes);
            }
        }

        static void copyBytes(byte[] bytes, int size) {
            System.arraycopy(bytes, 0, bytes, 50_001, size);
            System.arraycopy(bytes, 1, bytes, 0, size);
        }

        static void copyLongs(long[] longs, int size) {
            System.arraycopy(longs, 0, longs, 10_001, size);
            System.arraycopy(longs, 0, longs, 1, size);
        }

        static void copyObjects(Object[] objects, int size) {
            System.arraycopy(objects, 0, objects, 1, Math.min(size, 4_999));
            StackLoad.sink = Arrays.copyOf(objects, size).length;
        }

        static long compareBytes(byte[] bytes) {
            Arrays.fill(bytes, 0, 50_000, (byte) 3);
            // JDK 8 has no such method.
            int differs = StackLoad.IS_JDK_8 ? 0 : Arrays.mismatch(bytes, 0, 40_000, bytes, 5_000, 45_000);
            return differs + Arrays.hashCode(bytes);
        }
    }

    static class Checksums {
        static void turn() {
            byte[] bytes = new byte[64_000];
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int size = 10; size < bytes.length; size *= 5) {
                    StackLoad.sink = checksum(bytes, size);
                }
            }
        }

        static long checksum(byte[] bytes, int size) {
            CRC32 crc = new CRC32();
            crc.update(bytes, 0, size);
            return crc.getValue();
        }
    }

    static class Ciphers {
        static void turn() throws Exception {
            byte[] text = new byte[16_000];
            SecretKeySpec key = new SecretKeySpec(new byte[16], "AES");
            Cipher ctr = Cipher.getInstance("AES/CTR/NoPadding");
            ctr.init(Cipher.ENCRYPT_MODE, key, new IvParameterSpec(new byte[16]));
            Cipher gcm = Cipher.getInstance("AES/GCM/NoPadding");
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                counter(ctr, text);
                byte[] nonce = Long.toHexString(System.nanoTime() | 1L << 62).getBytes();
                gcm.init(Cipher.ENCRYPT_MODE, key, new GCMParameterSpec(128, nonce));
                galois(gcm, text);
            }
        }

        static void counter(Cipher cipher, byte[] text) throws Exception {
            StackLoad.sink = cipher.update(text).length;
        }

        static void galois(Cipher cipher, byte[] text) throws Exception {
            StackLoad.sink = cipher.doFinal(text).length;
        }
    }

    static class Texts {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = build().length() + search(build());
                StackLoad.sink = String.format("%d of %s", end, "text").length();
            }
        }

        static String build() {
            StringBuilder text = new StringBuilder();
            for (int i = 0; i < 300; i++) {
                text.append(i).append(", ").append("word").append(' ').append(i * 0.5f);
            }
            return text.toString();
        }

        static long search(String text) {
            return text.indexOf("299") + text.hashCode() + text.toUpperCase().compareTo(text)
                + text.split(",").length;
        }
    }

    /** Keeps the collector busy. */
    static class Garbage {
        static void turn() {
            Object[] kept = new Object[2_000];
            int next = 0;
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 500; i++) {
                    kept[next++ % kept.length] = i % 50 == 0 ? large() : small(i);
                }
            }
            StackLoad.sink = kept.length;
        }

        static Object small(int i) {
            return new Object[] {Integer.valueOf(i + 1_000), new long[4]};
        }

        static Object large() {
            return new byte[30_000];
        }
    }

    /** Uses the JVM's stubs for arithmetic. */
    static class Numbers {
        static void turn() {
            BigInteger number = BigInteger.ONE.shiftLeft(4_000).subtract(BigInteger.TEN);
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = number.multiply(number).mod(BigInteger.valueOf(997)).longValue();
                StackLoad.sink = waves();
            }
        }

        static long waves() {
            double sum = 0;
            for (int i = 1; i < 200; i++) {
                sum += Math.sin(i * 1e3) + Math.cos(i) + Math.pow(i, 0.3) + Math.log(i) + Math.exp(-i);
            }
            return (long) sum;
        }
    }

    /** Competes for a lock that the thread "calls" sometimes holds. */
    static class Shared {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackCalls.Locks.shared(5);
            }
        }
    }
}
