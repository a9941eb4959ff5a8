//! Effective settings: the command line overrides the configuration file, which overrides the defaults.

use std::{path::PathBuf, thread::available_parallelism, time::Duration};

use anyhow::Result;
use libjvmprobe::cli::{limit_warnings, print_messages_as_json};

use crate::{
    args::{self, Daemon, Log},
    collect::{
        daemon::{Changed, Options},
        saving::Limits,
        tracers::DEFAULT_WINDOW,
    },
    config::Config,
    metrics::server,
    push::target,
    store::{Store, folder},
};

const DEFAULT_HERTZ: u64 = 19;
const DEFAULT_AGE: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_SIZE: u64 = 1 << 30;
const DEFAULT_MEMORY: u64 = 150 << 20;
/// The default CPU limit is 1 % of one processor for each group of this many processors of the host. It is at
/// least 1 %.
const PROCESSORS_PER_PERCENT: f64 = 4.0;

/// Sets the log format, and limits the number of warnings.
pub fn log(format: Option<Log>) {
    limit_warnings();
    if format == Some(Log::Json) {
        print_messages_as_json();
    }
}

/// Returns the directory of the store.
pub fn dir(args: &Daemon, config: &Config) -> PathBuf {
    let dir = args.dir.clone().or_else(|| config.store.dir.clone());
    dir.unwrap_or_else(|| PathBuf::from(args::DIR))
}

fn bounds(args: &Daemon, config: &Config) -> (Duration, u64) {
    let age = args.keep.or(config.store.keep).unwrap_or(DEFAULT_AGE);
    (age, args.keep_size.or(config.store.keep_size).unwrap_or(DEFAULT_SIZE))
}

/// Returns the time without progress after which a thread dump is taken, in seconds; 0 for no thread dumps.
fn thread_dumps(args: &Daemon, config: &Config) -> u64 {
    args.thread_dumps.or(config.take.thread_dumps).map_or(0, |after| after.as_secs())
}

fn limits(args: &Daemon, config: &Config) -> Limits {
    let processors = available_parallelism().map_or(1.0, |n| n.get() as f64);
    Limits {
        cpu_percent: args
            .max_cpu
            .or(config.take.max_cpu)
            .unwrap_or_else(|| (processors / PROCESSORS_PER_PERCENT).max(1.0)),
        memory_bytes: args.max_memory.or(config.take.max_memory).unwrap_or(DEFAULT_MEMORY),
    }
}

/// Opens the store.
///
/// # Errors
/// An error that says what is wrong with the directory.
pub fn store(args: &Daemon, config: &Config) -> Result<Store> {
    let (age, size) = bounds(args, config);
    let mode = config.store.mode.unwrap_or(folder::DEFAULT_MODE);
    Store::open_with_mode(&dir(args, config), age, size, mode)
}

/// Returns the options of the daemon.
pub fn options(args: &Daemon, config: Config, verbose: u8) -> Options {
    let mut targets: Vec<_> = args.push.iter().cloned().map(target::Options::new).collect();
    targets.extend(config.targets.iter().cloned());
    Options {
        hertz: args.frequency.or(config.take.frequency).unwrap_or(DEFAULT_HERTZ),
        off_cpu: args.off_cpu || config.take.off_cpu,
        waits: args.waits.or(config.take.waits),
        window: args.window.or(config.take.window).unwrap_or(DEFAULT_WINDOW),
        allocation: !args.no_alloc && config.take.allocation.unwrap_or(true),
        thread_dumps: thread_dumps(args, &config),
        limits: limits(args, &config),
        sets: args.metrics.or(config.metrics.set).unwrap_or_default(),
        serve: server::Options {
            listen: args.listen.unwrap_or(config.metrics.listen).0,
            health: args.health_listen.or(config.metrics.health_listen),
            web_config: args.web_config.clone().or_else(|| config.metrics.web_config.clone()),
        },
        targets,
        queues: dir(args, &config).join("push"),
        rules: config.rules,
        verbose,
    }
}

/// Reads the configuration file again. Changed rates, ports and targets apply only after a restart of the daemon.
///
/// # Errors
/// An error that says what is wrong with the file.
pub fn read_again(args: &Daemon) -> Result<Changed> {
    let config = Config::read(args.config.as_deref())?;
    let (limits, bounds) = (limits(args, &config), bounds(args, &config));
    let thread_dumps = thread_dumps(args, &config);
    Ok(Changed { rules: config.rules, limits, thread_dumps, bounds })
}
