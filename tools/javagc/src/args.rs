//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueHint};
use libjvmprobe::{
    cli::{CommandLine, Common, MAX_SECONDS},
    trace::pauses::Options,
};

const EXAMPLES: &str = "\
Examples:
  javagc -p 1234             every GC pause of process 1234; a summary on Ctrl-C
  javagc -p 1234 5 12        a summary every 5 seconds, 12 times
  javagc -a --threshold 50   pauses of 50 ms and longer, of every JVM
  javagc -p 1234 -d 60 -j    one minute as JSON lines
  javagc -p 1234 -H -q       only a summary with histograms of pauses, on Ctrl-C
  javagc -p 1234 -s          pauses, with the callers of System.gc()

PAUSE is the time of the collection itself. STOPPED is the time for which the
application was stopped, including the time to reach the safepoint (TTSP).";

/// Shows the GC pauses of running JVMs, their causes, and how long the application was stopped.
#[derive(Clone, Debug, Parser)]
#[command(name = "javagc", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// Show only stops of at least MS milliseconds; the summary counts all
    #[arg(long, short_alias = 't', value_name = "MS", value_parser = parse_millis)]
    pub threshold: Option<Duration>,

    /// Also show stops without a collection: deoptimization, thread dumps, ...
    #[arg(long)]
    pub safepoints: bool,

    /// Show each memory pool before and after (lengthens pauses slightly)
    #[arg(long)]
    pub pools: bool,

    /// Show the Java stack of each call of System.gc()
    #[arg(short, long, alias = "stack")]
    pub stacks: bool,

    /// Add histograms of PAUSE and STOPPED to the summary
    #[arg(short = 'H', long)]
    pub histogram: bool,

    /// Write to FILE: text, JSON (.json, .jsonl) or JDK Flight Recorder (.jfr) (repeatable)
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Vec<PathBuf>,

    /// List the USDT probes of the target's libjvm.so and exit
    #[arg(long, conflicts_with = "all")]
    pub list_probes: bool,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Args {
    /// Returns the options of the pause tracer.
    pub fn options(&self) -> Options {
        let Self { pools, stacks, histogram, .. } = *self;
        Options { all: self.common.all, pools, stacks, histogram, ..Options::default() }
    }

    /// Whether each stop gets a line of its own.
    pub fn streams(&self) -> bool {
        !self.common.quiet && self.common.interval.is_none()
    }
}

fn parse_millis(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(ms) if (0.0..=MAX_SECONDS).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err("expected a number of milliseconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use libjvmprobe::Pid;

    use super::*;

    #[test]
    fn command_definition_passes_clap_debug_assert() {
        Args::command().debug_assert();
    }

    #[test]
    fn bcc_positional_interval_and_count_are_accepted() {
        let args = Args::parse_from(["javagc", "-p", "12", "-p", "13", "5", "12"]);
        assert_eq!(args.common.pids, [Pid(12), Pid(13)]);
        assert_eq!(args.common.interval, Some(Duration::from_secs(5)));
        assert_eq!(args.common.count, Some(12));
        assert!(!args.streams());
    }

    #[test]
    fn older_option_spellings_are_accepted() {
        let args = Args::parse_from(["javagc", "-a", "-t", "50", "--stack"]);
        assert_eq!((args.threshold, args.stacks), (Some(Duration::from_millis(50)), true));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for bad in [
            &["javagc", "-p", "0"][..],
            &["javagc", "-p", "x"],
            &["javagc", "-p", "1", "0"],
            &["javagc", "-p", "1", "1", "0"],
            &["javagc", "-p", "1", "-d", "-3"],
            &["javagc", "-p", "1", "-d", "nan"],
            &["javagc", "-p", "1", "-t", "-1"],
            &["javagc", "-a", "-p", "1"],
            &["javagc", "--name", "x", "-p", "1"],
            &["javagc", "--name", "("],
            &["javagc", "-a", "--list-probes"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
