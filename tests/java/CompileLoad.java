import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;

/**
 * Runs the Kotlin compiler, which must be on the class path, in this process. The property compile.args
 * contains its arguments, separated by commas.
 *
 * "go ROUNDS" compiles ROUNDS times and is answered by "done FAILURES".
 */
public class CompileLoad {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        String[] arguments = System.getProperty("compile.args").split(",");
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int rounds = Integer.parseInt(line.substring("go ".length()));
            int failures = 0;
            for (int round = 0; round < rounds; round++) {
                Class<?> type = Class.forName("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler");
                Method exec = type.getMethod("exec", PrintStream.class, String[].class);
                ByteArrayOutputStream messages = new ByteArrayOutputStream();
                Object code = exec.invoke(type.getConstructor().newInstance(), new PrintStream(messages), arguments);
                if (!code.toString().equals("OK")) {
                    System.err.print(messages);
                    failures++;
                }
            }
            System.out.println("done " + failures);
        }
        // The compiler leaves threads behind.
        System.exit(0);
    }
}
