//! Finds loaders that only grow: `--by-loader INTERVAL`. All classes are read again in each interval.
//!
//! Loaders with the same class and name share a row. A leak may be one loader that defines more and more
//! classes, or a growing number of loaders with the same class and name. In both cases one row grows.

use std::{
    collections::{BTreeMap, HashSet},
    process::ExitCode,
    thread::sleep,
    time::Duration,
};

use anyhow::Result;
use libjvmprobe::{
    Pid, cli,
    hotspot::{HotSpot, loaded::Loader},
    jvms::{
        Named, Tick, Times, Watch,
        run::{End, run as follow},
        tracing,
    },
    process::{Fate, Target},
    sys::{
        privileges::{READ, keep_only},
        stop_on_signal,
    },
};

use crate::{args::Args, record::LoaderGrowth, report::Report, status};

/// Maximum number of rows for one JVM.
const MAX_ROWS: usize = 100_000;
/// Maximum time between two checks whether to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Totals of the loaders of one class and name.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    loaders: u64,
    classes: u64,
    /// Numbers of loaders and classes at the first reading.
    first: Option<(u64, u64)>,
    /// Numbers of readings with more loaders or classes than in the reading before (`rises`), and
    /// with fewer (`falls`).
    rises: u64,
    falls: u64,
}

/// A JVM, and its loaders at the last reading.
struct Jvm {
    target: Target,
    hotspot: HotSpot,
    rows: BTreeMap<String, Row>,
    reads: u64,
}

struct Growth<'a> {
    args: &'a Args,
    jvms: Vec<Jvm>,
    report: Report,
    has_failed: bool,
}

/// Reads the classes at each interval until it is time to end.
pub fn run(args: &Args) -> Result<ExitCode> {
    let common = &args.common;
    let stop = stop_on_signal()?;
    keep_only(READ);
    let (named, refused) = match common.all {
        true => tracing::now(),
        false => (tracing::find(&common.pids()?)?, Vec::new()),
    };
    let mut growth =
        Growth { args, jvms: Vec::new(), report: Report::open(args)?, has_failed: false };
    for (pid, error) in refused {
        growth.fail(pid, &error);
    }
    for (target, hotspot) in named {
        growth.begin((target, hotspot));
    }
    let jvms = growth.jvms.iter().map(|jvm| (jvm.target.pid(), jvm.hotspot.collector.name()));
    let what = cli::describe(common.all, jvms);
    log::info!("Counting classes of {what}... Hit Ctrl-C to end.");
    let times = Times { interval: common.interval, ..common.times() };
    if follow(&mut growth, times, &stop)? != End::Reported {
        growth.report()?;
    }
    Ok(status(false, growth.has_failed))
}

impl Growth<'_> {
    fn fail(&mut self, pid: Pid, error: &dyn std::fmt::Display) {
        log::warn!("process {pid}: {error:#}");
        self.has_failed = true;
    }

    fn begin(&mut self, (target, hotspot): Named) {
        let pid = target.pid();
        let begun = hotspot.and_then(|hotspot| {
            let mut jvm = Jvm { target, hotspot, rows: BTreeMap::new(), reads: 0 };
            jvm.read().map(|()| jvm)
        });
        match begun {
            Ok(jvm) => self.jvms.push(jvm),
            Err(error) => self.fail(pid, &error),
        }
    }
}

impl Jvm {
    fn read(&mut self) -> libjvmprobe::Result<()> {
        let mut now: BTreeMap<String, (HashSet<usize>, u64)> = BTreeMap::new();
        let loaded = self.hotspot.loaded(|loaded, class| {
            let name = loaded.loaders.get(class.loader).map_or_else(String::new, row_name);
            if now.len() < MAX_ROWS || now.contains_key(&name) {
                let (loaders, classes) = now.entry(name).or_default();
                loaders.insert(class.loader);
                *classes += 1;
            }
            Ok(())
        })?;
        if !loaded.is_complete {
            log::warn!("process {}: not all classes were read", self.target.pid());
            return Ok(());
        }
        self.reads += 1;
        for (name, row) in &mut self.rows {
            let (loaders, classes) = now.remove(name).unwrap_or_default();
            row.next(loaders.len() as u64, classes);
        }
        for (name, (loaders, classes)) in now {
            // A new row has risen from zero, except at the first reading.
            let mut row = Row::default();
            if self.reads > 1 {
                row.next(0, 0);
            }
            row.next(loaders.len() as u64, classes);
            self.rows.insert(name, row);
        }
        Ok(())
    }

    fn rows(&self) -> Vec<LoaderGrowth> {
        let row = |(name, row): (&String, &Row)| {
            let (loaders, classes) = row.first.unwrap_or_default();
            LoaderGrowth {
                pid: self.target.pid().0,
                loader: name.clone(),
                loaders: row.loaders,
                loaders_more: row.loaders.cast_signed() - loaders.cast_signed(),
                classes: row.classes,
                classes_more: row.classes.cast_signed() - classes.cast_signed(),
                reads: self.reads,
                rises: row.rises,
                falls: row.falls,
                only_grows: row.rises > 1 && row.falls == 0,
            }
        };
        let mut rows: Vec<_> = self.rows.iter().map(row).collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.only_grows, row.classes_more, row.classes)));
        rows
    }
}

impl Row {
    fn next(&mut self, loaders: u64, classes: u64) {
        if self.first.is_some() {
            self.rises += u64::from(loaders > self.loaders || classes > self.classes);
            self.falls += u64::from(loaders < self.loaders || classes < self.classes);
        }
        self.first.get_or_insert((loaders, classes));
        (self.loaders, self.classes) = (loaders, classes);
    }
}

/// Returns the row's name for a loader: its class and name.
fn row_name(loader: &Loader) -> String {
    match (&loader.class, &loader.name) {
        _ if loader.is_boot => "bootstrap".into(),
        (Some(class), Some(name)) => format!("{class} '{name}'"),
        (Some(class), None) => class.to_string(),
        (None, Some(name)) => format!("'{name}'"),
        (None, None) => "(unknown)".into(),
    }
}

impl Watch for Growth<'_> {
    fn take_events(&mut self, timeout: Duration) -> libjvmprobe::Result<()> {
        sleep(timeout.min(CHECK_INTERVAL));
        Ok(())
    }

    fn poll(&mut self) -> libjvmprobe::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _: Tick) -> libjvmprobe::Result<()> {
        self.jvms.retain(|jvm| {
            let has_ended = jvm.target.process.fate() != Fate::Alive;
            if has_ended {
                log::info!("process {} has ended", jvm.target.pid());
            }
            !has_ended
        });
        Ok(())
    }

    fn report(&mut self) -> libjvmprobe::Result<()> {
        let mut failed = Vec::new();
        for jvm in &mut self.jvms {
            match jvm.read() {
                Ok(()) => {}
                Err(_) if jvm.target.process.fate() != Fate::Alive => continue,
                Err(error) => failed.push((jvm.target.pid(), error)),
            }
            self.report.growth(&jvm.rows(), self.args.top)?;
        }
        for (pid, error) in failed {
            self.fail(pid, &error);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.jvms.is_empty()
    }

    fn is_closed(&self) -> bool {
        self.report.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_counts_rises_and_falls_of_class_counts() {
        let mut row = Row::default();
        for (loaders, classes) in [(1, 10), (1, 10), (1, 12), (2, 12), (2, 11)] {
            row.next(loaders, classes);
        }
        assert_eq!((row.rises, row.falls, row.first), (2, 1, Some((1, 10))));
    }
}
