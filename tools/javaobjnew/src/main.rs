//! javaobjnew: what a JVM allocates, by class, on a stock JVM.
//!
//! Arguments ([`args`]) name JVMs; [`probes`] finds where they can be watched; [`counters`]
//! loads the BPF side, which counts by class and sends some [`event`]s. The [`model`] of a JVM
//! knows the names of its classes ([`names`]) and reads full TLABs ([`census`]); [`tally`] adds
//! all up and estimates, [`report`] writes [`record`]s. Where [`stacks`] are wanted, it
//! [`split`]s classes among them, for [`stack_text`] and, as a profile, for the files of
//! [`flames`]. [`tracer`] puts these together for the library's loop.

mod args;
mod books;
mod census;
mod counters;
mod event;
mod flames;
mod model;
mod names;
mod probes;
mod record;
mod report;
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
    bpf::{self, clock},
    cli::{self, describe},
    follow::{Trace, jvms},
    own::{
        budget, note,
        privileges::{ATTACH, HURRY, MAPS, OUTPUT, READ, keep},
        stop_on_signal,
    },
    render::{
        files::Files,
        formats::{How, Titled, flamegraph::Title},
    },
};

use crate::{args::Args, report::Report, tracer::Tracer};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    budget::set(args.max_memory);
    bpf::set_libbpf_output(common.verbose);
    bpf::preflight::check()?;
    keep(MAPS | READ | ATTACH | HURRY | OUTPUT);
    let stop = stop_on_signal()?;
    let named = jvms::find(&common.pids()?)?;
    let tracer = Tracer::new(args, Report::open(args)?)?;
    let mut trace = Trace::start(tracer, named, common.arrivals(), common.verbose)?;
    // Only now, so that a wrong process number does not cost an earlier result.
    let files = Files::create(&args.output, &["alloc"])?;
    let later = if common.all { ATTACH } else { MAPS };
    // A file that was created is removed again where there is nothing to write into it.
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    keep(MAPS | READ | later | output);
    let what = describe(common.all, trace.names());
    let how = if args.exact { "every allocation" } else { "allocations" };
    note(&format!("Tracing {how} of {what}... Hit Ctrl-C to end."));
    trace.run(common.times(), &stop)?;
    let now = clock::monotonic_ns();
    for jvm in trace.jvms.values_mut() {
        if !args.prints_tables() {
            jvm.tell_stops();
        }
        trace.tool.sum_up(jvm, now)?;
    }
    let flames = &trace.tool.flames;
    let title =
        Title { title: format!("Allocations of {what}"), subtitle: Some(flames.describe()) };
    let titled = Titled { profile: flames.profile(), title, timeline: None };
    let how = How { threads: args.threads, keep_narrow: args.keep_narrow, ..How::default() };
    for path in files.write(&[titled], &how)? {
        note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
