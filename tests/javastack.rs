//! javastack agrees with what the JVM says about its own threads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{
    collections::BTreeMap,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    load::Load,
    run_beside_others,
    runtimes::{Runtime, named, of_unstable, selected},
    tool::{self, Output},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The exit status for a deadlock.
const DEADLOCK: i32 = 3;

/// JDKs that differ in the structures of threads, monitors and fields.
fn runtimes() -> Vec<&'static Runtime> {
    let mut all =
        selected(&["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25", "musl-17"]);
    all.extend(["sid-8", "sid-26", "sid-27", "sid-28"].into_iter().filter_map(of_unstable));
    all
}

fn start(runtime: &Runtime, flags: &str) -> Load {
    Load::start_program(runtime, flags, "LockLoad").in_background()
}

fn dump(load: &Load, more: &[&str]) -> Output {
    let pid = load.pid().to_string();
    tool::run("javastack", &[&["-p", &pid], more].concat())
}

/// A thread: state, class of the object that it waits for, owner of that object, frames, each as CLASS.METHOD:LINE,
/// innermost first, and the monitors that it holds, each as DEPTH:CLASS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ThreadText {
    state: String,
    class: String,
    owner: String,
    frames: Vec<String>,
    held: Vec<String>,
}

/// Returns the program's own threads as ThreadMXBean reports them.
fn reported(load: &mut Load) -> BTreeMap<String, ThreadText> {
    let answer = load.ask("dump");
    let threads = answer.split_ascii_whitespace().filter_map(|text| {
        let [name, state, class, owner, frames, held] = text.split(';').collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let list = |text: &str| {
            text.split(',').filter(|text| !text.is_empty()).map(str::to_owned).collect()
        };
        let (frames, held) = (list(frames), list(held));
        let [state, class, owner] = [state, class, owner].map(str::to_owned);
        Some((name.to_owned(), ThreadText { state, class, owner, frames, held }))
    });
    threads.collect()
}

