//! javawait: shows what the threads of running JVMs wait for, for how long, and which thread made them wait.
//!
//! The arguments ([`args`]) name JVMs. The library records the waits ([`libjvmprobe::trace::waits`]). [`report`] receives
//! them and prints them: one by one ([`wait_text`], [`record`]), grouped ([`groups`], [`table`]), or by lock ([`locks`]);
//! below, the virtual threads that waited without a carrier ([`unmounted`]).
//! [`flames`] builds the profile for the output files.

mod args;
mod flames;
mod groups;
mod locks;
mod record;
mod report;
mod table;
mod unmounted;
mod wait_text;

use std::process::ExitCode;

use anyhow::Result;
use libjvmprobe::{
    bpf,
    cli::{self, describe},
    jvms::{End, Trace, tracing},
    render::files::Files,
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
    let files = Files::create(&args.flame_files(), &["waits"])?;
    let tracer = Tracer::new(args.options(), Report::open(args)?)?;
    let mut trace = Trace::start(tracer, named, common.arrivals()?)?;
    // `PROBE` is needed at the end, to list the threads that still wait, and `OUTPUT` to remove a created file if there is
    // nothing to write.
    let output = if args.output.is_empty() { MAPS } else { OUTPUT };
    let later = if common.all { ATTACH } else { PROBE };
    keep_only(MAPS | READ | KERNEL_SYMBOLS | later | output);
    let what = describe(common.all, trace.names());
    log::info!("Tracing waits of {what}... Hit Ctrl-C to end.");
    trace.tool.sink.begin();
    let end = trace.run(common.times(), &stop)?;
    trace.tool.finish(&mut trace.jvms, end == End::Reported)?;
    if let Some(flames) = trace.tool.sink.take_flames() {
        flames::write(files, flames, &what, args)?;
    }
    Ok(trace.tool.sink.finish_recordings()?)
}
