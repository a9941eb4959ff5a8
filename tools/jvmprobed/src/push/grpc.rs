//! Unary gRPC calls over HTTP/2.
//!
//! Source: grpc.io's PROTOCOL-HTTP2.md. A message is preceded by one byte that says whether it is compressed
//! and four bytes with its length. The status of the answer is in its trailers. Entries of the queue are
//! already compressed messages, and only two methods are called, so no gRPC library is needed.

use std::time::Duration;

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use http_body_util::BodyExt;
use prost::Message;
use reqwest::Url;

use crate::push::client::{Outcome, Target, with_path};

/// Base64 in headers; some servers leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Headers of a call: content type and encoding.
const HEADERS: [(&str, &str); 3] =
    [("content-type", "application/grpc+proto"), ("te", "trailers"), ("grpc-encoding", "gzip")];

/// Maximum length of an answer, in bytes. The status comes last, so the status of a longer answer is not
/// read.
const MAX_ANSWER: usize = 64 << 10;

/// `google.rpc.Status`; only its details are used.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    delay: Option<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Calls a method with a compressed message.
pub async fn call(
    target: &Target,
    base: &Url,
    method: &str,
    zipped: &[u8],
    read: impl Fn(&[u8]) -> Option<Outcome>,
) -> Outcome {
    let Ok(length) = u32::try_from(zipped.len()) else {
        return Outcome::Refused("the request is too long for gRPC".into());
    };
    let mut body = Vec::with_capacity(zipped.len() + 5);
    body.push(1);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(zipped);
    let answer = match target.post(with_path(base, method), &HEADERS, body).await {
        Ok(answer) => answer,
        Err(outcome) => return outcome,
    };
    if !answer.status().is_success() {
        let text = format!("the target answered {} to a gRPC request", answer.status());
        return Outcome::Later(None, text);
    }
    // An answer without a body has its status among the headers.
    let mut headers = answer.headers().clone();
    let mut body = reqwest::Body::from(answer);
    let mut message = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Outcome::Later(None, super::client::chain(&error)),
        };
        match frame.into_data() {
            Ok(data) if message.len() + data.len() > MAX_ANSWER => {
                return Outcome::Later(None, "the target's answer is too long".into());
            }
            Ok(data) => message.extend_from_slice(&data),
            Err(frame) => headers.extend(frame.into_trailers().into_iter().flatten()),
        }
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(code) = text("grpc-status").and_then(|code| code.parse::<u32>().ok()) else {
        return Outcome::Later(None, "the target's answer is not gRPC; check the port".into());
    };
    if code == 0 {
        // Skip the byte for compression and the four bytes of the length. The message is not compressed,
        // because the request does not accept compressed answers.
        return message.get(5..).and_then(read).unwrap_or_else(Outcome::accepted);
    }
    let details = text("grpc-status-details-bin").and_then(retry_info);
    outcome_of(code, text("grpc-message").unwrap_or(""), details)
}

/// Maps a gRPC status to an outcome. A request is sent again after the codes that OTLP's specification lists
/// as retryable ("Failures"), and after errors that the administrator can fix.
fn outcome_of(code: u32, message: &str, after: Option<Duration>) -> Outcome {
    let name = match code {
        1 => "CANCELLED",
        3 => "INVALID_ARGUMENT",
        4 => "DEADLINE_EXCEEDED",
        7 => "PERMISSION_DENIED",
        8 => "RESOURCE_EXHAUSTED",
        12 => "UNIMPLEMENTED",
        13 => "INTERNAL",
        14 => "UNAVAILABLE",
        16 => "UNAUTHENTICATED",
        _ => "gRPC status",
    };
    let message: String = message.chars().take(200).collect();
    let text = format!("the target answered {name} ({code}) {message}").trim_end().to_owned();
    // The administrator can fix the causes of 7, 12 and 16: a token, a port, a receiver's pipeline.
    match code {
        1 | 4 | 7 | 10 | 11 | 12 | 14 | 15 | 16 => Outcome::Later(after, text),
        // The target may be full, or the request too large. Only in the first case does it send a delay.
        8 if after.is_some() => Outcome::Later(after, text),
        _ => Outcome::Refused(text),
    }
}

/// Returns the delay that the target asks for.
fn retry_info(base64: &str) -> Option<Duration> {
    let status = Status::decode(&*BASE64.decode(base64).ok()?).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("google.rpc.RetryInfo"))?;
    let delay = RetryInfo::decode(&*info.value).ok()?.delay.unwrap_or_default();
    let (seconds, nanos) = (u64::try_from(delay.seconds).ok()?, u32::try_from(delay.nanos).ok()?);
    Some(Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_info_delay_is_decoded() {
        let delay = Some(Span { seconds: 3, nanos: 500_000_000 });
        let info = RetryInfo { delay }.encode_to_vec();
        let any = Any { type_url: "type.googleapis.com/google.rpc.RetryInfo".into(), value: info };
        let text = BASE64.encode(Status { details: vec![any] }.encode_to_vec());
        // gRPC leaves the padding out.
        assert_eq!(retry_info(text.trim_end_matches('=')), Some(Duration::from_millis(3500)));
        assert_eq!(retry_info("Zm9vYmE"), None);
    }

    #[test]
    fn grpc_status_selects_retry_or_rejection() {
        let soon = Some(Duration::from_secs(1));
        assert!(matches!(outcome_of(14, "", None), Outcome::Later(None, _)));
        assert!(matches!(outcome_of(14, "", soon), Outcome::Later(Some(_), _)));
        assert!(matches!(outcome_of(8, "", soon), Outcome::Later(Some(_), _)));
        assert!(matches!(outcome_of(8, "too large", None), Outcome::Refused(_)));
        assert!(matches!(outcome_of(3, "", soon), Outcome::Refused(_)));
    }
}
