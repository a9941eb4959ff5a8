import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.function.IntUnaryOperator;

/**
 * Program whose names say which of its code is used. Methods whose names begin with "called" or "late"
 * are called; those that begin with "never" are not. A class reaches the state that its name says.
 *
 * "go" calls the "called" methods; "late" calls the "late" ones, whose caller the JVM has usually
 * compiled by then. Each command is answered by "done".
 */
public class UseLoad {
    static int sink;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        ClassLoader loader = UseLoad.class.getClassLoader();
        Class.forName("UseLoad$OnlyLoaded", false, loader);
        // Reflection links the class.
        Class.forName("UseLoad$OnlyLinked", false, loader).getDeclaredMethods();
        CountDownLatch begun = new CountDownLatch(1);
        Blocking.begun = begun;
        Thread thread = new Thread(() -> sink += Blocks.value, "blocks");
        thread.setDaemon(true);
        thread.start();
        begun.await();
        try {
            sink += Fails.value;
        } catch (ExceptionInInitializerError e) {
            sink++;
        }
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("go")) {
                everything();
            } else if (line.startsWith("late")) {
                Hot hot = new Hot(true);
                for (int i = 0; i < 200; i++) {
                    sink += hot.calledOften(i);
                }
            }
            System.out.println("done " + sink);
        }
    }

    private static void everything() throws Exception {
        Used used = new Used(3);
        used.calledOnce();
        sink += used.calledGetter() + Used.calledStatic(4) + used.calledByInterface();
        used.calledSetter(5);
        Hot hot = new Hot(false);
        for (int i = 0; i < 200_000; i++) {
            sink += hot.calledOften(i);
        }
        IntUnaryOperator lambda = x -> x + used.calledByLambda();
        sink += lambda.applyAsInt(1);
        sink += Sort.CALLED.calledOfEnum();
        Object proxy = Proxy.newProxyInstance(UseLoad.class.getClassLoader(),
                new Class<?>[] {Abstract.class}, (self, method, arguments) -> used.calledByProxy());
        sink += ((Abstract) proxy).abstractByProxy();
        Used.class.getDeclaredMethod("calledByReflection").invoke(used);
        List<Base> all = new ArrayList<>();
        all.add(new Left());
        all.add(new Right());
        for (Base base : all) {
            sink += base.calledVirtual(2);
        }
        try {
            used.calledAndThrows();
        } catch (IllegalStateException e) {
            sink += e.getMessage().length();
        }
        synchronized (used) {
            used.calledSynchronized();
        }
    }

    interface Abstract {
        int abstractByProxy();
    }

    interface WithDefault {
        default int calledByInterface() {
            int sum = 1;
            for (int i = 0; i < 3; i++) {
                sum += sum * i;
            }
            return sum;
        }

        default int neverByInterface() {
            int sum = 2;
            for (int i = 0; i < 3; i++) {
                sum += sum * i;
            }
            return sum;
        }
    }

    static class Used implements WithDefault {
        private int value;

        Used(int value) {
            this.value = value;
        }

        /** Never called. The name of a constructor cannot begin with "never". */
        Used(String never) {
            this.value = never.length() * 31 + never.hashCode();
        }

        void calledOnce() {
            sink += value * 31 + 7;
            sink ^= value;
        }

        int calledGetter() {
            return value;
        }

        void calledSetter(int value) {
            this.value = value;
        }

        int neverGetter() {
            return value;
        }

        static int calledStatic(int x) {
            return x * x + sink;
        }

        static int neverStatic(int x) {
            return x * x + sink - neverStatic(x - 1);
        }

        int calledByLambda() {
            return calledPrivately() + 1;
        }

        private int calledPrivately() {
            return value * 17 + sink;
        }

        private int neverPrivately() {
            return value * 19 + sink + neverStatic(value);
        }

        Object calledByProxy() {
            return Integer.valueOf(value + sink % 3);
        }

        public void calledByReflection() {
            sink += value * 13 + 5;
        }

        void calledAndThrows() {
            throw new IllegalStateException("called " + value);
        }

        synchronized void calledSynchronized() {
            sink += value << 3 | 1;
        }

        synchronized void neverSynchronized() {
            sink += value << 5 | 3;
        }

        void neverCallsCalled() {
            calledOnce();
            sink += neverPrivately();
        }
    }

    /**
     * Methods that are called often enough to be compiled and inlined, and "late" methods that are first
     * called after that.
     */
    static class Hot {
        private final boolean isLate;
        private int value = 1;

        Hot(boolean isLate) {
            this.isLate = isLate;
        }

        int calledOften(int x) {
            int sum = calledInlined(x) + calledTiny();
            if (isLate) {
                sum += lateGetter() + lateMethod(x);
                lateSetter(sum);
            }
            return sum;
        }

        private int calledInlined(int x) {
            return x * value + (x >>> 3);
        }

        private int calledTiny() {
            return value;
        }

        private int lateGetter() {
            return value;
        }

        private void lateSetter(int value) {
            this.value = value;
        }

        private int lateMethod(int x) {
            return x * 7 + value * 3 + (x ^ value);
        }

        int neverHot(int x) {
            return x * 11 + value * 5 + (x ^ value);
        }
    }

    enum Sort {
        CALLED,
        NEVER;

        int calledOfEnum() {
            return ordinal() * 3 + sink;
        }

        int neverOfEnum() {
            return ordinal() * 5 + sink + name().length();
        }
    }

    abstract static class Base {
        int calledVirtual(int x) {
            return calledOverridden(x) + 1;
        }

        abstract int calledOverridden(int x);

        int neverInherited(int x) {
            return calledOverridden(x) - 1;
        }
    }

    static class Left extends Base {
        @Override
        int calledOverridden(int x) {
            return x * 23 + sink;
        }
    }

    static class Right extends Base {
        @Override
        int calledOverridden(int x) {
            return x * 29 + sink;
        }

        @Override
        int neverInherited(int x) {
            return x * 31 + sink;
        }
    }

    static class OnlyLoaded {
        static int value = neverInitializes();

        static int neverInitializes() {
            return sink + 1;
        }
    }

    static class OnlyLinked {
        static int value = neverInitializes();

        static int neverInitializes() {
            return sink + 2;
        }
    }

    static class Blocking {
        static CountDownLatch begun;

        static int calledForever() {
            begun.countDown();
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException e) {
                sink++;
            }
            return 1;
        }
    }

    static class Blocks {
        static int value = Blocking.calledForever();

        static int neverYet() {
            return value + sink * 3;
        }
    }

    static class Fails {
        static int value = calledToFail();

        static int calledToFail() {
            throw new IllegalStateException("as it should");
        }

        static int neverAfter() {
            return value + sink * 5;
        }
    }

    static class NeverLoaded {
        static int neverLoads() {
            return sink + 3;
        }
    }
}
