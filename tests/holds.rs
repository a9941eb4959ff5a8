//! Code cache, loaded classes and heap sizes of a JVM as read from outside are equal to what its
//! own management beans report.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, HashMap},
    process::Command,
    time::Duration,
};

use jvmprobe_tests::{
    load::{Load, numbers},
    run_beside_others,
    runtimes::{Runtime, named, of_unstable},
};
use libjvmprobe::{
    Pid,
    hotspot::{HotSpot, buffers::BufferPool, memory_pools::MemoryPool},
    process::Target,
};
use serde_json::Value;

/// Returns the values that the JVM itself reports.
fn reported_by_jvm(load: &mut Load) -> HashMap<String, u64> {
    numbers(&load.ask("tell"))
}

/// Reads the values from outside, between two equal reports of the JVM. It retries, because the JVM
/// allocates code in order to answer, and may free it again before the second report.
fn read(hotspot: &HotSpot, load: &mut Load) -> [Option<u64>; 3] {
    const TRIES: usize = 200;
    let mut seen = None;
    for _ in 0..TRIES {
        let before = reported_by_jvm(load);
        let fill = hotspot.code_cache().unwrap();
        let classes = hotspot.loaded_classes().ok();
        if before == reported_by_jvm(load) {
            let truth = ["used", "size", "classes"].map(|key| before[key]);
            if [fill.used, fill.size] == truth[..2] {
                return [Some(fill.used), Some(fill.size), classes.map(|n| n.abs_diff(truth[2]))];
            }
        }
        seen = Some((before, fill));
    }
    panic!("never equal to the JVM's counters: {seen:?}, then {:?}", reported_by_jvm(load));
}

fn start(runtime: &Runtime, flags: &[&str]) -> (Load, HotSpot) {
    let mut command = runtime.command();
    command.args(flags);
    let load = Load::spawn_program(command, "HoldLoad", runtime.major);
    let target = Target::open(Pid(load.pid())).unwrap();
    let hotspot = HotSpot::read(&target).unwrap();
    assert!(hotspot.is_set_up);
    (load, hotspot)
}

/// Checks the values after loading classes and after unloading them.
fn check(runtime: &Runtime, flags: &[&str]) {
    run_beside_others();
    let (mut load, hotspot) = start(runtime, flags);
    read(&hotspot, &mut load);
    let begin = hotspot.loaded_classes().unwrap();
    load.ask("load 300");
    let [.., off] = read(&hotspot, &mut load);
    let loaded = hotspot.loaded_classes().unwrap();
    assert!((300..600).contains(&(loaded - begin)), "{begin} and then {loaded}");
    load.ask("drop");
    let [_, _, off_then] = read(&hotspot, &mut load);
    let left = hotspot.loaded_classes().unwrap();
    assert!(left + 250 < loaded, "{loaded} and then {left}");
    assert_eq!((off, off_then), (Some(0), Some(0)));
    load.quit();

    // Without performance data, the classes in the JVM's lists are counted. JMX does not count two
    // kinds of them: hidden classes that are no longer alive, and classes that are present but were
    // never requested.
    let without = [flags, &["-XX:-UsePerfData"]].concat();
    let (mut load, hotspot) = start(runtime, &without);
    let fill = read(&hotspot, &mut load);
    if runtime.major == 8 {
        assert!(hotspot.loaded_classes().is_err() && fill[2].is_none());
    } else {
        let truth = reported_by_jvm(&mut load)["classes"];
        let off = hotspot.loaded_classes().unwrap().abs_diff(truth);
        assert!(off * 100 <= truth, "{truth}: {off}");
    }
    load.quit();
}

