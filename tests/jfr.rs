//! Output files in JDK Flight Recorder's format, read by the JDK's own `jfr` command.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::BufWriter,
    path::Path,
    process::Command,
    thread::sleep,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use jvmprobe_tests::{
    folded,
    jfr::{self, Event},
    load::Load,
    run_beside_others,
    runtimes::{Runtime, named},
    synthetic::{self, Dice},
    tool::{self, Output, Tool, binary},
    windows::{SAMPLES, folder, synthetic_window},
};
use jvmprobed::{
    store::Store,
    window::{Identity, JvmData, Window},
};
use libjvmprobe::{
    render::formats::jfr::recording::Recording,
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
    },
    trace::pauses::record::{Record, Stop},
};
use serde_json::Value;

/// The runtimes whose `jfr` commands read the files.
fn readers() -> [&'static Runtime; 2] {
    ["temurin-21", "temurin-25"].map(named)
}

fn of<'a>(events: &'a [Event], kind: &'a str) -> impl Iterator<Item = &'a Event> {
    events.iter().filter(move |event| event.kind == kind)
}

/// Sums up a number of each stack.
fn sums<'a>(
    events: impl Iterator<Item = &'a Event>,
    number: impl Fn(&Event) -> u64,
) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for event in events {
        *sums.entry(event.folded()).or_default() += number(event);
    }
    sums
}

/// Reads folded stacks, without the name of the process.
fn folded_sums(file: &Path) -> BTreeMap<String, u64> {
    folded_sums_below(1, file)
}

/// Reads folded stacks, without the outermost parts of each.
fn folded_sums_below(parts: usize, file: &Path) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for line in folded::parse(&fs::read_to_string(file).unwrap()) {
        *sums.entry(line.frames[parts..].join(";")).or_default() += line.count;
    }
    sums
}

fn wrote(output: &Output, file: &str) {
    assert!(output.status.success() && output.stderr.contains(file), "{output:?}");
}

/// Returns the counts of the table that a view prints, by their names in the first column.
fn view(runtime: &Runtime, name: &str, file: &Path) -> BTreeMap<String, String> {
    let text = jfr::run(runtime, &["view", "--width", "300", name], file);
    let rows = text.lines().skip_while(|line| !line.starts_with("---")).skip(1);
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    };
    rows.filter_map(row).collect()
}

#[test]
fn several_events_of_javaprof_have_equal_counts_in_one_file() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (jfr_path, folded_path) = (path("a.jfr"), path("a.folded"));
    binary("javaprof");
    let mut load = Load::start_program(named("temurin-17"), "-Xmx64m", "EventLoad");
    let pid = load.pid().to_string();
    let mut args = vec!["-q", "-p", &pid];
    for event in ["cpu", "wall", "exceptions", "threads", "classes", "deopt", "page-faults"] {
        args.extend(["-e", event]);
    }
    let (jfr_arg, folded_arg) = (jfr_path.to_str().unwrap(), folded_path.to_str().unwrap());
    args.extend(["-o", jfr_arg, "-o", folded_arg]);
    let tool = Tool::start("javaprof", &args);
    for command in ["throw 300", "start 20", "define 10", "touch 30", "surprise 5", "spin 300"] {
        load.ask(command);
    }
    wrote(&tool.interrupt(), "a.jfr");
    for reader in readers() {
        let events = jfr::read(reader, &jfr_path);
        let cpu = folded_sums(&path("a.cpu.folded"));
        assert_eq!(sums(of(&events, "jdk.ExecutionSample"), |_| 1), cpu);
        let wall = |event: &Event| event.duration_ns("timeSpan");
        let walls = sums(of(&events, "profiler.WallClockSample"), wall);
        assert_eq!(walls, folded_sums(&path("a.wall.folded")));
        let page_faults = |event: &Event| event.number("weight");
        let samples = sums(of(&events, "jvmprobe.EventSample"), page_faults);
        assert_eq!(samples, folded_sums(&path("a.page-faults.folded")));
        // Labels are fields of these events, and native code at the innermost end is left out.
        for (kind, class, file) in [
            ("jdk.JavaExceptionThrow", "thrownClass", "a.exceptions.folded"),
            ("jdk.ThreadStart", "threadClass", "a.threads.folded"),
            ("jdk.ClassDefine", "definedClass", "a.classes.folded"),
        ] {
            let mut classes = BTreeMap::<String, u64>::new();
            for event in of(&events, kind) {
                assert!(event.text("startTime") > "2020" && !event.folded().is_empty());
                let innermost = event.folded().rsplit(';').next().unwrap().to_owned();
                assert!(innermost.contains('.') && !innermost.contains("::"), "{innermost}");
                *classes.entry(event.class(class).replace('/', ".")).or_default() += 1;
            }
            let mut expected = BTreeMap::<String, u64>::new();
            for (stack, count) in folded_sums(&path(file)) {
                *expected.entry(stack.rsplit(';').next().unwrap().to_owned()).or_default() += count;
            }
            assert_eq!(classes, expected, "{kind}");
            assert!(classes.values().sum::<u64>() > 0, "{kind}");
        }
        assert_eq!(of(&events, "jdk.ThreadStart").count(), 20);
        let jvms: Vec<_> = of(&events, "jdk.JVMInformation").collect();
        assert_eq!((jvms.len(), jvms[0].number("pid").to_string()), (1, pid.clone()));
        assert!(jvms[0].text("jvmArguments").contains("-Xmx64m"), "{jvms:?}");
        assert_eq!(jvms[0].text("javaArguments"), "EventLoad");
        assert_eq!(of(&events, "jdk.OSInformation").count(), 1);
        let deopt: u64 = folded_sums(&path("a.deopt.folded")).values().sum();
        let traps: Vec<_> = of(&events, "jdk.Deoptimization").collect();
        assert_eq!(traps.len() as u64, deopt);
        let is_rare_branch = |event: &&&Event| event.text("reason") == "unstable_if";
        let rare = traps.iter().find(is_rare_branch).unwrap();
        assert!(rare.folded().contains("EventLoad.loops"), "{rare:?}");
        let mut tops = BTreeMap::<String, u64>::new();
        for (stack, count) in &cpu {
            *tops.entry(stack.rsplit(';').next().unwrap().to_owned()).or_default() += count;
        }
        let (top, count) = tops.iter().max_by_key(|(_, count)| **count).unwrap();
        let methods = view(reader, "hot-methods", &jfr_path);
        let has_top = |(name, samples): (&String, &String)| {
            name.contains(top.trim_end_matches("_[k]")) && *samples == count.to_string()
        };
        assert!(methods.iter().any(has_top), "{top} {count}: {methods:?}");
    }
}

