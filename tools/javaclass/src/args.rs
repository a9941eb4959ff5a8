//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use libjvmprobe::{
    cli::{CommandLine, Common, Started},
    render::formats,
};

/// Default number of packages in the table.
const DEFAULT_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  javaclass -p 1234              classes of process 1234 by jar and module, then by package
  javaclass -p 1234 --tree       the same, down to each class
  javaclass -p 1234 --methods    each method: called, not called, unknown and why
  javaclass -p 1234 -j           each class as a line of JSON
  javaclass -p 1234 --by-loader  classes by loader: which loader has how many?
  javaclass -p 1234 --unused     classes of its jars that nobody has loaded
  javaclass -p 1234 -d 60        classes as they are loaded and initialised, for a minute
  javaclass -p 1234 -q 1         how many a second
  javaclass -- java -jar app.jar the same of a command, from its first class on
  javaclass -o init.html -- java -jar app.jar
                                 which initialisers took how long, and when
  javaclass -p 1234 --by-loader 60
                                 which loaders have more classes each minute
  javaclass merge *.json         what any of the runs has used that wrote these with -j
  javaclass strip --report used.json app.jar small.jar
                                 app.jar without what no report has seen
  javaclass -a --list cve.txt    is any of these classes or methods used, in any JVM?

With --list, exit status 3 says that something of the list is in use or may be, 0 that nothing is.";

/// Shows which classes and methods of a running JVM are used since it started.
#[derive(Clone, Debug, Parser)]
#[command(name = "javaclass", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    pub started: Started,

    /// Show each class, below its origin and package
    #[arg(long, conflicts_with_all = ["csv", "json", "list"])]
    pub tree: bool,

    /// Show each method of each class
    #[arg(short = 'm', long, conflicts_with = "list")]
    pub methods: bool,

    /// Print a line of comma-separated values for each class, or each method with --methods
    #[arg(long, conflicts_with_all = ["json", "list"])]
    pub csv: bool,

    /// Add up by class loader, not by origin; with INTERVAL, tell again and again which ones grow
    #[arg(long, conflicts_with_all = ["csv", "list", "command"])]
    pub by_loader: bool,

    /// Tell only what of FILE is loaded or used: a class, `package.*` or `class#method` a line
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,

    /// Write what was seen of the list, with vulnerabilities as [CVE-...] above lines, as OpenVEX
    #[arg(long, value_name = "FILE", requires = "list")]
    pub vex: Option<PathBuf>,

    /// What the OpenVEX is about: a package URL, or another one [default: by the main class or jar]
    #[arg(long, value_name = "URL", requires = "vex", value_parser = parse_url)]
    pub product: Option<String>,

    /// Tell which classes of the jars that the JVM uses are not loaded, or not initialised
    #[arg(long, conflicts_with_all = ["tree", "methods", "csv", "by_loader", "list"])]
    pub unused: bool,

    /// With --unused: look into the JDK's own modules, too
    #[arg(long, requires = "unused")]
    pub jdk: bool,

    /// Watch classes as they are loaded, unloaded and initialised; so do -d, -s and INTERVAL
    #[arg(short, long)]
    pub watch: bool,

    /// Watch, and show the stack that caused it
    #[arg(short, long)]
    pub stacks: bool,

    /// Watch, and write how long initialisers took, within each other and when, to FILE, whose name
    /// tells the format (repeatable)
    #[arg(short, long, value_name = "FILE", help = format!(
        "Watch, and write how long initialisers took to FILE (repeatable): {}", formats::list()))]
    pub output: Vec<PathBuf>,

    /// Show the N packages with the most classes [default: 20]
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS, hide_default_value = true)]
    pub top: usize,
}

/// What it does but look at JVMs.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Join reports that -j has printed, of several runs and hosts: what is used anywhere?
    Merge {
        /// The reports
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print JSON, one class a line
        #[arg(short, long)]
        json: bool,
    },
    /// Write a jar without the classes that no report has seen and that nothing left refers to
    Strip(Strip),
}

