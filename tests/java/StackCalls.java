/** The thread "calls": Java methods that call each other in every possible way. */
class StackCalls implements Runnable {
    private final long end;

    StackCalls(long end) {
        this.end = end;
    }

    @Override
    public void run() {
        while (System.nanoTime() < end) {
            Deep.turn();
            Mutual.turn();
            Abyss.turn();
            Interfaces.turn();
            Classes.turn();
            Thrower.turn();
            Finally.turn();
            Locks.turn();
            Big.turn();
            Tiny.turn();
            Osr.turn();
            Wide.turn();
            Hop.turn();
        }
    }

    /** 300 frames of one method. */
    static class Deep {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = down(300, 1, 2.0);
            }
        }

        static long down(int depth, long x, double y) {
            if (depth > 1) {
                return down(depth - 1, x * 31 + depth, y + depth) + depth;
            }
            return bottom(x, y);
        }

        static long bottom(long x, double y) {
            for (int i = 0; i < 20_000; i++) {
                x = x * 6364136223846793005L + i;
            }
            return x + (long) y;
        }
    }

    /** 100 frames each of two methods that call each other and have frames of different sizes. */
    static class Mutual {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = even(200, 7);
            }
        }

        static long even(int depth, long x) {
            return depth == 0 ? bottom(x) : odd(depth - 1, x + depth) ^ depth;
        }

        static long odd(int depth, long x) {
            long a = x * 3;
            long b = x ^ depth;
            long c = a + b;
            long below = even(depth - 1, c);
            return below + a + b * c;
        }

        static long bottom(long x) {
            for (int i = 0; i < 20_000; i++) {
                x = (x ^ x << 13) + i;
            }
            return x;
        }
    }

    /** 950 frames. */
    static class Abyss {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = fall(950);
            }
        }

        static long fall(int depth) {
            return depth > 1 ? fall(depth - 1) + 1 : ground(depth);
        }

        static long ground(long x) {
            for (int i = 0; i < 100_000; i++) {
                x = x * 6364136223846793005L + i;
            }
            return x;
        }
    }

    /** Interface calls with five receivers. */
    static class Interfaces {
        static final Shape[] SHAPES = {new Square(), new Circle(), new Ring(), new Line(), new Dot()};

        interface Shape {
            long area(int size);

            /** Overridden by one class only. */
            default long twice(int size) {
                return area(size) + area(size + 1);
            }
        }

        static class Square implements Shape {
            @Override
            public long area(int size) {
                return burn(size);
            }
        }

        static class Circle implements Shape {
            @Override
            public long area(int size) {
                return burn(size) * 3;
            }
        }

        static class Ring implements Shape {
            @Override
            public long area(int size) {
                return burn(size) - 1;
            }
        }

        static class Line implements Shape {
            @Override
            public long area(int size) {
                return size;
            }
        }

        static class Dot implements Shape {
            @Override
            public long area(int size) {
                return 0;
            }

            @Override
            public long twice(int size) {
                return burn(size);
            }
        }

        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 1_000; i++) {
                    StackLoad.sink = SHAPES[i % SHAPES.length].area(i) + SHAPES[i * 7 % SHAPES.length].twice(i);
                }
            }
        }

        static long burn(int size) {
            long x = size;
            for (int i = 0; i < 20; i++) {
                x = x * 31 + (x >>> 3);
            }
            return x;
        }
    }

    /** Virtual calls with five receivers. */
    static class Classes {
        static final Animal[] ANIMALS = {new Cat(), new Dog(), new Cow(), new Hen(), new Bee()};

        abstract static class Animal {
            abstract long speak(int volume);
        }

        static class Cat extends Animal {
            @Override
            long speak(int volume) {
                return noise(volume, 3);
            }
        }

        static class Dog extends Animal {
            @Override
            long speak(int volume) {
                return noise(volume, 5);
            }
        }

        static class Cow extends Animal {
            @Override
            long speak(int volume) {
                return noise(volume, 7);
            }
        }

        static class Hen extends Animal {
            @Override
            long speak(int volume) {
                return volume;
            }
        }

        static class Bee extends Animal {
            @Override
            long speak(int volume) {
                return -volume;
            }
        }

        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 1_000; i++) {
                    StackLoad.sink = ANIMALS[i % ANIMALS.length].speak(i);
                }
            }
        }

        static long noise(int volume, int seed) {
            long x = seed;
            for (int i = 0; i < 20; i++) {
                x = x * 31 + volume;
            }
            return x;
        }
    }

    /**
     * Exceptions, some without a stack trace, that are caught four frames above the frame that
     * throws them.
     */
    static class Thrower {
        static class Ball extends RuntimeException {
            private static final long serialVersionUID = 1;

            final int speed;

            Ball(int speed, boolean hasTrace) {
                super("ball", null, false, hasTrace);
                this.speed = speed;
            }
        }

        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = catcher(i);
                }
            }
        }

        static long catcher(int i) {
            try {
                return first(i) + 1;
            } catch (Ball ball) {
                return caught(ball.speed);
            }
        }

        static long first(int i) {
            return second(i + 1) * 3;
        }

        static long second(int i) {
            long x = i * 31L;
            return third(i) + x;
        }

        static long third(int i) {
            try {
                return pitch(i) + 1;
            } catch (IllegalStateException never) {
                return caught(i);
            }
        }

        static long pitch(int i) {
            if (i % 4 > 0) {
                throw new Ball(i, i % 4 == 1);
            }
            return i;
        }

        static long caught(int speed) {
            long x = speed;
            for (int i = 0; i < 200; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    static class Finally {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = outer(i);
                }
            }
        }

        static long outer(int i) {
            try {
                return inner(i);
            } catch (IllegalArgumentException e) {
                return tidy(2);
            } finally {
                StackLoad.sink = tidy(i);
            }
        }

        static long inner(int i) {
            try {
                return risky(i);
            } finally {
                StackLoad.sink = mop(i);
            }
        }

        static long risky(int i) {
            if (i % 10 == 9) {
                throw new IllegalArgumentException("nine");
            }
            return mop(i + 1);
        }

        static long tidy(long x) {
            for (int i = 0; i < 200; i++) {
                x = x * 31 + i;
            }
            return x;
        }

        static long mop(long x) {
            for (int i = 0; i < 200; i++) {
                x = x * 37 + i;
            }
            return x;
        }
    }

    /** Synchronized methods. The thread "library" competes for the lock of one of them. */
    static class Locks {
        private long held;

        static void turn() {
            Locks own = new Locks();
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    own.alone(i);
                }
                shared(3);
            }
        }

        synchronized void alone(int i) {
            held += again(i);
        }

        synchronized long again(int i) {
            return guarded(i);
        }

        static synchronized void shared(int i) {
            StackLoad.sink = guarded(i);
        }

        static long guarded(long x) {
            for (int i = 0; i < 300; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /** A method with many live values and therefore a large frame. It is too large to be inlined. */
    static class Big {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 100; i++) {
                    StackLoad.sink = big(i, i * 0.5);
                }
            }
        }

        static long big(int n, double r) {
            long a = n, b = n + 1, c = n + 2, d = n + 3, e = n + 4, f = n + 5, g = n + 6, h = n + 7;
            long i = n + 8, j = n + 9, k = n + 10, l = n + 11, m = n + 12, o = n + 13, p = n + 14, q = n + 15;
            double s = r, t = r + 1, u = r + 2, v = r + 3, w = r + 4, x = r + 5, y = r + 6, z = r + 7;
            for (int round = 0; round < 20; round++) {
                a += b * c; b ^= c + d; c -= d * e; d += e ^ f; e *= f + g; f -= g ^ h; g += h * i; h ^= i + j;
                i += j * k; j ^= k + l; k -= l * m; l += m ^ o; m *= o + p; o -= p ^ q; p += q * a; q ^= a + b;
                s += t * u; t -= u + v; u *= v * 1e-9; v += w - x; w *= x * 1e-9; x -= y + z; y += z - s; z *= 0.5;
                a += part(round, (int) b);
                switch ((int) (a & 7)) {
                    case 0: b += 1; c ^= 2; d += 3; e ^= 4; break;
                    case 1: c += 1; d ^= 2; e += 3; f ^= 4; break;
                    case 2: d += 1; e ^= 2; f += 3; g ^= 4; break;
                    case 3: e += 1; f ^= 2; g += 3; h ^= 4; break;
                    case 4: f += 1; g ^= 2; h += 3; i ^= 4; break;
                    case 5: g += 1; h ^= 2; i += 3; j ^= 4; break;
                    case 6: h += part(3, 4); break;
                    default: i += 1;
                }
            }
            long sum = a + b + c + d + e + f + g + h + i + j + k + l + m + o + p + q;
            return sum + (long) (s + t + u + v + w + x + y + z);
        }

        static long part(int a, int b) {
            long x = a;
            for (int i = 0; i < 20; i++) {
                x = x * 31 + b;
            }
            return x;
        }
    }

    /** Methods that are inlined wherever flags allow it. */
    static class Tiny {
        private long value;

        static void turn() {
            Tiny tiny = new Tiny();
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                for (int i = 0; i < 10_000; i++) {
                    tiny.set(add(tiny.get(), i));
                }
                StackLoad.sink = tiny.get();
            }
        }

        long get() {
            return value;
        }

        void set(long to) {
            value = to;
        }

        static long add(long a, int b) {
            return times(a) + b;
        }

        static long times(long a) {
            return mask(a) * 31;
        }

        static long mask(long a) {
            return a & 0xff_ffff_ffffL;
        }
    }

    /** One call of a method whose loop is compiled while it runs. */
    static class Osr {
        static void turn() {
            loop(StackLoad.turn());
        }

        static void loop(long end) {
            long x = 1;
            do {
                for (int i = 0; i < 20_000; i++) {
                    x = x * 31 + i;
                }
                x += step(x);
            } while (System.nanoTime() < end);
            StackLoad.sink = x;
        }

        static long step(long x) {
            for (int i = 0; i < 2_000; i++) {
                x = x * 37 + i;
            }
            return x;
        }
    }

    /** More arguments than fit into registers. */
    static class Wide {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = spread(50, 1, 2, 3, 4, 5, 6, 7, 8, 9.0, 10.0f);
            }
        }

        static long spread(int depth, int a, long b, int c, long d, int e, long f, int g, long h, double i, float j) {
            if (depth > 1) {
                return spread(depth - 1, c, d, e, f, g, h, a, b + depth, i + 1, j * 2) + depth;
            }
            return gather(a + b + c + d + e + f + g + h + (long) i + (long) j);
        }

        static long gather(long x) {
            for (int i = 0; i < 20_000; i++) {
                x = x * 31 + i;
            }
            return x;
        }
    }

    /**
     * Only calls and returns, so that most samples are in the first and last instructions of a
     * method. The test forbids inlining.
     */
    static class Hop {
        static void turn() {
            for (long end = StackLoad.turn(); System.nanoTime() < end; ) {
                StackLoad.sink = one(1);
            }
        }

        static long one(long x) {
            return two(x + 1) + two(x) + two(x - 1) + two(x * 3);
        }

        static long two(long x) {
            return three(x + 1) ^ three(x) ^ three(x - 1) ^ three(x * 3);
        }

        static long three(long x) {
            return four(x + 1) * four(x) + four(x - 1) * four(x * 3);
        }

        static long four(long x) {
            return five(x + 1) - five(x) - five(x - 1) - five(x * 3);
        }

        static long five(long x) {
            return six(x) + six(x + 1) + six(x - 1) + six(x * 3);
        }

        static long six(long x) {
            return x * 31;
        }
    }
}
