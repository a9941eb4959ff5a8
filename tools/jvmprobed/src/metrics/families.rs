//! Families: the totals as a list of metrics, independent of the output format (OpenMetrics, Prometheus's
//! protocol buffers or OTLP).

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    metrics::{
        Sets,
        figures::Waited,
        histogram::{Histogram, seconds},
        semconv,
        server::cost::serving_ns,
        totals::{Key, OperationTotals, Series, Totals, cut},
    },
    push::ledger::{Ledger, reason},
    thread_dump::Cause,
};

/// A metric with all its points.
#[derive(Debug)]
pub struct Family<'a> {
    /// Name, without unit and without `_total`.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// `seconds`, `bytes`, or empty.
    pub unit: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// Points, one for each set of labels.
    pub points: Vec<Point<'a>>,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// A value that goes up and down, and that may be summed over JVMs. For Prometheus, it is a gauge.
    UpDownCounter,
    /// A distribution of durations.
    Histogram,
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

use Kind::{Counter, Gauge};
use Value::Number;

impl Totals {
    /// Returns all metrics, those of JVMs first. Metrics without a point are left out.
    pub fn families(&self) -> Vec<Family<'_>> {
        let mut all = match self.sets {
            Sets::Otel => vec![self.info()],
            Sets::Jvmprobe | Sets::All => self.jvm_families(),
        };
        if self.sets != Sets::Jvmprobe {
            all.extend(semconv::families::families(self));
        }
        all.extend(self.daemon_families());
        all.extend(self.target_families());
        all.retain(|family| !family.points.is_empty());
        all
    }

    /// Builds a metric that has at most one point for each JVM.
    fn per_jvm<'a>(
        &'a self,
        (name, unit, kind, help): (&'static str, &'static str, Kind, &'static str),
        value: impl Fn(&'a Series) -> Option<Value<'a>>,
    ) -> Family<'a> {
        let point = |(key, series): (&'a Key, &'a Series)| {
            Some(Point { jvm: Some((key, series)), labels: labels(key), value: value(series)? })
        };
        Family { name, help, unit, kind, points: self.jvms().iter().filter_map(point).collect() }
    }

    /// Builds a metric that has one point for each JVM, operation and cause.
    fn by_operation<'a>(
        &'a self,
        (name, unit, kind, help): (&'static str, &'static str, Kind, &'static str),
        value: impl Fn(&'a OperationTotals) -> Option<Value<'a>>,
    ) -> Family<'a> {
        let mut points = Vec::new();
        for (key, series) in self.jvms() {
            for ((op, cause), stopped) in &series.operations {
                let Some(value) = value(stopped) else { continue };
                let mut labels = labels(key);
                labels.extend([("op", op.clone()), ("cause", cause.clone())]);
                points.push(Point { jvm: Some((key, series)), labels, value });
            }
        }
        Family { name, help, unit, kind, points }
    }

    fn jvm_families(&self) -> Vec<Family<'_>> {
        let bytes = |value: Option<u64>| value.map(|bytes| Number(bytes as f64));
        let mut families = vec![
            self.info(),
            self.by_operation(
                (
                    "jvmprobe_stopped",
                    "seconds",
                    Counter,
                    "Time for which the application was stopped.",
                ),
                |stopped| stopped.has_stops().then(|| Number(seconds(stopped.stopped.sum_ns()))),
            ),
            self.by_operation(
                ("jvmprobe_stop_duration", "seconds", Kind::Histogram, "Duration of each stop."),
                |stopped| stopped.has_stops().then_some(Value::Histogram(&stopped.stopped)),
            ),
            self.by_operation(
                ("jvmprobe_collections", "", Counter, "Garbage collections."),
                |stopped| (stopped.collections > 0).then_some(Number(stopped.collections as f64)),
            ),
            self.per_jvm(
                (
                    "jvmprobe_time_to_safepoint",
                    "seconds",
                    Kind::Histogram,
                    "Time from the request of a stop until all threads had stopped.",
                ),
                |series| (series.ttsp.count() > 0).then_some(Value::Histogram(&series.ttsp)),
            ),
            self.per_jvm(
                (
                    "jvmprobe_gc_cpu_wait",
                    "seconds",
                    Counter,
                    "Time for which collections waited for a CPU within stops.",
                ),
                |series| series.cpu_wait_ns.map(|ns| Number(seconds(ns))),
            ),
            self.per_jvm(
                ("jvmprobe_allocated", "bytes", Counter, "Estimated bytes allocated by Java code."),
                |series| bytes(Some(series.allocated)),
            ),
            self.per_jvm(
                (
                    "jvmprobe_heap_used_before",
                    "bytes",
                    Gauge,
                    "Heap in use before the last collection.",
                ),
                |series| bytes(series.heap.0),
            ),
            self.per_jvm(
                (
                    "jvmprobe_heap_used_after",
                    "bytes",
                    Gauge,
                    "Heap in use after the last collection.",
                ),
                |series| bytes(series.heap.1),
            ),
            self.processor(),
            self.per_jvm(
                (
                    "jvmprobe_cpu",
                    "seconds",
                    Counter,
                    "CPU time of the process since its start, as counted by the kernel.",
                ),
                |series| series.gauges.cpu_ns.map(|ns| Number(seconds(ns))),
            ),
            self.probe_cost_by_jvm(),
        ];
        families.extend(self.waits());
        families.extend(self.gauges());
        families
    }

    fn gauges(&self) -> [Family<'_>; 6] {
        let number = |value: Option<u64>| value.map(|value| Number(value as f64));
        [
            self.per_jvm(
                ("jvmprobe_heap_committed", "bytes", Gauge, "Committed size of the heap."),
                move |series| number(series.gauges.heap_committed),
            ),
            self.per_jvm(
                ("jvmprobe_heap_max", "bytes", Gauge, "Maximum size of the heap (-Xmx)."),
                move |series| number(series.gauges.heap_max),
            ),
            self.per_jvm(
                ("jvmprobe_code_cache_used", "bytes", Gauge, "Code cache in use."),
                move |series| number(series.gauges.code_cache_used),
            ),
            self.per_jvm(
                ("jvmprobe_code_cache_size", "bytes", Gauge, "Maximum size of the code cache."),
                move |series| number(series.gauges.code_cache_size),
            ),
            self.per_jvm(
                ("jvmprobe_loaded_classes", "", Gauge, "Loaded classes."),
                move |series| number(series.gauges.loaded_classes),
            ),
            self.per_jvm(
                ("jvmprobe_threads", "", Gauge, "Threads of the process."),
                move |series| number(series.gauges.threads),
            ),
        ]
    }

    /// Builds the metrics of the waits of each JVM by kind: their number, and their total length.
    fn waits(&self) -> [Family<'_>; 2] {
        let points = |value: fn(&Waited) -> f64| {
            let mut points = Vec::new();
            for (key, series) in self.jvms() {
                for (&kind, waited) in &series.waits {
                    let mut labels = labels(key);
                    labels.push(("kind", kind.into()));
                    let value = Number(value(waited));
                    points.push(Point { jvm: Some((key, series)), labels, value });
                }
            }
            points
        };
        [
            Family {
                name: "jvmprobe_waits",
                help: "Waits of Java threads of at least the configured length that have ended.",
                unit: "",
                kind: Counter,
                points: points(|waited| waited.times as f64),
            },
            Family {
                name: "jvmprobe_waited",
                help: "Total length of these waits; each is added when it has ended.",
                unit: "seconds",
                kind: Counter,
                points: points(|waited| seconds(waited.ns)),
            },
        ]
    }

    fn processor(&self) -> Family<'_> {
        let mut points = Vec::new();
        for (key, series) in self.jvms() {
            for (kind, ns) in series.processor.kinds() {
                let mut labels = labels(key);
                labels.push(("kind", kind.into()));
                points.push(Point { jvm: Some((key, series)), labels, value: Number(seconds(ns)) });
            }
        }
        Family {
            name: "jvmprobe_processor",
            help: "CPU time by kind of code, estimated from samples.",
            unit: "seconds",
            kind: Counter,
            points,
        }
    }

    /// Builds the metric of the CPU time that probes take from each JVM.
    fn probe_cost_by_jvm(&self) -> Family<'_> {
        let mut points = Vec::new();
        for (key, series) in self.jvms() {
            for (&tracer, &ns) in &series.cost {
                let mut labels = labels(key);
                labels.push(("tracer", tracer.into()));
                points.push(Point { jvm: Some((key, series)), labels, value: Number(seconds(ns)) });
            }
        }
        Family {
            name: "jvmprobe_probe_cost",
            help: "CPU time that the daemon's probes took from the JVM.",
            unit: "seconds",
            kind: Counter,
            points,
        }
    }

    /// Builds the metrics of probe cost summed over all processes: CPU time, and hits.
    fn probe_cost_sums(&self) -> [Family<'_>; 2] {
        let points = |value: fn(&(u64, u64)) -> f64| {
            let point = |(&tracer, cost): (&&'static str, &(u64, u64))| Point {
                jvm: None,
                labels: vec![("tracer", tracer.into())],
                value: Number(value(cost)),
            };
            self.probe_costs.iter().map(point).collect()
        };
        [
            Family {
                name: "jvmprobed_probe_cost",
                help: "CPU time that the daemon's probes took from all processes.",
                unit: "seconds",
                kind: Counter,
                points: points(|(_, ns)| seconds(*ns)),
            },
            Family {
                name: "jvmprobed_probe_hits",
                help: "Hits of the daemon's probes, and samples.",
                unit: "",
                kind: Counter,
                points: points(|(hits, _)| *hits as f64),
            },
        ]
    }

    /// Builds the info metric that identifies each JVM, to be joined with the other metrics.
    fn info(&self) -> Family<'_> {
        let mut points = Vec::new();
        for (key, series) in self.jvms() {
            let Some(identity) = &series.identity else { continue };
            let mut labels = labels(key);
            let known = |(label, name)| Some((label, cut(identity.attributes.get(name)?)));
            labels.extend(INFO.into_iter().filter_map(known));
            points.push(Point { jvm: Some((key, series)), labels, value: Number(1.0) });
        }
        Family {
            name: "jvmprobe_jvm_info",
            help: "Identity of a JVM; the value is always 1.",
            unit: "",
            kind: Gauge,
            points,
        }
    }

    fn daemon_families(&self) -> Vec<Family<'_>> {
        let own = &self.own;
        let version: Labels = vec![("version", env!("CARGO_PKG_VERSION").into())];
        let mut families = vec![
            daemon_family(
                ("jvmprobed_build_info", "", Gauge, "Version of jvmprobed; the value is always 1."),
                version,
                1.0,
            ),
            single(
                "jvmprobed_processor",
                "seconds",
                Counter,
                "CPU time used by the daemon.",
                seconds(own.processor_ns),
            ),
            single(
                "jvmprobed_serving",
                "seconds",
                Counter,
                "Part of the daemon's CPU time that was spent serving HTTP, which --max-cpu does \
                 not limit.",
                seconds(serving_ns()),
            ),
            single(
                "jvmprobed_expositions",
                "",
                Counter,
                "Metric expositions generated; all scrapers within one second get the same one.",
                self.expositions as f64,
            ),
            single(
                "jvmprobed_memory",
                "bytes",
                Gauge,
                "Resident memory of the daemon.",
                own.memory_bytes as f64,
            ),
            single(
                "jvmprobed_sampling_hertz",
                "",
                Gauge,
                "Samples per second on each CPU; lower than configured while the daemon saves \
                 resources.",
                own.hertz as f64,
            ),
            single(
                "jvmprobed_saving",
                "",
                Gauge,
                "Steps by which collection is reduced to save resources; 0 if it is not reduced.",
                own.saving as f64,
            ),
            self.collected(),
            single(
                "jvmprobed_window_delay",
                "seconds",
                Gauge,
                "Time from the end of the last window until it was passed on to be stored and \
                 pushed.",
                seconds(own.window_delay_ns),
            ),
            single(
                "jvmprobed_windows",
                "",
                Counter,
                "Windows passed on to be stored and pushed.",
                self.windows as f64,
            ),
            single(
                "jvmprobed_windows_lost",
                "",
                Counter,
                "Windows that could not be written to disk.",
                self.store_counts.lost.saturating_add(self.dropped_windows) as f64,
            ),
            single(
                "jvmprobed_store",
                "bytes",
                Gauge,
                "Size of the stored windows on disk.",
                self.store_counts.bytes as f64,
            ),
            single("jvmprobed_jvms", "", Gauge, "Running JVMs.", self.running() as f64),
            single(
                "jvmprobed_jvms_seen",
                "",
                Counter,
                "JVMs found since the daemon started.",
                self.seen as f64,
            ),
            counter_by_label(
                "jvmprobed_jvms_given_up",
                "JVMs that are not traced, and tracers that have ended, by reason.",
                "reason",
                &self.abandoned,
            ),
            counter_by_label(
                "jvmprobed_samples",
                "Samples and events collected.",
                "of",
                &self.recorded,
            ),
            counter_by_label("jvmprobed_lost", "Samples and events lost.", "reason", &self.lost),
            self.limited(),
            self.thread_dumps(),
        ];
        families.extend(self.probe_cost_sums());
        families
    }

    /// Builds the metric of detail that tenants lost because they exceeded their share.
    fn limited(&self) -> Family<'_> {
        let point = |((reason, tenant), &count): (&(&'static str, Arc<str>), &u64)| Point {
            jvm: None,
            labels: vec![("reason", (*reason).into()), ("tenant", tenant.clone())],
            value: Number(count as f64),
        };
        Family {
            name: "jvmprobed_limited",
            help: "Details dropped because a tenant exceeded its share.",
            unit: "",
            kind: Counter,
            points: self.limited.iter().map(point).collect(),
        }
    }

    /// Builds the metric of thread dumps.
    fn thread_dumps(&self) -> Family<'_> {
        let point = |cause: Cause| Point {
            jvm: None,
            labels: vec![("cause", cause.name().into())],
            value: Number(self.thread_dumps.get(&cause).copied().unwrap_or(0) as f64),
        };
        Family {
            name: "jvmprobed_thread_dumps",
            help: "Thread dumps of JVMs with a deadlock or without progress.",
            unit: "",
            kind: Counter,
            points: Cause::ALL.into_iter().map(point).collect(),
        }
    }

    /// Builds the metric that shows which of the configured measures are collected now.
    fn collected(&self) -> Family<'_> {
        let point = |&(what, is): &(&'static str, bool)| Point {
            jvm: None,
            labels: vec![("what", what.into())],
            value: Number(if is { 1.0 } else { 0.0 }),
        };
        Family {
            name: "jvmprobed_collected",
            help: "Whether a measure is collected; 0 while it is omitted to save resources.",
            unit: "",
            kind: Gauge,
            points: self.collected.iter().map(point).collect(),
        }
    }

    fn target_families(&self) -> Vec<Family<'_>> {
        let samples = self.targets.iter().flat_map(|target| {
            let all = target.read();
            let mut points = vec![outcome(target, "delivered", all.delivered_samples)];
            // Zeros are exported, too, because Prometheus sees no increase in a series that begins above zero.
            points.extend(reason::ALL.iter().map(|reason| {
                outcome(target, reason, all.dropped.get(reason).copied().unwrap_or(0))
            }));
            points
        });
        let requests = self.targets.iter().flat_map(|target| {
            let all = target.read();
            all.requests
                .iter()
                .map(|(outcome, &count)| {
                    push_point(target, Some(("outcome", (*outcome).into())), count as f64)
                })
                .collect::<Vec<_>>()
        });
        let gauge = |name, unit, help, value: fn(&Ledger) -> f64| Family {
            name,
            help,
            unit,
            kind: Gauge,
            points: self.targets.iter().map(|t| push_point(t, None, value(t))).collect(),
        };
        vec![
            Family {
                name: "jvmprobed_push_samples",
                help: "Samples by outcome: delivered, or the reason for dropping them. For \
                       allocation, distinct stacks are counted.",
                unit: "",
                kind: Counter,
                points: samples.collect(),
            },
            Family {
                name: "jvmprobed_push_requests",
                help: "Push requests by outcome.",
                unit: "",
                kind: Counter,
                points: requests.collect(),
            },
            gauge(
                "jvmprobed_push_waiting_samples",
                "",
                "Samples waiting for delivery.",
                |target| target.read().waiting_samples as f64,
            ),
            gauge("jvmprobed_push_waiting", "bytes", "Data waiting for delivery.", |target| {
                target.read().waiting_bytes as f64
            }),
            gauge(
                "jvmprobed_push_delay",
                "seconds",
                "Age of the oldest data waiting for delivery.",
                |target| target.delay().as_secs_f64(),
            ),
        ]
    }
}