#[test]
fn class_initializers_and_thread_dumps_have_equal_counts() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let [jfr_path, folded_path] = ["a.jfr", "a.folded"].map(|name| dir.path().join(name));
    let [jfr_arg, folded_arg] = [&jfr_path, &folded_path].map(|path| path.to_str().unwrap());
    binary("javaclass");
    let mut load = Load::start_program(named("temurin-17"), "", "UseLoad");
    let pid = load.pid().to_string();
    // The event, and the number of names that precede the stacks in the folded ones: process and thread.
    let check = |event: &str, names: usize| {
        for reader in readers() {
            let events = jfr::read(reader, &jfr_path);
            let samples = of(&events, "jvmprobe.EventSample");
            let samples = samples.inspect(|sample| assert_eq!(sample.text("event"), event));
            let counts = sums(samples, |event| event.number("weight"));
            assert!(counts.len() > 2, "{counts:?}");
            assert_eq!(counts, folded_sums_below(names, &folded_path));
        }
    };
    let tool = Tool::start("javaclass", &["-p", &pid, "-q", "-o", jfr_arg, "-o", folded_arg]);
    load.ask("go");
    wrote(&tool.interrupt(), "a.jfr");
    check("init", 2);
    let args = ["-p", &pid, "-o", jfr_arg, "-o", folded_arg];
    wrote(&tool::run("javastack", &args), "a.jfr");
    check("threads", 1);
}

/// A pause or a VM operation: start and duration in nanoseconds, name and cause.
type Phase = (u64, u64, String, String);

fn phases(events: &[Event], kind: &str) -> Vec<Phase> {
    let phase = |event: &Event| {
        let name = [event.text("name"), event.text("operation")].concat();
        (event.start_ns(), event.duration_ns("duration"), name, event.text("cause").to_owned())
    };
    let mut phases: Vec<_> = of(events, kind).map(phase).collect();
    phases.sort();
    phases
}

/// Two events with starts that differ by at most this many nanoseconds are the same.
const SAME: u64 = 20_000_000;

/// Compares each of our events with the JVM's event of the same start. `collections` returns the number of collections in
/// an event of ours. If there are several, the JVM has an event for each, and the further ones must lie within our event.
fn compare_phases(
    title: &str,
    kind: &str,
    ours: &[Phase],
    theirs: &[Phase],
    collections: impl Fn(&Phase) -> u64,
) {
    let mut left = theirs.iter().peekable();
    for own in ours {
        let count = collections(own);
        let group: Vec<_> = left.by_ref().take(count as usize).collect();
        let context =
            || format!("{title}: {kind}: {own:?} {group:?}, next: {:?}", left.clone().next());
        assert_eq!(group.len() as u64, count, "{}", context());
        assert!(own.0.abs_diff(group[0].0) < SAME, "{}", context());
        let is_inside =
            |other: &&&Phase| (own.0..own.0 + own.1 + SAME).contains(&(other.0 + SAME / 2));
        assert_eq!(group[1..].iter().filter(is_inside).count(), group.len() - 1, "{}", context());
        // The JVM names the phases of a pause; their names are not those of operations.
        // An event with several collections has the name of the full one and the cause of the first.
        let has_name = group.iter().any(|other| other.2 == own.2);
        let is_named_alike = has_name && group[0].3 == own.3;
        assert!(kind == "jdk.GCPhasePause" || is_named_alike, "{}", context());
    }
    assert_eq!(left.next(), None, "{title}: {kind}: the last of ours: {:?}", ours.last());
}

