import java.util.function.IntUnaryOperator;

/**
 * Template of the classes that StackChanges generates, each in a loader of its own.
 *
 * Compiled code assumes that Ground and Part have no subclasses, that the rare cases never happen, and
 * that casts see objects of one class only. Each assumption becomes invalid while frames that depend on
 * it are on the stack. The JVM replaces these with interpreted frames, at once (uncommon trap) or
 * when execution returns to them (deoptimisation).
 */
public class StackShift0000 implements IntUnaryOperator {
    static volatile long sink;

    private Ground ground = new Ground();
    private Part part = new Part();

    @Override
    public int applyAsInt(int phase) {
        switch (phase) {
            case 0:
                sink = loop(1);
                break;
            case 1:
                warm();
                break;
            case 2:
                // Frames of outer() and middle() are on the stack when inner() makes them invalid.
                sink = outer(1, 1);
                break;
            case 3:
                sink = typed("a text", 2);
                break;
            case 4:
                sink = caught(3);
                break;
            default:
                sink = looping(40);
        }
        return 1;
    }

    /** Runs interpreted, then compiled by C1, then by C2, all in one call. */
    static long loop(long x) {
        for (int i = 0; i < 400_000; i++) {
            x = x * 31 + i;
            if ((i & 0x3fff) == 0) {
                x += burn(x);
            }
        }
        return x;
    }

    private void warm() {
        // Runs for as long as C2 needs to compile the methods.
        for (long end = System.nanoTime() + 30_000_000; System.nanoTime() < end; ) {
            for (int i = 0; i < 500; i++) {
                sink = outer(i, 0) + typed(Long.valueOf(i), i) + caught(0);
            }
        }
    }

    private long outer(long x, int rare) {
        return middle(x + 1, rare) + ground.value(x);
    }

    private long middle(long x, int rare) {
        return inner(x + 1, rare) + ground.value(x) * 3;
    }

    private long inner(long x, int rare) {
        if (rare == 1) {
            // This first use loads the subclass.
            ground = later();
            return burn(x) + burn(x + 1);
        }
        return x * 7;
    }

    private static Ground later() {
        // Through Object, because otherwise the verifier would load Later too early.
        Object late = new Later();
        return (Ground) late;
    }

    /** The profile says that the object is always of one class. */
    static long typed(Object value, long x) {
        return measure(value) + x;
    }

    static long measure(Object value) {
        if (value instanceof Long) {
            return (Long) value;
        }
        return burn(value.hashCode());
    }

    /** An exception unwinds frames that are to be deoptimised. */
    private long caught(int rare) {
        try {
            return thrower(rare) + part.size(rare);
        } catch (IllegalStateException e) {
            return burn(rare);
        }
    }

    private long thrower(int rare) {
        return pitch(rare) + part.size(rare + 1);
    }

    private long pitch(int rare) {
        if (rare == 3) {
            Object late = new Piece();
            part = (Part) late;
            throw new IllegalStateException();
        }
        return rare;
    }

    /** The rare case happens in the middle of a loop that was entered by on-stack replacement. */
    static long looping(int rounds) {
        long x = 1;
        for (int i = 0; i < rounds * 10_000; i++) {
            x = x * 37 + i;
            if (i == rounds * 9_000) {
                x += burn(x);
            }
        }
        return x;
    }

    static long burn(long x) {
        for (int i = 0; i < 300; i++) {
            x = x * 31 + i;
        }
        return x;
    }

    static class Ground {
        long value(long x) {
            return x * 5;
        }
    }

    static class Later extends Ground {
        @Override
        long value(long x) {
            return burn(x) * 3;
        }
    }

    static class Part {
        long size(long x) {
            return x * 11;
        }
    }

    static class Piece extends Part {
        @Override
        long size(long x) {
            return burn(x) * 3;
        }
    }
}
