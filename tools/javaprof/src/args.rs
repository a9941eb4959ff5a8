//! The command line.

use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};

use clap::{Parser, ValueEnum, ValueHint, value_parser};
use libjvmprobe::{
    Result,
    cli::{CommandLine, CommandOptions, Common, parse_size, parse_wait},
    jvms::Times,
    render::{
        formats,
        perfmap::{self, Unfold},
    },
    sys::Pace,
    trace::samples::{
        Options, StackWalk, SymbolSource, Targets,
        events::{EventKind, EventSpec, MAX_EVENTS, MAX_HERTZ},
    },
};
use regex::Regex;

const EXAMPLES: &str = "\
Examples:
  javaprof -p 1234 30 -o cpu.svg -o a.folded         write a flame graph and folded stacks
  javaprof -p 1234 30 --diff a.folded -o diff.svg    show the difference from a.folded";

const USAGE: &str = "\
javaprof [OPTIONS] {-p PID | -a | --system-wide | --name REGEX | --container ID} [SECONDS | INTERVAL COUNT]
       javaprof [OPTIONS] -- COMMAND [ARGUMENT]...";

/// Layout of the help. It has no headings and no list of the positional arguments, so that the help fits
/// on one screen. The usage line shows the positional arguments.
const TEMPLATE: &str = "{about}\n\n{usage-heading} {usage}\n\n{options}{after-help}\n";

/// Profiles running JVMs: CPU time and other events in Java, native and kernel code.
#[derive(Clone, Debug, Parser)]
#[command(name = "javaprof", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(override_usage = USAGE, help_template = TEMPLATE)]
#[command(mut_arg("quiet", |arg| arg.help("Print no summary").conflicts_with("folded")))]
#[command(mut_arg("interval", |arg| arg.help("Profile for this many seconds; with COUNT, report at this interval")))]
pub struct Args {
    #[command(flatten)]
    pub common: Common,

    /// Profile all processes
    #[arg(long, conflicts_with_all = ["pids", "all", "name", "container", "command", "user"])]
    pub system_wide: bool,

    #[command(flatten)]
    pub started: CommandOptions,

    /// Sample cpu, wall, off-cpu, exceptions, ... (repeatable) [default: cpu]
    #[arg(short, long, value_name = "EVENT[/RATE]", value_parser = EventSpec::from_str)]
    pub event: Vec<EventSpec>,

    /// Skip events that are not available
    #[arg(long)]
    pub skip_missing: bool,

    /// With -e wall, off-cpu: show shorter waits only as a sum
    #[arg(long, value_name = "DURATION", default_value = "1ms", value_parser = parse_wait)]
    pub min: Duration,

    /// With -e wall, off-cpu: show the stacks of threads waiting for work
    #[arg(long)]
    pub idle: bool,

    /// Samples per second on each CPU
    #[arg(short = 'F', long, value_name = "HZ", default_value = "99",
        value_parser = value_parser!(u64).range(1..=MAX_HERTZ))]
    pub frequency: u64,

    /// Print folded stacks instead of the summary
    #[arg(short, long, conflicts_with = "json")]
    pub folded: bool,

    /// Show more stacks; with --json, one line per stack
    #[arg(short, long)]
    pub stacks: bool,

    /// Show each thread separately
    #[arg(short, long)]
    pub threads: bool,

    /// Group samples by the span that their thread has published
    #[arg(long)]
    pub span: bool,

    /// Omit the kernel part of stacks
    #[arg(short = 'U', long, conflicts_with = "kernel_stacks_only")]
    pub user_stacks_only: bool,

    /// Omit the user part of stacks
    #[arg(short = 'K', long)]
    pub kernel_stacks_only: bool,

    /// Keep only stacks with a matching frame (repeatable)
    #[arg(long, value_name = "REGEX", value_parser = Regex::from_str)]
    pub include: Vec<Regex>,

    /// Omit stacks with a matching frame (repeatable)
    #[arg(long, value_name = "REGEX", value_parser = Regex::from_str)]
    pub exclude: Vec<Regex>,

    /// Also write FILE, in the format that its extension selects (repeatable, as an example shows)
    #[arg(short, long, help = format!("Write {}", formats::extensions()),
        value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Vec<PathBuf>,

    /// In .svg files, also draw frames narrower than 0.1 %
    #[arg(long)]
    pub keep_narrow: bool,

    /// List the folded stacks of each second separately
    #[arg(long)]
    pub timeline: bool,

    /// In .svg and .html files, show the difference from FILE (folded stacks)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub diff: Option<PathBuf>,

    /// How to walk stacks: hotspot, fp (frame pointers)
    #[arg(long, value_name = "HOW", default_value = "auto", hide_possible_values = true)]
    pub walk: StackWalk,

    /// Java names: hotspot, perfmap, agent, file:PATH, none
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub symbols: SymbolSource,

    /// Show the parameter types of methods
    #[arg(long)]
    pub signatures: bool,

    /// Write perf-PID.map files for perf and exit
    #[arg(long, conflicts_with_all = ["all", "system_wide", "command", "user", "output", "folded", "interval",
        "duration", "diff", "json", "stacks", "span"])]
    pub write_maps: bool,

    /// With --write-maps: inlined code: none, simple, all
    #[arg(
        long,
        value_name = "HOW",
        default_value = "none",
        requires = "write_maps",
        hide_possible_values = true
    )]
    pub unfold: Unfold,

    /// With --write-maps: add source files and lines
    #[arg(long, requires = "write_maps")]
    pub lines: bool,

    /// With --write-maps: write names like java/lang/String::hashCode
    #[arg(long, requires = "write_maps")]
    pub slashes: bool,

    /// With --write-maps: mark compiled and inlined methods for flame graphs
    #[arg(long, requires = "write_maps")]
    pub annotate: bool,

    /// Memory limit; the rarest stacks are merged into one
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = parse_size)]
    pub max_memory: usize,
}

