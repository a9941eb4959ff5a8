//! Frames in a `StackChunk`.
//!
//! Sources: hotspot/share/oops/stackChunkOop.inline.hpp, runtime/{stackChunkFrameStream.inline,continuationFreezeThaw}.
//! {hpp,cpp}, cpu/x86/{stackChunkFrameStream_x86,continuationFreezeThaw_x86}.inline.hpp; the same of aarch64.
//!
//! A chunk contains copies of frames that were on a stack. The fields `sp` and `bottom` of the chunk are the
//! index of their first word and the index after their last word. The word below each frame is the address at
//! which the frame continues, and the word below that address is the frame's frame pointer. The frame pointer
//! of an interpreted frame is stored as the distance from the word that contains it. Pointers into the stack
//! within an interpreted frame are stored as distances from the frame pointer. All distances are in words.
//! The size of a compiled frame is in its CodeBlob.

use crate::{
    Addr, Error, Result,
    hotspot::{
        code::{
            PartField,
            heap::{Blocks, Heap, heaps},
        },
        hashing::NumberMap,
        layout::Item,
        loaded::at,
        pages::Pages,
        processor::{BYTECODE, LOCALS},
        resolved::Layout,
    },
};

/// Maximum number of frames of a stack, like that of the walker.
pub(super) const MAX_FRAMES: usize = 1024;
/// Maximum number of cached code addresses, and of cached methods.
const MAX_CACHED: usize = 1 << 16;
/// Maximum size of a frame, in words.
const MAX_FRAME: u64 = 1 << 16;
/// Number of words below the stack pointer of a frame that belong to the frame: the address at which the
/// frame continues, and its frame pointer.
const METADATA: i64 = 2;
/// Words of an interpreted frame, relative to the frame pointer.
const SENDER_SP: i64 = -1;
const METHOD: i64 = -3;
/// Distance from the frame pointer of an interpreted frame to the stack pointer of its caller, in words.
const CALLER: i64 = 2;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChunkFrame {
    /// A frame of compiled or other generated code.
    Code {
        /// The address at which the frame continues.
        addr: Addr,
        /// Compile ID of a compiled method; 0 for other code.
        compile_id: u32,
    },
    /// An interpreted method.
    Interpreted {
        /// Address of its `Method`.
        method: Addr,
        /// Bytecode index, if known.
        bci: Option<u16>,
    },
}

