//! Basic authentication (RFC 7617) with bcrypt hashes.
//!
//! bcrypt is slow on purpose, so wrong passwords must not keep a processor busy. One password is checked at a
//! time, within an [`Allowance`] of its own, so that it delays no client that was accepted. Nobody can tell a right password
//! from a wrong one before it was checked, so requests wait for their turn instead of being refused:
//!
//! - Each client address checks one password at a time, in the order of its requests. After [`MAX_FAILURES`] wrong ones,
//!   it checks one per `PER_FAILURE`.
//! - Of the addresses with wrong passwords, one at a time competes with those without.
//! - A request that has waited for `MAX_WAIT` is refused.
//!
//! The last `MAX_VERIFIED` verified credentials are remembered and never wait.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use tokio::{
    sync::Mutex as AsyncMutex,
    task::spawn_blocking,
    time::{sleep, timeout},
};

use crate::metrics::server::cost::Allowance;

/// Number of wrong passwords of an address that are checked without delay.
pub const MAX_FAILURES: f64 = 10.0;
/// Time after which an address may check one more wrong password.
const PER_FAILURE: Duration = Duration::from_secs(1);
/// Maximum time that a request waits until its password is checked.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Maximum number of addresses whose wrong passwords are counted.
const MAX_CLIENTS: usize = 1024;
/// CPU time for checking passwords: this share of one processor on average, and up to `BURST` at once.
const SHARE: f64 = 0.1;
const BURST: Duration = Duration::from_secs(2);
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
    /// The credentials were not checked in time, because there are too many wrong ones.
    TooMany,
}

/// Checks credentials.
#[derive(Debug)]
pub struct Verifier {
    salt: [u8; 32],
    verified: Mutex<VecDeque<[u8; 32]>>,
    clients: Mutex<HashMap<IpAddr, Arc<Client>>>,
    /// Held by the address that competes for those with wrong passwords.
    one_with_failures: AsyncMutex<()>,
    one_at_a_time: AsyncMutex<()>,
    allowance: Arc<Allowance>,
}

/// A client address.
#[derive(Debug)]
struct Client {
    /// Held by the request whose password is checked next. Waiting requests get it in their order.
    turn: AsyncMutex<()>,
    failures: Mutex<Failures>,
}

/// Wrong passwords of a client address.
#[derive(Clone, Copy, Debug)]
struct Failures {
    /// Number of further ones that are checked without delay.
    left: f64,
    at: Instant,
}

impl Failures {
    fn none(now: Instant) -> Self {
        Self { left: MAX_FAILURES, at: now }
    }

    fn left(self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + passed / PER_FAILURE.as_secs_f64()).min(MAX_FAILURES)
    }

    /// Returns the time until the next password may be checked.
    fn wait(self, now: Instant) -> Duration {
        PER_FAILURE.mul_f64((1.0 - self.left(now)).max(0.0))
    }

    fn add(&mut self, now: Instant) {
        *self = Self { left: self.left(now) - 1.0, at: now };
    }
}

impl Client {
    fn failures(&self) -> Failures {
        *self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
            clients: Mutex::default(),
            one_with_failures: AsyncMutex::new(()),
            one_at_a_time: AsyncMutex::new(()),
            allowance: Arc::new(Allowance::new(SHARE, BURST)),
        }
    }
}

impl Verifier {
    /// Checks the value of a client's `Authorization` header against bcrypt hashes by user name.
    pub async fn check(
        &self,
        users: &BTreeMap<String, String>,
        header: Option<&str>,
        client: IpAddr,
    ) -> Verdict {
        let Some((user, password)) = header.and_then(credentials) else { return Verdict::Wrong };
        let hash = users.get(&user);
        // An unknown user takes the same time as a known one, so that names cannot be found out.
        let Some(checked) = hash.or_else(|| users.values().next()) else { return Verdict::Wrong };
        let digest = self.digest(&user, &password, checked);
        if hash.is_some() && self.is_verified(&digest) {
            return Verdict::Right;
        }
        let client = self.client(client, Instant::now());
        let check = self.when_due(&client, || {
            let (checked, meter) = (checked.clone(), Arc::clone(&self.allowance));
            spawn_blocking(move || {
                let is_right = bcrypt::verify(password, &checked).unwrap_or(false);
                meter.charge_thread();
                is_right
            })
        });
        match timeout(MAX_WAIT, check).await {
            Ok(true) if hash.is_some() => {}
            Ok(_) => return Verdict::Wrong,
            Err(_) => return Verdict::TooMany,
        }
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if !verified.contains(&digest) {
            verified.push_front(digest);
        }
        verified.truncate(MAX_VERIFIED);
        Verdict::Right
    }

