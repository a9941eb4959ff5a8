//! The command line.

use std::{num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::Parser;
use libjvmprobe::{
    cli::{CommandLine, Common, parse_wait},
    render::formats::{self, jfr},
    sys::Pace,
    trace::waits::Options,
};

/// Default number of rows in a table.
const DEFAULT_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  javawait -p 1234               what its threads wait for, until Ctrl-C
  javawait -p 1234 5 12          a table every 5 seconds, 12 times
  javawait -p 1234 -v            each wait when it ends
  javawait -p 1234 --min 50ms -v -d 30  each wait of at least 50 ms
  javawait -p 1234 -s -d 30      with the stacks of the waiting threads and of the holders
  javawait -p 1234 --locks       locks and resources: waits, threads, hold times
  javawait -p 1234 -d 30 -o waits.svg  a flame graph: waiting thread, then holder
  javawait -p 1234 -d 60 -j      one minute as JSON lines

The holder is the thread that released the lock, or that woke the waiting thread.";

const VERBOSE: &str =
    "Print each wait when it ends, and details to stderr; with -vv, messages of libbpf too";

/// Shows what the threads of running JVMs wait for, for how long, and which thread made them wait.
#[derive(Clone, Debug, Parser)]
#[command(name = "javawait", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(mut_arg("verbose", |arg| arg.help(VERBOSE)))]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// Report waits of at least DURATION (5ms, 100us, 1s)
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = parse_wait)]
    pub min: Duration,

    /// Show the N rows with the most time [default: 20; --json: all]
    #[arg(long, value_name = "N")]
    pub top: Option<NonZeroUsize>,

    /// Show each thread separately
    #[arg(short, long)]
    pub threads: bool,

    /// Show the longest wait of each row with all frames: of the waiting thread and of the holder
    #[arg(short, long)]
    pub stacks: bool,

    /// Show locks and other resources: waits, waiting threads, and how long the locks were held
    #[arg(long)]
    pub locks: bool,

    /// Include waits for work: idle workers of pools, event loops, threads of the JVM itself
    #[arg(long)]
    pub idle: bool,

    /// Write the time of all stacks to FILE, in the format that its extension selects (repeatable)
    #[arg(short, long, value_name = "FILE", help = format!(
        "Write the time of all stacks to FILE (repeatable): {}", formats::list()))]
    pub output: Vec<PathBuf>,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Args {
    /// Returns the options of the tracer.
    pub fn options(&self) -> Options {
        Options { min: self.min, pace: Pace::Prompt, virtual_threads: true, holders: true }
    }

    /// Returns the length of the time slots of the output files in nanoseconds; 0 if none of them shows times.
    pub fn slot_ns(&self) -> u64 {
        formats::slot_ns(&self.flame_files(), false)
    }

    /// Returns the output files that contain sums by stack.
    pub fn flame_files(&self) -> Vec<PathBuf> {
        self.output.iter().filter(|path| !jfr::is_named(path)).cloned().collect()
    }

    /// Returns the output files that contain each wait.
    pub fn recordings(&self) -> impl Iterator<Item = &PathBuf> {
        self.output.iter().filter(|path| jfr::is_named(path))
    }

    /// Whether each wait is printed when it ends.
    pub fn prints_waits(&self) -> bool {
        !self.common.quiet && (self.common.json || self.common.is_verbose())
    }

    /// Returns the maximum number of rows in a table.
    pub fn rows(&self) -> usize {
        let default = if self.common.json { usize::MAX } else { DEFAULT_ROWS };
        self.top.map_or(default, NonZeroUsize::get)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn definition_of_the_command_line_is_consistent() {
        Args::command().debug_assert();
    }
}
