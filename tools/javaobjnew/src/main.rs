//! javaobjnew: shows the allocations of a stock JVM by class.
//!
//! The arguments ([`args`]) name JVMs. The library collects their allocations
//! ([`libjvmprobe::trace::allocations`]). [`report`] prints them, [`stack_text`] formats their stacks,
//! and [`flames`] builds the profile for the output files.

mod args;
mod flames;
mod report;
mod stack_text;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf,
    cli::{self, describe},
    jvms::{Trace, tracing},
    render::{
        files::Files,
        formats::{FormatOptions, TitledProfile, flamegraph::Title},
    },
    sys::{
        privileges::{ATTACH, MAPS, OUTPUT, RAISE_PRIORITY, READ, keep_only},
        stop_on_signal,
    },
    trace::allocations::Tracer,
};

use crate::{args::Args, report::Report};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose > 1);
    bpf::preflight::check()?;
    keep_only(MAPS | READ | ATTACH | RAISE_PRIORITY | OUTPUT);
    let stop = stop_on_signal()?;
    let named = tracing::find(&common.pids()?)?;
    let tracer = Tracer::new(args.options(), Report::open(args)?)?;
    let mut trace = Trace::start(tracer, named, common.arrivals()?)?;
    // Created only now, so that a wrong PID does not overwrite the files of an earlier run.
    let files = Files::create(&args.output, &["alloc"])?;
    let later_rights = if common.all { ATTACH } else { MAPS };
    // `OUTPUT` is kept, because `files.write` removes a created file if there is nothing to write.
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    keep_only(MAPS | READ | later_rights | output);
    let what = describe(common.all, trace.names());
    let kind = if args.exact { "every allocation" } else { "allocations" };
    log::info!("Tracing {kind} of {what}... Hit Ctrl-C to end.");
    trace.run(common.times(), &stop)?;
    trace.tool.finish(&mut trace.jvms)?;
    let flames = &trace.tool.sink.flames;
    let title =
        Title { title: format!("Allocations of {what}"), subtitle: Some(flames.describe()) };
    let titled = TitledProfile { profile: flames.profile(), title, bands: flames.bands() };
    let Args { threads, keep_narrow, timeline: by_second, .. } = *args;
    let jvms = flames.jvms();
    let format_options = FormatOptions { threads, keep_narrow, by_second, jvms, base: None };
    Ok(files.write(&[titled], &format_options)?)
}
