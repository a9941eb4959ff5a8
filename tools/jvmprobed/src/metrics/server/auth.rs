//! Basic authentication (RFC 7617) with bcrypt hashes.
//!
//! bcrypt is slow on purpose, so wrong passwords must not keep a processor busy. One password is checked at a
//! time, and its CPU time is charged to the [`Allowance`] of the server. After a burst of [`MAX_FAILURES`]
//! wrong passwords, only one password in two seconds is checked, and others are refused. The last
//! `MAX_VERIFIED` verified credentials are remembered, so that a scraper that was accepted once is not
//! refused because of other clients.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex as AsyncMutex, task::spawn_blocking};

use crate::metrics::server::cost::Allowance;

/// Maximum number of wrong passwords that are checked in a burst.
pub const MAX_FAILURES: f64 = 10.0;
/// Time after which one more wrong password may be checked.
const PER_FAILURE: Duration = Duration::from_secs(2);
/// Maximum number of credentials that are remembered.
const MAX_VERIFIED: usize = 64;
/// Maximum length of user name, colon and password together, in bytes; bcrypt uses 72 bytes of the password.
const MAX_CREDENTIALS: usize = 1024;

/// Outcome of checking a request's credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The credentials are right.
    Right,
    /// The credentials are missing or wrong.
    Wrong,
    /// The credentials were not checked, because there were too many wrong ones.
    TooMany,
}

/// Checks credentials.
#[derive(Debug)]
pub struct Verifier {
    salt: [u8; 32],
    verified: Mutex<VecDeque<[u8; 32]>>,
    failures: Mutex<Failures>,
    one_at_a_time: AsyncMutex<()>,
}

#[derive(Debug)]
struct Failures {
    left: f64,
    at: Instant,
}

impl Default for Verifier {
    fn default() -> Self {
        let mut salt = [0; 32];
        // If this fails, the salt is zero. Then an attacker who can read this process's memory can guess the
        // credentials behind the digests more easily. Nothing else changes.
        let _ = getrandom(&mut salt[..], GetRandomFlags::empty());
        Self {
            salt,
            verified: Mutex::default(),
            failures: Mutex::new(Failures { left: MAX_FAILURES, at: Instant::now() }),
            one_at_a_time: AsyncMutex::new(()),
        }
    }
}

impl Verifier {
    /// Checks the value of an `Authorization` header against bcrypt hashes by user name.
    pub async fn check(
        &self,
        users: &BTreeMap<String, String>,
        header: Option<&str>,
        allowance: &Arc<Allowance>,
    ) -> Verdict {
        let Some((user, password)) = header.and_then(credentials) else { return Verdict::Wrong };
        let hash = users.get(&user);
        // An unknown user takes the same time as a known one, so that names cannot be found out.
        let Some(checked) = hash.or_else(|| users.values().next()) else { return Verdict::Wrong };
        let digest = self.digest(&user, &password, checked);
        if hash.is_some() && self.is_verified(&digest) {
            return Verdict::Right;
        }
        if !self.take_failure(Instant::now()) {
            return Verdict::TooMany;
        }
        let _alone = self.one_at_a_time.lock().await;
        allowance.wait().await;
        let (checked, meter) = (checked.clone(), Arc::clone(allowance));
        let check = spawn_blocking(move || {
            let is_right = bcrypt::verify(password, &checked).unwrap_or(false);
            meter.charge_thread();
            is_right
        });
        if !(check.await.unwrap_or(false) && hash.is_some()) {
            return Verdict::Wrong;
        }
        self.give_back_failure();
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if !verified.contains(&digest) {
            verified.push_front(digest);
        }
        verified.truncate(MAX_VERIFIED);
        Verdict::Right
    }

    /// Returns the digest of credentials and of the hash that they were checked against, so that remembered
    /// credentials become invalid when the hash changes.
    fn digest(&self, user: &str, password: &str, hash: &str) -> [u8; 32] {
        let mut digest = Sha256::new_with_prefix(self.salt);
        for part in [user, password, hash] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn is_verified(&self, digest: &[u8; 32]) -> bool {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).contains(digest)
    }

    fn take_failure(&self, now: Instant) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(failures.at).as_secs_f64();
        failures.at = now;
        failures.left = (failures.left + passed / PER_FAILURE.as_secs_f64()).min(MAX_FAILURES);
        let is_left = failures.left >= 1.0;
        failures.left -= if is_left { 1.0 } else { 0.0 };
        is_left
    }

    fn give_back_failure(&self) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).left += 1.0;
    }
}

/// Returns user name and password of an `Authorization` header.
fn credentials(header: &str) -> Option<(String, String)> {
    let (scheme, value) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") || value.len() > 2 * MAX_CREDENTIALS {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(value.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    (text.len() <= MAX_CREDENTIALS).then(|| (user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn invalid_basic_auth_headers_yield_no_credentials() {
        assert_eq!(credentials(&basic("a:b:c")), Some(("a".into(), "b:c".into())));
        let long = basic(&format!("a:{}", "x".repeat(5000)));
        for bad in ["", "Basic", "Bearer YTpi", "Basic ???", &basic("no colon"), &long] {
            assert_eq!(credentials(bad), None, "{bad}");
        }
    }

    #[test]
    fn changed_hash_invalidates_verified_credentials() {
        let verifier = Verifier::default();
        let digest = verifier.digest("alice", "right", "hash");
        verifier.verified.lock().unwrap().push_front(digest);
        assert!(verifier.is_verified(&verifier.digest("alice", "right", "hash")));
        assert!(!verifier.is_verified(&verifier.digest("alice", "right", "other")));
    }
}