/// Data of the CodeBlob that contains a code address.
#[derive(Clone, Copy, Debug)]
struct Code {
    frame_words: u64,
    compile_id: u32,
    /// Addresses at which frames of this code continue after they were deoptimized; 0 for a missing one.
    deopt: [u64; 2],
    /// Distance in bytes from the stack pointer of a deoptimized frame to the address at which the frame
    /// continued before.
    original_pc: u64,
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct Frames {
    heaps: Vec<Heap>,
    blocks: Blocks,
    interpreter: std::ops::Range<u64>,
    name: u64,
    frame_size: u64,
    compile_id: u64,
    original_pc: u64,
    /// The fields of an nmethod that refer to the code at which its deoptimized frames continue. The second one may not exist.
    handlers: [Option<PartField>; 2],
    const_method: u64,
    const_method_size: u64,
    code_size: u64,
    code: NumberMap<Addr, Code>,
    /// For each method, the address of its first bytecode and the size of its bytecodes in bytes.
    bytecodes: NumberMap<Addr, (u64, u16)>,
}

impl Frames {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`].
    pub(super) fn new(pages: &mut Pages<'_>, layout: &Layout) -> Result<Self> {
        let mut heaps = heaps(pages, layout)?;
        // A heap may grow while stacks are read, so its end is the end of the reserved memory.
        heaps.iter_mut().for_each(|heap| heap.high = heap.reserved_high);
        let optional = |item| layout.get(item).ok();
        let handlers = match optional(Item::DeoptOffset) {
            Some(field) => [Some(field), optional(Item::DeoptMhOffset)]
                .map(|field| field.map(PartField::Offset)),
            None => [Some(layout.get(Item::DeoptBegin)?), optional(Item::DeoptMhBegin)]
                .map(|field| field.map(PartField::Address)),
        };
        let queue = pages.pointer(layout.address(Item::Interpreter)?)?;
        let begin = pages.u64(at(queue, layout.get(Item::StubBuffer)?)?)?;
        let length = pages.u32(at(queue, layout.get(Item::StubLimit)?)?)?;
        Ok(Self {
            heaps,
            blocks: Blocks::read(layout)?,
            interpreter: begin..begin.saturating_add(length.into()),
            name: layout.get(Item::BlobName)?,
            frame_size: layout.get(Item::BlobFrameSize)?,
            compile_id: layout.get(Item::CompileId)?,
            original_pc: layout.get(Item::OrigPcOffset)?,
            handlers,
            const_method: layout.get(Item::ConstMethodOf)?,
            const_method_size: layout.get(Item::ConstMethodSize)?,
            code_size: layout.get(Item::CodeSize)?,
            code: NumberMap::default(),
            bytecodes: NumberMap::default(),
        })
    }

    /// Appends the frames of a chunk to `frames`, innermost first. `words` begins [`METADATA`] words below
    /// the stack pointer of the chunk and ends at the chunk's bottom. After an error, `frames` contains the
    /// frames inside of the one that caused the error.
    ///
    /// # Errors
    /// [`Error::Layout`] if a frame is implausible, [`Error::Memory`] if data of its code or method cannot be
    /// read.
    pub(super) fn walk(
        &mut self,
        pages: &mut Pages<'_>,
        words: &[u64],
        frames: &mut Vec<ChunkFrame>,
    ) -> Result<()> {
        let implausible = || Error::layout("implausible frame of a virtual thread");
        let word = |index: i64| -> Result<u64> {
            let word = usize::try_from(index).ok().and_then(|index| words.get(index));
            word.copied().ok_or_else(implausible)
        };
        // Adds a relative location to an index.
        let relative = |index: i64, offset: u64| {
            index.checked_add(offset.cast_signed()).ok_or_else(implausible)
        };
        let end = words.len() as i64;
        // The stack pointer of the frame, and the value that it had before an interpreted callee extended the
        // frame by the callee's local variables.
        let (mut sp, mut unextended) = (METADATA, METADATA);
        while sp < end && frames.len() < MAX_FRAMES {
            let pc = word(sp - 1)?;
            let next = if self.interpreter.contains(&pc) {
                let fp = relative(sp - METADATA, word(sp - METADATA)?)?;
                let method = Addr(word(relative(fp, METHOD.cast_unsigned())?)?);
                let bytecode = word(relative(fp, BYTECODE.cast_unsigned())?)?;
                let bci = self.bci(pages, method, bytecode)?;
                frames.push(ChunkFrame::Interpreted { method, bci });
                let locals = relative(fp, word(relative(fp, LOCALS.cast_unsigned())?)?)?;
                if locals >= end - 1 {
                    break;
                }
                unextended = relative(fp, word(relative(fp, SENDER_SP.cast_unsigned())?)?)?;
                relative(fp, CALLER.cast_unsigned())?
            } else {
                let code = self.code(pages, Addr(pc))?;
                let addr = match code.deopt.contains(&pc) {
                    true => word(relative(unextended, code.original_pc / 8)?)?,
                    false => pc,
                };
                frames.push(ChunkFrame::Code { addr: Addr(addr), compile_id: code.compile_id });
                let next = relative(unextended, code.frame_words)?;
                unextended = next;
                next
            };
            if next <= sp {
                return Err(implausible());
            }
            sp = next;
            if sp >= end - METADATA {
                break;
            }
        }
        Ok(())
    }

    fn code(&mut self, pages: &mut Pages<'_>, pc: Addr) -> Result<Code> {
        if let Some(code) = self.code.get(&pc) {
            return Ok(*code);
        }
        // A return address may lie behind the last instruction of its code.
        let inside = Addr(pc.0.saturating_sub(1));
        let block = self.blocks.find(pages, &self.heaps, inside)?;
        let blob = block.ok_or_else(|| Error::layout("a frame of a virtual thread continues at an address that is not in the code cache"))?.blob;
        let frame_words = u64::from(pages.u32(at(blob, self.frame_size)?)?);
        let name = pages.pointer(at(blob, self.name)?)?;
        let is_method = matches!(&*pages.name(name)?, "nmethod" | "native nmethod");
        let mut code = Code { frame_words, compile_id: 0, deopt: [0; 2], original_pc: 0 };
        if is_method {
            code.compile_id = pages.u32(at(blob, self.compile_id)?)?;
            code.original_pc = u64::from(pages.u32(at(blob, self.original_pc)?)?);
            for (deopt, handler) in code.deopt.iter_mut().zip(self.handlers) {
                *deopt = handler.map_or(Ok(Addr(0)), |field| field.read(pages, blob))?.0;
            }
        }
        if frame_words == 0 || frame_words > MAX_FRAME {
            return Err(Error::layout("implausible frame size of a virtual thread"));
        }
        if self.code.len() >= MAX_CACHED {
            self.code.clear();
        }
        self.code.insert(pc, code);
        Ok(code)
    }

    /// Returns the index of a bytecode in a method; `None` if the address is not that of a bytecode of the method.
    fn bci(&mut self, pages: &mut Pages<'_>, method: Addr, bytecode: u64) -> Result<Option<u16>> {
        let (begin, size) = match self.bytecodes.get(&method) {
            Some(cached) => *cached,
            None => {
                let const_method = pages.pointer(at(method, self.const_method)?)?;
                let size = pages.u16(at(const_method, self.code_size)?)?;
                let begin = at(const_method, self.const_method_size)?.0;
                if self.bytecodes.len() >= MAX_CACHED {
                    self.bytecodes.clear();
                }
                self.bytecodes.insert(method, (begin, size));
                (begin, size)
            }
        };
        let index = bytecode.checked_sub(begin).filter(|&index| index < size.into());
        Ok(index.map(|index| index as u16))
    }
}