/// Returns the threads of a JSON dump.
fn dumped(output: &Output) -> BTreeMap<String, ThreadText> {
    let dump = &output.json()[0]["threadDump"];
    let threads = dump["threadContainers"][0]["threads"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let frame = |frame: &Value| {
        let (name, location) = frame.as_str().unwrap().split_once('(').unwrap();
        // ThreadMXBean reports modules separately.
        let name = name.rsplit('/').next().unwrap();
        let line = location.rsplit_once(':').map_or("0", |(_, line)| line.trim_end_matches(')'));
        format!("{name}:{line}")
    };
    let held = |at: &Value| -> Vec<_> {
        let class = |lock: &Value| lock.as_str().unwrap().split('@').next().unwrap().to_owned();
        let locks = at["locks"].as_array().unwrap().iter();
        locks.map(|lock| format!("{}:{}", at["depth"], class(lock))).collect()
    };
    let one = |thread: &Value| {
        let state = text(&thread["state"]);
        let on = &thread["blocked_on"];
        let owner = text(&on["owner"]);
        let text = ThreadText {
            state: state.split(' ').next().unwrap_or_default().to_owned(),
            class: text(&on["class"]),
            owner: if owner == "none" { String::new() } else { owner.trim_matches('"').to_owned() },
            frames: thread["stack"].as_array().unwrap().iter().map(frame).collect(),
            held: thread["monitorsOwned"].as_array().unwrap().iter().flat_map(held).collect(),
        };
        (thread["name"].as_str().unwrap().to_owned(), text)
    };
    threads.iter().map(one).collect()
}

fn without_lines(thread: &ThreadText) -> ThreadText {
    let name = |frame: &String| frame.split(':').next().unwrap().to_owned();
    ThreadText { frames: thread.frames.iter().map(name).collect(), ..thread.clone() }
}

/// The threads that `LockLoad` starts for the command `block`, except the one that runs.
const BLOCKED: [&str; 11] = [
    "holder",
    "sleeper",
    "waiter",
    "timed-waiter",
    "parker",
    "timed-parker",
    "enterer",
    "enterer-2",
    "locker",
    "reader",
    "compiled-holder",
];

/// Compares states, locks, owners, frames and held monitors of all blocked threads.
fn check(runtime: &Runtime, flags: &str) {
    let name = format!("{} {flags}", runtime.name);
    let mut load = start(runtime, flags);
    load.ask("block");
    let output = dump(&load, &["-j"]);
    assert!(output.status.success(), "{name}: {output:?}");
    // When the JVM reports locks, it inflates them. The dump above shows the locks before that, and the dump
    // below shows them inflated.
    let truth = reported(&mut load);
    compare(&name, runtime, &truth, &dumped(&output));
    let output = dump(&load, &["-j"]);
    compare(&format!("{name}, inflated"), runtime, &truth, &dumped(&output));
    load.kill();
}

fn compare(
    name: &str,
    runtime: &Runtime,
    truth: &BTreeMap<String, ThreadText>,
    threads: &BTreeMap<String, ThreadText>,
) {
    // In JDK 28, which is not released yet, some methods have line tables that are not decoded.
    let has_lines = runtime.name != "sid-28";
    let comparable = |thread: &ThreadText| match has_lines {
        true => thread.clone(),
        false => without_lines(thread),
    };
    for thread in BLOCKED {
        let (dumped, truth) = (comparable(&threads[thread]), comparable(&truth[thread]));
        assert_eq!(dumped, truth, "{name}: {thread}");
    }
    let spinner = &threads["spinner"];
    assert_eq!(spinner.state, "RUNNABLE", "{name}");
    assert!(spinner.frames.iter().any(|f| f.starts_with("LockLoad.act:")), "{name}: {spinner:?}");
}

#[test]
fn states_locks_and_stacks_agree_with_the_jvm() {
    run_beside_others();
    for runtime in runtimes() {
        check(runtime, "");
    }
}

#[test]
fn each_collector_and_lock_mode_agrees_with_the_jvm() {
    run_beside_others();
    for flags in [
        "-XX:+UseSerialGC",
        "-XX:+UseParallelGC",
        "-XX:+UseShenandoahGC",
        "-XX:+UseZGC",
        "-Xint",
        "-XX:TieredStopAtLevel=1",
        "-Xmx40g",
    ] {
        check(named("temurin-21"), flags);
    }
    check(named("temurin-21"), "-XX:+UseZGC -XX:+ZGenerational");
    check(named("temurin-21"), "-XX:+UnlockExperimentalVMOptions -XX:LockingMode=0");
    check(named("temurin-21"), "-XX:+UnlockExperimentalVMOptions -XX:LockingMode=2");
    check(named("temurin-25"), "-XX:+UseZGC");
    check(named("temurin-25"), "-XX:+UseCompactObjectHeaders");
    check(named("temurin-25"), "-XX:+UnlockDiagnosticVMOptions -XX:+UseObjectMonitorTable");
    // Biased locking begins at the start of the JVM.
    check(named("temurin-11"), "-XX:BiasedLockingStartupDelay=0");
    check(named("temurin-17"), "-XX:-TieredCompilation");
}

#[test]
fn every_deadlock_is_found_and_no_other_one() {
    run_beside_others();
    for runtime in runtimes() {
        let name = &runtime.name;
        let mut load = start(runtime, "");
        load.ask("block");
        let output = dump(&load, &["-q"]);
        assert!(
            output.status.success() && !output.stdout.contains("deadlock"),
            "{name}: {output:?}"
        );
        for (number, size) in [2, 3, 6].into_iter().enumerate() {
            load.ask(&format!("deadlock {size}"));
            let output = dump(&load, &["-j"]);
            assert_eq!(output.status.code(), Some(DEADLOCK), "{name}: {output:?}");
            let records = output.json();
            let found = records[0]["threadDump"]["deadlocks"].as_array().unwrap();
            assert_eq!(found.len(), number + 1, "{name}: {found:?}");
            let cycle = found.iter().find(|cycle| cycle.as_array().unwrap().len() == size);
            let mut members: Vec<_> = cycle
                .unwrap()
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap())
                .collect();
            members.sort_unstable();
            let expected: Vec<_> = (0..size).map(|i| format!("dead-{number}-{i}")).collect();
            assert_eq!(members, expected, "{name}");
        }
        let text = dump(&load, &[]).stdout;
        assert_eq!(text.matches("Found one Java-level deadlock:").count(), 3, "{name}: {text}");
        assert!(text.ends_with("Found 3 deadlocks.\n"), "{name}: {text}");
        load.kill();
    }
}

