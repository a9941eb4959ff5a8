//! javaobjnew: what a JVM allocates, by class, on a stock JVM.
//!
//! Arguments ([`args`]) name JVMs; the library takes what they allocate
//! ([`libjvmprobe::take::allocations`]); [`report`] writes it, with its stacks as [`stack_text`]
//! and, as a profile, for the files of [`flames`].

mod args;
mod flames;
mod report;
mod stack_text;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf,
    cli::{self, describe},
    follow::{Trace, jvms},
    own::{
        note,
        privileges::{ATTACH, HURRY, MAPS, OUTPUT, READ, keep},
        stop_on_signal,
    },
    render::{
        files::Files,
        formats::{How, Titled, flamegraph::Title},
    },
    take::allocations::Taker,
};

use crate::{args::Args, report::Report};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<()> {
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose > 1);
    bpf::preflight::check()?;
    keep(MAPS | READ | ATTACH | HURRY | OUTPUT);
    let stop = stop_on_signal()?;
    let named = jvms::find(&common.pids()?)?;
    let taker = Taker::new(args.options(), Report::open(args)?)?;
    let mut trace = Trace::start(taker, named, common.arrivals()?, common.is_verbose())?;
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
    trace.tool.finish(&mut trace.jvms)?;
    let flames = &trace.tool.sink.flames;
    let title =
        Title { title: format!("Allocations of {what}"), subtitle: Some(flames.describe()) };
    let timeline = flames.timeline();
    let titled = Titled { profile: flames.profile(), title, timeline: timeline.as_ref() };
    let Args { threads, keep_narrow, timeline: by_second, .. } = *args;
    let how = How { threads, keep_narrow, by_second, base: None };
    for path in files.write(&[titled], &how)? {
        note(&format!("wrote {}", path.display()));
    }
    Ok(())
}
