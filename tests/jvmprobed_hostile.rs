//! jvmprobed under the limits of its systemd unit, on a host full of attackers: it survives, stores
//! all its windows, and loses no data of a well-behaved JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measurements, for people to read")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated,
    attack::{Attack, Flood},
    cgroup::{Cgroup, Limits},
    gclog,
    load::Load,
    run_alone,
    runtimes::named,
    scrape::{after_windows, sum},
    tool::{Tool, binary, run},
};
use rustix::process::Signal;
use tempfile::TempDir;

const WINDOW: Duration = Duration::from_secs(5);
/// Longer than a healthy daemon takes to answer on the slowest machine.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

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
        command.args(["--config", "/dev/null", "--window", "5s", "--listen", &listen, "--dir"]);
        command.arg(dir.path().join("store"));
        group.enter(&mut command);
        Self { tool: Tool::spawn(command), dir, listen }
    }

    /// Returns an answer and the time that it took.
    fn get(&self, path: &str) -> (String, Duration) {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        (answer, begin.elapsed())
    }
}

/// Runs the daemon beside all attackers for some windows.
fn check_daemon_under_attack(windows: u32) {
    run_alone();
    let limits = Limits::of_unit();
    let group = match Cgroup::new("daemon", limits) {
        Ok(group) => group,
        Err(error) => {
            println!("NOT TESTED: no control group with {limits:?}: {error}");
            return;
        }
    };
    // The daemon records collections individually up to a certain rate, which this JVM does not
    // reach.
    let mut neighbour = Load::start(named("temurin-21"), "-XX:+UseSerialGC -Xmx256m");
    let daemon = Daemon::start(&group);
    let attack = Attack::start();
    let before = gclog::collecting_stops(&neighbour.log()).len();
    neighbour.go((WINDOW * windows).as_secs_f64() - 5.0);
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
    // The daemon's child processes are signalled when the daemon ends, and exit shortly afterwards.
    let ended = Instant::now();
    while !group.processes().is_empty() && ended.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(group.processes(), [0; 0], "child processes of the daemon are still running");
    assert!(most < limits.memory.unwrap(), "{most} bytes of memory");
    // Some windows may be missing, because the daemon attaches to the attackers during the first ones.
    let kept = metric(&metrics, "jvmprobed_windows_total");
    assert!(kept >= f64::from(windows) - 3.0, "{kept} of {windows} windows\n{metrics}");
    let store = dir.path().join("store").display().to_string();
    let shown = ["show", "--dir", &store, "--since", "1h", "--jvm", "GcLoad", "--gc", "-j"];
    let shown = run("jvmprobed", &shown);
    assert!(shown.status.success(), "{shown:?}");
    // The attacker with false data runs the same program, so the records are selected by PID.
    let pid = neighbour.pid();
    let records = shown.json();
    let of_neighbour = records.iter().filter(|r| r["pid"] == pid && r["type"] == "pause");
    let durations: Vec<_> = of_neighbour.map(|r| r["stopped_ns"].as_u64().unwrap()).collect();
    assert_eq!(durations, paused, "pauses of the well-behaved JVM");
    neighbour.quit();
}

#[test]
fn a_flood_of_mappings_beside_two_thousand_processes_costs_a_neighbour_nothing() {
    run_alone();
    let group = match Cgroup::new("daemon", Limits::of_unit()) {
        Ok(group) => group,
        Err(error) => {
            println!("NOT TESTED: no control group: {error}");
            return;
        }
    };
    let mut busy = Load::start(named("temurin-21"), "-XX:+UseSerialGC -Xmx256m");
    let mut allocating = Load::start_program(named("temurin-17"), "-Xmx64m", "AllocLoad");
    let daemon = Daemon::start(&group);
    let before = after_windows(&daemon.listen, 1);
    let flood = Flood::start();
    // Longer than the time until the windows are complete, so that the load lasts for the whole time.
    busy.go(300.0);
    let allocated = thread::spawn(move || {
        let truth = allocated::parse(&allocating.ask("go 20 50 1")).total;
        (allocating, truth)
    });
    let cpu_before = cpu_ns(daemon.tool.pid());
    let first = after_windows(&daemon.listen, 1);
    let begin = Instant::now();
    let last = after_windows(&daemon.listen, 4);
    let elapsed = begin.elapsed().as_secs_f64();
    let (allocating, truth) = allocated.join().unwrap();
    // The last interval of allocation is in the window after its end.
    let end = after_windows(&daemon.listen, 2);
    let used = (cpu_ns(daemon.tool.pid()) - cpu_before) as f64 / 1e9;
    drop(flood);
    let label = |load: &Load| format!("pid=\"{}\"", load.pid());
    let increase = |metric: &str, load: &Load, from: &str, to: &str| {
        sum(to, metric, &[&label(load)]) - sum(from, metric, &[&label(load)])
    };
    let sampled = increase("jvmprobe_processor_seconds_total", &busy, &first, &last);
    let cpu = increase("jvmprobe_cpu_seconds_total", &busy, &first, &last);
    let bytes = increase("jvmprobe_allocated_bytes_total", &allocating, &before, &end);
    println!(
        "{elapsed:.0} s: {sampled:.2} s sampled of {cpu:.2} s; {bytes:.0} bytes of {truth}; the daemon used {used:.2} s"
    );
    assert!(sampled > 0.7 * cpu && cpu > 1.0, "{sampled} s of {cpu} s");
    assert!((bytes / truth as f64 - 1.0).abs() < 0.02, "{bytes} of {truth} bytes");
    assert_eq!(metric(&end, "jvmprobed_saving"), 0.0, "{end}");
    // A JVM that starts beside the flood is found, too.
    let late = Load::start(named("temurin-17"), "-XX:+UseSerialGC -Xmx64m");
    let found = after_windows(&daemon.listen, 3);
    assert!(
        found.contains(&format!("jvmprobe_jvm_info{{jvm=\"GcLoad\",{}", label(&late))),
        "{found}"
    );
    let (_, took) = daemon.get("/-/healthy");
    println!("health within {took:?}");
    daemon.tool.signal(Signal::TERM);
    assert!(daemon.tool.wait().status.success());
    drop((busy, allocating, late));
}

/// Returns the CPU time of a process, in nanoseconds.
fn cpu_ns(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace();
    let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum();
    ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// Returns the peak memory of a process, in bytes.
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
fn the_daemon_survives_half_a_minute_of_attacks_within_its_units_limits() {
    check_daemon_under_attack(6);
}

#[test]
#[ignore = "long: make test-all"]
fn the_daemon_survives_ten_minutes_of_attacks_within_its_units_limits() {
    check_daemon_under_attack(120);
}
