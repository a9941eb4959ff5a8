//! Options that have the same meaning in every tool.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{ArgAction, Args, ValueHint, value_parser};
use clap_complete::Shell;
use regex::Regex;

use crate::{
    Error, Pid, Result,
    cli::running,
    cli::{parse_container, parse_pid, parse_seconds},
    jvms::{Arrivals, Times, registry},
    sys::Pace,
};

/// Options of every tool.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// Trace this process (repeatable)
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = parse_pid,
        conflicts_with_all = ["all", "name"])]
    pub pids: Vec<Pid>,

    /// Trace every JVM, including those that start later
    #[arg(short, long, conflicts_with = "name")]
    pub all: bool,

    /// Trace running JVMs by main class, jar, service or container
    #[arg(long, value_name = "REGEX", value_parser = Regex::from_str)]
    pub name: Option<Regex>,

    /// Trace the JVMs that run in this container; with -p, only these
    #[arg(long, value_name = "ID", value_parser = parse_container,
        conflicts_with_all = ["all", "name"])]
    pub container: Option<String>,

    /// Report every INTERVAL seconds
    #[arg(index = 1, value_name = "INTERVAL", value_parser = parse_seconds)]
    pub interval: Option<Duration>,

    /// End after COUNT reports
    #[arg(index = 2, value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// End after this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<Duration>,

    /// Print dates and UTC offsets with times, and the time of each summary
    #[arg(short = 'T', long)]
    pub timestamps: bool,

    /// Print JSON, one object per line
    #[arg(short, long)]
    pub json: bool,

    /// Print only the summary
    #[arg(short, long, visible_alias = "summary-only")]
    pub quiet: bool,

    /// Print details to stderr; with -vv, messages of libbpf too
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    /// Read symbols of a stripped libjvm.so from FILE (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) symbols_from: Vec<PathBuf>,

    /// Print a completion script for bash, zsh, fish, ... and exit
    #[arg(long, value_name = "SHELL", exclusive = true, hide_possible_values = true)]
    pub(crate) completions: Option<Shell>,
}

impl Common {
    /// Returns whether the options specify what to trace.
    pub fn has_target(&self) -> bool {
        !self.pids.is_empty() || self.all || self.is_search()
    }

    /// Returns whether the traced JVMs are searched for by name or container. Otherwise, the user has named each of
    /// them, or traces all.
    pub fn is_search(&self) -> bool {
        self.name.is_some() || self.container.is_some() && self.pids.is_empty()
    }

    /// Returns whether to print messages at the debug level.
    pub fn is_verbose(&self) -> bool {
        self.verbose > 0
    }

    /// Returns the named processes, given by PID, name or container.
    ///
    /// # Errors
    /// [`Error::NoMatch`] if no JVM has this name, [`Error::NoJvmInContainer`] if none runs in the container, and
    /// [`Error::NotInContainer`] if a given PID is not one of its JVMs.
    pub fn pids(&self) -> Result<Vec<Pid>> {
        if let Some(id) = &self.container {
            return running::in_container(id, &self.pids);
        }
        let Some(name) = &self.name else { return Ok(self.pids.clone()) };
        let found = running::all().into_iter().filter(|jvm| jvm.matches(name));
        let pids: Vec<_> = found.map(|jvm| jvm.pid).collect();
        match pids.is_empty() {
            true => Err(Error::NoMatch { name: name.to_string() }),
            false => Ok(pids),
        }
    }

    /// Returns the subscription to new JVMs, if all JVMs are traced.
    ///
    /// # Errors
    /// Returns the errors of [`Arrivals::open`].
    pub fn arrivals(&self) -> Result<Option<Arrivals>> {
        self.all.then(|| Arrivals::open(registry::Options::default())).transpose()
    }

    /// Returns the schedule of reports and the end of the trace.
    pub fn times(&self) -> Times {
        Times {
            aligned_to: None,
            duration: self.duration,
            interval: self.interval,
            count: self.count,
            pace: Pace::Prompt,
        }
    }
}
