//! The command line.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::{ArgGroup, Parser};
use libjvmprobe::{
    cli::{CommandLine, Common, parse_bytes, parse_size},
    render::formats,
    sys::Pace,
    trace::allocations::Options,
};

/// Default number of rows in a table.
const DEFAULT_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  javaobjnew -p 1234             classes that process 1234 allocates, until Ctrl-C
  javaobjnew -p 1234 5 12        a table every 5 seconds, 12 times
  javaobjnew -p 1234 -C 10 5     the ten classes with the most objects, every 5 seconds
  javaobjnew -p 1234 --large 1m  each object of at least 1 MiB when it is allocated
  javaobjnew -p 1234 -s -d 30    with the stacks that allocate, after 30 seconds
  javaobjnew -p 1234 -d 30 -o flame.svg  a flame graph of allocated bytes
  javaobjnew -p 1234 -d 60 -j    one minute as JSON lines
  javaobjnew -p 1234 --exact     every object (needs -XX:+DTraceAllocProbes)

Without --exact, the numbers per class are estimates; the total in bytes is the JVM's exact count.";

/// Shows what running JVMs allocate, by class.
#[derive(Clone, Debug, Parser)]
#[command(name = "javaobjnew", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(group = ArgGroup::new("rows").args(["top", "top_count", "top_size"]))]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// Show the N classes with the most bytes [default: 20; --json: all]
    #[arg(long, value_name = "N")]
    pub top: Option<NonZeroUsize>,

    /// Show the N classes with the most objects
    #[arg(short = 'C', long, value_name = "N")]
    pub top_count: Option<NonZeroUsize>,

    /// Same as --top
    #[arg(short = 'S', long, value_name = "N")]
    pub top_size: Option<NonZeroUsize>,

    /// Show each thread separately
    #[arg(short, long)]
    pub threads: bool,

    /// Show the stacks that allocate the classes with the most bytes
    #[arg(short, long)]
    pub stacks: bool,

    /// Write all stacks with their bytes to FILE, with the class as the innermost frame, in the
    /// format that its extension selects (repeatable)
    #[arg(short, long, value_name = "FILE", help = format!(
        "Write the bytes of all stacks to FILE (repeatable): {}", formats::list()))]
    pub output: Vec<PathBuf>,

    /// In .folded files, list the stacks of each second separately; each line begins with the
    /// number of the second
    #[arg(long, requires = "output")]
    pub timeline: bool,

    /// In .svg files, also draw frames narrower than 0.1 %
    #[arg(long)]
    pub keep_narrow: bool,

    /// Print each object of at least BYTES (64k, 1m) that is allocated outside of TLABs
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub large: Option<u64>,

    /// Count every object; the JVM must run with -XX:+DTraceAllocProbes
    #[arg(long)]
    pub exact: bool,

    /// Memory limit; classes found after it is reached are added up as (other)
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    pub max_memory: usize,
}

/// Key by which classes are sorted, in descending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By bytes.
    Bytes,
    /// By number of objects.
    Objects,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }
}

impl Args {
    /// Whether each interval gets a table of its own.
    fn prints_tables(&self) -> bool {
        !self.common.quiet && self.common.interval.is_some()
    }

    /// Returns the options of the allocation tracer.
    pub fn options(&self) -> Options {
        Options {
            exact: self.exact,
            by_thread: self.threads,
            by_stack: self.wants_stacks(),
            spans: formats::have_span_labels(&self.output),
            large: self.large,
            slot_ns: self.slot_ns(),
            max_memory: self.max_memory,
            intervals: self.prints_tables(),
            keeps_whole_trace: true,
            pace: Pace::Prompt,
        }
    }

    /// Whether stacks must be walked, for `--stacks` or for `--output` files.
    fn wants_stacks(&self) -> bool {
        self.stacks || !self.output.is_empty()
    }

    /// Length of the time slots by which allocations are counted, in nanoseconds; 0 if no output
    /// shows times.
    pub fn slot_ns(&self) -> u64 {
        formats::slot_ns(&self.output, self.timeline)
    }

    /// Returns the order of the rows.
    pub fn order(&self) -> Order {
        if self.top_count.is_some() { Order::Objects } else { Order::Bytes }
    }

    /// Returns the maximum number of rows in a table.
    pub fn rows(&self) -> usize {
        let requested = self.top.or(self.top_count).or(self.top_size);
        let default = if self.common.json { usize::MAX } else { DEFAULT_ROWS };
        requested.map_or(default, NonZeroUsize::get)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_definition_passes_clap_debug_assert() {
        Args::command().debug_assert();
    }

    #[test]
    fn bcc_options_are_accepted() {
        let args = Args::parse_from(["javaobjnew", "-p", "12", "-C", "5", "1", "3"]);
        assert_eq!((args.order(), args.rows()), (Order::Objects, 5));
        assert_eq!(args.common.interval, Some(std::time::Duration::from_secs(1)));
        assert_eq!(args.common.count, Some(3));
        let args = Args::parse_from(["javaobjnew", "-p", "12", "-S", "7"]);
        assert_eq!((args.order(), args.rows()), (Order::Bytes, 7));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for bad in [
            &["javaobjnew", "-p", "0"][..],
            &["javaobjnew", "-p", "1", "0"],
            &["javaobjnew", "-p", "1", "1", "0"],
            &["javaobjnew", "-p", "1", "--top", "0"],
            &["javaobjnew", "-p", "1", "-C", "3", "-S", "3"],
            &["javaobjnew", "-p", "1", "--large", "x"],
            &["javaobjnew", "-a", "-p", "1"],
            &["javaobjnew", "-p", "1", "--timeline"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
