/** Template of the classes that ManyLoad generates: forty methods, and run(), which calls them. */
public class Many0000 implements Runnable {
    static int x;

    @Override
    public void run() {
        a0(); a1(); a2(); a3(); a4(); a5(); a6(); a7(); a8(); a9();
        b0(); b1(); b2(); b3(); b4(); b5(); b6(); b7(); b8(); b9();
        c0(); c1(); c2(); c3(); c4(); c5(); c6(); c7(); c8(); c9();
        d0(); d1(); d2(); d3(); d4(); d5(); d6(); d7(); d8(); d9();
    }

    static void a0() {
        x = x * 31 + 0;
    }

    static void a1() {
        x = x * 31 + 1;
    }

    static void a2() {
        x = x * 31 + 2;
    }

    static void a3() {
        x = x * 31 + 3;
    }

    static void a4() {
        x = x * 31 + 4;
    }

    static void a5() {
        x = x * 31 + 5;
    }

    static void a6() {
        x = x * 31 + 6;
    }

    static void a7() {
        x = x * 31 + 7;
    }

    static void a8() {
        x = x * 31 + 8;
    }

    static void a9() {
        x = x * 31 + 9;
    }

    static void b0() {
        x = x * 31 + 10;
    }

    static void b1() {
        x = x * 31 + 11;
    }

    static void b2() {
        x = x * 31 + 12;
    }

    static void b3() {
        x = x * 31 + 13;
    }

    static void b4() {
        x = x * 31 + 14;
    }

    static void b5() {
        x = x * 31 + 15;
    }

    static void b6() {
        x = x * 31 + 16;
    }

    static void b7() {
        x = x * 31 + 17;
    }

    static void b8() {
        x = x * 31 + 18;
    }

    static void b9() {
        x = x * 31 + 19;
    }

    static void c0() {
        x = x * 31 + 20;
    }

    static void c1() {
        x = x * 31 + 21;
    }

    static void c2() {
        x = x * 31 + 22;
    }

    static void c3() {
        x = x * 31 + 23;
    }

    static void c4() {
        x = x * 31 + 24;
    }

    static void c5() {
        x = x * 31 + 25;
    }

    static void c6() {
        x = x * 31 + 26;
    }

    static void c7() {
        x = x * 31 + 27;
    }

    static void c8() {
        x = x * 31 + 28;
    }

    static void c9() {
        x = x * 31 + 29;
    }

    static void d0() {
        x = x * 31 + 30;
    }

    static void d1() {
        x = x * 31 + 31;
    }

    static void d2() {
        x = x * 31 + 32;
    }

    static void d3() {
        x = x * 31 + 33;
    }

    static void d4() {
        x = x * 31 + 34;
    }

    static void d5() {
        x = x * 31 + 35;
    }

    static void d6() {
        x = x * 31 + 36;
    }

    static void d7() {
        x = x * 31 + 37;
    }

    static void d8() {
        x = x * 31 + 38;
    }

    static void d9() {
        x = x * 31 + 39;
    }
}
