//! javaclass: which classes a JVM has loaded, from where, and which of them are used.
//!
//! Arguments ([`args`]) name JVMs; the library lists the classes of each, and [`origin`] says where
//! one comes from. [`fold`] makes one of hidden classes that are alike; [`tally`] adds up by
//! origin and package, [`growth`] looks which loaders become more, [`list`] for what is [`wanted`],
//! which [`asked`] judges and [`vex`] tells others; [`jars`] looks for what is not loaded;
//! [`watch`] tells of classes as they come. [`report`] writes [`record`]s; [`reports`] reads them
//! again: [`merge`] joins them, [`strip`] leaves out of a jar what none of them has.

mod args;
mod asked;
mod fold;
mod growth;
mod jars;
mod list;
mod merge;
mod origin;
mod record;
mod report;
mod reports;
mod strip;
mod tally;
mod vex;
mod wanted;
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
    follow::jvms,
    own::{
        note,
        privileges::{READ, keep},
    },
    process::Fate,
};

use crate::{
    args::{Args, Command},
    asked::Asked,
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
    let mut asked = Asked::open(args)?;
    keep(READ);
    let (jvms, refused) = match args.common.all {
        true => jvms::now(),
        false => (jvms::find(&args.common.pids()?)?, Vec::new()),
    };
    let mut has_failed = false;
    let mut fail = |pid: Pid, error: &dyn Display| {
        note(&format!("process {pid}: {error:#}"));
        has_failed = true;
    };
    for (pid, error) in refused {
        fail(pid, &error);
    }
    for (target, hotspot) in jvms {
        let told = hotspot
            .map_err(Into::into)
            .and_then(|hotspot| tally::tell(&target, &hotspot, args, asked.as_mut(), &mut report));
        match told {
            // Of many, one may end meanwhile.
            Err(_) if args.common.all && target.process.fate() == Fate::Ended => {}
            // The others are told.
            Err(error) => fail(target.pid(), &error),
            Ok(()) => {}
        }
    }
    let in_use = asked.map(Asked::finish).transpose()?.unwrap_or_default();
    Ok(status(in_use, has_failed))
}

/// What could not be looked at is not known to be unused.
fn status(in_use: bool, has_failed: bool) -> ExitCode {
    match (in_use, has_failed) {
        (true, _) => ExitCode::from(list::IN_USE),
        (false, true) => ExitCode::FAILURE,
        (false, false) => ExitCode::SUCCESS,
    }
}