/// Compares javagc's recording with the one that the JVM made of the same time.
fn check_collections(runtime: &Runtime, flags: &str) {
    let dir = tempfile::tempdir().unwrap();
    let [own, theirs] = ["own.jfr", "jvm.jfr"].map(|name| dir.path().join(name));
    binary("javagc");
    let start = format!(
        "-Xlog:jfr+startup=off -XX:StartFlightRecording:filename={},settings=profile",
        theirs.display()
    );
    let mut load = Load::start(runtime, &format!("{flags} {start}"));
    let pid = load.pid().to_string();
    let args = ["-j", "--safepoints", "-p", &pid, "-o", own.to_str().unwrap()];
    let tool = Tool::start("javagc", &args);
    load.run(2.0);
    // A concurrent cycle may still be running.
    sleep(Duration::from_millis(500));
    // Events after this time may be missing in our file.
    let end_ns = u64::try_from(Timestamp::now().as_nanosecond()).unwrap() - SAME;
    let output = tool.interrupt();
    wrote(&output, "own.jfr");
    load.quit();
    let records = output.json();
    let summary = records.last().unwrap();
    assert_eq!(summary["lost"], 0, "{flags}: {summary}");
    let printed = |name: &'static str| records.iter().filter(move |record| record["type"] == name);
    // Begin of each pause, when all threads have stopped, and its number of collections.
    let pauses = printed("pause").map(|record| {
        let time: Timestamp = record["time"].as_str().unwrap().parse().unwrap();
        let ttsp_ns = record["ttsp_ns"].as_u64().unwrap();
        let begin_ns = u64::try_from(time.as_nanosecond()).unwrap() + ttsp_ns;
        (begin_ns, record["collections"].as_u64().unwrap())
    });
    let pauses: Vec<_> = pauses.collect();
    let (ours, all) = (jfr::read(runtime, &own), jfr::read(runtime, &theirs));
    for kind in ["jdk.GarbageCollection", "jdk.GCPhasePause", "jdk.ExecuteVMOperation"] {
        let mut ours = phases(&ours, kind);
        ours.retain(|(start, ..)| *start < end_ns);
        // The JVM's recording is longer, and also has VM operations that run without a safepoint.
        let period = ours[0].0.saturating_sub(SAME)..end_ns;
        let at_safepoints = all.iter().filter(|event| !event.is_false("safepoint"));
        let at_safepoints: Vec<_> = at_safepoints.cloned().collect();
        let theirs: Vec<_> = phases(&at_safepoints, kind)
            .into_iter()
            .filter(|(start, ..)| period.contains(start))
            .collect();
        // A concurrent cycle that has not ended with the trace is only in the JVM's recording.
        let is_cycle = |phase: &Phase| ["G1Old", "Z"].contains(&phase.2.as_str());
        let (cycles, ours): (Vec<_>, Vec<_>) = ours.into_iter().partition(is_cycle);
        let (their_cycles, theirs): (Vec<_>, Vec<_>) = theirs.into_iter().partition(is_cycle);
        let collections = |phase: &Phase| {
            if kind == "jdk.ExecuteVMOperation" {
                return 1;
            }
            let nearest = pauses.iter().min_by_key(|(begin_ns, _)| begin_ns.abs_diff(phase.0));
            let (begin_ns, count) = nearest.unwrap();
            assert!(begin_ns.abs_diff(phase.0) < 1000, "{flags}: not printed: {phase:?}");
            *count
        };
        compare_phases(flags, kind, &ours, &theirs, collections);
        for a in &cycles {
            // The cause that javagc reads may already be that of a collection during the cycle.
            let is_same = |b: &Phase| a.0.abs_diff(b.0) < SAME && a.2 == b.2;
            assert!(their_cycles.iter().any(is_same), "{flags}: {a:?} {their_cycles:?}");
        }
        assert!(their_cycles.len() <= cycles.len() + 1, "{flags}: {cycles:?} {their_cycles:?}");
    }
    check_description(&ours, &all, flags);
    let safepoints = of(&ours, "jdk.SafepointEnd").count();
    let stops = (pauses.len(), printed("safepoint").count());
    assert_eq!(safepoints, stops.0 + stops.1, "{flags}: {stops:?}");
    let heap = |events: &[Event]| -> Vec<_> {
        let of = of(events, "jdk.GCHeapSummary");
        of.map(|event| (event.start_ns(), event.text("when").to_owned(), event.number("heapUsed")))
            .collect()
    };
    let (ours_used, theirs_used) = (heap(&ours), heap(&all));
    assert!(ours_used.len() > 2);
    let differ: Vec<_> = ours_used
        .iter()
        .filter(|own| {
            let is_same = |other: &&(u64, String, u64)| {
                // The thread may have waited for a CPU between the JVM's reading and ours.
                own.0.abs_diff(other.0) < 5 * SAME && (&own.1, own.2) == (&other.1, other.2)
            };
            !theirs_used.iter().any(|other| is_same(&other))
        })
        .collect();
    // G1 measures its used heap at another instant than the event. The threads of ZGC may allocate or free a
    // page between our reading and the JVM's, while the application is stopped.
    let allowed = match flags {
        "-XX:+UseG1GC" => ours_used.len(),
        "-XX:+UseZGC" => ours_used.len() / 20,
        _ => 0,
    };
    assert!(differ.len() <= allowed, "{flags}: {} {differ:?} {theirs_used:?}", ours_used.len());
    let pauses = phases(&ours, "jdk.GCPhasePause").len();
    let text = jfr::run(runtime, &["view", "gc-pauses"], &own);
    assert!(text.contains(&format!("Number of Pauses: {pauses}")), "{text}");
    // The other views must accept the file.
    for name in ["gc", "safepoints", "vm-operations", "gc-pause-phases", "jvm-information"] {
        let text = jfr::run(runtime, &["view", name], &own);
        assert!(!text.contains("Can't find") && !text.contains("No events"), "{name}: {text}");
    }
}

