//! javagc compared with the JVM's own log: every stop and every cycle, for each collector of each
//! runtime.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::ops::Range;

use jvmprobe_tests::{
    gclog::{self, Cycle, OldCollection, Stop},
    load::Load,
    run_beside_others,
    runtimes::{self, Runtime},
    slowness,
    tool::Tool,
};
use serde_json::Value;

/// Checks each collector of a runtime, one after the other.
fn check_runtime(name: &str) {
    run_beside_others();
    check_collectors(runtimes::named(name));
}

/// Checks each collector of a runtime that may be unavailable.
fn check_unstable(name: &str) {
    run_beside_others();
    if let Some(runtime) = runtimes::of_unstable(name) {
        check_collectors(runtime);
    }
}

fn check_collectors(runtime: &Runtime) {
    let collectors = runtime.collectors();
    assert!(collectors.len() >= 4, "{} has only {collectors:?}", runtime.name);
    for flags in collectors {
        check_collector(runtime, flags);
    }
}

fn check_collector(runtime: &Runtime, flags: &str) {
    // Shenandoah's log reports heap sizes only for full collections. With this flag, System.gc()
    // causes full collections.
    let full = flags.contains("Shenandoah").then_some(" -XX:-ExplicitGCInvokesConcurrent");
    // ZGC of JDK 11 needs a larger heap.
    let heap = (flags.contains("UseZGC") && runtime.major == 11).then_some(" -Xmx192m");
    check(runtime, &[flags, full.unwrap_or(""), heap.unwrap_or("")].concat());
}

