//! javagc on builds that have neither probes nor symbols: stops from the JVM's own counters,
//! compared with its log.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::os::fd::{FromRawFd, OwnedFd};

use jvmprobe_tests::{
    gclog::{self, Stop},
    load::Load,
    proc::{monotonic_ns, threads},
    run_beside_others,
    runtimes::{Runtime, named, of_unstable},
    tool::Tool,
};
use serde_json::Value;

/// With this flag, JDK 8 logs all stops.
const FLAGS_OF_JDK_8: &str = "-XX:+PrintGCApplicationStoppedTime";
/// With these flags, a JVM makes no periodic stops just to check for work.
const NO_TIMER: &str = "-XX:+UnlockDiagnosticVMOptions -XX:GuaranteedSafepointInterval=0";

/// The collector with the most kinds of stops, in Debian's JDK 8, which is built without probes.
#[test]
fn counters_report_every_stop_jdk_8_cms() {
    run_beside_others();
    if let Some(runtime) = of_unstable("sid-8") {
        check(runtime, "-XX:+UseConcMarkSweepGC");
    }
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_8() {
    run_beside_others();
    let Some(runtime) = of_unstable("sid-8") else { return };
    for flags in runtime.collectors() {
        check(runtime, flags);
    }
    check(runtime, "-XX:+UseParallelGC -XX:-UseAdaptiveSizePolicy");
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_8u252() {
    check_stripped_build("zulu-8");
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_11_musl() {
    check_stripped_build("musl-11");
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_17_musl() {
    check_stripped_build("musl-17");
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_21() {
    check_stripped_build("temurin-21");
}

#[test]
#[ignore = "long: make test-all"]
fn counters_report_every_stop_jdk_25() {
    check_stripped_build("temurin-25");
}

/// Checks each collector whose pauses the JVM counts, in a build from which probes and symbols were
/// removed.
fn check_stripped_build(name: &str) {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let runtime = named(name).bare(folder.path());
    let collectors = runtime.collectors();
    let counted = ["Serial", "Parallel", "ConcMarkSweep", "G1"];
    let is_counted = |flags: &&&str| counted.iter().any(|name| flags.contains(name));
    for flags in collectors.iter().filter(is_counted) {
        check(&runtime, flags);
    }
}

fn check(runtime: &Runtime, flags: &str) {
    let title = format!("{} {flags}", runtime.name);
    let old = if runtime.major == 8 { FLAGS_OF_JDK_8 } else { "" };
    let mut load = Load::start(runtime, &[flags, NO_TIMER, old].join(" "));
    let pid = load.pid().to_string();
    let tool = Tool::start("javagc", &["-p", &pid, "-j", "--safepoints"]);
    let begin_ns = monotonic_ns();
    load.run(2.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{title}: {} {}", output.status, output.stderr);
    assert!(output.stderr.contains("read at the end of each stop"), "{title}: {}", output.stderr);
    let log = load.quit();
    let records = output.json();
    let is_stop = |r: &&Value| r["type"] == "pause" || r["type"] == "safepoint";
    let reported_stops: Vec<_> = records.iter().filter(is_stop).collect();
    let mut stops = match runtime.major {
        8 => gclog::stops_of_jdk_8(&log),
        _ => gclog::parse(&log).stops,
    };
    if runtime.major == 8 {
        // The log's timestamps count from the start of the JVM. To convert them to the clock of the
        // records, the last reported stop is found in the log by its length. CMS may have stopped the application again
        // after the trace.
        let number = |record: &Value, field| record[field].as_u64().expect("a number");
        let last = reported_stops.last().unwrap_or_else(|| panic!("{title}: {}", output.stdout));
        let (begin, stopped) = (number(last, "ts_ns"), number(last, "stopped_ns"));
        let is_last = |stop: &&Stop| stop.total_ns.abs_diff(stopped) <= 25_000 + stopped / 50;
        let logged = stops.iter().rev().take(3).find(is_last);
        let logged = logged.unwrap_or_else(|| panic!("{title}: {last} {stops:?}")).end_ns;
        stops.retain(|stop| stop.end_ns <= logged);
        stops.iter_mut().for_each(|stop| stop.end_ns += begin + stopped - logged);
    }
    stops.retain(|stop| stop.end_ns > begin_ns);
    assert!(stops.len() > 10, "{title}: the load makes only {} stops", stops.len());
    let [logged, reported] = [stops.len(), reported_stops.len()];
    assert_eq!(reported, logged, "{title}: {stops:?}\n{}", output.stdout);
    let mut errors = [Vec::new(), Vec::new()];
    for (stop, record) in stops.iter().zip(&reported_stops) {
        compare(&title, runtime, flags, stop, record, &mut errors);
    }
    // PAUSE has a higher limit, because the log's timestamps of a collection enclose those of the
    // counters.
    for ((what, most), errors) in [("STOPPED", 1.0), ("PAUSE", 2.0)].into_iter().zip(&mut errors) {
        errors.sort_by(f64::total_cmp);
        let median = errors[errors.len() / 2];
        let nearly_all = errors[errors.len() * 9 / 10];
        println!(
            "{title}: {} of {} {what}, error median {median:.3}, nearly all {nearly_all:.3} (of 2 % or 25 us)",
            errors.len(),
            stops.len()
        );
        assert!(median <= most, "{title}: {what} is off in the median ({median:.3})");
    }
}

/// Compares a stop in the log with the reported one.
fn compare(
    title: &str,
    runtime: &Runtime,
    flags: &str,
    stop: &Stop,
    record: &Value,
    errors: &mut [Vec<f64>; 2],
) {
    let context = format!("{title}: {stop:?}\n{record}");
    let number = |name: &str| record[name].as_u64().unwrap_or_else(|| panic!("{name}: {context}"));
    // An error of 1 is at the limit of the looser of two bounds: 25 µs, or 2 % of the logged time.
    let error = |reported: u64, logged: u64| {
        let off = reported.abs_diff(logged) as f64;
        (off / 25e3).min(off / logged as f64 / 0.02)
    };
    let (stopped, ttsp) = (number("stopped_ns"), number("ttsp_ns"));
    errors[0].push(error(stopped, stop.total_ns));
    assert!(ttsp <= stopped, "{context}");
    let Some(first) = stop.collections.first() else {
        assert_eq!(record["type"], "safepoint", "{context}");
        return;
    };
    assert_eq!(record["type"], "pause", "{context}");
    // G1's remark and cleanup have no cause, neither in the log of JDK 11 and later nor in the JVM.
    assert_eq!(record["cause"].as_str(), first.cause.as_deref(), "{context}");
    let full = stop.collections.iter().filter(|c| c.is_full()).count();
    assert_eq!(record["full"].as_bool(), Some(full > 0), "{context}");
    let lines = stop.collections.len();
    // The log of JDK 8 has the young collection and the following full one in one line.
    let is_joined = runtime.major == 8 && ["Serial", "ConcMark"].iter().any(|c| flags.contains(c));
    let most = if is_joined { lines + full } else { lines };
    let collections = number("collections") as usize;
    assert!((lines..=most).contains(&collections), "{context}");
    let pause = number("pause_ns");
    assert!(pause <= stopped, "{context}");
    let times = stop.collections.iter().map(|c| c.pause_ns);
    // In these versions, a full collection is logged within the failed young one.
    let is_nested = (9..14).contains(&runtime.major);
    errors[1].push(error(pause, if is_nested { times.max().unwrap_or(0) } else { times.sum() }));
}

/// If no watchpoint is available, the counters are polled: several stops between two polls are
/// reported in one record, with their number and the sum of their times.
#[test]
fn counters_are_polled_if_no_watchpoint_is_free() {
    run_beside_others();
    let Some(runtime) = of_unstable("sid-8") else { return };
    let mut load = Load::start(runtime, &format!("-XX:+UseParallelGC {NO_TIMER} {FLAGS_OF_JDK_8}"));
    let pid = load.pid();
    let vm_thread = threads(pid).into_iter().find(|(_, name)| name == "VM Thread");
    let (vm_thread, _) = vm_thread.expect("the VM thread");
    // Occupies all watchpoints that are available, at most 64.
    let taken: Vec<_> = std::iter::from_fn(|| occupy_watchpoint(vm_thread)).take(64).collect();
    assert!((1..64).contains(&taken.len()), "{} watchpoints", taken.len());
    let tool = Tool::start("javagc", &["-p", &pid.to_string(), "-j"]);
    let begin = load.log().len();
    load.run(2.5);
    let output = tool.interrupt();
    drop(taken);
    assert!(output.status.success(), "{}", output.stderr);
    assert!(output.stderr.contains("polled every 5 ms"), "{}", output.stderr);
    let stops = gclog::stops_of_jdk_8(&load.quit()[begin..]);
    let logged: Vec<_> = stops.iter().flat_map(|stop| &stop.collections).collect();
    let records = output.json();
    let reported_stops: Vec<_> = records.iter().filter(|r| r["type"] == "pause").collect();
    let sum = |name: &str| reported_stops.iter().filter_map(|r| r[name].as_u64()).sum::<u64>();
    assert_eq!(sum("collections"), logged.len() as u64, "{}", output.stdout);
    let pause_ns: u64 = logged.iter().map(|c| c.pause_ns).sum();
    // The log's timestamps enclose those of the counters.
    assert!(sum("pause_ns").abs_diff(pause_ns) < pause_ns / 10, "{pause_ns}: {}", output.stdout);
    for record in &reported_stops {
        let number = |name: &str| record[name].as_u64();
        assert!(number("stopped_ns") >= number("pause_ns"), "{record}");
    }
    assert!(reported_stops.iter().any(|r| r["collections"] == 1), "{reported_stops:?}");
}

/// Occupies one of a thread's hardware watchpoints, if one is free.
fn occupy_watchpoint(thread: u32) -> Option<OwnedFd> {
    // struct perf_event_attr of perf_event_open(2) as in Linux 4.1, in 64-bit words.
    let mut attr = [0_u64; 14];
    let size = size_of_val(&attr) as u64;
    // type PERF_TYPE_BREAKPOINT; exclude_kernel; bp_type HW_BREAKPOINT_W, bp_addr, bp_len.
    (attr[0], attr[5], attr[6], attr[7], attr[8]) = (5 | size << 32, 1 << 5, 2 << 32, 0x1000, 8);
    // SAFETY: the kernel reads `size` bytes of `attr`, and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), thread, -1, -1, 0) };
    // SAFETY: a new descriptor, which has no other owner.
    i32::try_from(fd).ok().filter(|&fd| fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}
