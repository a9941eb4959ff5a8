//! Prints figures for javaobjnew: `make bench`. Nothing is asserted, because times depend on the
//! machine. Each figure is a median with its spread. `cargo bench --bench javaobjnew -- overhead
//! exact` runs only those parts.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated,
    bench::{run_parts, spread, usage},
    child_process::ChildProcess,
    load::Load,
    run_alone,
    runtimes::{Runtime, named},
    tool::{Tool, binary},
};
use rustix::process::{Pid, Signal, kill_process};

/// Number of pairs of runs with and without a tracer.
const ROUNDS: usize = 12;
/// Duration of a run, in seconds.
const SECONDS: f64 = 2.0;
/// JVM flags for runs at full speed, with and without a tracer.
const STOCK: &str = "-XX:+UseSerialGC -Xmx512m";

fn main() {
    run_alone();
    let parts: [(&str, fn()); 5] = [
        ("start", start_and_end),
        ("overhead", overhead),
        ("others", others),
        ("exact", exact),
        ("memory", memory),
    ];
    run_parts(&parts);
}

/// Measures the time from exec to `Tracing...`, and from Ctrl-C to the end of the process.
fn start_and_end() {
    for name in ["temurin-17", "temurin-25", "musl-17"] {
        let load = Load::start_program(named(name), "-XX:+UseSerialGC", "AllocLoad");
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..15 {
            let begin = Instant::now();
            let tool = Tool::start("javaobjnew", &["-p", &load.pid().to_string()]);
            starts.push(begin.elapsed().as_secs_f64() * 1e3);
            thread::sleep(Duration::from_millis(50));
            let begin = Instant::now();
            tool.interrupt();
            ends.push(begin.elapsed().as_secs_f64() * 1e3);
        }
        println!("exec to attached, {name}: {} ms", spread(starts));
        println!("Ctrl-C to exit,   {name}: {} ms", spread(ends));
    }
}

fn start(runtime: &Runtime, flags: &str) -> Load {
    let mut load = Load::start_program(runtime, flags, "AllocLoad");
    // After this run, the code is compiled, and the TLABs have reached their final sizes.
    load.ask("go 4 work 2");
    load
}

/// Runs the load, which allocates and computes. Returns how many bytes the JVM allocates per second of
/// its CPU time. Other processes influence this rate less than the bytes per elapsed second.
fn rate(load: &mut Load) -> f64 {
    let before = usage(load.pid()).seconds;
    let answer = load.ask(&format!("go {SECONDS} work 2"));
    allocated::parse(&answer).total as f64 / (usage(load.pid()).seconds - before)
}

/// Returns the loss of throughput with a tracer, in percent. One JVM runs alternately without the
/// tracer and with it, so that the machine is in the same state for both.
fn losses(load: &mut Load, mut with: impl FnMut(&mut Load) -> Option<f64>) -> Vec<f64> {
    let mut losses = Vec::new();
    for _ in 0..ROUNDS {
        let without = rate(load);
        let Some(with) = with(load) else { break };
        losses.push((1.0 - with / without) * 100.0);
    }
    losses
}

/// Measures the overhead of the default mode in the target.
fn overhead() {
    for name in ["temurin-17", "temurin-25"] {
        let mut load = start(named(name), STOCK);
        let pid = load.pid().to_string();
        println!("load, {name}: {:.0} MB per second of CPU time", rate(&mut load) / 1e6);
        let ours = losses(&mut load, |load| {
            let tool = Tool::start("javaobjnew", &["-p", &pid, "-q"]);
            let rate = rate(load);
            tool.interrupt();
            Some(rate)
        });
        println!("throughput lost, {name}, javaobjnew: {} %", spread(ours));
    }
}

