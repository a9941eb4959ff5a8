//! Families: the totals as a list of metrics, independent of the output format (OpenMetrics, Prometheus's
//! protocol buffers or OTLP).

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    metrics::{
        Sets,
        figures::Gauges,
        histogram::{Histogram, seconds},
        semconv,
        server::cost::serving_ns,
        table::{self, Metric},
        totals::{Key, OperationTotals, Series, Totals, cut},
    },
    push::ledger::{Ledger, reason},
    thread_dump::Cause,
};

/// A metric with all its points.
#[derive(Debug)]
pub struct Family<'a> {
    /// The metric.
    pub metric: &'static Metric,
    /// Points, one for each set of labels.
    pub points: Vec<Point<'a>>,
}

/// Labels of one point, as (name, value).
pub type Labels = Vec<(&'static str, Arc<str>)>;

/// One value of a metric, with its labels.
#[derive(Debug)]
pub struct Point<'a> {
    /// JVM that the point belongs to; `None` for metrics of the daemon itself.
    pub jvm: Option<(&'a Key, &'a Series)>,
    /// Labels of the point.
    pub labels: Labels,
    /// The value.
    pub value: Value<'a>,
}

/// A number, or a histogram.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Value of a counter or a gauge.
    Number(f64),
    /// Value of a histogram.
    Histogram(&'a Histogram),
}

use Value::Number;

