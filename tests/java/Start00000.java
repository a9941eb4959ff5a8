/** Template of the classes that StartLoad generates. */
public class Start00000 {
    static long begun = System.nanoTime();
}