#[test]
fn busy_locks_are_never_reported_as_deadlock() {
    run_beside_others();
    let mut load = start(named("temurin-21"), "");
    // Twice the time of the dumps, because the threads must not end before on a busy machine.
    load.send("busy 12");
    let pid = load.pid().to_string();
    let output = tool::run("javastack", &["-p", &pid, "-j", "0.05", "120"]);
    assert!(output.status.success(), "{} {}", output.status, output.stderr);
    let records = output.json();
    assert_eq!(records.len(), 120);
    let empty = |record: &Value| record["threadDump"]["deadlocks"].as_array().unwrap().is_empty();
    assert!(records.iter().all(empty));
    // If a dump shows that a thread waits for a lock, the owner is one of the other threads, or the dump
    // reports no owner or an unknown one. The first dump may be read while the threads start.
    let mut waiting = 0;
    for record in &records {
        let threads = record["threadDump"]["threadContainers"][0]["threads"].as_array().unwrap();
        for thread in threads.iter().filter(|t| t["name"].as_str().unwrap().starts_with("busy-")) {
            if let Some(owner) = thread["blocked_on"]["owner"].as_str() {
                waiting += 1;
                let is_known = owner.starts_with("\"busy-")
                    || owner == "none"
                    || owner.contains("unknown")
                    || owner.contains("started or exited");
                assert!(is_known, "{thread}");
                assert_ne!(owner.trim_matches('"'), thread["name"], "{thread}");
            }
        }
    }
    println!("{waiting} of {} threads wait for a lock", 4 * records.len());
    load.done();
    load.kill();
}

/// Returns the classes of the synchronizers that each thread owns, as ThreadMXBean reports them.
fn owned(load: &mut Load) -> BTreeMap<String, Vec<String>> {
    let answer = load.ask("owned");
    let threads = answer.split_ascii_whitespace().filter_map(|text| text.split_once(';'));
    let sorted = |classes: &str| {
        let classes = classes.split(',').filter(|class| !class.is_empty());
        let mut classes: Vec<_> = classes.map(str::to_owned).collect();
        classes.sort_unstable();
        classes
    };
    threads.map(|(name, classes)| (name.to_owned(), sorted(classes))).collect()
}

/// Returns the classes of the synchronizers that each thread owns, from a dump with `-l`.
fn listed(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found = BTreeMap::new();
    for thread in text.split("\n\"").skip(1) {
        let name = thread.split_once("\" ").unwrap().0.replace(' ', "_");
        let list = thread.split_once("\n\n   Locked ownable synchronizers:\n");
        let Some((_, list)) = list else { continue };
        let lines = list.lines().take_while(|line| line.starts_with("\t- ")).collect::<Vec<_>>();
        if lines != ["\t- None"] {
            let class = |line: &&str| {
                line.split_once("> (a ").unwrap().1.strip_suffix(')').unwrap().to_owned()
            };
            let mut classes: Vec<_> = lines.iter().map(class).collect();
            classes.sort_unstable();
            found.insert(name, classes);
        }
    }
    found
}

