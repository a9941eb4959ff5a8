//! Input of the totals: figures of a JVM in a window, and of the daemon itself.

use std::sync::Arc;

use crate::metrics::semconv::{collections::Collection, values::Values};

/// Figures of a JVM in one window.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// All stops of the JVM, for collections and for other operations, and the cycles of concurrent
    /// collectors.
    pub stops: Vec<Stop>,
    /// CPU time by kind of code.
    pub processor: Processor,
    /// Estimated number of bytes allocated.
    pub allocated_bytes: u64,
    /// Waits of Java threads, by kind.
    pub waits: Vec<Waited>,
    /// CPU time that probes took from the JVM, in nanoseconds, by tracer.
    pub cost: Vec<(&'static str, u64)>,
    /// Latest values of the JVM's gauges. Where a value is unknown, the previous one stays in use.
    pub gauges: Gauges,
}

/// A stop of all threads, or a cycle of a concurrent collector. The default value is a single stop.
#[derive(Clone, Debug)]
pub struct Stop {
    /// Name of the operation in HotSpot.
    pub op: Arc<str>,
    /// Cause of the collection, if there was one and its cause is known.
    pub cause: Option<Arc<str>>,
    /// Number of stops that this value represents: 1 for a single stop, 0 for a cycle, and the number of
    /// added stops where only their sum is known.
    pub times: u64,
    /// Duration for which the application was stopped, in nanoseconds; the average if there were several stops.
    pub stopped_ns: u64,
    /// Part of `stopped_ns` until the last thread had stopped (time to safepoint), in nanoseconds, if known.
    pub ttsp_ns: Option<u64>,
    /// Part of `stopped_ns` in which the VM thread or a thread of the collector waited for a CPU, in nanoseconds, if known.
    pub cpu_wait_ns: Option<u64>,
    /// Number of collections; 0 for other operations and for phases of a cycle.
    pub collections: u64,
    /// The collection, or the pause or cycle of a concurrent collector, as the JVM's management beans report it; `None` for
    /// other stops.
    pub collection: Option<Collection>,
    /// Heap in use when the collection began, in bytes.
    pub heap_before: Option<u64>,
    /// Heap in use when the collection ended, in bytes.
    pub heap_after: Option<u64>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            op: Arc::default(),
            cause: None,
            times: 1,
            stopped_ns: 0,
            ttsp_ns: None,
            cpu_wait_ns: None,
            collections: 0,
            collection: None,
            heap_before: None,
            heap_after: None,
        }
    }
}

/// Waits of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Name of the kind. There is a fixed set of kinds.
    pub kind: &'static str,
    /// Number of waits.
    pub times: u64,
    /// Their total length, in nanoseconds.
    pub ns: u64,
}

/// CPU time by kind of code, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Java code, interpreted or compiled.
    pub java_ns: u64,
    /// The collector: its threads, including their time in the kernel, and collections in the VM thread.
    pub gc_ns: u64,
    /// Threads of the compilers, including their time in the kernel.
    pub jit_ns: u64,
    /// Other native code: of libraries, and of threads of the JVM that are neither collector nor compiler.
    pub native_ns: u64,
    /// The kernel, on behalf of threads that are neither collector nor compiler.
    pub kernel_ns: u64,
}

impl Processor {
    /// Returns each kind with its name.
    pub fn kinds(&self) -> [(&'static str, u64); 5] {
        [
            ("java", self.java_ns),
            ("gc", self.gc_ns),
            ("jit", self.jit_ns),
            ("native", self.native_ns),
            ("kernel", self.kernel_ns),
        ]
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.java_ns = self.java_ns.saturating_add(more.java_ns);
        self.gc_ns = self.gc_ns.saturating_add(more.gc_ns);
        self.jit_ns = self.jit_ns.saturating_add(more.jit_ns);
        self.native_ns = self.native_ns.saturating_add(more.native_ns);
        self.kernel_ns = self.kernel_ns.saturating_add(more.kernel_ns);
    }
}

/// Gauges of a JVM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Used part of the code cache, in bytes.
    pub code_cache_used: Option<u64>,
    /// Maximum size of the code cache, in bytes.
    pub code_cache_size: Option<u64>,
    /// Number of loaded classes.
    pub loaded_classes: Option<u64>,
    /// Number of threads of the process.
    pub threads: Option<u64>,
    /// Committed heap, in bytes.
    pub heap_committed: Option<u64>,
    /// Maximum heap, in bytes.
    pub heap_max: Option<u64>,
    /// CPU time of the process since its start, as counted by the kernel, in nanoseconds.
    pub cpu_ns: Option<u64>,
    /// Values of the semantic conventions' metrics; `None` if they are not exported.
    pub values: Option<Arc<Values>>,
}

impl Gauges {
    pub(super) fn update(&mut self, newer: &Self) {
        self.code_cache_used = newer.code_cache_used.or(self.code_cache_used);
        self.code_cache_size = newer.code_cache_size.or(self.code_cache_size);
        self.loaded_classes = newer.loaded_classes.or(self.loaded_classes);
        self.threads = newer.threads.or(self.threads);
        self.heap_committed = newer.heap_committed.or(self.heap_committed);
        self.heap_max = newer.heap_max.or(self.heap_max);
        self.cpu_ns = newer.cpu_ns.or(self.cpu_ns);
        if newer.values.is_some() {
            self.values.clone_from(&newer.values);
        }
    }
}

/// Metrics of the daemon itself. Only the latest values are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct DaemonMetrics {
    /// CPU time since the start of the daemon, in nanoseconds.
    pub processor_ns: u64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Memory reserved for data of targets, in this process and in BPF maps, in bytes.
    pub target_memory_bytes: u64,
    /// Current number of CPU samples per second: lower than configured while the daemon saves resources, and
    /// 0 while sampling is off.
    pub hertz: u64,
    /// Number of steps down from the configured set of measures, to save resources.
    pub saving: u64,
    /// Time from the end of the last window until it was passed on to the store and to push targets, in
    /// nanoseconds.
    pub window_delay_ns: u64,
}