/// Asserts that a recording describes the JVM like the JVM's own recording.
fn check_description(ours: &[Event], theirs: &[Event], title: &str) {
    let facts = |events: &[Event]| -> Vec<_> {
        let fields =
            ["jvmName", "jvmVersion", "jvmArguments", "jvmFlags", "javaArguments", "jvmStartTime"];
        let fact = |event: &Event| (fields.map(|f| event.text(f).to_owned()), event.number("pid"));
        of(events, "jdk.JVMInformation").map(fact).collect()
    };
    assert_eq!(facts(ours), facts(theirs), "{title}");
    let properties = |events: &[Event]| -> BTreeMap<_, _> {
        let property = |e: &Event| (e.text("key").to_owned(), e.text("value").to_owned());
        of(events, "jdk.InitialSystemProperty").map(property).collect()
    };
    let (ours, theirs) = (properties(ours), properties(theirs));
    // The JVM's recording lacks the properties that the JDK's classes set.
    let of_classes = ["java.version"];
    for (key, value) in ours.iter().filter(|(key, _)| !of_classes.contains(&key.as_str())) {
        assert_eq!(Some(value), theirs.get(key), "{title}: {key}");
    }
    assert!(ours.contains_key("java.home") && ours.contains_key("java.class.path"), "{ours:?}");
}

/// A compilation: method, tier, whether it was entered in a loop, and whether it succeeded.
type Compilation = (String, u64, bool, bool);

#[test]
fn compilations_equal_those_of_the_jvms_own_recording() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let [own, theirs] = ["own.jfr", "jvm.jfr"].map(|name| dir.path().join(name));
    binary("javaprof");
    let runtime = named("temurin-21");
    // With few nodes, C2 cannot compile larger methods.
    let flags = format!(
        "-Xmx64m -XX:MaxNodeLimit=1000 -XX:NodeLimitFudgeFactor=400 -Xlog:jfr+startup=off \
         -XX:StartFlightRecording:filename={},jdk.Compilation#enabled=true,jdk.Compilation#threshold=0ms",
        theirs.display()
    );
    let mut load = Load::start_program(runtime, &flags, "EventLoad");
    let pid = load.pid().to_string();
    let args = ["-q", "-p", &pid, "-e", "compiles", "-o", own.to_str().unwrap()];
    let tool = Tool::start("javaprof", &args);
    for command in ["throw 30000", "define 300", "spin 300"] {
        load.ask(command);
    }
    wrote(&tool.interrupt(), "own.jfr");
    load.quit();
    let compilations = |file: &Path| -> BTreeMap<Compilation, u64> {
        let mut counts = BTreeMap::new();
        for event in of(&jfr::read(runtime, file), "jdk.Compilation") {
            let compilation = (
                event.method("method"),
                event.number("compileLevel"),
                event.boolean("isOsr"),
                event.boolean("succeded"),
            );
            *counts.entry(compilation).or_default() += 1;
        }
        counts
    };
    let (ours, theirs) = (compilations(&own), compilations(&theirs));
    // The JVM's recording is longer, but methods of the program are compiled only by these commands.
    let of_program = |counts: &BTreeMap<Compilation, u64>| -> BTreeMap<_, _> {
        let is_of_program = |(key, _): &(&Compilation, &u64)| key.0.starts_with("EventLoad.");
        counts.iter().filter(is_of_program).map(|(key, count)| (key.clone(), *count)).collect()
    };
    assert_eq!(of_program(&ours), of_program(&theirs));
    let failed = ours.iter().filter(|((.., is_successful), _)| !is_successful);
    let failed: Vec<_> = failed.collect();
    assert!(!failed.is_empty(), "{ours:?}");
    // The names of hidden classes have addresses in the JVM's recording only.
    let is_hidden = |(key, _): &(&Compilation, &u64)| key.0.contains("LambdaForm$");
    for (compilation, count) in ours.iter().filter(|entry| !is_hidden(entry)) {
        assert!(theirs.get(compilation).is_some_and(|all| all >= count), "{compilation:?}");
    }
    for reader in readers() {
        let text = jfr::run(reader, &["view", "--width", "200", "longest-compilations"], &own);
        assert!(text.contains(" true") && !text.contains("Can't find"), "{text}");
    }
}