/// Compares the synchronizers that threads own with what the JVM reports, also after collections have moved them and
/// some were released since then.
fn check_owned(runtime: &Runtime, flags: &str) {
    let mut load = start(runtime, &format!("-Xmx128m {flags}"));
    for command in [
        "take 40",
        "collect",
        "release",
        "churn 3",
        "take 30",
        "churn 200",
        "release",
        "churn 1",
        "collect",
        "release",
        "churn 1",
    ] {
        load.ask(command);
        let output = dump(&load, &["-l"]);
        let name = format!("{} {flags} {command}", runtime.name);
        assert_eq!(output.stderr, "", "{name}");
        let truth = owned(&mut load);
        assert_eq!(truth.len(), 3, "{name}: {truth:?}");
        let mut listed = listed(&output.stdout);
        // With some JDKs, this thread owns synchronizers while it waits for the next command.
        listed.remove("main");
        assert_eq!(listed, truth, "{name}: {}", output.stdout);
    }
    load.kill();
}

#[test]
fn owned_synchronizers_are_those_of_the_jvm() {
    run_beside_others();
    for runtime in runtimes() {
        check_owned(runtime, "");
    }
    check_owned(named("temurin-17"), "-XX:+UseParallelGC");
}

#[test]
#[ignore = "long: make test-all"]
fn owned_synchronizers_of_each_collector_are_those_of_the_jvm() {
    run_beside_others();
    for name in ["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        for flags in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC"] {
            check_owned(named(name), flags);
        }
    }
    for name in ["temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        check_owned(named(name), "-XX:+UseShenandoahGC");
    }
    for collector in ["Serial", "Parallel", "G1", "Shenandoah"] {
        let flags = format!("-XX:+Use{collector}GC");
        check_owned(named("temurin-21"), &format!("{flags} -XX:-UseCompressedOops"));
        check_owned(named("temurin-25"), &format!("{flags} -XX:+UseCompactObjectHeaders"));
    }
}

#[test]
fn locks_option_lists_synchronizers_like_jstack() {
    run_beside_others();
    let mut load = start(named("temurin-17"), "");
    load.ask("block");
    let text = dump(&load, &["-l"]).stdout;
    let begin = text.find("\"holder\"").unwrap();
    let holder = &text[begin..][..text[begin..].find("\n\n\"").unwrap()];
    let (_, list) = holder.split_once("\n\n   Locked ownable synchronizers:\n").unwrap();
    let mut classes: Vec<_> = list.lines().map(|line| line.split("> ").nth(1).unwrap()).collect();
    classes.sort_unstable();
    let name = "(a java.util.concurrent.locks.Reentrant";
    let expected =
        [format!("{name}Lock$NonfairSync)"), format!("{name}ReadWriteLock$NonfairSync)")];
    assert_eq!(classes, expected, "{holder}");
    let json = dump(&load, &["-l", "-j"]).json();
    let all = json[0]["threadDump"]["threadContainers"][0]["threads"].as_array().unwrap();
    let of = |name: &str| all.iter().find(|t| t["name"] == name).unwrap()["synchronizers"].clone();
    assert_eq!(of("holder").as_array().unwrap().len(), 2, "{json:?}");
    assert_eq!(of("sleeper"), serde_json::json!([]));
    // The threads that jstack shows with "- None".
    let jstack = named("debian-17").java.with_file_name("jstack");
    let output = Command::new(jstack).arg("-l").arg(load.pid().to_string()).output().unwrap();
    let theirs = String::from_utf8(output.stdout).unwrap();
    let none = |text: &str| -> Vec<String> {
        let threads = text.split("\n\"").skip(1).filter(|thread| thread.contains("\n\t- None\n"));
        let mut names: Vec<_> =
            threads.map(|thread| thread.split_once("\" ").unwrap().0.to_owned()).collect();
        names.retain(|name| !name.contains("Attach Listener") && !name.contains("CompilerThread"));
        names.sort_unstable();
        names
    };
    assert!(none(&text).len() > 10, "{text}");
    assert_eq!(none(&text), none(&theirs));
    assert!(!dump(&load, &[]).stdout.contains("Locked ownable"));
    load.kill();
    // The heap of ZGC is not searched, so only the synchronizers for which threads wait are listed.
    let mut load = start(named("temurin-21"), "-XX:+UseZGC");
    load.ask("block");
    load.ask("take 4");
    let text = dump(&load, &["-l"]).stdout;
    assert_eq!(listed(&text).keys().collect::<Vec<_>>(), ["holder"], "{text}");
    let json = dump(&load, &["-l", "-j"]).json();
    assert_eq!(json[0]["threadDump"]["synchronizersIncomplete"], "the heap of ZGC is not searched");
    let line = "\nOwnable synchronizers for which no thread waits may be missing: the heap of ZGC is not searched\n\n";
    assert!(text.contains(line) && !text.contains("- None"), "{text}");
    load.kill();
}

