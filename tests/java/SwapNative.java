/** Spins in a native library, which is unloaded together with the loader of this class. */
public class SwapNative implements SwapLoad.Spinner {
    static {
        System.load(System.getProperty("swap.native"));
    }

    @Override
    public void spin(double seconds) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            rounds(1_000_000);
        }
    }

    private static native long rounds(long count);
}