    /// Runs a check when it is the client's turn. Returns whether the password is right.
    async fn when_due<F>(&self, client: &Client, check: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Result<bool, tokio::task::JoinError>>,
    {
        let _turn = client.turn.lock().await;
        let failures = client.failures();
        let wait = failures.wait(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        let _competes = match failures.left(Instant::now()) < MAX_FAILURES {
            true => Some(self.one_with_failures.lock().await),
            false => None,
        };
        let _alone = self.one_at_a_time.lock().await;
        self.allowance.wait_for_others().await;
        let mut failures = client.failures();
        // Counted before the check, because the client may disconnect during the check.
        failures.add(Instant::now());
        let set = |failures| {
            *client.failures.lock().unwrap_or_else(PoisonError::into_inner) = failures;
        };
        set(failures);
        let is_right = check().await.unwrap_or(false);
        if is_right {
            set(Failures { left: failures.left + 1.0, ..failures });
        }
        is_right
    }

    /// Returns the client of an address. Networks of IPv6 have 64 bits, so an attacker has all addresses of a network.
    fn client(&self, address: IpAddr, now: Instant) -> Arc<Client> {
        let address = match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        };
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&address) {
            // A client without failures, or with requests that wait, is made again when it is needed.
            clients.retain(|_, client| client.failures().left(now) < MAX_FAILURES);
            let oldest = clients.iter().min_by_key(|(_, client)| client.failures().at);
            if let (MAX_CLIENTS.., Some((&oldest, _))) = (clients.len(), oldest) {
                clients.remove(&oldest);
            }
        }
        let make =
            || Client { turn: AsyncMutex::new(()), failures: Mutex::new(Failures::none(now)) };
        Arc::clone(clients.entry(address).or_insert_with(|| Arc::new(make())))
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

    #[test]
    fn wrong_passwords_are_counted_by_address_and_ipv6_network() {
        let (verifier, now) = (Verifier::default(), Instant::now());
        let client = |text: &str| verifier.client(text.parse().unwrap(), now);
        let is_same = |a: &str, b: &str| Arc::ptr_eq(&client(a), &client(b));
        assert!(is_same("10.0.0.1", "::ffff:10.0.0.1") && !is_same("10.0.0.1", "10.0.0.2"));
        assert!(
            is_same("2001:db8::1", "2001:db8::ffff:1") && !is_same("2001:db8::1", "2001:db9::1")
        );
        let mut failures = Failures::none(now);
        (0..10).for_each(|_| failures.add(now));
        assert_eq!((failures.wait(now), failures.left(now)), (PER_FAILURE, 0.0));
        assert_eq!(failures.wait(now + PER_FAILURE), Duration::ZERO);
        for number in 0..3 * MAX_CLIENTS as u32 {
            let address = std::net::Ipv4Addr::from_bits(number);
            let client = verifier.client(address.into(), now);
            client.failures.lock().unwrap().add(now);
        }
        assert_eq!(verifier.clients.lock().unwrap().len(), MAX_CLIENTS);
    }

    /// Passwords are checked one at a time. One client of another address and one of the same address come after
    /// the wrong passwords of an attacker.
    #[test]
    fn waiting_wrong_passwords_do_not_keep_a_right_one_from_its_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (verifier, order) = (Verifier::default(), Mutex::new(Vec::new()));
            let now = Instant::now();
            let [attacker, other] =
                ["10.0.0.1", "10.0.0.2"].map(|text| verifier.client(text.parse().unwrap(), now));
            attacker.failures.lock().unwrap().add(now);
            let check = async |client: &Client, name: &'static str, is_right: bool| {
                let done = verifier.when_due(client, || async {
                    sleep(Duration::from_millis(1)).await;
                    Ok(is_right)
                });
                assert_eq!(done.await, is_right);
                order.lock().unwrap().push(name);
            };
            tokio::join!(
                check(&attacker, "wrong", false),
                check(&attacker, "wrong", false),
                check(&attacker, "same address", true),
                check(&attacker, "wrong", false),
                check(&other, "other address", true),
            );
            let order = order.into_inner().unwrap();
            assert_eq!(order, ["wrong", "other address", "wrong", "same address", "wrong"]);
            assert_eq!(other.failures().left(now), MAX_FAILURES);
        });
    }
}
