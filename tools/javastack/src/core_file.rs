//! Prints the dump of a core file's JVM.
//!
//! A core file names the files that are read with it, and its content decides what is read from them. So root becomes the
//! owner of the core file before reading it, and a dump shows nothing that the owner cannot read. `--exe` is read as the
//! owner, too, because paths of the core file are appended to it.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use libjvmprobe::{
    jvms::user::User,
    render::{output::Output, threads::report},
    sys::privileges::{Rights, keep_only},
    trace::threads::{CoreDumper, Dump},
};
use serde_json::json;

use crate::{args::Args, exit_code, json};

/// Prints a dump of the JVM of the core file `core`.
pub fn dump(args: &Args, core: &Path) -> Result<ExitCode> {
    let file = CoreDumper::open(core)?;
    User::become_owner(&file)?;
    keep_only(Rights::empty());
    let mut dumper = CoreDumper::read(core, file, args.exe.as_deref())?;
    let mut dump = dumper.dump()?;
    if args.locks {
        dump.search_synchronizers(dumper.hotspot());
    }
    if let Some(left_out) = report::left_out(&dump) {
        log::warn!("{}: {left_out}", core.display());
    }
    let mut out = Output::open(None)?;
    let options = args.dump_options();
    if args.common.json {
        let mut record = serde_json::to_value(json::dump(&options, &dump))?;
        if let Some((number, nid)) = dumper.signal() {
            record["threadDump"]["signal"] = json!({ "number": number, "nid": nid });
        }
        out.json(&record)?;
    } else {
        if let Some(line) = signal_line(&dumper, &dump).filter(|_| !args.common.quiet) {
            out.line(&line)?;
        }
        out.batch(|out| report::print(&options, &dump, out))?;
    }
    Ok(exit_code(!dump.deadlocks.is_empty()))
}

/// Returns the line about the signal that ended the JVM.
fn signal_line(dumper: &CoreDumper, dump: &Dump) -> Option<String> {
    let (number, nid) = dumper.signal()?;
    let thread = dump.threads.iter().find(|thread| thread.os.tid == nid);
    let name = thread.map_or("unknown", |thread| thread.name());
    let pid = dump.pid;
    Some(format!("Process {pid} was ended by {} in \"{name}\" nid={nid:#x}", signal_name(number)))
}

/// Returns the name of a signal, or its number if its default action is not a core dump: signal(7).
fn signal_name(number: u16) -> String {
    let name = match number {
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    name.into()
}
