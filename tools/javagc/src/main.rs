//! javagc: every GC pause of a running JVM, with its cause, and what the
//! application felt.
//!
//! Arguments ([`args`]) name JVMs; [`instants`] picks the probes in their
//! libjvm.so; [`session`] loads and attaches the BPF side, whose [`event`]s
//! [`assemble`] pairs up into [`record`]s; [`requests`] tells who asked for them;
//! [`summary`] adds them up and [`report`] writes them. [`tracer`] turns the wheel.

mod args;
mod assemble;
mod event;
mod instants;
mod jvm;
mod list;
mod record;
mod report;
mod requests;
mod session;
mod summary;
mod tracer;

/// Generated from bpf/javagc.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javagc.skel.rs"));
}

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf, cli,
    own::{
        note,
        privileges::{ATTACH, HURRY, MAPS, READ, keep},
        stop_on_signal,
    },
};

use crate::{args::Args, report::Report, tracer::Tracer};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.list_probes {
        return list::run(args);
    }
    bpf::set_libbpf_output(args.verbose);
    bpf::preflight::check()?;
    let report = Report::open(args)?;
    keep(MAPS | READ | ATTACH | HURRY);
    let stop = stop_on_signal()?;
    let tracer = Tracer::start(args, report)?;
    keep(if args.all { MAPS | READ | ATTACH } else { MAPS | READ });
    let what = tracer.describe();
    note(&format!("Tracing GC pauses of {what}... Hit Ctrl-C to end."));
    tracer.run(&stop)
}
