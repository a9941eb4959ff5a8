//! Durations, in classic and in native buckets.
//!
//! A native histogram's buckets are powers of 2^(1/8): each is 9 % wider than the one before, so
//! that any quantile is known within 5 %. Its schema is 3, in OpenTelemetry's words its scale:
//! <https://prometheus.io/docs/specs/native_histograms/>. The classic buckets are for scrapers
//! that know no others.

use std::collections::BTreeMap;

/// The upper bounds of the classic buckets, in seconds. One more takes what is longer.
pub const BOUNDS: [f64; 13] =
    [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Buckets between a power of two and the next, as a power of two.
pub const SCHEMA: i32 = 3;

/// How many durations there were of which length.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    sum_ns: u64,
    count: u64,
    zeros: u64,
    classic: [u64; BOUNDS.len() + 1],
    native: BTreeMap<i32, u64>,
}

impl Histogram {
    /// Counts a duration, a number of times.
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

    /// All durations together, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many were no time at all.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// How many were in each of the classic buckets; the last one has no bound.
    pub fn classic(&self) -> &[u64] {
        &self.classic
    }

    /// How many were in which native bucket, counting from one that may be below 1 second: bucket
    /// `i` ends with 2^(i/8) seconds, included, and begins with the end of the one before.
    pub fn native(&self) -> &BTreeMap<i32, u64> {
        &self.native
    }

    /// The native buckets as Prometheus writes them: runs of buckets (the gap to the run before,
    /// the length), and of each bucket by how much it differs from the one before.
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

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The bucket that a duration belongs to. 2^64 ns are far from what does not fit.
fn index(seconds: f64) -> i32 {
    (seconds.log2() * f64::from(1 << SCHEMA)).ceil() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_bucket_that_holds_it() {
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
    fn spans_say_gaps_and_differences() {
        let native = [(-5, 2), (-4, 5), (-1, 1), (3, 4)].into();
        let histogram = Histogram { native, ..Histogram::default() };
        let (spans, deltas) = histogram.spans();
        assert_eq!(spans, [(-5, 2), (2, 1), (3, 1)]);
        assert_eq!(deltas, [2, 3, -4, 3]);
    }

    #[test]
    fn no_time_at_all_is_counted_apart() {
        let mut histogram = Histogram::default();
        histogram.observe(0, 1);
        histogram.observe(7, 1);
        assert_eq!((histogram.zeros(), histogram.count(), histogram.sum_ns()), (1, 2, 7));
        assert_eq!((histogram.classic()[0], histogram.native().len()), (2, 1));
    }
}
