//! What is handed in: of a JVM in a window of time, and of the daemon itself.

use std::sync::Arc;

/// What was seen of a JVM since the last ones.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Each stop of all its threads, collections and others.
    pub stops: Vec<Stop>,
    /// Processor time by what it was spent on.
    pub processor: Processor,
    /// Bytes that were allocated, by estimate.
    pub allocated_bytes: u64,
    /// CPU time that probes took from it, in nanoseconds, by tracer.
    pub cost: Vec<(&'static str, u64)>,
    /// What it held at last; what is not known keeps its older value.
    pub gauges: Gauges,
}

/// A stop of all threads, or a cycle of a concurrent collector. By default a single stop.
#[derive(Clone, Debug)]
pub struct Stop {
    /// The operation, in the JVM's words.
    pub op: Arc<str>,
    /// Why the collector ran, where it did and that is known.
    pub cause: Option<Arc<str>>,
    /// Number of stops that this one represents: more than one where only sums are known, none for a cycle.
    pub times: u64,
    /// How long the application stood still; of several stops, on average.
    pub stopped_ns: u64,
    /// How much of that until the last thread had stopped, where that is known.
    pub ttsp_ns: Option<u64>,
    /// Collections in it: none of a safepoint for anything else.
    pub collections: u64,
    /// Bytes that were used when the collection began.
    pub heap_before: Option<u64>,
    /// Bytes that were used when it had ended.
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
            collections: 0,
            heap_before: None,
            heap_after: None,
        }
    }
}

/// Nanoseconds of processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processor {
    /// Java code, interpreted or compiled.
    pub java_ns: u64,
    /// The collector: its threads, in the kernel, too, and collections that the VM thread does.
    pub gc_ns: u64,
    /// The compilers' threads, in the kernel, too.
    pub jit_ns: u64,
    /// Other code of libraries and of the JVM.
    pub native_ns: u64,
    /// The kernel, on behalf of other threads.
    pub kernel_ns: u64,
}

impl Processor {
    /// Each kind with its name.
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

/// What a JVM holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Bytes of the code cache that are in use.
    pub code_cache_used: Option<u64>,
    /// Bytes that it can have.
    pub code_cache_size: Option<u64>,
    /// Classes that are loaded.
    pub loaded_classes: Option<u64>,
    /// Threads of the process.
    pub threads: Option<u64>,
    /// Bytes that the heap takes of the machine's address space and may use now.
    pub heap_committed: Option<u64>,
    /// Bytes that the heap can have.
    pub heap_max: Option<u64>,
    /// CPU time of the process since its start, by the kernel's account, in nanoseconds.
    pub cpu_ns: Option<u64>,
}

impl Gauges {
    pub(super) fn take(&mut self, newer: &Self) {
        self.code_cache_used = newer.code_cache_used.or(self.code_cache_used);
        self.code_cache_size = newer.code_cache_size.or(self.code_cache_size);
        self.loaded_classes = newer.loaded_classes.or(self.loaded_classes);
        self.threads = newer.threads.or(self.threads);
        self.heap_committed = newer.heap_committed.or(self.heap_committed);
        self.heap_max = newer.heap_max.or(self.heap_max);
        self.cpu_ns = newer.cpu_ns.or(self.cpu_ns);
    }
}

/// What the daemon says of itself; the latest is shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Own {
    /// Processor time that it has used since its start.
    pub processor_ns: u64,
    /// Bytes of memory that it holds (resident).
    pub memory_bytes: u64,
    /// Processor samples a second, as of now: lower than asked where it has to save, and 0 where they
    /// are left out.
    pub hertz: u64,
    /// How many steps down from what was asked for it has gone, to save.
    pub saving: u64,
    /// How long after its end the last window was handed on.
    pub window_delay_ns: u64,
}
