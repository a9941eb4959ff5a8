//! Data that the stack walker needs about a JVM: the address ranges of its code, and the offsets in a
//! CodeBlob that give the size of its frames.
//!
//! Sources: hotspot/share/code/{codeBlob,nmethod}.hpp, memory/heap.hpp,
//! interpreter/abstractInterpreter.hpp, code/stubs.hpp (StubQueue), oops/method.hpp,
//! cpu/x86/frame_x86.hpp, cpu/aarch64/frame_aarch64.hpp, runtime/continuationEntry.hpp; fields as vmStructs exports them.

use crate::{
    Addr, Error, Result,
    hotspot::{
        HotSpot,
        code::heap::{Heap, heaps},
        layout::Item,
        pages::Pages,
        resolved::Layout,
    },
    process::memory::Memory,
    sys::warn_once,
};

/// Maximum number of code heaps in the walker: `MAX_CODE_HEAPS` of bpf/walk/walk.h.
pub(crate) const MAX_CODE_HEAPS: usize = 4;
/// Maximum number of bytes that the walker reads of a blob: `MAX_BLOB_BYTES` of bpf/walk/state.bpf.h.
pub(crate) const MAX_BLOB_BYTES: u32 = 512;

/// `struct code_heap` of bpf/walk/walk.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CodeHeap {
    pub low: u64,
    pub high: u64,
    pub segmap: u64,
    pub segment_log: u64,
}

/// `struct jvm` of bpf/walk/walk.h, which documents each member.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct JvmLayout {
    pub heaps: [CodeHeap; MAX_CODE_HEAPS],
    pub interpreter_low: u64,
    pub interpreter_high: u64,
    pub nmethod_name: u64,
    pub return_barrier: u64,
    pub cont_return_pc_at: u64,
    pub unloads_at: u64,
    pub stamp: u64,
    pub heap_count: u32,
    pub block_header: u32,
    pub blob_bytes: u32,
    pub blob_form: u32,
    pub name: u32,
    pub code_begin: u32,
    pub data_offset: u32,
    pub frame_size: u32,
    pub frame_complete: u32,
    pub verified_entry: u32,
    pub osr_entry: u32,
    pub deopt_handler: u32,
    pub deopt_mh_handler: u32,
    pub orig_pc_offset: u32,
    pub const_method: u32,
    pub const_method_size: u32,
    pub bcp_slot: u32,
    pub compile_id: u32,
}

/// Number of words below the frame pointer at which an interpreted frame holds its bytecode pointer:
/// `interpreter_frame_bcp_offset`. Since JDK 9 the frame holds the class's mirror, too.
const BCP_SLOT: u32 = 8;
const BCP_SLOT_JDK_8: u32 = 7;

/// `enum blob_form` of bpf/walk/walk.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlobForm {
    Addresses = 0,
    Offsets = 1,
    Jdk8 = 2,
}

impl BlobForm {
    fn of(layout: &Layout) -> Self {
        match layout.has(Item::BlobCodeBegin) {
            _ if layout.is_jdk_8() => Self::Jdk8,
            true => Self::Addresses,
            false => Self::Offsets,
        }
    }
}

impl HotSpot {
    /// Returns the data for walking its stacks.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field; [`Error::Memory`] if the JVM has exited.
    pub fn walking(&self) -> Result<JvmLayout> {
        if self.version.contains(" Zero VM ") {
            // The interpreter of the Zero VM, written in C++, keeps Java frames on a separate stack.
            let line = format!("process {}: Java methods have no names in stacks", self.pid);
            warn_once(&line, "frames of the Zero VM's interpreter are not supported");
        }
        let memory = &self.memory;
        let mut layout = layout(memory, &self.layout)?;
        layout.unloads_at = self.class_counts.unloads().map_or(0, |addr| addr.0);
        let barrier = self.layout.try_address(Item::ReturnBarrier);
        if let Some((barrier, return_pc)) =
            barrier.zip(self.layout.try_address(Item::ContinuationReturn))
        {
            // The address is 0 until the JVM has generated the barrier, and in JVMs without virtual
            // threads.
            layout.return_barrier = memory.u64(barrier).unwrap_or(0);
            layout.cont_return_pc_at = return_pc.0;
        }
        Ok(layout)
    }
}