/// Labels of `jvmprobe_jvm_info`, each with the attribute that it comes from.
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
pub fn labels((name, pid): &Key) -> Labels {
    vec![("jvm", name.clone()), ("pid", pid.to_string().into())]
}

fn daemon_family<'a>(
    (name, unit, kind, help): (&'static str, &'static str, Kind, &'static str),
    labels: Labels,
    value: f64,
) -> Family<'a> {
    let points = vec![Point { jvm: None, labels, value: Number(value) }];
    Family { name, help, unit, kind, points }
}

fn single<'a>(
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    help: &'static str,
    value: f64,
) -> Family<'a> {
    daemon_family((name, unit, kind, help), Vec::new(), value)
}

fn counter_by_label<'a>(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    counts: &BTreeMap<Arc<str>, u64>,
) -> Family<'a> {
    let point = |(what, &count): (&Arc<str>, &u64)| Point {
        jvm: None,
        labels: vec![(label, what.clone())],
        value: Number(count as f64),
    };
    Family { name, help, unit: "", kind: Counter, points: counts.iter().map(point).collect() }
}

fn push_point<'a>(
    target: &Ledger,
    label: Option<(&'static str, Arc<str>)>,
    value: f64,
) -> Point<'a> {
    let mut labels: Labels = vec![("target", target.name().clone())];
    labels.extend(label);
    Point { jvm: None, labels, value: Number(value) }
}

fn outcome<'a>(target: &Ledger, outcome: &str, samples: u64) -> Point<'a> {
    push_point(target, Some(("outcome", outcome.into())), samples as f64)
}
