//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueHint};
use libjvmprobe::{
    cli::{CommandLine, Common},
    render::{formats, threads::report::DumpOptions},
};

const EXAMPLES: &str = "\
Examples:
  javastack -p 1234            all Java threads with their stacks and locks
  javastack -p 1234 -m         with native and kernel frames, also of the JVM's own threads
  javastack -p 1234 5 3        three dumps, one every five seconds
  javastack -p 1234 --top 5 2  every two seconds, the five threads that used the most CPU time
  javastack --core core.1234   the threads of a JVM that has crashed

The exit status is 3 if a deadlock was found.";

/// Prints the threads of running JVMs with their stacks, states and locks.
#[derive(Clone, Debug, Parser)]
#[command(name = "javastack", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(mut_arg("quiet", |arg| arg.help("Print only the locks for which threads wait, and the deadlocks")))]
#[command(mut_arg("json", |arg| arg.help("Print JSON, one dump per line, like jcmd Thread.dump_to_file")))]
#[command(mut_arg("interval", |arg| arg.help("Take a dump every INTERVAL seconds")))]
#[command(mut_arg("count", |arg| arg.help("End after COUNT dumps")))]
#[command(mut_arg("duration", |arg| arg.help("Take no further dump after this many seconds")))]
#[command(mut_arg("timestamps", |arg| arg.help("Print the UTC offset with the time of each dump")))]
#[command(mut_arg("all", |arg| arg.help("Dump every JVM that runs now")))]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// Show native and kernel frames, and the stacks of the JVM's own threads
    #[arg(short, long)]
    pub mixed: bool,

    /// Show which ownable synchronizers each thread holds; searches the JVM's heap
    #[arg(short, long, conflicts_with = "quiet")]
    pub locks: bool,

    /// Print only the N threads that have used the most CPU time, since the last dump if there was one
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Stop the JVM with ptrace during each dump, so that all threads are shown as they were at one instant
    #[arg(long)]
    pub freeze: bool,

    /// Write the stacks of all dumps to FILE, in the format that its extension selects (repeatable)
    #[arg(short, long, value_name = "FILE", help = format!(
        "Write the stacks of all dumps to FILE (repeatable): {}", formats::list()))]
    pub output: Vec<PathBuf>,

    /// Dump the JVM of a core file; needs neither root nor a running JVM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all =
        ["pids", "all", "name", "container", "interval", "count", "duration", "top", "freeze", "output"])]
    pub core: Option<PathBuf>,

    /// The libjvm.so or the JDK of the core file's JVM, if it is not at its original path
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath, requires = "core")]
    pub exe: Option<PathBuf>,
}

impl Args {
    /// Returns the options of the text of a dump.
    pub fn dump_options(&self) -> DumpOptions {
        let (quiet, timestamps) = (self.common.quiet, self.common.timestamps);
        // A core file does not contain the time at which it was written.
        let no_time = self.core.is_some();
        let Self { mixed, top, .. } = *self;
        DumpOptions { quiet, timestamps, no_time, mixed, top }
    }
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn has_target(&self) -> bool {
        self.core.is_some() || self.common.has_target()
    }
}
