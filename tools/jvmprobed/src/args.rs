//! The command line.

use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

use clap::{ArgAction, Args as Group, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use libjvmprobe::{
    cli::{parse_bytes, parse_wait},
    render::formats,
};
use serde::Deserialize;

use crate::{
    config::{self, parse_age},
    metrics::{Listen, Sets},
    push::target::Address,
    show::{jvm_filter::JvmFilter, time_arg::TimeArg},
};

/// Default directory of the store.
pub const DIR: &str = "/var/lib/jvmprobe";

const EXAMPLES: &str = "\
Examples:
  jvmprobed                                  run the daemon until SIGTERM or Ctrl-C
  jvmprobed show                             a CPU profile of the last ten minutes
  jvmprobed show --since 03:10 --until 03:15 --jvm shop -o night.html
  jvmprobed show --since 10m --diff 24h      compare with the same time yesterday
  jvmprobed show --since 1h --gc             the GC pauses of the last hour
  jvmprobed show -e wait                     what threads waited for, if it runs with --waits 1ms
  jvmprobed show --wall -t                   where threads spent their time, on CPU and waiting
  jvmprobed show --since 1d --thread-dumps   the deadlocks of the last day
  jvmprobed list                             the recorded JVMs and times";

/// Continuous profiling daemon: records CPU, allocation and GC pauses of every JVM on this host.
#[derive(Clone, Debug, Parser)]
#[command(name = "jvmprobed", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Subcommand; without one, the daemon runs.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options of the daemon.
    #[command(flatten)]
    pub daemon: Daemon,

    /// Print details to stderr; with -vv, messages of libbpf too
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print a completion script for bash, zsh, fish, ... and exit
    #[arg(long, value_name = "SHELL", exclusive = true, hide_possible_values = true)]
    pub completions: Option<Shell>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// Plain text.
    Text,
    /// JSON, one object per line.
    Json,
}

/// Subcommands. They run instead of the daemon and exit when they are done.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show the recorded data of a time range
    Show(Box<Show>),
    /// List the recorded JVMs, with times and sizes
    List(List),
    /// Run a tool for a user on another machine, as kubectl-jvm does
    Remote(Remote),
}

/// Options of `remote`.
#[derive(Clone, Debug, Group)]
pub struct Remote {
    /// Send the files that the tool has written: MARK on a line of stderr, then a tar archive
    #[arg(long, value_name = "MARK", requires = "command")]
    pub files: Option<String>,

    /// Run no tool; wait until a signal ends this process
    #[arg(long, conflicts_with = "command")]
    pub idle: bool,

    /// Tool and its arguments; input on stdin, or its end, ends the tool like Ctrl-C
    #[arg(last = true, value_name = "TOOL", required_unless_present = "idle")]
    pub command: Vec<OsString>,
}

/// Options of `list`.
#[derive(Clone, Debug, Group)]
pub struct List {
    /// Only JVMs that match: a PID; KEY=REGEX for an attribute; or a regex for the name, main class,
    /// jar, container ID, pod UID or unit
    #[arg(long, value_name = "JVM", value_parser = JvmFilter::from_str)]
    pub jvm: Option<JvmFilter>,

    /// Print JSON, one JVM per line
    #[arg(short, long)]
    pub json: bool,

    /// Directory of the windows
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Directory of the windows [default: that of the configuration file, else \
                        {DIR}]"))]
    pub dir: Option<PathBuf>,
}

/// Options of the daemon.
#[derive(Clone, Debug, Default, Group)]
pub struct Daemon {
    /// Keep windows in this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Store windows in this directory [default: {DIR}]"))]
    pub dir: Option<PathBuf>,

