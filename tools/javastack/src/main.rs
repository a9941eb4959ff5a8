//! javastack: prints the threads of running JVMs with their stacks, states and locks, without the JVMs' help.
//!
//! The arguments ([`args`]) name JVMs. The library takes the dumps ([`libjvmprobe::trace::threads`]) and prints them in
//! jstack's format ([`libjvmprobe::render::threads`]). [`json`] and [`containers`] print them in the format of `jcmd
//! Thread.dump_to_file`, and [`flames`] makes a profile of all stacks for the output files.

mod args;
mod containers;
mod core_file;
mod flames;
mod json;

use std::{
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use libjvmprobe::{
    bpf, cli,
    jvms::{Named, tracing},
    process::freeze::Frozen,
    render::{
        files::Files,
        formats::{FormatOptions, TitledProfile, flamegraph::Title},
        output::Output,
        threads::report,
    },
    stack::profile::Profile,
    sys::{
        privileges::{KERNEL_SYMBOLS, MAPS, OUTPUT, PROBE, READ, Rights, keep_only},
        stop_on_signal,
    },
    trace::threads::{Changes, Dumper, MAX_THREADS, MAX_VIRTUAL_THREADS},
};

use crate::args::Args;

/// Exit status if a deadlock was found.
const DEADLOCK: u8 = 3;

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<ExitCode> {
    if let Some(core) = &args.core {
        return core_file::dump(args, core);
    }
    bpf::set_libbpf_output(args.common.verbose > 1);
    bpf::preflight::check()?;
    let rights = [
        (args.mixed, KERNEL_SYMBOLS),
        // This right is also needed at the end, because `Files::write` removes a created file if there is
        // nothing to write.
        (!args.output.is_empty(), OUTPUT),
    ];
    let wanted = rights.into_iter().filter_map(|(is_wanted, right)| is_wanted.then_some(right));
    keep_only(wanted.fold(MAPS | READ | PROBE, Rights::union));
    let stop = stop_on_signal()?;
    let jvms =
        if args.common.all { tracing::now().0 } else { tracing::find(&args.common.pids()?)? };
    let mut dumps = Dumps {
        dumper: Dumper::new(args.mixed, MAX_THREADS, MAX_VIRTUAL_THREADS)?,
        changes: Changes::default(),
        profile: flames::new(),
        out: Output::open(None)?,
    };
    // Created only after all JVMs are found, so that a wrong PID does not overwrite files of an earlier run.
    let files = Files::create(&args.output, &["threads"])?;
    let mut has_deadlock = false;
    let mut count = 0;
    let mut next = Instant::now();
    let end = args.common.duration.map(|duration| next + duration);
    loop {
        for jvm in &jvms {
            if stop.load(Ordering::Relaxed) || dumps.out.is_closed() {
                break;
            }
            match dumps.dump(args, jvm) {
                Ok(found) => has_deadlock |= found,
                // If one of several JVMs has exited or cannot be read, the others are still dumped. If the
                // only JVM cannot be read, the next dump may succeed.
                Err(error) if jvms.len() > 1 || is_readable_later(args, jvm) => {
                    log::warn!("process {}: {error:#}", jvm.0.pid());
                }
                Err(error) => return Err(error),
            }
        }
        count += 1;
        let Some(interval) = args.common.interval else { break };
        next += interval;
        let is_last = args.common.count.is_some_and(|most| count >= most)
            || end.is_some_and(|end| next > end);
        if is_last || dumps.out.is_closed() || !wait_until(next, &stop) {
            break;
        }
    }
    dumps.write(files)?;
    Ok(exit_code(has_deadlock))
}

fn exit_code(has_deadlock: bool) -> ExitCode {
    if has_deadlock { ExitCode::from(DEADLOCK) } else { ExitCode::SUCCESS }
}

/// Takes and prints dumps.
struct Dumps {
    dumper: Dumper,
    changes: Changes,
    /// Stacks of all dumps.
    profile: Profile,
    out: Output,
}

impl Dumps {
    /// Prints a dump of one JVM. Returns whether it has a deadlock.
    fn dump(&mut self, args: &Args, (target, hotspot): &Named) -> Result<bool> {
        let hotspot = hotspot.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        let process = &target.process;
        let frozen = match args.freeze {
            true => Some(
                Frozen::new(process).with_context(|| format!("stop process {}", process.pid))?,
            ),
            false => None,
        };
        let mut dump = self.dumper.dump(process.pid, hotspot)?;
        if args.locks {
            dump.search_synchronizers(hotspot);
        }
        drop(frozen);
        if let Some(missing) = &dump.missing {
            log::warn!("process {}: {missing}", process.pid);
        }
        if let Some(left_out) = report::left_out(&dump) {
            log::warn!("process {}: {left_out}", process.pid);
        }
        if !args.output.is_empty() {
            flames::add(&mut self.profile, process, &dump, &args.dump_options());
        }
        if args.common.interval.is_some() {
            self.changes.since_last(&mut dump);
        }
        let options = args.dump_options();
        if args.common.json {
            self.out.json(&json::dump(&options, &dump))?;
        } else {
            self.out.batch(|out| report::print(&options, &dump, out))?;
        }
        Ok(!dump.deadlocks.is_empty())
    }

    /// Writes the output files.
    fn write(self, files: Files) -> Result<()> {
        let title = Title { title: "Threads".into(), subtitle: None };
        let titled = TitledProfile { profile: &self.profile, title, bands: Vec::new() };
        Ok(files.write(&[titled], &FormatOptions::default())?)
    }
}

/// Returns whether a later dump of a JVM may succeed after a dump has failed: the user wants several dumps,
/// the JVM is supported, and it has not exited.
fn is_readable_later(args: &Args, (target, hotspot): &Named) -> bool {
    args.common.interval.is_some() && hotspot.is_ok() && !target.process.has_ended()
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
