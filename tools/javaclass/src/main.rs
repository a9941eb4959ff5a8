//! javaclass: the classes that a JVM has loaded, their origins, and which of them are used.
//!
//! Arguments ([`args`]) select JVMs; the library lists the classes of each, and [`origin`] determines
//! where a class comes from. [`fold`] combines hidden classes of the same name and loader. [`tally`]
//! computes totals by origin and package. [`growth`] finds loaders that grow. [`list`] matches classes
//! with the lines ([`list_line`]) of the file that `--list` names; [`list_check`] collects the results
//! for all JVMs, and [`vex`] writes them as a document. [`jars`] finds classes that are not loaded.
//! [`watch`] traces classes as they are loaded, unloaded and initialised. [`report`] writes
//! [`record`]s and [`reports`] reads them; [`merge`] combines reports, and [`strip`] removes unused
//! classes from a jar, according to such reports.

mod args;
mod fold;
mod growth;
mod jars;
mod list;
mod list_check;
mod list_line;
mod merge;
mod origin;
mod record;
mod report;
mod reports;
mod strip;
mod tally;
mod vex;
mod watch;

/// Generated from bpf/javaclass.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaclass.skel.rs"));
}

use std::{fmt::Display, process::ExitCode};

use anyhow::Result;
use libjvmprobe::{
    Pid, cli,
    jvms::tracing,
    process::Fate,
    sys::privileges::{READ, keep_only},
};

use crate::{
    args::{Args, Command},
    list_check::ListCheck,
    report::Report,
};

fn main() -> ExitCode {
    cli::run(run)
}

fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Some(Command::Merge { files, json }) => {
            return merge::run(files, *json).map(|()| ExitCode::SUCCESS);
        }
        Some(Command::Strip(strip)) => return strip::run(strip).map(|()| ExitCode::SUCCESS),
        None => {}
    }
    if args.counts_loaders() {
        return growth::run(args);
    }
    if args.watches() {
        return watch::run(args);
    }
    let mut report = Report::open(args)?;
    let mut list_check = ListCheck::open(args)?;
    keep_only(READ);
    let (jvms, refused) = match args.common.all {
        true => tracing::now(),
        false => (tracing::find(&args.common.pids()?)?, Vec::new()),
    };
    let mut has_failed = false;
    let mut fail = |pid: Pid, error: &dyn Display| {
        log::warn!("process {pid}: {error:#}");
        has_failed = true;
    };
    for (pid, error) in refused {
        fail(pid, &error);
    }
    for (target, hotspot) in jvms {
        let result = hotspot.map_err(Into::into).and_then(|hotspot| {
            tally::report_jvm(&target, &hotspot, args, list_check.as_mut(), &mut report)
        });
        match result {
            // With --all, a JVM may exit meanwhile.
            Err(_) if args.common.all && target.process.fate() == Fate::Ended => {}
            // A failure does not prevent the reports of the other JVMs.
            Err(error) => fail(target.pid(), &error),
            Ok(()) => {}
        }
    }
    let in_use = list_check.map(ListCheck::finish).transpose()?.unwrap_or_default();
    Ok(status(in_use, has_failed))
}

/// Returns the exit status. If a JVM could not be read, the status is never success, because the
/// classes that were not read may be in use.
fn status(in_use: bool, has_failed: bool) -> ExitCode {
    match (in_use, has_failed) {
        (true, _) => ExitCode::from(list::IN_USE),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    }
}
