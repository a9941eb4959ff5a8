//! Trace context of a sample: the trace and the span that its thread worked for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifiers of a trace and of one of its spans, as in W3C Trace Context. Neither consists of zeros only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct SpanContext {
    /// The trace.
    trace_id: [u8; 16],
    /// The span.
    span_id: [u8; 8],
}

impl SpanContext {
    /// Makes a context; `None` if an identifier consists of zeros only, which means that there is none.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8]) -> Option<Self> {
        (trace_id != [0; 16] && span_id != [0; 8]).then_some(Self { trace_id, span_id })
    }

    /// Makes a context from the words that the kernel side has copied: `struct span_ids` of bpf/spans.h.
    pub(crate) fn of_words([high, low]: [u64; 2], span: u64) -> Option<Self> {
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&high.to_ne_bytes());
        trace_id[8..].copy_from_slice(&low.to_ne_bytes());
        Self::new(trace_id, span.to_ne_bytes())
    }

    /// Returns the bytes of the trace's identifier.
    pub fn trace_id(&self) -> &[u8; 16] {
        &self.trace_id
    }

    /// Returns the bytes of the span's identifier.
    pub fn span_id(&self) -> &[u8; 8] {
        &self.span_id
    }

    /// Returns the trace's identifier as 32 hexadecimal digits.
    pub fn trace(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.trace_id))
    }

    /// Returns the span's identifier as 16 hexadecimal digits.
    pub fn span(&self) -> String {
        format!("{:016x}", u64::from_be_bytes(self.span_id))
    }
}

/// In the form `TRACE-SPAN`, as in the header `traceparent`.
impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.trace(), self.span())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_printed_as_in_traceparent() {
        let trace_id = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
        let span_id = 0x00ad_6b71_6920_3331_u64.to_be_bytes();
        let context = SpanContext::new(trace_id, span_id).unwrap();
        assert_eq!(context.to_string(), "0af7651916cd43dd8448eb211c80319c-00ad6b7169203331");
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
        let words = [word(&trace_id[..8]), word(&trace_id[8..])];
        assert_eq!(SpanContext::of_words(words, word(&span_id)), Some(context));
    }

    #[test]
    fn zero_identifier_means_no_context() {
        assert_eq!(SpanContext::new([0; 16], [1; 8]), None);
        assert_eq!(SpanContext::new([1; 16], [0; 8]), None);
    }
}
