//! javagc: every GC pause of a running JVM, with its cause, and what the
//! application felt.
//!
//! Arguments ([`args`]) name JVMs; [`probes`] picks what to attach to in their libjvm.so;
//! [`session`] loads the BPF side, whose [`event`]s [`assemble`] pairs up into [`record`]s for
//! the [`model`] of a JVM; [`requests`] tells who asked for them; [`summary`] adds them up and
//! [`report`] writes them. [`tracer`] puts these together for the library's loop.

mod args;
mod assemble;
mod event;
mod list;
mod model;
mod probes;
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
    bpf,
    cli::{self, describe},
    follow::{End, Tool, Trace, jvms},
    own::{
        note,
        privileges::{ATTACH, HURRY, MAPS, READ, keep},
        stop_on_signal,
    },
};

use crate::{args::Args, report::Reports, tracer::Tracer};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.list_probes {
        return list::run(args);
    }
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose);
    bpf::preflight::check()?;
    let reports = Reports::open(args)?;
    keep(MAPS | READ | ATTACH | HURRY);
    let stop = stop_on_signal()?;
    let named = jvms::find(&common.pids()?)?;
    let tracer = Tracer::new(args, reports, &named)?;
    let mut trace = Trace::start(tracer, named, common.arrivals(), common.verbose)?;
    keep(if common.all { MAPS | READ | ATTACH } else { MAPS | READ });
    let what = describe(common.all, trace.names());
    note(&format!("Tracing GC pauses of {what}... Hit Ctrl-C to end."));
    if trace.run(common.times(), &stop)? == End::Time {
        trace.tool.report(&mut trace.jvms)?;
    }
    Ok(())
}
