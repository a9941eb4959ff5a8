import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;

/**
 * Allocates objects of classes with unusual names, or of many classes.
 *
 * <p>Commands on stdin, answers on stdout: "ready PID" once; "names COUNT" allocates COUNT objects of
 * each class with an unusual name, and then drops these classes; "classes COUNT" generates COUNT
 * classes, named many.C0 and so on, and allocates one object of each; both are answered by "done";
 * "quit" ends.
 */
public class NameLoad {
    static volatile Object sink;

    /** Length of the long name. A class file limits names to 65,535 bytes. */
    private static final int LONG = 60_000;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            String[] words = line.split(" ");
            int count = Integer.parseInt(words[1]);
            if (words[0].equals("names")) {
                names(count);
            } else {
                classes(count);
            }
            System.out.println("done");
        }
    }

    private static void names(int count) throws Exception {
        String[] names = {
            "odd/Gr\u00f6\u00dfe", "odd/\u65e5\u672c", "odd/\ud83d\ude00", "odd/line\nbreak\u001b31m", "odd/" + "Long".repeat(LONG / 4),
        };
        for (String name : names) {
            Class<?> type = define(new Loader(), name);
            for (int i = 0; i < count; i++) {
                sink = type.getDeclaredConstructor().newInstance();
                sink = java.lang.reflect.Array.newInstance(type, 2);
                sink = java.lang.reflect.Array.newInstance(type, 2, 3);
            }
        }
        for (int i = 0; i < count; i++) {
            int own = i;
            // From JDK 15 on, a lambda is an object of a hidden class.
            sink = (Runnable) () -> System.out.println(own);
        }
        sink = null;
        // The classes can now be unloaded.
        System.gc();
        System.gc();
    }

    private static void classes(int count) throws Exception {
        Loader loader = new Loader();
        for (int i = 0; i < count; i++) {
            sink = define(loader, "many/C" + i).getDeclaredConstructor().newInstance();
        }
    }

    private static final class Loader extends ClassLoader {
        Class<?> define(byte[] bytes) {
            return defineClass(null, bytes, 0, bytes.length);
        }
    }

    /** Generates a class that has only a constructor (JVMS 4). */
    private static Class<?> define(Loader loader, String name) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(0xcafebabe);
        out.writeInt(52);
        // Constants 1 and 3: names of this class and of Object. 2 and 4: these classes. 5 and 6: name and
        // descriptor of the constructor. 7: NameAndType of both. 8: Object's constructor. 9: "Code".
        out.writeShort(10);
        String[] texts = {name, "java/lang/Object"};
        for (int i = 0; i < texts.length; i++) {
            out.writeByte(1);
            out.writeUTF(texts[i]);
            out.writeByte(7);
            out.writeShort(2 * i + 1);
        }
        out.writeByte(1);
        out.writeUTF("<init>");
        out.writeByte(1);
        out.writeUTF("()V");
        out.writeByte(12);
        out.writeShort(5);
        out.writeShort(6);
        out.writeByte(10);
        out.writeShort(4);
        out.writeShort(7);
        out.writeByte(1);
        out.writeUTF("Code");
        // Access flags, this class, superclass, no interfaces, no fields, one method with one attribute.
        for (int word : new int[] {0x21, 2, 4, 0, 0, 1, 1, 5, 6, 1, 9}) {
            out.writeShort(word);
        }
        // aload_0, invokespecial 8, return
        out.writeInt(17);
        out.writeInt(0x00010001);
        out.writeInt(5);
        out.write(new byte[] {0x2a, (byte) 0xb7, 0, 8, (byte) 0xb1});
        out.writeInt(0);
        out.writeShort(0);
        return loader.define(bytes.toByteArray());
    }
}
