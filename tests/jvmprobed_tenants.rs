//! Costs of jvmprobed that one tenant causes: if a tenant has expensive stacks or many waits, some of its own
//! stacks are dropped, and none of its neighbour's. The CPU time of the BPF programs that
//! run at thread switches counts as a cost of the tenant.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measurements, for people to read")]

use std::{
    fs,
    net::TcpListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bpf::{held_by, measure_programs},
    cgroup::{Cgroup, Limits},
    gclog,
    load::{Load, numbers},
    run_alone,
    runtimes::named,
    scrape::{get, sum},
    tool::{Tool, run},
};
use jvmprobed::{store::reader::StoreReader, window::Window};
use libbpf_rs::query::ProgInfoIter;
use libjvmprobe::stack::profile::Measure;
use rustix::process::Signal;

const WINDOW: Duration = Duration::from_secs(5);
/// Samples per second.
const HERTZ: &str = "199";
/// CPU limit of the daemon, in percent: more than the daemon needs for the quiet tenant, and much less than
/// it would need for all stacks of the noisy tenant.
const MAX_CPU: &str = "0.5";

/// Runs a program of `tests/java` in a control group.
fn load(group: &Cgroup, program: &str, flags: &[&str]) -> Load {
    let runtime = named("temurin-17");
    let mut command = runtime.command();
    command.args(["-XX:+UseSerialGC", "-Xmx64m", "-Xss4m"]).args(flags);
    group.enter(&mut command);
    Load::spawn_program(command, program, 17)
}

/// Starts a daemon that does not record allocation. Returns it with the address of its metrics.
fn daemon(store: &str, more: &[&str]) -> (Tool, String) {
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let own = ["--config", "/dev/null", "--no-alloc", "--window", "5s"];
    let args = [&own[..], &["--listen", &listen, "--dir", store]].concat();
    (Tool::start("jvmprobed", &[&args[..], more].concat()), listen)
}

/// Returns the number of samples in folded stacks, and how many of them contain a text.
fn samples(path: &Path, word: &str) -> (u64, u64) {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap());
    let counts = lines.map(|(stack, count)| (stack.contains(word), count.parse::<u64>().unwrap()));
    counts.fold((0, 0), |(all, with), (has, count)| (all + count, with + u64::from(has) * count))
}

/// Runs the daemon beside both tenants for some windows.
fn check_tenant_isolation(windows: u32) {
    run_alone();
    let group = |name: &str, cpu_percent| {
        Cgroup::new(name, Limits { cpu_percent: Some(cpu_percent), ..Limits::default() })
    };
    let (noisy_group, quiet_group) = match (group("noisy", 100), group("quiet", 20)) {
        (Ok(noisy), Ok(quiet)) => (noisy, quiet),
        (Err(error), _) | (_, Err(error)) => {
            println!("NOT TESTED: no control groups: {error}");
            return;
        }
    };
    let mut quiet = load(&quiet_group, "CpuLoad", &[]);
    let mut noisy = load(&noisy_group, "SpreadLoad", &[]);
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let (daemon, listen) = daemon(&store, &["-F", HERTZ, "--max-cpu", MAX_CPU]);
    let seconds = (WINDOW * (windows + 1)).as_secs_f64();
    quiet.go(seconds);
    noisy.go(seconds);
    let begin = Instant::now();
    let mut metrics = String::new();
    while begin.elapsed() < WINDOW * windows {
        thread::sleep(WINDOW / 3);
        metrics = get(&listen);
        let of = |reason: &str| {
            sum(&metrics, "jvmprobed_limited_total", &[&format!("reason=\"{reason}\"")])
        };
        println!(
            "{:?}: skipped {} stack walks and {} code loads, daemon {:.3} s, probes {:.3} s, step {}",
            begin.elapsed(),
            of("walks"),
            of("naming"),
            sum(&metrics, "jvmprobed_processor_seconds_total", &[]),
            sum(&metrics, "jvmprobed_probe_cost_seconds_total", &[]),
            sum(&metrics, "jvmprobed_saving", &[]),
        );
    }
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");
    println!("{}", output.stderr);
    // The daemon did not reduce what it collects for all JVMs.
    assert_eq!(sum(&metrics, "jvmprobed_saving", &[]), 0.0, "{metrics}");
    let limited = |tenant: &str, reason: &str| {
        let labels = [&format!("-{tenant}.service"), &*format!("reason=\"{reason}\"")];
        sum(&metrics, "jvmprobed_limited_total", &labels)
    };
    assert!(limited("noisy", "walks") > 100.0, "{metrics}");
    assert_eq!((limited("quiet", "walks"), limited("quiet", "naming")), (0.0, 0.0), "{metrics}");
    let profile = |jvm: &str| {
        let path = dir.path().join(format!("{jvm}.folded"));
        let file = path.display().to_string();
        let shown = run("jvmprobed", &["show", "--dir", &store, "-q", "--jvm", jvm, "-o", &file]);
        assert!(shown.status.success(), "{shown:?}");
        path
    };
    let of_quiet = profile("CpuLoad");
    let (all, missing) = samples(&of_quiet, "[not walked]");
    let (_, own) = samples(&of_quiet, "CpuLoad.");
    println!("quiet: {all} samples, {own} in its own methods, {missing} without a stack");
    // The quiet JVM may use 20 % of one processor, and its JIT compiler uses a part of that.
    let expected = 0.2 * (WINDOW * windows).as_secs_f64() * HERTZ.parse::<f64>().unwrap();
    assert!(all as f64 > 0.8 * expected && own > all / 10 * 9, "{own} of {all}, not {expected}");
    assert_eq!(missing, 0);
    let (all, missing) = samples(&profile("SpreadLoad"), "[not walked]");
    println!("noisy: {all} samples, {missing} without a stack");
    assert!(missing > 100 && all > missing, "{missing} of {all}");
}

