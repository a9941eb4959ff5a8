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
    names::clean::{self, CUT, MAX_PARAMETERS, MAX_PART},
};

/// A Symbol's length is 16 bits wide.
const MAX_SYMBOL: usize = 65_535;
/// Maximum number of bytes cached by one reader. Large programs have 100,000 methods, whose names use less than half of
/// this maximum.
const MAX_CACHED_BYTES: usize = 128 << 20;
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
    /// Whether long texts are cut, because they are only shown.
    cuts: bool,
}

impl Symbols {
    /// Creates a reader for names that are shown. Long names are cut.
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
            cuts: true,
        })
    }

    /// Returns this reader with a cache of at most `max` bytes.
    #[must_use]
    pub(super) fn limited_to(self, max: usize) -> Self {
        Self { free_bytes: max, max, ..self }
    }

    /// Creates a reader of complete names whose cache is emptied when it is full, for a caller that reads most names
    /// only once.
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub(super) fn resettable(layout: &Layout) -> Result<Self> {
        let reader = Self::new(layout)?.limited_to(MAX_RESETTABLE);
        Ok(Self { resets_when_full: true, cuts: false, ..reader })
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
        let length = usize::from(pages.u16(field(self.length)?)?);
        let max = if self.cuts { MAX_PARAMETERS } else { MAX_SYMBOL };
        let bytes = pages.bytes(field(self.body)?, length.min(max))?;
        let mut text = modified_utf8(&bytes);
        if self.cuts {
            text = shown(text, length > max);
        }
        let text: Arc<str> = text.into();
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

/// Limits a text for display: a descriptor to [`MAX_PARAMETERS`] bytes, a name to [`MAX_PART`]. `is_cut`: its end was not
/// read.
fn shown(mut text: String, is_cut: bool) -> String {
    if is_cut {
        // The last character may be incomplete.
        text.truncate(text.trim_end_matches('\u{fffd}').len());
        text.push(CUT);
    }
    let max = if text.starts_with('(') { MAX_PARAMETERS } else { MAX_PART };
    clean::cut(&text, max).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// Writes a Symbol, and returns its address.
    fn symbol(text: &[u8]) -> (Box<[u8]>, Addr) {
        let length = u16::try_from(text.len()).unwrap().to_ne_bytes();
        let bytes: Box<[u8]> = [&length[..], text].concat().into();
        let at = Addr(bytes.as_ptr().addr() as u64);
        (bytes, at)
    }

    #[test]
    fn long_names_are_cut_for_display_only() {
        let mut image = Image::new();
        for (field, offset) in [("_length", 0), ("_body", 2), ("_body[0]", 2)] {
            image.field("Symbol", field, offset);
        }
        image.finish();
        let (memory, layout) = (own_memory(), image.read().unwrap());
        let mut pages = Pages::scattered(&memory);
        let mut shown = Symbols::new(&layout).unwrap();
        let mut complete = Symbols::resettable(&layout).unwrap();
        for (text, max) in [
            ("n".repeat(MAX_SYMBOL), MAX_PART),
            ("n".repeat(MAX_PART + 1), MAX_PART),
            ("\u{540d}".repeat(MAX_SYMBOL / 3), MAX_PART),
            (format!("(L{};)V", "p".repeat(65_000)), MAX_PARAMETERS),
            (format!("(L{})V", "\u{540d}".repeat(20_000)), MAX_PARAMETERS),
        ] {
            let (_bytes, at) = symbol(text.as_bytes());
            let found = shown.get(&mut pages, at).unwrap();
            assert!(found.len() <= max && found.len() + 6 > max, "{}", found.len());
            let start = found.strip_suffix(CUT).unwrap();
            assert!(text.starts_with(start));
            assert_eq!(&*complete.get(&mut pages, at).unwrap(), text);
            shown.clear();
            complete.clear();
            pages.clear();
        }
        let (_bytes, at) = symbol(b"a/B$$Lambda");
        assert_eq!(&*shown.get(&mut pages, at).unwrap(), "a/B$$Lambda");
        assert!(shown.size() < 100);
    }
}
