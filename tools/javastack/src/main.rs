//! javastack: prints the threads of running JVMs with their stacks, states and locks, without the JVMs' help.
//!
//! The arguments ([`args`]) name JVMs. The library takes the dumps ([`libjvmprobe::trace::threads`]), and [`report`]
//! prints them in jstack's format, [`json`] in that of `jcmd Thread.dump_to_file`.

mod args;
mod json;
mod report;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::Result;
use libjvmprobe::{
    bpf, cli,
    jvms::{Named, tracing},
    render::output::Output,
    sys::{
        privileges::{ATTACH, KERNEL_SYMBOLS, MAPS, READ, keep_only},
        stop_on_signal,
    },
    trace::threads::Dumper,
};

use crate::args::Args;

/// Exit status if a deadlock was found.
const DEADLOCK: u8 = 3;

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<ExitCode> {
    bpf::set_libbpf_output(args.common.verbose > 1);
    bpf::preflight::check()?;
    keep_only(MAPS | READ | ATTACH | if args.mixed { KERNEL_SYMBOLS } else { MAPS });
    let stop = stop_on_signal()?;
    let jvms =
        if args.common.all { tracing::now().0 } else { tracing::find(&args.common.pids()?)? };
    let (mut dumper, mut out) = (Dumper::new(args.mixed)?, Output::open(None)?);
    let mut has_deadlock = false;
    let mut dumps = 0;
    let mut next = Instant::now();
    let end = args.common.duration.map(|duration| next + duration);
    loop {
        for jvm in &jvms {
            if stop.load(Ordering::Relaxed) || out.is_closed() {
                break;
            }
            match dump(args, jvm, &mut dumper, &mut out) {
                Ok(found) => has_deadlock |= found,
                // One of many JVMs may exit, or may be unreadable.
                Err(error) if jvms.len() > 1 => log::warn!("process {}: {error:#}", jvm.0.pid()),
                Err(error) => return Err(error),
            }
        }
        dumps += 1;
        let Some(interval) = args.common.interval else { break };
        next += interval;
        let is_last = args.common.count.is_some_and(|count| dumps >= count)
            || end.is_some_and(|end| next > end);
        if is_last || out.is_closed() || !wait_until(next, &stop) {
            break;
        }
    }
    Ok(if has_deadlock { ExitCode::from(DEADLOCK) } else { ExitCode::SUCCESS })
}

/// Prints a dump of one JVM. Returns whether it has a deadlock.
fn dump(
    args: &Args,
    (target, hotspot): &Named,
    dumper: &mut Dumper,
    out: &mut Output,
) -> Result<bool> {
    let hotspot = hotspot.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
    let dump = dumper.dump(target.pid(), hotspot)?;
    if args.common.json {
        out.json(&json::dump(args, target.pid(), hotspot, &dump))?;
    } else {
        report::print(args, hotspot, &dump, out)?;
    }
    Ok(!dump.deadlocks.is_empty())
}

/// Waits until a time. Returns `false` if a signal ended the wait.
fn wait_until(time: Instant, stop: &AtomicBool) -> bool {
    const POLL: Duration = Duration::from_millis(20);
    while Instant::now() < time {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        sleep(POLL.min(time.saturating_duration_since(Instant::now())));
    }
    !stop.load(Ordering::Relaxed)
}
