//! Receives the waits, and prints them as text or JSON lines.

use std::{collections::BTreeMap, sync::Arc};

use libjvmprobe::{
    Pid, Result,
    bpf::clock,
    hotspot::{HotSpot, java_threads::ConnectionPool},
    jvms::Lost,
    render::{
        columns::wrap,
        formats::jfr::file::RecordingFiles,
        output::Output,
        table::{Times, lost_line, more},
        units::{count, span},
    },
    stack::profile::Profile,
    trace::{
        self,
        waits::{Sink, UnmountedReading, Wait},
    },
};

use crate::{
    args::Args,
    flames::Flames,
    groups::Groups,
    locks::{self, Locks},
    record::{GroupRecord, PoolRecord, Record, Summary},
    table,
    unmounted::UnmountedThreads,
    wait_text::line,
};

/// Maximum number of connection pools. Further ones are not shown.
const MAX_POOLS: usize = 1024;

/// Prints waits.
pub struct Report<'a> {
    args: &'a Args,
    out: Output,
    times: Times,
    groups: Groups,
    /// Locks, with `--locks`.
    locks: Locks,
    unmounted: UnmountedThreads,
    /// Connection pools by process and name, at the time when most of their connections were in use.
    pools: BTreeMap<(u32, Arc<str>), ConnectionPool>,
    /// Profile for the output files.
    flames: Option<Flames>,
    /// Files in JDK Flight Recorder's format, which contain each wait.
    recordings: RecordingFiles,
    /// Begin of the trace on `CLOCK_MONOTONIC`, in nanoseconds.
    trace_begin_ns: u64,
    /// Begin of the interval on `CLOCK_MONOTONIC`, in nanoseconds.
    begin_ns: u64,
    lost: u64,
}

impl<'a> Report<'a> {
    /// Opens standard output.
    pub fn open(args: &'a Args) -> Result<Self> {
        let now = clock::monotonic_ns();
        let flames = (!args.flame_files().is_empty()).then(|| Flames::new(args.slot_ns(), now));
        Ok(Self {
            args,
            out: Output::open(None)?,
            times: Times { dates: args.common.timestamps },
            groups: Groups::new(args.threads, args.idle),
            locks: Locks::default(),
            unmounted: UnmountedThreads::new(args.idle),
            pools: BTreeMap::new(),
            flames,
            recordings: RecordingFiles::begin(args.recordings())?,
            trace_begin_ns: now,
            begin_ns: now,
            lost: 0,
        })
    }

    /// Begins the trace.
    pub fn begin(&mut self) {
        let now = clock::monotonic_ns();
        (self.begin_ns, self.trace_begin_ns) = (now, now);
        if self.flames.is_some() {
            self.flames = Some(Flames::new(self.args.slot_ns(), now));
        }
    }

    /// Returns the profile for the output files, after the end of the trace.
    pub fn take_flames(&mut self) -> Option<Profile> {
        let duration_ns = self.begin_ns.saturating_sub(self.trace_begin_ns);
        self.flames.take().map(|flames| flames.finish(duration_ns))
    }

    /// Ends the recordings.
    pub fn finish_recordings(&mut self) -> Result<()> {
        self.recordings.finish().map(drop)
    }

    fn is_interval(&self) -> bool {
        self.args.common.interval.is_some()
    }

    fn json(&mut self, groups: &Groups, locks: &Locks, end_ns: u64) -> Result<()> {
        let time = clock::rfc3339(end_ns);
        for (key, group) in groups.sorted().into_iter().take(self.args.rows()) {
            self.out.json(&Record::Group(Box::new(GroupRecord {
                time: time.clone(),
                pid: key.pid,
                thread: key.thread.clone(),
                kind: key.kind,
                on: key.on.clone(),
                at: key.at.clone(),
                count: group.count,
                total_ns: group.total_ns,
                mean_ns: group.total_ns / group.count.max(1),
                p50_ns: group.percentile(50.0),
                p90_ns: group.percentile(90.0),
                p99_ns: group.percentile(99.0),
                max_ns: group.max_ns,
                threads_at_once: group.at_once(),
                ended_by: locks::ended_by(group),
            })))?;
        }
        for lock in locks.sorted().into_iter().take(self.args.rows()) {
            self.out.json(&Record::Lock(Box::new(lock.record(&time))))?;
        }
        for ((pid, _), pool) in &self.pools {
            self.out.json(&Record::Pool(PoolRecord::new(&time, *pid, pool)))?;
        }
        for record in self.unmounted.records(&time, self.args.rows()) {
            self.out.json(&Record::Unmounted(Box::new(record)))?;
        }
        self.out.json(&Record::Summary(Summary {
            time,
            ts_ns: end_ns,
            scope: if self.is_interval() { "interval" } else { "trace" },
            duration_ns: end_ns.saturating_sub(self.begin_ns),
            waits: groups.all.0,
            total_ns: groups.all.1,
            idle_waits: groups.idle.0,
            idle_ns: groups.idle.1,
            lost: self.lost,
        }))
    }