#[test]
fn waits_equal_those_that_javawait_prints() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jfr");
    let mut load = Load::start_program(named("temurin-21"), "", "WaitLoad");
    let pid = load.pid().to_string();
    let args = ["-v", "-j", "--idle", "-p", &pid, "-o", path.to_str().unwrap()];
    let tool = Tool::start("javawait", &args);
    load.run(1.0);
    let output = tool.interrupt();
    wrote(&output, "a.jfr");
    // Event, thread, length, class or peer, and the thread that ended the wait.
    type WaitKey = (String, String, u64, String, String);
    let expected = output.json().into_iter().filter(|record| record["type"] == "wait");
    let expected = expected.map(|record| -> WaitKey {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (kind, relation) = match record["kind"].as_str().unwrap() {
            "monitor" => ("jdk.JavaMonitorEnter", "held"),
            "wait" => ("jdk.JavaMonitorWait", "woke"),
            "park" => ("jdk.ThreadPark", ""),
            "sleep" => ("jdk.ThreadSleep", ""),
            "pinned" => ("jdk.VirtualThreadPinned", ""),
            "socket read" => ("jdk.SocketRead", ""),
            "socket write" => ("jdk.SocketWrite", ""),
            "file read" => ("jdk.FileRead", ""),
            "file write" => ("jdk.FileWrite", ""),
            _ => ("jvmprobe.Wait", ""),
        };
        let on = match kind {
            "jdk.JavaMonitorEnter" | "jdk.JavaMonitorWait" | "jdk.ThreadPark" => &record["class"],
            "jvmprobe.Wait" => &record["kind"],
            _ => &Value::Null,
        };
        let is_ended_by = record["holder"]["relation"] == relation;
        let holder = if is_ended_by { text(&record["holder"]["thread"]) } else { String::new() };
        let length_ns = record["length_ns"].as_u64().unwrap();
        (kind.to_owned(), text(&record["thread"]), length_ns, text(on), holder)
    });
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    let kinds: BTreeSet<_> = expected.iter().map(|wait| &*wait.0).collect();
    assert!(kinds.len() > 4, "{kinds:?}");
    for reader in readers() {
        let events = jfr::read(reader, &path);
        let is_wait = |event: &&Event| event.text("duration").starts_with('P');
        let found = events.iter().filter(is_wait).map(|event| -> WaitKey {
            let class = ["monitorClass", "parkedClass"].map(|field| java_name(event.class(field)));
            let holder = ["previousOwner", "notifier"].map(|field| event.thread(field));
            let on = class.concat() + event.text("kind");
            let thread = event.thread("eventThread").to_owned();
            (event.kind.clone(), thread, event.duration_ns("duration"), on, holder.concat())
        });
        let mut found: Vec<_> = found.collect();
        found.sort();
        assert_eq!(found, expected);
        let stacks = of(&events, "jdk.JavaMonitorEnter").map(Event::folded);
        assert!(stacks.into_iter().all(|stack| stack.contains("WaitLoad.")));
        for name in ["contention-by-thread", "contention-by-class", "latencies-by-type"] {
            let text = jfr::run(reader, &["view", name], &path);
            assert!(!text.contains("Can't find") && !text.contains("No events"), "{name}: {text}");
        }
    }
}

#[test]
fn collections_equal_those_of_the_jvms_own_recording() {
    run_beside_others();
    for (name, flags) in [
        ("temurin-21", "-XX:+UseG1GC"),
        ("temurin-25", "-XX:+UseSerialGC"),
        ("temurin-25", "-XX:+UseParallelGC"),
        ("temurin-21", "-XX:+UseZGC"),
    ] {
        check_collections(named(name), flags);
    }
}

#[test]
fn allocation_by_class_has_the_bytes_that_javaobjnew_prints() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jfr");
    let mut load = Load::start_program(named("temurin-25"), "", "AllocLoad");
    let pid = load.pid().to_string();
    let args = ["-j", "-t", "--top", "100000", "-p", &pid, "-o", path.to_str().unwrap()];
    let tool = Tool::start("javaobjnew", &args);
    load.run(1.0);
    let output = tool.interrupt();
    wrote(&output, "a.jfr");
    let mut expected = BTreeMap::<String, u64>::new();
    for record in output.json().iter().filter(|record| record["type"] == "class") {
        let class = record["class"].as_str().unwrap().to_owned();
        *expected.entry(class).or_default() += record["bytes"].as_u64().unwrap();
    }
    expected.retain(|_, bytes| *bytes > 0);
    assert!(expected.len() > 3, "{expected:?}");
    for reader in readers() {
        let events = jfr::read(reader, &path);
        let mut classes = BTreeMap::<String, u64>::new();
        for event in of(&events, "jdk.ObjectAllocationSample") {
            let class = java_name(event.class("objectClass"));
            *classes.entry(class).or_default() += event.number("weight");
        }
        assert_eq!(classes, expected);
        let jvms: Vec<_> = of(&events, "jdk.JVMInformation").collect();
        assert_eq!((jvms.len(), jvms[0].text("javaArguments")), (1, "AllocLoad"));
        let shares = view(reader, "allocation-by-class", &path);
        let total: u64 = expected.values().sum();
        let (top, bytes) = expected.iter().max_by_key(|(_, bytes)| **bytes).unwrap();
        let share = format!("{:.2}%", *bytes as f64 * 100.0 / total as f64);
        assert_eq!(shares.get(top), Some(&share), "{shares:?}");
    }
}

