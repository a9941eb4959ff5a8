//! Thread dumps: a table, and the text of each dump in the format of javastack(8).

use anyhow::Result;
use libjvmprobe::render::{output::Output, table::RuledTable};

use crate::{
    args::Show,
    show::{
        selection::{Selection, parse_time},
        time_arg::format_time,
    },
    thread_dump::ThreadDump,
};

/// Prints the dumps.
///
/// # Errors
/// Errors of writing.
pub fn show(args: &Show, selection: &Selection, out: &mut Output) -> Result<()> {
    let dumps = selection.dumps();
    if args.json {
        return Ok(dumps.iter().try_for_each(|(_, dump)| out.json(dump))?);
    }
    out.lines(&format!("\n{}", selection.title(None)))?;
    if dumps.is_empty() {
        return Ok(out.line("There are no thread dumps.")?);
    }
    let format = if args.timestamps { "%Y-%m-%dT%H:%M:%S%:z" } else { "%Y-%m-%d %H:%M:%S" };
    let time = |dump: &ThreadDump| {
        parse_time(&dump.time).map_or_else(String::new, |ns| format_time(ns, format))
    };
    let mut table = RuledTable::new(&["TIME", "PID", "CAUSE", "JVM"], 1..2);
    for (identity, dump) in &dumps {
        let (pid, cause) = (dump.pid.to_string(), dump.cause.name().to_owned());
        table.row(vec![time(dump), pid, cause, identity.name.clone()]);
    }
    out.lines(&format!("\n{}", table.text().trim_end()))?;
    for (identity, dump) in dumps {
        out.line("")?;
        out.line(&format!("{}  PID {}  {}", time(dump), dump.pid, identity.name))?;
        out.line("")?;
        if args.stacks {
            out.lines(dump.threads.trim_end())?;
            out.line("")?;
        }
        out.lines(dump.locks.trim_end())?;
    }
    Ok(())
}
