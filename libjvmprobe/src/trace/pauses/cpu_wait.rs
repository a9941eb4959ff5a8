//! Waits of collections for a CPU: where the kernel stores them, and which collectors they are known for.
//!
//! The kernel side reads these fields: see `bpf/gc_threads.bpf.h`.

use crate::{
    Result,
    bpf::kernel_types::KernelTypes,
    trace::pauses::{event, skel::types::gc_threads},
};

/// Size of a JVM's entry in the map `gc_threads`. A new entry is all zero.
pub(crate) const ENTRY_SIZE: usize = size_of::<gc_threads>();

/// Collectors without worker threads: the VM thread collects alone.
const SINGLE_THREADED: [&str; 2] = ["Serial", "Epsilon"];

/// Offsets of the kernel's fields, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    /// `task_struct`: pid, comm, `start_time`, `signal` and `thread_node`.
    pub(crate) task: [u32; 5],
    /// `task_struct.sched_info`: `run_delay`, `last_arrival` and `last_queued`.
    pub(crate) waits: [u32; 3],
    /// `signal_struct`: `nr_threads` and `thread_head`.
    pub(crate) signal: [u32; 2],
    /// `task_struct.sched_task_group`, and `task_group`: `parent` and `cfs_bandwidth.nr_throttled`. `None` if the kernel
    /// has no CPU quotas.
    pub(crate) quota: Option<[u32; 3]>,
}

impl Fields {
    /// Reads the offsets. Returns `None` if the kernel does not report for how long a thread has waited for a CPU.
    pub(crate) fn read() -> Option<Self> {
        let own = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
        if !counts_waits(&own) {
            log::debug!("waits for a CPU are unknown: this kernel does not count them");
            return None;
        }
        let fields = KernelTypes::load("task_struct").and_then(|types| Self::of(&types));
        fields.inspect_err(|error| log::debug!("waits for a CPU are unknown: {error}")).ok()
    }

    fn of(types: &KernelTypes) -> Result<Self> {
        let names = ["pid", "comm", "start_time", "signal", "thread_node", "sched_info"];
        let [task @ .., sched_info] = types.offsets("task_struct", names)?;
        let waits = types.offsets("sched_info", ["run_delay", "last_arrival", "last_queued"])?;
        let quota = Self::quota_of(types);
        if let Err(error) = &quota {
            log::debug!("throttled periods are unknown: {error}");
        }
        Ok(Self {
            task,
            waits: waits.map(|offset| sched_info.saturating_add(offset)),
            signal: types.offsets("signal_struct", ["nr_threads", "thread_head"])?,
            quota: quota.ok(),
        })
    }

    fn quota_of(types: &KernelTypes) -> Result<[u32; 3]> {
        let [group] = types.offsets("task_struct", ["sched_task_group"])?;
        let [parent, bandwidth] = types.offsets("task_group", ["parent", "cfs_bandwidth"])?;
        let [throttled] = types.offsets("cfs_bandwidth", ["nr_throttled"])?;
        Ok([group, parent, bandwidth.saturating_add(throttled)])
    }
}

/// Returns whether the kernel counts waits, given a running thread's `schedstat`: CPU time, time on the run queue, and how
/// often the thread got a CPU (Documentation/scheduler/sched-stats.rst). Without `CONFIG_SCHED_INFO`, all are 0.
fn counts_waits(schedstat: &str) -> bool {
    schedstat.split_whitespace().nth(2).is_some_and(|times| times != "0")
}

/// Returns the wait of a stop, given the kernel side's value and the number of worker threads that it covers. If no worker
/// thread was recognized by its name, the wait of the VM thread alone is not the collector's wait.
pub(crate) fn of_stop(cpu_wait_ns: u64, workers: u32, collector: &str) -> Option<u64> {
    event::known(cpu_wait_ns).filter(|_| workers > 0 || SINGLE_THREADED.contains(&collector))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_scheduler_statistics_is_detected() {
        assert!(counts_waits("1078417 31012 12\n"));
        assert!(!counts_waits("0 0 0\n"));
        assert!(!counts_waits(""));
    }

    #[test]
    fn wait_is_unknown_without_recognized_workers() {
        assert_eq!(of_stop(7, 2, "G1"), Some(7));
        assert_eq!(of_stop(7, 0, "G1"), None);
        assert_eq!(of_stop(7, 0, "Serial"), Some(7));
        assert_eq!(of_stop(u64::MAX, 2, "G1"), None);
    }
}