/// Converts a class name in the form of class files to Java syntax.
fn java_name(class: &str) -> String {
    let base = class.trim_start_matches('[');
    let dimensions = class.len() - base.len();
    let name = match (dimensions, base) {
        (0, name) => name,
        (_, "Z") => "boolean",
        (_, "B") => "byte",
        (_, "C") => "char",
        (_, "S") => "short",
        (_, "I") => "int",
        (_, "J") => "long",
        (_, "F") => "float",
        (_, "D") => "double",
        (_, name) => name.trim_start_matches('L').trim_end_matches(';'),
    };
    name.replace('/', ".") + &"[]".repeat(dimensions)
}

#[test]
fn stored_windows_become_one_recording() {
    run_beside_others();
    let dir = folder();
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 3600;
    let mut store = Store::open(dir.path(), Duration::from_secs(48 * 3600), 1 << 40).unwrap();
    (0..200).for_each(|at| _ = store.put(synthetic_window(begin, at)));
    let path = dir.path().join("a.jfr");
    let show = |args: &[&str]| {
        let mut command = Command::new(binary("jvmprobed"));
        command.args(["show", "-q", "--since", "2h", "--dir"]).arg(dir.path());
        tool::run_command({
            command.args(args).arg("-o").arg(&path);
            command
        })
    };
    wrote(&show(&["--jvm", "^shop$"]), "a.jfr");
    for reader in readers() {
        let events = jfr::read(reader, &path);
        let methods = sums(of(&events, "jdk.ExecutionSample"), |_| 1);
        assert_eq!(methods["shop.Main.main;shop.Main.run"], 200 * SAMPLES);
        assert_eq!(methods["shop.Main.main;shop.Main.window"], (0..200).sum::<u64>());
        let allocated = sums(of(&events, "jdk.ObjectAllocationSample"), |e| e.number("weight"));
        assert_eq!(allocated, BTreeMap::from([("shop.Main.main".to_owned(), 200_000)]));
        let pauses = phases(&events, "jdk.GCPhasePause");
        assert_eq!(pauses.len(), 200);
        // Each pause begins in the seventh second of its window, when the safepoint is reached.
        for (at, (start_ns, duration_ns, ..)) in pauses.iter().enumerate() {
            let expected = (begin + at as u64 * 15 + 7) * 1_000_000_000 + 1000;
            assert_eq!((*start_ns, *duration_ns), (expected, 2_000_000));
        }
        let sampled: Vec<_> = of(&events, "jdk.ExecutionSample").map(Event::start_ns).collect();
        let in_slot = |start: &u64| {
            let second = start / 1_000_000_000 - begin;
            [3, 9].contains(&(second % 15))
        };
        assert!(sampled.iter().all(in_slot));
        let information: Vec<_> = of(&events, "jdk.JVMInformation").collect();
        assert_eq!(information.len(), 1);
        assert_eq!(information[0].text("jvmVersion"), "21");
        let loads: Vec<_> = of(&events, "jdk.CPULoad").collect();
        assert!(!loads.is_empty());
        for load in loads {
            // Two processors have 30 s in a window. User time is 6 s, system time 0.3 s.
            let shares = ["jvmUser", "jvmSystem", "machineTotal"].map(|field| load.share(field));
            assert_eq!(shares, [0.2, 0.01, 0.5].map(|share: f32| share.to_string()), "{load:?}");
        }
        let text = jfr::run(reader, &["view", "cpu-load"], &path);
        assert!(text.contains("20.00%") && text.contains("50.00%"), "{text}");
    }
    let output = show(&["--jvm", "^nothing$"]);
    assert!(!output.status.success() && output.stderr.contains("^nothing$"), "{output:?}");
    assert!(!path.exists());
}

/// Number of JVMs in the windows of [`busy_window`].
const JVMS: u32 = 10;

