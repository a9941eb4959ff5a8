//! The command line.

use std::{path::PathBuf, str::FromStr, time::Duration};

use clap::{ArgAction, Args as Group, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use libjvmprobe::{cli::parse_bytes, render::formats};
use serde::Deserialize;

use crate::{
    config::{self, parse_age},
    metrics::Listen,
    push::target::Address,
    show::{when::When, whose::Whose},
};

/// Default directory of the store.
pub const DIR: &str = "/var/lib/jvmprobe";

const EXAMPLES: &str = "\
Examples:
  jvmprobed                                  all JVMs of this host, until it is told to end
  jvmprobed show                             what they did in the last ten minutes
  jvmprobed show --since 03:10 --until 03:15 --jvm shop -o night.html
  jvmprobed show --since 10m --diff 24h      compared with yesterday at this time
  jvmprobed show --since 1h --gc             what stopped them
  jvmprobed list                             of which JVMs something is kept, and when";

/// Profiles, allocation and pauses of all JVMs of a host, all the time: to look back into, and to
/// push on.
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

    /// Say on stderr what is found, attached and ignored; twice: what libbpf says, too
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    /// Print a completion script for SHELL and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Log {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is done instead of staying.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Show what is kept of a time
    Show(Box<Show>),
    /// List what is kept: JVMs, times and sizes
    List(List),
}

/// Options of `list`.
#[derive(Clone, Debug, Group)]
pub struct List {
    /// Only JVMs whose service.name, main class or jar, container or pod matches; a PID; or KEY=REGEX
    #[arg(long, value_name = "JVM", value_parser = Whose::from_str)]
    pub jvm: Option<Whose>,

    /// Print JSON lines, one of each JVM
    #[arg(short, long)]
    pub json: bool,

    /// Directory of the windows
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Where the windows are [default: as configured, or {DIR}]"))]
    pub dir: Option<PathBuf>,
}

/// Of the daemon.
#[derive(Clone, Debug, Default, Group)]
pub struct Daemon {
    /// Keep windows in this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Keep windows in this directory [default: {DIR}]"))]
    pub dir: Option<PathBuf>,

    /// Maximum age of windows
    #[arg(long, value_name = "TIME", value_parser = parse_age,
        help = "Keep them so long: 90m, 24h, 7d [default: 24h]")]
    pub keep: Option<Duration>,

    /// Maximum size of all windows
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes,
        help = "Keep no more than this: 500M, 1G [default: 1G]")]
    pub keep_size: Option<u64>,

    /// CPU samples per second, on each processor
    #[arg(short = 'F', long, value_name = "HERTZ", value_parser = clap::value_parser!(u64).range(1..=999),
        help = "Processor samples a second [default: 19]")]
    pub frequency: Option<u64>,

    /// Times off the processor, too
    #[arg(long)]
    pub off_cpu: bool,

    /// Leave allocation out
    #[arg(long)]
    pub no_alloc: bool,

    /// Collect less if the daemon uses more memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes,
        help = "Take less where more memory is held [default: 150M]")]
    pub max_memory: Option<u64>,

    /// Collect less if the daemon and its probes use more CPU time
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent,
        help = "Collect less if the daemon and its probes use more than this percentage of one processor, on average [default: 1 per 4 processors]")]
    pub max_cpu: Option<f64>,

    /// Address and port of metrics
    #[arg(
        long,
        value_name = "ADDR",
        help = "Serve metrics on this address and port, or none [default: 127.0.0.1:9464]"
    )]
    pub listen: Option<Listen>,

    /// Address and port of health
    #[arg(
        long,
        value_name = "ADDR",
        help = "Serve health on this address and port, or none [default: 127.0.0.1 and the port after that of --listen]"
    )]
    pub health_listen: Option<Listen>,

    /// TLS and basic authentication of metrics
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = "Serve metrics with TLS and basic authentication as this web configuration file says (YAML, as of Prometheus' exporters)")]
    pub web_config: Option<PathBuf>,

    /// Push targets
    #[arg(
        long,
        value_name = "KIND=WHERE",
        help = "Push on to pyroscope=URL, otlp=URL or dir=PATH (repeatable)"
    )]
    pub push: Vec<Address>,

    /// Format of the log on stderr
    #[arg(
        long,
        value_name = "FORMAT",
        help = "Write the log as text or as json: one object a line [default: text]"
    )]
    pub log: Option<Log>,

    /// Path of the configuration file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = format!("Read this configuration [default: {}, where it is there]", config::PATH))]
    pub config: Option<PathBuf>,
}

/// Of `show`.
#[derive(Clone, Debug, Group)]
pub struct Show {
    /// From then on: 10m ago, 03:12 today, or 2026-11-22T03:12:00Z
    #[arg(long, value_name = "WHEN", default_value = "10m", value_parser = When::from_str)]
    pub since: When,

    /// Until then; now if it is not given
    #[arg(long, value_name = "WHEN", value_parser = When::from_str)]
    pub until: Option<When>,

    /// Only JVMs whose service.name, main class or jar, container or pod matches; a PID; or KEY=REGEX
    #[arg(long, value_name = "JVM", value_parser = Whose::from_str)]
    pub jvm: Option<Whose>,

    /// Compare with what was so long before: 24h
    #[arg(long, value_name = "TIME", value_parser = parse_age, conflicts_with = "gc")]
    pub diff: Option<Duration>,

    /// What was allocated, by class
    #[arg(long, conflicts_with = "gc")]
    pub alloc: bool,

    /// What stopped them: collections and, with --safepoints, all else
    #[arg(long, conflicts_with_all = ["output", "threads", "stacks"])]
    pub gc: bool,

    /// With --gc: stops without a collection, too
    #[arg(long, requires = "gc")]
    pub safepoints: bool,

    /// Another measure than processor time, by its name: off-cpu
    #[arg(short, long, value_name = "EVENT", conflicts_with_all = ["alloc", "gc"])]
    pub event: Option<String>,

    /// Also write FILE, in the format of its name (repeatable)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath,
        help = format!("Also write FILE: {} (repeatable)", formats::list()))]
    pub output: Vec<PathBuf>,

    /// Keep threads apart in files
    #[arg(short, long)]
    pub threads: bool,

    /// Show more of the stacks
    #[arg(short, long)]
    pub stacks: bool,

    /// Print dates and UTC offsets with the times
    #[arg(short = 'T', long)]
    pub timestamps: bool,

    /// With --gc: print what is kept, as JSON lines
    #[arg(short, long, requires = "gc", conflicts_with_all = ["alloc", "event", "diff"])]
    pub json: bool,

    /// Print nothing but errors: with -o
    #[arg(short, long)]
    pub quiet: bool,

    /// Directory of the windows
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath,
        help = format!("Where the windows are [default: as configured, or {DIR}]"))]
    pub dir: Option<PathBuf>,
}

/// Parses a percentage of one processor, from 0.01 to 100,000.
fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.01..=100_000.0).contains(&percent) => Ok(percent),
        _ => Err("a share of one processor is expected, in per cent, at least 0.01".into()),
    }
}
