//! Encodes the metrics as an OTLP request.
//!
//! The metrics are those that scrapers get. Those of the semantic conventions have the names of the conventions. The names
//! of the others have a dot in place of the first underscore.
//! Histograms are exponential, and each JVM is its own resource.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Metric,
        NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
        exponential_histogram_data_point::Buckets, metric::Data, number_data_point,
    },
};
use prost::Message;

use crate::{
    metrics::{
        Totals,
        families::{Family, Point, Value},
        histogram::{Histogram, SCHEMA, seconds},
        server::gzip,
        table::{BOOLEAN, JVM_INFO, Kind},
        totals::{Key, Series},
    },
    push::{
        otlp::values::{attribute, own_resource, resource, scope, text},
        queue,
    },
};

/// Returns all metrics as a compressed request. Counters start at `start_ns`, when the daemon started.
pub fn request(totals: &Totals, start_ns: u64, now_ns: u64) -> Option<(queue::Header, Vec<u8>)> {
    // By JVM; `None` for the metrics of the daemon itself.
    let mut resources: BTreeMap<Option<&Key>, ResourceMetrics> = BTreeMap::new();
    for family in totals.families().iter().filter(|family| family.metric.name != JVM_INFO.name) {
        let mut by_jvm: BTreeMap<Option<&Key>, Vec<&Point<'_>>> = BTreeMap::new();
        for point in &family.points {
            by_jvm.entry(point.jvm.map(|(key, _)| key)).or_default().push(point);
        }
        for (jvm, points) in by_jvm {
            let of = points.first().and_then(|point| point.jvm).map(|(_, series)| series);
            let to = resources.entry(jvm).or_insert_with(|| empty(of));
            if let Some(scope) = to.scope_metrics.first_mut() {
                scope.metrics.push(metric(family, &points, start_ns, now_ns));
            }
        }
    }
    let request =
        ExportMetricsServiceRequest { resource_metrics: resources.into_values().collect() };
    let header =
        queue::Header { kind: queue::Kind::Metrics, time_ns: now_ns, ..queue::Header::default() };
    Some((header, gzip(&request.encode_to_vec()).ok()?))
}

fn empty(jvm: Option<&Series>) -> ResourceMetrics {
    let identity = jvm.and_then(|series| series.identity.as_ref());
    ResourceMetrics {
        resource: Some(identity.map_or_else(own_resource, |identity| resource(identity))),
        scope_metrics: vec![ScopeMetrics { scope: Some(scope()), ..ScopeMetrics::default() }],
        ..ResourceMetrics::default()
    }
}

fn metric(family: &Family<'_>, points: &[&Point<'_>], start: u64, now: u64) -> Metric {
    let number = |point: &&Point<'_>| {
        let Value::Number(value) = point.value else { return None };
        Some(NumberDataPoint {
            attributes: attributes(point),
            start_time_unix_nano: start_of(family, point, start),
            time_unix_nano: now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        })
    };
    let cumulative = AggregationTemporality::Cumulative.into();
    let data = match family.metric.kind {
        kind @ (Kind::Counter | Kind::JvmCounter | Kind::UpDownCounter) => Data::Sum(Sum {
            data_points: points.iter().filter_map(number).collect(),
            aggregation_temporality: cumulative,
            is_monotonic: kind != Kind::UpDownCounter,
        }),
        Kind::Gauge => {
            Data::Gauge(Gauge { data_points: points.iter().filter_map(number).collect() })
        }
        Kind::Histogram => Data::ExponentialHistogram(ExponentialHistogram {
            data_points: points
                .iter()
                .filter_map(|point| match point.value {
                    Value::Histogram(all) => Some(histogram(all, attributes(point), start, now)),
                    Value::Number(_) => None,
                })
                .collect(),
            aggregation_temporality: cumulative,
        }),
    };
    let (name, unit) = match family.metric.otlp {
        Some((name, unit)) => (name.to_owned(), unit),
        None => (
            // `jvmprobe_stopped` is `jvmprobe.stopped`, in seconds.
            family.metric.name.replacen('_', ".", 1),
            match family.metric.unit {
                "seconds" => "s",
                "bytes" => "By",
                _ => "1",
            },
        ),
    };
    Metric {
        name,
        description: family.metric.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

/// Returns the labels that the resource does not contain.
fn attributes(point: &Point<'_>) -> Vec<KeyValue> {
    let is_of_resource = |name: &str| {
        matches!(name, "jvm" | "pid") && point.jvm.is_some_and(|(_, jvm)| jvm.identity.is_some())
    };
    let labels = point.labels.iter().filter(|(name, _)| !is_of_resource(name));
    labels.map(|(name, value)| label(name, value)).collect()
}

/// Returns the time from which on a value counts; 0 for a gauge.
fn start_of(family: &Family<'_>, point: &Point<'_>, start: u64) -> u64 {
    let of_jvm = point.jvm.and_then(|(_, series)| series.identity.as_ref());
    match (family.metric.kind, of_jvm) {
        (Kind::JvmCounter, Some(jvm)) => jvm.started_ns,
        (Kind::Counter | Kind::JvmCounter, _) => start,
        _ => 0,
    }
}

/// Converts a label. A label of the semantic conventions has a dot in place of each underscore.
fn label(name: &str, value: &str) -> KeyValue {
    if name == BOOLEAN {
        return attribute(&name.replace('_', "."), any_value::Value::BoolValue(value == "true"));
    }
    match name.starts_with("jvm_") {
        true => attribute(&name.replace('_', "."), text(value)),
        false => attribute(name, text(value)),
    }
}

/// Converts a histogram. Bucket `i` of OpenTelemetry ends where bucket `i + 1` of Prometheus does.
fn histogram(
    all: &Histogram,
    attributes: Vec<KeyValue>,
    start_time_unix_nano: u64,
    time_unix_nano: u64,
) -> ExponentialHistogramDataPoint {
    let (first, last) = (all.native().keys().next(), all.native().keys().next_back());
    let positive = first.zip(last).map(|(&first, &last)| Buckets {
        offset: first - 1,
        bucket_counts: (first..=last)
            .map(|at| all.native().get(&at).copied().unwrap_or(0))
            .collect(),
    });
    ExponentialHistogramDataPoint {
        attributes,
        start_time_unix_nano,
        time_unix_nano,
        count: all.count(),
        sum: Some(seconds(all.sum_ns())),
        scale: SCHEMA,
        zero_count: all.zeros(),
        positive,
        ..ExponentialHistogramDataPoint::default()
    }
}
