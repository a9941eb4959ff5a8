//! What is wanted: the command line goes before the configuration, that before what we think best.

use std::{path::PathBuf, thread::available_parallelism, time::Duration};

use anyhow::Result;
use libjvmprobe::own::{limit_warnings, note_as_json};

use crate::{
    args::{self, Daemon, Log},
    collect::{
        daemon::{Changed, Options},
        saving::Limits,
    },
    config::Config,
    metrics::server,
    push::target,
    store::{Store, folder},
};

const HERTZ: u64 = 19;
const AGE: Duration = Duration::from_secs(24 * 3600);
const SIZE: u64 = 1 << 30;
const MEMORY: u64 = 150 << 20;
/// Processors, of which one takes a per cent.
const PROCESSORS: f64 = 4.0;

/// Writes the log as it is wanted, and no more of it than can be read.
pub fn log(how: Option<Log>) {
    limit_warnings();
    if how == Some(Log::Json) {
        note_as_json();
    }
}

/// Where windows are kept.
pub fn dir(args: &Daemon, config: &Config) -> PathBuf {
    let dir = args.dir.clone().or_else(|| config.store.dir.clone());
    dir.unwrap_or_else(|| PathBuf::from(args::DIR))
}

fn bounds(args: &Daemon, config: &Config) -> (Duration, u64) {
    let age = args.keep.or(config.store.keep).unwrap_or(AGE);
    (age, args.keep_size.or(config.store.keep_size).unwrap_or(SIZE))
}

fn limits(args: &Daemon, config: &Config) -> Limits {
    let processors = available_parallelism().map_or(1.0, |n| n.get() as f64);
    Limits {
        processor: args
            .max_cpu
            .or(config.take.max_cpu)
            .unwrap_or_else(|| (processors / PROCESSORS).max(1.0)),
        memory: args.max_memory.or(config.take.max_memory).unwrap_or(MEMORY),
    }
}

/// Opens the store.
///
/// # Errors
/// What is wrong with the directory.
pub fn store(args: &Daemon, config: &Config) -> Result<Store> {
    let (age, size) = bounds(args, config);
    let mode = config.store.mode.unwrap_or(folder::MODE);
    Store::open_with_mode(&dir(args, config), age, size, mode)
}

/// What the daemon is to do.
pub fn options(args: &Daemon, config: Config, verbose: u8) -> Options {
    let mut targets: Vec<_> = args.push.iter().cloned().map(target::Options::new).collect();
    targets.extend(config.targets.iter().cloned());
    Options {
        hertz: args.frequency.or(config.take.frequency).unwrap_or(HERTZ),
        off_cpu: args.off_cpu || config.take.off_cpu,
        allocation: !args.no_alloc && config.take.allocation.unwrap_or(true),
        limits: limits(args, &config),
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

/// Reads the configuration again. What it says of rates, ports and targets holds from the next start
/// on.
///
/// # Errors
/// What is wrong with it.
pub fn read_again(args: &Daemon) -> Result<Changed> {
    let config = Config::read(args.config.as_deref())?;
    let (limits, bounds) = (limits(args, &config), bounds(args, &config));
    Ok(Changed { rules: config.rules, limits, bounds })
}
