//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Parser, ValueHint, value_parser};
use clap_complete::Shell;
use libjvmprobe::{
    Pid,
    cli::{CommandLine, MAX_SECONDS, parse_pid, parse_seconds},
};

const EXAMPLES: &str = "\
Examples:
  javagc -p 1234             every GC pause of process 1234, a summary on Ctrl-C
  javagc -p 1234 5 12        a summary every 5 seconds, 12 times
  javagc -a -t 50            pauses of 50 ms and longer, of every JVM
  javagc -p 1234 -d 60 -j    one minute as JSON lines
  javagc -p 1234 -H -q       histograms of pauses, nothing else, on Ctrl-C
  javagc -p 1234 --stack     and who calls System.gc()

A pause (PAUSE) is the collection itself; STOPPED is how long the application
stood still for it, including the time to reach the safepoint (TTSP).";

/// Shows every garbage collection pause of a running JVM, with its cause, and
/// how long the application really stood still.
#[derive(Clone, Debug, Parser)]
#[command(name = "javagc", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(group = ArgGroup::new("target").args(["pids", "all", "completions"]).required(true))]
pub struct Args {
    /// Trace this process (repeatable)
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = parse_pid)]
    pub pids: Vec<Pid>,

    /// Trace every JVM, also those that start later
    #[arg(short, long)]
    pub all: bool,

    /// Print a summary every INTERVAL seconds instead of a line per pause
    #[arg(value_name = "INTERVAL", value_parser = parse_seconds)]
    pub interval: Option<Duration>,

    /// End after COUNT summaries
    #[arg(value_name = "COUNT", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// End after this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<Duration>,

    /// Show only stops of at least MS milliseconds; the summary counts all
    #[arg(short, long, value_name = "MS", value_parser = parse_millis)]
    pub threshold: Option<Duration>,

    /// Also show stops that are not collections: deoptimisation, thread dumps, ...
    #[arg(long)]
    pub safepoints: bool,

    /// Add each memory pool before and after (lengthens the pauses a little)
    #[arg(long)]
    pub pools: bool,

    /// Show who asked for a collection: the Java stack of each System.gc()
    #[arg(long)]
    pub stack: bool,

    /// Print dates and UTC offsets with the times, and the time of each summary
    #[arg(short = 'T', long)]
    pub timestamps: bool,

    /// Print JSON, one object a line
    #[arg(short, long)]
    pub json: bool,

    /// Print nothing but the summary
    #[arg(short, long, visible_alias = "summary-only")]
    pub quiet: bool,

    /// Add histograms of PAUSE and STOPPED to the summary
    #[arg(short = 'H', long)]
    pub histogram: bool,

    /// Write to FILE instead of stdout; .json and .jsonl mean --json
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    /// List the probes of the target's libjvm.so and exit
    #[arg(long, requires = "pids", conflicts_with = "all")]
    pub list_probes: bool,

    /// Say on stderr what is found, attached and ignored
    #[arg(short, long)]
    pub verbose: bool,

    /// Print a completion script for SHELL and exit
    #[arg(long, value_name = "SHELL", exclusive = true)]
    pub completions: Option<Shell>,
}

impl CommandLine for Args {
    fn completions(&self) -> Option<Shell> {
        self.completions
    }

    fn verbose(&self) -> bool {
        self.verbose
    }
}

impl Args {
    /// Whether each stop gets a line of its own.
    pub fn streams(&self) -> bool {
        !self.quiet && self.interval.is_none()
    }

    /// Whether the output is JSON lines, by option or by the file's name.
    pub fn writes_json(&self) -> bool {
        let extension = self.output.as_ref().and_then(|path| path.extension()?.to_str());
        self.json || matches!(extension, Some("json" | "jsonl"))
    }
}

fn parse_millis(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=MAX_SECONDS).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("a number of milliseconds is expected".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn understands_bcc_positionals() {
        let args = Args::parse_from(["javagc", "-p", "12", "-p", "13", "5", "12"]);
        assert_eq!(args.pids, [Pid(12), Pid(13)]);
        assert_eq!(args.interval, Some(Duration::from_secs(5)));
        assert_eq!(args.count, Some(12));
        assert!(!args.streams());
    }

    #[test]
    fn refuses_nonsense() {
        for bad in [
            &["javagc"][..],
            &["javagc", "-p", "0"],
            &["javagc", "-p", "x"],
            &["javagc", "-p", "1", "0"],
            &["javagc", "-p", "1", "1", "0"],
            &["javagc", "-p", "1", "-d", "-3"],
            &["javagc", "-p", "1", "-d", "nan"],
            &["javagc", "-p", "1", "-t", "-1"],
            &["javagc", "-a", "-p", "1"],
            &["javagc", "-a", "--list-probes"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