/// What `strip` is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Strip {
    /// What -j or merge -j has printed while the program did all that it has to do (repeatable)
    #[arg(short, long = "report", required = true, value_name = "FILE")]
    pub reports: Vec<PathBuf>,

    /// Keep these, too: a class, `package.*` or `class#method` a line
    #[arg(short, long, value_name = "FILE")]
    pub keep: Option<PathBuf>,

    /// Only tell what would be removed, and write nothing
    #[arg(short = 'n', long, conflicts_with = "out")]
    pub warn_only: bool,

    /// Print JSON, one class a line, with why it stays
    #[arg(short, long)]
    pub json: bool,

    /// Print the totals alone
    #[arg(short, long)]
    pub quiet: bool,

    /// The jar, which is not changed
    #[arg(value_name = "IN.jar")]
    pub jar: PathBuf,

    /// The jar to write
    #[arg(value_name = "OUT.jar", required_unless_present = "warn_only")]
    pub out: Option<PathBuf>,
}

/// Checks that a product is a URL.
fn parse_url(text: &str) -> Result<String, String> {
    let has_scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(is_plain)
            && !rest.is_empty()
    });
    let is_clean = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    match has_scheme && is_clean {
        true => Ok(text.to_owned()),
        false => Err("a URL is expected, pkg:maven/com.acme/app@1.0 for example".into()),
    }
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn has_target(&self) -> bool {
        self.command.is_some() || self.common.has_target() || self.started.program().is_some()
    }

    fn check(&self) -> Result<(), String> {
        let reads = self.tree || self.methods || self.csv || self.unused;
        if self.watches() && (reads || self.by_loader && !self.counts_loaders()) {
            return Err("what is read once takes no duration, interval or stacks".into());
        }
        if self.by_loader && self.common.json && !self.counts_loaders() {
            return Err("JSON has the loader of each class; with --by-loader, add INTERVAL".into());
        }
        Ok(())
    }
}

impl Args {
    /// Whether loaders are counted at intervals.
    pub fn counts_loaders(&self) -> bool {
        let watches = self.watch || self.stacks || !self.output.is_empty();
        self.by_loader && self.common.interval.is_some() && !watches
    }

    /// Whether class events are traced, instead of reading the classes once.
    pub fn watches(&self) -> bool {
        let Common { duration, interval, .. } = &self.common;
        let has_command = self.started.program().is_some();
        let writes = !self.output.is_empty();
        has_command
            || writes
            || self.watch
            || self.stacks
            || duration.is_some()
            || interval.is_some()
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
    fn what_does_not_go_together_is_refused() {
        for bad in [
            &["javaclass", "-p", "1", "--tree", "-j"][..],
            &["javaclass", "-p", "1", "--csv", "-j"],
            &["javaclass", "-p", "1", "--list", "x", "--methods"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
        let parse = |args: &[&str]| Args::parse_from([&["javaclass", "-p", "1"], args].concat());
        for bad in [&["5", "--unused"][..], &["-o", "a.svg", "--by-loader", "5"], &["-w", "--tree"]]
        {
            assert!(parse(bad).check().is_err(), "{bad:?}");
        }
        assert!(parse(&["--by-loader", "5"]).counts_loaders());
        let command = Args::parse_from(["javaclass", "-s", "--", "java", "-p", "x"]);
        assert!(Args::try_parse_from(["javaclass", "-a", "--user", "nobody"]).is_err());
        assert!(command.watches() && command.started.command == ["java", "-p", "x"]);
        let strip = ["javaclass", "strip", "-r", "a.json", "a.jar"];
        assert!(Args::try_parse_from(strip).is_err());
        assert!(Args::try_parse_from([&strip[..], &["b.jar"]].concat()).is_ok());
        assert!(Args::try_parse_from([&strip[..], &["-n"]].concat()).is_ok());
        assert!(Args::try_parse_from([&strip[..], &["b.jar", "-n"]].concat()).is_err());
        let merge = Args::parse_from(["javaclass", "merge", "a.json", "b.json"]);
        assert!(matches!(&merge.command, Some(Command::Merge { files, .. }) if files.len() == 2));
        assert!(merge.has_target() && Args::try_parse_from(["javaclass", "merge"]).is_err());
        for (args, watches) in
            [(&[][..], false), (&["-w"], true), (&["-d", "5"], true), (&["-o", "a.svg"], true)]
        {
            let args = parse(args);
            assert!(args.check().is_ok());
            assert_eq!(args.watches(), watches);
        }
    }
}
