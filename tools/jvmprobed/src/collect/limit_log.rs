//! Log lines about tenants that exceed their share.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use libjvmprobe::sys::limited::Counts;

/// Minimum time between two lines about the same reason and tenant.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Maximum number of pairs of reason and tenant with a line in one interval.
const MAX_PAIRS: usize = 1000;

/// Pairs of reason and tenant with a line lately, and the time of the last one.
#[derive(Debug, Default)]
pub struct LimitLog(HashMap<(&'static str, Arc<str>), Instant>);

impl LimitLog {
    /// Logs each tenant and reason that had no line within the last hour.
    pub fn log(&mut self, counts: &Counts) {
        for line in self.lines(counts, Instant::now()) {
            log::warn!("{line}");
        }
    }

    fn lines(&mut self, counts: &Counts, now: Instant) -> Vec<String> {
        self.0.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        let mut lines = Vec::new();
        for (pair, count) in counts {
            if self.0.len() < MAX_PAIRS && !self.0.contains_key(pair) {
                self.0.insert(pair.clone(), now);
                let (reason, tenant) = pair;
                lines.push(format!(
                    "tenant {tenant} has lost {count} {reason} to a limit; see jvmprobed_limited_total"
                ));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_a_tenant_is_logged_once_an_hour() {
        let (mut log, now) = (LimitLog::default(), Instant::now());
        let counts = Counts::from([(("symbols", "unit/x.service".into()), 12)]);
        let line =
            "tenant unit/x.service has lost 12 symbols to a limit; see jvmprobed_limited_total";
        assert_eq!(log.lines(&counts, now), [line]);
        assert!(log.lines(&counts, now + INTERVAL / 2).is_empty());
        let other = Counts::from([(("stacks", "unit/x.service".into()), 1)]);
        assert_eq!(log.lines(&other, now).len(), 1);
        assert_eq!(log.lines(&counts, now + INTERVAL).len(), 1);
        let many = |number: usize| (("symbols", number.to_string().into()), 1);
        assert!(log.lines(&(0..5000).map(many).collect(), now).len() < MAX_PAIRS);
    }
}
