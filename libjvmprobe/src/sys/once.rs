//! Warnings that are logged once, although many processes may cause them.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// Maximum number of reasons that are remembered.
const MAX_REASONS: usize = 10_000;

/// Logs a warning about a process with its reason. If the same reason applies to further processes, for
/// example because they run the same file, the messages about these processes are logged at the debug
/// level.
pub(crate) fn warn_once(line: &str, why: &str) {
    static REASONS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut reasons = REASONS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = !reasons.contains(why);
    if is_new && reasons.len() < MAX_REASONS {
        reasons.insert(why.to_owned());
    }
    drop(reasons);
    let level = if is_new { log::Level::Warn } else { log::Level::Debug };
    log::log!(level, "{line}: {why}");
}
