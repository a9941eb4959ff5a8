//! CPU time and memory that the daemon has used, and the measures that the CPU time was spent on.
//!
//! The CPU time of a tracer is that of its threads, which have its name or were started by a thread that has. Source:
//! proc(5), `/proc/PID/task/TID/schedstat`, or else the times in `stat`, which are in steps of 10 ms.

use std::{collections::HashMap, fs};

use libjvmprobe::sys::descendants;
use procfs::process::Process;
use rustix::{
    process::getpid,
    time::{ClockId, clock_gettime},
};

use crate::metrics::server::cost::serving_ns;

/// Resources that the daemon has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUse {
    /// CPU time since the start, in nanoseconds, without that of serving HTTP.
    pub processor_ns: u64,
    /// Resident memory, in bytes.
    pub memory: u64,
}

impl ResourceUse {
    /// Returns the use of this process and its child processes until now, without the CPU time of serving
    /// HTTP.
    pub fn now() -> Self {
        let (serving, children) = (serving_ns(), descendants::usage());
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        let status = fs::read_to_string(format!("/proc/{}/status", getpid())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kb = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor_ns: seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(nanos)
                .saturating_add(children.cpu_ns)
                .saturating_sub(serving),
            memory: (kb.unwrap_or(0) << 10).saturating_add(children.memory),
        }
    }
}

/// CPU time by the measure that it was spent on, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// CPU samples and off-CPU time.
    pub samples_ns: u64,
    /// Waits.
    pub waits_ns: u64,
    /// Allocation.
    pub allocation_ns: u64,
    /// Everything that is done at each step: the search for JVMs, pauses, storing and pushing.
    pub fixed_ns: u64,
}

impl Costs {
    /// Returns the sum.
    pub fn total_ns(self) -> u64 {
        let measures = self.samples_ns.saturating_add(self.waits_ns);
        measures.saturating_add(self.allocation_ns).saturating_add(self.fixed_ns)
    }

    /// Adds costs of the same period.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            samples_ns: self.samples_ns.saturating_add(other.samples_ns),
            waits_ns: self.waits_ns.saturating_add(other.waits_ns),
            allocation_ns: self.allocation_ns.saturating_add(other.allocation_ns),
            fixed_ns: self.fixed_ns.saturating_add(other.fixed_ns),
        }
    }

    /// Returns the increase since an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            samples_ns: self.samples_ns.saturating_sub(before.samples_ns),
            waits_ns: self.waits_ns.saturating_sub(before.waits_ns),
            allocation_ns: self.allocation_ns.saturating_sub(before.allocation_ns),
            fixed_ns: self.fixed_ns.saturating_sub(before.fixed_ns),
        }
    }

    /// Returns the part that a thread's name belongs to.
    fn of_thread(&mut self, name: &str) -> &mut u64 {
        // The kernel cuts names after 15 bytes.
        match name {
            "tracer-samples" => &mut self.samples_ns,
            "tracer-waits" => &mut self.waits_ns,
            "tracer-allocati" | "duty-cycles" => &mut self.allocation_ns,
            _ => &mut self.fixed_ns,
        }
    }
}

/// CPU time of the threads of this process, by measure.
#[derive(Debug, Default)]
pub struct ThreadCosts(HashMap<i32, u64>);

impl ThreadCosts {
    /// Returns the CPU time of all threads since the last call, without that of threads that have ended.
    pub fn take(&mut self) -> Costs {
        let mut costs = Costs::default();
        let mut seen = HashMap::new();
        let tasks = Process::myself().and_then(|own| own.tasks()).into_iter().flatten().flatten();
        let tick_ns = 1_000_000_000 / procfs::ticks_per_second().max(1);
        for task in tasks {
            let Ok(stat) = task.stat() else { continue };
            let ns = match task.schedstat() {
                Ok(times) => times.sum_exec_runtime,
                // The kernel was built without CONFIG_SCHED_INFO.
                Err(_) => stat.utime.saturating_add(stat.stime).saturating_mul(tick_ns),
            };
            let before = self.0.get(&stat.pid).copied().unwrap_or(0);
            let part = costs.of_thread(&stat.comm);
            *part = part.saturating_add(ns.saturating_sub(before));
            seen.insert(stat.pid, ns);
        }
        self.0 = seen;
        costs
    }
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn own_cpu_time_and_memory_are_nonzero() {
        let resource_use = ResourceUse::now();
        assert!(resource_use.processor_ns > 0 && resource_use.memory > 0, "{resource_use:?}");
    }

    #[test]
    fn cpu_time_of_a_tracers_threads_belongs_to_its_measure() {
        let mut threads = ThreadCosts::default();
        threads.take();
        let compute = || {
            let begin = Instant::now();
            while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < 100_000_000
                && begin.elapsed() < Duration::from_secs(20)
            {}
        };
        let (ready, all_ready) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let work = move || {
            // A thread without a name of its own has that of the thread that started it.
            thread::spawn(move || {
                compute();
                ready.send(()).unwrap();
                let _ = ended.recv();
            });
        };
        let tracer = thread::Builder::new().name("tracer-allocations".into()).spawn(work).unwrap();
        all_ready.recv().unwrap();
        let costs = threads.take();
        drop(end);
        tracer.join().unwrap();
        assert!(costs.allocation_ns >= 70_000_000, "{costs:?}");
        assert_eq!((costs.samples_ns, costs.waits_ns), (0, 0));
    }
}
