//! The table of all metrics: names, units, types and help texts. Prometheus' names of the metrics of OpenTelemetry's
//! semantic conventions follow OpenTelemetry's rules for translation (`jvm.memory.used` in `By` becomes
//! `jvm_memory_used_bytes`).

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Name for Prometheus, without unit and without `_total`.
    pub name: &'static str,
    /// `seconds`, `bytes`, or empty.
    pub unit: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// Help text.
    pub help: &'static str,
    /// Name and unit (a UCUM code) for OTLP. `None`: both are derived from the Prometheus name and unit.
    pub otlp: Option<(&'static str, &'static str)>,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows. It begins when the daemon starts.
    Counter,
    /// A counter of the JVM or the kernel, which began when the JVM started.
    JvmCounter,
    /// A value that goes up and down.
    Gauge,
    /// A value that goes up and down, and that may be summed over JVMs. For Prometheus, it is a gauge.
    UpDownCounter,
    /// A distribution of durations.
    Histogram,
}

/// Attribute that is a boolean; Prometheus' labels are text.
pub const BOOLEAN: &str = "jvm_thread_daemon";

macro_rules! metrics {
    (@otlp) => { None };
    (@otlp $name:literal $unit:literal) => { Some(($name, $unit)) };
    ($($id:ident $name:literal $unit:literal $kind:ident $(($($otlp:literal)+))? $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $id: Metric = Metric {
                name: $name,
                unit: $unit,
                kind: Kind::$kind,
                help: $help,
                otlp: metrics!(@otlp $($($otlp)+)?),
            };
        )+
        /// All metrics.
        pub const ALL: &[&Metric] = &[$(&$id),+];
    };
}

