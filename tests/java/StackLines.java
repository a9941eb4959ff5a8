/**
 * The thread "lines": spends nearly all its time on lines that end with a comment "at NAME", by which
 * the test finds them.
 *
 * The test forces inlining of the methods whose names begin with "in", and forbids it for the others.
 */
class StackLines implements Runnable {
    private final long end;

    StackLines(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        while (System.nanoTime() < end) { StackLoad.sink = plain(1) + nested(2) + calling(3) + neighbours(4); } // at run
    }

    static long plain(long x) {
        for (int i = 0; i < 20_000; i++) { x = x * 6364136223846793005L + i; } // at plain
        return x;
    }

    static long nested(long x) {
        for (int i = 0; i < 5_000; i++) { x = inOuter(x, i); } // at nested
        return x;
    }

    static long inOuter(long x, int i) {
        return inInner(x + i); // at inOuter
    }

    static long inInner(long x) {
        return (((x * 31 ^ x >>> 7) * 37 ^ x >>> 11) * 41 ^ x >>> 13) * 43; // at inInner
    }

    static long calling(long x) {
        for (int i = 0; i < 4; i++) { x = inFirst(x, i); } // at calling
        return x;
    }

    static long inFirst(long x, int i) {
        return inSecond(x ^ i) + 1; // at inFirst
    }

    static long inSecond(long x) {
        return leaf(x * 3) ^ x; // at inSecond
    }

    static long leaf(long x) {
        for (int i = 0; i < 10_000; i++) { x = x * 31 + i; } // at leaf
        return x;
    }

    /** The return address of the first call is the beginning of the next line's code. */
    static long neighbours(long x) {
        return left(x) // at neighbours left
            + right(x); // at neighbours right
    }

    static long left(long x) {
        for (int i = 0; i < 20_000; i++) { x = x * 37 + i; } // at left
        return x;
    }

    static long right(long x) {
        for (int i = 0; i < 20_000; i++) { x = x * 41 + i; } // at right
        return x;
    }
}
