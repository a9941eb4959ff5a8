//! Histograms of durations, with classic and native buckets.
//!
//! The bounds of native buckets are powers of 2^(1/8): each bucket is 9 % wider than the one before, so any
//! quantile is known within 5 %. Their schema is 3, which OpenTelemetry calls the scale:
//! <https://prometheus.io/docs/specs/native_histograms/>. The classic buckets are for scrapers without native
//! histograms.

use std::collections::BTreeMap;

/// Upper bounds of the classic buckets, in seconds. An additional bucket contains longer durations.
pub const BOUNDS: [f64; 13] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Schema of native histograms: there are 2^SCHEMA buckets from one power of two to the next.
pub const SCHEMA: i32 = 3;

/// A histogram of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    sum_ns: u64,
    count: u64,
    zeros: u64,
    classic: [u64; BOUNDS.len() + 1],
    native: BTreeMap<i32, u64>,
}

impl Histogram {
    /// Counts a duration `times` times.
    pub fn observe(&mut self, ns: u64, times: u64) {
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(times));
        self.count += times;
        let seconds = seconds(ns);
        let slot = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        self.classic[slot] += times;
        match ns {
            0 => self.zeros += times,
            _ => *self.native.entry(index(seconds)).or_default() += times,
        }
    }

    /// Returns the sum of all durations, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of durations of zero.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Returns the counts of the classic buckets; the last one has no bound.
    pub fn classic(&self) -> &[u64] {
        &self.classic
    }

    /// Returns the counts of the native buckets by index. Bucket `i` contains durations of more than
    /// 2^((i-1)/8) and at most 2^(i/8) seconds. So the index of durations up to 1 second is negative or zero.
    pub fn native(&self) -> &BTreeMap<i32, u64> {
        &self.native
    }

    /// Returns the native buckets in Prometheus's encoding. The first list contains runs of buckets, each as
    /// (gap to the previous run, length); the gap of the first run is its index. The second list contains,
    /// for each bucket, the difference between its count and that of the previous bucket.
    pub fn spans(&self) -> (Vec<(i32, u32)>, Vec<i64>) {
        let (mut spans, mut deltas) = (Vec::<(i32, u32)>::new(), Vec::new());
        let (mut next, mut before) = (0, 0);
        for (&index, &count) in &self.native {
            match spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                _ => spans.push((index - next, 1)),
            }
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            deltas.push(count - before);
            (next, before) = (index + 1, count);
        }
        (spans, deltas)
    }
}

/// Converts nanoseconds to seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the index of the native bucket of a duration. The index of the longest duration, 2^64 ns, is far
/// within the range of `i32`.
fn index(seconds: f64) -> i32 {
    (seconds.log2() * f64::from(1 << SCHEMA)).ceil() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_lies_between_the_bounds_of_its_bucket() {
        for ns in [1, 999, 1_000_000, 123_456_789, 1_000_000_000, 1 << 40, u64::MAX] {
            let mut histogram = Histogram::default();
            histogram.observe(ns, 1);
            let (&index, &count) = histogram.native().first_key_value().unwrap();
            let end = |i: i32| (f64::from(i) / 8.0).exp2();
            assert!(count == 1 && seconds(ns) <= end(index) * (1.0 + 1e-12), "{ns}");
            assert!(seconds(ns) > end(index - 1) * (1.0 - 1e-12), "{ns}");
            let slot = histogram.classic().iter().position(|&count| count == 1).unwrap();
            assert!(slot == BOUNDS.len() || seconds(ns) <= BOUNDS[slot]);
            assert!(slot == 0 || seconds(ns) > BOUNDS[slot - 1]);
        }
    }

    #[test]
    fn spans_encode_gaps_and_count_deltas() {
        let native = [(-5, 2), (-4, 5), (-1, 1), (3, 4)].into();
        let histogram = Histogram { native, ..Histogram::default() };
        let (spans, deltas) = histogram.spans();
        assert_eq!(spans, [(-5, 2), (2, 1), (3, 1)]);
        assert_eq!(deltas, [2, 3, -4, 3]);
    }

    #[test]
    fn zero_durations_go_to_the_zero_bucket() {
        let mut histogram = Histogram::default();
        histogram.observe(0, 1);
        histogram.observe(7, 1);
        assert_eq!((histogram.zeros(), histogram.count(), histogram.sum_ns()), (1, 2, 7));
        assert_eq!((histogram.classic()[0], histogram.native().len()), (2, 1));
    }
}
