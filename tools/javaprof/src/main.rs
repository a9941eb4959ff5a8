//! javaprof: where the time of running JVMs goes, in Java, native and kernel code.
//!
//! Arguments ([`args`]) name processes and [`events`]; [`session`] loads the BPF side and samples;
//! [`profiler`] follows the processes ([`traced`]) and collects; [`naming`] turns
//! addresses into names; [`report`] shows the profile as a [`summary`] or as [`record`]s, and
//! [`outputs`] writes it to files.

mod args;
mod asleep;
mod command;
mod event;
mod events;
mod idle;
mod naming;
mod outputs;
mod profiler;
mod progress;
mod record;
mod report;
mod rights;
mod session;
mod summary;
mod symbols;
mod traced;
mod user;
mod waits;
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
    bpf, cli,
    own::{Hurry, note, stop_on_signal},
    stack::shrunk,
};

use crate::{
    args::Args,
    command::Waiting,
    outputs::Outputs,
    profiler::{Profiler, Raw},
    report::Report,
    user::User,
};

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
    bpf::set_libbpf_output(args.common.verbose);
    bpf::preflight::check()?;
    let stop = stop_on_signal()?;
    let hurry = Hurry::begin();
    let mut profiler = Profiler::new(args, Report::open(args)?)?;
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
    let title = profiler.title().to_owned();
    note(&format!("Sampling {}... Hit Ctrl-C to end.", profiler.describe()));
    let running = waiting.map(|(waiting, program)| waiting.go(program)).transpose()?;
    profiler.run(&stop)?;
    let (raw, mut profiles) = profiler.finish()?;
    tell_losses(&raw);
    profiles.iter_mut().for_each(|profile| report::choose(profile, args));
    for path in outputs.write(&profiles, &raw, &title)? {
        note(&format!("wrote {}", path.display()));
    }
    for pid in &raw.unnamed {
        note(&format!("methods of process {pid} have no names: -p {pid} --symbols agent asks it"));
    }
    // What there is to see was shown before anybody waits.
    if let Some(running) = running {
        running.end();
    }
    Ok(())
}

/// What makes the figures wrong, or names.
fn tell_losses(raw: &Raw) {
    if raw.lost_code > 0 {
        note(&format!("{} loads and unloads of code were lost: names may be wrong", raw.lost_code));
    }
    if raw.lost_stacks > 0 {
        let stacks = raw.lost_stacks;
        note(&format!("the stacks of {stacks} samples were lost: these count as [unknown]"));
    }
    if raw.lost > 0 {
        note(&format!("{} samples were lost: all numbers are too low by that much", raw.lost));
    }
    if shrunk::has_shrunk() {
        note("a file has shrunk while its symbols were read: names of its functions may be wrong");
    }
}