#[test]
fn code_cache_and_class_count_match_jmx_jdk_8() {
    check(named("zulu-8"), &["-XX:+UseSerialGC"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_jdk_11() {
    check(named("temurin-11"), &["-XX:+UseParallelGC"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_jdk_17() {
    check(named("temurin-17"), &["-XX:+UseG1GC"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_single_code_heap() {
    check(named("temurin-17"), &["-XX:-SegmentedCodeCache", "-XX:ReservedCodeCacheSize=20m"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_jdk_21() {
    check(named("temurin-21"), &["-XX:+UseSerialGC"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_jdk_25() {
    check(named("temurin-25"), &["-XX:+UseG1GC"]);
}

#[test]
fn code_cache_and_class_count_match_jmx_musl() {
    check(named("musl-17"), &["-XX:+UseSerialGC"]);
}

/// Compares the pools of a JVM that does nothing, read before and after it reports them. It retries, because the JVM may
/// allocate memory to answer.
fn check_pools(name: &str, load: &mut Load, hotspot: &HotSpot) {
    const TRIES: usize = 50;
    let mut difference = String::new();
    let mut reader = hotspot.pool_reader();
    for _ in 0..TRIES {
        let before = reader.read(Duration::from_secs(1)).unwrap();
        let truth: Vec<Value> = serde_json::from_str(&load.ask("pools")["done ".len()..]).unwrap();
        let after = reader.read(Duration::from_secs(1)).unwrap();
        match difference_of_pools(&truth, &before, &after) {
            None => return,
            Some(found) => difference = found,
        }
    }
    panic!("{name}: {difference}");
}

/// Returns a description of the first pool that differs from the JVM's own report.
fn difference_of_pools(
    truth: &[Value],
    before: &[MemoryPool],
    after: &[MemoryPool],
) -> Option<String> {
    let mut names: Vec<_> = after.iter().map(|pool| &*pool.name).collect();
    let mut wanted: Vec<_> = truth.iter().map(|pool| pool["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    wanted.sort_unstable();
    if names != wanted {
        return Some(format!("{names:?} instead of {wanted:?}"));
    }
    truth.iter().find_map(|pool| {
        let of =
            |pools: &[MemoryPool]| pools.iter().find(|found| *found.name == pool["name"]).cloned();
        let (before, after) = (of(before)?, of(after)?);
        let number = |key: &str| pool[key].as_i64().unwrap();
        let optional = |value: Option<u64>| value.map_or(-1, u64::cast_signed);
        let is_within = |key: &str, value: fn(&MemoryPool) -> u64| {
            let (one, other) = (value(&before).cast_signed(), value(&after).cast_signed());
            (one.min(other)..=one.max(other)).contains(&number(key))
        };
        let is_equal = is_within("used", |pool| pool.used)
            && is_within("committed", |pool| pool.committed)
            && optional(after.limit) == number("max")
            && optional(after.initial) == number("init")
            && optional(after.used_after_gc) == number("after")
            && after.is_heap == (pool["type"] == "HEAP");
        (!is_equal).then(|| format!("{pool}, but {before:?} and then {after:?}"))
    })
}

/// Compares the memory pools with those of a JVM's management beans: when it has started, and after collections.
fn check_memory_pools(name: &str, runtime: &Runtime, flags: &str) {
    let flags: Vec<_> = flags.split(' ').chain(["-Xmx256m", "-Xms64m"]).collect();
    let context = format!("{name} {flags:?}");
    let (mut load, hotspot) = start(runtime, &flags);
    load.ask("pools");
    check_pools(&context, &mut load, &hotspot);
    load.ask("fill 20000000");
    load.ask("load 50");
    load.ask("collect");
    load.ask("fill 5000000");
    check_pools(&context, &mut load, &hotspot);
    let (_, max) = hotspot.heap_size();
    assert_eq!(max, Some(256 << 20), "{context}");
    load.quit();
}

#[test]
fn memory_pools_match_jmx_for_each_collector() {
    run_beside_others();
    for name in [
        "zulu-8",
        "temurin-11",
        "temurin-17",
        "temurin-21",
        "temurin-25",
        "sid-26",
        "sid-27",
        "sid-28",
    ] {
        let runtime = match name.starts_with("sid") {
            true => of_unstable(name),
            false => Some(named(name)),
        };
        let Some(runtime) = runtime else { continue };
        for flags in runtime.collectors() {
            check_memory_pools(name, runtime, flags);
        }
    }
}

/// Compares numbers of threads by state, and buffers.
fn check_threads(name: &str, flags: &str) {
    run_beside_others();
    let (mut load, hotspot) = start(named(name), &flags.split(' ').collect::<Vec<_>>());
    load.ask("start");
    let mut counter = hotspot.thread_counter().unwrap();
    for _ in 0..3 {
        let answer = load.ask("threads");
        let truth = answer["done ".len()..].trim().split(',').filter(|text| !text.is_empty());
        let truth: BTreeMap<String, u64> = truth
            .map(|text| {
                let (key, number) = text.rsplit_once(' ').unwrap();
                (key.to_owned(), number.parse().unwrap())
            })
            .collect();
        let counts = counter.count(Duration::from_secs(1)).unwrap();
        let counts = counts
            .into_iter()
            .map(|((is_daemon, state), count)| (format!("{is_daemon} {}", state.name()), count));
        assert_eq!(counts.collect::<BTreeMap<_, _>>(), truth, "{name} {flags}");
    }
    // JDK 8 does not export the list in which the classes with the counters are found.
    if name != "zulu-8" {
        check_buffers(name, &mut load, &hotspot);
    }
    load.quit();
}

fn check_buffers(name: &str, load: &mut Load, hotspot: &HotSpot) {
    let mut reader = hotspot.buffer_reader().unwrap();
    let text =
        |pool: &BufferPool| format!("{}={}:{}:{}", pool.name, pool.count, pool.used, pool.capacity);
    // The second time, the reader uses the offsets that it found the first time.
    for _ in 0..2 {
        let pools = reader.read(Duration::from_secs(1)).unwrap();
        let answer = load.ask("buffers");
        for pool in &pools {
            let is_equal = pool.count > 0 && answer.contains(&text(pool));
            assert!(is_equal, "{name}: {answer}, but {pools:?}");
        }
        assert_eq!(pools.len(), 2);
    }
}

#[test]
fn thread_counts_and_buffers_match_jmx() {
    for (name, flags) in [
        ("zulu-8", "-XX:+UseParallelGC"),
        ("temurin-11", "-XX:+UseG1GC"),
        ("temurin-17", "-XX:+UseShenandoahGC"),
        ("temurin-21", "-XX:+UseG1GC -XX:-UseCompressedOops"),
        ("temurin-25", "-XX:+UseZGC"),
    ] {
        check_threads(name, flags);
    }
}

/// Code of unloaded classes becomes free space.
#[test]
fn code_cache_shrinks_after_class_unloading() {
    run_beside_others();
    for name in ["temurin-11", "temurin-21", "temurin-25"] {
        let flags = ["-Xcomp", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
        let (mut load, hotspot) = start(named(name), &flags);
        load.ask("load 300");
        let [before, ..] = read(&hotspot, &mut load);
        load.ask("drop");
        // JDK 11 frees code when its sweeper runs.
        let [after, ..] = read(&hotspot, &mut load);
        println!("{name}: {before:?} and then {after:?}");
        assert!(after < before || name == "temurin-11");
        load.quit();
    }
}

#[test]
fn code_cache_and_class_count_match_jmx_debian_unstable() {
    for name in ["sid-8", "sid-26", "sid-27", "sid-28"] {
        if let Some(runtime) = of_unstable(name) {
            check(runtime, &["-XX:+UseSerialGC"]);
        }
    }
}

/// The values agree with the output of the JDK's own tools.
#[test]
fn code_cache_and_class_count_match_jcmd_and_jstat() {
    run_beside_others();
    let (mut load, hotspot) = start(named("temurin-17"), &["-XX:+UseSerialGC"]);
    let pid = load.pid().to_string();
    let run = |tool: &str, args: &[&str]| {
        let output = Command::new(tool).args(args).output().unwrap();
        assert!(output.status.success(), "{tool}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // The first requests load classes and compile code.
    for _ in 0..3 {
        run("jcmd", &[&pid, "Compiler.codecache"]);
    }
    let (mut kilobytes, mut fill) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let before = hotspot.code_cache().unwrap();
        let text = run("jcmd", &[&pid, "Compiler.codecache"]);
        if before != hotspot.code_cache().unwrap() {
            continue;
        }
        let of = |key: &str| -> u64 {
            let values = text.split(key).skip(1);
            values.map(|rest| rest.split("Kb").next().unwrap().parse::<u64>().unwrap()).sum()
        };
        // jcmd prints at most three code heaps, and rounds down the numbers of each.
        kilobytes = vec![of(" used="), of(" size=")];
        fill = vec![before.used / 1024, before.size / 1024];
        break;
    }
    assert_eq!(kilobytes.len(), 2, "the JVM's counters never stay constant");
    assert!(kilobytes.iter().zip(&fill).all(|(a, b)| b - a <= 2), "{kilobytes:?} {fill:?}");
    let jstat = run("jstat", &["-class", &pid]);
    let row: Vec<f64> =
        jstat.lines().nth(1).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert_eq!(hotspot.loaded_classes().unwrap(), (row[0] - row[2]) as u64, "{jstat}");
    load.kill();
}
