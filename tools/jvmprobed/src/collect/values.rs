//! Reads the values of the semantic conventions' metrics: from the memory of a JVM, from /proc, and from the host.

use std::time::{Duration, Instant};

use libjvmprobe::{
    Pid,
    hotspot::{
        HotSpot, buffers::BufferReader, java_threads::ThreadCounter, memory_pools::PoolReader,
    },
    process::resources::{available_processors, file_descriptors},
};
use procfs::{Current, CurrentSI, KernelStats, LoadAverage};

use crate::{
    metrics::semconv::values::{Host, Values},
    window::HostTicks,
};

/// Reads the values of one JVM, once per window.
#[derive(Debug, Default)]
pub struct ValuesReader {
    /// Reader of the JVM's memory pools, once it exists.
    pools: Option<PoolReader>,
    /// Counter of the JVM's threads, once it exists.
    threads: Option<ThreadCounter>,
    /// Reader of the JVM's buffer pools, once it exists.
    buffers: Option<BufferReader>,
    /// CPU time of the process at the last reading, in nanoseconds, and the time of the reading.
    last_cpu: Option<(u64, Instant)>,
}

impl ValuesReader {
    /// Drops data of the JVM's layout, because the JVM was read again.
    pub fn reset(&mut self) {
        (self.pools, self.threads, self.buffers) = (None, None, None);
    }

    /// Reads the values. `cpu_ns` is the CPU time of the process. Values that cannot be read before `until` are missing.
    pub fn read(
        &mut self,
        (pid, hotspot): (Pid, Option<&HotSpot>),
        cpu_ns: Option<u64>,
        host: Host,
        until: Instant,
    ) -> Values {
        let configured = hotspot.and_then(HotSpot::configured_processors);
        let processors = configured.or_else(|| available_processors(pid));
        let mut values = Values {
            processors,
            cpu_utilization: self.cpu_utilization(cpu_ns, processors),
            descriptors: file_descriptors(pid),
            host,
            ..Values::default()
        };
        let Some(hotspot) = hotspot else { return values };
        let pools = self.pools.get_or_insert_with(|| hotspot.pool_reader());
        values.pools = pools.read(left(until)).unwrap_or_default();
        values.classes = hotspot.class_totals();
        if self.threads.is_none() {
            self.threads = hotspot.thread_counter().ok();
        }
        if let Some(counter) = &mut self.threads {
            values.threads = counter.count(left(until)).unwrap_or_default();
        }
        if self.buffers.is_none() {
            self.buffers = hotspot.buffer_reader().ok();
        }
        if let Some(buffers) = &mut self.buffers {
            values.buffers = buffers.read(left(until)).unwrap_or_default();
        }
        values
    }

    /// Returns the CPU time since the last reading as a share of the CPU time that was available.
    fn cpu_utilization(&mut self, cpu_ns: Option<u64>, processors: Option<u64>) -> Option<f64> {
        let now = Instant::now();
        let (before, at) = self.last_cpu.replace((cpu_ns?, now))?;
        let available = now.duration_since(at).as_nanos() as f64 * processors? as f64;
        let used = cpu_ns?.saturating_sub(before) as f64;
        (available > 0.0).then(|| (used / available).min(1.0))
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Reads the CPU time of the host's processors, once per window.
#[derive(Debug, Default)]
pub struct HostCpuReader {
    /// Time since the start of the host at the last reading.
    last: Option<HostTicks>,
}

impl HostCpuReader {
    /// Begins to measure.
    pub fn begin() -> Self {
        let mut reader = Self::default();
        reader.read();
        reader
    }

    /// Returns the time since the last reading; `None` at the first one.
    pub fn read(&mut self) -> Option<HostTicks> {
        let now = KernelStats::current().ok().map(|stats| {
            let cpu = stats.total;
            let idle = cpu.idle + cpu.iowait.unwrap_or(0);
            let steal = cpu.steal.unwrap_or(0);
            // `user` and `nice` include the time of guests.
            let interrupts = cpu.irq.unwrap_or(0) + cpu.softirq.unwrap_or(0);
            let busy = cpu.user + cpu.nice + cpu.system + interrupts + steal;
            HostTicks { busy, total: busy + idle }
        });
        let (before, now) = (std::mem::replace(&mut self.last, now)?, now?);
        let total = now.total.checked_sub(before.total).filter(|&ticks| ticks > 0)?;
        Some(HostTicks { busy: now.busy.saturating_sub(before.busy).min(total), total })
    }
}

/// Reads the values of the host. `ticks` is the CPU time of its processors in the last window.
pub fn read_host(ticks: Option<HostTicks>) -> Host {
    let load_1m = LoadAverage::current().ok().map(|load| load.one.into());
    let cpu_utilization = ticks.map(|ticks| ticks.busy as f64 / ticks.total as f64);
    Host { load_1m, cpu_utilization }
}
