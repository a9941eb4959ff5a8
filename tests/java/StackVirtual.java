import java.lang.reflect.Method;

/**
 * The thread "virtual": starts virtual threads, two at a time, which run on carrier threads. Does
 * nothing before JDK 21.
 */
class StackVirtual implements Runnable {
    private final long end;

    StackVirtual(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        try {
            Object builder = Thread.class.getMethod("ofVirtual").invoke(null);
            Class<?> builders = Class.forName("java.lang.Thread$Builder");
            builder = builders.getMethod("name", String.class).invoke(builder, "stackload-virtual");
            Method start = builders.getMethod("start", Runnable.class);
            while (System.nanoTime() < end) {
                Thread first = (Thread) start.invoke(builder, new Straight());
                Thread second = (Thread) start.invoke(builder, new Yielding());
                first.join();
                second.join();
            }
        } catch (NoSuchMethodException before21) {
            return;
        } catch (ReflectiveOperationException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Never leaves its carrier. */
    static class Straight implements Runnable {
        @Override
        public void run() {
            for (int i = 0; i < 200; i++) {
                StackLoad.sink = down(100);
            }
        }

        static long down(int depth) {
            return depth > 1 ? down(depth - 1) + 1 : bottom(depth);
        }

        static long bottom(long x) {
            for (int i = 0; i < 20_000; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /** Yields in its innermost method. Most frames then stay in the heap until execution returns to them. */
    static class Yielding implements Runnable {
        @Override
        public void run() {
            for (int i = 0; i < 50; i++) {
                StackLoad.sink = down(40);
            }
        }

        static long down(int depth) {
            return depth > 1 ? up(down(depth - 1)) : bottom(depth);
        }

        static long up(long x) {
            for (int i = 0; i < 500; i++) {
                x = x * 31 + i;
            }
            return x;
        }

        static long bottom(long x) {
            Thread.yield();
            for (int i = 0; i < 20_000; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }
}