impl Totals {
    /// Returns all metrics, those of JVMs first. Metrics without a point are left out.
    pub fn families(&self) -> Vec<Family<'_>> {
        let mut all = vec![self.of_jvms(&table::JVM_INFO, info)];
        if self.sets != Sets::Otel {
            all.extend(self.jvm_families());
        }
        if self.sets != Sets::Jvmprobe {
            all.extend(semconv::families::families(self));
        }
        all.extend(self.daemon_families());
        all.extend(self.target_families());
        all.retain(|family| !family.points.is_empty());
        all
    }

    /// Builds a metric of JVMs from the values of each JVM, each with the labels that the metric adds.
    pub(super) fn of_jvms<'a, V: IntoIterator<Item = (Labels, Value<'a>)>>(
        &'a self,
        metric: &'static Metric,
        values: impl Fn(&'a Series) -> V,
    ) -> Family<'a> {
        let mut points = Vec::new();
        for (key, series) in self.jvms() {
            for (more, value) in values(series) {
                let mut labels = labels(key);
                labels.extend(more);
                points.push(Point { jvm: Some((key, series)), labels, value });
            }
        }
        Family { metric, points }
    }

    fn jvm_families(&self) -> Vec<Family<'_>> {
        let gauge = |metric, value: fn(&Gauges) -> Option<u64>| {
            self.of_jvms(metric, move |series| value(&series.gauges).map(count))
        };
        vec![
            self.of_jvms(&table::STOPPED, |series| {
                by_operation(series, |operation| {
                    operation.has_stops().then(|| Number(seconds(operation.stopped.sum_ns())))
                })
            }),
            self.of_jvms(&table::STOP_DURATION, |series| {
                by_operation(series, |operation| {
                    operation.has_stops().then_some(Value::Histogram(&operation.stopped))
                })
            }),
            self.of_jvms(&table::COLLECTIONS, |series| {
                by_operation(series, |operation| {
                    (operation.collections > 0).then_some(Number(operation.collections as f64))
                })
            }),
            self.of_jvms(&table::TIME_TO_SAFEPOINT, |series| {
                let ttsp = Some(&series.ttsp).filter(|ttsp| ttsp.count() > 0);
                ttsp.map(|ttsp| (Labels::new(), Value::Histogram(ttsp)))
            }),
            self.of_jvms(&table::GC_CPU_WAIT, |series| series.cpu_wait_ns.map(time)),
            self.of_jvms(&table::ALLOCATED, |series| [count(series.allocated)]),
            self.of_jvms(&table::HEAP_USED_BEFORE, |series| series.heap.0.map(count)),
            self.of_jvms(&table::HEAP_USED_AFTER, |series| series.heap.1.map(count)),
            self.of_jvms(&table::CPU_BY_CODE, |series| {
                let kinds = series.processor.kinds().into_iter();
                kinds.map(|(kind, ns)| (label("kind", kind), Number(seconds(ns))))
            }),
            self.of_jvms(&table::PROCESS_CPU, |series| series.gauges.cpu_ns.map(time)),
            self.of_jvms(&table::PROBE_COST, |series| {
                let cost = series.cost.iter();
                cost.map(|(&tracer, &ns)| (label("tracer", tracer), Number(seconds(ns))))
            }),
            self.of_jvms(&table::WAITS, |series| {
                let waits = series.waits.iter();
                waits.map(|(&kind, all)| (label("kind", kind), Number(all.times as f64)))
            }),
            self.of_jvms(&table::WAITED, |series| {
                let waits = series.waits.iter();
                waits.map(|(&kind, all)| (label("kind", kind), Number(seconds(all.ns))))
            }),
            gauge(&table::HEAP_COMMITTED, |gauges| gauges.heap_committed),
            gauge(&table::HEAP_MAX, |gauges| gauges.heap_max),
            gauge(&table::CODE_CACHE_USED, |gauges| gauges.code_cache_used),
            gauge(&table::CODE_CACHE_SIZE, |gauges| gauges.code_cache_size),
            gauge(&table::LOADED_CLASSES, |gauges| gauges.loaded_classes),
            gauge(&table::THREADS, |gauges| gauges.threads),
        ]
    }

    fn daemon_families(&self) -> Vec<Family<'_>> {
        let daemon = &self.own;
        let single = |metric, value: f64| own(metric, [(Labels::new(), value)]);
        let by = |metric, name: &'static str, counts: &BTreeMap<Arc<str>, u64>| {
            own(metric, counts.iter().map(|(of, &count)| (label(name, of.clone()), count as f64)))
        };
        let limited = self.limited.iter().map(|((reason, tenant), &count)| {
            (vec![("reason", (*reason).into()), ("tenant", tenant.clone())], count as f64)
        });
        let thread_dumps = Cause::ALL.into_iter().map(|cause| {
            let count = self.thread_dumps.get(&cause).copied().unwrap_or(0);
            (label("cause", cause.name()), count as f64)
        });
        let collected = self
            .collected
            .iter()
            .map(|&(what, is)| (label("what", what), if is { 1.0 } else { 0.0 }));
        let last_reports =
            self.last_reports.iter().map(|&(tracer, ns)| (label("tracer", tracer), seconds(ns)));
        let costs = || self.probe_costs.iter().map(|(&tracer, all)| (label("tracer", tracer), all));
        vec![
            own(&table::BUILD_INFO, [(label("version", env!("CARGO_PKG_VERSION")), 1.0)]),
            single(&table::DAEMON_CPU, seconds(daemon.processor_ns)),
            single(&table::SERVING, seconds(serving_ns())),
            single(&table::EXPOSITIONS, self.expositions as f64),
            single(&table::DAEMON_MEMORY, daemon.memory_bytes as f64),
            single(&table::TARGET_MEMORY, daemon.target_memory_bytes as f64),
            single(&table::SAMPLING_HERTZ, daemon.hertz as f64),
            single(&table::SAVING, daemon.saving as f64),
            own(&table::COLLECTED, collected),
            own(&table::LAST_REPORT, last_reports),
            single(&table::WINDOW_DELAY, seconds(daemon.window_delay_ns)),
            single(&table::WINDOWS, self.windows as f64),
            single(
                &table::WINDOWS_LOST,
                self.store_counts.lost.saturating_add(self.dropped_windows) as f64,
            ),
            single(&table::STORE, self.store_counts.bytes as f64),
            single(&table::JVMS, self.running() as f64),
            single(&table::JVMS_SEEN, self.seen as f64),
            by(&table::JVMS_GIVEN_UP, "reason", &self.abandoned),
            by(&table::SAMPLES, "of", &self.recorded),
            by(&table::LOST, "reason", &self.lost),
            own(&table::LIMITED, limited),
            own(&table::THREAD_DUMPS, thread_dumps),
            own(&table::PROBE_COST_OF_ALL, costs().map(|(of, (_, ns))| (of, seconds(*ns)))),
            own(&table::PROBE_HITS, costs().map(|(of, (hits, _))| (of, *hits as f64))),
        ]
    }

    fn target_families(&self) -> Vec<Family<'_>> {
        let samples = self.targets.iter().flat_map(|target| {
            let all = target.read();
            // Zeros are exported, too, because Prometheus sees no increase in a series that begins above zero.
            let dropped = reason::ALL.map(|reason| {
                outcome(target, reason, all.dropped.get(reason).copied().unwrap_or(0))
            });
            [outcome(target, "delivered", all.delivered_samples)].into_iter().chain(dropped)
        });
        let requests = self.targets.iter().flat_map(|target| {
            let of = |(name, count)| outcome(target, name, count);
            target.read().requests.into_iter().map(of)
        });
        let gauge = |metric, value: fn(&Ledger) -> f64| {
            let of = |target: &Arc<Ledger>| (label("target", target.name().clone()), value(target));
            own(metric, self.targets.iter().map(of))
        };
        vec![
            own(&table::PUSH_SAMPLES, samples),
            own(&table::PUSH_REQUESTS, requests),
            gauge(&table::PUSH_WAITING_SAMPLES, |target| target.read().waiting_samples as f64),
            gauge(&table::PUSH_WAITING, |target| target.read().waiting_bytes as f64),
            gauge(&table::PUSH_DELAY, |target| target.delay().as_secs_f64()),
        ]
    }
}

