import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;

/**
 * Reports code cache, loaded classes and heap, as counted by the JVM's management beans.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "tell" is answered by "done used=BYTES
 * size=BYTES classes=NUMBER" with used and maximum size of the code cache and the number of loaded
 * classes; "heap" by "done committed=BYTES max=BYTES"; "load NUMBER" loads NUMBER classes, each in a
 * loader of its own; "drop" makes the JVM unload all of them; "quit" ends.
 */
public class HoldLoad {
    /** Objects of the loaded classes, until "drop". */
    private static final List<Object> KEPT = new ArrayList<>();

    /** The interface that the loaded classes implement. */
    public interface Marker {
        /** Never called. */
        void tell();
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        // PID@HOST: JDK 8 has no ProcessHandle.
        System.out.println("ready " + ManagementFactory.getRuntimeMXBean().getName().split("@")[0]);
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            if (line.startsWith("load ")) {
                for (int left = Integer.parseInt(line.substring(5)); left > 0; left--) {
                    ClassLoader loader = new ClassLoader(HoldLoad.class.getClassLoader()) { };
                    KEPT.add(Proxy.newProxyInstance(loader, new Class<?>[] {Marker.class}, (o, m, a) -> null));
                }
                System.out.println("done");
            } else if (line.equals("drop")) {
                KEPT.clear();
                System.gc();
                System.gc();
                System.out.println("done");
            } else if (line.equals("heap")) {
                long committed = ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getCommitted();
                System.out.println("done committed=" + committed + " max=" + Runtime.getRuntime().maxMemory());
            } else if (line.equals("tell")) {
                long used = 0;
                long size = 0;
                for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
                    if (pool.getName().startsWith("Code")) {
                        used += pool.getUsage().getUsed();
                        size += pool.getUsage().getMax();
                    }
                }
                int classes = ManagementFactory.getClassLoadingMXBean().getLoadedClassCount();
                System.out.println("done used=" + used + " size=" + size + " classes=" + classes);
            }
        }
    }
}
