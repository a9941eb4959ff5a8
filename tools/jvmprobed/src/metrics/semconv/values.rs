//! Values of the conventions' metrics for one JVM, except those that are sums of events.

use libjvmprobe::hotspot::{
    Fill, buffers::BufferPool, java_threads::ThreadCounts, memory_pools::MemoryPool,
};

/// Values of one JVM at the end of a window. Values that cannot be read are missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// Memory pools.
    pub pools: Vec<MemoryPool>,
    /// Number of Java threads by daemon status and state.
    pub threads: ThreadCounts,
    /// Numbers of classes loaded and unloaded since the start of the JVM.
    pub classes: Option<(u64, u64)>,
    /// Number of processors that the JVM may use.
    pub processors: Option<u64>,
    /// CPU time of the last window as a share of its processors, from 0 to 1.
    pub cpu_utilization: Option<f64>,
    /// Pools of buffers.
    pub buffers: Vec<BufferPool>,
    /// Number of open file descriptors, and their maximum number.
    pub descriptors: (Option<u64>, Option<u64>),
    /// Values of the host.
    pub host: Host,
}

impl Values {
    /// Returns the fill level of the code cache, the sum of its pools; `None` if they were not read.
    pub fn code_cache(&self) -> Option<Fill> {
        let code = self.pools.iter().filter(|pool| !pool.is_heap && pool.name.starts_with("Code"));
        code.map(|pool| Fill { used: pool.used, size: pool.limit.unwrap_or(0) }).reduce(
            |sum, pool| Fill {
                used: sum.used.saturating_add(pool.used),
                size: sum.size.saturating_add(pool.size),
            },
        )
    }

    /// Returns the number of loaded classes, if the JVM counts them.
    pub fn class_count(&self) -> Option<u64> {
        self.classes.map(|(loaded, unloaded)| loaded.saturating_sub(unloaded))
    }
}

/// Values of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Host {
    /// Load average over one minute.
    pub load_1m: Option<f64>,
    /// Share of the CPU time of the last window that was not idle, from 0 to 1.
    pub cpu_utilization: Option<f64>,
}
