import java.util.function.IntUnaryOperator;

/**
 * Template of the classes that StackOutside generates, each in a loader of its own.
 *
 * Code that is compiled in phase 0 assumes that Base has no subclass and that the rare case never
 * happens. Phase 1 invalidates both assumptions while frames of this code are on the stack.
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
            // This first use loads the subclass.
            base = rare();
            // The code of all these frames is invalid now; they remain until execution returns to them.
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
        // Through Object, because otherwise the verifier would load Sub too early.
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
