//! javaobjnew: what a JVM allocates, by class, on a stock JVM.
//!
//! Arguments ([`args`]) name JVMs; [`places`] finds where they can be watched;
//! [`session`] loads and attaches the BPF side, which counts by class and sends some
//! [`event`]s. A [`jvm`] knows the names of its classes ([`names`]) and reads full TLABs
//! ([`census`]); [`tally`] adds all up and estimates, [`report`] writes [`record`]s. Where
//! [`stacks`] are wanted, it [`split`]s classes among them, for [`stack_text`] and, as a
//! profile, for the files of [`flames`]. [`tracer`] turns the wheel.

mod args;
mod census;
mod event;
mod flames;
mod jvm;
mod names;
mod places;
mod record;
mod report;
mod session;
mod split;
mod stack_text;
mod stacks;
mod tally;
mod tracer;

/// Generated from bpf/javaobjnew.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaobjnew.skel.rs"));
}

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf, cli,
    own::{
        budget, note,
        privileges::{ATTACH, HURRY, MAPS, OUTPUT, READ, keep},
        stop_on_signal,
    },
    render::{files::Files, flamegraph::Title},
};

use crate::{args::Args, report::Report, tracer::Tracer};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    budget::set(args.max_memory);
    bpf::set_libbpf_output(args.verbose);
    bpf::preflight::check()?;
    keep(MAPS | READ | ATTACH | HURRY | OUTPUT);
    let stop = stop_on_signal()?;
    let tracer = Tracer::start(args, Report::open(args)?)?;
    // Only now, so that a wrong process number does not cost an earlier result.
    let files = Files::create(&args.output)?;
    let later = if args.all { ATTACH } else { MAPS };
    // A file that was created is removed again where there is nothing to write into it.
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    keep(MAPS | READ | later | output);
    let what = tracer.describe();
    let how = if args.exact { "every allocation" } else { "allocations" };
    note(&format!("Tracing {how} of {what}... Hit Ctrl-C to end."));
    let flames = tracer.run(&stop)?;
    let title =
        Title { title: format!("Allocations of {what}"), subtitle: Some(flames.describe()) };
    for path in files.write(flames.profile(), args.threads, &title, None)? {
        note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