    fn text(&mut self, groups: &Groups, locks: &Locks, end_ns: u64) -> Result<()> {
        let mut sorted = groups.sorted();
        let hidden = sorted.split_off(self.args.rows().min(sorted.len()));
        let at = self.times.before_title(end_ns, self.is_interval());
        let (mut waits, mut total) = groups.all;
        if self.args.idle {
            waits += groups.idle.0;
            total += groups.idle.1;
        }
        self.out.line("")?;
        self.out.line(&format!(
            "{at}{} of at least {} in {}, {} in total",
            count(waits, "wait"),
            span(u64::try_from(self.args.min.as_nanos()).unwrap_or(u64::MAX)),
            span(end_ns.saturating_sub(self.begin_ns)),
            span(total),
        ))?;
        if self.args.locks {
            self.locks(locks)?;
            return self.show_lost();
        }
        if !sorted.is_empty() {
            self.out.lines(&table::table(&sorted, self.args.threads))?;
        }
        if let Some(rows) = more("row", hidden.iter().map(|(_, group)| group.total_ns), span) {
            self.out.line(&format!("{rows}; --top shows more"))?;
        }
        if groups.idle.0 > 0 && !self.args.idle {
            let idle = count(groups.idle.0, "wait");
            self.out.line(&format!(
                "Not shown: {idle} for work, {} in total; --idle shows them",
                span(groups.idle.1)
            ))?;
        }
        for line in table::pools(&sorted) {
            self.out.lines(&wrap(&line))?;
        }
        for pool in self.pools.values() {
            let ConnectionPool { name, in_use, size, max_size } = pool;
            let at_most = if size == max_size { "" } else { "at most " };
            let connections = count(u64::from(*max_size), "connection");
            self.out.line(&format!("{name}: {in_use} of {at_most}{connections} in use"))?;
        }
        for line in table::longest(&sorted, self.args.stacks) {
            self.out.line(&line)?;
        }
        for line in self.unmounted.lines(self.args.rows(), self.args.stacks) {
            self.out.line(&line)?;
        }
        self.show_lost()
    }

    fn show_lost(&mut self) -> Result<()> {
        lost_line(self.lost).map_or(Ok(()), |line| self.out.line(&line))
    }

    fn locks(&mut self, locks: &Locks) -> Result<()> {
        let mut sorted = locks.sorted();
        let hidden = sorted.split_off(self.args.rows().min(sorted.len()));
        if !sorted.is_empty() {
            self.out.lines(&locks::table(&sorted))?;
        }
        if !hidden.is_empty() {
            let rows = count(hidden.len() as u64, "more row");
            self.out.line(&format!("{rows}; --top shows more"))?;
        }
        Ok(())
    }
}

impl trace::Sink for Report<'_> {
    fn jvm(&mut self, hotspot: &HotSpot) -> Result<()> {
        self.recordings.add_jvm(hotspot)
    }

    fn lost(&mut self, lost: Lost) -> Result<()> {
        self.lost += lost.events();
        lost.warn();
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.out.is_closed()
    }
}

impl Sink for Report<'_> {
    fn wait(&mut self, wait: Wait) -> Result<()> {
        self.groups.add(&wait);
        if !wait.is_idle || self.args.idle {
            if self.args.locks {
                self.locks.add(&wait);
            }
            if let Some(flames) = &mut self.flames {
                flames.add(&wait);
            }
            let begin_ns = clock::unix_ns(wait.begin_ns);
            self.recordings.add(|to| to.wait(&wait, begin_ns))?;
        }
        if !self.args.prints_waits() || wait.is_idle && !self.args.idle && !self.args.common.json {
            return Ok(());
        }
        match self.args.common.json {
            true => self.out.json(&Record::Wait(Box::new((&wait).into()))),
            false => self.out.line(&line(&wait, self.times)),
        }
    }

    fn unmounted(&mut self, reading: &UnmountedReading) -> Result<()> {
        if let Some(flames) = &mut self.flames {
            flames.add_unmounted(reading, self.args.idle);
        }
        self.unmounted.add(reading);
        Ok(())
    }

    fn pool(&mut self, pid: Pid, pool: ConnectionPool) {
        let key = (pid.0, Arc::clone(&pool.name));
        if self.pools.len() >= MAX_POOLS && !self.pools.contains_key(&key) {
            return;
        }
        let most = self.pools.entry(key).or_insert_with(|| pool.clone());
        if pool.in_use > most.in_use {
            *most = pool;
        }
    }

    fn report(&mut self, end_ns: u64) -> Result<()> {
        let empty = Groups::new(self.args.threads, self.args.idle);
        let groups = std::mem::replace(&mut self.groups, empty);
        let locks = std::mem::take(&mut self.locks);
        match self.args.common.json {
            true => self.json(&groups, &locks, end_ns)?,
            false => self.text(&groups, &locks, end_ns)?,
        }
        self.unmounted = UnmountedThreads::new(self.args.idle);
        self.pools.clear();
        self.begin_ns = end_ns;
        self.lost = 0;
        Ok(())
    }
}
