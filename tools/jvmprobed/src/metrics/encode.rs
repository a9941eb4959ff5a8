//! Exposition formats: OpenMetrics, Prometheus's older text format and its protocol buffers.
//!
//! The crate prometheus-client writes OpenMetrics (with classic histograms only) and the protocol buffers
//! (with native histograms as well). The older text format is derived from OpenMetrics:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::fmt::{self, Write};

use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, MetricEncoder, NativeHistogram, NativeHistogramBuckets,
        prometheus_protobuf, text,
    },
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::metrics::{
    SharedTotals,
    families::{Family, Labels, Value},
    histogram::{BOUNDS, Histogram, SCHEMA, seconds},
    table::Kind,
};

/// Type of an empty set of labels, for methods that require a type argument.
type NoLabels = [(&'static str, &'static str); 0];

/// Format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    /// OpenMetrics 1.0, text.
    OpenMetrics,
    /// Prometheus's text 0.0.4.
    Text,
    /// Prometheus's protocol buffers, with native histograms.
    Protobuf,
}

impl Exposition {
    /// Chooses the format by the scraper's `Accept` header. Prometheus's text format is the default, as it is for Prometheus'
    /// own client libraries.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/vnd.google.protobuf")
            && accept.contains("io.prometheus.client.MetricFamily")
        {
            return Self::Protobuf;
        }
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// Returns the `Content-Type` of the answer.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// Writes all metrics.
    ///
    /// # Errors
    /// None are known, because writing to memory does not fail.
    pub fn write(self, totals: &SharedTotals) -> Result<Vec<u8>, fmt::Error> {
        {
            let mut totals = totals.lock();
            totals.remove_expired();
            totals.expositions = totals.expositions.saturating_add(1);
        }
        let mut registry = Registry::default();
        registry.register_collector(Box::new(totals.clone()));
        match self {
            Self::Protobuf => prometheus_protobuf::encode_to_vec(&registry).map_err(|_| fmt::Error),
            Self::OpenMetrics => Ok(open_metrics(&registry)?.into_bytes()),
            Self::Text => Ok(to_prometheus_text(&open_metrics(&registry)?)?.into_bytes()),
        }
    }
}

fn open_metrics(registry: &Registry) -> Result<String, fmt::Error> {
    let mut text = String::new();
    text::encode(&mut text, registry)?;
    Ok(text)
}

/// Converts OpenMetrics to the older text format. In the older format, the HELP and TYPE lines of a counter
/// contain the name of its samples, which ends in `_total`, and there are no UNIT lines and no end marker.
fn to_prometheus_text(open_metrics: &str) -> Result<String, fmt::Error> {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        let mut fields = line.splitn(4, ' ');
        match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some("#"), Some("HELP"), Some(name), Some(help_text)) => {
                help = Some((name, help_text))
            }
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let total = if kind == "counter" { "_total" } else { "" };
                if let Some((_, help_text)) = help.take().filter(|(of, _)| *of == name) {
                    writeln!(text, "# HELP {name}{total} {help_text}")?;
                }
                writeln!(text, "# TYPE {name}{total} {kind}")?;
            }
            (Some("#"), ..) => {}
            _ => writeln!(text, "{line}")?,
        }
    }
    Ok(text)
}

impl Collector for SharedTotals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.lock();
        totals.families().iter().try_for_each(|family| encode_family(family, &mut encoder))
    }
}