    /// Maximum age of windows
    #[arg(long, value_name = "TIME", value_parser = parse_age,
        help = "Maximum age of windows: 90m, 24h, 7d [default: 24h]")]
    pub keep: Option<Duration>,

    /// Maximum size of all windows
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes,
        help = "Maximum size of all windows: 500M, 1G [default: 1G]")]
    pub keep_size: Option<u64>,

    /// CPU samples per second, on each processor
    #[arg(short = 'F', long, value_name = "HERTZ", value_parser = clap::value_parser!(u64).range(1..=999),
        help = "Samples per second on each CPU [default: 19]")]
    pub frequency: Option<u64>,

    /// Also record off-CPU time
    #[arg(long)]
    pub off_cpu: bool,

    /// Also record waits of at least this length
    #[arg(long, value_name = "DURATION", value_parser = parse_min_wait,
        help = "Also record the waits of Java threads of at least this length (1ms, 500us) [default: off]")]
    pub waits: Option<Duration>,

    /// Do not record allocation
    #[arg(long)]
    pub no_alloc: bool,

    /// Length of a window
    #[arg(long, value_name = "TIME", value_parser = parse_window,
        help = "Length of a window: 5s to 60s [default: 15s]")]
    pub window: Option<Duration>,

    /// Store a thread dump of a JVM with a deadlock or without progress
    #[arg(long, value_name = "TIME", value_parser = parse_age,
        help = "Store a thread dump of a JVM with a deadlock, or without progress for this time [default: off]")]
    pub thread_dumps: Option<Duration>,

    /// Collect less if the daemon uses more than this memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes,
        help = "Collect less if the daemon uses more than this much memory [default: 150M]")]
    pub max_memory: Option<u64>,

    /// Collect less if the daemon and its probes use more CPU time than this
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent,
        help = "Collect less if the daemon uses more than this percentage of one CPU [default: 1 for every 4 CPUs]")]
    pub max_cpu: Option<f64>,

    /// Address and port of metrics
    #[arg(
        long,
        value_name = "ADDR",
        help = "Address and port of metrics, or none [default: 127.0.0.1:9464]"
    )]
    pub listen: Option<Listen>,

    /// Address and port of the health checks
    #[arg(
        long,
        value_name = "ADDR",
        help = "Address and port of the health checks, or none [default: loopback, the port after that of --listen]"
    )]
    pub health_listen: Option<Listen>,

    /// Sets of metrics of JVMs
    #[arg(
        long,
        value_name = "SET",
        hide_possible_values = true,
        help = "Metrics of JVMs: jvmprobe (jvmprobe_*), otel (OpenTelemetry's jvm_*) or all [default: all]"
    )]
    pub metrics: Option<Sets>,

    /// TLS and basic authentication of metrics
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = "TLS and basic authentication of metrics (Prometheus web config, YAML)")]
    pub web_config: Option<PathBuf>,

    /// Push targets
    #[arg(
        long,
        value_name = "KIND=WHERE",
        help = "Push to pyroscope=URL, otlp=URL or dir=PATH (repeatable)"
    )]
    pub push: Vec<Address>,

    /// Format of the log on stderr
    #[arg(
        long,
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "Format of the log on stderr: text or json [default: text]"
    )]
    pub log: Option<Log>,

    /// Path of the configuration file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = format!("Configuration file [default: {}, if it exists]", config::PATH))]
    pub config: Option<PathBuf>,
}

/// Options of `show`.
#[derive(Clone, Debug, Group)]
pub struct Show {
    /// Begin: 10m (ago), 03:12 (today or yesterday) or 2026-11-22T03:12:00Z
    #[arg(long, value_name = "WHEN", default_value = "10m", value_parser = TimeArg::from_str)]
    pub since: TimeArg,

    /// End, in the same formats [default: now]
    #[arg(long, value_name = "WHEN", value_parser = TimeArg::from_str)]
    pub until: Option<TimeArg>,

    /// Only JVMs that match: a PID; KEY=REGEX for an attribute; or a regex for the name, main class,
    /// jar, container ID, pod UID or unit
    #[arg(long, value_name = "JVM", value_parser = JvmFilter::from_str)]
    pub jvm: Option<JvmFilter>,