/// The line about a lock names its owner, the lock for which that owner waits, and so on, down to the
/// connection from which the last owner reads.
#[test]
fn owner_of_a_lock_is_shown_with_what_it_waits_for() {
    run_beside_others();
    for runtime in runtimes() {
        let name = &runtime.name;
        let mut load = start(runtime, "");
        let address = load.ask("socket 3").trim().split(' ').next_back().unwrap().to_owned();
        let output = dump(&load, &["-q"]);
        assert!(output.status.success(), "{name}: {output:?}");
        let lines: Vec<_> = output.stdout.lines().collect();
        let [pool, last] = lines[..2] else { panic!("{name}: {output:?}") };
        assert!(pool.starts_with("3 threads wait for <0x"), "{name}: {pool}");
        let end = format!(
            "(a java.lang.StringBuffer), held by \"socket-owner\", which reads from {address}"
        );
        assert!(pool.ends_with(&end), "{name}: {pool}, {address}");
        assert!(last.starts_with("1 thread waits for <0x"), "{name}: {last}");
        let next = "(a java.lang.Object), held by \"socket-waiter-0\", which waits for <0x";
        assert!(last.contains(next) && last.ends_with(&end), "{name}: {last}");
        load.kill();
    }
}

/// Neither jstack nor jcmd can dump a stopped JVM, because it does not answer them.
#[test]
fn stopped_jvm_is_dumped_like_a_running_one() {
    run_beside_others();
    let mut load = start(named("temurin-17"), "");
    load.ask("block");
    let before = dumped(&dump(&load, &["-j"]));
    let pid = Pid::from_raw(load.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let output = dump(&load, &["-j"]);
    kill_process(pid, Signal::CONT).unwrap();
    assert!(output.status.success(), "{output:?}");
    let after = dumped(&output);
    for thread in BLOCKED {
        assert_eq!(before[thread], after[thread], "{thread}");
    }
    assert!(after["spinner"].frames.iter().any(|frame| frame.starts_with("LockLoad.act:")));
    load.kill();
}

#[test]
fn mixed_dump_has_native_and_kernel_frames() {
    run_beside_others();
    let mut load = start(named("temurin-17"), "");
    load.ask("block");
    let text = dump(&load, &["-m"]).stdout;
    let of = |name: &str| {
        let begin =
            text.find(&format!("\n\"{name}\"")).unwrap_or_else(|| panic!("no {name}: {text}"));
        text[begin + 1..].split("\n\n").next().unwrap()
    };
    for frame in ["futex", "Unsafe_Park", "LockSupport.park", "LockLoad.act", "thread_native_entry"]
    {
        assert!(of("parker").contains(frame), "{frame}: {}", of("parker"));
    }
    assert!(of("VM Thread").contains("VMThread::"), "{}", of("VM Thread"));
    // A later dump has the same frames.
    let records = dump(&load, &["-m", "-j", "0.3", "2"]).json();
    let stack = |record: &Value, name: &str| {
        let threads = record["threadDump"]["threadContainers"][0]["threads"].as_array().unwrap();
        threads.iter().find(|thread| thread["name"] == name).unwrap().clone()
    };
    for name in BLOCKED {
        assert_eq!(stack(&records[0], name)["stack"], stack(&records[1], name)["stack"], "{name}");
    }
    // On a machine with other work, the thread may not have been on a processor.
    let activity = stack(&records[1], "spinner")["activity"].clone();
    assert!(activity == "running" || activity == "still", "{activity}");
    load.kill();
}

/// Returns the Java threads of a dump.
fn threads_of(record: &Value) -> &Vec<Value> {
    record["threadDump"]["threadContainers"][0]["threads"].as_array().unwrap()
}

#[test]
fn later_dumps_show_cpu_time_and_which_threads_have_moved() {
    run_beside_others();
    let mut load = start(named("temurin-17"), "");
    load.ask("block");
    let dir = tempfile::tempdir().unwrap();
    let folded = dir.path().join("stacks.folded");
    let records = dump(&load, &["-j", "0.5", "2", "-o", folded.to_str().unwrap()]).json();
    let of = |record: usize, name: &str| {
        threads_of(&records[record]).iter().find(|thread| thread["name"] == name).unwrap().clone()
    };
    assert!(of(0, "spinner")["cpu_since_last_ns"].is_null());
    let spinner = of(1, "spinner");
    let used = spinner["cpu_ns"].as_u64().unwrap() - of(0, "spinner")["cpu_ns"].as_u64().unwrap();
    assert_eq!(spinner["cpu_since_last_ns"], used);
    assert!(used > 0 && spinner["has_moved"] == true, "{spinner}");
    // A thread that waits for a monitor wakes up from time to time to check the monitor, so its CPU time may
    // change.
    for name in BLOCKED.into_iter().filter(|name| !name.starts_with("enterer")) {
        let thread = of(1, name);
        assert_eq!(
            (&thread["cpu_since_last_ns"], &thread["has_moved"]),
            (&0.into(), &false.into())
        );
    }
    // Each thread with a stack counts once per dump.
    let lines = std::fs::read_to_string(folded).unwrap();
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap();
    let with_stack = |record: &Value| {
        threads_of(record).iter().filter(|thread| thread["stack"][0].is_string()).count()
    };
    let expected: usize = records.iter().map(with_stack).sum();
    assert_eq!(lines.lines().map(count).sum::<usize>(), expected, "{lines}");
    let records = dump(&load, &["-j", "0.5", "2", "--top", "1"]).json();
    let busiest = threads_of(&records[1]);
    assert!(busiest.len() == 1 && busiest[0]["name"] == "spinner", "{busiest:?}");
    load.kill();
}

/// Returns the lines of each thread of a text dump, without times and stack addresses.
fn text_threads(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut threads: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix('"') {
            let (thread, header) = rest.rsplit_once("\" #").unwrap_or_default();
            name = thread.to_owned();
            let is_stable = |word: &&str| {
                !["cpu=", "elapsed=", "os_prio=", "["].iter().any(|start| word.starts_with(start))
            };
            let words = header.split_whitespace().filter(is_stable).map(|word| {
                // Since JDK 19, jstack prints the thread ID as a decimal number. javastack and older versions
                // of jstack print a hexadecimal number.
                let id = word.strip_prefix("nid=").and_then(|id| id.parse::<u32>().ok());
                id.map_or_else(|| word.to_owned(), |id| format!("nid={id:#x}"))
            });
            threads.insert(name.clone(), vec![words.collect::<Vec<_>>().join(" ")]);
        } else if line.starts_with("\tat ")
            || line.starts_with("\t- ")
            || line.starts_with("   java")
        {
            threads.entry(name.clone()).or_default().push(line.trim().to_owned());
        } else if !line.is_empty() {
            // The lines that follow belong to no thread, but to another part of the dump.
            name = String::new();
        }
    }
    threads
}

