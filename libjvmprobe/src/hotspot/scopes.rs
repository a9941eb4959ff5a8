//! What was inlined into a compiled method, and at which lines.
//!
//! Sources: hotspot/share/code/pcDesc.hpp, code/debugInfo.cpp, code/scopeDesc.cpp: a PcDesc
//! leads to a scope, which names a method by its index among the nmethod's Metadata
//! pointers, a bytecode index, and the scope that it was inlined into.

use std::sync::Arc;

use super::{
    code_cache::{Blob, Inlining, at},
    compressed::{Encoding, Stream},
    methods::Methods,
    pages::Pages,
    vmstructs::VmStructs,
};
use crate::{
    Addr, Error, Result,
    stack::code::{Inlined, SourceFrame},
};

/// More than HotSpot inlines.
const MAX_DEPTH: usize = 256;
/// Debug information of one method, in bytes.
const MAX_DEBUG: u64 = 16 << 20;
/// Frames of inlining that are kept in all: a bound for tables that want to hurt.
const MAX_FRAMES: usize = 5_000_000;

/// Where an nmethod's debug information is.
enum Layout {
    /// In the blob itself, up to JDK 22.
    Inside { pcs: u64, pcs_end: u64, scopes: u64, metadata: u64 },
    /// In memory of its own, since JDK 23.
    Outside { data: u64, pcs: u64, scopes: u64, size: u64, mutable: u64, relocation: u64 },
}

impl Layout {
    fn read(s: &VmStructs) -> Result<Self> {
        let class = if s.has_type("CompiledMethod") { "CompiledMethod" } else { "nmethod" };
        Ok(match s.field("nmethod", "_immutable_data") {
            Ok(data) => Self::Outside {
                data,
                pcs: s.field("nmethod", "_scopes_pcs_offset")?,
                scopes: s.field("nmethod", "_scopes_data_offset")?,
                size: s.field("nmethod", "_immutable_data_size")?,
                mutable: s.field("CodeBlob", "_mutable_data")?,
                relocation: s.field("CodeBlob", "_relocation_size")?,
            },
            Err(_) => Self::Inside {
                pcs: s.field("nmethod", "_scopes_pcs_offset")?,
                pcs_end: s.field("nmethod", "_dependencies_offset")?,
                scopes: s.field(class, "_scopes_data_begin")?,
                metadata: s.field("nmethod", "_metadata_offset")?,
            },
        })
    }
}

