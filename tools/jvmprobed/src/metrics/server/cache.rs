//! Cache of the exposition, which is written at most once a second in each format and compression.
//!
//! Neither the text formats nor the protocol buffers contain timestamps. A scraper adds timestamps from its
//! own clock. The values may be older than these timestamps, by up to [`FRESH`].

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper::body::Bytes;

use crate::metrics::{SharedTotals, encode::Exposition, server::gzip};

/// Maximum age of an exposition that is served again.
pub const FRESH: Duration = Duration::from_secs(1);

/// Cached expositions, each with the time at which it was written.
#[derive(Debug, Default)]
pub struct Cache {
    totals: SharedTotals,
    entries: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    exposition: Exposition,
    is_gzip: bool,
    at: Instant,
    bytes: Bytes,
}

impl Cache {
    /// Creates an empty cache.
    pub fn new(totals: SharedTotals) -> Arc<Self> {
        Arc::new(Self { totals, entries: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an exposition that was written within the last second, and whether this call has written it.
    ///
    /// # Errors
    /// The exposition cannot be written or compressed.
    pub fn get(&self, exposition: Exposition, is_gzip: bool) -> Result<(Bytes, bool), fmt::Error> {
        self.drop_old();
        let is_wanted = |entry: &&Entry| (entry.exposition, entry.is_gzip) == (exposition, is_gzip);
        if let Some(entry) = self.lock().iter().find(is_wanted) {
            return Ok((entry.bytes.clone(), false));
        }
        let (at, bytes) = match is_gzip {
            // Compression does not make the values newer, so the compressed exposition has the time of the
            // uncompressed one.
            true => {
                let (plain, _) = self.get(exposition, false)?;
                let entries = self.lock();
                let from = entries.iter().find(|e| e.exposition == exposition && !e.is_gzip);
                let at = from.map_or_else(Instant::now, |entry| entry.at);
                drop(entries);
                (at, Bytes::from(gzip(&plain).map_err(|_| fmt::Error)?))
            }
            false => (Instant::now(), Bytes::from(exposition.write(&self.totals)?)),
        };
        self.lock().push(Entry { exposition, is_gzip, at, bytes: bytes.clone() });
        Ok((bytes, true))
    }

    /// Frees expositions that are too old to be served again.
    pub fn drop_old(&self) {
        self.lock().retain(|entry| entry.at.elapsed() < FRESH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expositions_are_written_once_a_second_in_each_format() {
        let totals = SharedTotals::default();
        let cache = Cache::new(totals.clone());
        for _ in 0..20 {
            for exposition in [Exposition::OpenMetrics, Exposition::Text] {
                cache.get(exposition, false).unwrap();
                cache.get(exposition, true).unwrap();
            }
        }
        // There are two expositions, or four if a second passes during the loop.
        assert!((2..=4).contains(&totals.lock().expositions), "{}", totals.lock().expositions);
        cache.lock().iter_mut().for_each(|entry| entry.at -= FRESH);
        let before = totals.lock().expositions;
        cache.get(Exposition::Text, false).unwrap();
        assert_eq!(totals.lock().expositions, before + 1);
        assert_eq!(cache.lock().len(), 1);
    }
}