/// Removes what javastack and jstack print differently (see javastack's manual): the names of classes whose
/// monitors are locked, the monitors that the compiler has eliminated, and the monitors that a thread has
/// released in `Object.wait`.
fn as_javastack_prints(lines: &[String]) -> Vec<String> {
    let waits = |line: &&String| line.starts_with("- waiting on ");
    let released = lines.iter().find(waits).map(|line| line.replace("waiting on", "locked"));
    let comparable = |line: &String| {
        if let Some((object, _)) = line.split_once(" (a java.lang.Class for ") {
            return format!("{object} (a java.lang.Class)");
        }
        line.clone()
    };
    // For a released monitor, JDK 9 to 17 print "waiting to re-lock in wait()" instead of "locked".
    let others = ["- eliminated ", "- waiting to re-lock in wait() "];
    let is_shown = |line: &&String| {
        Some(*line) != released.as_ref() && !others.iter().any(|other| line.starts_with(other))
    };
    lines.iter().filter(is_shown).map(comparable).collect()
}

/// Compares the text of a dump with jstack's, line by line.
#[test]
fn text_of_a_quiet_jvm_is_that_of_jstack() {
    run_beside_others();
    for name in ["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25"] {
        let mut load = start(named(name), "");
        load.ask("block");
        let ours = text_threads(&dump(&load, &[]).stdout);
        let jstack = named("debian-17").java.with_file_name("jstack");
        let output = Command::new(jstack).arg(load.pid().to_string()).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let theirs = text_threads(&String::from_utf8(output.stdout).unwrap());
        for thread in BLOCKED {
            let (ours, theirs) = (&ours[thread], &theirs[thread]);
            let has_lines = |lines: &[String]| lines.iter().any(|line| line.contains(".java:"));
            assert!(has_lines(ours) && ours.len() > 3, "{name}: {ours:?}");
            assert_eq!(as_javastack_prints(ours), as_javastack_prints(theirs), "{name}: {thread}");
        }
        let module = if name == "zulu-8" { "(" } else { "(java.base@" };
        let innermost = &ours["sleeper"][2];
        let is_native = innermost.contains(module) && innermost.ends_with("Native Method)");
        assert!(is_native, "{name}: {innermost}");
        load.kill();
    }
}

