/**
 * Spends its time in HotSpot's type checks, and in the stubs that look up the callee of a virtual or
 * interface call. The callers are known, and none of them is inlined.
 */
class DispatchLoad {
    interface One {}
    interface Two {}
    interface Other0 {}
    interface Other1 {}
    interface Other2 {}
    interface Other3 {}
    interface Other4 {}
    interface Other5 {}

    /** Implements many interfaces, so a type check has to search for the right one. */
    static final class Both
            implements Other0, Other1, Other2, Other3, Other4, Other5, One, Two {}

    interface Shape {
        int area(int x);
    }

    abstract static class Form {
        abstract int size(int x);
    }

    static final class A extends Form implements Other0, Shape {
        @Override public int area(int x) { return x; }
        @Override int size(int x) { return x ^ 1; }
    }

    static final class B extends Form implements Other1, Shape {
        @Override public int area(int x) { return x + 1; }
        @Override int size(int x) { return x ^ 2; }
    }

    static final class C extends Form implements Other2, Shape {
        @Override public int area(int x) { return x + 2; }
        @Override int size(int x) { return x ^ 3; }
    }

    static final class D extends Form implements Other3, Shape {
        @Override public int area(int x) { return x + 3; }
        @Override int size(int x) { return x ^ 4; }
    }

    static int casts(Object object) {
        int found = 0;
        for (int i = 0; i < 1000; i++) {
            // HotSpot caches the type that the last search found. Two types alternate, so that each
            // check searches again.
            found += object instanceof One ? 1 : 0;
            found += object instanceof Two ? 1 : 0;
        }
        return found;
    }

    static int callsCasts(Object object) {
        return casts(object);
    }

    static int shapes(Shape[] all, int x) {
        int sum = 0;
        for (Shape each : all) sum += each.area(x);
        return sum;
    }

    static int forms(Form[] all, int x) {
        int sum = 0;
        for (Form each : all) sum += each.size(x);
        return sum;
    }

    static int callsShapes(Shape[] all) {
        int sum = 0;
        for (int i = 0; i < 200; i++) sum += shapes(all, i);
        return sum;
    }

    static int callsForms(Form[] all) {
        int sum = 0;
        for (int i = 0; i < 200; i++) sum += forms(all, i);
        return sum;
    }

    public static void main(String[] args) {
        A a = new A();
        B b = new B();
        C c = new C();
        D d = new D();
        Shape[] shapes = {a, b, c, d};
        Form[] forms = {a, b, c, d};
        Both both = new Both();
        long sum = 0;
        long end = System.nanoTime() + 60_000_000_000L;
        while (System.nanoTime() < end) sum += callsCasts(both) + callsShapes(shapes) + callsForms(forms);
        System.out.println(sum);
    }
}
