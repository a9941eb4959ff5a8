//! Methods inlined into compiled code, with lines.
//!
//! Sources: hotspot/share/code/pcDesc.hpp, code/debugInfo.cpp, code/scopeDesc.cpp. A PcDesc refers to
//! a scope. A scope holds the index of a method in the nmethod's Metadata pointers, a bytecode index in
//! this method, and the offset of the scope of the caller into which the method was inlined.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use crate::{
    Addr, Error, Result,
    hotspot::{
        code::{
            Inlining, PartField, at,
            cache::Blob,
            monitors::{FrameMonitor, MAX_MONITORS, decode_monitors},
        },
        compressed::{Encoding, Stream},
        layout::Item,
        methods::Methods,
        pages::Pages,
        processor::{CALL_BYTES, is_call, is_poll},
        resolved::Layout,
    },
    names::code::{Inlined, SourceFrame},
};

/// Maximum depth of inlining; HotSpot's limits are lower.
const MAX_DEPTH: usize = 256;
/// Maximum size of the debug information of one method, in bytes.
const MAX_DEBUG: u64 = 16 << 20;
/// Maximum number of inlined frames kept in total, as protection against hostile tables.
const MAX_FRAMES: usize = 5_000_000;

/// Maximum size of the debug information read in total, in bytes.
const MAX_ALL_DEBUG: usize = 2 << 30;

/// Number of PcDescs examined to decide whether a method has additional ones (`DebugNonSafepoints`).
const MAX_EXAMINED: usize = 64;

/// Location of an nmethod's debug information.
enum Debug {
    /// In the blob itself, up to JDK 22.
    Inside { pcs: u64, pcs_end: u64, scopes: PartField, metadata: u64 },
    /// In separately allocated memory, since JDK 23.
    Outside { data: u64, pcs: u64, scopes: u64, size: u64, mutable: u64, relocation: u64 },
}

impl Debug {
    fn read(layout: &Layout) -> Result<Self> {
        Ok(match layout.get(Item::ImmutableData) {
            Ok(data) => Self::Outside {
                data,
                pcs: layout.get(Item::ScopesPcsOffset)?,
                scopes: layout.get(Item::ScopesDataOffset)?,
                size: layout.get(Item::ImmutableSize)?,
                mutable: layout.get(Item::MutableData)?,
                relocation: layout.get(Item::RelocationSize)?,
            },
            Err(_) => Self::Inside {
                pcs: layout.get(Item::ScopesPcsOffset)?,
                pcs_end: layout.get(Item::DependenciesOffset)?,
                scopes: match layout.is_jdk_8() {
                    true => PartField::Offset(layout.get(Item::ScopesDataOffset8)?),
                    false => PartField::Address(layout.get(Item::ScopesDataBegin)?),
                },
                metadata: layout.get(Item::MetadataOffset)?,
            },
        })
    }
}

/// Decodes the inlining of compiled methods at the requested addresses.
pub(super) struct Scopes<'a> {
    debug: Debug,
    exception: Option<u64>,
    /// Offset of the field that holds the offset of an nmethod's oops.
    oops: u64,
    pc_desc_size: u64,
    pc_desc_pc: u64,
    pc_desc_scope: u64,
    encoding: Encoding,
    inlining: Inlining<'a>,
    frames_left: usize,
    debug_left: usize,
}

impl<'a> Scopes<'a> {
    pub(super) fn new(layout: &Layout, inlining: Inlining<'a>) -> Result<Self> {
        Ok(Self {
            debug: Debug::read(layout)?,
            exception: layout.get(Item::ExceptionOffset).ok(),
            // Since JDK 23, the data of an nmethod begin with its oops.
            oops: layout.get(Item::OopsOffset).or_else(|_| layout.get(Item::BlobData))?,
            pc_desc_size: layout.get(Item::PcDescSize)?,
            pc_desc_pc: layout.get(Item::PcDescPc)?,
            pc_desc_scope: layout.get(Item::PcDescScope)?,
            encoding: Encoding::of_jdk(layout.major),
            inlining,
            frames_left: MAX_FRAMES,
            debug_left: MAX_ALL_DEBUG,
        })
    }

