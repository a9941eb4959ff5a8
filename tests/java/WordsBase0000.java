/** Template of the class to which {@link WordsLoad} gives hostile names. */
public class WordsBase0000 implements Runnable {
    private static volatile Object sink;
    private static volatile double result;

    @Override
    public void run() {
        work_titleZZZ_lineZ_bidiZ();
    }

    private static void work_titleZZZ_lineZ_bidiZ() {
        for (int i = 0; i < 20_000; i++) {
            Object[] objects = new Object[100];
            for (int j = 0; j < objects.length; j++) {
                objects[j] = new WordsBase0000();
            }
            sink = objects;
            result += Math.sqrt(i);
        }
        System.gc();
    }
}