    /// Compare with the same range this much earlier: 24h
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "gc")]
    pub diff: Option<Duration>,

    /// Show allocation by class
    #[arg(long, conflicts_with = "gc")]
    pub alloc: bool,

    /// Show GC pauses and, with --safepoints, all other stops
    #[arg(long, group = "records", conflicts_with_all = ["output", "threads", "stacks"])]
    pub gc: bool,

    /// Show stored thread dumps: the locks for which threads wait, the deadlocks and, with --stacks, all threads
    #[arg(long, group = "records", conflicts_with_all = ["alloc", "diff", "output", "threads"])]
    pub thread_dumps: bool,

    /// With --gc: include stops without a collection
    #[arg(long, requires = "gc")]
    pub safepoints: bool,

    /// Show EVENT instead of CPU time: off-cpu or wait, if it was recorded
    #[arg(short, long, value_name = "EVENT", conflicts_with_all = ["alloc", "gc", "thread_dumps"])]
    pub event: Option<String>,

    /// Show the wall-clock time of threads: CPU time and, if the daemon runs with --waits, waits
    #[arg(long, conflicts_with_all = ["alloc", "event", "gc", "thread_dumps"])]
    pub wall: bool,

    /// Also write FILE, in the format that its extension selects (repeatable)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = format!("Also write FILE (repeatable): {}", formats::list()))]
    pub output: Vec<PathBuf>,

    /// Separate the threads in output files; with --wall, also print a table by thread
    #[arg(short, long)]
    pub threads: bool,

    /// Show more stacks
    #[arg(short, long)]
    pub stacks: bool,

    /// Print dates and UTC offsets with the times
    #[arg(short = 'T', long)]
    pub timestamps: bool,

    /// With --gc or --thread-dumps: print the stored records as JSON lines
    #[arg(short, long, requires = "records", conflicts_with_all = ["alloc", "event", "diff", "wall"])]
    pub json: bool,

    /// Print only errors; for use with -o
    #[arg(short, long)]
    pub quiet: bool,

    /// Directory of the windows
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Directory of the windows [default: that of the configuration file, else \
                        {DIR}]"))]
    pub dir: Option<PathBuf>,
}

/// Minimum of the minimum length of waits. Shorter waits are too many to be recorded all the time.
const LEAST_WAIT: Duration = Duration::from_micros(100);

/// Parses a minimum length of waits with its unit: `500us`, `1ms`, `2s`.
pub fn parse_min_wait(text: &str) -> Result<Duration, String> {
    parse_wait(text)
        .ok()
        .filter(|min| *min >= LEAST_WAIT)
        .ok_or_else(|| "expected a duration of at least 100us, for example 500us, 1ms or 1s".into())
}

/// Possible lengths of a window.
const WINDOWS: RangeInclusive<Duration> = Duration::from_secs(5)..=Duration::from_secs(60);

/// Parses the length of a window with its unit: `5s`, `1m`.
pub fn parse_window(text: &str) -> Result<Duration, String> {
    parse_age(text)
        .ok()
        .filter(|length| WINDOWS.contains(length))
        .ok_or_else(|| "expected 5s to 60s".into())
}

/// Parses a percentage of one processor, from 0.01 to 100,000.
fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.01..=100_000.0).contains(&percent) => Ok(percent),
        _ => Err("expected a percentage of one CPU, at least 0.01".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_lasts_5_to_60_seconds() {
        assert_eq!(parse_window("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_window("1m"), Ok(Duration::from_secs(60)));
        for bad in ["", "5", "4s", "61s", "1h", "15ms"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn minimum_length_of_waits_requires_a_unit_and_is_at_least_100_us() {
        assert_eq!(parse_min_wait("100us"), Ok(LEAST_WAIT));
        assert_eq!(parse_min_wait("2s"), Ok(Duration::from_secs(2)));
        for bad in ["", "0", "99us", "1", "1.5ms", "1m"] {
            assert!(parse_min_wait(bad).is_err(), "{bad}");
        }
    }
}
