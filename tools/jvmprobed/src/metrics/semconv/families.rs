//! The conventions' metrics of all JVMs as families.

use std::sync::Arc;

use libjvmprobe::hotspot::{buffers::BufferPool, memory_pools::MemoryPool};

use crate::metrics::{
    families::{Family, Labels, Point, Value, labels},
    histogram::seconds,
    semconv::{
        conventions::{
            BOOLEAN, BUFFER_COUNT, BUFFER_LIMIT, BUFFER_USED, CLASS_COUNT, CLASS_LOADED,
            CLASS_UNLOADED, CPU_COUNT, CPU_TIME, CPU_UTILIZATION, Convention, DESCRIPTOR_COUNT,
            DESCRIPTOR_LIMIT, GC_DURATION, MEMORY_AFTER_GC, MEMORY_COMMITTED, MEMORY_INIT,
            MEMORY_LIMIT, MEMORY_USED, SYSTEM_LOAD, SYSTEM_UTILIZATION, THREAD_COUNT,
        },
        values::Values,
    },
    totals::{Series, Totals},
};

/// Values of one JVM for a metric, each with the labels that the metric adds.
type ValuesOfJvm<'a> = Vec<(Labels, Value<'a>)>;

/// Returns the metrics of the conventions.
pub fn families(totals: &Totals) -> Vec<Family<'_>> {
    let mut families = of_pools(totals);
    families.push(family(totals, &GC_DURATION, collections));
    families.push(of_values(totals, &THREAD_COUNT, |values| {
        let count = |(&(is_daemon, state), &count): (&(bool, _), &u64)| {
            let state: &str = libjvmprobe::hotspot::java_threads::ThreadState::name(state);
            let daemon = if is_daemon { "true" } else { "false" };
            (vec![(BOOLEAN, daemon.into()), ("jvm_thread_state", state.into())], count as f64)
        };
        values.threads.iter().map(count).collect()
    }));
    families.extend(of_classes(totals));
    families.push(family(totals, &CPU_TIME, |series| {
        let seconds = series.gauges.cpu_ns.map(seconds);
        seconds.map(|seconds| (Labels::new(), Value::Number(seconds))).into_iter().collect()
    }));
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

fn family<'a>(
    totals: &'a Totals,
    convention: &'static Convention,
    values: impl Fn(&'a Series) -> ValuesOfJvm<'a>,
) -> Family<'a> {
    let mut points = Vec::new();
    for (key, series) in totals.jvms() {
        for (more, value) in values(series) {
            let mut labels = labels(key);
            labels.extend(more);
            points.push(Point { jvm: Some((key, series)), labels, value });
        }
    }
    let &Convention { name, unit, kind, help, .. } = convention;
    Family { name, help, unit, kind, points }
}

fn of_values<'a>(
    totals: &'a Totals,
    convention: &'static Convention,
    numbers: impl Fn(&Values) -> Vec<(Labels, f64)>,
) -> Family<'a> {
    family(totals, convention, |series| {
        let values = series.gauges.values.as_deref().map(&numbers).unwrap_or_default();
        values.into_iter().map(|(labels, number)| (labels, Value::Number(number))).collect()
    })
}

/// Returns a metric that has at most one value for each JVM.
fn single<'a>(
    totals: &'a Totals,
    convention: &'static Convention,
    number: impl Fn(&Values) -> Option<f64>,
) -> Family<'a> {
    of_values(totals, convention, |values| {
        number(values).map(|number| (Labels::new(), number)).into_iter().collect()
    })
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
                Some((labels, value(pool)? as f64))
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
                (vec![("jvm_buffer_pool_name", pool.name.into())], value(pool) as f64)
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
        family(totals, &CLASS_COUNT, move |series| {
            let count = count(series).map(|count| (Labels::new(), Value::Number(count as f64)));
            count.into_iter().collect()
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