#[test]
#[ignore = "long: make test-all"]
fn expensive_tenant_costs_its_neighbour_no_stacks() {
    check_tenant_isolation(18);
}

/// A tenant whose threads wait as often as they can does not make the daemon drop waits of its neighbour. Not all of its own
/// waits are recorded one by one, but their sum stays true.
#[test]
fn storm_of_waits_costs_its_neighbour_no_waits() {
    const THREADS: f64 = 300.0;
    run_alone();
    let quota = Limits { cpu_percent: Some(80), ..Limits::default() };
    let groups = (Cgroup::new("noisy", quota), Cgroup::new("quiet", Limits::default()));
    let (Ok(noisy_group), Ok(quiet_group)) = groups else {
        println!("NOT TESTED: no control groups");
        return;
    };
    let mut noisy = load(&noisy_group, "StormLoad", &["-Dstorm=waits", "-XX:TieredStopAtLevel=1"]);
    let mut quiet = load(&quiet_group, "WaitLoad", &[]);
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    // Recording all waits would take more than a third of a processor.
    let (daemon, listen) = daemon(&store, &["--waits", "1ms", "-F", "1", "--max-cpu", "5"]);
    noisy.go(1e6);
    let of_noisy = |metrics: &str| {
        let labels = ["-noisy.service", "reason=\"waits\""];
        sum(metrics, "jvmprobed_limited_total", &labels)
    };
    let begin = Instant::now();
    while of_noisy(&get(&listen)) == 0.0 {
        assert!(begin.elapsed() < WINDOW * 8, "the noisy tenant is not limited");
        thread::sleep(Duration::from_secs(1));
    }
    let answer = quiet.ask(&format!("go {}", 4 * WINDOW.as_secs()));
    // Waits of a window are delivered some seconds after its end.
    thread::sleep(2 * WINDOW);
    let metrics = get(&listen);
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");
    println!("{}", output.stderr);
    assert_eq!(sum(&metrics, "jvmprobed_collected", &["what=\"wait\""]), 1.0, "{metrics}");
    let of_waits = |line: &&str| {
        line.starts_with("jvmprobed_limited_total") && line.contains("reason=\"waits\"")
    };
    metrics.lines().filter(of_waits).for_each(|line| println!("{line}"));

    let all = StoreReader::open(Path::new(&store)).unwrap().read(0, u64::MAX).unwrap();
    let waits_of = |window: &Window, pid: u32, thread: &str| {
        let profiles = window.jvms.iter().flat_map(|jvm| &jvm.profiles);
        let waits = profiles.filter(|profile| profile.measure == Measure::Elapsed("wait".into()));
        let samples = waits.flat_map(|profile| &profile.samples);
        let own = samples.filter(|sample| sample.pid == pid && sample.thread.starts_with(thread));
        own.map(|sample| sample.count).sum::<u64>()
    };
    // All threads of the noisy tenant wait nearly all the time. A window may have waits of the one before.
    let of_ring: Vec<_> =
        all.iter().map(|stored| waits_of(&stored.window, noisy.pid(), "ring-")).collect();
    let ring: Vec<_> = of_ring.iter().filter(|ns| **ns > 0).collect();
    let complete = &ring[1..ring.len() - 1];
    let waited = complete.iter().copied().sum::<u64>() as f64 / 1e9;
    let share = waited / (complete.len() as f64 * WINDOW.as_secs_f64() * THREADS);
    println!("noisy: {share:.3} of the time of {} windows is waiting time", complete.len());
    assert!(complete.len() > 2 && (0.75..1.25).contains(&share), "{of_ring:?}");

    // The neighbour has measured how long each of its threads has waited.
    let measured = numbers(&answer);
    for thread in ["sleeps", "parks"] {
        let stored = all.iter().map(|stored| waits_of(&stored.window, quiet.pid(), thread));
        let part = stored.sum::<u64>() as f64 / measured[thread] as f64;
        println!("quiet: {part:.3} of the waits of {thread} are recorded");
        assert!((0.9..1.2).contains(&part), "{thread}: {part}");
    }
}