/// Finds out what was inlined where that is wanted.
pub(super) struct Scopes<'a> {
    layout: Layout,
    exception: Option<u64>,
    pc_desc_size: u64,
    pc_desc_pc: u64,
    pc_desc_scope: u64,
    encoding: Encoding,
    inlining: Inlining<'a>,
    frames_left: usize,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(s: &VmStructs, encoding: Encoding, inlining: Inlining<'a>) -> Result<Self> {
        Ok(Self {
            layout: Layout::read(s)?,
            exception: s.field("nmethod", "_exception_offset").ok(),
            pc_desc_size: s.type_size("PcDesc")?,
            pc_desc_pc: s.field("PcDesc", "_pc_offset")?,
            pc_desc_scope: s.field("PcDesc", "_scope_decode_offset")?,
            encoding,
            inlining,
            frames_left: MAX_FRAMES,
        })
    }

    /// The ranges of a method's code. A PcDesc describes the code that ends at its pc:
    /// that is where a call returns to, and where a poll was.
    pub(super) fn inlined(
        &mut self,
        pages: &mut Pages<'_>,
        methods: &mut Methods,
        blob: Blob,
    ) -> Result<Vec<Inlined>> {
        let Blob { begin, end, .. } = blob;
        if self.frames_left == 0 || !self.inlining.is_wanted(begin, end) {
            return Ok(Vec::new());
        }
        let places = self.places(pages, blob.at)?;
        let descs = pages.bytes(places.pcs, places.pcs_len)?;
        let scopes = pages.bytes(places.scopes, places.scopes_len)?;
        let size = usize::try_from(self.pc_desc_size).unwrap_or(0).max(8);
        let field = |desc: &[u8], offset: u64| {
            let offset = usize::try_from(offset).ok()?;
            let bytes = desc.get(offset..offset.checked_add(4)?)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let mut ranges: Vec<Inlined> = Vec::new();
        let mut from = begin;
        let mut last = None;
        for desc in descs.chunks_exact(size) {
            if self.frames_left == 0 {
                break;
            }
            let (Some(pc), Some(scope)) =
                (field(desc, self.pc_desc_pc), field(desc, self.pc_desc_scope))
            else {
                break;
            };
            // The first and the last are markers, before and behind all code.
            let Some(to) = u64::try_from(pc).ok().and_then(|pc| begin.checked_add(pc)) else {
                continue;
            };
            if to <= from || to > end {
                continue;
            }
            last = Some(scope);
            if self.inlining.is_wanted(from, to)
                && let Some(chain) = self.chain(pages, methods, &scopes, scope, places.metadata)
            {
                self.frames_left = self.frames_left.saturating_sub(chain.len());
                match ranges.last_mut() {
                    Some(last) if last.end == from && last.chain == chain => last.end = to,
                    _ => ranges.push(Inlined { start: from, end: to, chain }),
                }
            }
            from = to;
        }
        // Behind the last PcDesc there is what jumps back: the end of a loop. A map says no
        // more than HotSpot does, but of a sample this is the best that can be said.
        let end = self.handlers(pages, blob).clamp(from, end);
        if matches!(self.inlining, Inlining::At(_))
            && self.inlining.is_wanted(from, end)
            && let Some(scope) = last
            && let Some(chain) = self.chain(pages, methods, &scopes, scope, places.metadata)
        {
            ranges.push(Inlined { start: from, end, chain });
        }
        Ok(ranges)
    }

    /// Where the handlers of exceptions and of deoptimisation begin, which are no method's
    /// code: a deoptimised frame returns to them from wherever it was. `CodeOffsets`,
    /// asm/codeBuffer.hpp.
    fn handlers(&self, pages: &mut Pages<'_>, blob: Blob) -> Addr {
        let offset = self.exception.and_then(|field| pages.u32(at(blob.at, field).ok()?).ok());
        // -1 where there are none.
        let offset = offset.filter(|&offset| i32::try_from(offset).is_ok_and(|n| n > 0));
        offset.and_then(|offset| blob.at.checked_add(offset.into())).unwrap_or(blob.end)
    }

    fn places(&self, pages: &mut Pages<'_>, blob: Addr) -> Result<Places> {
        let bounded = |from: u64, to: u64| {
            let len = to.checked_sub(from).filter(|&len| len <= MAX_DEBUG);
            len.and_then(|len| usize::try_from(len).ok())
                .ok_or_else(|| Error::layout("debug information of an implausible size"))
        };
        let mut number = |field| Ok::<_, Error>(u64::from(pages.u32(at(blob, field)?)?));
        match self.layout {
            Layout::Inside { pcs, pcs_end, scopes, metadata } => {
                let (pcs, pcs_end, metadata) = (number(pcs)?, number(pcs_end)?, number(metadata)?);
                let scopes = pages.pointer(at(blob, scopes)?)?;
                let pcs_at = at(blob, pcs)?;
                Ok(Places {
                    pcs: pcs_at,
                    pcs_len: bounded(pcs, pcs_end)?,
                    // They lie before the PcDescs.
                    scopes,
                    scopes_len: bounded(scopes.0, pcs_at.0)?,
                    metadata: at(blob, metadata)?,
                })
            }
            Layout::Outside { data, pcs, scopes, size, mutable, relocation } => {
                let (pcs, scopes) = (number(pcs)?, number(scopes)?);
                let (size, relocation) = (number(size)?, number(relocation)?);
                let data = pages.pointer(at(blob, data)?)?;
                let mutable = pages.pointer(at(blob, mutable)?)?;
                Ok(Places {
                    pcs: at(data, pcs)?,
                    pcs_len: bounded(pcs, scopes)?,
                    scopes: at(data, scopes)?,
                    scopes_len: bounded(scopes, size)?,
                    metadata: at(mutable, relocation)?,
                })
            }
        }
    }

    /// The methods of a scope, innermost first; `None` where they make no sense.
    fn chain(
        &self,
        pages: &mut Pages<'_>,
        methods: &mut Methods,
        scopes: &[u8],
        offset: i32,
        metadata: Addr,
    ) -> Option<Vec<SourceFrame>> {
        let mut chain = Vec::new();
        let mut offset = usize::try_from(offset).ok()?;
        // Offset 0 is that of no scope (DebugInformationRecorder::serialized_null).
        while offset != 0 && chain.len() < MAX_DEPTH {
            let mut stream = Stream::new(scopes.get(offset..)?, self.encoding);
            let sender = usize::try_from(stream.unsigned()?).ok()?;
            let method = u64::from(stream.unsigned()?).checked_sub(1)?;
            let bci = stream.unsigned()?.wrapping_sub(1) as i32;
            let slot = metadata.checked_add(method.checked_mul(8)?)?;
            let method = pages.pointer(slot).ok()?;
            let info = methods.get(pages, method)?;
            chain.push(SourceFrame {
                name: Arc::clone(&info.name),
                signature: info.signature.clone(),
                file: info.file.clone(),
                line: info.line(bci),
            });
            // A sender was written before.
            if sender >= offset {
                break;
            }
            offset = sender;
        }
        (!chain.is_empty()).then_some(chain)
    }
}

struct Places {
    pcs: Addr,
    pcs_len: usize,
    scopes: Addr,
    scopes_len: usize,
    /// The first of the nmethod's Metadata*; 1 in the scopes stands for it.
    metadata: Addr,
}
