//! jvmprobed under the limits of its systemd unit, on a host full of attackers: it survives, keeps its
//! windows, and loses nothing of a JVM that behaves.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measurements, for people to read")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    fake::compile,
    fuse::{Server, hostile_jvm},
    gclog,
    load::Load,
    need_root,
    other::Other,
    runtimes::named,
    tool::{Tool, binary, run},
};
use rustix::process::Signal;
use tempfile::TempDir;

/// JVMs with memory on a FUSE server, of one that does not answer and of one that is slow: more than may hold
/// readers at a time.
const FUSE_JVMS: usize = 6;
const WINDOW: Duration = Duration::from_secs(15);
/// Longer than a healthy daemon takes to answer on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The limits that the systemd unit sets.
fn limits_of_unit() -> Limits {
    let house = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let unit = house.join("tools/jvmprobed/deploy/systemd/jvmprobed.service");
    let unit = fs::read_to_string(unit).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key));
    let number = |text: &str| text.trim_end_matches(['M', '%']).parse::<u64>().unwrap();
    Limits {
        memory: Some(number(value("MemoryMax=").unwrap()) << 20),
        cpu_percent: value("CPUQuota=").map(number),
        tasks: value("TasksMax=").map(number),
    }
}

/// A daemon with a store and a port of its own.
struct Daemon {
    tool: Tool,
    dir: TempDir,
    listen: String,
}

impl Daemon {
    fn start(group: &Cgroup) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (dir, listen) = (tempfile::tempdir().unwrap(), free.to_string());
        let mut command = Command::new(binary("jvmprobed"));
        command.args(["--config", "/dev/null", "--listen", &listen, "--dir"]);
        command.arg(dir.path().join("store"));
        group.enter(&mut command);
        Self { tool: Tool::spawn(command), dir, listen }
    }

    /// Returns an answer and how long it took.
    fn get(&self, path: &str) -> (String, Duration) {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        (answer, begin.elapsed())
    }
}

/// Starts an attacker in a control group of its own and waits until it says that it is ready.
fn attacker(group: &Cgroup, program: &Path, args: &[&str]) -> Other {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped());
    group.enter(&mut command);
    let mut other = Other::spawn(&mut command);
    let mut line = String::new();
    BufReader::new(other.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "{args:?}");
    other
}

/// A JVM that does one thing as fast as it can.
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

/// A JVM that changes at random what it says of itself.
fn liar(group: &Cgroup, dir: &Path) -> Load {
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

/// A file that takes some pages on the disk and claims tables of hundreds of megabytes.
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
    // One segment, from the beginning.
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

/// All attackers at once, which end when this is dropped.
struct Attack {
    /// Dropped first, because processes that wait for a server cannot end.
    _pages: Vec<Server>,
    _processes: Vec<Other>,
    _storms: Vec<Load>,
    _dir: TempDir,
    _groups: Vec<Cgroup>,
}

impl Attack {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("attackers");
        compile("attackers.c", &[], &program);
        let sparse: PathBuf = dir.path().join("libjvm.so");
        sparse_elf(&sparse);
        let deep = dir.path().join("deep");
        fs::create_dir(&deep).unwrap();
        // A tenant has limits, too: otherwise it takes the processors from everybody.
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
            liar(&others, dir.path()),
        ];
        let content = dir.path().join("content");
        fs::write(&content, vec![0; 1 << 20]).unwrap();
        let mut servers = Vec::new();
        for be_hostile in [Server::fall_silent, Server::slow_down] {
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

/// Runs the daemon beside all attackers for some windows.
fn survives(windows: u32) {
    need_root();
    let limits = limits_of_unit();
    let group = match Cgroup::new("daemon", limits) {
        Ok(group) => group,
        Err(error) => {
            println!("NOT TESTED: no control group with {limits:?}: {error}");
            return;
        }
    };
    // Its collections are fewer per second than the daemon records one by one.
    let mut neighbour = Load::start(named("temurin-21"), "-XX:+UseSerialGC -Xmx256m");
    let daemon = Daemon::start(&group);
    let attack = Attack::start();
    let before = gclog::collecting_stops(&neighbour.log()).len();
    neighbour.go((WINDOW * windows).as_secs_f64() - 10.0);
    let (begin, mut slowest, mut most) = (Instant::now(), Duration::ZERO, 0);
    while begin.elapsed() < WINDOW * windows {
        let (_, took) = daemon.get("/-/healthy");
        slowest = slowest.max(took);
        most = most.max(peak_memory(daemon.tool.pid()));
        assert_eq!(group.oom_kills(), 0, "killed for memory after {:?}", begin.elapsed());
        thread::sleep(Duration::from_millis(500));
    }
    neighbour.done();
    let paused = gclog::collecting_stops(&neighbour.log()).split_off(before);
    let (metrics, _) = daemon.get("/metrics");
    drop(attack);
    let Daemon { tool, dir, .. } = daemon;
    let ending = Instant::now();
    tool.signal(Signal::TERM);
    let output = tool.wait();
    println!(
        "at most {} MB, health within {slowest:?}, ended within {:?}, {} pauses\n{}",
        most >> 20,
        ending.elapsed(),
        paused.len(),
        output.stderr
    );
    let told = ["jvmprobed_limited_total", "jvmprobed_lost_total", "jvmprobed_windows"];
    let told = metrics.lines().filter(|line| told.iter().any(|name| line.starts_with(name)));
    told.for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(group.processes(), [0; 0], "processes are left");
    assert!(most < limits.memory.unwrap(), "{most} bytes of memory");
    // The daemon attaches to attackers within the first window.
    let kept = metric(&metrics, "jvmprobed_windows_total");
    assert!(kept >= f64::from(windows) - 1.0, "{kept} of {windows} windows\n{metrics}");
    let store = dir.path().join("store").display().to_string();
    let shown = ["show", "--dir", &store, "--since", "1h", "--jvm", "GcLoad", "--gc", "-j"];
    let shown = run("jvmprobed", &shown);
    assert!(shown.status.success(), "{shown:?}");
    // The liar runs the same program.
    let pid = neighbour.pid();
    let records = shown.json();
    let of_neighbour = records.iter().filter(|r| r["pid"] == pid && r["type"] == "pause");
    let durations: Vec<_> = of_neighbour.map(|r| r["stopped_ns"].as_u64().unwrap()).collect();
    assert_eq!(durations, paused, "pauses of the JVM that behaves");
    neighbour.quit();
}

/// The most memory that a process has had, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn metric(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
    let value = lines.filter_map(|line| line.strip_prefix(' ')).next();
    value.unwrap_or_else(|| panic!("no {name}: {metrics}")).parse().unwrap()
}

#[test]
fn the_daemon_survives_a_minute_of_attacks_within_its_units_limits() {
    survives(4);
}

#[test]
#[ignore = "long: make test-all"]
fn the_daemon_survives_ten_minutes_of_attacks_within_its_units_limits() {
    survives(40);
}
