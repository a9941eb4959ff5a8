//! Starts `tests/java/StackLoad.java` with its native library.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use tempfile::TempDir;

use crate::{load::Load, runtimes::Runtime};

/// JVM flags that the program needs: the methods of `Hop` are not inlined, and those of `Slow` are
/// interpreted.
pub const FLAGS: &str = "-XX:CompileCommand=quiet \
                         -XX:CompileCommand=dontinline,StackCalls$Hop.* \
                         -XX:CompileCommand=exclude,StackOutside$Slow.*";

/// How the native library is compiled.
#[derive(Clone, Copy, Debug)]
pub enum Native {
    /// Without frame pointers, as most libraries are.
    WithoutFramePointers,
    /// With frame pointers, for a walk that follows them.
    WithFramePointers,
}

/// Starts the program with these flags.
///
/// # Panics
/// If it does not start.
pub fn start(runtime: &Runtime, flags: &str, native: Native) -> Load {
    Load::start_program(runtime, &all_flags(runtime, flags, native), "StackLoad")
}

/// Returns all flags that the program is started with.
///
/// # Panics
/// If there is no C compiler, or it fails.
pub fn all_flags(runtime: &Runtime, flags: &str, native: Native) -> String {
    // Later JDKs print a warning if a library is loaded without this flag.
    let access =
        if runtime.major >= 21 { "--enable-native-access=ALL-UNNAMED" } else { "-Xshare:auto" };
    format!("{access} -Dstackload.native={} {FLAGS} {flags}", library(native).display())
}

/// Returns the compiled native library.
fn library(native: Native) -> PathBuf {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        compile(&dir.path().join("without.so"), "-fomit-frame-pointer");
        compile(&dir.path().join("with.so"), "-fno-omit-frame-pointer");
        dir
    });
    dir.path().join(match native {
        Native::WithoutFramePointers => "without.so",
        Native::WithFramePointers => "with.so",
    })
}

fn compile(library: &Path, flag: &str) {
    compile_native("stackload.c", library, &[flag]);
}

/// Compiles a native library of `tests/java`.
///
/// # Panics
/// If there is no C compiler.
pub fn compile_native(source: &str, library: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("java").join(source);
    let include = include_folder();
    // Not linked with a C library, so that it works on musl as well.
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-nostdlib", "-fno-stack-protector"])
        .args(flags)
        .arg(format!("-I{}", include.display()))
        .arg(format!("-I{}", include.join("linux").display()))
        .args([source.as_path(), Path::new("-o"), library])
        .status()
        .expect("run cc (tests/setup installs it)");
    assert!(status.success(), "cc failed");
}

/// Returns the folder of jni.h, which belongs to the same JDK as javac.
fn include_folder() -> PathBuf {
    let output = Command::new("sh").args(["-c", "readlink -f $(command -v javac)"]).output();
    let path = String::from_utf8(output.expect("run sh").stdout).expect("a path in UTF-8");
    let home = Path::new(path.trim_end()).parent().and_then(Path::parent);
    home.expect("bin/javac (tests/setup installs it)").join("include")
}
