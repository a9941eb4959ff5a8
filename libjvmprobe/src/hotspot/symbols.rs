//! HotSpot's Symbols: names that it keeps once each.
//!
//! Source: hotspot/share/oops/symbol.hpp: a length of 16 bits and as many bytes of modified
//! UTF-8 (JVMS 4.4.7), unchanged as long as anybody refers to it.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        classes::modified_utf8, hashing::NumberMap, layout::Item, pages::Pages, resolved::Layout,
    },
};

/// A Symbol's length is 16 bits wide.
const MAX_SYMBOL: usize = 65_535;
/// All that are kept together, in bytes: those of 100,000 methods, as many as large programs
/// have, take a tenth.
pub(super) const MAX_KEPT: usize = 512 << 20;
/// Those of a reader that is emptied.
const MAX_PASSING: usize = 32 << 20;
/// What an entry takes besides.
pub(super) const ENTRY: usize = 64;

/// Reads Symbols; each once.
#[derive(Debug)]
pub(super) struct Symbols {
    length: u64,
    body: u64,
    known: NumberMap<Addr, Arc<str>>,
    /// How many more bytes may be kept.
    room: usize,
    /// How many at most; and whether to begin again then, or to give up.
    most: usize,
    begins_again: bool,
}

impl Symbols {
    /// A reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field that is missing.
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        Ok(Self {
            length: layout.get(Item::SymbolLength)?,
            body: layout.get(Item::SymbolBody)?,
            known: NumberMap::default(),
            room: MAX_KEPT,
            most: MAX_KEPT,
            begins_again: false,
        })
    }

    /// A reader for one who looks at each thing once: when it is full, it is emptied.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) fn passing(layout: &Layout) -> Result<Self> {
        let (room, most) = (MAX_PASSING, MAX_PASSING);
        Ok(Self { room, most, begins_again: true, ..Self::new(layout)? })
    }

    /// The text of one.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none, [`Error::Layout`] where there are too many.
    pub(super) fn get(&mut self, pages: &mut Pages<'_>, symbol: Addr) -> Result<Arc<str>> {
        if let Some(known) = self.known.get(&symbol) {
            return Ok(Arc::clone(known));
        }
        let field = |offset| {
            let at = symbol.checked_add(offset).filter(|_| symbol.0 != 0);
            at.ok_or_else(|| Error::layout("a null pointer in place of a name"))
        };
        let length = usize::from(pages.u16(field(self.length)?)?).min(MAX_SYMBOL);
        let bytes = pages.bytes(field(self.body)?, length)?;
        let text: Arc<str> = modified_utf8(&bytes).into();
        self.take(text.len() + ENTRY)?;
        self.known.insert(symbol, Arc::clone(&text));
        Ok(text)
    }

    /// Takes room for something that is kept beside them.
    ///
    /// # Errors
    /// [`Error::Layout`] where there is none left.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        if self.begins_again && self.room < bytes {
            self.forget();
        }
        let room = self.room.checked_sub(bytes);
        self.room = room.ok_or_else(|| Error::layout("too many names"))?;
        Ok(())
    }

    /// About how many bytes are kept, with what is kept beside.
    pub(super) fn size(&self) -> usize {
        self.most - self.room
    }

    /// Forgets what it has read: it may be gone.
    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.room = self.most;
    }
}
