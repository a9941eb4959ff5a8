//! Numbers with units, rounded for people.

/// Formats nanoseconds as milliseconds with three decimals; the unit is in the column's heading.
pub fn millis(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// Formats a duration with a suitable unit.
pub fn span(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Formats bytes with the units of the JVM's log and flags: K, M and G are powers of 1024.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    for (unit, shift) in UNITS {
        if bytes >= 1 << shift {
            return format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes}B")
}

/// Formats a number of things: `1 time`, `2 times`.
pub fn count(n: u64, what: &str) -> String {
    let end = match (n, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{n} {what}{end}")
}

/// Formats a share in percent; a dash if the whole is 0.
pub fn percent(part: f64, whole: f64) -> String {
    if whole <= 0.0 { "-".into() } else { format!("{:.2} %", 100.0 * part / whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted_with_their_unit() {
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(1023), "1023B");
        assert_eq!(bytes(1536), "1.5K");
        assert_eq!(bytes(17 << 20), "17.0M");
        assert_eq!(bytes(u64::MAX), "16777216.0T");
        assert_eq!(span(999), "999 ns");
        assert_eq!(span(41_500), "41.5 us");
        assert_eq!(span(2_000_000_000), "2.00 s");
        assert_eq!(millis(9_870_123), "9.870");
        assert_eq!((count(1, "time"), count(0, "time")), ("1 time".into(), "0 times".into()));
        assert_eq!(percent(1.0, 0.0), "-");
        assert_eq!(percent(1.0, 8.0), "12.50 %");
    }
}