/// Returns a window of 15 seconds with busy JVMs. Each uses one CPU, sampled 19 times per second, with stacks of `stacks`.
fn busy_window(begin_ns: u64, stacks: &Profile, dice: &mut Dice) -> Window {
    const SECONDS: u64 = 15;
    let jvm = |pid: u32, dice: &mut Dice| {
        let profiles = [
            (Measure::Time, SECONDS * 19, 1),
            (Measure::Allocation, 60, 100_000_000),
            (Measure::Elapsed("wait".into()), 100, 150_000_000),
        ];
        let profiles = profiles.into_iter().map(|(measure, count, weight)| {
            let mut profile = Profile::of(measure);
            profile.hertz = 19;
            profile.slot_ns = 100_000_000;
            (profile.begin_unix_ns, profile.duration_ns) = (begin_ns, SECONDS * 1_000_000_000);
            for _ in 0..count {
                // Some stacks are far more frequent than others.
                let at = dice.below(stacks.samples.len() as u64);
                let at = dice.below(at + 1) as usize;
                let frames = stacks.samples[at].stack.iter().take(40);
                let frames = frames.map(|&id| profile.intern(stacks.frame(id).clone()));
                let stack = frames.collect();
                let slot = dice.below(SECONDS * 10) as u32;
                let tid = pid + dice.below(8) as u32;
                let sample = Sample::of(pid, format!("worker-{tid}").into(), tid, stack);
                let times = vec![(slot, weight)];
                profile.samples.push(Sample { count: weight, occurrences: 1, times, ..sample });
            }
            profile.merge(false);
            profile
        });
        let profiles: Vec<_> = profiles.collect();
        let pauses = (0..10).map(|at| {
            let time = Timestamp::from_nanosecond((begin_ns + at * 1_400_000_000).into());
            Record::Pause(Stop {
                time: format!("{:.9}", time.unwrap()),
                pid,
                collector: "G1".into(),
                op: Some("G1CollectForAllocation".into()),
                cause: Some("G1 Evacuation Pause".into()),
                collections: 1,
                ttsp_ns: Some(9000),
                pause_ns: Some(2_000_000),
                stopped_ns: 2_100_000,
                heap_before: Some(100 << 20),
                heap_after: Some(20 << 20),
                ..Stop::default()
            })
        });
        let name = format!("service-{pid}");
        let identity = Identity { pid, started_ns: 1, name, ..Identity::default() };
        let identity = identity.into();
        JvmData { identity, profiles, pauses: pauses.collect(), ..JvmData::default() }
    };
    let jvms = (0..JVMS).map(|number| jvm(1000 * (number + 1), dice)).collect();
    Window { begin_ns, end_ns: begin_ns + SECONDS * 1_000_000_000, jvms, ..Window::default() }
}

#[test]
#[ignore = "long: make test-all"]
fn day_of_ten_jvms_is_converted_with_little_memory() {
    // The store merges the windows that are older than an hour.
    const WINDOWS: u64 = 4 * 60 * 24;
    run_beside_others();
    let dir = folder();
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - WINDOWS * 15;
    let mut store = Store::open(dir.path(), Duration::from_secs(48 * 3600), 1 << 40).unwrap();
    let stacks = synthetic::compiler(2000, 600, 16).profile;
    let mut dice = Dice(7);
    for at in 0..WINDOWS {
        store.put(busy_window((begin + at * 15) * 1_000_000_000, &stacks, &mut dice));
    }
    let path = dir.path().join("a.jfr");
    let started = Instant::now();
    let output = Command::new("/usr/bin/time")
        .args(["-f", "%M"])
        .arg(binary("jvmprobed"))
        .args(["show", "-q", "--since", "25h", "--dir"])
        .arg(dir.path())
        .arg("-o")
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let elapsed = started.elapsed();
    let text = String::from_utf8(output.stderr).unwrap();
    let kilobytes: u64 = text.lines().last().unwrap().parse().unwrap();
    let bytes = fs::metadata(&path).unwrap().len();
    println!("{} MB in {elapsed:.1?}, with {} MB of memory", bytes >> 20, kilobytes >> 10);
    assert!(kilobytes < 150 << 10, "{kilobytes} kB");
    // Windows whose stacks exceed the store's limits keep their counts.
    let counts = jfr::counts(named("temurin-25"), &path);
    assert_eq!(counts["jdk.ExecutionSample"], WINDOWS * u64::from(JVMS) * 15 * 19);
    assert_eq!(counts["jdk.GCPhasePause"], WINDOWS * u64::from(JVMS) * 10);
}

