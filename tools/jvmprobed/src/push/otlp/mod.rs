//! OpenTelemetry's protocol (OTLP).
//!
//! | module | content |
//! |---|---|
//! | [`dictionary`] | dictionary that the profiles of a request share: strings, frames, stacks, attributes |
//! | [`profiles`] | a window as requests |
//! | [`metrics`] | the metrics as a request |
//! | [`values`] | attributes and resources |
//!
//! Messages are those of the crate opentelemetry-proto: version 1.10.0 of the protocol, in which profiles are
//! `v1development`. A receiver of another version may refuse profiles. HTTP and gRPC carry the same messages:
//! <https://opentelemetry.io/docs/specs/otlp/>.

pub mod dictionary;
pub mod metrics;
pub mod profiles;
pub mod values;

use opentelemetry_proto::tonic::collector::{
    metrics::v1::ExportMetricsServiceResponse,
    profiles::v1development::ExportProfilesServiceResponse,
};
use prost::Message;
use reqwest::Url;

use crate::push::{
    client::{Outcome, Target, with_path},
    grpc,
    queue::Kind,
};

/// Function that extracts from an answer how much was rejected.
type Read = fn(&[u8]) -> Option<Outcome>;

/// Sends a compressed request.
pub async fn send(
    target: &Target,
    base: &Url,
    is_grpc: bool,
    kind: Kind,
    zipped: Vec<u8>,
) -> Outcome {
    let (path, method, read): (_, _, Read) = match kind {
        Kind::Profiles => (
            "v1development/profiles",
            "opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
            of_profiles,
        ),
        Kind::Metrics => (
            "v1/metrics",
            "opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            of_metrics,
        ),
    };
    if is_grpc {
        return grpc::call(target, base, method, &zipped, read).await;
    }
    let headers = [("content-type", "application/x-protobuf"), ("content-encoding", "gzip")];
    target.send(with_path(base, path), &headers, zipped, read).await
}

fn of_profiles(answer: &[u8]) -> Option<Outcome> {
    let partial = ExportProfilesServiceResponse::decode(answer).ok()?.partial_success?;
    Some(Outcome::Accepted(u64::try_from(partial.rejected_profiles).ok()?, partial.error_message))
}

fn of_metrics(answer: &[u8]) -> Option<Outcome> {
    let partial = ExportMetricsServiceResponse::decode(answer).ok()?.partial_success?;
    Some(Outcome::Accepted(
        u64::try_from(partial.rejected_data_points).ok()?,
        partial.error_message,
    ))
}
