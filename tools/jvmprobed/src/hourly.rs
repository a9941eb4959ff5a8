//! Limit on new things for each tenant and hour: new series, and new sets of labels.
//!
//! Systems that receive metrics and profiles keep a series for each combination of labels, for weeks. So a tenant may cause
//! only so many new ones: [`BURST`] at once, and [`PER_HOUR`] in each hour after that.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Number of new things that a tenant may cause at once. More JVMs have no metrics of their own, so the JVMs that run when
/// the daemon starts do not exceed this limit.
pub const BURST: f64 = 500.0;
/// Number of new things that a tenant may cause in each hour after the burst.
pub const PER_HOUR: f64 = 60.0;
/// Maximum number of tenants whose new things are counted separately. Others share one account.
const MAX_TENANTS: usize = 4096;

/// Accounts of all tenants. A tenant without an account has caused nothing new lately.
#[derive(Debug, Default)]
pub struct Hourly(HashMap<Arc<str>, Account>);

#[derive(Clone, Copy, Debug)]
struct Account {
    left: f64,
    at: Instant,
}

impl Account {
    fn left(self, now: Instant) -> f64 {
        let hours = now.saturating_duration_since(self.at).as_secs_f64() / 3600.0;
        (self.left + hours * PER_HOUR).min(BURST)
    }
}

impl Hourly {
    /// Returns how many new things a tenant may cause now.
    pub fn left(&self, tenant: &Arc<str>, now: Instant) -> f64 {
        match self.0.get(tenant) {
            Some(account) => account.left(now),
            None if self.0.len() >= MAX_TENANTS => {
                self.0.get(OTHERS).map_or(BURST, |account| account.left(now))
            }
            None => BURST,
        }
    }

    /// Counts one new thing. Returns whether the tenant may cause it.
    pub fn take(&mut self, tenant: &Arc<str>, now: Instant) -> bool {
        if self.0.len() >= MAX_TENANTS && !self.0.contains_key(tenant) {
            self.0.retain(|_, account| account.left(now) < BURST);
        }
        let left = self.left(tenant, now);
        let is_left = left >= 1.0;
        if is_left {
            let is_separate = self.0.len() < MAX_TENANTS || self.0.contains_key(tenant);
            let tenant = if is_separate { Arc::clone(tenant) } else { OTHERS.into() };
            self.0.insert(tenant, Account { left: left - 1.0, at: now });
        }
        is_left
    }
}

/// Account of tenants beyond [`MAX_TENANTS`].
const OTHERS: &str = "other";

/// Time after which a tenant without a new thing has its whole burst again.
pub const REFILL: Duration = Duration::from_secs((BURST / PER_HOUR * 3600.0) as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_followed_by_a_number_for_each_hour() {
        let (mut hourly, begin) = (Hourly::default(), Instant::now());
        let mut taken = |tenant: &str, now| {
            (0..2000).filter(|_| hourly.take(&tenant.into(), now)).count() as f64
        };
        assert_eq!(taken("a", begin), BURST);
        assert_eq!(taken("a", begin + Duration::from_secs(3600)), PER_HOUR);
        assert_eq!(taken("b", begin), BURST);
        assert_eq!(taken("a", begin + Duration::from_secs(3600) + 2 * REFILL), BURST);
    }

    #[test]
    fn number_of_accounts_is_bounded() {
        let (mut hourly, now) = (Hourly::default(), Instant::now());
        let granted =
            (0..2 * MAX_TENANTS).filter(|tenant| hourly.take(&tenant.to_string().into(), now));
        assert_eq!(granted.count(), MAX_TENANTS + BURST as usize);
        assert_eq!(hourly.0.len(), MAX_TENANTS + 1);
        // An account that is full again makes space for another one.
        assert!(hourly.take(&"late".into(), now + REFILL));
        assert_eq!(hourly.0.len(), 1);
    }
}
