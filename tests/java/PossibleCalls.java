import java.lang.invoke.MethodHandle;
import java.util.function.IntSupplier;

/** Calls of every kind, for the tests of tests/lib/calls.rs. This class is never run. */
class PossibleCalls {
    interface Shape {
        int area();

        default int twice() {
            return area() * 2;
        }
    }

    static class Base {
        static int made = 1;

        public int area() {
            return made;
        }

        static int make(int much) {
            return much;
        }
    }

    /** Inherits its interface's method from its superclass, which does not implement the interface. */
    static class Square extends Base implements Shape {}

    static class Small extends Square {
        @Override
        public int area() {
            return super.area();
        }
    }

    /** Not related to the other classes. */
    static class Other {
        public int area() {
            return 3;
        }
    }

    static int plain(Shape shape, Base base) {
        int sum = shape.area(); // at interface
        sum += base.area(); // at class
        sum += Square.make(1); // at static
        return sum + new Small().area();
    }

    static int make(String text) {
        return text.length();
    }

    static int tests(Object object, int[] numbers) {
        return object instanceof Shape ? 1 : 2;
    }

    static int[] copy(int[] numbers) {
        return numbers.clone();
    }

    static IntSupplier lambda(int number) {
        return () -> make("" + number);
    }

    static int handle(MethodHandle handle) throws Throwable {
        return (int) handle.invokeExact(1);
    }
}
