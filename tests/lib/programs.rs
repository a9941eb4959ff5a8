//! Large Java programs that `tests/programs` downloads, with input for them and their class files.

use std::{
    fmt::Write,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{classfile::ClassPath, load, runtimes::Runtime};

/// A program to profile.
#[derive(Clone, Debug)]
pub struct Program {
    /// Jars with its classes.
    pub jars: Vec<PathBuf>,
    /// Arguments of `java`.
    pub args: Vec<String>,
}

/// Returns the jars of a program that `tests/programs` downloads.
///
/// # Panics
/// If it cannot be downloaded.
pub fn jars(name: &str) -> Vec<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let output = Command::new(&script).stderr(Stdio::inherit()).output().expect("run it");
    assert!(output.status.success(), "tests/programs failed");
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let path = line.unwrap_or_else(|| panic!("tests/programs does not list {name}"));
    path.split(':').map(PathBuf::from).collect()
}

/// Returns the Kotlin compiler with `files` source files to compile, which are written into a
/// folder. Compiling one file takes a few seconds of CPU time.
///
/// # Panics
/// If it cannot be downloaded.
pub fn kotlinc(folder: &Path, files: usize) -> Program {
    let compiler = jars("kotlinc").remove(0);
    let library = compiler.with_file_name("library.jar");
    let sources = folder.join("kotlin");
    fs::create_dir_all(&sources).expect("create a folder");
    for file in 0..files {
        fs::write(sources.join(format!("Part{file}.kt")), kotlin(file)).expect("write a file");
    }
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let mut args = vec!["-cp".to_owned(), path(&compiler)];
    args.push("org.jetbrains.kotlin.cli.jvm.K2JVMCompiler".into());
    args.extend(["-no-stdlib", "-no-reflect", "-cp"].map(str::to_owned));
    args.extend([path(&library), "-d".into(), path(&folder.join("out.jar")), path(&sources)]);
    Program { jars: vec![compiler, library], args }
}

/// Generates a Kotlin file of about 250 lines with much to infer, to desugar and to inline.
fn kotlin(file: usize) -> String {
    let mut out = format!("package part{file}\n\nsealed interface Shape\n");
    // Writing into a String does not fail.
    for kind in 0..4 {
        let _ = writeln!(
            out,
            "data class Kind{kind}<T : Comparable<T>>(val a: T, val b: List<T>, val c: Map<String, T>) : Shape"
        );
    }
    for class in 0..10 {
        let text = WORK.replace("{class}", &class.to_string());
        out.push_str(&text.replace("{kind}", &(class % 4).to_string()));
    }
    out
}

const WORK: &str = r#"
interface Op{class} { fun go(x: Int): Int = x * {class}; val name: String get() = "op{class}" }
class Work{class}(private val seed: Int) : Op{class} {
    private val cache by lazy { (0..seed).associateWith { it * {class} } }
    fun <T : Comparable<T>> best(items: List<T>): T? = items.filter { it >= items.first() }.maxOrNull()
    fun sum(xs: List<Int>): Int = xs.map { x -> x + seed }.filter { it % 2 == 0 }.fold(0) { a, x -> a + go(x) }
    override fun go(x: Int): Int {
        var total = 0
        for (i in 0 until x) {
            total += when { i % 3 == 0 -> cache[i] ?: 0; i % 5 == 0 -> i; else -> super.go(i) }
        }
        return total
    }
    fun text(s: Shape): String = when (s) {
        is Kind0<*> -> "zero ${s.a} ${s.b.joinToString { "<$it>" }}"
        is Kind1<*> -> "one ${s.c.entries.sortedBy { it.key }.map { (k, v) -> "$k=$v" }}"
        is Kind2<*> -> buildString { append(s.a); s.b.forEach { append(it) } }
        is Kind3<*> -> s.toString()
    }
    inline fun <reified T> pick(xs: List<Any>): List<T> = xs.mapNotNull { it as? T }
    fun run(): List<String> {
        val k = Kind{kind}("x", listOf("a", "b"), mapOf("p" to "q"))
        val all = pick<String>(listOf(1, "two", text(k), sum(listOf(1, 2, 3)), name))
        return all.map { it.uppercase() }.also { best(it) }
    }
}
"#;

/// Returns the classes of a program and those of the runtime. The latter come from this runtime
/// itself, because another build of the same version has other line numbers. Compilers load some of
/// the runtime's classes a second time from jrt-fs.jar.
///
/// # Panics
/// If the runtime's classes cannot be extracted.
pub fn class_path(runtime: &Runtime, program: &Program) -> ClassPath {
    let mut jars = program.jars.clone();
    jars.push(classes_of(runtime));
    jars.extend(Some(home(runtime).join("lib/jrt-fs.jar")).filter(|jar| jar.exists()));
    ClassPath::new(&jars)
}

/// Returns a jar with a runtime's own classes, which is kept in the cache folder of
/// `tests/runtimes`.
///
/// # Panics
/// If the runtime's classes cannot be extracted.
pub fn classes_of(runtime: &Runtime) -> PathBuf {
    let image = fs::metadata(home(runtime).join("lib/modules")).expect("a runtime has modules");
    let cache = cache().join("classes");
    fs::create_dir_all(&cache).expect("create the cache");
    // The file name contains size and modification time, because the runtime at this path may be
    // replaced by another build.
    let jar = cache.join(format!("{}-{}-{}.jar", runtime.name, image.len(), image.mtime()));
    if !jar.exists() {
        let new = tempfile::NamedTempFile::new_in(&cache).expect("create a file in the cache");
        let mut command = runtime.command();
        command.arg("-cp").arg(load::classes()).arg("ClassFiles").arg(new.path());
        assert!(command.status().expect("start java").success(), "ClassFiles failed");
        new.persist(&jar).expect("rename a file");
    }
    jar
}

fn home(runtime: &Runtime) -> PathBuf {
    let java = runtime.java.canonicalize().expect("java exists");
    java.ancestors().nth(2).expect("bin/java").to_owned()
}

/// Returns the cache folder, the same as in `tests/runtimes`.
fn cache() -> PathBuf {
    let of = |variable| std::env::var_os(variable).filter(|value| !value.is_empty());
    let home = || PathBuf::from(of("HOME").expect("$HOME")).join(".cache");
    let default = || of("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("jvmprobe");
    of("JVMPROBE_CACHE").map_or_else(default, PathBuf::from)
}