/// Labels of [`table::JVM_INFO`], each with the attribute that it comes from.
const INFO: [(&str, &str); 16] = [
    ("runtime_name", "process.runtime.name"),
    ("runtime_version", "process.runtime.version"),
    ("service_namespace", "service.namespace"),
    ("service_version", "service.version"),
    ("service_instance_id", "service.instance.id"),
    ("deployment_environment_name", "deployment.environment.name"),
    ("container_id", "container.id"),
    ("k8s_pod_uid", "k8s.pod.uid"),
    ("k8s_pod_name", "k8s.pod.name"),
    ("k8s_namespace_name", "k8s.namespace.name"),
    ("k8s_container_name", "k8s.container.name"),
    ("k8s_deployment_name", "k8s.deployment.name"),
    ("k8s_node_name", "k8s.node.name"),
    ("host_name", "host.name"),
    ("cloud_region", "cloud.region"),
    ("cloud_availability_zone", "cloud.availability_zone"),
];

/// Returns the labels that identify a JVM.
fn labels((name, pid): &Key) -> Labels {
    vec![("jvm", name.clone()), ("pid", pid.to_string().into())]
}

/// Builds a metric of the daemon itself.
fn own<'a>(metric: &'static Metric, points: impl IntoIterator<Item = (Labels, f64)>) -> Family<'a> {
    let point = |(labels, value)| Point { jvm: None, labels, value: Number(value) };
    Family { metric, points: points.into_iter().map(point).collect() }
}

fn label(name: &'static str, value: impl Into<Arc<str>>) -> Labels {
    vec![(name, value.into())]
}

/// Returns the value of a metric that adds no labels.
pub(super) fn unlabelled(number: f64) -> (Labels, Value<'static>) {
    (Labels::new(), Number(number))
}

fn count(count: u64) -> (Labels, Value<'static>) {
    unlabelled(count as f64)
}

fn time(ns: u64) -> (Labels, Value<'static>) {
    unlabelled(seconds(ns))
}

/// Returns a value for each operation and cause of a JVM.
fn by_operation<'a>(
    series: &'a Series,
    value: fn(&'a OperationTotals) -> Option<Value<'a>>,
) -> impl Iterator<Item = (Labels, Value<'a>)> {
    series.operations.iter().filter_map(move |((op, cause), totals)| {
        Some((vec![("op", op.clone()), ("cause", cause.clone())], value(totals)?))
    })
}

/// Returns the attributes that identify a JVM as labels, to be joined with the other metrics.
fn info(series: &Series) -> Option<(Labels, Value<'_>)> {
    let identity = series.identity.as_ref()?;
    let known = |(label, name)| Some((label, cut(identity.attributes.get(name)?)));
    Some((INFO.into_iter().filter_map(known).collect(), Number(1.0)))
}

fn outcome(target: &Ledger, outcome: &str, count: u64) -> (Labels, f64) {
    (vec![("target", target.name().clone()), ("outcome", outcome.into())], count as f64)
}
