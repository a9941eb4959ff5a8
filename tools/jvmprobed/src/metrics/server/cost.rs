//! CPU time spent serving HTTP, and its limit.
//!
//! Any client that reaches a port can make the daemon work. Each server therefore has an [`Allowance`] of CPU
//! time, and answers more slowly when the allowance is used up. This CPU time is counted separately
//! ([`serving_ns`]), because the daemon collects less if it exceeds `--max-cpu`, and a scraper must not be
//! able to cause this.
//! The CPU time of threads comes from CLOCK_THREAD_CPUTIME_ID, see clock_gettime(2).

use std::{
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

/// CPU time that this process has spent serving HTTP, in nanoseconds.
static SERVING_NS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// CPU time of this thread that has been added to `SERVING_NS`.
    static COUNTED_NS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the CPU time that this process has spent serving HTTP, in nanoseconds.
pub fn serving_ns() -> u64 {
    SERVING_NS.load(Ordering::Relaxed)
}

/// CPU time that one server may use: a share of one processor, on average.
#[derive(Debug)]
pub struct Allowance {
    share: f64,
    burst: Duration,
    account: Mutex<Account>,
}

#[derive(Debug)]
struct Account {
    /// CPU time that may be used now, in nanoseconds; negative if too much was used.
    left_ns: f64,
    at: Instant,
}

impl Allowance {
    /// Creates an allowance of `share` of one processor, of which at most `burst` is saved up.
    pub fn new(share: f64, burst: Duration) -> Self {
        let account = Account { left_ns: burst.as_nanos() as f64, at: Instant::now() };
        Self { share, burst, account: Mutex::new(account) }
    }

    /// Charges the CPU time that the calling thread has used since the last call.
    pub fn charge_thread(&self) {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        let now = Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32);
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let spent = now.saturating_sub(COUNTED_NS.replace(now));
        SERVING_NS.fetch_add(spent, Ordering::Relaxed);
        self.charge(spent);
    }

    fn charge(&self, ns: u64) {
        self.account.lock().unwrap_or_else(PoisonError::into_inner).left_ns -= ns as f64;
    }

    /// Charges the calling thread, and waits until the allowance is not overdrawn.
    pub async fn wait(&self) {
        self.charge_thread();
        self.wait_for_others().await;
    }

    /// Waits until the allowance is not overdrawn. The calling thread works for another allowance.
    pub async fn wait_for_others(&self) {
        while let Some(missing) = self.missing(Instant::now()) {
            sleep(missing).await;
        }
    }

    /// Returns the time until the account is no longer overdrawn; `None` if it is not overdrawn now.
    fn missing(&self, now: Instant) -> Option<Duration> {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.saturating_duration_since(account.at).as_nanos() as f64 * self.share;
        account.left_ns = (account.left_ns + earned).min(self.burst.as_nanos() as f64);
        account.at = now;
        (account.left_ns < 0.0)
            .then(|| Duration::from_nanos((-account.left_ns / self.share) as u64 + 1_000_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdrawn_allowance_recovers_at_its_share() {
        let allowance = Allowance::new(0.1, Duration::from_secs(1));
        let begin = Instant::now();
        assert_eq!(allowance.missing(begin), None);
        allowance.charge(1_500_000_000);
        let missing = allowance.missing(begin).unwrap();
        assert!((4.9..5.1).contains(&missing.as_secs_f64()), "{missing:?}");
        assert_eq!(allowance.missing(begin + Duration::from_millis(5100)), None);
        // At most the burst is saved up.
        assert_eq!(allowance.missing(begin + Duration::from_secs(3600)), None);
        allowance.charge(1_100_000_000);
        assert!(allowance.missing(begin + Duration::from_secs(3600)).is_some());
    }

    #[test]
    fn cpu_time_of_a_thread_is_counted_once() {
        let allowance = Allowance::new(0.1, Duration::from_secs(1));
        allowance.charge_thread();
        let (before, begin) = (serving_ns(), Instant::now());
        let mut sum = 0u64;
        while begin.elapsed() < Duration::from_millis(50) {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        allowance.charge_thread();
        assert!(serving_ns() > before, "{sum}");
    }
}
