//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use libjvmprobe::cli::{CommandLine, CommandOptions, Common};

/// Default number of packages in the table.
const DEFAULT_ROWS: usize = 20;

const EXAMPLES: &str = "\
Examples:
  javaclass -p 1234              loaded classes by jar, module and package
  javaclass -p 1234 --methods    each method: called, not called, or unknown
  javaclass -p 1234 --unused     classes of its jars that are not loaded
  javaclass -p 1234 -d 60        trace class loading and initialization for a minute
  javaclass -o init.html -- java -jar app.jar    durations of class initializers
  javaclass merge *.json         combine the reports that -j wrote
  javaclass strip --report used.json app.jar small.jar    remove unused classes
  javaclass -a --list cve.txt    search all JVMs for the use of listed classes

With --list, the exit status is 3 if anything listed is or may be in use, 0 if nothing is.";

const USAGE: &str = "\
javaclass [OPTIONS] {-p PID | -a | --name REGEX | --container ID} [INTERVAL [COUNT]]
       javaclass [OPTIONS] -- COMMAND [ARGUMENT]...
       javaclass merge [-j] FILE...             combine javaclass -j reports of several runs
       javaclass strip -r FILE IN.jar OUT.jar   remove unused classes from a jar";

/// Layout of the help. It has no headings and no list of the positional arguments, so that the help fits
/// on one screen. The usage line shows the positional arguments.
const TEMPLATE: &str = "{about}\n\n{usage-heading} {usage}\n\n{options}{after-help}\n";

/// Shows which classes and methods running JVMs have used since they started.
#[derive(Clone, Debug, Parser)]
#[command(name = "javaclass", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(override_usage = USAGE, help_template = TEMPLATE)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    pub started: CommandOptions,

    /// Show each class, grouped by origin and package
    #[arg(long, conflicts_with_all = ["csv", "json", "list"])]
    pub tree: bool,

    /// Show each method of each class
    #[arg(short = 'm', long, conflicts_with = "list")]
    pub methods: bool,

    /// Print CSV: one line per class, or per method with --methods
    #[arg(long, conflicts_with_all = ["json", "list"])]
    pub csv: bool,

    /// Group by class loader; with INTERVAL, show which loaders grow
    #[arg(long, conflicts_with_all = ["csv", "list", "command"])]
    pub by_loader: bool,

    /// Show only the classes and methods that are listed in FILE
    #[arg(long, value_name = "FILE")]
    pub list: Option<PathBuf>,

    /// Write the result of --list to FILE as OpenVEX
    #[arg(long, value_name = "FILE", requires = "list")]
    pub vex: Option<PathBuf>,

    /// URL of the product for --vex [default: from main class or jar]
    #[arg(long, value_name = "URL", requires = "vex", value_parser = parse_url)]
    pub product: Option<String>,

    /// Show classes of the JVM's jars that are not loaded or not initialized
    #[arg(long, conflicts_with_all = ["tree", "methods", "csv", "by_loader", "list"])]
    pub unused: bool,

    /// With --unused: include the JDK's own modules
    #[arg(long, requires = "unused")]
    pub jdk: bool,

    /// Trace class loading (implied by -d, -s, -o, INTERVAL or a command)
    #[arg(short, long)]
    pub watch: bool,

    /// Trace, and show the stack of each event
    #[arg(short, long)]
    pub stacks: bool,

    /// Trace, and write the durations of initializers to FILE; its name extension selects the format
    /// (repeatable)
    #[arg(
        short,
        long,
        value_name = "FILE",
        help = "Trace, write initializer times to FILE: .svg, .html, ... (repeatable)"
    )]
    pub output: Vec<PathBuf>,

    /// Show the N packages with the most classes [default: 20]
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS, hide_default_value = true)]
    pub top: usize,
}

/// Subcommands that read files instead of JVMs.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Combine javaclass -j reports of several runs and hosts
    Merge {
        /// Reports of javaclass -j
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Print JSON, one class per line
        #[arg(short, long)]
        json: bool,
    },
    /// Remove unused classes from a jar, according to javaclass -j reports
    Strip(Strip),
}

/// Options of `strip`.
#[derive(Clone, Debug, clap::Args)]
pub struct Strip {
    /// Report of -j or merge -j from a complete run of the program (repeatable)
    #[arg(short, long = "report", required = true, value_name = "FILE")]
    pub reports: Vec<PathBuf>,

    /// Also keep the classes listed in FILE, one per line
    #[arg(short, long, value_name = "FILE")]
    pub keep: Option<PathBuf>,

    /// Only print what would be removed
    #[arg(short = 'n', long, conflicts_with = "out")]
    pub warn_only: bool,

    /// Print JSON, one class per line, with the reason to keep it
    #[arg(short, long)]
    pub json: bool,

    /// Print only the totals
    #[arg(short, long)]
    pub quiet: bool,

    /// The input jar, which is not changed
    #[arg(value_name = "IN.jar")]
    pub jar: PathBuf,

    /// The output jar
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
        false => Err("expected a URL, for example pkg:maven/com.acme/app@1.0".into()),
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
            return Err(
                "--tree, --methods, --csv, --unused, and --by-loader without INTERVAL, read \
                 the classes once; they cannot be combined with -d, -w, -s, -o, INTERVAL or \
                 a command"
                    .into(),
            );
        }
        if self.by_loader && self.common.json && !self.counts_loaders() {
            return Err("--json already shows the loader of each class; with --by-loader, add \
                        INTERVAL"
                .into());
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
    fn command_definition_passes_clap_debug_assert() {
        Args::command().debug_assert();
    }

    #[test]
    fn conflicting_options_are_rejected() {
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
