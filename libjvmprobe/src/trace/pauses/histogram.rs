//! Power-of-two histograms, in the layout of bcc's tools.

use std::fmt;

const STARS: u64 = 40;

/// Counts by power of two.
#[derive(Clone, Debug)]
pub struct Log2Histogram {
    unit: &'static str,
    slots: [u64; 65],
}

impl Log2Histogram {
    /// Makes an empty histogram of values in `unit`, for example `usecs`.
    pub fn new(unit: &'static str) -> Self {
        Self { unit, slots: [0; 65] }
    }

    /// Counts a value: slot 0 holds 0 and 1, slot n holds 2^n to 2^(n+1) - 1.
    pub fn record(&mut self, value: u64) {
        self.slots[value.max(1).ilog2() as usize] += 1;
    }

    /// Returns for each slot its smallest value, its largest value and its count, up to the last slot with a count.
    pub fn slots(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let used = self.slots.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        self.slots.iter().take(used).enumerate().map(|(i, &count)| {
            let low = if i == 0 { 0 } else { 1u64 << i };
            let high = if i >= 63 { u64::MAX } else { (1u64 << (i + 1)) - 1 };
            (low, high, count)
        })
    }
}

impl fmt::Display for Log2Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.slots.iter().copied().max().unwrap_or(0).max(1);
        writeln!(f, "{:>16}{:14} : count    distribution", self.unit, "")?;
        for (low, high, count) in self.slots() {
            let stars = usize::try_from(count * STARS / most).unwrap_or(0);
            let bar = "*".repeat(stars);
            writeln!(f, "{low:>16} -> {high:<10} : {count:<8} |{bar:<40}|")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_powers_of_two() {
        let mut histogram = Log2Histogram::new("usecs");
        for value in [0, 1, 2, 3, 4, 1000, u64::MAX] {
            histogram.record(value);
        }
        let slots: Vec<_> = histogram.slots().filter(|s| s.2 > 0).collect();
        assert_eq!(
            slots,
            [(0, 1, 2), (2, 3, 2), (4, 7, 1), (512, 1023, 1), (1 << 63, u64::MAX, 1)]
        );
    }

    #[test]
    fn largest_slot_has_a_full_bar() {
        let mut histogram = Log2Histogram::new("usecs");
        (0..8).for_each(|_| histogram.record(5));
        histogram.record(1);
        let text = histogram.to_string();
        assert!(text.contains(&format!("|{}|", "*".repeat(40))), "{text}");
        assert!(text.contains("0 -> 1          : 1        |*****   "), "{text}");
    }
}
