//! The Java runtimes that `tests/runtimes` prepares.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// A Java runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// For example `temurin-17`.
    pub name: String,
    /// Path of its `java`.
    pub java: PathBuf,
    /// Major version of the JDK.
    pub major: u32,
    /// Whether it is a musl build, whose libjvm.so has no USDT probes.
    pub musl: bool,
}

/// A runtime's name with the runtime, or with the reason why it is not available.
type NamedRuntime = (String, Result<Runtime, String>);

/// Returns all runtimes. `tests/runtimes` downloads those that are missing.
///
/// # Panics
/// If `tests/runtimes` fails.
fn all() -> &'static [NamedRuntime] {
    static ALL: OnceLock<Vec<NamedRuntime>> = OnceLock::new();
    ALL.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtimes");
        let output =
            Command::new(&script).stderr(Stdio::inherit()).output().expect("run tests/runtimes");
        assert!(output.status.success(), "tests/runtimes failed");
        let text = String::from_utf8(output.stdout).expect("names are UTF-8");
        text.lines().filter_map(|line| line.split_once(' ')).map(found).collect()
    })
}

fn found((name, java): (&str, &str)) -> NamedRuntime {
    if let Some(why) = java.strip_prefix("- ") {
        return (name.into(), Err(why.into()));
    }
    let major = name.rsplit('-').next().and_then(|n| n.parse().ok());
    let runtime = Runtime {
        name: name.into(),
        java: java.into(),
        major: major.expect("a runtime's name ends in its JDK's number"),
        musl: name.starts_with("musl"),
    };
    (name.into(), Ok(runtime))
}

/// Returns the runtime with this name.
///
/// # Panics
/// If it is not available.
pub fn named(name: &str) -> &'static Runtime {
    let found = all().iter().find(|(n, _)| n == name).map(|(_, found)| found);
    match found.unwrap_or_else(|| panic!("no runtime {name}")) {
        Ok(runtime) => runtime,
        Err(why) => panic!("no runtime {name}: {why}"),
    }
}

/// Returns the runtimes with these names. If the environment variable `JVMPROBE_RUNTIMES` is set, which the emulated
/// machine of `make aarch64` does, returns only those that it lists.
///
/// # Panics
/// If one of them is not available, or none is left.
pub fn selected(names: &[&str]) -> Vec<&'static Runtime> {
    let list = std::env::var("JVMPROBE_RUNTIMES").ok();
    let is_listed =
        |name: &str| list.as_ref().is_none_or(|list| list.split(' ').any(|other| other == name));
    let found: Vec<_> =
        names.iter().filter(|name| is_listed(name)).map(|name| named(name)).collect();
    assert!(!found.is_empty(), "none of {names:?} is in JVMPROBE_RUNTIMES");
    found
}

/// Returns a runtime from Debian unstable, where packages are added and removed. If it is not
/// available, prints a message that nothing was tested with it. The message is written directly to
/// stderr, because the test harness would hide it if it were printed by a macro.
///
/// # Panics
/// If `tests/runtimes` does not know it.
pub fn of_unstable(name: &str) -> Option<&'static Runtime> {
    let (_, found) = all().iter().find(|(n, _)| n == name).expect("known to tests/runtimes");
    match found {
        Ok(runtime) => Some(runtime),
        Err(why) => {
            writeln!(std::io::stderr(), "NOT TESTED with {name}: {why}").expect("stderr");
            None
        }
    }
}

