/** The template of the classes that StartLoad makes. */
public class Start00000 {
    static long begun = System.nanoTime();
}