/// Compares the frames of a JSON dump with those of `jcmd Thread.dump_to_file`.
#[test]
fn json_frames_are_those_of_jcmd() {
    run_beside_others();
    for name in ["temurin-21", "temurin-25"] {
        let mut load = start(named(name), "");
        load.ask("block");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dump.json");
        let mut jcmd = Command::new(named("debian-17").java.with_file_name("jcmd"));
        jcmd.arg(load.pid().to_string()).args(["Thread.dump_to_file", "-format=json"]).arg(&file);
        let output = jcmd.output().unwrap();
        assert!(output.status.success() && file.exists(), "{name}: {output:?}");
        let theirs: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let ours = dump(&load, &["-j"]).json().remove(0);
        let stack = |dump: &Value, name: &str| {
            let thread = threads_of(dump).iter().find(|thread| thread["name"] == name).unwrap();
            thread["stack"].clone()
        };
        for thread in BLOCKED {
            let frames = stack(&ours, thread);
            assert_eq!(frames, stack(&theirs, thread), "{name}: {thread}");
        }
        let innermost = stack(&ours, "sleeper")[0].clone();
        assert!(innermost.as_str().unwrap().starts_with("java.base/java.lang.Thread."), "{name}");
        load.kill();
    }
}

/// jstack and jcmd wait for a safepoint, which this JVM does not reach, and for the attach listener, which it does not
/// have.
#[test]
fn jvm_that_does_not_reach_a_safepoint_is_dumped() {
    run_beside_others();
    for name in ["temurin-17", "temurin-25"] {
        let flags = "-XX:+UseParallelGC -XX:-UseCountedLoopSafepoints -XX:+DisableAttachMechanism";
        let mut load = start(named(name), flags);
        load.ask("block");
        load.ask("stuck");
        let is_collecting = |threads: &BTreeMap<String, ThreadText>| {
            let innermost = threads.get("collector").and_then(|thread| thread.frames.first());
            innermost.is_some_and(|frame| frame.starts_with("java.lang.Runtime.gc:"))
        };
        let mut threads = BTreeMap::new();
        for _ in 0..20 {
            threads = dumped(&dump(&load, &["-j"]));
            if is_collecting(&threads) {
                break;
            }
            sleep(Duration::from_millis(200));
        }
        assert!(is_collecting(&threads), "{name}: {:?}", threads.get("collector"));
        let collector = &threads["collector"];
        assert_eq!(collector.state, "RUNNABLE", "{name}");
        let looper = &threads["looper"];
        assert!(looper.frames[0].starts_with("LockLoad.loop:"), "{name}: {looper:?}");
        assert_eq!(threads["enterer"].owner, "holder", "{name}");
        assert_eq!(threads["compiled-holder"].held.len(), 3, "{name}: {threads:?}");
        // The collection has not begun: the VM thread waits for the thread in the loop.
        let log = load.log();
        assert!(!log.contains("Pause Full"), "{name}: {log}");
        load.kill();
    }
}

