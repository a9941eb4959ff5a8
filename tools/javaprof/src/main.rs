//! javaprof: where the time of running JVMs goes, in Java, native and kernel code.
//!
//! Arguments ([`args`]) name processes; [`session`] loads the BPF side and samples;
//! [`profiler`] follows the processes ([`traced`]) and collects; [`naming`] turns
//! addresses into names; [`summary`] and [`outputs`] show the profile.

mod args;
mod command;
mod event;
mod naming;
mod outputs;
mod profiler;
mod progress;
mod rights;
mod session;
mod summary;
mod traced;
mod user;
mod write_maps;

/// Generated from bpf/javaprof.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaprof.skel.rs"));
}

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    ask::agent,
    bpf, cli,
    own::{Hurry, note, stop_on_signal},
    render::{flamegraph::Title, folded, output::Output},
    stack::{profile::Profile, shrunk},
};

use crate::{args::Args, command::Waiting, outputs::Outputs, profiler::Profiler, user::User};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.command.is_empty() {
        rights::get_ready(args);
    }
    if args.write_maps {
        return write_maps::run(args);
    }
    // A name that nobody has is told at once.
    let user = args.user.as_deref().map(User::find).transpose()?;
    bpf::set_libbpf_output(args.verbose);
    bpf::preflight::check()?;
    let stop = stop_on_signal()?;
    let hurry = Hurry::begin();
    let mut profiler = Profiler::new(args)?;
    drop(hurry);
    // Only now, so that a wrong process number does not cost an earlier result.
    let outputs = Outputs::open(args)?;
    let waiting = match &args.command[..] {
        [] => None,
        command => {
            if let (None, Some(warning)) = (&user, user::warning()) {
                note(&warning);
            }
            let waiting = Waiting::fork(command, user)?;
            profiler.add_process(waiting.pid)?;
            Some((waiting, &command[0]))
        }
    };
    rights::get_ready(args);
    let hurry = Hurry::begin();
    profiler.start()?;
    drop(hurry);
    rights::sample(args);
    let what = profiler.describe();
    note(&format!("Sampling {what}... Hit Ctrl-C to end."));
    let running = waiting.map(|(waiting, program)| waiting.go(program)).transpose()?;
    profiler.run(&stop)?;
    let (raw, mut profile) = profiler.finish()?;
    if raw.lost_code > 0 {
        note(&format!("{} loads and unloads of code were lost: names may be wrong", raw.lost_code));
    }
    if raw.lost_stacks > 0 {
        note(&format!(
            "the stacks of {} samples were lost: these count as [unknown]",
            raw.lost_stacks
        ));
    }
    if raw.lost > 0 {
        note(&format!("{} samples were lost: all numbers are too low by that much", raw.lost));
    }
    if shrunk::has_shrunk() {
        note("a file has shrunk while its symbols were read: names of its functions may be wrong");
    }
    if profile.folded > 0 {
        note(&format!(
            "of {} samples the stacks were not kept, for want of room: see --max-memory",
            profile.folded
        ));
    }
    leave_out_agent(&mut profile);
    filter(&mut profile, args);
    let shown = show(&profile, args, outputs, &what);
    for pid in &raw.unnamed {
        note(&format!("methods of process {pid} have no names: -p {pid} --symbols agent asks it"));
    }
    // What there is to see was shown before anybody waits.
    if let Some(running) = running {
        running.end();
    }
    shown
}

/// A JVM that was found later is asked while it is sampled. What our agent does there is not
/// what the JVM is busy with.
fn leave_out_agent(profile: &mut Profile) {
    let before = profile.total();
    profile.retain(|frame| frame.module.as_deref().is_some_and(agent::is_agent), false);
    let left_out = before - profile.total();
    if left_out > 0 {
        note(&format!("samples of our own agent at work, left out: {left_out}"));
    }
}

/// Keeps what `--include` and `--exclude` leave.
fn filter(profile: &mut Profile, args: &Args) {
    if !args.include.is_empty() {
        profile.retain(|frame| args.include.iter().any(|r| r.is_match(&frame.name)), true);
    }
    profile.retain(|frame| args.exclude.iter().any(|r| r.is_match(&frame.name)), false);
}

fn show(profile: &Profile, args: &Args, outputs: Outputs, what: &str) -> Result<()> {
    let title = format!("Processor time of {what}");
    if !args.quiet {
        let mut out = Output::open(None)?;
        if args.folded {
            let options = folded::Options { threads: args.threads, mark_kinds: false };
            for line in folded::lines(profile, options) {
                out.line(&line)?;
            }
        } else {
            out.lines(summary::text(profile, &title).trim_end())?;
        }
    }
    let subtitle = Some(summary::spent(profile));
    for path in outputs.write(profile, &Title { title, subtitle })? {
        note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
