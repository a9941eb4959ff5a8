//! Names of windows in the directory. A name contains everything that is needed to select a window by its
//! time.
//!
//! `15s-20261122T031200.123Z-15004ms` is an unmerged window that began at this time (UTC) and lasted this
//! number of milliseconds. If the clock was set back, there may be another window of the same time, which has
//! a number at the end: `15s-20261122T031200.123Z-15004ms-2`.

use std::fmt::{self, Display, Formatter};

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

/// Nanoseconds per millisecond.
pub const MILLISECOND: u64 = 1_000_000;
/// Nanoseconds per second.
pub const SECOND: u64 = 1000 * MILLISECOND;
/// Nanoseconds per minute.
pub const MINUTE: u64 = 60 * SECOND;
/// Nanoseconds per hour.
pub const HOUR: u64 = 60 * MINUTE;

/// Coarseness of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As recorded, by default 15 seconds long.
    Unmerged,
    /// Five minutes.
    Minutes,
    /// One hour.
    Hour,
}

impl Level {
    const ALL: [Self; 3] = [Self::Unmerged, Self::Minutes, Self::Hour];

    fn text(self) -> &'static str {
        match self {
            Self::Unmerged => "15s",
            Self::Minutes => "5m",
            Self::Hour => "1h",
        }
    }

    /// Returns the next coarser level, the length of its windows, and the length of their time slots, both in
    /// nanoseconds.
    pub fn coarser(self) -> Option<(Self, u64, u64)> {
        match self {
            Self::Unmerged => Some((Self::Minutes, 5 * MINUTE, 10 * SECOND)),
            Self::Minutes => Some((Self::Hour, HOUR, MINUTE)),
            Self::Hour => None,
        }
    }
}

/// Name of a window. Names are sorted by begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Begin, in milliseconds since 1970.
    begin_ms: u64,
    /// Length, in milliseconds.
    length_ms: u64,
    /// Level.
    pub level: Level,
    /// Number among the windows of the same begin, length and level, from 1 on.
    number: u32,
}

impl Name {
    /// Returns the name of a window from `begin_ns` to `end_ns`, both in nanoseconds since 1970. The begin is
    /// rounded down to milliseconds, the end up.
    pub fn new(level: Level, begin_ns: u64, end_ns: u64) -> Self {
        let begin_ms = begin_ns / MILLISECOND;
        let length_ms = end_ns.div_ceil(MILLISECOND).saturating_sub(begin_ms);
        Self { begin_ms, length_ms, level, number: 1 }
    }

    /// Returns the name of a further window of the same time.
    pub fn next(self) -> Self {
        Self { number: self.number.saturating_add(1), ..self }
    }

    /// Returns the begin, in nanoseconds since 1970.
    pub fn begin_ns(self) -> u64 {
        self.begin_ms.saturating_mul(MILLISECOND)
    }

    /// Returns the end, in nanoseconds since 1970.
    pub fn end_ns(self) -> u64 {
        self.begin_ms.saturating_add(self.length_ms).saturating_mul(MILLISECOND)
    }

    /// Parses a name; `None` if the text is not the name of a window.
    pub fn parse(text: &str) -> Option<Self> {
        let (level, rest) = text.split_once('-')?;
        let level = Level::ALL.into_iter().find(|known| known.text() == level)?;
        let (begin, length) = rest.split_once('-')?;
        let begin = DateTime::strptime("%Y%m%dT%H%M%S%.fZ", begin).ok()?;
        let begin = TimeZone::UTC.to_timestamp(begin).ok()?.as_millisecond();
        let (length, number) = match length.split_once('-') {
            Some((length, number)) => (length, number.parse().ok().filter(|&number| number > 1)?),
            None => (length, 1),
        };
        let (begin_ms, length_ms) =
            (u64::try_from(begin).ok()?, length.strip_suffix("ms")?.parse().ok()?);
        let name = Self { begin_ms, length_ms, level, number };
        // Only the canonical form is accepted, so that a window has one name.
        (name.to_string() == text).then_some(name)
    }
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let begin =
            i64::try_from(self.begin_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let begin = begin.unwrap_or(Timestamp::MAX).strftime("%Y%m%dT%H%M%S%.3fZ");
        write!(f, "{}-{begin}-{}ms", self.level.text(), self.length_ms)?;
        if self.number > 1 { write!(f, "-{}", self.number) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_encode_level_begin_and_length() {
        let begin = 1_763_781_120_123 * MILLISECOND;
        let name = Name::new(Level::Unmerged, begin + 5, begin + 15 * SECOND);
        assert_eq!(name.to_string(), "15s-20251122T031200.123Z-15000ms");
        assert_eq!((name.begin_ns(), name.end_ns()), (begin, begin + 15 * SECOND));
        let second = name.next();
        assert_eq!(second.to_string(), "15s-20251122T031200.123Z-15000ms-2");
        assert_eq!(Name::parse(&second.to_string()), Some(second));
        assert!(name < second && (second.begin_ns(), second.end_ns()) == (begin, name.end_ns()));
        for other in [
            "15s-20251122T031200.123Z-15000ms-1",
            "15s-20251122T031200.123Z-15000ms-02",
            "15s-20251122T031200.123Z-15000ms-99999999999",
            "lock",
            "version",
            ".new-1",
            "15s-x-15ms",
            "2h-20251122T031200.123Z-15000ms",
            "15s-20251122T031200.123Z-015000ms",
            "15s-20251122T031200Z-15000ms",
            "15s-19251122T031200.123Z-1ms",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn displayed_names_parse_back(begin in 0..4_000_000_000_000_u64, length in any::<u64>(), level in 0..3_usize, number in 1..u32::MAX) {
            let name = Name { begin_ms: begin, length_ms: length, level: Level::ALL[level], number };
            prop_assert_eq!(Name::parse(&name.to_string()), Some(name));
        }

        #[test]
        fn only_canonical_names_are_parsed(text in "[0-9smhZT.-]{0,40}") {
            if let Some(name) = Name::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
