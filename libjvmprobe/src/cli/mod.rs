//! Command line handling of all tools: options, main(), completion scripts, and the list of JVMs to choose from.

mod command_options;
mod common;
mod messages;
mod running;

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

pub use command_options::CommandOptions;
pub use common::Common;
pub use messages::{init as init_messages, limit_warnings, print_messages_as_json};

use crate::{
    Error, Pid, Result, elf::separate_debug_file::set_symbol_files, stack::symbolizer, sys,
};

/// Maximum duration of a trace in seconds, one year; a larger value is a typing error.
pub const MAX_SECONDS: f64 = 366.0 * 86_400.0;

/// Parses a PID.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_pid(text: &str) -> Result<Pid, String> {
    match text.parse() {
        Ok(pid) if pid > 0 => Ok(Pid(pid)),
        _ => Err("expected a process ID; run this tool without a target to list JVMs".into()),
    }
}

/// Parses a container ID, or its first digits. Twelve are what `docker ps` shows, and fewer could match other
/// containers by accident.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn parse_container(text: &str) -> Result<String, String> {
    /// Minimum number of characters.
    const MIN_LENGTH: usize = 12;
    // The ID of a task on Fargate contains a dash.
    let is_id = text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    match is_id && text.len() >= MIN_LENGTH {
        true => Ok(text.to_owned()),
        false => Err(format!("expected a container ID, or at least its first {MIN_LENGTH} digits")),
    }
}

/// Parses the length of a wait, a whole number with a unit: `1ms`, `100us`, `2s`, `0`.
///
/// # Errors
/// A sentence for the user.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: Option<u64> = number.parse().ok();
    let duration = number.and_then(|number| match unit {
        "s" => Some(Duration::from_secs(number)),
        "ms" => Some(Duration::from_millis(number)),
        "us" => Some(Duration::from_micros(number)),
        "" if number == 0 => Some(Duration::ZERO),
        _ => None,
    });
    duration.ok_or_else(|| "expected a number with a unit: 100us, 1ms, 2s, or 0".into())
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
        _ => Err(format!("expected a number of seconds, from 0.001 to {MAX_SECONDS} (one year)")),
    }
}

/// Parses a number of bytes, with an optional suffix k, m or g for powers of 1024.
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
        .ok_or_else(|| "expected a number of bytes, for example 65536, 64k or 1m".into())
}

/// Parses an amount of memory like [`parse_bytes`].
///
/// # Errors
/// A sentence for the user.
pub fn parse_size(text: &str) -> Result<usize, String> {
    /// Minimum size; with less, a tool could not work.
    const MIN_BYTES: usize = 1 << 20;
    let size = parse_bytes(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    size.filter(|&size| size >= MIN_BYTES).ok_or_else(|| "expected a size of at least 1M".into())
}

/// The arguments of a tool.
pub trait CommandLine: Parser {
    /// Returns the options that all tools have.
    fn common(&self) -> &Common;

    /// Returns whether the options specify what to trace.
    fn has_target(&self) -> bool {
        self.common().has_target()
    }

    /// Converts the obsolete spelling of options, which is still accepted, to the current one. By default, does
    /// nothing.
    fn convert_obsolete_options(arguments: Vec<OsString>) -> Vec<OsString> {
        arguments
    }

    /// Checks combinations of arguments that the parser cannot check.
    ///
    /// # Errors
    /// A sentence for the user.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Main function of a tool: parses the command line and calls `run`, whose result determines the exit status.
/// An error of `run` is printed as one line and results in exit status 1.
pub fn run<A, T, E>(run: impl FnOnce(&A) -> Result<T, E>) -> ExitCode
where
    A: CommandLine,
    T: Termination,
    E: Display,
{
    symbolizer::enter();
    let args = A::parse_from(A::convert_obsolete_options(env::args_os().collect()));
    let mut command = A::command();
    let name = command.get_name().to_owned();
    messages::init(&name, args.common().is_verbose());
    if let Some(shell) = args.common().completions {
        return print_completions(shell, &mut command);
    }
    if let Err(why) = args.check() {
        command.error(ErrorKind::ArgumentConflict, why).exit();
    }
    sys::descriptors::raise_limit();
    if !args.has_target() {
        return print_candidates(&name);
    }
    if let Err(error) = set_symbol_files(&args.common().symbols_from) {
        return end::<ExitCode, _>(Err(error));
    }
    end(run(&args))
}

/// Main function of a program that does not have the [`Common`] options, such as jvmprobed. `common_options`
/// returns the shell for which to print a completion script, if any, and whether to print messages at the
/// debug level.
pub fn run_plain<A, T, E>(
    common_options: impl FnOnce(&A) -> (Option<Shell>, bool),
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
    let (completions, verbose) = common_options(&args);
    messages::init(command.get_name(), verbose);
    match completions {
        Some(shell) => print_completions(shell, &mut command),
        None => {
            sys::descriptors::raise_limit();
            end(run(&args))
        }
    }
}

fn end<T: Termination, E: Display>(outcome: Result<T, E>) -> ExitCode {
    let code = match outcome {
        Ok(outcome) => outcome.report(),
        Err(error) => {
            log::warn!("{error:#}");
            ExitCode::FAILURE
        }
    };
    // Done last, because a second signal can no longer end the process afterwards: its handler waits forever
    // for the lock that `run_all` keeps.
    sys::undo::run_all();
    code
}

fn print_completions(shell: Shell, command: &mut Command) -> ExitCode {
    let name = command.get_name().to_owned();
    // Generated in memory, where writing cannot fail, because clap panics on a write error.
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    match stdout().write_all(&script) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            log::warn!("{}", Error::io("write to standard output", e));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Prints an error because the options specify no target, and lists the JVMs that can be traced.
fn print_candidates(tool: &str) -> ExitCode {
    let jvms = running::all();
    let mut text = format!(
        "error: specify what {tool} should trace with -p PID, --name REGEX or -a; see --help\n"
    );
    if jvms.is_empty() {
        text += if geteuid().is_root() {
            "found no JVM that can be traced\n"
        } else {
            "found no JVM of this user that can be traced; run as root to see all JVMs\n"
        };
    } else {
        text += &format!("JVMs that can be traced:\n{}\n", running::HEADER);
    }
    for jvm in jvms {
        text += &format!("{jvm}\n");
    }
    // Messages other than results go to stderr.
    let _ = stderr().write_all(text.as_bytes());
    ExitCode::from(2)
}

/// Returns a line about the traced JVMs, with their PIDs and collectors.
pub fn describe<'a>(all: bool, jvms: impl ExactSizeIterator<Item = (Pid, &'a str)>) -> String {
    /// Maximum number of JVMs that are listed.
    const MAX_LISTED: usize = 4;
    let count = jvms.len();
    // The collector is unknown (empty) while a JVM is starting up.
    let name = |(pid, gc): (Pid, &str)| format!("{pid} {gc}").trim_end().to_owned();
    let names: Vec<_> = jvms.take(MAX_LISTED).map(name).collect();
    let more = if count > MAX_LISTED { ", ..." } else { "" };
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
    fn container_id_has_at_least_12_digits() {
        for good in ["0123456789ab", "0123456789abcdef0123456789abcdef-1234567890"] {
            assert_eq!(parse_container(good), Ok(good.to_owned()));
        }
        for bad in ["", "0123456789a", "containerd://0123456789ab", "0123456789ab*"] {
            assert!(parse_container(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unit_suffixes_are_parsed_and_invalid_sizes_rejected() {
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
