//! The threads of a process as the kernel describes them. Source: proc(5), `/proc/PID/task/TID/{stat,status,schedstat}`.

use std::time::Duration;

use procfs::{FromRead, process::Stat, ticks_per_second};

use crate::{
    Pid, Result,
    names::clean,
    process::pid::{status_of, text_of},
};

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsThread {
    /// Its thread ID in our PID namespace.
    pub tid: u32,
    /// Its thread ID in its own, innermost PID namespace.
    pub namespace_tid: u32,
    /// Its name (`comm`), at most 15 bytes.
    pub name: String,
    /// Its scheduling data; `None` for a thread of a core file, which does not contain them.
    pub scheduling: Option<Scheduling>,
}

impl OsThread {
    /// Returns the CPU time that it has used; 0 if it is not known.
    pub fn cpu(&self) -> Duration {
        self.scheduling.map_or(Duration::ZERO, |scheduling| scheduling.cpu)
    }
}

/// Scheduling data of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// Its nice value.
    pub nice: i64,
    /// CPU time that it has used.
    pub cpu: Duration,
    /// Time since it started.
    pub elapsed: Duration,
}

/// Returns the threads of a process. Threads that start or end meanwhile may be missing.
///
/// # Errors
/// [`crate::Error::NoSuchProcess`], [`crate::Error::Permission`].
pub(crate) fn os_threads(pid: Pid) -> Result<Vec<OsThread>> {
    let namespaces = status_of(pid)?.nspid.map_or(1, |ids| ids.len());
    let uptime = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, ns) = (u64::try_from(uptime.tv_sec), u32::try_from(uptime.tv_nsec));
    let uptime = Duration::new(seconds.unwrap_or(0), ns.unwrap_or(0));
    let read = |tid: u32| {
        let stat = Stat::from_read(text_of(pid, &format!("task/{tid}/stat")).ok()?.as_bytes());
        let stat = stat.ok()?;
        // `status` is longer than the other files, so it is read only if the two IDs can differ.
        let namespace_tid = if namespaces > 1 { tid_in_namespace(pid, tid)? } else { tid };
        Some(OsThread {
            tid,
            namespace_tid,
            name: clean::name(&stat.comm).into_owned(),
            scheduling: Some(Scheduling {
                nice: stat.nice,
                cpu: cpu_time(pid, tid).unwrap_or(ticks(stat.utime.saturating_add(stat.stime))),
                elapsed: uptime.saturating_sub(ticks(stat.starttime)),
            }),
        })
    };
    Ok(tids(pid).into_iter().filter_map(read).collect())
}

/// Returns the thread IDs of a process, in our PID namespace.
pub(crate) fn tids(pid: Pid) -> Vec<u32> {
    /// Maximum number of threads that are listed.
    const MAX_THREADS: usize = 1 << 17;
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tid = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.take(MAX_THREADS).filter_map(tid).collect()
}

/// Returns the CPU time of a thread from its `schedstat`, which is exact to the nanosecond but may not exist.
fn cpu_time(pid: Pid, tid: u32) -> Option<Duration> {
    let text = text_of(pid, &format!("task/{tid}/schedstat")).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

fn tid_in_namespace(pid: Pid, tid: u32) -> Option<u32> {
    let status = text_of(pid, &format!("task/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / ticks_per_second().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_threads_are_listed_with_their_names() {
        let named = std::thread::Builder::new().name("listed-thread".into());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = named.spawn(move || ended.recv().is_err()).unwrap();
        let own = Pid(std::process::id());
        let is_listed = || os_threads(own).unwrap().iter().any(|t| t.name == "listed-thread");
        while !is_listed() {
            std::thread::yield_now();
        }
        let main = os_threads(own).unwrap().into_iter().find(|t| t.tid == own.0).unwrap();
        assert_eq!(main.namespace_tid, main.tid);
        assert!(main.scheduling.unwrap().elapsed < Duration::from_secs(3600), "{main:?}");
        drop(end);
        thread.join().unwrap();
    }
}