impl CommandLine for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn has_target(&self) -> bool {
        self.common.has_target() || self.system_wide || !self.started.command.is_empty()
    }

    /// Replaces `--stacks HOW`, the former spelling, by `--walk HOW`.
    fn convert_obsolete_options(arguments: Vec<OsString>) -> Vec<OsString> {
        let is_how = |text: &str| StackWalk::from_str(text, false).is_ok();
        let mut converted = Vec::with_capacity(arguments.len());
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let text = argument.to_str().unwrap_or_default();
            let has_how = |next: &OsString| next.to_str().is_some_and(is_how);
            if text == "--" {
                converted.push(argument);
                converted.extend(arguments);
                break;
            } else if text == "--stacks" && arguments.peek().is_some_and(has_how) {
                converted.push("--walk".into());
            } else if let Some(how) = text.strip_prefix("--stacks=").filter(|how| is_how(how)) {
                converted.push(format!("--walk={how}").into());
            } else {
                converted.push(argument);
            }
        }
        converted
    }

    fn check(&self) -> Result<(), String> {
        let Common { interval, count, duration, .. } = self.common;
        if interval.is_some() && count.is_none() && duration.is_some() {
            return Err("specify the duration once: either SECONDS or --duration SECONDS".into());
        }
        if self.event.len() > MAX_EVENTS {
            return Err(format!("too many events: at most {MAX_EVENTS} can be sampled at once"));
        }
        let mut names: Vec<_> = self.event.iter().map(|event| &event.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("{} is specified twice", twice[0]));
        }
        if self.event.iter().filter(|event| event.has_waits()).count() > 1 {
            return Err("off-cpu is a part of wall: specify only one of them".into());
        }
        if self.event.len() > 1 && self.diff.is_some() {
            return Err("--diff supports only one event".into());
        }
        let source = match self.symbols {
            SymbolSource::Agent => "agent",
            SymbolSource::PerfMap => "perfmap",
            _ => return Ok(()),
        };
        match self.is_named() {
            true => Ok(()),
            false => Err(format!(
                "--symbols {source} sends a request to the JVM, which is only allowed for JVMs that \
                 are named with -p PID"
            )),
        }
    }
}

impl Args {
    /// Returns the events to sample; `cpu` by default.
    pub fn events(&self) -> Vec<EventSpec> {
        if self.event.is_empty() { vec![EventSpec::cpu()] } else { self.event.clone() }
    }

    /// Returns the names of the sampled events, for titles.
    pub fn event_names(&self) -> String {
        let what = |event: EventSpec| match event.what {
            EventKind::Cpu => "CPU time".to_owned(),
            _ => event.name.to_string(),
        };
        let all: Vec<_> = self.events().into_iter().map(what).collect();
        all.join(", ")
    }

    /// Returns the options of the sampling tracer.
    ///
    /// # Errors
    /// Fails if no running JVM matches `--name`.
    pub fn options(&self) -> Result<Options> {
        let targets = match (self.common.all, self.system_wide) {
            (true, _) => Targets::EveryJvm,
            (_, true) => Targets::EveryProcess,
            _ if !self.started.command.is_empty() => Targets::Command,
            _ => Targets::Named(self.common.pids()?),
        };
        Ok(Options {
            targets,
            named_by_user: self.is_named(),
            events: self.events(),
            frequency: self.frequency,
            rate: None,
            skip_missing: self.skip_missing,
            user: !self.kernel_stacks_only,
            kernel: !self.user_stacks_only,
            walk: self.walk,
            symbols: self.symbols.clone(),
            signatures: self.signatures,
            min_wait: self.min,
            idle: self.idle,
            spans: self.span || formats::have_span_labels(&self.output),
            slot_ns: self.slot_ns(),
            max_memory: self.max_memory,
            keeps_whole_trace: true,
            pace: Pace::Prompt,
            registry: None,
        })
    }

