import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.security.ProtectionDomain;

/**
 * Program and agent in one. "go" retransforms one of its classes without a change, so that the JVM begins
 * to count this class's calls from zero, and is answered by "done".
 */
public class RedefineLoad {
    static int sink;
    private static Instrumentation instrumentation;

    public static void premain(String arguments, Instrumentation given) {
        instrumentation = given;
        given.addTransformer(new ClassFileTransformer() {
            @Override
            public byte[] transform(ClassLoader loader, String name, Class<?> old, ProtectionDomain domain,
                    byte[] bytes) {
                return null;
            }
        }, true);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        new Replaced().calledBefore(1);
        new Kept().calledBefore(2);
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            instrumentation.retransformClasses(Replaced.class);
            System.out.println("done " + sink);
        }
    }

    static class Replaced {
        void calledBefore(int x) {
            sink += x * 31 + 7;
        }

        void neverCalled(int x) {
            sink += x * 37 + 7;
        }
    }

    static class Kept {
        void calledBefore(int x) {
            sink += x * 31 + 7;
        }

        void neverCalled(int x) {
            sink += x * 37 + 7;
        }

        /** This method is so long that no compiler inlines it before HotSpot has counted calls of it. */
        void neverCalledLong(int x) {
            sink += x * 37 + 7;
            sink += (x + 1) * 41 + 8;
            sink += (x + 2) * 43 + 9;
            sink += (x + 3) * 47 + 10;
            sink += (x + 4) * 53 + 11;
        }
    }
}
