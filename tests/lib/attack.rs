//! A host full of attackers. One process has an excessive number of mappings, one maps a huge
//! sparse ELF file, and one forks 500 times per second. JVMs run loops of thread dumps,
//! collections, exceptions and class loads. One JVM exports false data, and the memory of others is
//! mapped from the files of FUSE servers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    cgroup::{Cgroup, Limits},
    child_process::ChildProcess,
    fake::compile,
    fuse::{Server, hostile_jvm},
    load::Load,
    runtimes::named,
};

/// Number of JVMs with memory on each of two FUSE servers, one that does not answer and one that is
/// slow. It exceeds the number of reader processes that may be busy at a time.
const FUSE_JVMS: usize = 6;

/// Starts an attacker in a control group and waits until it prints `ready`.
fn attacker(group: &Cgroup, program: &Path, args: &[&str]) -> ChildProcess {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped());
    group.enter(&mut command);
    let mut other = ChildProcess::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(other.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{args:?}");
    other
}

/// Starts a JVM that does one thing as fast as it can.
fn storm(group: &Cgroup, kind: &str) -> Load {
    let runtime = named("temurin-17");
    let mut command = runtime.command();
    command.args(["-XX:+UseSerialGC", "-Xmx64m", "-XX:TieredStopAtLevel=1"]);
    command.arg(format!("-Dstorm={kind}"));
    group.enter(&mut command);
    let mut load = Load::spawn_program(command, "StormLoad", 17);
    load.go(1e6);
    load
}

/// Starts a JVM that randomly changes the data by which it describes itself.
fn lying_jvm(group: &Cgroup, dir: &Path) -> Load {
    let library = dir.join("hostile.so");
    compile("hostile.c", &["-shared", "-fPIC", "-pthread"], &library);
    let runtime = named("temurin-17");
    let mut command = runtime.command();
    command.arg(format!("-agentpath:{}=7 2000 {}", library.display(), dir.join("n").display()));
    command.args(["-XX:+UseG1GC", "-Xmx64m"]);
    group.enter(&mut command);
    let mut load = Load::spawn(command);
    load.go(1e6);
    load
}

/// Writes a file that occupies a few pages on disk and whose headers claim tables of hundreds of
/// megabytes.
fn sparse_elf(path: &Path) {
    const NAMES: u64 = 250 << 20;
    let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0];
    header.resize(16, 0);
    for half in [3_u16, 62] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1_u32.to_le_bytes());
    // Entry point, program headers, section headers.
    for word in [0_u64, 64, 4096] {
        header.extend(word.to_le_bytes());
    }
    header.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 60_000, 1] {
        header.extend(half.to_le_bytes());
    }
    // One segment, which begins at the start of the file.
    header.extend([1_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat());
    for word in [0_u64, 0, 0, 4096, 4096, 4096] {
        header.extend(word.to_le_bytes());
    }
    let section = |kind: u32, offset: u64, size: u64, link: u32, entry: u64| {
        let mut bytes = [1_u32.to_le_bytes(), kind.to_le_bytes()].concat();
        for word in [2, 0, offset, size] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([link.to_le_bytes(), 0_u32.to_le_bytes()].concat());
        for word in [8, entry] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    };
    let file = File::create(path).unwrap();
    file.write_all_at(&header, 0).unwrap();
    let at = 8 << 20;
    file.write_all_at(&section(3, at, NAMES, 0, 0), 4096 + 64).unwrap();
    file.write_all_at(&section(2, at, NAMES, 1, 24), 4096 + 128).unwrap();
    file.write_all_at(&section(11, at, NAMES, 1, 24), 4096 + 192).unwrap();
    file.set_len(at + NAMES).unwrap();
}

/// Processes that are no JVMs and make it expensive to find JVMs: 2,000 sleeping ones, and one that makes the kernel lose
/// mapping events. They end when this is dropped.
pub struct Flood {
    _processes: [ChildProcess; 2],
    _dir: TempDir,
    _group: Cgroup,
}

impl Flood {
    /// Starts them in one control group, which gets at most 40 % of one processor.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("attackers");
        compile("attackers.c", &[], &program);
        let quota = Limits { cpu_percent: Some(40), ..Limits::default() };
        let group = Cgroup::new("flood", quota).unwrap();
        let start = |args: [&str; 2]| attacker(&group, &program, &args);
        let processes = [start(["sleepers", "2000"]), start(["flood", program.to_str().unwrap()])];
        Self { _processes: processes, _dir: dir, _group: group }
    }
}

/// All attackers; they end when this is dropped.
pub struct Attack {
    /// Dropped first, because processes that wait for a server's answer cannot end.
    _pages: Vec<Server>,
    _processes: Vec<ChildProcess>,
    _storms: Vec<Load>,
    _dir: TempDir,
    _groups: Vec<Cgroup>,
}

impl Attack {
    /// Starts the attackers in six control groups, each of which gets at most 40 % of one
    /// processor.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("attackers");
        compile("attackers.c", &[], &program);
        let sparse: PathBuf = dir.path().join("libjvm.so");
        sparse_elf(&sparse);
        let deep = dir.path().join("deep");
        fs::create_dir(&deep).unwrap();
        // Real tenants also have CPU limits. Without them, the attackers would use all processors.
        let quota = Limits { cpu_percent: Some(40), ..Limits::default() };
        let group = |name: &str| Cgroup::new(name, quota).unwrap();
        let (others, dumps, gcs) = (group("others"), group("dumps"), group("gcs"));
        let (throws, classes, pages) = (group("exceptions"), group("classes"), group("pages"));
        let processes =
            [["maps", deep.to_str().unwrap()], ["elf", sparse.to_str().unwrap()], ["forks", "500"]];
        let processes = processes.iter().map(|args| attacker(&others, &program, args)).collect();
        let mut storms = vec![
            storm(&dumps, "dumps"),
            storm(&gcs, "gc"),
            storm(&throws, "exceptions"),
            storm(&classes, "classes"),
            lying_jvm(&others, dir.path()),
        ];
        let content = dir.path().join("content");
        fs::write(&content, vec![0; 1 << 20]).unwrap();
        let mut servers = Vec::new();
        for be_hostile in [Server::stop_answering, Server::slow_down] {
            let Some(server) = Server::start(&content) else { break };
            let jvm = || hostile_jvm(&server, dir.path(), |command| pages.enter(command));
            storms.extend((0..FUSE_JVMS).map(|_| jvm()));
            be_hostile(&server);
            servers.push(server);
        }
        let groups = vec![others, dumps, gcs, throws, classes, pages];
        Self { _pages: servers, _processes: processes, _storms: storms, _dir: dir, _groups: groups }
    }
}
