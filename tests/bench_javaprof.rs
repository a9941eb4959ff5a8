//! Prints figures for javaprof: `make bench`. Nothing is asserted, because times depend on the
//! machine. `cargo bench --bench javaprof -- cost result` runs only those parts.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bench::{median, run_parts, spread, usage},
    load::Load,
    run_alone,
    runtimes::named,
    tool::{self, Tool, binary},
};

const FLAGS: &str = "-XX:+UseSerialGC";
/// JVM flags with which ManyLoad's methods are compiled soon and not inlined.
const MANY_FLAGS: &str = "-XX:CompileThresholdScaling=0.1 -XX:CompileCommand=quiet \
                          -XX:CompileCommand=dontinline,Many*.*";

fn main() {
    run_alone();
    binary("javaprof");
    run_parts(&[
        ("start", start),
        ("cost", cost),
        ("result", result),
        ("map", map),
        ("sample", sample),
        ("gaps", gaps),
    ]);
}

/// Measures the time from exec to the first sample, also for a JVM with 20,500 compiled methods.
fn start() {
    for name in ["temurin-17", "temurin-25"] {
        for (program, symbols) in [
            ("CpuLoad", "auto"),
            ("CpuLoad", "perfmap"),
            ("CpuLoad", "agent"),
            ("ManyLoad", "auto"),
        ] {
            let flags = match program {
                "ManyLoad" => MANY_FLAGS,
                _ => FLAGS,
            };
            let mut load = Load::start_program(named(name), flags, program);
            if program == "ManyLoad" {
                load.run(12.0);
            }
            load.go(20.0);
            let pid = load.pid().to_string();
            let mut times = Vec::new();
            for _ in 0..9 {
                let begin = Instant::now();
                let tool = Tool::start("javaprof", &["-p", &pid, "-q", "--symbols", symbols]);
                times.push(begin.elapsed().as_secs_f64() * 1e3);
                tool.interrupt();
            }
            println!(
                "exec to sampling, {name} {program} --symbols {symbols}: {} ms",
                spread(times)
            );
        }
    }
}

/// Measures the throughput of a busy JVM without a profiler, under javaprof and under perf,
/// alternately. Also measures the CPU use and memory of javaprof itself.
fn cost() {
    let mut load = Load::start_program(named("temurin-17"), FLAGS, "CpuLoad");
    let pid = load.pid().to_string();
    let dir = tempfile::tempdir().expect("a temporary folder");
    let data = dir.path().join("perf.data");
    let has_perf = is_installed("perf");
    load.run(2.0);
    let mut done = [Vec::new(), Vec::new(), Vec::new()];
    let (mut used, mut peak) = (Vec::new(), 0);
    let rounds = |text: String| -> f64 {
        let word = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
        word.expect("the number of rounds")
    };
    let seconds = 4.0;
    for _ in 0..10 {
        load.go(seconds);
        done[0].push(rounds(load.done()));

        let tool = Tool::start("javaprof", &["-p", &pid, "-F", "99", "-f"]);
        let before = usage(tool.pid());
        load.go(seconds);
        done[1].push(rounds(load.done()));
        let after = usage(tool.pid());
        used.push((after.seconds - before.seconds) * 100.0 / seconds);
        peak = peak.max(after.peak_kb);
        tool.interrupt();

        if has_perf {
            let mut perf = Command::new("perf")
                .args(["record", "-F", "99", "-g", "-p", &pid, "-o"])
                .arg(&data)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start perf");
            thread::sleep(Duration::from_millis(500));
            load.go(seconds);
            done[2].push(rounds(load.done()));
            interrupt(perf.id());
            perf.wait().expect("perf ends");
        }
    }
    let base = median(&mut done[0]);
    for (name, done) in ["nothing", "javaprof -F 99", "perf record -F 99 -g"].iter().zip(done) {
        let shares = done.iter().map(|rounds| rounds / base * 100.0).collect();
        println!("work done under {name}: {} % of the median without a profiler", spread(shares));
    }
    println!("javaprof itself: {} % of one core, peak {peak} kB", spread(used));
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

fn interrupt(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
}

/// Measures the time from Ctrl-C to the result, with many samples and a map of fifty thousand
/// methods.
fn result() {
    let mut load = Load::start_program(named("temurin-17"), "", "GcLoad");
    let pid = load.pid().to_string();
    let map = synthetic_map(50_000);
    let symbols = format!("file:{}", map.path().display());
    let mut times = Vec::new();
    let mut samples = String::new();
    for _ in 0..5 {
        load.go(12.0);
        let args = ["-p", &pid, "-F", "9999", "--symbols", &symbols];
        let tool = Tool::start("javaprof", &args);
        thread::sleep(Duration::from_secs(11));
        let begin = Instant::now();
        let output = tool.interrupt();
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        samples = output.stdout.lines().last().unwrap_or("").to_owned();
        load.done();
    }
    println!("Ctrl-C to the end of the process: {} ms; {samples}", spread(times));
}

/// Measures the cost of reading a symbol map: the time of a very short profile with maps of
/// different sizes.
fn map() {
    let load = Load::start_program(named("temurin-17"), FLAGS, "CpuLoad");
    let pid = load.pid().to_string();
    for lines in [1, 1_000_000] {
        let map = synthetic_map(lines);
        let symbols = format!("file:{}", map.path().display());
        let mut times = Vec::new();
        for _ in 0..7 {
            let begin = Instant::now();
            let args = ["-p", &pid, "-d", "0.01", "-q", "--symbols", &symbols];
            let output = tool::run("javaprof", &args);
            assert!(output.status.success(), "{}", output.stderr);
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        println!("a complete run with a map of {lines} lines: {} ms", spread(times));
    }
}

fn synthetic_map(lines: u64) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    let mut text = String::new();
    for i in 0..lines {
        let start = 0x7000_0000_0000 + i * 0x400;
        text += &format!("{start:#x} 0x300 void com.example.app.Class{i}.method{i}(int)\n");
    }
    file.write_all(text.as_bytes()).expect("write the map");
    file
}

/// Measures the BPF program's run time per sample, from the kernel's statistics.
fn sample() {
    let switch = "/proc/sys/kernel/bpf_stats_enabled";
    let before = fs::read_to_string(switch).unwrap_or_default();
    if fs::write(switch, "1").is_err() {
        println!("time of a sample: skipped, {switch} cannot be written");
        return;
    }
    let mut load = Load::start_program(named("temurin-17"), FLAGS, "CpuLoad");
    let pid = load.pid().to_string();
    load.run(1.0);
    load.go(4.0);
    let tool = Tool::start("javaprof", &["-p", &pid, "-F", "999", "-q"]);
    load.done();
    let mut shown = false;
    for entry in fs::read_dir(format!("/proc/{}/fdinfo", tool.pid())).expect("it runs").flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| -> Option<u64> {
            text.lines().find_map(|l| l.strip_prefix(name))?.trim().parse().ok()
        };
        // BPF_PROG_TYPE_PERF_EVENT.
        if field("prog_type:") == Some(7)
            && let (Some(time), Some(count)) = (field("run_time_ns:"), field("run_cnt:"))
        {
            let each = time as f64 / count.max(1) as f64 / 1e3;
            println!(
                "time of a sample in the kernel: {each:.2} us, mean of {count} samples on \
                 all processors"
            );
            shown = true;
        }
    }
    if !shown {
        println!("time of a sample: skipped, the kernel has no statistics of the program");
    }
    tool.interrupt();
    fs::write(switch, before.trim()).expect("restore bpf_stats_enabled");
}

