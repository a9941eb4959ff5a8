//! javaprof's time axis: when samples were taken, and when the application was stopped.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    folded, gclog,
    load::Load,
    need_root,
    runtimes::named,
    tool::{Output, Tool, binary},
};
use serde_json::Value;

/// What a page has of times.
struct Times {
    begin_ms: u64,
    slot_ns: u64,
    /// Slot, stack, thread, count.
    counts: Vec<[u64; 4]>,
    /// Begin and end in microseconds, whether that was a collection, the operation.
    bands: Vec<(u64, u64, bool, String)>,
}

/// Numbers as libjvmprobe/src/render/page/packed.rs writes them.
fn numbers(text: &str) -> Vec<u64> {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (mut all, mut number, mut shift) = (Vec::new(), 0, 0);
    for digit in text.chars().map(|c| DIGITS.find(c).unwrap() as u64) {
        number |= (digit & 31) << shift;
        shift += 5;
        if digit < 32 {
            all.push(number);
            (number, shift) = (0, 0);
        }
    }
    all
}

fn times(page: &Path) -> Times {
    let text = fs::read_to_string(page).unwrap();
    let (_, rest) = text.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
    let times = &data["events"][0]["times"];
    let mut slot = 0;
    let counts = numbers(times["counts"].as_str().unwrap());
    let (counts, rest) = counts.as_chunks::<4>();
    assert!(rest.is_empty());
    let counts = counts.iter().map(|&[step, stack, thread, count]| {
        slot += step;
        [slot, stack, thread, count]
    });
    let number = |value: &Value| value.as_u64().unwrap();
    let band = |band: &Value| {
        let name = band[3].as_str().unwrap().to_owned();
        (number(&band[0]), number(&band[1]), band[2] == "gc", name)
    };
    Times {
        begin_ms: number(&times["begin_ms"]),
        slot_ns: number(&times["slot_ns"]),
        counts: counts.collect(),
        bands: times["bands"].as_array().unwrap().iter().map(band).collect(),
    }
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

fn ended_well(output: Output) {
    assert!(output.status.success(), "{output:?}");
}

/// A program that is busy for a second, then idle for one, and busy again.
#[test]
fn samples_are_where_they_were() {
    need_root();
    binary("javaprof");
    let mut load = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "CpuLoad");
    load.run(2.0);
    let dir = tempfile::tempdir().unwrap();
    let (page, lines) = (dir.path().join("p.html"), dir.path().join("p.folded"));
    let pid = load.pid().to_string();
    let (to_page, to_lines) = (page.to_str().unwrap(), lines.to_str().unwrap());
    let files = ["-o", to_page, "-o", to_lines, "--timeline"];
    let tool = Tool::start("javaprof", &[&["-p", &pid, "-F", "499"], &files[..]].concat());
    let mut busy = Vec::new();
    for _ in 0..2 {
        let begin = now_ms();
        load.run(1.0);
        busy.push((begin, now_ms()));
        std::thread::sleep(Duration::from_secs(1));
    }
    ended_well(tool.interrupt());
    let times = times(&page);
    let all: u64 = times.counts.iter().map(|row| row[3]).sum();
    let told = folded::parse(&fs::read_to_string(&lines).unwrap());
    assert_eq!(all, folded::total(told.iter()), "each sample has its time");
    // The same by second, from the page and from the lines.
    let mut seconds = [BTreeMap::<u64, u64>::new(), BTreeMap::new()];
    for [slot, _, _, count] in &times.counts {
        *seconds[0].entry(slot * times.slot_ns / 1_000_000_000).or_default() += count;
    }
    for line in &told {
        *seconds[1].entry(line.frames[0].parse().unwrap()).or_default() += line.count;
    }
    assert_eq!(seconds[0], seconds[1]);
    let is_busy = |slot: u64| {
        let at = times.begin_ms + slot * times.slot_ns / 1_000_000;
        let near = 2 * times.slot_ns / 1_000_000;
        busy.iter().any(|(begin, end)| (begin - near..end + near).contains(&at))
    };
    let within: u64 = times.counts.iter().filter(|row| is_busy(row[0])).map(|row| row[3]).sum();
    println!("{within} of {all} samples in {busy:?}");
    assert!(all > 300 && within * 100 > all * 95, "{within} of {all}");
    load.quit();
}

/// Each stop, by its operation and length, against the JVM's log.
#[test]
fn stops_are_the_jvms_own() {
    need_root();
    binary("javaprof");
    for (runtime, flag) in [("temurin-17", "-XX:+UseG1GC"), ("temurin-25", "-XX:+UseSerialGC")] {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("p.html");
        let mut load = Load::start(named(runtime), flag);
        let pid = load.pid().to_string();
        let tool = Tool::start("javaprof", &["-p", &pid, "-o", page.to_str().unwrap()]);
        load.run(2.0);
        ended_well(tool.interrupt());
        let log = load.quit();
        let seen = times(&page).bands;
        let told = gclog::parse(&log).stops;
        println!("{runtime}: {} seen, {} told", seen.len(), told.len());
        assert!(seen.len() > 5, "{runtime}: {seen:?}");
        // Those before and after the trace are only in the log.
        let at = told
            .windows(seen.len())
            .position(|some| some.iter().zip(&seen).all(|(told, (.., name))| told.op == *name));
        let at = at.unwrap_or_else(|| panic!("{runtime}: {seen:?} in {told:?}"));
        let mut off = Vec::new();
        for ((begin, end, is_gc, name), told) in seen.iter().zip(&told[at..]) {
            let length = (end - begin) * 1000;
            let total = told.total_ns;
            if length.abs_diff(total) > total / 10 + 100_000 {
                off.push(format!("{name}: {length} of {total}"));
            }
            assert_eq!(*is_gc, !told.collections.is_empty(), "{runtime} {name}");
        }
        // When the application runs again, it may take the processor from the JVM's thread before
        // that comes to the probe.
        assert!(off.len() * 20 < seen.len() + 20, "{runtime}: {off:?}");
    }
}
