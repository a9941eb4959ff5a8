//! javagc: shows every GC pause of a running JVM with its cause, and how long the
//! application was stopped.
//!
//! The arguments ([`args`]) name JVMs. The library records their pauses
//! ([`libjvmprobe::trace::pauses`]), and [`report`] prints them.

mod args;
mod list;
mod report;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf,
    cli::{self, describe},
    jvms::{End, Trace, tracing},
    sys::{
        privileges::{ATTACH, MAPS, RAISE_PRIORITY, READ, keep_only},
        stop_on_signal,
    },
    trace::pauses::Tracer,
};

use crate::{args::Args, report::Reports};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    if args.list_probes {
        return list::run(args);
    }
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose > 1);
    bpf::preflight::check()?;
    let reports = Reports::open(args)?;
    keep_only(MAPS | READ | ATTACH | RAISE_PRIORITY);
    let stop = stop_on_signal()?;
    let named = tracing::find(&common.pids()?)?;
    let tracer = Tracer::new(args.options(), reports, &named)?;
    let mut trace = Trace::start(tracer, named, common.arrivals()?)?;
    keep_only(if common.all { MAPS | READ | ATTACH } else { MAPS | READ });
    let what = describe(common.all, trace.names());
    log::info!("Tracing GC pauses of {what}... Hit Ctrl-C to end.");
    if trace.run(common.times(), &stop)? == End::Time {
        trace.tool.finish(&mut trace.jvms)?;
    }
    Ok(trace.tool.sink.finish()?)
}
