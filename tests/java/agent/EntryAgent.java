import java.io.PrintWriter;
import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.ProtectionDomain;
import java.util.ArrayList;
import java.util.List;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * An agent that records which methods of the selected classes are entered, by inserting a call at the
 * beginning of each method. On request it writes a line "CLASS METHOD-AND-DESCRIPTOR" for each method
 * that was entered, with names as in class files.
 *
 * The argument is FILE,PREFIX,PREFIX,...: the output file, and prefixes that select classes by their
 * names. FILE is written as soon as a file FILE.please exists.
 */
public class EntryAgent implements ClassFileTransformer {
    private static final boolean[] ENTERED = new boolean[1 << 20];
    private static final List<String> METHODS = new ArrayList<>();

    private final String[] beginnings;

    private EntryAgent(String[] arguments) {
        beginnings = java.util.Arrays.copyOfRange(arguments, 1, arguments.length);
    }

    public static void premain(String argument, Instrumentation instrumentation) {
        String[] arguments = argument.split(",");
        instrumentation.addTransformer(new EntryAgent(arguments));
        Thread writer = new Thread(() -> writeWhenAsked(Paths.get(arguments[0])));
        writer.setDaemon(true);
        writer.start();
    }

    /** Called at the beginning of each method. */
    public static void entered(int number) {
        ENTERED[number] = true;
    }

    private static synchronized int number(String method) {
        METHODS.add(method);
        return METHODS.size() - 1;
    }

    private static void writeWhenAsked(Path path) {
        try {
            while (!Files.exists(Paths.get(path + ".please"))) {
                Thread.sleep(20);
            }
            Path draft = Paths.get(path + ".draft");
            try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(draft, StandardCharsets.UTF_8))) {
                write(out);
            }
            Files.move(draft, path);
        } catch (java.io.IOException | InterruptedException e) {
            e.printStackTrace();
        }
    }

    private static synchronized void write(PrintWriter out) {
        for (int number = 0; number < METHODS.size(); number++) {
            if (ENTERED[number]) {
                out.println(METHODS.get(number));
            }
        }
    }

    @Override
    public byte[] transform(ClassLoader loader, String name, Class<?> old, ProtectionDomain domain, byte[] bytes) {
        if (name == null || java.util.Arrays.stream(beginnings).noneMatch(name::startsWith)) {
            return null;
        }
        try {
            ClassReader reader = new ClassReader(bytes);
            ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
            reader.accept(new Marks(writer, name), 0);
            return writer.toByteArray();
        } catch (RuntimeException e) {
            // The class file is too new for ASM. It remains unchanged, and its methods are not recorded.
            return null;
        }
    }

    private static class Marks extends ClassVisitor {
        private final String name;

        Marks(ClassVisitor next, String name) {
            super(Opcodes.ASM9, next);
            this.name = name;
        }

        @Override
        public MethodVisitor visitMethod(int access, String method, String descriptor, String signature, String[] thrown) {
            MethodVisitor next = super.visitMethod(access, method, descriptor, signature, thrown);
            if ((access & (Opcodes.ACC_ABSTRACT | Opcodes.ACC_NATIVE)) != 0) {
                return next;
            }
            int number = number(name + " " + method + descriptor);
            return new MethodVisitor(Opcodes.ASM9, next) {
                @Override
                public void visitCode() {
                    super.visitCode();
                    super.visitLdcInsn(number);
                    super.visitMethodInsn(Opcodes.INVOKESTATIC, "EntryAgent", "entered", "(I)V", false);
                }
            };
        }
    }
}
