//! Prints figures for jvmprobed: `make bench`. Nothing is asserted.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{process::Command, thread, time::Duration};

use jvmprobe_tests::{
    allocated,
    attack::Attack,
    bench::{run_parts, spread},
    load::{Load, numbers},
    proc::cpu_seconds,
    run_alone,
    runtimes::named,
    tool::{Tool, binary},
};
use rustix::process::Signal;
use tempfile::TempDir;

fn main() {
    run_alone();
    run_parts(&[("neighbour", speed_of_a_neighbour)]);
}

/// Number of runs of each program with the daemon, and without.
const ROUNDS: usize = 8;

/// Measures the work of a JVM per second of its CPU time, alternately with and without the daemon. All
/// attackers of [`Attack`] run meanwhile.
fn speed_of_a_neighbour() {
    // Builds the tools now, before the attackers use the processors.
    binary("jvmprobed");
    let mut busy = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "CpuLoad");
    let mut allocating = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "AllocLoad");
    let _attack = Attack::start();
    let (mut computed, mut allocated) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let without = [rounds(&mut busy), bytes(&mut allocating)];
        let (daemon, _dir) = start();
        // Time for the daemon to attach to the attackers, too.
        thread::sleep(Duration::from_secs(3));
        let with = [rounds(&mut busy), bytes(&mut allocating)];
        daemon.signal(Signal::TERM);
        daemon.wait();
        computed.push((with[0] / without[0] - 1.0) * 100.0);
        allocated.push((with[1] / without[1] - 1.0) * 100.0);
    }
    println!(
        "change in speed of a computing JVM beside attackers, due to the daemon: {} %",
        spread(computed)
    );
    println!(
        "change in speed of an allocating JVM beside attackers, due to the daemon: {} %",
        spread(allocated)
    );
}

fn start() -> (Tool, TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(binary("jvmprobed"));
    command.args(["--config", "/dev/null", "--listen", "127.0.0.1:0", "--dir"]);
    command.arg(dir.path().join("store"));
    (Tool::spawn(command), dir)
}

/// Returns the rounds of work per second of CPU time.
fn rounds(load: &mut Load) -> f64 {
    let answer = load.ask("go 6");
    let rounds = answer.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok()).expect("rounds");
    let ns: u64 = numbers(&answer).values().sum();
    rounds / ns as f64 * 1e9
}

/// Returns the bytes allocated per second of CPU time.
fn bytes(load: &mut Load) -> f64 {
    let before = cpu_seconds(load.pid());
    let truth = allocated::parse(&load.ask("go 6 200 2"));
    truth.total as f64 / (cpu_seconds(load.pid()) - before)
}