    /// Returns the ranges of a method's code with the methods inlined there, innermost first.
    ///
    /// A PcDesc describes one instruction: the call that ends at its pc, or the safepoint poll that begins
    /// there. Code between these instructions has no PcDescs, unless the JVM keeps additional ones
    /// (`-XX:+DebugNonSafepoints`, which the flight recorder and agents turn on). For single addresses, such
    /// code is attributed to the methods that the PcDescs before and after it have in common.
    ///
    /// This choice was measured with javac in a JVM that keeps additional PcDescs, which show the correct
    /// methods. For samples in such code, the methods of the next PcDesc alone are right in 52 to 54 % of the
    /// cases and wrong in a third. The common methods are right in 55 to 60 % of the cases and wrong in 3 to
    /// 7 %; in the other cases they lack inner methods, but contain no wrong one.
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
        let locations = self.locations(pages, blob.at)?;
        self.debug_left = self
            .debug_left
            .checked_sub(locations.pcs_len + locations.scopes_len)
            .ok_or_else(|| Error::layout("too much debug information"))?;
        let descs = self.descs(pages, &locations, begin, end)?;
        let scopes = pages.bytes(locations.scopes, locations.scopes_len)?;
        let handlers = self.handlers(pages, blob);
        let is_single = matches!(self.inlining, Inlining::At(_));
        let covers_all_code = !is_single || describes_all_code(pages, begin, &descs);
        let mut chain = |this: &Self, desc: Option<&(Addr, i32)>| {
            desc.and_then(|&(_, scope)| {
                this.chain(pages, methods, &scopes, scope, locations.metadata)
            })
        };
        let mut ranges: Vec<Inlined> = Vec::new();
        let mut from = begin;
        for (i, desc) in descs.iter().enumerate() {
            let to = desc.0;
            if self.frames_left > 0
                && self.inlining.is_wanted(from, to)
                && let Some(next) = chain(self, Some(desc))
            {
                self.frames_left = self.frames_left.saturating_sub(next.len());
                let call = Addr(to.0.saturating_sub(CALL_BYTES)).max(from);
                let mut start = from;
                if !covers_all_code && self.inlining.is_wanted(from, call) {
                    let previous = i.checked_sub(1).and_then(|i| chain(self, descs.get(i)));
                    let (common, is_sure) = common_frames(&next, previous.as_deref());
                    ranges.push(Inlined { start: from, end: call, chain: common, is_sure });
                    start = call;
                }
                match ranges.last_mut() {
                    Some(last) if last.end == start && last.chain == next && last.is_sure => {
                        last.end = to;
                    }
                    _ => ranges.push(Inlined { start, end: to, chain: next, is_sure: true }),
                }
            }
            from = to;
        }
        // The code after the last PcDesc jumps back: it is the end of a loop. It has no PcDesc, so a map of
        // all code omits it. For a single address, the methods of the last PcDesc are the best available
        // answer.
        let end = handlers.clamp(from, end);
        if is_single
            && self.inlining.is_wanted(from, end)
            && let Some(chain) = chain(self, descs.last())
        {
            ranges.push(Inlined { start: from, end, chain, is_sure: covers_all_code });
        }
        Ok(ranges)
    }

    /// Returns the addresses of the methods inlined into a compiled method, and of the method itself,
    /// each once. Debug information contains only methods that can reach a safepoint, make a call or throw
    /// an exception, so other inlined methods may be missing.
    pub(super) fn inlined_methods(
        &mut self,
        pages: &mut Pages<'_>,
        blob: Blob,
    ) -> Result<Vec<Addr>> {
        let locations = self.locations(pages, blob.at)?;
        self.debug_left = self
            .debug_left
            .checked_sub(locations.pcs_len + locations.scopes_len)
            .ok_or_else(|| Error::layout("too much debug information"))?;
        let scopes = pages.bytes(locations.scopes, locations.scopes_len)?;
        let mut numbers = BTreeSet::new();
        let mut seen = HashSet::new();
        for (_, mut offset) in self.descs(pages, &locations, blob.begin, blob.end)? {
            // Follows the scopes of the callers outwards, and stops at a scope that was visited before.
            while offset > 0 && seen.insert(offset) {
                let scope = usize::try_from(offset).ok().and_then(|offset| scopes.get(offset..));
                let Some(scope) = scope else { break };
                let mut stream = Stream::new(scope, self.encoding);
                let (Some(sender), Some(method)) = (stream.unsigned(), stream.unsigned()) else {
                    break;
                };
                numbers.extend(u64::from(method).checked_sub(1));
                offset = i32::try_from(sender).unwrap_or(0);
            }
        }
        let mut pointer = |number: u64| {
            let implausible = || Error::layout("implausible method index in debug information");
            pages.pointer(at(locations.metadata, number.checked_mul(8).ok_or_else(implausible)?)?)
        };
        numbers.into_iter().map(&mut pointer).collect()
    }

    /// Returns the monitors that the frames at a return address have entered: those of each frame, oldest first,
    /// from the innermost inlined method outwards. Returns nothing if the address has no debug information.
    pub(super) fn monitors(
        &self,
        pages: &mut Pages<'_>,
        blob: Blob,
        pc: Addr,
    ) -> Result<Vec<Vec<FrameMonitor>>> {
        let locations = self.locations(pages, blob.at)?;
        let descs = self.descs(pages, &locations, blob.begin, blob.end)?;
        let Some(&(_, scope)) = descs.iter().find(|(at, _)| *at == pc) else {
            return Ok(Vec::new());
        };
        let scopes = pages.bytes(locations.scopes, locations.scopes_len)?;
        let oops = at(blob.at, pages.u32(at(blob.at, self.oops)?)?.into())?;
        Ok(self.scope_monitors(&scopes, scope, oops).unwrap_or_default())
    }

    /// Decodes the monitors of a scope and of the scopes outside of it; `None` if they are inconsistent. `oops` is the
    /// address of the nmethod's oops.
    fn scope_monitors(
        &self,
        scopes: &[u8],
        scope: i32,
        oops: Addr,
    ) -> Option<Vec<Vec<FrameMonitor>>> {
        let stream = |offset: usize| Some(Stream::new(scopes.get(offset..)?, self.encoding));
        let mut all: Vec<Vec<_>> = Vec::new();
        let mut remaining = MAX_MONITORS;
        let mut offset = usize::try_from(scope).ok()?;
        while offset != 0 && all.len() < MAX_DEPTH {
            let mut scope = stream(offset)?;
            // Offset of the caller's scope, method, bytecode index, and offsets of locals, expressions and monitors.
            let [sender, _, _, _, _, monitors] = {
                let mut next = || scope.unsigned();
                [next()?, next()?, next()?, next()?, next()?, next()?]
            };
            let monitors = match usize::try_from(monitors).ok()? {
                0 => Vec::new(),
                monitors => decode_monitors(&mut stream(monitors)?, oops, remaining),
            };
            remaining -= monitors.len();
            all.push(monitors);
            let sender = usize::try_from(sender).ok()?;
            if sender >= offset {
                break;
            }
            offset = sender;
        }
        Some(all)
    }

    /// Returns a method's PcDescs in ascending order of address, each with its scope's offset.
    fn descs(
        &self,
        pages: &mut Pages<'_>,
        locations: &DebugLocations,
        begin: Addr,
        end: Addr,
    ) -> Result<Vec<(Addr, i32)>> {
        let bytes = pages.bytes(locations.pcs, locations.pcs_len)?;
        let size = usize::try_from(self.pc_desc_size).unwrap_or(0).max(8);
        let field = |desc: &[u8], offset: u64| {
            let offset = usize::try_from(offset).ok()?;
            let bytes = desc.get(offset..offset.checked_add(4)?)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let mut descs: Vec<(Addr, i32)> = Vec::new();
        for desc in bytes.chunks_exact(size) {
            let (Some(pc), Some(scope)) =
                (field(desc, self.pc_desc_pc), field(desc, self.pc_desc_scope))
            else {
                break;
            };
            // The first and the last PcDesc are markers before and after all code.
            let pc = u64::try_from(pc).ok().and_then(|pc| begin.checked_add(pc));
            let last = descs.last().map_or(begin, |&(pc, _)| pc);
            if let Some(pc) = pc.filter(|&pc| pc > last && pc <= end) {
                descs.push((pc, scope));
            }
        }
        Ok(descs)
    }

    /// Returns the address at which the exception and deoptimisation handlers begin. They are attributed to
    /// no method, because a deoptimised frame returns to them from any location. Source: `CodeOffsets`,
    /// asm/codeBuffer.hpp.
    fn handlers(&self, pages: &mut Pages<'_>, blob: Blob) -> Addr {
        let offset = self.exception.and_then(|field| pages.u32(at(blob.at, field).ok()?).ok());
        // The offset is -1 if there are none.
        let offset = offset.filter(|&offset| i32::try_from(offset).is_ok_and(|n| n > 0));
        offset.and_then(|offset| blob.at.checked_add(offset.into())).unwrap_or(blob.end)
    }

    fn locations(&self, pages: &mut Pages<'_>, blob: Addr) -> Result<DebugLocations> {
        let bounded = |from: u64, to: u64| {
            let len = to.checked_sub(from).filter(|&len| len <= MAX_DEBUG);
            len.and_then(|len| usize::try_from(len).ok())
                .ok_or_else(|| Error::layout("implausible size of debug information"))
        };
        let mut number = |field| Ok::<_, Error>(u64::from(pages.u32(at(blob, field)?)?));
        match self.debug {
            Debug::Inside { pcs, pcs_end, scopes, metadata } => {
                let (pcs, pcs_end, metadata) = (number(pcs)?, number(pcs_end)?, number(metadata)?);
                let scopes = scopes.read(pages, blob)?;
                let pcs_at = at(blob, pcs)?;
                Ok(DebugLocations {
                    pcs: pcs_at,
                    pcs_len: bounded(pcs, pcs_end)?,
                    // Scopes precede the PcDescs.
                    scopes,
                    scopes_len: bounded(scopes.0, pcs_at.0)?,
                    metadata: at(blob, metadata)?,
                })
            }
            Debug::Outside { data, pcs, scopes, size, mutable, relocation } => {
                let (pcs, scopes) = (number(pcs)?, number(scopes)?);
                let (size, relocation) = (number(size)?, number(relocation)?);
                let data = pages.pointer(at(blob, data)?)?;
                let mutable = pages.pointer(at(blob, mutable)?)?;
                Ok(DebugLocations {
                    pcs: at(data, pcs)?,
                    pcs_len: bounded(pcs, scopes)?,
                    scopes: at(data, scopes)?,
                    scopes_len: bounded(scopes, size)?,
                    metadata: at(mutable, relocation)?,
                })
            }
        }
    }

    /// Returns the methods of a scope, innermost first; `None` if they are inconsistent.
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
        // Offset 0 means no scope (DebugInformationRecorder::serialized_null).
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
                origin: info.origin.clone(),
            });
            // HotSpot writes the scope of a caller before that of its callee, so the caller's offset is
            // lower.
            if sender >= offset {
                break;
            }
            offset = sender;
        }
        (!chain.is_empty()).then_some(chain)
    }
}