/// Measures the overhead of `-XX:+DTraceAllocProbes`, and of the tracers for which the JVM needs this
/// flag: bpftrace, bcc's javaobjnew and `javaobjnew --exact`.
fn others() {
    let runtime = named("temurin-17");
    let mut stock = start(runtime, STOCK);
    let flags = format!("{STOCK} -XX:+DTraceAllocProbes");
    let mut flagged = start(runtime, &flags);
    let mut flag_costs = Vec::new();
    for _ in 0..ROUNDS / 2 {
        flag_costs.push((1.0 - rate(&mut flagged) / rate(&mut stock)) * 100.0);
    }
    println!("throughput lost by -XX:+DTraceAllocProbes alone: {} %", spread(flag_costs));
    let pid = flagged.pid().to_string();
    let script = format!(
        "usdt:{}:hotspot:object__alloc {{ @objects[str(arg1, arg2)] = count(); \
         @bytes[str(arg1, arg2)] = sum(arg3); }}",
        runtime.libjvm().display()
    );
    let bpftrace = ["bpftrace", "-p", &pid, "-e", &script];
    let bcc = ["javaobjnew-bpfcc", &pid];
    for (command, says) in [(&bpftrace[..], "Attaching"), (&bcc[..], "Tracing")] {
        let lost = losses(&mut flagged, |load| {
            let tracer = start_other(command, says)?;
            let rate = rate(load);
            end_other(tracer);
            Some(rate)
        });
        println!("additional loss of throughput, {}: {} %", command[0], spread(lost));
    }
    let lost = losses(&mut flagged, |load| {
        let tool = Tool::start("javaobjnew", &["-p", &pid, "-q", "--exact"]);
        let rate = rate(load);
        tool.interrupt();
        Some(rate)
    });
    println!("additional loss of throughput, javaobjnew --exact: {} %", spread(lost));
}

/// Starts another tracer and waits until it reports that it traces. Returns `None` and prints the
/// reason if it does not.
fn start_other(command: &[&str], says: &str) -> Option<ChildProcess> {
    let mut tracer = Command::new(command[0]);
    tracer.args(&command[1..]).env("PYTHONUNBUFFERED", "1");
    tracer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child: Child = match tracer.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("skipping {}: {error}", command[0]);
            return None;
        }
    };
    let mut other = ChildProcess(child);
    let mut out = BufReader::new(other.0.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains(says) {
        line.clear();
        if out.read_line(&mut line).unwrap_or(0) == 0 {
            let mut why = String::new();
            if let Some(mut stderr) = other.0.stderr.take() {
                // The tracer has ended; its messages contain the reason.
                let _ = stderr.read_to_string(&mut why);
            }
            println!("skipping {}: {}", command[0], why.lines().last().unwrap_or("it ended"));
            return None;
        }
    }
    // Later output is discarded, so that the pipe does not fill up.
    thread::spawn(move || {
        let mut rest = String::new();
        let _ = out.read_to_string(&mut rest);
    });
    // The tracer prints this line before it has attached.
    thread::sleep(Duration::from_millis(1500));
    Some(other)
}

fn end_other(mut other: ChildProcess) {
    if let Some(pid) = i32::try_from(other.pid()).ok().and_then(Pid::from_raw) {
        // It may already have ended.
        let _ = kill_process(pid, Signal::INT);
    }
    for _ in 0..100 {
        if other.0.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Measures the number of objects per second that `--exact` counts while the JVM allocates as fast
/// as it can.
fn exact() {
    for name in ["temurin-17", "temurin-25"] {
        let flags = format!("{STOCK} -XX:+DTraceAllocProbes");
        let mut load = Load::start_program(named(name), &flags, "AllocLoad");
        load.ask("go 2");
        let tool = Tool::start("javaobjnew", &["-p", &load.pid().to_string(), "-j", "--exact"]);
        let truth = allocated::parse(&load.ask("go 5 1000000 2"));
        let records = tool.interrupt().json();
        let objects: u64 = truth.classes.values().map(|(objects, _)| objects).sum();
        let wide = records.iter().find(|r| r["class"] == "AllocLoad$Wide");
        println!(
            "exact, {name}: {:.2} million objects per second on two processors, {} lost; AllocLoad$Wide: {} of {}",
            objects as f64 / 5e6,
            records.last().map_or(0.into(), |r| r["lost"].clone()),
            wide.map_or(0.into(), |r| r["objects"].clone()),
            truth.classes["AllocLoad$Wide"].0,
        );
    }
}

/// Measures peak resident memory and CPU time while tracing.
fn memory() {
    for (args, rate) in [(&["-q"][..], "200"), (&["-q"], "1000"), (&["-q", "-t"], "1000")] {
        let mut load = Load::start_program(named("temurin-25"), STOCK, "AllocLoad");
        let mut child = Command::new(binary("javaobjnew"))
            .args(["-p", &load.pid().to_string()])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start javaobjnew");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        stderr.read_line(&mut line).expect("it says Tracing");
        load.ask(&format!("go 10 {rate} 2"));
        let used = usage(child.id());
        println!(
            "memory, javaobjnew {} at {rate} MB/s: peak {} kB; CPU use {:.1} % of one core",
            args.join(" "),
            used.peak_kb,
            used.seconds * 10.0
        );
        child.kill().expect("it still runs");
        child.wait().expect("it ends");
    }
}
