//! What the tools have in common between their command lines and the end of a trace.

mod common;
mod started;

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    io::{self, Write, stderr, stdout},
    process::{ExitCode, Termination},
    time::Duration,
};

use clap::{Command, Parser, error::ErrorKind};
use clap_complete::Shell;
use rustix::process::geteuid;

pub use common::Common;
pub use started::Started;

use crate::{
    Error, Pid, Result, elf::apart::take_symbols_from, follow::running, own, stack::symbolizer,
};

/// No trace takes longer than a year; more is a typing error.
pub const MAX_SECONDS: f64 = 366.0 * 86_400.0;

/// Parses a process number.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_pid(text: &str) -> Result<Pid, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(Pid(pid)),
        _ => Err("a process number is expected; list JVMs with `jps -l` or `pgrep -a java`".into()),
    }
}

/// Parses a number of seconds, fractions allowed.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=MAX_SECONDS).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("a number of seconds is expected, at least 0.001".into()),
    }
}

/// Parses a number of bytes, with k, m or g behind it for powers of 1024.
///
/// # Errors
/// A sentence for the user.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = lower.trim_end_matches(['k', 'm', 'g']);
    let shift = match &lower[number.len()..] {
        "" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(shift).and_then(|(n, s)| n.checked_mul(1 << s));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "a number of bytes is expected, for example 65536, 64k or 1m".into())
}

/// Parses how much memory may be taken, as [`parse_bytes`] does.
///
/// # Errors
/// A sentence for the user.
pub fn parse_size(text: &str) -> Result<usize, String> {
    /// Below this, a tool has no room for its own work.
    const LEAST: usize = 1 << 20;
    let size = parse_bytes(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    size.filter(|&size| size >= LEAST).ok_or_else(|| "a size is expected, at least 1M".into())
}

/// The arguments of a tool.
pub trait CommandLine: Parser {
    /// What all command lines have.
    fn common(&self) -> &Common;

    /// Whether it says what is to be traced.
    fn has_target(&self) -> bool {
        self.common().has_target()
    }

    /// Makes today's spelling of an older one, which goes on working. By default there is none.
    fn spell(arguments: Vec<OsString>) -> Vec<OsString> {
        arguments
    }

    /// Whether the arguments fit together, where the parser cannot know.
    ///
    /// # Errors
    /// A sentence for the user.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// A tool's main(): parses the command line and runs. An error becomes one line, and exit
/// status 1; what `run` returns else may be an exit status of its own.
pub fn run<A, T, E>(run: impl FnOnce(&A) -> Result<T, E>) -> ExitCode
where
    A: CommandLine,
    T: Termination,
    E: Display,
{
    symbolizer::enter();
    let args = A::parse_from(A::spell(env::args_os().collect()));
    let mut command = A::command();
    let name = command.get_name().to_owned();
    own::set_up(&name, args.common().is_verbose());
    if let Some(shell) = args.common().completions {
        return print_completions(shell, &mut command);
    }
    if let Err(why) = args.check() {
        command.error(ErrorKind::ArgumentConflict, why).exit();
    }
    own::descriptors::raise_limit();
    if !args.has_target() {
        return choose(&name);
    }
    if let Err(error) = take_symbols_from(&args.common().symbols_from) {
        return end::<ExitCode, _>(Err(error));
    }
    end(run(&args))
}

/// The main() of a program that is told otherwise what to do: by its own command line, which says
/// whether a completion script is wanted instead, and whether remarks are.
pub fn run_plain<A, T, E>(
    of: impl FnOnce(&A) -> (Option<Shell>, bool),
    run: impl FnOnce(&A) -> Result<T, E>,
) -> ExitCode
where
    A: Parser,
    T: Termination,
    E: Display,
{
    symbolizer::enter();
    let args = A::parse();
    let mut command = A::command();
    let (completions, verbose) = of(&args);
    own::set_up(command.get_name(), verbose);
    match completions {
        Some(shell) => print_completions(shell, &mut command),
        None => {
            own::descriptors::raise_limit();
            end(run(&args))
        }
    }
}

fn end<T: Termination, E: Display>(outcome: Result<T, E>) -> ExitCode {
    let code = match outcome {
        Ok(outcome) => outcome.report(),
        Err(error) => {
            own::note(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    };
    // The last thing: a second signal would wait for it.
    own::undo::everything();
    code
}

fn print_completions(shell: Shell, command: &mut Command) -> ExitCode {
    let name = command.get_name().to_owned();
    // Into memory, where writing does not fail: clap would panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    match stdout().write_all(&script) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            own::note(&Error::io("write to standard output", e).to_string());
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Nothing was said of what to trace: tells what could be.
fn choose(tool: &str) -> ExitCode {
    let jvms = running::all();
    let mut text = format!(
        "error: {tool} is not told what to trace: -p PID, --name REGEX or -a; --help tells more\n"
    );
    if jvms.is_empty() {
        text += "no JVM runs here that could be traced";
        text += if geteuid().is_root() { "\n" } else { " by this user: try as root\n" };
    } else {
        text += &format!("JVMs that could be traced:\n{}\n", running::HEAD);
    }
    for jvm in jvms {
        text += &format!("{jvm}\n");
    }
    // As all that is said and is no result, it goes to stderr.
    let _ = stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

/// One line about the JVMs that are traced, by their numbers and collectors.
pub fn describe<'a>(all: bool, jvms: impl ExactSizeIterator<Item = (Pid, &'a str)>) -> String {
    /// So many are named.
    const NAMED: usize = 4;
    let count = jvms.len();
    // Of one that is starting up, no collector is known.
    let name = |(pid, gc): (Pid, &str)| format!("{pid} {gc}").trim_end().to_owned();
    let names: Vec<_> = jvms.take(NAMED).map(name).collect();
    let more = if count > NAMED { ", ..." } else { "" };
    let names = names.join(", ");
    match (all, count) {
        (true, 0) => "all JVMs (none yet)".into(),
        (true, n) => format!("all JVMs ({n} now: {names}{more})"),
        (false, 1) => format!("JVM {names}"),
        (false, n) => format!("{n} JVMs ({names}{more})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("65536"), Ok(65536));
        assert_eq!(parse_bytes("64k"), Ok(65536));
        assert_eq!(parse_bytes("1M"), Ok(1 << 20));
        assert_eq!(parse_bytes("2g"), Ok(2 << 30));
        for bad in
            ["", "0", "k", "-1", "1kk", "1t", "99999999999999999999", "18446744073709551615g"]
        {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
