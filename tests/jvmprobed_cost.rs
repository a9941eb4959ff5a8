//! Cost of jvmprobed's probes for the JVMs: the number of hits is limited, and the published cost agrees with the
//! kernel's statistics. The cost itself depends on the machine; it is printed.
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::TcpListener,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated,
    bpf::{held_by, measure_programs},
    load::Load,
    run_alone,
    runtimes::named,
    scrape::{after_windows, sum},
    tool::Tool,
};
use libbpf_rs::{ProgramType, query::ProgInfoIter};
use libjvmprobe::bpf::trap_cost::trap_costs;
use rustix::process::Signal;

/// A window, plus the time until it is in the metrics.
const WINDOW: Duration = Duration::from_secs(9);
/// Maximum number of probe hits per second of all JVMs together. The cost of a hit depends on the machine: 5 to 10 us with
/// trap and program.
const MAX_HITS: f64 = 1500.0;
/// Maximum share of one processor that the daemon lets the probes of allocation cost, and the error of its control within
/// one window.
const MAX_ALLOCATION_COST: f64 = 0.005 * 1.2;
/// Maximum error of the sum of bytes. Each thread's bytes are read at its end, so the sum is right
/// however seldom the probes are attached.
const MAX_ERROR: f64 = 0.01;
/// Flags for a small JVM with small TLABs.
const SMALL: &str = "-Xmx20m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss256k";
/// Flags for a small JVM whose young generation of 3 MB has small TLABs, and many of them.
const SMALLER: &str = "-Xmx20m -Xmn3m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss256k";

/// Statistics of the kernel for a daemon's programs.
#[derive(Clone, Copy, Debug)]
struct Account {
    at: Instant,
    /// Number of probe hits.
    hits: u64,
    /// CPU time in nanoseconds of the programs, the traps and the interrupts.
    ns: f64,
}

impl Account {
    fn of(pid: u32) -> Self {
        let own = held_by(pid).programs;
        let mut account = Self { at: Instant::now(), hits: 0, ns: 0.0 };
        for program in ProgInfoIter::default().filter(|program| own.contains(&program.id)) {
            let price = match program.ty {
                ProgramType::PerfEvent => trap_costs().interrupt_ns,
                _ => trap_costs().probe_ns,
            };
            if program.ty != ProgramType::PerfEvent {
                account.hits += program.run_cnt;
            }
            account.ns += program.run_time_ns as f64 + program.run_cnt as f64 * price;
        }
        account
    }
}

/// Runs JVMs that allocate 50 MB/s each for some windows, and compares the published figures with those of
/// the kernel and of the JVMs themselves.
fn check_probe_cost(jvms: usize, flags: &str, windows: u32) {
    const COST: &str = "jvmprobed_probe_cost_seconds_total";
    const OF_JVMS: &str = "jvmprobe_probe_cost_seconds_total";
    let mut loads: Vec<_> =
        (0..jvms).map(|_| Load::start_program(named("temurin-17"), flags, "AllocLoad")).collect();
    // This JVM runs another libjvm.so and allocates little.
    let mut quiet = Load::start_program(named("temurin-25"), flags, "AllocLoad");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let args = ["--config", "/dev/null", "--window", "5s", "--listen", &free, "--dir", &store];
    let daemon = Tool::start("jvmprobed", &args);
    let stats = measure_programs();
    let seconds = (WINDOW * (windows + 1)).as_secs();
    let (truths, quiet_truth) = thread::scope(|all| {
        let ask = |load: &'_ mut Load, rate: u32| {
            allocated::parse(&load.ask(&format!("go {seconds} {rate} 1"))).total
        };
        let running: Vec<_> =
            loads.iter_mut().map(|load| all.spawn(move || ask(load, 50))).collect();
        let quiet = &mut quiet;
        let quiet_one = all.spawn(move || ask(quiet, 5));
        // The limit applies from the first seconds on. The first window is excluded because it
        // contains the cost of attaching.
        let mut before = (after_windows(&free, 1), Account::of(daemon.pid()));
        let first = before.clone();
        for _ in 0..windows {
            before = (after_windows(&free, 1), Account::of(daemon.pid()));
        }
        let (metrics, account) = before;
        let elapsed = (account.at - first.1.at).as_secs_f64();
        let kernel = (account.ns - first.1.ns) / 1e9;
        let published = sum(&metrics, COST, &[]) - sum(&first.0, COST, &[]);
        let of_jvms = sum(&metrics, OF_JVMS, &[]) - sum(&first.0, OF_JVMS, &[]);
        let own = |metrics: &str| sum(metrics, "jvmprobed_processor_seconds_total", &[]);
        let part = |tracer: &str| {
            let label = format!("tracer=\"{tracer}\"");
            (sum(&metrics, COST, &[&label]) - sum(&first.0, COST, &[&label])) / elapsed
        };
        let hits = (account.hits - first.1.hits) as f64 / elapsed;
        println!(
            "{jvms} JVMs, {elapsed:.0} s: {hits:.0} hits/s; of one processor by the kernel {:.3} %, \
             published {:.3} % (allocation {:.3}, pauses {:.3}, samples {:.3}; of JVMs {:.3} %), \
             the daemon {:.2} %; {:?}",
            100.0 * kernel / elapsed,
            100.0 * published / elapsed,
            100.0 * part("allocation"),
            100.0 * part("pauses"),
            100.0 * part("samples"),
            100.0 * of_jvms / elapsed,
            100.0 * (own(&metrics) - own(&first.0)) / elapsed,
            trap_costs(),
        );
        assert!(hits <= MAX_HITS, "{hits} hits per second");
        assert!(part("allocation") <= MAX_ALLOCATION_COST, "allocation: {}", part("allocation"));
        // The published cost includes traps while probes are being detached, for which the kernel runs no
        // program.
        let off = published / kernel - 1.0;
        assert!((-0.3..=0.3).contains(&off), "published {published}, by the kernel {kernel}");
        assert!(of_jvms <= published && of_jvms > published / 2.0, "{of_jvms} of {published}");
        let truths: Vec<_> = running.into_iter().map(|one| one.join().unwrap()).collect();
        (truths, quiet_one.join().unwrap())
    });
    drop(stats);
    // Waits for two windows: the tracers deliver the data of their last interval after its end, so this
    // data may be only in the second window.
    let metrics = after_windows(&free, 2);
    let published = |load: &Load| {
        let label = format!("pid=\"{}\"", load.pid());
        sum(&metrics, "jvmprobe_allocated_bytes_total", &[&label])
    };
    for (load, truth) in loads.iter().zip(&truths) {
        let off = published(load) / *truth as f64 - 1.0;
        assert!(off.abs() <= MAX_ERROR, "{} of {truth} bytes", published(load));
    }
    let off = published(&quiet) / quiet_truth as f64 - 1.0;
    assert!(off.abs() <= MAX_ERROR, "quiet: {} of {quiet_truth} bytes", published(&quiet));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().status.success());
    loads.into_iter().chain([quiet]).for_each(|load| drop(load.quit()));
}

#[test]
fn probes_in_twelve_jvms_are_hit_seldom_and_their_cost_is_published() {
    run_alone();
    check_probe_cost(12, SMALLER, 1);
}

#[test]
#[ignore = "long: make test-all"]
fn probes_in_fifty_jvms_are_hit_seldom_and_their_cost_is_published() {
    run_alone();
    check_probe_cost(50, SMALL, 3);
}
