//! javaprof: profiles running JVMs, in Java, native and kernel code.
//!
//! The arguments ([`args`]) name processes and events. The library collects the samples
//! ([`libjvmprobe::trace::samples`]). [`report`] shows the profile as a summary or as
//! [`record`]s, and [`outputs`] writes it to files.

mod args;
mod outputs;
mod progress;
mod record;
mod report;
mod rights;
mod write_maps;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf, cli,
    jvms::command::HeldCommand,
    sys::{PriorityBoost, stop_on_signal},
    trace::samples::{About, Sampler},
};

use crate::{args::Args, outputs::Outputs, report::Report};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.started.command.is_empty() {
        rights::get_ready(args);
    }
    if args.write_maps {
        return write_maps::run(args);
    }
    // First, so that an unknown user name is reported before anything is loaded.
    let user = args.started.user()?;
    bpf::set_libbpf_output(args.common.verbose > 1);
    bpf::preflight::check()?;
    let stop = stop_on_signal()?;
    let hurry = PriorityBoost::begin();
    let report = Report::open(args)?;
    let mut taker = Sampler::new(args.options()?, report)?;
    drop(hurry);
    // Opened only now, so that a wrong PID does not overwrite the files of an earlier run.
    let outputs = Outputs::open(args)?;
    let waiting = args.started.fork(user)?;
    if let Some(waiting) = &waiting {
        taker.add_process(waiting.pid)?;
    }
    rights::get_ready(args);
    let hurry = PriorityBoost::begin();
    taker.start()?;
    drop(hurry);
    rights::sample(args);
    let targets = describe(args, &taker);
    let title = format!("{} of {targets}", args.what());
    taker.sink.title.clone_from(&title);
    log::info!("Sampling {targets}... Hit Ctrl-C to end.");
    let running = waiting.map(HeldCommand::go).transpose()?;
    taker.run(args.times(), &stop)?;
    taker.sink.end_progress();
    let (report, about, mut profiles) = taker.finish()?;
    let folded: u64 = profiles.iter().map(|profile| profile.folded).sum();
    if folded > report.folded && !args.output.is_empty() {
        log::warn!(
            "the output files lack the stacks of {folded} samples, which exceed the memory limit: \
             see --max-memory"
        );
    }
    tell_losses(&about);
    profiles.iter_mut().for_each(|profile| report::choose(profile, args));
    for path in outputs.write(&profiles, &about, &title)? {
        log::info!("wrote {}", path.display());
    }
    for pid in &about.unnamed {
        log::warn!(
            "methods of process {pid} have no names; use -p {pid} --symbols agent to load an agent \
             that names them"
        );
    }
    // Last, because ending the command may take time: all results are already shown.
    if let Some(running) = running {
        running.end();
    }
    Ok(())
}

/// Returns one line that names the sampled processes, the frequency and the clock.
fn describe(args: &Args, taker: &Sampler<Report<'_>>) -> String {
    let mut pids = taker.pids();
    let what = match (args.system_wide, args.common.all, pids.len()) {
        (true, ..) => format!("every process ({} JVMs now)", taker.jvms()),
        (_, true, n) => format!("all JVMs ({n} now)"),
        (.., 1) => pids.next().map(|pid| format!("process {pid}")).unwrap_or_default(),
        (.., n) => format!("{n} processes"),
    };
    match taker.clock() {
        Some(clock) => format!("{what} at {} Hz ({})", taker.hertz(), clock.name()),
        None => what,
    }
}

/// Reports losses that make numbers or names wrong.
fn tell_losses(about: &About) {
    if about.lost_code > 0 {
        log::warn!("lost {} code load and unload events: names may be wrong", about.lost_code);
    }
    if about.lost_stacks > 0 {
        let stacks = about.lost_stacks;
        log::warn!("lost the stacks of {stacks} samples: they are counted as [unknown]");
    }
    if about.lost > 0 {
        log::warn!("lost {} samples: all numbers are too low by that much", about.lost);
    }
}