// Columns: constant, name and unit for Prometheus, type, (name and unit for OTLP), help text.
metrics! {
    STOPPED "jvmprobe_stopped" "seconds" Counter "Time for which the application was stopped.";
    STOP_DURATION "jvmprobe_stop_duration" "seconds" Histogram "Duration of each stop.";
    COLLECTIONS "jvmprobe_collections" "" Counter "Garbage collections.";
    TIME_TO_SAFEPOINT "jvmprobe_time_to_safepoint" "seconds" Histogram "Time from the request of a stop until all threads had stopped.";
    GC_CPU_WAIT "jvmprobe_gc_cpu_wait" "seconds" Counter "Time for which collections waited for a CPU within stops.";
    ALLOCATED "jvmprobe_allocated" "bytes" Counter "Estimated bytes allocated by Java code.";
    HEAP_USED_BEFORE "jvmprobe_heap_used_before" "bytes" Gauge "Heap in use before the last collection.";
    HEAP_USED_AFTER "jvmprobe_heap_used_after" "bytes" Gauge "Heap in use after the last collection.";
    CPU_BY_CODE "jvmprobe_processor" "seconds" Counter "CPU time by kind of code, estimated from samples.";
    PROCESS_CPU "jvmprobe_cpu" "seconds" JvmCounter "CPU time of the process since its start, as counted by the kernel.";
    PROBE_COST "jvmprobe_probe_cost" "seconds" Counter "CPU time that the daemon's probes took from the JVM.";
    WAITS "jvmprobe_waits" "" Counter "Waits of Java threads of at least the configured length that have ended.";
    WAITED "jvmprobe_waited" "seconds" Counter "Total length of these waits; each is added when it has ended.";
    HEAP_COMMITTED "jvmprobe_heap_committed" "bytes" Gauge "Committed size of the heap.";
    HEAP_MAX "jvmprobe_heap_max" "bytes" Gauge "Maximum size of the heap (-Xmx).";
    CODE_CACHE_USED "jvmprobe_code_cache_used" "bytes" Gauge "Code cache in use.";
    CODE_CACHE_SIZE "jvmprobe_code_cache_size" "bytes" Gauge "Maximum size of the code cache.";
    LOADED_CLASSES "jvmprobe_loaded_classes" "" Gauge "Loaded classes.";
    THREADS "jvmprobe_threads" "" Gauge "Threads of the process.";
    JVM_INFO "jvmprobe_jvm_info" "" Gauge "Identity of a JVM; the value is always 1.";

    BUILD_INFO "jvmprobed_build_info" "" Gauge "Version of jvmprobed; the value is always 1.";
    DAEMON_CPU "jvmprobed_processor" "seconds" Counter "CPU time used by the daemon.";
    SERVING "jvmprobed_serving" "seconds" Counter "Part of the daemon's CPU time that was spent serving HTTP, which --max-cpu does not limit.";
    EXPOSITIONS "jvmprobed_expositions" "" Counter "Metric expositions generated; all scrapers within one second get the same one.";
    DAEMON_MEMORY "jvmprobed_memory" "bytes" Gauge "Resident memory of the daemon.";
    TARGET_MEMORY "jvmprobed_target_memory" "bytes" Gauge "Memory reserved for data of targets (symbols, unwind tables, mappings, threads), in the daemon and in the kernel.";
    SAMPLING_HERTZ "jvmprobed_sampling_hertz" "" Gauge "Samples per second on each CPU; lower than configured while the daemon saves resources.";
    SAVING "jvmprobed_saving" "" Gauge "Steps by which collection is reduced to save resources; 0 if it is not reduced.";
    COLLECTED "jvmprobed_collected" "" Gauge "Whether a measure is collected; 0 while it is omitted to save resources.";
    LAST_REPORT "jvmprobed_tracer_last_report_timestamp" "seconds" Gauge "Time of a tracer's last report, in seconds since 1970; a tracer reports at the end of each window.";
    WINDOW_DELAY "jvmprobed_window_delay" "seconds" Gauge "Time from the end of the last window until it was passed on to be stored and pushed.";
    WINDOWS "jvmprobed_windows" "" Counter "Windows passed on to be stored and pushed.";
    WINDOWS_LOST "jvmprobed_windows_lost" "" Counter "Windows that could not be written to disk.";
    STORE "jvmprobed_store" "bytes" Gauge "Size of the stored windows on disk.";
    JVMS "jvmprobed_jvms" "" Gauge "Running JVMs.";
    JVMS_SEEN "jvmprobed_jvms_seen" "" Counter "JVMs found since the daemon started.";
    JVMS_GIVEN_UP "jvmprobed_jvms_given_up" "" Counter "JVMs that are not traced, and tracers that have ended, by reason.";
    SAMPLES "jvmprobed_samples" "" Counter "Samples and events collected.";
    LOST "jvmprobed_lost" "" Counter "Samples and events lost.";
    LIMITED "jvmprobed_limited" "" Counter "Details dropped because a tenant exceeded its share.";
    THREAD_DUMPS "jvmprobed_thread_dumps" "" Counter "Thread dumps of JVMs with a deadlock or without progress.";
    PROBE_COST_OF_ALL "jvmprobed_probe_cost" "seconds" Counter "CPU time that the daemon's probes took from all processes.";
    PROBE_HITS "jvmprobed_probe_hits" "" Counter "Hits of the daemon's probes, and samples.";
    PUSH_SAMPLES "jvmprobed_push_samples" "" Counter "Samples by outcome: delivered, or the reason for dropping them. For allocation, distinct stacks are counted.";
    PUSH_REQUESTS "jvmprobed_push_requests" "" Counter "Push requests by outcome.";
    PUSH_WAITING_SAMPLES "jvmprobed_push_waiting_samples" "" Gauge "Samples waiting for delivery.";
    PUSH_WAITING "jvmprobed_push_waiting" "bytes" Gauge "Data waiting for delivery.";
    PUSH_DELAY "jvmprobed_push_delay" "seconds" Gauge "Age of the oldest data waiting for delivery.";

    MEMORY_USED "jvm_memory_used" "bytes" UpDownCounter ("jvm.memory.used" "By") "Memory in use.";
    MEMORY_COMMITTED "jvm_memory_committed" "bytes" UpDownCounter ("jvm.memory.committed" "By") "Memory committed.";
    MEMORY_LIMIT "jvm_memory_limit" "bytes" UpDownCounter ("jvm.memory.limit" "By") "Maximum size of the memory pool.";
    MEMORY_INIT "jvm_memory_init" "bytes" UpDownCounter ("jvm.memory.init" "By") "Memory requested at the start.";
    MEMORY_AFTER_GC "jvm_memory_used_after_last_gc" "bytes" UpDownCounter ("jvm.memory.used_after_last_gc" "By") "Memory in use after the last collection of the pool.";
    GC_DURATION "jvm_gc_duration" "seconds" Histogram ("jvm.gc.duration" "s") "Duration of collections.";
    THREAD_COUNT "jvm_thread_count" "" UpDownCounter ("jvm.thread.count" "{thread}") "Java threads, without virtual threads.";
    CLASS_LOADED "jvm_class_loaded" "" JvmCounter ("jvm.class.loaded" "{class}") "Classes loaded since the start of the JVM.";
    CLASS_UNLOADED "jvm_class_unloaded" "" JvmCounter ("jvm.class.unloaded" "{class}") "Classes unloaded since the start of the JVM.";
    CLASS_COUNT "jvm_class_count" "" UpDownCounter ("jvm.class.count" "{class}") "Loaded classes.";
    CPU_TIME "jvm_cpu_time" "seconds" JvmCounter ("jvm.cpu.time" "s") "CPU time of the process.";
    CPU_COUNT "jvm_cpu_count" "" UpDownCounter ("jvm.cpu.count" "{cpu}") "Processors that the JVM may use.";
    CPU_UTILIZATION "jvm_cpu_recent_utilization_ratio" "" Gauge ("jvm.cpu.recent_utilization" "1") "CPU time of the process in the last window, as a share of its processors.";
    BUFFER_USED "jvm_buffer_memory_used" "bytes" UpDownCounter ("jvm.buffer.memory.used" "By") "Memory of buffers outside of the heap.";
    BUFFER_LIMIT "jvm_buffer_memory_limit" "bytes" UpDownCounter ("jvm.buffer.memory.limit" "By") "Total capacity of these buffers.";
    BUFFER_COUNT "jvm_buffer_count" "" UpDownCounter ("jvm.buffer.count" "{buffer}") "Number of these buffers.";
    SYSTEM_LOAD "jvm_system_cpu_load_1m" "" Gauge ("jvm.system.cpu.load_1m" "{run_queue_item}") "Load average of the host over one minute.";
    SYSTEM_UTILIZATION "jvm_system_cpu_utilization_ratio" "" Gauge ("jvm.system.cpu.utilization" "1") "CPU utilization of the host in the last window.";
    DESCRIPTOR_COUNT "jvm_file_descriptor_count" "" UpDownCounter ("jvm.file_descriptor.count" "{file_descriptor}") "Open file descriptors.";
    DESCRIPTOR_LIMIT "jvm_file_descriptor_limit" "" UpDownCounter ("jvm.file_descriptor.limit" "{file_descriptor}") "Maximum number of open file descriptors.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_names_are_translations_of_otlp_names() {
        for metric in ALL {
            let Some((otlp_name, otlp_unit)) = metric.otlp else { continue };
            let translated = otlp_name.replace('.', "_");
            let suffix = if otlp_unit == "1" { "_ratio" } else { "" };
            assert_eq!(metric.name, format!("{translated}{suffix}"));
            let unit = match otlp_unit {
                "By" => "bytes",
                "s" => "seconds",
                _ => "",
            };
            assert_eq!(metric.unit, unit, "{}", metric.name);
        }
    }
}
