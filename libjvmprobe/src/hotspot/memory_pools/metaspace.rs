//! Sizes of metaspace and of the compressed class space.
//!
//! Sources: hotspot/share/memory/metaspace.hpp (JDK 8 to 15), memory/metaspace/{runningCounters,metaspaceContext,
//! virtualSpaceList}.hpp (since JDK 16). All numbers are in words. `Metaspace` contains the class space.
//!
//! | JDK | used | committed |
//! |---|---|---|
//! | 8 to 15 | `MetaspaceUtils::_used_words`, an array: class space, the rest | `VirtualSpaceList`, word 4 |
//! | 16 to 24 | `RunningCounters::_used_class_counter`, `_used_nonclass_counter` | `VirtualSpaceList`, word 6 |
//! | 25 on | `MetaspaceContext`, word 3 | `VirtualSpaceList`, word 6 |
//!
//! A `MetaspaceContext` refers to its `VirtualSpaceList` in word 1.

use super::Usage;
use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, loaded::at, pages::Pages, resolved::Layout},
};

/// Bytes of a word.
const WORD: u64 = 8;
/// Offsets in bytes.
const LIST_OF_CONTEXT: u64 = 8;
const USED_OF_CONTEXT: u64 = 24;
const COMMITTED_OF_LIST: u64 = 48;
const COMMITTED_OF_OLD_LIST: u64 = 32;
/// Plausibility limit for the number of words.
const MAX_WORDS: u64 = 1 << 44;

/// A part of metaspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The compressed class space.
    Classes,
    /// Everything else.
    Rest,
}

/// Reads the sizes of metaspace, including the compressed class space.
///
/// # Errors
/// The errors of [`part`].
pub(super) fn whole(pages: &mut Pages<'_>, layout: &Layout) -> Result<Usage> {
    let (classes, rest) = (part(pages, layout, Part::Classes)?, part(pages, layout, Part::Rest)?);
    Ok(Usage::new(classes.used + rest.used, classes.committed + rest.committed))
}

/// Reads the sizes of one part; zero if the JVM does not have it.
///
/// # Errors
/// [`Error::Layout`] if a symbol is missing or a size is implausible, [`Error::Memory`].
pub(super) fn part(pages: &mut Pages<'_>, layout: &Layout, part: Part) -> Result<Usage> {
    let select = |classes, rest| if part == Part::Classes { classes } else { rest };
    if let Some(used) = layout.try_address(Item::MetaspaceUsed) {
        let index = if part == Part::Classes { 0 } else { 1 };
        let used = pages.u64(at(used, index * WORD)?)?;
        let list =
            pages.pointer(layout.address(select(Item::ClassSpaces, Item::MetaspaceSpaces))?)?;
        return usage(used, committed(pages, list, COMMITTED_OF_OLD_LIST)?);
    }
    let context = select(Item::ClassSpaceContext, Item::MetaspaceContext);
    let context = pages.pointer(layout.address(context)?)?;
    if context == Addr(0) {
        return usage(0, 0);
    }
    let counter = select(Item::ClassSpaceUsedCount, Item::MetaspaceUsedCount);
    let used = match layout.try_address(counter) {
        Some(counter) => counter,
        None => at(context, USED_OF_CONTEXT)?,
    };
    let list = pages.pointer(at(context, LIST_OF_CONTEXT)?)?;
    usage(pages.u64(used)?, committed(pages, list, COMMITTED_OF_LIST)?)
}

fn committed(pages: &mut Pages<'_>, list: Addr, offset: u64) -> Result<u64> {
    if list == Addr(0) { Ok(0) } else { pages.u64(at(list, offset)?) }
}

fn usage(used: u64, committed: u64) -> Result<Usage> {
    if used > MAX_WORDS || committed > MAX_WORDS {
        return Err(Error::layout("unknown layout of metaspace"));
    }
    Ok(Usage::new(used * WORD, committed * WORD))
}
