//! The stack of a thread, and the innermost Java frame of a thread that has left Java code.
//!
//! Sources: hotspot/share/runtime/javaFrameAnchor.hpp, cpu/x86/javaFrameAnchor_x86.hpp. A thread that leaves
//! Java code stores the registers of its innermost Java frame in its anchor. When it returns to Java code, it
//! sets the stack pointer in the anchor to null.

use std::ops::Range;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, pages::Pages, resolved::Layout},
    process::memory::Memory,
};

/// Registers of a Java frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JavaFrame {
    /// Address of the code that continues after the call.
    pub(crate) pc: Addr,
    /// Stack pointer.
    pub(crate) sp: Addr,
    /// Frame pointer; 0 if it is not stored.
    pub(crate) fp: Addr,
}

/// Returns the addresses of a thread's stack.
///
/// # Errors
/// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the thread has exited.
pub(in crate::hotspot) fn stack(
    memory: &Memory,
    layout: &Layout,
    thread: Addr,
) -> Result<Range<Addr>> {
    let field = |item| memory.u64(Addr(thread.0.wrapping_add(layout.get(item)?)));
    // The base is the highest address.
    let (base, size) = (field(Item::StackBase)?, field(Item::StackSize)?);
    Ok(Addr(base.saturating_sub(size))..Addr(base))
}

/// Returns the innermost Java frame of a thread; `None` if it runs Java code.
///
/// # Errors
/// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the thread has exited.
pub(in crate::hotspot) fn last_java_frame(
    pages: &mut Pages<'_>,
    layout: &Layout,
    thread: Addr,
) -> Result<Option<JavaFrame>> {
    let at = |addr: Addr, offset: u64| {
        addr.checked_add(offset).ok_or_else(|| Error::layout("an offset in a thread overflows"))
    };
    let anchor = at(thread, layout.get(Item::Anchor)?)?;
    let mut field = |item| pages.pointer(at(anchor, layout.get(item)?)?);
    let sp = field(Item::AnchorSp)?;
    if sp == Addr(0) {
        return Ok(None);
    }
    let fp = field(Item::AnchorFp)?;
    let pc = match field(Item::AnchorPc)? {
        // The anchor does not contain the pc. The call by which the thread left Java code has pushed it onto
        // the stack (`JavaFrameAnchor::capture_last_Java_pc`).
        Addr(0) => pages.pointer(Addr(sp.0.wrapping_sub(8)))?,
        pc => pc,
    };
    Ok(Some(JavaFrame { pc, sp, fp }))
}