    /// Length of the time slots by which samples are counted, in nanoseconds; 0 if no output
    /// shows times.
    pub fn slot_ns(&self) -> u64 {
        formats::slot_ns(&self.output, self.timeline)
    }

    /// Whether the user named each process with `-p` or started it. Only such JVMs may be asked for
    /// symbols; all others are only read from outside.
    pub fn is_named(&self) -> bool {
        !self.common.all && !self.common.is_search() && !self.system_wide
    }

    /// Returns when to report and when to end. An interval without a count is the duration.
    pub fn times(&self) -> Times {
        let times = self.common.times();
        match times.count {
            Some(_) => times,
            None => Times { duration: times.duration.or(times.interval), ..Times::default() },
        }
    }

    /// Returns the options for names in perf maps.
    pub fn map_options(&self) -> perfmap::Options {
        perfmap::Options {
            unfold: self.unfold,
            signatures: self.signatures,
            lines: self.lines,
            slashes: self.slashes,
            annotate: self.annotate,
        }
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
        let args = Args::parse_from(["javaprof", "-p", "12", "-F", "49", "-f", "30"]);
        assert_eq!((args.frequency, args.folded), (49, true));
        let times = args.times();
        assert_eq!((times.duration, times.interval), (Some(Duration::from_secs(30)), None));
        let args = Args::parse_from(["javaprof", "-d", "5", "--", "java", "-p", "x"]);
        assert_eq!(args.started.command, ["java", "-p", "x"]);
        let times = Args::parse_from(["javaprof", "-p", "12", "5", "3"]).times();
        assert_eq!((times.interval, times.count), (Some(Duration::from_secs(5)), Some(3)));
        assert_eq!(times.duration, None);
    }

    #[test]
    fn older_option_spellings_are_accepted() {
        let convert_obsolete_options = |arguments: &[&str]| {
            let arguments = ["javaprof", "-a"].iter().chain(arguments);
            Args::parse_from(Args::convert_obsolete_options(
                arguments.map(OsString::from).collect(),
            ))
        };
        assert_eq!(convert_obsolete_options(&["--stacks", "fp"]).walk, StackWalk::Fp);
        assert_eq!(convert_obsolete_options(&["--stacks=hotspot"]).walk, StackWalk::Hotspot);
        let args = convert_obsolete_options(&["--stacks", "7"]);
        assert!(args.stacks && args.times().duration == Some(Duration::from_secs(7)));
    }

    #[test]
    fn repeated_duration_or_event_is_rejected() {
        let check = |arguments: &[&str]| Args::parse_from(arguments).check().is_ok();
        assert!(!check(&["javaprof", "-p", "1", "-d", "1", "2"]));
        assert!(check(&["javaprof", "-p", "1", "-d", "10", "2", "3"]));
        assert!(!check(&["javaprof", "-p", "1", "-e", "cpu", "-e", "cpu/9hz"]));
        let hertz = |event| {
            Args::parse_from(["javaprof", "-p", "1", "-F", "7", "-e", event])
                .options()
                .unwrap()
                .hertz()
        };
        assert_eq!((hertz("cpu/999hz"), hertz("cpu"), hertz("wall")), (999, 7, 7));
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for bad in [
            &["javaprof", "-p", "1", "-F", "0"][..],
            &["javaprof", "-p", "1", "-e", "pagefaults"],
            &["javaprof", "-p", "1", "-e", "page-faults/0"],
            &["javaprof", "-p", "1", "-F", "100000"],
            &["javaprof", "-p", "1", "-U", "-K"],
            &["javaprof", "-p", "1", "--include", "("],
            &["javaprof", "-p", "1", "--symbols", "file:"],
            &["javaprof", "-p", "1", "--symbols", "magic"],
            &["javaprof", "-p", "1", "-a"],
            &["javaprof", "-a", "--", "java"],
            &["javaprof", "-p", "1", "--unfold", "all"],
            &["javaprof", "--system-wide", "--write-maps"],
            &["javaprof", "-a", "--max-memory", "100K"],
            &["javaprof", "-a", "--max-memory", "99999999999G"],
        ] {
            assert!(Args::try_parse_from(bad).is_err(), "{bad:?}");
        }
    }
}