impl Runtime {
    /// Returns a command that runs its `java`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.java);
        if self.musl {
            let home = self.java.parent().and_then(Path::parent).expect("bin/java");
            command.env("LD_PRELOAD", home.join("lib/shim.so"));
        }
        command
    }

    /// Copies this runtime to a folder and renames a field that its JVM exports, so that tools cannot
    /// find the field. Returns the copy.
    ///
    /// # Panics
    /// If it cannot be copied, or if its libjvm.so has no such field.
    pub fn without_field(&self, field: &str, folder: &Path) -> Self {
        let runtime = self.copied(folder);
        let libjvm = runtime.libjvm();
        let mut bytes = std::fs::read(&libjvm).expect("read libjvm.so");
        let name = [b"\0", field.as_bytes(), b"\0"].concat();
        let at = bytes.windows(name.len()).position(|window| window == name).expect("the field");
        bytes[at + 1] = b'X';
        std::fs::write(&libjvm, bytes).expect("write libjvm.so");
        runtime
    }

    /// Copies this runtime to a folder and moves the symbols of its libjvm.so to a debug file, which
    /// tools find by the build ID below `debug`, a folder like /usr/lib/debug. Returns the copy.
    ///
    /// # Panics
    /// If it cannot be copied, or has no build id.
    pub fn stripped(&self, folder: &Path, debug: &Path) -> Self {
        let runtime = self.copied(folder);
        let libjvm = runtime.libjvm();
        let run = |command: &mut Command| {
            let output = command.output().expect("binutils (tests/setup installs them)");
            assert!(output.status.success(), "{command:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let notes = run(Command::new("readelf").arg("-n").arg(&libjvm));
        let id = notes.split_once("Build ID: ").expect("a build id").1;
        let (first, rest) = id.split_whitespace().next().expect("a number").split_at(2);
        let folder = debug.join(".build-id").join(first);
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("{rest}.debug"));
        run(Command::new("objcopy").arg("--only-keep-debug").args([&libjvm, &file]));
        run(Command::new("strip").arg(&libjvm));
        runtime
    }

    /// Copies this runtime to a folder and removes probes and symbols from its libjvm.so, without a
    /// separate debug file. Returns the copy.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn bare(&self, folder: &Path) -> Self {
        let runtime = self.copied(folder);
        let mut strip = Command::new("strip");
        strip.args(["--remove-section", ".note.stapsdt"]).arg(runtime.libjvm());
        let status = strip.status().expect("binutils (tests/setup installs them)");
        assert!(status.success(), "{strip:?}");
        runtime
    }

    /// Makes a copy in a folder. The copy consists of symbolic links, except for `java` and
    /// libjvm.so.
    fn copied(&self, folder: &Path) -> Self {
        let java = self.java.canonicalize().expect("java exists");
        let home = java.parent().and_then(Path::parent).expect("bin/java");
        let copy = folder.join("java");
        let status = Command::new("cp").arg("-rs").args([home, &copy]).status();
        assert!(status.is_ok_and(|status| status.success()), "cp -rs {}", home.display());
        // The launcher locates the JVM relative to its own path, so it has to be a copy, too.
        let own = |path: &Path| {
            let copied_file = copy.join(path.strip_prefix(home).expect("in its home"));
            std::fs::remove_file(&copied_file).expect("a link");
            std::fs::copy(path, &copied_file).expect("copy");
            copied_file
        };
        own(&self.libjvm());
        Self { java: own(&java), ..self.clone() }
    }

    /// Returns the path of its libjvm.so.
    pub fn libjvm(&self) -> PathBuf {
        let java = self.java.canonicalize().expect("java exists");
        let home = java.parent().and_then(Path::parent).expect("bin/java");
        let folder = if self.major == 8 { "lib/amd64/server" } else { "lib/server" };
        home.join(folder).join("libjvm.so")
    }

    /// Returns the flags of each collector that this build supports. Epsilon is not included,
    /// because it does not collect.
    pub fn collectors(&self) -> Vec<&'static str> {
        let all = [
            ("-XX:+UseSerialGC", 8..=99),
            ("-XX:+UseParallelGC", 8..=99),
            ("-XX:+UseConcMarkSweepGC", 8..=13),
            ("-XX:+UseG1GC", 8..=99),
            ("-XX:+UnlockExperimentalVMOptions -XX:+UseShenandoahGC", 11..=14),
            ("-XX:+UseShenandoahGC", 15..=99),
            ("-XX:+UseShenandoahGC -XX:ShenandoahGCMode=generational", 25..=99),
            ("-XX:+UnlockExperimentalVMOptions -XX:+UseZGC", 11..=14),
            ("-XX:+UseZGC", 15..=99),
            ("-XX:+UseZGC -XX:+ZGenerational", 21..=23),
        ];
        let mine = all.into_iter().filter(|(_, jdks)| jdks.contains(&self.major));
        mine.map(|(flags, _)| flags).filter(|flags| self.accepts(flags)).collect()
    }

    fn accepts(&self, flags: &str) -> bool {
        let mut command = self.command();
        command.args(flags.split(' ')).arg("-version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}
