//! javawait: shows what the threads of running JVMs wait for, for how long, and which thread made them wait.
//!
//! The arguments ([`args`]) name JVMs. The library records the waits ([`libjvmprobe::trace::waits`]). [`report`] receives
//! them and prints them: one by one ([`line`], [`record`]), or grouped ([`groups`], [`table`]).

mod args;
mod groups;
mod line;
mod record;
mod report;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf,
    cli::{self, describe},
    jvms::{Trace, tracing},
    sys::{
        privileges::{
            ATTACH, KERNEL_SYMBOLS, MAPS, OUTPUT, PROBE, RAISE_PRIORITY, READ, keep_only,
        },
        stop_on_signal,
    },
    trace::waits::Tracer,
};

use crate::{args::Args, report::Report};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose > 1);
    bpf::preflight::check()?;
    keep_only(MAPS | READ | ATTACH | KERNEL_SYMBOLS | RAISE_PRIORITY | OUTPUT);
    let stop = stop_on_signal()?;
    let named = tracing::find(&common.pids()?)?;
    let tracer = Tracer::new(args.options(), Report::open(args)?)?;
    let mut trace = Trace::start(tracer, named, common.arrivals()?)?;
    // `PROBE` is needed at the end, to list the threads that still wait.
    keep_only(MAPS | READ | KERNEL_SYMBOLS | PROBE | if common.all { ATTACH } else { MAPS });
    let what = describe(common.all, trace.names());
    log::info!("Tracing waits of {what}... Hit Ctrl-C to end.");
    trace.run(common.times(), &stop)?;
    trace.tool.finish(&mut trace.jvms)?;
    Ok(())
}
