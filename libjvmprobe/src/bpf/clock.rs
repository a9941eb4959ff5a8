//! Conversion from the kernel's clock to wall-clock time.
//!
//! BPF programs take timestamps with `bpf_ktime_get_ns()`, which reads `CLOCK_MONOTONIC`, as HotSpot's
//! `os::javaTimeNanos()` does.

use jiff::{Timestamp, tz::TimeZone};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the current time of `CLOCK_MONOTONIC` in nanoseconds.
pub fn monotonic_ns() -> u64 {
    u64::try_from(nanos(clock_gettime(ClockId::Monotonic))).unwrap_or(0)
}

/// Number of times that the two clocks are compared at most.
const COMPARISONS: usize = 8;
/// Duration of a comparison of the two clocks that is accurate enough, in nanoseconds.
const SHORT_NS: i128 = 500;

/// Returns the wall-clock time of a timestamp of `CLOCK_MONOTONIC`.
///
/// Each call compares the two clocks anew, so that setting or slewing the wall clock during a trace affects the times
/// that are converted afterwards.
pub(crate) fn wall_time(monotonic_ns: u64) -> Timestamp {
    Timestamp::from_nanosecond(offset() + i128::from(monotonic_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the difference between the wall clock and `CLOCK_MONOTONIC`, in nanoseconds.
///
/// This thread may lose its processor between two readings. Therefore the monotonic clock is read before and after the
/// wall clock, and the shortest of several comparisons counts.
fn offset() -> i128 {
    let mut best = (i128::MAX, 0);
    for _ in 0..COMPARISONS {
        let [before, wall, after] = [ClockId::Monotonic, ClockId::Realtime, ClockId::Monotonic]
            .map(|clock| nanos(clock_gettime(clock)));
        best = best.min((after - before, wall - (before + after) / 2));
        if best.0 <= SHORT_NS {
            break;
        }
    }
    best.1
}

/// Converts a timestamp to nanoseconds since 1970.
pub fn unix_ns(monotonic_ns: u64) -> u64 {
    u64::try_from(wall_time(monotonic_ns).as_nanosecond()).unwrap_or(0)
}

/// Formats a timestamp as RFC 3339, in UTC with nanoseconds.
pub fn rfc3339(monotonic_ns: u64) -> String {
    format!("{:.9}", wall_time(monotonic_ns))
}

/// Formats a timestamp as local time of day, with milliseconds.
pub(crate) fn time_of_day(monotonic_ns: u64) -> String {
    local(monotonic_ns, "%H:%M:%S%.3f")
}

/// Formats a timestamp as local date and time of day, with milliseconds and UTC offset.
pub(crate) fn date_and_time(monotonic_ns: u64) -> String {
    local(monotonic_ns, "%Y-%m-%dT%H:%M:%S%.3f%:z")
}

fn local(monotonic_ns: u64, format: &str) -> String {
    wall_time(monotonic_ns).to_zoned(TimeZone::system()).strftime(format).to_string()
}

fn nanos(time: Timespec) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_monotonic_time_matches_the_wall_clock() {
        let wall = wall_time(monotonic_ns());
        let apart = Timestamp::now().duration_since(wall).abs();
        assert!(apart < jiff::SignedDuration::from_secs(1), "{apart:?}");
    }

    #[test]
    fn formats_have_fixed_widths() {
        let now = monotonic_ns();
        assert_eq!(rfc3339(now).len(), "2026-01-01T00:00:00.000000000Z".len());
        assert_eq!(time_of_day(now).len(), "00:00:00.000".len());
        assert_eq!(date_and_time(now).len(), "2026-01-01T00:00:00.000+00:00".len());
    }
}
