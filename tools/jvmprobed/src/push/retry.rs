//! Delays before another attempt.

use std::time::{Duration, SystemTime};

/// Delays between two attempts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Delay after the first failure.
    pub first: Duration,
    /// Maximum delay.
    pub longest: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(300) }
    }
}

/// Maximum delay that a target may ask for. A longer delay is shortened to this one.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Exponential backoff: counts failures in a row.
#[derive(Debug, Default)]
pub struct Backoff {
    limits: Limits,
    failures: u32,
}

impl Backoff {
    /// Starts without failures.
    pub fn new(limits: Limits) -> Self {
        Self { limits, failures: 0 }
    }

    /// Records a success, so that the next failure counts as the first.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Records a failure, and returns the time to wait. The delay doubles with each failure and is reduced by
    /// a random part of up to one half, so that the hosts of a fleet that has lost its receiver do not all
    /// come back at once. A delay that the target asks for is the minimum.
    pub fn wait(&mut self, requested: Option<Duration>) -> Duration {
        let doubled = self.limits.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        let most = doubled.min(self.limits.longest);
        let wait = most.mul_f64(0.5 + 0.5 * random());
        let requested = requested.unwrap_or_default().min(MAX_RETRY_AFTER);
        match requested > wait {
            // A random part is added here, too, so that not all hosts return at the time that the target names.
            true => requested + most.mul_f64(0.1 * random()),
            false => wait,
        }
    }
}

/// Parses a `Retry-After` header: seconds or a date (RFC 9110, 10.2.3).
pub fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Returns random bytes.
pub(super) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // getrandom(2) returns up to 256 bytes in one call.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    f64::from(u32::from_ne_bytes(random_bytes())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_a_limit() {
        let secs = Duration::from_secs;
        let mut backoff = Backoff::new(Limits { first: secs(1), longest: secs(60) });
        let mut most = secs(1);
        for _ in 0..100 {
            let wait = backoff.wait(None);
            assert!(wait >= most / 2 && wait <= most, "{wait:?} of {most:?}");
            most = (most * 2).min(secs(60));
        }
        backoff.reset();
        assert!(backoff.wait(None) <= secs(1));
    }

    #[test]
    fn backoff_follows_retry_after() {
        let mut backoff = Backoff::new(Limits::default());
        let wait = backoff.wait(retry_after("120"));
        assert!(wait >= Duration::from_secs(120) && wait < Duration::from_secs(121), "{wait:?}");
        let wait = backoff.wait(Some(Duration::MAX));
        assert!(wait < MAX_RETRY_AFTER * 2, "{wait:?}");
        let soon = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        let requested = retry_after(&soon).unwrap();
        assert!(requested > Duration::from_secs(90) && requested <= Duration::from_secs(100));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }
}