/// Reads the data that vmStructs provides.
pub(super) fn layout(memory: &Memory, layout: &Layout) -> Result<JvmLayout> {
    let mut walker_layout = fields(layout)?;
    let found = heaps(&mut Pages::new(memory), layout)?;
    if found.len() > MAX_CODE_HEAPS {
        return Err(Error::layout(format!("too many code heaps: {}", found.len())));
    }
    for (heap, place) in found.iter().zip(&mut walker_layout.heaps) {
        *place = code_heap(heap)?;
    }
    walker_layout.heap_count = found.len() as u32;
    (walker_layout.interpreter_low, walker_layout.interpreter_high) = interpreter(memory, layout)?;
    walker_layout.bcp_slot = if layout.is_jdk_8() { BCP_SLOT_JDK_8 } else { BCP_SLOT };
    Ok(walker_layout)
}

/// Reads the offsets.
fn fields(layout: &Layout) -> Result<JvmLayout> {
    let field = |item| {
        let offset = layout.get(item)?;
        u32::try_from(offset)
            .ok()
            .filter(|&n| n < MAX_BLOB_BYTES - 8)
            .ok_or_else(|| Error::layout(format!("implausible offset {offset} of {item:?}")))
    };
    let form = BlobForm::of(layout);
    let (begin, entry, deopt, deopt_mh) = match form {
        BlobForm::Offsets => (
            field(Item::BlobCodeOffset)?,
            field(Item::VerifiedEntryOffset)?,
            field(Item::DeoptOffset)?,
            field(Item::DeoptMhOffset).ok(),
        ),
        BlobForm::Addresses => (
            field(Item::BlobCodeBegin)?,
            field(Item::VerifiedEntry)?,
            field(Item::DeoptBegin)?,
            field(Item::DeoptMhBegin).ok(),
        ),
        BlobForm::Jdk8 => (
            field(Item::BlobCodeOffset8)?,
            field(Item::VerifiedEntry)?,
            field(Item::DeoptOffset8)?,
            field(Item::DeoptMhOffset8).ok(),
        ),
    };
    let mut walker_layout = JvmLayout {
        block_header: field(Item::BlockSize)?,
        blob_form: form as u32,
        name: field(Item::BlobName)?,
        code_begin: begin,
        data_offset: field(Item::BlobData)?,
        frame_size: field(Item::BlobFrameSize)?,
        frame_complete: field(Item::BlobFrameComplete)?,
        verified_entry: entry,
        osr_entry: field(Item::OsrEntry)?,
        deopt_handler: deopt,
        deopt_mh_handler: deopt_mh.unwrap_or(deopt),
        orig_pc_offset: field(Item::OrigPcOffset)?,
        compile_id: field(Item::CompileId)?,
        const_method: field(Item::ConstMethodOf)?,
        const_method_size: field(Item::ConstMethodSize)?,
        ..Default::default()
    };
    let last = [
        walker_layout.name,
        walker_layout.code_begin,
        walker_layout.data_offset,
        walker_layout.frame_size,
        walker_layout.frame_complete,
        walker_layout.verified_entry,
        walker_layout.osr_entry,
        walker_layout.deopt_handler,
        walker_layout.deopt_mh_handler,
        walker_layout.orig_pc_offset,
        walker_layout.compile_id,
    ];
    walker_layout.blob_bytes = last.into_iter().max().unwrap_or(0) + 8;
    Ok(walker_layout)
}

/// Converts a heap for the walker. The walker's range is the complete reserved range, because the heap may
/// grow.
fn code_heap(heap: &Heap) -> Result<CodeHeap> {
    let (low, high) = (heap.reserved_low.0, heap.reserved_high.0);
    if low >= high {
        return Err(Error::layout("the code cache is not set up yet"));
    }
    Ok(CodeHeap { low, high, segmap: heap.segmap.0, segment_log: heap.segment_log.into() })
}

/// Returns the address range of the interpreter's code: a StubQueue's buffer.
fn interpreter(memory: &Memory, layout: &Layout) -> Result<(u64, u64)> {
    let queue = memory.pointer(layout.address(Item::Interpreter)?)?;
    if queue == Addr(0) {
        return Err(Error::layout("the interpreter is not set up yet"));
    }
    let field = |item| {
        let offset = layout.get(item)?;
        queue
            .checked_add(offset)
            .ok_or_else(|| Error::layout("implausible address of the interpreter's StubQueue"))
    };
    let low = memory.u64(field(Item::StubBuffer)?)?;
    let length = memory.u32(field(Item::StubLimit)?)?;
    Ok((low, low.saturating_add(length.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    #[test]
    fn offsets_beyond_the_bytes_that_the_walker_reads_are_rejected() {
        let limit = u64::from(MAX_BLOB_BYTES) - 8;
        for (offset, expected) in [(limit - 1, "this JVM has no"), (limit, "implausible")] {
            let mut image = Image::new();
            image.field("CodeBlob", "_code_begin", offset);
            image.finish();
            let error = layout(&own_memory(), &image.read().unwrap()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