/// Measures how much running time a thread loses for each sample. The thread only reads the clock,
/// inside forty nested calls. javaprof and other profilers sample it 999 times per second, one
/// profiler after the other, in the same JVM. Profilers that are not installed are skipped. ASYNC_PROFILER is
/// the path of async-profiler's `asprof`.
fn gaps() {
    const HZ: f64 = 999.0;
    // No callee is inlined, so each call has a frame of its own.
    let flags = "-XX:+UseSerialGC -XX:CompileCommand=quiet -XX:CompileCommand=dontinline,GapLoad.*";
    let mut load = Load::start_program(named("temurin-25"), flags, "GapLoad");
    let pid = load.pid().to_string();
    let javaprof = binary("javaprof").display().to_string();
    let asprof = std::env::var("ASYNC_PROFILER").unwrap_or_default();
    let hz = HZ.to_string();
    let interval = format!("{}ns", (1e9 / HZ) as u64);
    let kinds: Vec<(&str, Vec<&str>)> = [
        ("nothing", vec![]),
        (
            "perf record, per thread",
            vec!["perf", "record", "-F", &hz, "-p", &pid, "-o", "/dev/null"],
        ),
        ("perf record, per processor", vec!["perf", "record", "-F", &hz, "-a", "-o", "/dev/null"]),
        ("perf record -g", vec!["perf", "record", "-F", &hz, "-g", "-a", "-o", "/dev/null"]),
        ("bpftrace, a counter", vec!["bpftrace", "-e", "profile:hz:999 { @ = count(); }"]),
        ("javaprof --walk fp", vec![&javaprof, "-p", &pid, "-F", &hz, "-q", "--walk", "fp"]),
        ("javaprof", vec![&javaprof, "-p", &pid, "-F", &hz, "-q"]),
        (
            "async-profiler",
            vec![&asprof, "-d", "600", "-e", "cpu", "-i", &interval, "-f", "/dev/null", &pid],
        ),
    ]
    .into_iter()
    .filter(|(name, command)| {
        let is_there = command.first().is_none_or(|program| is_installed(program));
        if !is_there {
            println!("a sample, {name}: not installed");
        }
        is_there
    })
    .collect();
    let mut lost = vec![Vec::new(); kinds.len()];
    load.run(2.0);
    for round in 0..6 {
        for i in 0..kinds.len() {
            // Even rounds run the kinds in order, odd rounds in reverse order. Each round begins
            // with another kind.
            let kind = (i * (1 + round % 2 * (kinds.len() - 2)) + round) % kinds.len();
            let command = &kinds[kind].1;
            let mut tool = command.first().map(|program| {
                Command::new(program)
                    .args(&command[1..])
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .expect("it starts")
            });
            thread::sleep(Duration::from_secs(1));
            let answer = load.ask("go 4");
            // The first half second is the warm-up.
            let parts = answer.split_ascii_whitespace().skip(2);
            lost[kind].extend(parts.filter_map(|ns| ns.parse::<f64>().ok()));
            if let Some(tool) = &mut tool {
                interrupt(tool.id());
                tool.wait().expect("it ends");
            }
        }
    }
    let without = median(&mut lost[0].clone());
    for ((name, _), lost) in kinds.iter().zip(lost) {
        let each = lost.iter().map(|ns| (ns - without) / (HZ / 2.0) / 1e3).collect();
        println!("a sample, {name}: {} us of the thread's time", spread(each));
    }
}