/// Whether there are also PcDescs at instructions that are neither calls nor polls (`DebugNonSafepoints`).
fn describes_all_code(pages: &mut Pages<'_>, begin: Addr, descs: &[(Addr, i32)]) -> bool {
    let examined = &descs[..descs.len().min(MAX_EXAMINED)];
    let mut others = 0;
    for &(pc, _) in examined {
        // A call would end at the pc, and a poll would begin there. So bytes on both sides of it are
        // examined.
        let before = Addr(pc.0.saturating_sub(8)).max(begin);
        let Ok(bytes) = pages.bytes(before, (pc.0 - before.0) as usize + 4) else { return false };
        let (before, behind) = bytes.split_at(bytes.len() - 4);
        others += usize::from(!is_call(before) && !is_poll(behind));
    }
    // Some calls and polls have other encodings, so up to a quarter may be unrecognised.
    others * 4 > examined.len()
}

/// Returns the methods to which code between two calls belongs, and whether they are certain. They are the
/// outer methods that the scopes of both calls have in common, with the lines of the second call. `previous`
/// is `None` at the beginning of the method.
fn common_frames(
    next: &[SourceFrame],
    previous: Option<&[SourceFrame]>,
) -> (Vec<SourceFrame>, bool) {
    let outermost = next.len().saturating_sub(1);
    let previous = previous.unwrap_or(&next[outermost..]);
    let is_same = |a: &SourceFrame, b: &SourceFrame| {
        (&a.name, &a.signature, &a.file) == (&b.name, &b.signature, &b.file)
    };
    let mut common = 0;
    for (a, b) in next.iter().rev().zip(previous.iter().rev()) {
        if !is_same(a, b) {
            break;
        }
        common += 1;
        // If the two calls are on different lines of this method, the frames inside it come from different
        // call sites, even if their methods are the same.
        if a.line != b.line {
            break;
        }
    }
    let chain = next[next.len() - common.min(next.len())..].to_vec();
    let is_sure = common == next.len() && common == previous.len();
    (chain, is_sure)
}