/// Returns whether a process is in this state, as its `status` in /proc describes it.
fn is_in_state(pid: u32, state: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().any(|line| line.starts_with("State:") && line.contains(state))
}

/// Returns whether a process is stopped by a signal.
fn is_stopped(pid: u32) -> bool {
    is_in_state(pid, "T (stopped)")
}

/// Returns whether a process is stopped by a tracer.
fn is_frozen(pid: u32) -> bool {
    is_in_state(pid, "t (tracing stop)")
}

#[test]
fn frozen_jvm_continues_however_the_tool_ends() {
    run_beside_others();
    let mut load = start(named("temurin-17"), "");
    load.ask("block");
    let records = dump(&load, &["-j", "--freeze"]).json();
    let spinner =
        threads_of(&records[0]).iter().find(|thread| thread["name"] == "spinner").unwrap();
    assert_eq!(spinner["activity"], "still", "{spinner}");
    assert!(!is_frozen(load.pid()));
    let pid = load.pid().to_string();
    let group = Cgroup::new("freeze", Limits::default());
    if let Err(error) = &group {
        eprintln!("cannot kill a control group: {error}");
    }
    let mut was_frozen = 0;
    for round in 0..20 {
        let mut tool = Command::new(tool::binary("javastack"));
        let tool = tool.args(["-p", &pid, "--freeze", "-q", "0.001"]).stdout(Stdio::null());
        let killed_group = group.as_ref().ok().filter(|_| round % 2 == 1);
        if let Some(group) = killed_group {
            group.enter(tool);
        }
        let mut tool = tool.spawn().unwrap();
        // Waits up to two seconds until the JVM is stopped, so that the tool is killed while the JVM is
        // stopped.
        for _ in 0..2000 {
            if is_frozen(load.pid()) {
                was_frozen += 1;
                break;
            }
            sleep(Duration::from_millis(1));
        }
        match killed_group {
            // No process of the tool is left that could continue the JVM.
            Some(group) => group.kill().unwrap(),
            None => tool.kill().unwrap(),
        }
        tool.wait().unwrap();
        for _ in 0..5000 {
            if !is_frozen(load.pid()) {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        assert!(!is_frozen(load.pid()));
    }
    assert!(was_frozen > 0);
    // A process that is stopped already stays so.
    let raw = Pid::from_raw(load.pid().cast_signed()).unwrap();
    kill_process(raw, Signal::STOP).unwrap();
    while !is_stopped(load.pid()) {
        sleep(Duration::from_millis(1));
    }
    assert!(dump(&load, &["-q", "--freeze"]).status.success());
    assert!(is_stopped(load.pid()));
    kill_process(raw, Signal::CONT).unwrap();
    load.kill();
}

#[test]
fn completions_and_man_page_list_every_option() {
    let help = tool::run("javastack", &["--help"]);
    assert!(help.status.success() && help.stdout.lines().count() <= 50, "{}", help.stdout);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../man/javastack.8");
    let man = std::fs::read_to_string(page).unwrap().replace('\\', "");
    let bash = tool::run("javastack", &["--completions", "bash"]).stdout;
    let words = help.stdout.split(|c: char| c.is_whitespace() || c == ',');
    let options: Vec<_> = words.filter(|w| w.starts_with("--") && w.len() > 4).collect();
    assert!(options.len() > 8, "{options:?}");
    for option in options {
        let option = option.trim_end_matches([']', '.', ')', ':', ';']);
        assert!(man.contains(option) && bash.contains(option), "{option}");
    }
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning", page]).output().unwrap();
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}