/// Returns a profile with unusual names, numbers and times.
fn unusual_profile(dice: &mut Dice, number: u64) -> Profile {
    const PARTS: [&str; 20] = [
        "a",
        ".",
        "[",
        "]",
        ";",
        "/",
        "(",
        ")",
        "<init>",
        "",
        " ",
        "\u{1f600}",
        "ä",
        "\0",
        "L",
        "int",
        "$$Lambda",
        "::",
        ", ",
        "\u{202e}",
    ];
    const MEASURES: [&str; 6] = ["exceptions", "classes", "threads", "deopt", "page-faults", ""];
    let text = |dice: &mut Dice| -> String {
        let length = dice.below(8);
        let part = |_| PARTS[dice.below(PARTS.len() as u64) as usize];
        (0..length).map(part).collect::<String>().repeat(if number.is_multiple_of(50) {
            3000
        } else {
            1
        })
    };
    let measure = match dice.below(5) {
        0 => Measure::Time,
        1 => Measure::Allocation,
        2 => Measure::Elapsed(["wall", "compiles", "wait"][dice.below(3) as usize].into()),
        _ => Measure::Events(MEASURES[dice.below(6) as usize].into()),
    };
    let large = |dice: &mut Dice| match dice.below(4) {
        0 => u64::MAX >> dice.below(64),
        1 => 0,
        _ => dice.below(30),
    };
    let mut profile = Profile::of(measure.clone());
    profile.hertz = large(dice);
    profile.duration_ns = large(dice);
    profile.begin_unix_ns = 1_790_000_000_000_000_000 + dice.below(1 << 40);
    profile.slot_ns = large(dice) % (1 << 40);
    for _ in 0..dice.below(20) {
        let frame = Frame::new(Kind::ALL[dice.below(Kind::ALL.len() as u64) as usize], text(dice));
        let frame = if dice.below(2) == 0 { frame.of_module(&text(dice).into()) } else { frame };
        let line = large(dice) as u32;
        profile.intern(frame.at(Some(text(dice).into()), line));
    }
    let frames = profile.frames().len() as u64;
    for _ in 0..dice.below(12) {
        let depth = if frames == 0 { 0 } else { dice.below(40) };
        let stack = (0..depth).map(|_| dice.below(frames) as u32).collect();
        let (pid, tid) = (large(dice) as u32, large(dice) as u32);
        // Each count of CPU time is an event.
        let count = if measure == Measure::Time { dice.below(50) } else { large(dice) >> 4 };
        let times = (0..dice.below(4)).map(|_| (large(dice) as u32 >> 10, large(dice) >> 8));
        let times = times.collect();
        let occurrences = dice.below(40);
        let sample = Sample::of(pid, text(dice).into(), tid, stack);
        profile.samples.push(Sample { count, occurrences, times, ..sample });
    }
    profile
}

/// Writes recordings of unusual profiles, and compares the number of samples that `jfr` counts.
fn check_unusual(files: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jfr");
    for file in 0..files {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 + file);
        let mut recording = Recording::new(BufWriter::new(File::create(&path).unwrap()));
        let mut samples = 0;
        for number in 0..60 {
            let profile = unusual_profile(&mut dice, number);
            if profile.measure == Measure::Time {
                samples += profile.total();
            }
            recording.profile(&profile).unwrap();
            let begin_ns = profile.begin_unix_ns;
            recording.stop(begin_ns, Some(dice.below(9)), dice.below(1 << 50), Some("a")).unwrap();
        }
        recording.finish().unwrap();
        for reader in readers() {
            let counts = jfr::counts(reader, &path);
            assert_eq!(counts["jdk.SafepointEnd"], 60, "file {file}");
            assert_eq!(counts.get("jdk.ExecutionSample").copied().unwrap_or(0), samples);
            let text = jfr::run(reader, &["print", "--json"], &path);
            let events = serde_json::from_str::<Value>(&text);
            let events = events.unwrap_or_else(|e| panic!("file {file}: {e}"));
            let events = events["recording"]["events"].as_array().unwrap().len() as u64;
            // `jfr print` does not show the events with types and constants.
            let hidden = ["jdk.Metadata", "jdk.CheckPoint", "jdk.Checkpoint"];
            let all: u64 =
                counts.iter().filter(|(n, _)| !hidden.contains(&&***n)).map(|p| p.1).sum();
            assert_eq!(events, all, "file {file}");
            jfr::run(reader, &["print"], &path);
        }
    }
}

#[test]
fn unusual_profiles_are_accepted() {
    run_beside_others();
    check_unusual(3);
}

#[test]
#[ignore = "long: make test-all"]
fn many_unusual_profiles_are_accepted() {
    run_beside_others();
    check_unusual(100);
}

#[test]
fn long_recordings_consist_of_several_chunks() {
    run_beside_others();
    const COUNTS: [u64; 3] = [900_000, 200_000, 1];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.jfr");
    let mut profile = Profile::of(Measure::Time);
    (profile.hertz, profile.begin_unix_ns) = (99, 1 << 60);
    for (number, count) in (1..).zip(COUNTS) {
        let frame = profile.intern(Frame::new(Kind::Java, format!("a.Main.m{number}")));
        let sample = Sample::of(number, "main".into(), number, vec![frame]);
        profile.samples.push(Sample { count, ..sample });
    }
    let mut recording = Recording::new(BufWriter::new(File::create(&path).unwrap()));
    recording.profile(&profile).unwrap();
    recording.finish().unwrap();
    for reader in readers() {
        let summary = jfr::run(reader, &["summary"], &path);
        let chunks = summary.lines().find_map(|line| line.trim().strip_prefix("Chunks: "));
        assert!(chunks.unwrap().parse::<u32>().unwrap() > 1, "{summary}");
        let methods = view(reader, "hot-methods", &path);
        let count = |number: u32| methods[&format!("a.Main.m{number}()")].replace(',', "");
        assert_eq!([1, 2, 3].map(count), COUNTS.map(|count| count.to_string()));
    }
}
