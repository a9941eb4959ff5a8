//! The metrics of the conventions: names, units and types. Prometheus' names follow OpenTelemetry's rules for
//! translation (`jvm.memory.used` in `By` becomes `jvm_memory_used_bytes`).

use crate::metrics::families::Kind;

/// A metric of the conventions.
#[derive(Debug)]
pub struct Convention {
    /// Name for Prometheus, without unit and without `_total`.
    pub name: &'static str,
    /// `seconds`, `bytes`, or empty.
    pub unit: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// Help text.
    pub help: &'static str,
    /// Name for OTLP.
    pub otlp_name: &'static str,
    /// Unit for OTLP, a code of the UCUM.
    pub otlp_unit: &'static str,
}

/// Attribute that is a boolean; Prometheus' labels are text.
pub const BOOLEAN: &str = "jvm_thread_daemon";

macro_rules! conventions {
    ($($id:ident $name:literal $unit:literal $kind:ident $otlp:literal $otlp_unit:literal $help:literal;)+) => {
        $(
            #[doc = $help]
            pub const $id: Convention = Convention {
                name: $name,
                unit: $unit,
                kind: Kind::$kind,
                help: $help,
                otlp_name: $otlp,
                otlp_unit: $otlp_unit,
            };
        )+
        /// All metrics.
        pub const ALL: &[&Convention] = &[$(&$id),+];
    };
}

conventions! {
    MEMORY_USED "jvm_memory_used" "bytes" UpDownCounter "jvm.memory.used" "By" "Memory in use.";
    MEMORY_COMMITTED "jvm_memory_committed" "bytes" UpDownCounter "jvm.memory.committed" "By" "Memory committed.";
    MEMORY_LIMIT "jvm_memory_limit" "bytes" UpDownCounter "jvm.memory.limit" "By" "Maximum size of the memory pool.";
    MEMORY_INIT "jvm_memory_init" "bytes" UpDownCounter "jvm.memory.init" "By" "Memory requested at the start.";
    MEMORY_AFTER_GC "jvm_memory_used_after_last_gc" "bytes" UpDownCounter "jvm.memory.used_after_last_gc" "By" "Memory in use after the last collection of the pool.";
    GC_DURATION "jvm_gc_duration" "seconds" Histogram "jvm.gc.duration" "s" "Duration of collections.";
    THREAD_COUNT "jvm_thread_count" "" UpDownCounter "jvm.thread.count" "{thread}" "Java threads, without virtual threads.";
    CLASS_LOADED "jvm_class_loaded" "" Counter "jvm.class.loaded" "{class}" "Classes loaded since the start of the JVM.";
    CLASS_UNLOADED "jvm_class_unloaded" "" Counter "jvm.class.unloaded" "{class}" "Classes unloaded since the start of the JVM.";
    CLASS_COUNT "jvm_class_count" "" UpDownCounter "jvm.class.count" "{class}" "Loaded classes.";
    CPU_TIME "jvm_cpu_time" "seconds" Counter "jvm.cpu.time" "s" "CPU time of the process.";
    CPU_COUNT "jvm_cpu_count" "" UpDownCounter "jvm.cpu.count" "{cpu}" "Processors that the JVM may use.";
    CPU_UTILIZATION "jvm_cpu_recent_utilization_ratio" "" Gauge "jvm.cpu.recent_utilization" "1" "CPU time of the process in the last window, as a share of its processors.";
    BUFFER_USED "jvm_buffer_memory_used" "bytes" UpDownCounter "jvm.buffer.memory.used" "By" "Memory of buffers outside of the heap.";
    BUFFER_LIMIT "jvm_buffer_memory_limit" "bytes" UpDownCounter "jvm.buffer.memory.limit" "By" "Total capacity of these buffers.";
    BUFFER_COUNT "jvm_buffer_count" "" UpDownCounter "jvm.buffer.count" "{buffer}" "Number of these buffers.";
    SYSTEM_LOAD "jvm_system_cpu_load_1m" "" Gauge "jvm.system.cpu.load_1m" "{run_queue_item}" "Load average of the host over one minute.";
    SYSTEM_UTILIZATION "jvm_system_cpu_utilization_ratio" "" Gauge "jvm.system.cpu.utilization" "1" "CPU utilization of the host in the last window.";
    DESCRIPTOR_COUNT "jvm_file_descriptor_count" "" UpDownCounter "jvm.file_descriptor.count" "{file_descriptor}" "Open file descriptors.";
    DESCRIPTOR_LIMIT "jvm_file_descriptor_limit" "" UpDownCounter "jvm.file_descriptor.limit" "{file_descriptor}" "Maximum number of open file descriptors.";
}

/// Returns the metric with this name for Prometheus; `None` for metrics of jvmprobe's own.
pub fn of(name: &str) -> Option<&'static Convention> {
    ALL.iter().find(|convention| convention.name == name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_names_are_translations_of_otlp_names() {
        for convention in ALL {
            let translated = convention.otlp_name.replace('.', "_");
            let suffix = if convention.otlp_unit == "1" { "_ratio" } else { "" };
            assert_eq!(convention.name, format!("{translated}{suffix}"));
            let unit = match convention.otlp_unit {
                "By" => "bytes",
                "s" => "seconds",
                _ => "",
            };
            assert_eq!(convention.unit, unit, "{}", convention.name);
        }
    }
}
