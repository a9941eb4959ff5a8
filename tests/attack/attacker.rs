//! An attacker: processes of an unprivileged user in a container of their own, which consists of a control group and a
//! mount namespace.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    child_process::ChildProcess,
    fake::compile,
    runtimes::named,
};
use tempfile::TempDir;

use crate::elf;

/// User ID of all attackers.
pub const USER: u32 = 65534;
/// Path of the fixtures in an attacker's mount namespace. It is the working folder of the processes.
const FIXTURES: &str = "/mnt/dir";
/// Path of the attackers' `java`.
pub const JAVA: &str = "/mnt/jre/bin/java";

/// Largest symbol table that libjvmprobe reads.
const MAX_SYMBOL_TABLE: u64 = 32 << 20;
/// Number of libraries with unwind rows. All together have 16.8 million rows.
const ROW_LIBRARIES: u64 = 5;
const ROWS_PER_LIBRARY: u64 = (16 << 20) / ROW_LIBRARIES + 1;

/// Enters a mount namespace with the Java runtime, the fixtures and a /tmp of its own, and drops all rights. LIBJVM
/// replaces the runtime's libjvm.so.
const ENTER: &str = r#"
    set -e
    mount -t tmpfs none /mnt
    mkdir /mnt/jre /mnt/dir
    mount --bind "$JRE" /mnt/jre
    mount --bind "$DIR" /mnt/dir
    [ -z "$LIBJVM" ] || mount --bind "/mnt/dir/$LIBJVM" /mnt/jre/lib/server/libjvm.so
    [ ! -d /usr/lib/debug ] || mount --bind /mnt/dir/debug /usr/lib/debug
    # As on most hosts: everybody may open it.
    [ ! -e /dev/fuse ] || { mknod -m 666 /mnt/fuse c 10 229; mount --bind /mnt/fuse /dev/fuse; }
    mount -t tmpfs -o mode=1777 none /tmp
    cd /mnt/dir
    exec setpriv --reuid="$ATTACKER" --regid="$ATTACKER" --clear-groups --no-new-privs "$@"
"#;

/// Files that attackers use. All are readable for everybody.
pub struct Fixtures(TempDir);

