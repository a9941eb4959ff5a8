import java.util.function.IntUnaryOperator;

/**
 * The template of the classes that StackOutside makes, each in a loader of its own.
 *
 * What is compiled in the first phase assumes that Base has no subclass and that the rare case
 * never happens. Both change in phase 1, with frames of it on the stack.
 */
public class StackGone0000 implements IntUnaryOperator {
    static volatile long sink;

    private Base base = new Base();

    @Override
    public int applyAsInt(int phase) {
        for (int i = 0; i < 50; i++) {
            sink = down(30, i, phase);
        }
        return 1;
    }

    private long down(int depth, long x, int phase) {
        if (depth > 1) {
            return down(depth - 1, x + depth, phase) + base.value(depth);
        }
        return middle(x, phase) + base.value(depth);
    }

    private long middle(long x, int phase) {
        if (phase == 1) {
            // The subclass is loaded here, by its first use.
            base = rare();
            // These frames are all invalid now; they stay until they are returned to.
            for (int i = 0; i < 20; i++) {
                x = burn(x);
            }
        }
        String text = phase == 2 && x % 3 == 0 ? null : "x";
        try {
            return burn(x) + text.length();
        } catch (NullPointerException e) {
            return burn(x);
        }
    }

    private static Base rare() {
        // By way of Object: the verifier would load Sub at once to see that it is a Base.
        Object sub = new Sub();
        return (Base) sub;
    }

    static long burn(long x) {
        for (int i = 0; i < 500; i++) {
            x = x * 31 + i;
        }
        return x;
    }

    static class Base {
        long value(long x) {
            return burn(x);
        }
    }

    static class Sub extends Base {
        @Override
        long value(long x) {
            return burn(x) * 3;
        }
    }
}