struct DebugLocations {
    pcs: Addr,
    pcs_len: usize,
    scopes: Addr,
    scopes_len: usize,
    /// Address of the first of the nmethod's Metadata pointers, which has number 1 in scopes.
    metadata: Addr,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(frames: &[(&str, u32)]) -> Vec<SourceFrame> {
        let frame = |&(name, line): &(&str, u32)| SourceFrame {
            name: name.into(),
            signature: None,
            file: None,
            line,
            origin: None,
        };
        // Written outermost first for readability.
        frames.iter().rev().map(frame).collect()
    }

    #[test]
    fn code_between_two_calls_gets_their_common_frames() {
        let next = chain(&[("a", 1), ("b", 2), ("c", 3)]);
        let common = |previous: &[(&str, u32)]| common_frames(&next, Some(&chain(previous)));
        // Both calls in one method, on the same or on different lines.
        assert_eq!(common(&[("a", 1), ("b", 2), ("c", 3)]), (next.clone(), true));
        assert_eq!(common(&[("a", 1), ("b", 2), ("c", 9)]), (next.clone(), true));
        // One of the two calls lies in an additional inlined method. The code between the calls may belong to
        // this method or not.
        let outer = chain(&[("a", 1), ("b", 2)]);
        assert_eq!(common(&[("a", 1), ("b", 2)]), (outer.clone(), false));
        assert_eq!(common(&[("a", 1), ("b", 2), ("d", 4)]), (outer.clone(), false));
        let deeper = chain(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]);
        assert_eq!(common_frames(&next, Some(&deeper)), (next.clone(), false));
        // The outermost method calls the same method on two different lines.
        assert_eq!(common(&[("a", 7), ("b", 2), ("c", 3)]), (chain(&[("a", 1)]), false));
        // At the beginning of the method nothing is inlined yet.
        assert_eq!(common_frames(&next, None), (chain(&[("a", 1)]), false));
        let alone = chain(&[("a", 5)]);
        assert_eq!(common_frames(&alone, None), (alone.clone(), true));
    }
}
