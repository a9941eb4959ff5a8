//! Metrics of JVMs by OpenTelemetry's semantic conventions (`jvm.*`):
//! <https://opentelemetry.io/docs/specs/semconv/runtime/jvm-metrics/>.
//!
//! | module | content |
//! |---|---|
//! | [`values`] | values of the metrics for one JVM, read once per window |
//! | [`collections`] | names and actions of collections, as `GarbageCollectorMXBean` reports them |
//! | [`families`] | the values as a list of metrics |

pub mod collections;
pub mod families;
pub mod values;