impl Fixtures {
    /// Compiles the programs and writes the files.
    pub fn build() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let library: &[&str] = &["-shared", "-fPIC", "-pthread"];
        compile("../attack/attack.c", &["-pthread"], &at("attack"));
        compile("../attack/attack.c", library, &at("attack.so"));
        compile("attackers.c", &[], &at("attackers"));
        compile("fuse.c", &[], &at("fuse"));
        compile("process_context.c", library, &at("context.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("attack/Attack.java");
        run(Command::new("javac")
            .args(["--release", "11", "-Xlint:-options", "-d"])
            .arg(dir.path())
            .arg(source));

        // A library that only has the name of a JVM's; its symbols are in a separate file.
        fs::create_dir_all(at("fake")).unwrap();
        let fake = at("fake/libjvm.so");
        let id = "-Wl,--build-id=0x1122334455667788990011223344556677889900";
        compile("probes.c", &["-shared", "-fPIC", "-fno-builtin", id], &fake);
        let debug = at("debug/.build-id/11/22334455667788990011223344556677889900.debug");
        fs::create_dir_all(debug.parent().unwrap()).unwrap();
        elf::many_symbols(&fake, &debug, MAX_SYMBOL_TABLE);
        run(Command::new("strip").args(["--remove-section", ".note.stapsdt"]).arg(&fake));

        for number in 0..3 {
            let name = format!("sparse{number}.so");
            elf::sparse_symbols(&named("temurin-17").libjvm(), &at(&name), MAX_SYMBOL_TABLE);
        }

        fs::copy(named("temurin-17").libjvm(), at("copy.so")).unwrap();

        let code = format!("asm(\".text\\n.skip {ROWS_PER_LIBRARY}, 0x90\");int unused;");
        fs::write(at("rows.c"), code).unwrap();
        run(Command::new("cc")
            .args(["-shared", "-fPIC", "-Wl,--build-id=none", "-o"])
            .args([at("rows.so"), at("rows.c")]));
        for number in 0..ROW_LIBRARIES {
            elf::unwind_rows(&at("rows.so"), &at(&format!("rows{number}.so")), ROWS_PER_LIBRARY);
        }
        write_jar(&at("big.jar"));
        // A process context of the maximum size, of fields that contain each other.
        fs::write(at("context"), [0x0a, 0xff, 0x1f].repeat(1365)).unwrap();
        Self(dir)
    }

    /// Returns the names of the libraries with unwind rows, as LD_PRELOAD lists them.
    pub fn row_libraries() -> String {
        (0..ROW_LIBRARIES).map(|number| format!("{FIXTURES}/rows{number}.so:")).collect()
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Writes a jar whose central directory has the maximum number of entries, with names of 1,000 letters. Source:
/// APPNOTE.TXT of PKWARE, section 4.3.
fn write_jar(path: &Path) {
    const ENTRIES: u16 = u16::MAX;
    const NAME: u16 = 1000;
    let mut entry = vec![0; 46 + usize::from(NAME)];
    entry[..4].copy_from_slice(b"PK\x01\x02");
    entry[28..30].copy_from_slice(&NAME.to_le_bytes());
    entry[46..].fill(b'x');
    let size = (entry.len() as u32 * u32::from(ENTRIES)).to_le_bytes();
    let count = ENTRIES.to_le_bytes();
    let end = [b"PK\x05\x06", &[0; 4][..], &count, &count, &size, &[0; 6]].concat();
    let mut file = std::io::BufWriter::new(File::create(path).unwrap());
    (0..ENTRIES).for_each(|_| file.write_all(&entry).unwrap());
    file.write_all(&end).unwrap();
}

/// One attacker. Its processes are killed when it is dropped.
pub struct Attacker<'a> {
    /// Port of the daemon's metrics.
    pub port: u16,
    name: &'static str,
    group: Arc<Cgroup>,
    fixtures: &'a Fixtures,
    libjvm: String,
    processes: Vec<ChildProcess>,
}

impl<'a> Attacker<'a> {
    /// Creates a container, which gets at most this percentage of one processor.
    pub fn new(name: &'static str, cpu_percent: u64, port: u16, fixtures: &'a Fixtures) -> Self {
        let limits = Limits { cpu_percent: Some(cpu_percent), ..Limits::default() };
        let group = Arc::new(Cgroup::new(name, limits).unwrap());
        Self { port, name, group, fixtures, libjvm: String::new(), processes: Vec::new() }
    }

    /// Returns the end of its tenant's name, by which metrics and messages name it.
    pub fn tenant(&self) -> String {
        format!("-{}.service", self.name)
    }

    /// Replaces the libjvm.so of the JVMs that it starts from now on by a fixture.
    pub fn set_libjvm(&mut self, fixture: &str) {
        self.libjvm = fixture.into();
    }

    /// Makes the user the owner of its control group, as systemd does for each login. Returns the group's folder.
    pub fn delegate_group(&self) -> String {
        self.group.delegate(USER).unwrap().display().to_string()
    }

    /// Starts a program and waits until it has printed `ready`.
    pub fn run(&mut self, words: &[&str]) {
        let home = named("temurin-17").java.canonicalize().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", ENTER, "attacker"]).args(words);
        command.env("JRE", home.ancestors().nth(2).unwrap()).env("DIR", self.fixtures.0.path());
        command.env("LIBJVM", &self.libjvm).env("ATTACKER", USER.to_string());
        self.group.enter(&mut command);
        let mut process = ChildProcess::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{words:?}");
        self.processes.push(process);
    }

    /// Starts a JVM with these options, which runs a command of `Attack.java`.
    pub fn java(&mut self, options: &[&str], words: &[&str]) {
        let usual = ["-XX:+UseSerialGC", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", "."];
        self.run(&[&[JAVA], &usual[..], options, &["Attack"], words].concat());
    }

    /// Starts a JVM that is busy, with an agent that runs a command of `attack.c`.
    pub fn java_with_agent(&mut self, command: &str) {
        self.java(&[&format!("-agentpath:{FIXTURES}/attack.so={command}")], &["burn"]);
    }

    /// Returns the exit status of the first of its processes that has ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = |process: &mut ChildProcess| process.0.try_wait().unwrap();
        self.processes.iter_mut().find_map(status).map(|status| format!("{}: {status}", self.name))
    }

    /// Returns the control group of its processes.
    pub fn group(&self) -> Arc<Cgroup> {
        Arc::clone(&self.group)
    }
}

/// Returns whether an unprivileged user can mount file systems in a user namespace.
pub fn has_user_namespaces() -> bool {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), "--clear-groups", "unshare"]);
    let status = command.args(["--user", "--map-root-user", "--mount", "true"]).status();
    status.is_ok_and(|status| status.success())
}