/// The daemon is suspended (SIGSTOP) several times for three seconds. Without limits, the stops of
/// many JVMs would fill the ring buffer in this time.
#[test]
fn flood_of_stops_loses_no_pauses_of_a_neighbour() {
    const CROWD: usize = 12;
    run_alone();
    let quota = Limits { cpu_percent: Some(80), ..Limits::default() };
    let crowd_group = match Cgroup::new("crowd", quota) {
        Ok(group) => group,
        Err(error) => {
            println!("NOT TESTED: no control groups: {error}");
            return;
        }
    };
    let storm = ["-Dstorm=dumps", "-XX:TieredStopAtLevel=1"];
    let mut crowd: Vec<_> = (0..CROWD).map(|_| load(&crowd_group, "StormLoad", &storm)).collect();
    let mut neighbour = Load::start(named("temurin-21"), "-XX:+UseSerialGC -Xmx256m");
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let (daemon, listen) = daemon(&store, &["-F", "1"]);
    crowd.iter_mut().for_each(|load| load.go(1e6));
    let of_crowd = |metrics: &str| {
        sum(metrics, "jvmprobed_limited_total", &["-crowd.service", "reason=\"stops\""])
    };
    let begin = Instant::now();
    while of_crowd(&get(&listen)) == 0.0 {
        assert!(begin.elapsed() < WINDOW * 8, "the crowd is not limited");
        thread::sleep(Duration::from_secs(1));
    }
    let before = gclog::collecting_stops(&neighbour.log()).len();
    neighbour.go(13.0);
    for _ in 0..3 {
        daemon.signal(Signal::STOP);
        thread::sleep(Duration::from_secs(3));
        daemon.signal(Signal::CONT);
        thread::sleep(Duration::from_secs(1));
    }
    neighbour.done();
    // Time for the last events to arrive.
    thread::sleep(Duration::from_secs(2));
    let metrics = get(&listen);
    let paused = gclog::collecting_stops(&neighbour.log()).split_off(before);
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");
    println!(
        "{} pauses; {} of the crowd limited, {} lost",
        paused.len(),
        of_crowd(&metrics),
        sum(&metrics, "jvmprobed_lost_total", &["reason=\"pauses\""]),
    );
    let of_others =
        |line: &&str| line.starts_with("jvmprobed_limited_total") && !line.contains("crowd");
    metrics.lines().filter(of_others).for_each(|line| println!("{line}"));
    let shown = ["show", "--dir", &store, "--since", "1h", "--jvm", "GcLoad", "--gc", "-j"];
    let records = run("jvmprobed", &shown).json();
    let of_neighbour = records.iter().filter(|record| record["type"] == "pause");
    let durations: Vec<_> =
        of_neighbour.map(|record| record["stopped_ns"].as_u64().unwrap()).collect();
    assert!(paused.len() > 100, "{paused:?}");
    assert_eq!(durations, paused);
    neighbour.quit();
}

/// Returns the run time, in seconds, of a daemon's BPF programs for thread switches and wakeups.
fn switch_program_seconds(daemon: u32) -> f64 {
    let own = held_by(daemon).programs;
    let names = ["on_switch", "on_wakeup"].map(std::ffi::OsStr::new);
    let programs = ProgInfoIter::default()
        .filter(|program| own.contains(&program.id) && names.contains(&&*program.name));
    programs.map(|program| program.run_time_ns as f64 / 1e9).sum()
}

#[test]
#[ignore = "long: make test-all"]
fn thread_switch_programs_are_counted_as_cost() {
    run_alone();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "WaitLoad");
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let (daemon, listen) = daemon(&store, &["-F", "1", "--off-cpu", "--max-cpu", "100"]);
    let stats = measure_programs();
    let published = || {
        let labels = ["tracer=\"samples\"", "jvm=\"WaitLoad\""];
        sum(&get(&listen), "jvmprobe_probe_cost_seconds_total", &labels)
    };
    let switching = thread::spawn(move || {
        let answer = load.ask(&format!("switch {}", 4 * WINDOW.as_secs()));
        load.quit();
        answer
    });
    // The cost of a window is published after its end.
    thread::sleep(2 * WINDOW);
    let before = (Instant::now(), published(), switch_program_seconds(daemon.pid()));
    thread::sleep(WINDOW);
    let after = (Instant::now(), published(), switch_program_seconds(daemon.pid()));
    let elapsed = (after.0 - before.0).as_secs_f64();
    let (told, kernel) = ((after.1 - before.1) / elapsed, (after.2 - before.2) / elapsed);
    println!("{}: published {told:.4}, by the kernel {kernel:.4}", switching.join().unwrap());
    drop(stats);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().status.success());
    assert!(kernel > 0.001, "no switches: {kernel}");
    // The kernel counts the switches of all other processes, too.
    assert!((0.3..3.0).contains(&(told / kernel)), "published {told}, by the kernel {kernel}");
}
