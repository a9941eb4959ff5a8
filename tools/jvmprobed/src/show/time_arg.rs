//! Parses and formats times for people.

use std::{str::FromStr, time::Duration};

use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{DateTime, Time},
};

use crate::config::parse_age;

/// A time on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeArg {
    /// A duration before now: `10m`.
    Ago(Duration),
    /// The latest past occurrence of a time of day, today or yesterday: `03:12`, `03:12:30`.
    Daily(Time),
    /// A date and time in the local time zone: `2026-11-22T03:12`.
    Local(DateTime),
    /// An instant with a UTC offset: `2026-11-22T03:12:00Z`.
    At(Timestamp),
}

impl FromStr for TimeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "now" {
            return Ok(Self::Ago(Duration::ZERO));
        }
        if let Ok(ago) = parse_age(text) {
            return Ok(Self::Ago(ago));
        }
        if let Ok(at) = text.parse() {
            return Ok(Self::At(at));
        }
        // A time without a date is daily, and a date without a time means midnight.
        let has_date = text.contains('-');
        let local = text.parse().ok().filter(|_| has_date).map(Self::Local);
        let daily =
            || text.parse().ok().filter(|_| text.contains(':') && !has_date).map(Self::Daily);
        local.or_else(daily).ok_or_else(|| {
            "expected a time: 10m or 2h (ago), 03:12 (today or yesterday), 2026-11-22T03:12 (local), \
             or 2026-11-22T03:12:00Z"
                .into()
        })
    }
}

impl TimeArg {
    /// Returns the instant, in nanoseconds since 1970. `now` is the present time in the local time zone.
    pub fn resolve(self, now: &Zoned) -> u64 {
        let at = match self {
            Self::Ago(ago) => Some(now.timestamp() - ago),
            Self::Daily(time) => {
                let today = now.date().to_datetime(time).to_zoned(now.time_zone().clone()).ok();
                let yesterday = |today: &Zoned| today.checked_sub(1.day()).ok();
                let day = today.and_then(|t| if t > *now { yesterday(&t) } else { Some(t) });
                day.map(|day| day.timestamp())
            }
            Self::Local(at) => at.to_zoned(now.time_zone().clone()).ok().map(|at| at.timestamp()),
            Self::At(at) => Some(at),
        };
        at.and_then(|at| u64::try_from(at.as_nanosecond()).ok()).unwrap_or(0)
    }
}

/// Formats an instant, given in nanoseconds since 1970, in the local time zone.
pub fn format_time(ns: u64, format: &str) -> String {
    let at = Timestamp::from_nanosecond(ns.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    at.to_zoned(jiff::tz::TimeZone::system()).strftime(format).to_string()
}

/// Formats a period, given in nanoseconds since 1970. Dates are left out if the period begins and ends today.
pub fn span(from_ns: u64, until_ns: u64) -> String {
    let day = |ns| format_time(ns, "%Y-%m-%d");
    let time = |ns| format_time(ns, "%H:%M:%S");
    let today = Zoned::now().strftime("%Y-%m-%d").to_string();
    match (day(from_ns), day(until_ns)) {
        (from, until) if from == until && from == today => {
            format!("{} to {}", time(from_ns), time(until_ns))
        }
        (from, until) if from == until => format!("{from} {} to {}", time(from_ns), time(until_ns)),
        (from, until) => format!("{from} {} to {until} {}", time(from_ns), time(until_ns)),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    #[test]
    fn absolute_and_relative_times_are_parsed() {
        let now: Zoned = "2026-11-22T10:00:00+01:00[Europe/Berlin]".parse().unwrap();
        let at = |text: &str| {
            let ns = TimeArg::from_str(text).unwrap().resolve(&now);
            let at = Timestamp::from_nanosecond(ns.into()).unwrap().to_zoned(TimeZone::UTC);
            at.strftime("%d %H:%M:%S").to_string()
        };
        for (text, expected) in [
            ("now", "22 09:00:00"),
            ("10m", "22 08:50:00"),
            ("2h", "22 07:00:00"),
            ("7d", "15 09:00:00"),
            ("03:12", "22 02:12:00"),
            ("03:12:30", "22 02:12:30"),
            // This time of today is still to come, so it means yesterday.
            ("23:50", "21 22:50:00"),
            ("2026-11-21T03:12", "21 02:12:00"),
            ("2026-11-21 03:12", "21 02:12:00"),
            ("2026-11-21", "20 23:00:00"),
            ("2026-11-22T03:12:00Z", "22 03:12:00"),
            ("2026-11-22T03:12:00.5+01:00", "22 02:12:00"),
        ] {
            assert_eq!(at(text), expected, "{text}");
        }
        for bad in ["", "10", "m", "25:00", "3pm", "yesterday", "2026-13-01"] {
            assert!(TimeArg::from_str(bad).is_err(), "{bad}");
        }
    }
}
