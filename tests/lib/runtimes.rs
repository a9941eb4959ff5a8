//! The Java runtimes that `tests/runtimes` prepares.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// A Java runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// For example `temurin-17`.
    pub name: String,
    /// Its `java`.
    pub java: PathBuf,
    /// The JDK's number.
    pub major: u32,
    /// A musl build: its libjvm.so has no USDT probes.
    pub musl: bool,
}

/// All runtimes, fetched where they are missing.
///
/// # Panics
/// Where they cannot be fetched.
pub fn all() -> &'static [Runtime] {
    static ALL: OnceLock<Vec<Runtime>> = OnceLock::new();
    ALL.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtimes");
        let output =
            Command::new(&script).stderr(Stdio::inherit()).output().expect("run tests/runtimes");
        assert!(output.status.success(), "tests/runtimes failed");
        let text = String::from_utf8(output.stdout).expect("names are UTF-8");
        text.lines().filter_map(|line| line.split_once(' ')).map(runtime).collect()
    })
}

fn runtime((name, java): (&str, &str)) -> Runtime {
    let major = name.rsplit('-').next().and_then(|n| n.parse().ok());
    Runtime {
        name: name.into(),
        java: java.into(),
        major: major.expect("a runtime's name ends in its JDK's number"),
        musl: name.starts_with("musl"),
    }
}

/// The runtime of a name.
///
/// # Panics
/// Where there is none.
pub fn named(name: &str) -> &'static Runtime {
    all().iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no runtime {name}"))
}

impl Runtime {
    /// A command that runs its `java`.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.java);
        if self.musl {
            let home = self.java.parent().and_then(Path::parent).expect("bin/java");
            command.env("LD_PRELOAD", home.join("lib/shim.so"));
        }
        command
    }

    /// Its libjvm.so.
    pub fn libjvm(&self) -> PathBuf {
        let java = self.java.canonicalize().expect("java exists");
        java.parent().and_then(Path::parent).expect("bin/java").join("lib/server/libjvm.so")
    }

    /// The flags of each collector that it was built with.
    pub fn collectors(&self) -> Vec<&'static str> {
        const ALL: [&str; 6] = [
            "-XX:+UseSerialGC",
            "-XX:+UseParallelGC",
            "-XX:+UseG1GC",
            "-XX:+UseShenandoahGC",
            "-XX:+UseZGC",
            "-XX:+UseZGC -XX:+ZGenerational",
        ];
        ALL.into_iter().filter(|flags| self.accepts(flags)).collect()
    }

    fn accepts(&self, flags: &str) -> bool {
        // Accepted with a warning on 24 and later, where it changes nothing.
        if flags.contains("ZGenerational") && self.major != 21 {
            return false;
        }
        let mut command = self.command();
        command.args(flags.split(' ')).arg("-version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}
