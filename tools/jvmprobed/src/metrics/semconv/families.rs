//! The conventions' metrics of all JVMs as families.

use std::sync::Arc;

use libjvmprobe::hotspot::{buffers::BufferPool, memory_pools::MemoryPool};

use crate::metrics::{
    families::{Family, Labels, Value, unlabelled},
    histogram::seconds,
    semconv::values::Values,
    table::{
        BOOLEAN, BUFFER_COUNT, BUFFER_LIMIT, BUFFER_USED, CLASS_COUNT, CLASS_LOADED,
        CLASS_UNLOADED, CPU_COUNT, CPU_TIME, CPU_UTILIZATION, DESCRIPTOR_COUNT, DESCRIPTOR_LIMIT,
        GC_DURATION, MEMORY_AFTER_GC, MEMORY_COMMITTED, MEMORY_INIT, MEMORY_LIMIT, MEMORY_USED,
        Metric, SYSTEM_LOAD, SYSTEM_UTILIZATION, THREAD_COUNT,
    },
    totals::{Series, Totals},
};

/// Values of one JVM for a metric, each with the labels that the metric adds.
type ValuesOfJvm<'a> = Vec<(Labels, Value<'a>)>;

/// Returns the metrics of the conventions.
pub fn families(totals: &Totals) -> Vec<Family<'_>> {
    let mut families = of_pools(totals);
    families.push(totals.of_jvms(&GC_DURATION, collections));
    families.push(of_values(totals, &THREAD_COUNT, |values| {
        let count = |(&(is_daemon, state), &count): (&(bool, _), &u64)| {
            let state: &str = libjvmprobe::hotspot::java_threads::ThreadState::name(state);
            let daemon = if is_daemon { "true" } else { "false" };
            let labels = vec![(BOOLEAN, daemon.into()), ("jvm_thread_state", state.into())];
            (labels, Value::Number(count as f64))
        };
        values.threads.iter().map(count).collect()
    }));
    families.extend(of_classes(totals));
    families.push(
        totals.of_jvms(&CPU_TIME, |series| series.gauges.cpu_ns.map(|ns| unlabelled(seconds(ns)))),
    );
    families.push(single(totals, &CPU_COUNT, |values| values.processors.map(|count| count as f64)));
    families.push(single(totals, &CPU_UTILIZATION, |values| values.cpu_utilization));
    families.extend(of_buffers(totals));
    families.push(single(totals, &SYSTEM_LOAD, |values| values.host.load_1m));
    families.push(single(totals, &SYSTEM_UTILIZATION, |values| values.host.cpu_utilization));
    let number = |value: Option<u64>| value.map(|value| value as f64);
    families.push(single(totals, &DESCRIPTOR_COUNT, move |values| number(values.descriptors.0)));
    families.push(single(totals, &DESCRIPTOR_LIMIT, move |values| number(values.descriptors.1)));
    families
}

fn of_values<'a>(
    totals: &'a Totals,
    metric: &'static Metric,
    values: impl Fn(&'a Values) -> ValuesOfJvm<'a>,
) -> Family<'a> {
    totals
        .of_jvms(metric, |series| series.gauges.values.as_deref().map(&values).unwrap_or_default())
}

/// Returns a metric that has at most one value for each JVM.
fn single<'a>(
    totals: &'a Totals,
    metric: &'static Metric,
    number: impl Fn(&Values) -> Option<f64>,
) -> Family<'a> {
    totals
        .of_jvms(metric, |series| series.gauges.values.as_deref().and_then(&number).map(unlabelled))
}

fn of_pools(totals: &Totals) -> Vec<Family<'_>> {
    let of = |convention, value: fn(&MemoryPool) -> Option<u64>| {
        of_values(totals, convention, move |values| {
            let number = |pool: &MemoryPool| {
                let kind = if pool.is_heap { "heap" } else { "non_heap" };
                let labels = vec![
                    ("jvm_memory_type", kind.into()),
                    ("jvm_memory_pool_name", pool.name.clone()),
                ];
                Some((labels, Value::Number(value(pool)? as f64)))
            };
            values.pools.iter().filter_map(number).collect()
        })
    };
    vec![
        of(&MEMORY_USED, |pool| Some(pool.used)),
        of(&MEMORY_COMMITTED, |pool| Some(pool.committed)),
        of(&MEMORY_LIMIT, |pool| pool.limit),
        of(&MEMORY_INIT, |pool| pool.initial),
        of(&MEMORY_AFTER_GC, |pool| pool.used_after_gc),
    ]
}

fn of_buffers(totals: &Totals) -> Vec<Family<'_>> {
    let of = |convention, value: fn(&BufferPool) -> u64| {
        of_values(totals, convention, move |values| {
            let number = |pool: &BufferPool| {
                let labels = vec![("jvm_buffer_pool_name", pool.name.into())];
                (labels, Value::Number(value(pool) as f64))
            };
            values.buffers.iter().map(number).collect()
        })
    };
    vec![
        of(&BUFFER_USED, |pool| pool.used),
        of(&BUFFER_LIMIT, |pool| pool.capacity),
        of(&BUFFER_COUNT, |pool| pool.count),
    ]
}

fn of_classes(totals: &Totals) -> [Family<'_>; 3] {
    let count = |series: &Series| {
        let values = series.gauges.values.as_ref()?;
        // JVMs without performance data do not count loaded and unloaded classes.
        values.class_count().or(series.gauges.loaded_classes)
    };
    [
        single(totals, &CLASS_LOADED, |values| values.classes.map(|(loaded, _)| loaded as f64)),
        single(totals, &CLASS_UNLOADED, |values| {
            values.classes.map(|(_, unloaded)| unloaded as f64)
        }),
        totals.of_jvms(&CLASS_COUNT, move |series| {
            count(series).map(|count| unlabelled(count as f64))
        }),
    ]
}

fn collections(series: &Series) -> ValuesOfJvm<'_> {
    let of = |((name, action), cause): &((&'static str, &'static str), Arc<str>)| {
        let mut labels: Labels =
            vec![("jvm_gc_name", (*name).into()), ("jvm_gc_action", (*action).into())];
        if !cause.is_empty() {
            labels.push(("jvm_gc_cause", cause.clone()));
        }
        labels
    };
    series.collections.iter().map(|(key, all)| (of(key), Value::Histogram(all))).collect()
}
