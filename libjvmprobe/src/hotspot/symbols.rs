//! HotSpot's Symbols: unique names, each of which is stored once.
//!
//! Source: hotspot/share/oops/symbol.hpp. A Symbol has a 16-bit length and a body of that number of
//! bytes, in modified UTF-8 (JVMS 4.4.7). It does not change while a reference to it exists.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        classes::modified_utf8, hashing::NumberMap, layout::Item, pages::Pages, resolved::Layout,
    },
};

/// A Symbol's length is 16 bits wide.
const MAX_SYMBOL: usize = 65_535;
/// Maximum number of bytes cached by one reader. Large programs have 100,000 methods, whose names use a
/// tenth of this maximum.
pub(super) const MAX_CACHED_BYTES: usize = 512 << 20;
/// Maximum number of bytes cached by a reader that empties its cache when the cache is full.
const MAX_RESETTABLE: usize = 32 << 20;
/// Overhead of a cache entry in bytes.
pub(super) const ENTRY: usize = 64;

/// Cache of Symbols' texts.
#[derive(Debug)]
pub(super) struct Symbols {
    length: u64,
    body: u64,
    cached: NumberMap<Addr, Arc<str>>,
    /// Number of bytes that may still be cached.
    free_bytes: usize,
    /// Maximum number of bytes cached.
    max: usize,
    /// Whether the cache is emptied when it is full. If not, a full cache makes further reads fail.
    resets_when_full: bool,
}

impl Symbols {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        Ok(Self {
            length: layout.get(Item::SymbolLength)?,
            body: layout.get(Item::SymbolBody)?,
            cached: NumberMap::default(),
            free_bytes: MAX_CACHED_BYTES,
            max: MAX_CACHED_BYTES,
            resets_when_full: false,
        })
    }

    /// Creates a reader whose cache is emptied when it is full, for a caller that reads most names only
    /// once.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub(super) fn resettable(layout: &Layout) -> Result<Self> {
        let (free_bytes, max) = (MAX_RESETTABLE, MAX_RESETTABLE);
        Ok(Self { free_bytes, max, resets_when_full: true, ..Self::new(layout)? })
    }

    /// Returns the text of a Symbol.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no Symbol at the address, [`Error::Layout`] if the cache is full.
    pub(super) fn get(&mut self, pages: &mut Pages<'_>, symbol: Addr) -> Result<Arc<str>> {
        if let Some(cached) = self.cached.get(&symbol) {
            return Ok(Arc::clone(cached));
        }
        let field = |offset| {
            let at = symbol.checked_add(offset).filter(|_| symbol.0 != 0);
            at.ok_or_else(|| Error::layout("the pointer to a name is null"))
        };
        let length = usize::from(pages.u16(field(self.length)?)?).min(MAX_SYMBOL);
        let bytes = pages.bytes(field(self.body)?, length)?;
        let text: Arc<str> = modified_utf8(&bytes).into();
        self.reserve(text.len() + ENTRY)?;
        self.cached.insert(symbol, Arc::clone(&text));
        Ok(text)
    }

    /// Reserves cache space, also for data that the caller stores beside the Symbols.
    ///
    /// # Errors
    /// [`Error::Layout`] if there is not enough space left.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.resets_when_full && self.free_bytes < bytes {
            self.clear();
        }
        let free_bytes = self.free_bytes.checked_sub(bytes);
        self.free_bytes = free_bytes.ok_or_else(|| {
            Error::layout(format!("the names of classes and methods exceed {} MiB", self.max >> 20))
        })?;
        Ok(())
    }

    /// Returns the approximate number of bytes in use, including space reserved by [`Self::reserve`].
    pub(super) fn size(&self) -> usize {
        self.max - self.free_bytes
    }

    /// Clears the cache, because the Symbols may have been freed.
    pub(super) fn clear(&mut self) {
        self.cached.clear();
        self.free_bytes = self.max;
    }
}