/// The list of JVMs contains each collector that any JDK from 11 on has, each of the JDKs 11, 17, 21 and
/// 25, and a build without probes.
#[test]
fn every_logged_stop_is_reported() {
    run_beside_others();
    for (name, flags) in [
        ("temurin-11", "-XX:+UseConcMarkSweepGC"),
        ("temurin-11", "-XX:+UseParallelGC"),
        ("temurin-17", "-XX:+UseShenandoahGC"),
        ("temurin-21", "-XX:+UseSerialGC"),
        ("temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
        ("temurin-25", "-XX:+UseG1GC"),
        ("temurin-25", "-XX:+UseShenandoahGC -XX:ShenandoahGCMode=generational"),
        ("temurin-25", "-XX:+UseZGC"),
        ("musl-17", "-XX:+UseG1GC"),
        ("musl-17", "-XX:+UseZGC"),
    ] {
        check_collector(runtimes::named(name), flags);
    }
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_11() {
    check_runtime("temurin-11");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_17() {
    check_runtime("temurin-17");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_17_debian() {
    check_runtime("debian-17");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_21() {
    check_runtime("temurin-21");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_25() {
    check_runtime("temurin-25");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_26() {
    check_unstable("sid-26");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_27() {
    check_unstable("sid-27");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_28() {
    check_unstable("sid-28");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_17_musl_no_probes() {
    check_runtime("musl-17");
}

#[test]
#[ignore = "long: make test-all"]
fn every_logged_stop_is_reported_jdk_11_musl_no_probes() {
    check_runtime("musl-11");
}

/// The collector with the most kinds of stops.
#[test]
fn heap_sizes_match_the_log_jdk_8_cms() {
    run_beside_others();
    check_jdk_8(runtimes::named("zulu-8"), "-XX:+UseConcMarkSweepGC");
}

#[test]
#[ignore = "long: make test-all"]
fn heap_sizes_match_the_log_jdk_8_all_collectors() {
    run_beside_others();
    let runtime = runtimes::named("zulu-8");
    let collectors = runtime.collectors();
    assert_eq!(collectors.len(), 4, "Serial, Parallel, CMS, G1");
    for flags in collectors {
        check_jdk_8(runtime, flags);
    }
}

/// By default, the log of JDK 8 has neither stops nor timestamps of a clock that we can read. It has
/// heap sizes in KiB, which are enough to identify a collection.
fn check_jdk_8(runtime: &Runtime, flags: &str) {
    let title = format!("{} {flags}", runtime.name);
    let mut load = Load::start(runtime, flags);
    let pid = load.pid().to_string();
    let tool = Tool::start("javagc", &["-p", &pid, "-j"]);
    let begin = load.log().len();
    load.run(2.5);
    let log = load.log();
    let output = tool.interrupt();
    assert!(output.status.success(), "{title}: {} {}", output.status, output.stderr);
    load.quit();
    let logged = gclog::sizes_of_jdk_8(&log[begin..]);
    let records = output.json();
    let pauses: Vec<_> = records.iter().filter(|r| text(r, "type") == "pause").collect();
    assert!(logged.len() > 10, "{title}: the load makes only {} collections", logged.len());

    // G1's cleanup is logged with sizes, but fires no probe for a collection.
    let logged: Vec<_> = logged.iter().filter(|c| c.kind != "GC cleanup").collect();
    let mut left = &logged[..];
    // Logged collections that match no pause. Pauses that match no logged collection are accepted:
    // G1's remark, and collections in log lines into which two threads wrote.
    let mut other = Vec::new();
    for pause in &pauses {
        let mut next = collections_of(left, pause);
        // CMS's own thread may sweep while a full collection is about to begin. The log's sizes are read
        // at another time than those of the pause, so the two may then differ, and the logged collection
        // matches no pause. It is skipped if this pause matches the next logged collection.
        if let (0, [skipped, rest @ ..]) = (next, left)
            && collections_of(rest, pause) > 0
        {
            next = 1 + collections_of(rest, pause);
            other.push(skipped);
        }
        left = &left[next..];
    }
    // A CMS cycle may still be running when the load has ended.
    let (first, missing) = (left.first(), left.len());
    assert!(missing <= 1, "{title}: {missing} are not reported as logged, from {first:?} on");
    assert!(other.len() * 100 <= logged.len(), "{title}: not as logged: {other:?}");
    println!("{title}: {} pauses, {} collections in the log", pauses.len(), logged.len());
    if flags.contains("UseConcMarkSweepGC") {
        check_cms_pauses_within_cycles(&title, &records);
    } else if flags.contains("UseG1GC") {
        let begun = log[begin..].matches("concurrent-root-region-scan-start").count();
        let cycles = records.iter().filter(|r| text(r, "type") == "cycle").count();
        // One cycle may still be running.
        assert!(begun > 2 && begun.abs_diff(cycles) <= 1, "{title}: {cycles} of {begun} cycles");
    }
}

/// Asserts that each initial mark and each remark of CMS belongs to a cycle, and that no cycle has two
/// initial marks or two remarks.
fn check_cms_pauses_within_cycles(title: &str, records: &[Value]) {
    let cycles: Vec<_> = records
        .iter()
        .filter(|r| text(r, "type") == "cycle")
        .map(|r| number(r, "ts_ns")..number(r, "ts_ns") + number(r, "duration_ns"))
        .collect();
    let all = cycles.first().expect("a cycle").start..cycles.last().expect("a cycle").end;
    for kind in ["Initial_Mark", "Final_Remark"] {
        let marks = records.iter().filter(|r| r["op"].as_str().is_some_and(|op| op.contains(kind)));
        let marks: Vec<_> = marks.map(|r| number(r, "ts_ns")).collect();
        let of_cycle = |c: &Range<u64>| marks.iter().filter(|mark| c.contains(mark)).count();
        let counts: Vec<_> = cycles.iter().map(of_cycle).collect();
        assert!(counts.iter().all(|&count| count <= 1), "{title}: {kind} twice: {counts:?}");
        let inside = marks.iter().filter(|mark| all.contains(mark)).count();
        assert_eq!(counts.iter().sum::<usize>(), inside, "{title}: {kind} outside of cycles");
        // On a busy machine, full collections end many cycles before their remark.
        assert!(inside > if kind == "Initial_Mark" { 2 } else { 0 }, "{title}: {inside} {kind}");
        println!("{title}: {} cycles, {inside} with {kind}", cycles.len());
    }
}

#[test]
fn every_logged_stop_is_reported_without_perf_data() {
    run_beside_others();
    let runtime = runtimes::named("temurin-21");
    for flags in ["-XX:+UseG1GC -XX:-UsePerfData", "-XX:+UseSerialGC -XX:-UsePerfData"] {
        check(runtime, flags);
    }
}

/// If metaspace is short, the JVM's probe always reports a full collection. In G1, however, the
/// operation begins with a young collection, and a full one may follow. The log shows which ran.
#[test]
fn metaspace_collections_are_full_as_in_the_log() {
    run_beside_others();
    for (name, collector) in [
        ("temurin-17", "-XX:+UseG1GC"),
        ("temurin-21", "-XX:+UseSerialGC"),
        ("temurin-25", "-XX:+UseG1GC"),
    ] {
        let flags = format!("{collector} -Xmx200m -XX:MaxMetaspaceSize=48m");
        // On a busy machine, the load makes 8 stops in 6 s.
        check_program(runtimes::named(name), &flags, "MetaspaceLoad", 10.0);
    }
}

/// Returns how many collections at the beginning of `logged` a pause comprises. The heap size before
/// the pause must equal that before the first of these collections, and the heap size after the
/// pause must equal that after the last one. CMS may sweep between two of them.
fn collections_of(logged: &[&OldCollection], pause: &Value) -> usize {
    let is_first = |c: &&&OldCollection| c.before.is(number(pause, "heap_before"));
    let is_last = |c: &&OldCollection| c.after.is(number(pause, "heap_after"));
    let Some(first) = logged.first().filter(is_first) else { return 0 };
    let mut end = first.before;
    let continues_chain =
        |c: &&&OldCollection| c.before.count <= std::mem::replace(&mut end, c.after).count;
    let chain = logged.iter().take_while(continues_chain).count();
    let Some(last) = logged[..chain].iter().position(is_last) else { return 0 };
    // System.gc() may run a full collection right after a young one. If the full one frees nothing,
    // it belongs to this pause, too.
    let frees_nothing = |c: &&&OldCollection| {
        [c.before, c.after] == [logged[last].after; 2] && first.kind != c.kind
    };
    last + 1 + logged[last + 1..].iter().take_while(frees_nothing).count()
}

fn check(runtime: &Runtime, flags: &str) {
    check_program(runtime, flags, "GcLoad", 2.5);
}

fn check_program(runtime: &Runtime, flags: &str, program: &str, seconds: f64) {
    let title = format!("{} {flags} {program}", runtime.name);
    let mut load = Load::start_program(runtime, flags, program);
    let pid = load.pid().to_string();
    let tool = Tool::start("javagc", &["-p", &pid, "-j", "--safepoints"]);
    let attached_ns = jvmprobe_tests::proc::monotonic_ns();
    load.run(seconds);
    let done_ns = jvmprobe_tests::proc::monotonic_ns();
    // Waits for concurrent cycles that are still running, because the log contains their ends.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let output = tool.interrupt();
    let log = gclog::parse(&load.quit());
    assert!(output.status.success(), "{title}: {} {}", output.status, output.stderr);

    // The JVM was idle when the tool attached and detached. Stops outside the load (the JVM's own
    // timers) may or may not have been seen.
    let inside = |ns: u64| (attached_ns..done_ns).contains(&ns);
    let stops: Vec<_> = log.stops.iter().filter(|s| inside(s.begin_ns())).collect();
    let records = output.json();
    let of_type = |wanted: &[&str]| -> Vec<&Value> {
        let wanted = |r: &&Value| wanted.contains(&text(r, "type")) && inside(number(r, "ts_ns"));
        records.iter().filter(wanted).collect()
    };
    let reported = of_type(&["pause", "safepoint"]);
    assert!(stops.len() > 10, "{title}: the load makes only {} stops", stops.len());
    compare_stops(&title, runtime, flags, &stops, &reported);
    compare_cycles(&title, runtime, flags, &log.cycles, &of_type(&["cycle"]), inside);
    check_summary(&title, &records);
}

/// Returns whether the VM thread or a collector thread waited for a CPU so long that the reported times can differ from
/// those in the log.
fn has_waited(record: &Value) -> bool {
    record["cpu_wait_ns"].as_u64().is_some_and(|ns| ns > 25_000)
}

/// Counts of deviations that are accepted if they are rare.
#[derive(Default)]
struct Tally {
    causes: usize,
    right_causes: usize,
    short_pauses: usize,
    sizes: usize,
    wrong_sizes: Vec<String>,
}

/// Asserts that every stop in the log is reported once, and nothing else.
fn compare_stops(
    title: &str,
    runtime: &Runtime,
    flags: &str,
    stops: &[&Stop],
    reported: &[&Value],
) {
    let mut errors = Vec::new();
    let mut tally = Tally::default();
    let mut last_line_ns = 0;
    let mut left = reported.iter().peekable();
    for stop in stops {
        // The log's line about a stop is written after the stop has ended and before the next one
        // begins.
        if let Some(extra) = left.next_if(|r| end_ns(r) <= last_line_ns) {
            panic!("{title}: reported, but not in the log: {extra}\nbefore {stop:?}");
        }
        last_line_ns = stop.end_ns;
        let Some(record) = left.next_if(|r| number(r, "ts_ns") <= stop.end_ns) else {
            panic!("{title}: in the log, but not reported: {stop:?}\nnext: {:?}", left.peek());
        };
        compare_stop(title, runtime, flags, stop, record, &mut tally);
        let error_ns = number(record, "stopped_ns").abs_diff(stop.total_ns) as f64;
        // The error as a multiple of its bound, which is 2 % of the stop or 25 µs, whichever is
        // longer.
        let error = (error_ns / stop.total_ns as f64 / 0.02).min(error_ns / 25e3);
        errors.push((has_waited(record), error));
    }
    // A wait for a CPU may lie between the JVM's reading of the clock and ours. So stops with such a wait
    // are left out, unless there are too few others.
    let running = errors.iter().filter(|(has_waited, _)| !has_waited).count();
    let leaves_out = running > stops.len() / 4;
    errors.retain(|(has_waited, _)| !(leaves_out && *has_waited));
    let mut errors: Vec<_> = errors.into_iter().map(|(_, error)| error).collect();
    let extra: Vec<_> = left.collect();
    assert!(extra.is_empty(), "{title}: reported, but not in the log: {extra:?}");

    let Tally { causes: known, right_causes: right, short_pauses, sizes, wrong_sizes } = tally;
    let has_heap_sizes = !(flags.contains("ZGC") && runtime.major >= 17);
    assert_eq!(sizes > 0, has_heap_sizes, "{title}: sizes in the log");
    assert!(
        wrong_sizes.is_empty(),
        "{title}: of {sizes} sizes {} are wrong: {:#?}",
        wrong_sizes.len(),
        &wrong_sizes[..wrong_sizes.len().min(4)]
    );
    // If the VM thread is preempted between the JVM's reading of the clock and the probe, the two
    // times can be far apart. Not every such wait is long enough for `has_waited`.
    let accepted = stops.len() as f64 * slowness() / 50.0;
    assert!(short_pauses as f64 <= accepted, "{title}: {short_pauses} PAUSEs are too short");
    assert!(right * 100 >= known * 99, "{title}: only {right} of {known} causes are right");
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    // Nearly all errors must be below 10 % or 125 µs, five times the bound for the median. One stop
    // in fifty may exceed this limit, because the VM thread can be preempted between the JVM's
    // reading of the clock and ours. With JDK 11, one stop in ten may exceed it: JDK 11 does not
    // store the times of its stops, so javagc uses the times at which its probes are hit, and these
    // are later.
    let nearly_all = errors[errors.len() * if runtime.major >= 17 { 98 } else { 90 } / 100];
    // In builds of JDK 11 without probes, javagc traces functions instead. Their calls are further in
    // time from the begin and the end of a stop than hits of the probes would be. ZGC's stops are so
    // short that this difference is several times the bound.
    let (middle, most) = if runtime.musl && runtime.major < 17 { (4.0, 20.0) } else { (1.0, 5.0) };
    let (middle, most) = (middle * slowness(), most * slowness());
    assert!(
        median <= middle,
        "{title}: STOPPED is off in the median ({median:.2} of 2 % or 25 us)"
    );
    assert!(nearly_all <= most, "{title}: STOPPED is off ({nearly_all:.2} of 2 % or 25 us)");
    println!(
        "{title}: {} stops, {right}/{known} causes, {sizes} sizes, {} without a wait for a CPU, error median {median:.3}, nearly all {nearly_all:.3}, worst {:.3} (of 2 % or 25 us)",
        stops.len(),
        running,
        errors[errors.len() - 1],
    );
}

fn compare_stop(
    title: &str,
    runtime: &Runtime,
    flags: &str,
    stop: &Stop,
    record: &Value,
    tally: &mut Tally,
) {
    let context = format!("{title}: {stop:?}\n{record}");
    assert_eq!(text(record, "type") == "pause", is_gc(stop), "{context}");
    // JDK 11 logs a safepoint with several operations under the name of the first one, and a
    // safepoint may have no operation. For Shenandoah, it logs other names than javagc reports.
    if runtime.major >= 17
        || is_gc(stop) && number(record, "operations") == 1 && !flags.contains("Shenandoah")
    {
        assert_eq!(text(record, "op"), stop.op, "{context}");
    } else if is_gc(stop) {
        assert!(record["op"].is_string(), "{context}");
    }
    if !is_gc(stop) {
        return;
    }
    // Number of collections in the log. It is at least one, because stops without any were skipped
    // above.
    let logged = stop.collections.len().max(1) as u64;
    let no_perf_data = flags.contains("-UsePerfData");
    if !(no_perf_data && flags.contains("UseG1GC")) {
        assert_eq!(number(record, "collections"), logged, "{context}");
    }
    if !no_perf_data {
        let full = stop.collections.iter().any(gclog::Collection::is_full);
        assert_eq!(record["full"], full, "{context}");
    }
    let pause = number(record, "pause_ns");
    // In JDK 11 collections nest: the failed young collection contains the full one.
    let logged_pause = stop.collections.iter().map(|c| c.pause_ns).max().unwrap_or(0);
    assert!(pause <= number(record, "stopped_ns"), "{context}");
    let is_short = pause + 100_000 + logged_pause / 10 < logged_pause;
    tally.short_pauses += usize::from(is_short && !has_waited(record));
    assert!(number(record, "ttsp_ns") <= number(record, "stopped_ns"), "{context}");
    // With ZGC of JDK 17 and later, javagc attaches no probe within a pause: the JVM records the
    // times of its last stop, and the operation's name shows that the stop is a pause. So there are
    // no heap sizes.
    if flags.contains("ZGC") && runtime.major >= 17 {
        assert!(record["heap_before"].is_null() && record["heap_after"].is_null(), "{context}");
    } else {
        check_heap(stop, record, tally);
    }
    if let Some(cause) = stop.collections.first().and_then(|c| c.cause.as_deref())
        && !no_perf_data
        && names_a_cause(&stop.collections[0].kind)
    {
        tally.causes += 1;
        tally.right_causes += usize::from(record["cause"] == cause);
    }
}

/// Both sizes agree with the log, rounded down to its unit. JDK 11 logs a full collection inside
/// the failed young one, so the log's line about the full collection comes first.
fn check_heap(stop: &Stop, record: &Value, tally: &mut Tally) {
    let first = stop.collections.iter().min_by_key(|c| c.id);
    let last = stop.collections.iter().max_by_key(|c| c.id);
    let (Some(first), Some(last)) = (first, last) else {
        return;
    };
    // ZGC may allocate pages when it relocates roots in a pause, and the collector of the other
    // generation may free pages at the same time. So the logged size only has to lie between the two
    // reported ones.
    if let Some(used) = first.used {
        tally.sizes += 1;
        let mut bounds = ["heap_before", "heap_after"].map(|f| number(record, f) / used.unit);
        bounds.sort_unstable();
        if !(bounds[0]..=bounds[1]).contains(&used.count) {
            tally.wrong_sizes.push(format!("{used:?} is not between: {stop:?}\n{record}"));
        }
    }
    let (Some((before, _)), Some((_, after))) = (first.heap, last.heap) else { return };
    for (field, logged) in [("heap_before", before), ("heap_after", after)] {
        tally.sizes += 1;
        if !record[field].as_u64().is_some_and(|bytes| logged.is(bytes)) {
            tally.wrong_sizes.push(format!("{field} is not {logged:?}: {stop:?}\n{record}"));
        }
    }
}

/// Returns whether the last parentheses in a log line contain a cause, not the name of a phase.
fn names_a_cause(kind: &str) -> bool {
    kind.starts_with("Pause Young") || kind.starts_with("Pause Full")
}

fn is_gc(stop: &Stop) -> bool {
    !stop.collections.is_empty()
}

/// Asserts that each cycle that began and ended during the trace is reported once.
fn compare_cycles(
    title: &str,
    runtime: &Runtime,
    flags: &str,
    logged: &[Cycle],
    reported: &[&Value],
    inside: impl Fn(u64) -> bool,
) {
    let ends: Vec<_> =
        reported.iter().map(|r| number(r, "ts_ns") + number(r, "duration_ns")).collect();
    if flags.contains("Shenandoah") {
        // This log has no line for the end of a cycle.
        assert!(!reported.is_empty(), "{title}: no cycle reported");
        return;
    }
    if runtime.musl && flags.contains("ZGC") {
        // In JDK 11 the cycle begins and ends inside pauses, and without probes only pauses are
        // traced.
        let none = runtime.major == 11;
        assert_eq!(reported.is_empty(), none, "{title}: {} cycles", reported.len());
        return;
    }
    let is_inside = |cycle: &&Cycle| inside(cycle.begin_ns) && inside(cycle.end_ns);
    let logged: Vec<_> = logged.iter().filter(is_inside).collect();
    // For ZGC of JDK 11, the reported cycle ends when relocation starts.
    let to_the_end = !(runtime.major == 11 && flags.contains("ZGC"));
    for cycle in logged.iter().filter(|_| to_the_end) {
        // The end is logged before or after the probe, usually within a millisecond. But the thread may have to wait for a
        // processor in between.
        let tolerance_ns = (20e6 * slowness()) as u64;
        let near = ends.iter().filter(|end| end.abs_diff(cycle.end_ns) < tolerance_ns).count();
        assert!(near >= 1, "{title}: in the log, but not reported: {cycle:?}");
    }
    let missing =
        logged.len().abs_diff(reported.iter().zip(&ends).filter(|(_, end)| inside(**end)).count());
    assert!(missing <= 1, "{title}: {} cycles logged, {} reported", logged.len(), reported.len());
    println!("{title}: {} cycles", logged.len());
}

/// Asserts that the summary agrees with the individual records.
fn check_summary(title: &str, records: &[Value]) {
    let last = records.last().expect("a summary");
    assert_eq!(text(last, "type"), "summary", "{title}");
    let pauses: Vec<_> = records.iter().filter(|r| text(r, "type") == "pause").collect();
    let sum = |field| pauses.iter().map(|r| number(r, field)).sum::<u64>();
    assert_eq!(number(last, "pauses"), pauses.len() as u64, "{title}: {last}");
    assert_eq!(number(last, "collections"), sum("collections"), "{title}");
    assert_eq!(number(last, "stopped_ns"), sum("stopped_ns"), "{title}");
    assert_eq!(number(last, "pause_ns"), sum("pause_ns"), "{title}");
    assert_eq!(number(last, "lost"), 0, "{title}");
}

fn end_ns(record: &Value) -> u64 {
    number(record, "ts_ns") + number(record, "stopped_ns")
}

fn number(record: &Value, field: &str) -> u64 {
    record[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {record}"))
}

fn text<'a>(record: &'a Value, field: &str) -> &'a str {
    record[field].as_str().unwrap_or_else(|| panic!("no text {field} in {record}"))
}
