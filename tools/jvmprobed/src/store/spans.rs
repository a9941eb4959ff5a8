//! Trace contexts of the samples of a window: a second gzip member of the file of profiles.
//!
//! | value, in this order | meaning |
//! |---|---|
//! | list of [`SpanContext`] | each context once |
//! | list of `SpanRecord` | one for each sample with a context, in the order of the file |
//!
//! The encoding is that of [`super::profiles`]. A program that does not know the second member ignores it. The member is
//! missing if no sample has a context.

use std::{
    collections::HashMap,
    io::{self, BufRead, Read, Write},
};

use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use libjvmprobe::stack::{
    profile::{Profile, Sample},
    span::SpanContext,
};
use serde::{Deserialize, Serialize};

/// Maximum size before compression, in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// Maximum number of contexts, and of samples that have one. More do not fit into `MAX_BYTES`.
const MAX_ELEMENTS: usize = 1 << 20;

/// Context of a sample.
#[derive(Deserialize, Serialize)]
struct SpanRecord {
    /// Number of samples without a context since the last sample with one.
    skipped: u32,
    /// Position in the list of contexts.
    context: u32,
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its trace contexts are damaged or too large")
}

/// Appends the contexts of the samples, in the order in which `profiles` has the samples.
///
/// # Errors
/// Errors of the writer.
pub fn write<'a>(profiles: impl Iterator<Item = &'a Profile>, to: impl Write) -> io::Result<()> {
    let (mut contexts, mut positions) = (Vec::new(), HashMap::new());
    let (mut records, mut skipped) = (Vec::new(), 0_u32);
    for sample in profiles.flat_map(|profile| &profile.samples) {
        let Some(span) = sample.span.filter(|_| records.len() < MAX_ELEMENTS) else {
            skipped = skipped.saturating_add(1);
            continue;
        };
        let context = *positions.entry(span).or_insert_with(|| {
            contexts.push(span);
            // There are at most MAX_ELEMENTS contexts.
            contexts.len() as u32 - 1
        });
        records.push(SpanRecord { skipped, context });
        skipped = 0;
    }
    if records.is_empty() {
        return Ok(());
    }
    let bytes = postcard::to_extend(&(contexts, records), Vec::new()).map_err(|_| invalid())?;
    // A member that the reader would refuse is left out.
    if bytes.len() as u64 > MAX_BYTES {
        return Ok(());
    }
    let mut gzip = GzEncoder::new(to, Compression::default());
    gzip.write_all(&bytes)?;
    gzip.finish()?.flush()
}

/// Reads the contexts from what follows the profiles, and sets them in the samples.
///
/// # Errors
/// Errors of the reader; [`io::ErrorKind::InvalidData`] for content that [`write`](fn@write) does not produce.
pub fn read<'a>(
    samples: impl Iterator<Item = &'a mut Sample>,
    mut from: impl BufRead,
) -> io::Result<()> {
    if from.fill_buf()?.is_empty() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    GzDecoder::new(from).take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(invalid());
    }
    decode(samples, &bytes).ok_or_else(invalid)
}

/// Sets the contexts of a member after decompression. `None` if it is damaged.
pub fn decode<'a>(mut samples: impl Iterator<Item = &'a mut Sample>, bytes: &[u8]) -> Option<()> {
    let mut rest = bytes;
    let contexts: Vec<SpanContext> = list(&mut rest)?;
    let records: Vec<SpanRecord> = list(&mut rest)?;
    for SpanRecord { skipped, context } in records {
        let sample = samples.nth(skipped as usize)?;
        sample.span = Some(*contexts.get(context as usize)?);
    }
    rest.is_empty().then_some(())
}

/// Decodes a list of at most `MAX_ELEMENTS` elements.
fn list<'a, T: Deserialize<'a>>(rest: &mut &'a [u8]) -> Option<Vec<T>> {
    let length: usize = value(rest)?;
    if length > MAX_ELEMENTS {
        return None;
    }
    (0..length).map(|_| value(rest)).collect()
}

fn value<'a, T: Deserialize<'a>>(rest: &mut &'a [u8]) -> Option<T> {
    let (value, others) = postcard::take_from_bytes(rest).ok()?;
    *rest = others;
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn samples(spans: &[Option<u8>]) -> Vec<Sample> {
        let span = |id: u8| SpanContext::new([id; 16], [7; 8]);
        let sample = |id: &Option<u8>| Sample {
            span: id.and_then(span),
            ..Sample::of(1, "main".into(), 1, Vec::new())
        };
        spans.iter().map(sample).collect()
    }

    fn encode(samples: Vec<Sample>) -> Vec<u8> {
        let (mut profile, mut bytes) = (Profile::default(), Vec::new());
        profile.samples = samples;
        write([&profile].into_iter(), &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn written_contexts_read_back_unchanged(
            spans in vec(proptest::option::of(0..9_u8), 0..40),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        ) {
            let all = samples(&spans);
            let bytes = encode(all.clone());
            prop_assert_eq!(bytes.is_empty(), all.iter().all(|sample| sample.span.is_none()));
            let mut read_back = samples(&vec![None; spans.len()]);
            read(read_back.iter_mut(), &bytes[..]).unwrap();
            prop_assert_eq!(&read_back, &all);
            // Damaged content causes no panic, and neither does a file with fewer samples.
            let mut plain = Vec::new();
            GzDecoder::new(&bytes[..]).read_to_end(&mut plain).ok();
            for (at, byte) in changes {
                if !plain.is_empty() {
                    let at = at.index(plain.len());
                    plain[at] = byte;
                }
            }
            let _ = decode(read_back.iter_mut(), &plain);
            prop_assert!(bytes.is_empty() || read([].iter_mut(), &bytes[..]).is_err());
        }
    }

    #[test]
    fn file_without_contexts_has_no_second_member() {
        assert!(encode(samples(&[None, Some(0)])).is_empty());
        let mut one = samples(&[None]);
        read(one.iter_mut(), &b""[..]).unwrap();
        assert_eq!(one[0].span, None);
        assert!(read(one.iter_mut(), &b"no gzip"[..]).is_err());
    }
}
