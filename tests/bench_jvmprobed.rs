//! Figures for jvmprobed, printed: `make bench`. Nothing here is asserted.
#![allow(clippy::print_stdout, reason = "figures, for whoever runs it")]

use std::{process::Command, thread, time::Duration};

use jvmprobe_tests::{
    allocated,
    attack::Attack,
    bench::{run_parts, spread},
    load::{Load, numbers},
    need_root,
    proc::cpu_seconds,
    runtimes::named,
    tool::{Tool, binary},
};
use rustix::process::Signal;
use tempfile::TempDir;

fn main() {
    need_root();
    run_parts(&[("neighbour", speed_of_a_neighbour)]);
}

/// How often each program runs with the daemon, and how often without.
const ROUNDS: usize = 8;

/// Work that a JVM does per second of its CPU time, with and without the daemon, by turns beside all attackers.
fn speed_of_a_neighbour() {
    // Built before attackers take the processors.
    binary("jvmprobed");
    let mut busy = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "CpuLoad");
    let mut allocating = Load::start_program(named("temurin-21"), "-XX:+UseSerialGC", "AllocLoad");
    let _attack = Attack::start();
    let (mut computed, mut allocated) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let without = [rounds(&mut busy), bytes(&mut allocating)];
        let (daemon, _dir) = start();
        // It attaches to the attackers, too.
        thread::sleep(Duration::from_secs(3));
        let with = [rounds(&mut busy), bytes(&mut allocating)];
        daemon.signal(Signal::TERM);
        daemon.wait();
        computed.push((with[0] / without[0] - 1.0) * 100.0);
        allocated.push((with[1] / without[1] - 1.0) * 100.0);
    }
    println!(
        "speed of a neighbour that computes, beside attackers: {} % changed",
        spread(computed)
    );
    println!(
        "speed of a neighbour that allocates, beside attackers: {} % changed",
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

/// Rounds of work per second of CPU time.
fn rounds(load: &mut Load) -> f64 {
    let answer = load.ask("go 6");
    let rounds = answer.split(' ').nth(1).and_then(|n| n.parse::<f64>().ok()).expect("rounds");
    let ns: u64 = numbers(&answer).values().sum();
    rounds / ns as f64 * 1e9
}

/// Bytes allocated per second of CPU time.
fn bytes(load: &mut Load) -> f64 {
    let before = cpu_seconds(load.pid());
    let truth = allocated::parse(&load.ask("go 6 200 2"));
    truth.total as f64 / (cpu_seconds(load.pid()) - before)
}
