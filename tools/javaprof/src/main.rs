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
    stack::profile::Profile,
    sys::{PriorityBoost, stop_on_signal},
    trace::samples::{About, Sampler},
};

use crate::{args::Args, outputs::Outputs, report::Report};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.started.command.is_empty() {
        rights::keep_startup_rights(args);
    }
    if args.write_maps {
        return write_maps::run(args);
    }
    // The user is looked up here, so that an unknown user name is reported before BPF programs are loaded.
    let user = args.started.user()?;
    bpf::set_libbpf_output(args.common.verbose > 1);
    bpf::preflight::check()?;
    let stop = stop_on_signal()?;
    let boost = PriorityBoost::begin();
    let report = Report::open(args)?;
    let mut sampler = Sampler::new(args.options()?, report)?;
    drop(boost);
    // Opened only now, so that a wrong PID does not overwrite the files of an earlier run.
    let outputs = Outputs::open(args)?;
    let waiting = args.started.fork(user)?;
    if let Some(waiting) = &waiting {
        sampler.add_process(waiting.pid)?;
    }
    rights::keep_startup_rights(args);
    let boost = PriorityBoost::begin();
    sampler.start()?;
    drop(boost);
    rights::keep_sampling_rights(args);
    let targets = describe(args, &sampler);
    let title = format!("{} of {targets}", args.event_names());
    sampler.sink.title.clone_from(&title);
    log::info!("Sampling {targets}... Hit Ctrl-C to end.");
    let running = waiting.map(HeldCommand::go).transpose()?;
    sampler.run(args.times(), &stop)?;
    sampler.sink.end_progress();
    let (report, about, mut profiles) = sampler.finish()?;
    let dropped_stacks: u64 = profiles.iter().map(|profile| profile.folded).sum();
    if dropped_stacks > report.dropped_stacks && !args.output.is_empty() {
        log::warn!(
            "the output files lack the stacks of {dropped_stacks} samples, which exceed the memory \
             limit: see --max-memory"
        );
    }
    warn_of_losses(&about);
    warn_of_missing_spans(args, &profiles);
    profiles.iter_mut().for_each(|profile| report::apply_filters(profile, args));
    outputs.write(&profiles, &about, &title)?;
    for pid in &about.unnamed {
        log::warn!(
            "methods of process {pid} have no names; use -p {pid} --symbols agent to load an agent \
             that names them"
        );
    }
    // Ending the command may take time, so this is done last, when all results are shown.
    if let Some(running) = running {
        running.end();
    }
    Ok(())
}

/// Returns one line that names the sampled processes, the frequency and the clock.
fn describe(args: &Args, sampler: &Sampler<Report<'_>>) -> String {
    let mut pids = sampler.pids();
    let what = match (args.system_wide, args.common.all, pids.len()) {
        (true, ..) => format!("every process ({} JVMs now)", sampler.jvms()),
        (_, true, n) => format!("all JVMs ({n} now)"),
        (.., 1) => pids.next().map(|pid| format!("process {pid}")).unwrap_or_default(),
        (.., n) => format!("{n} processes"),
    };
    match sampler.clock() {
        Some(clock) => format!("{what} at {} Hz ({})", sampler.hertz(), clock.name()),
        None => what,
    }
}

/// Prints a note if samples without a span were not to be expected.
fn warn_of_missing_spans(args: &Args, profiles: &[Profile]) {
    let mut samples = profiles.iter().flat_map(|profile| &profile.samples);
    if args.span && samples.all(|sample| sample.span.is_none()) {
        log::warn!("no sampled thread has published a span: see TRACE CONTEXTS in javaprof(8)");
    }
    let dropped: u64 = profiles.iter().map(|profile| profile.without_span).sum();
    if dropped > 0 {
        log::warn!("dropped the spans of {dropped} samples to limit memory use: see --max-memory");
    }
}

/// Reports losses that make numbers or names wrong.
fn warn_of_losses(about: &About) {
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
