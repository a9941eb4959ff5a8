import com.sun.management.GarbageCollectionNotificationInfo;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.RandomAccessFile;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryUsage;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;
import javax.management.Notification;
import javax.management.NotificationEmitter;
import javax.management.openmbean.CompositeData;

/**
 * Reports code cache, loaded classes, memory pools, threads and buffers, as counted by the JVM's management beans.
 *
 * Commands on stdin, answers on stdout: "ready PID" once; "tell" is answered by "done used=BYTES
 * size=BYTES classes=NUMBER" with used and maximum size of the code cache and the number of loaded
 * classes; "pools" by "done [...]", a JSON array of the memory pools; "threads" by "done DAEMON STATE NUMBER,...";
 * "buffers" by "done NAME=COUNT:USED:CAPACITY,..."; "collections" by "done {...}", a JSON object with number and milliseconds of
 * the collections since "observe" by "NAME/ACTION/CAUSE"; "counts" by "done loaded=NUMBER unloaded=NUMBER processors=NUMBER"; "load NUMBER" loads NUMBER classes, each in a loader of its own;
 * "collect" requests a collection; "fill BYTES" keeps objects of this size; "churn NUMBER" allocates garbage, NUMBER
 * times 1000 bytes; "start" starts threads in all states and
 * allocates buffers; "drop"
 * makes the JVM unload all classes and free all objects; "quit" ends.
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
            } else if (line.equals("collect")) {
                System.gc();
                System.out.println("done");
            } else if (line.startsWith("churn ")) {
                for (int left = Integer.parseInt(line.substring(6)); left > 0; left--) {
                    garbage = new byte[1000];
                }
                System.out.println("done");
            } else if (line.startsWith("fill ")) {
                for (int left = Integer.parseInt(line.substring(5)); left > 0; left -= 1000) {
                    KEPT.add(new byte[1000]);
                }
                System.out.println("done");
            } else if (line.equals("pools")) {
                System.out.println("done " + pools());
            } else if (line.equals("start")) {
                startThreads();
                BUFFERS.add(ByteBuffer.allocateDirect(3_000_000));
                BUFFERS.add(ByteBuffer.allocateDirect(70_000));
                System.out.println("done");
            } else if (line.equals("observe")) {
                for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
                    ((NotificationEmitter) collector).addNotificationListener(HoldLoad::collected, null, null);
                }
                System.out.println("done");
            } else if (line.equals("collections")) {
                synchronized (COLLECTIONS) {
                    StringBuilder all = new StringBuilder();
                    COLLECTIONS.forEach((key, sum) -> all.append(all.length() > 0 ? "," : "")
                        .append('"').append(key).append("\":[").append(sum[0]).append(',').append(sum[1]).append(']'));
                    System.out.println("done {" + all + "}");
                }
            } else if (line.equals("counts")) {
                System.out.println("done loaded=" + ManagementFactory.getClassLoadingMXBean().getTotalLoadedClassCount()
                    + " unloaded=" + ManagementFactory.getClassLoadingMXBean().getUnloadedClassCount()
                    + " processors=" + Runtime.getRuntime().availableProcessors());
            } else if (line.equals("threads")) {
                System.out.println("done " + threads());
            } else if (line.equals("buffers")) {
                StringBuilder all = new StringBuilder();
                for (BufferPoolMXBean pool : ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class)) {
                    all.append(pool.getName()).append('=').append(pool.getCount()).append(':')
                        .append(pool.getMemoryUsed()).append(':').append(pool.getTotalCapacity()).append(',');
                }
                System.out.println("done " + all);
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
        // The threads of "start" never end.
        System.exit(0);
    }

    private static volatile byte[] garbage;
    /** Direct buffers. */
    private static final List<ByteBuffer> BUFFERS = new ArrayList<>();

    /** Number and milliseconds of the collections by name, action and cause. */
    private static final Map<String, long[]> COLLECTIONS = new TreeMap<>();

    private static void collected(Notification notification, Object handback) {
        if (notification.getType().equals(GarbageCollectionNotificationInfo.GARBAGE_COLLECTION_NOTIFICATION)) {
            GarbageCollectionNotificationInfo info =
                GarbageCollectionNotificationInfo.from((CompositeData) notification.getUserData());
            synchronized (COLLECTIONS) {
                String key = info.getGcName() + "/" + info.getGcAction() + "/" + info.getGcCause();
                long[] sum = COLLECTIONS.computeIfAbsent(key, k -> new long[2]);
                sum[0]++;
                sum[1] += info.getGcInfo().getDuration();
            }
        }
    }

    private static String pools() {
        StringBuilder all = new StringBuilder("[");
        for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
            MemoryUsage now = pool.getUsage();
            MemoryUsage after = pool.getCollectionUsage();
            all.append(all.length() > 1 ? "," : "").append("{\"name\":\"").append(pool.getName())
                .append("\",\"type\":\"").append(pool.getType().name()).append("\",\"init\":").append(now.getInit())
                .append(",\"used\":").append(now.getUsed()).append(",\"committed\":").append(now.getCommitted())
                .append(",\"max\":").append(now.getMax()).append(",\"after\":")
                .append(after == null ? -1 : after.getUsed()).append("}");
        }
        return all.append("]").toString();
    }

    private static String threads() {
        Map<String, Integer> counts = new TreeMap<>();
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            String key = thread.isDaemon() + " " + thread.getState().name().toLowerCase();
            counts.merge(key, 1, Integer::sum);
        }
        StringBuilder all = new StringBuilder();
        counts.forEach((key, number) -> all.append(key).append(' ').append(number).append(','));
        return all.toString();
    }

    /** Starts threads that are blocked, waiting in several ways, and running. */
    private static void startThreads() throws Exception {
        Object lock = new Object();
        Runnable[] bodies = {
            () -> {
                synchronized (lock) {
                    pause(1_000_000);
                }
            },
            () -> {
                pause(200);
                synchronized (lock) {
                    pause(1);
                }
            },
            LockSupport::park,
            () -> LockSupport.parkNanos(1_000_000_000_000L),
            () -> pause(1_000_000),
        };
        for (int i = 0; i < 3 * bodies.length; i++) {
            Thread thread = new Thread(bodies[i % bodies.length], "body-" + i);
            thread.setDaemon(i % 2 == 0);
            thread.start();
        }
        File file = File.createTempFile("mapped", null);
        try (RandomAccessFile open = new RandomAccessFile(file, "rw")) {
            BUFFERS.add(open.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 10_000));
        }
        file.delete();
        // The threads reach their states.
        pause(500);
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
