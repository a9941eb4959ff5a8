//! javaobjnew's time axis: the times of allocations, and of stops of the application.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    allocated,
    browser::Browser,
    folded,
    load::Load,
    page::times,
    run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};
use serde_json::Value;

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

/// A program that allocates, pauses, and allocates again, and knows the amount each time. The records,
/// the page and the folded stacks have the same total. The page and the folded stacks also have the
/// same bytes in each second, and the same stacks in each selected range.
#[test]
fn timeline_shows_bytes_at_their_allocation_time() {
    run_beside_others();
    binary("javaobjnew");
    for (runtime, exact) in [("temurin-21", false), ("temurin-25", true)] {
        let flags = "-XX:+UseG1GC -XX:+DTraceAllocProbes";
        let mut load = Load::start_program(named(runtime), flags, "AllocLoad");
        load.ask("go 1 200 2");
        let dir = tempfile::tempdir().unwrap();
        let [page, lines] = ["p.html", "p.folded"].map(|name| dir.path().join(name));
        let pid = load.pid().to_string();
        let mut args = vec!["-p", &pid, "-j", "--timeline"];
        args.extend(["-o", page.to_str().unwrap(), "-o", lines.to_str().unwrap()]);
        args.extend(exact.then_some("--exact"));
        let tool = Tool::start("javaobjnew", &args);
        let mut busy = Vec::new();
        for rate in [50, 150] {
            let begin = now_ms();
            let answer = load.ask(&format!("go 1.5 {rate} 2"));
            busy.push((begin, now_ms(), allocated::parse(&answer).total));
            std::thread::sleep(Duration::from_secs(1));
        }
        let output = tool.interrupt();
        assert!(output.status.success(), "{output:?}");
        let records = output.json();
        let total = records.last().unwrap()["bytes"].as_u64().unwrap();
        let times = times(&page);
        let told = folded::parse(&fs::read_to_string(&lines).unwrap());
        assert_eq!(
            times.by_second().values().sum::<u64>(),
            total,
            "{runtime}: each byte has its time"
        );
        assert_eq!(folded::total(told.iter()), total, "{runtime}");
        let mut seconds = BTreeMap::<u64, u64>::new();
        for line in &told {
            *seconds.entry(line.frames[0].parse().unwrap()).or_default() += line.count;
        }
        assert_eq!(times.by_second(), seconds, "{runtime}");
        for (begin, end, truth) in busy {
            let seen = times.between(begin - 50, end + 50);
            println!("{runtime}: {seen} of {truth} bytes in {} ms", end - begin);
            // Without `--exact`, `seen` differs from `truth` for two reasons: no sample of this range has
            // the contents of the last TLAB of each thread, and the other bytes are estimates, which are
            // distributed over the time slots.
            let off = seen.abs_diff(truth) as f64 / truth as f64;
            assert!(off < 0.15, "{runtime}: {seen} of {truth}");
        }
        assert_page_ranges_match_lines(&page, &told);
        load.quit();
    }
}

/// Asserts that the page, if a range of seconds is selected, has the same stacks and bytes as the
/// lines of these seconds.
fn assert_page_ranges_match_lines(page: &std::path::Path, lines: &[folded::Line]) {
    let mut browser = Browser::start();
    browser.open(page, 1280, 800);
    for (from, to) in [(1, 3), (0, 2), (2, 3)] {
        let set = |id: &str, second: u64| {
            format!("document.querySelector('#range-{id}').value = '{second}'")
        };
        browser.evaluate(&set("from", from));
        browser.evaluate(&set("to", to));
        browser.click_on("#range button");
        let mut sums = BTreeMap::<String, u64>::new();
        for line in lines {
            if (from..to).contains(&line.frames[0].parse().unwrap()) {
                *sums.entry(line.frames[1..].join(";")).or_default() += line.count;
            }
        }
        let mut expected: Vec<_> = sums.iter().map(|(stack, n)| format!("{stack} {n}")).collect();
        expected.sort();
        let shown: Value = browser.evaluate("jvmprobe.folded(false)");
        let shown: Vec<_> = shown.as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
        assert!(shown.len() > 5, "{shown:?}");
        assert_eq!(shown, expected, "{from} to {to}");
    }
    // The leaves are classes, and the values are bytes.
    let told = browser.evaluate("document.querySelector('#zoom-what').textContent");
    assert!(told.as_str().unwrap().ends_with("iB"), "{told}");
    let leaf = browser.evaluate("jvmprobe.methods().find((m) => m.name === 'long[]')");
    assert!(leaf["self"].as_f64().unwrap() > 0.0 && leaf["self"] == leaf["total"], "{leaf}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Compares each stop, by its operation and length, with the JVM's log.
#[test]
fn stops_on_the_page_match_the_jvm_log() {
    run_beside_others();
    binary("javaobjnew");
    for (runtime, flag) in [("temurin-17", "-XX:+UseG1GC"), ("temurin-25", "-XX:+UseSerialGC")] {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("p.html");
        let mut load = Load::start(named(runtime), flag);
        let pid = load.pid().to_string();
        let args = ["-p", &pid, "-q", "-o", page.to_str().unwrap()];
        let tool = Tool::start("javaobjnew", &args);
        load.run(2.0);
        let output = tool.interrupt();
        assert!(output.status.success(), "{output:?}");
        times(&page).assert_stops_match_log(&load.quit(), runtime);
    }
}