fn encode_family(family: &Family<'_>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let metric = family.metric;
    let unit = match metric.unit {
        "seconds" => Some(Unit::Seconds),
        "bytes" => Some(Unit::Bytes),
        _ => None,
    };
    let kind = match metric.kind {
        Kind::Counter | Kind::JvmCounter => MetricType::Counter,
        Kind::Gauge | Kind::UpDownCounter => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    // The crate adds a full stop to the help text.
    let help = metric.help.trim_end_matches('.');
    let mut metrics = encoder.encode_descriptor(metric.name, help, unit.as_ref(), kind)?;
    for point in &family.points {
        match point.labels.is_empty() {
            true => write_point(point.value, metric.kind, &mut metrics)?,
            false => {
                let labels = encoder_labels(&point.labels);
                write_point(point.value, metric.kind, &mut metrics.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn write_point(value: Value<'_>, kind: Kind, to: &mut MetricEncoder<'_>) -> fmt::Result {
    match (value, kind) {
        (Value::Number(value), Kind::Counter | Kind::JvmCounter) => {
            to.encode_counter::<NoLabels, _, f64>(&value, None)
        }
        (Value::Number(value), _) => to.encode_gauge(&value),
        (Value::Histogram(histogram), _) => write_histogram(histogram, to),
    }
}

/// Converts labels to the crate's type. A process may choose any name for itself; the crate escapes label values.
fn encoder_labels(labels: &Labels) -> Vec<(&'static str, String)> {
    labels.iter().map(|(name, value)| (*name, value.to_string())).collect()
}

fn write_histogram(histogram: &Histogram, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
    let classic: Vec<_> = bounds.zip(histogram.classic().iter().copied()).collect();
    let (spans, deltas) = histogram.spans();
    let native = NativeHistogram {
        schema: SCHEMA,
        zero_threshold: 0.0,
        zero_count: histogram.zeros(),
        negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
        positive: NativeHistogramBuckets { spans: &spans, deltas: &deltas },
        created: None,
    };
    let sum = seconds(histogram.sum_ns());
    metric.encode_histogram_with_native::<NoLabels>(sum, histogram.count(), &classic, None, native)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        metrics::figures::{Figures, Stop},
        window::Identity,
    };

    fn totals() -> SharedTotals {
        let totals = SharedTotals::default();
        *totals.lock() = crate::metrics::Totals::new(crate::metrics::Limits::default());
        let identity = Identity { pid: 7, name: "sh\"op\n\\".into(), ..Identity::default() };
        let stop = Stop {
            op: "G1".into(),
            cause: Some("System.gc()".into()),
            stopped_ns: 2_000_000,
            collections: 1,
            ..Stop::default()
        };
        let figures = Figures { stops: vec![stop], ..Figures::default() };
        let identity = Arc::new(identity);
        totals.lock().admit(&identity);
        totals.lock().add(&identity, &figures);
        totals
    }

    fn text(exposition: Exposition) -> String {
        String::from_utf8(exposition.write(&totals()).unwrap()).unwrap()
    }

    #[test]
    fn special_characters_in_jvm_names_are_escaped() {
        let labels = r#"{jvm="sh\"op\n\\",pid="7",op="G1",cause="System.gc()"}"#;
        for exposition in [Exposition::OpenMetrics, Exposition::Text] {
            let text = text(exposition);
            let line = format!("jvmprobe_stopped_seconds_total{labels} 0.002\n");
            assert!(text.contains(&line), "{text}");
        }
    }

    #[test]
    fn each_text_format_has_its_own_metadata() {
        let (open, older) = (text(Exposition::OpenMetrics), text(Exposition::Text));
        assert!(open.contains("# TYPE jvmprobe_stopped_seconds counter\n"), "{open}");
        assert!(open.ends_with("# EOF\n"));
        assert!(older.contains("# TYPE jvmprobe_stopped_seconds_total counter\n"), "{older}");
        assert!(older.contains("# HELP jvmprobe_stopped_seconds_total Time for which"), "{older}");
        assert!(!older.contains("# EOF") && !older.contains("# UNIT"));
        let samples = |text: &str| text.lines().filter(|l| !l.starts_with('#')).count();
        assert_eq!(samples(&open), samples(&older));
    }

    #[test]
    fn accept_header_selects_the_format() {
        let accepted = Exposition::accepted;
        assert_eq!(accepted(""), Exposition::Text);
        assert_eq!(accepted("*/*"), Exposition::Text);
        assert_eq!(accepted("text/plain;version=0.0.4;q=0.3"), Exposition::Text);
        assert_eq!(
            accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"),
            Exposition::OpenMetrics
        );
        assert_eq!(
            accepted(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
            ),
            Exposition::Protobuf
        );
    }
}
