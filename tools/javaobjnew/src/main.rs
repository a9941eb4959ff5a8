//! javaobjnew: what a JVM allocates, by class, on a stock JVM.
//!
//! Arguments ([`args`]) name JVMs; [`places`] finds where they can be watched;
//! [`session`] loads and attaches the BPF side, which counts by class and sends some
//! [`event`]s. A [`jvm`] knows the names of its classes ([`names`]) and reads full TLABs
//! ([`census`]); [`tally`] adds all up and estimates, [`report`] writes [`record`]s.
//! [`tracer`] turns the wheel.

mod args;
mod census;
mod event;
mod jvm;
mod names;
mod note;
mod places;
mod record;
mod report;
mod session;
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
use clap::{CommandFactory, Parser};
use libjvmprobe::{cli::stop_on_signal, trace};

use crate::{args::Args, note::note, report::Report, tracer::Tracer};

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(shell) = args.completions {
        clap_complete::generate(shell, &mut Args::command(), "javaobjnew", &mut std::io::stdout());
        return Ok(());
    }
    trace::set_libbpf_output(args.verbose);
    trace::preflight::check()?;
    let stop = stop_on_signal()?;
    let tracer = Tracer::start(args, Report::open(args)?)?;
    let how = if args.exact { "every allocation" } else { "allocations" };
    note(&format!("Tracing {how} of {}... Hit Ctrl-C to end.", tracer.describe()));
    tracer.run(&stop)
}
