//! What is in a JVM's code cache, read from its memory.
//!
//! Sources: hotspot/share/memory/heap.hpp (CodeHeap: blocks one behind the other, each
//! with its length in segments), code/codeBlob.hpp, code/nmethod.hpp, code/pcDesc.hpp,
//! code/debugInfo.cpp. The JVM goes on while we read: a block that changes under our eyes
//! makes no sense or ends the walk of its heap; it is left out.

use std::sync::Arc;

use super::{
    compressed::{Encoding, Stream},
    methods::Methods,
    vmstructs::VmStructs,
};
use crate::{
    Addr, Error, Result,
    jvm::memory::Memory,
    stack::code::{Code, CodeKind, Inlined, SourceFrame},
};

/// HotSpot has three heaps, or one.
const MAX_HEAPS: u32 = 16;
/// More than any code cache holds.
const MAX_BLOBS: usize = 4_000_000;
/// A block is a method at most, and methods have limits.
const MAX_BLOB: u64 = 64 << 20;
/// More than HotSpot inlines.
const MAX_DEPTH: usize = 256;
/// Debug information of one method, in bytes.
const MAX_DEBUG: u64 = 16 << 20;

/// A heap is as large as the code cache may be at most, which is 2 GiB.
const MAX_HEAP: u64 = 4 << 30;
/// Frames of inlining that are kept in all: a bound for tables that want to hurt.
const MAX_FRAMES: usize = 5_000_000;

/// For which code to find out what was inlined. All of it is a lot.
#[derive(Clone, Copy, Debug)]
pub enum Inlining<'a> {
    /// For none.
    Nowhere,
    /// At these addresses, which are sorted.
    At(&'a [Addr]),
    /// For all.
    Everywhere,
}

impl Inlining<'_> {
    /// Whether it is wanted somewhere in a range.
    fn is_wanted(self, from: Addr, to: Addr) -> bool {
        match self {
            Self::Nowhere => false,
            Self::At(addrs) => {
                let first = addrs.partition_point(|&addr| addr < from);
                addrs.get(first).is_some_and(|&addr| addr < to)
            }
            Self::Everywhere => true,
        }
    }
}

/// Where the fields are.
struct Layout {
    heap_memory: u64,
    heap_segmap: u64,
    segment_log: u64,
    space_low: u64,
    space_high: u64,
    block_size: u64,
    block_length: u64,
    block_length_is_long: bool,
    block_used: u64,
    blob_name: u64,
    blob_size: u64,
    blob_data: u64,
    /// An address up to JDK 22, then an offset from the blob.
    code_begin: Place,
    method: u64,
    debug: Debug,
    pc_desc_size: u64,
    pc_desc_pc: u64,
    pc_desc_scope: u64,
}

#[derive(Clone, Copy)]
enum Place {
    /// The field holds an address.
    Address(u64),
    /// The field holds 32 bits to add to the address of the blob.
    Offset(u64),
}

/// Where an nmethod's debug information is.
enum Debug {
    /// In the blob itself, up to JDK 22.
    Inside { pcs: u64, pcs_end: u64, scopes: u64, metadata: u64 },
    /// In memory of its own, since JDK 23.
    Outside { data: u64, pcs: u64, scopes: u64, size: u64, mutable: u64, relocation: u64 },
}

impl Layout {
    fn read(s: &VmStructs) -> Result<Self> {
        let class = if s.has_type("CompiledMethod") { "CompiledMethod" } else { "nmethod" };
        let header = s.type_size("HeapBlock::Header").or_else(|_| s.type_size("HeapBlock"))?;
        Ok(Self {
            heap_memory: s.field("CodeHeap", "_memory")?,
            heap_segmap: s.field("CodeHeap", "_segmap")?,
            segment_log: s.field("CodeHeap", "_log2_segment_size")?,
            space_low: s.field("VirtualSpace", "_low")?,
            space_high: s.field("VirtualSpace", "_high")?,
            block_size: s.type_size("HeapBlock")?,
            block_length: s.field("HeapBlock::Header", "_length")?,
            block_length_is_long: header >= 16,
            block_used: s.field("HeapBlock::Header", "_used")?,
            blob_name: s.field("CodeBlob", "_name")?,
            blob_size: s.field("CodeBlob", "_size")?,
            blob_data: s.field("CodeBlob", "_data_offset")?,
            code_begin: match s.field("CodeBlob", "_code_begin") {
                Ok(field) => Place::Address(field),
                Err(_) => Place::Offset(s.field("CodeBlob", "_code_offset")?),
            },
            method: s.field(class, "_method")?,
            debug: match s.field("nmethod", "_immutable_data") {
                Ok(data) => Debug::Outside {
                    data,
                    pcs: s.field("nmethod", "_scopes_pcs_offset")?,
                    scopes: s.field("nmethod", "_scopes_data_offset")?,
                    size: s.field("nmethod", "_immutable_data_size")?,
                    mutable: s.field("CodeBlob", "_mutable_data")?,
                    relocation: s.field("CodeBlob", "_relocation_size")?,
                },
                Err(_) => Debug::Inside {
                    pcs: s.field("nmethod", "_scopes_pcs_offset")?,
                    pcs_end: s.field("nmethod", "_dependencies_offset")?,
                    scopes: s.field(class, "_scopes_data_begin")?,
                    metadata: s.field("nmethod", "_metadata_offset")?,
                },
            },
            pc_desc_size: s.type_size("PcDesc")?,
            pc_desc_pc: s.field("PcDesc", "_pc_offset")?,
            pc_desc_scope: s.field("PcDesc", "_scope_decode_offset")?,
        })
    }
}

/// Reads all code: methods, the interpreter, stubs; and what was inlined where it is
/// wanted.
///
/// # Errors
/// [`Error::Layout`] naming what is missing, [`Error::Memory`] when the JVM is gone.
pub fn read(
    memory: &Memory,
    structs: &VmStructs,
    major: u32,
    inlining: Inlining<'_>,
) -> Result<Vec<(Addr, u64, Code)>> {
    let encoding = Encoding::of_jdk(major);
    let methods = Methods::new(structs, encoding)?;
    let layout = Layout::read(structs)?;
    let mut reader = Reader {
        memory,
        layout,
        methods,
        encoding,
        inlining,
        frames_left: MAX_FRAMES,
        found: Vec::new(),
    };
    for heap in heaps(memory, structs)? {
        reader.heap(heap)?;
    }
    Ok(reader.found)
}

/// The CodeHeaps.
pub(super) fn heaps(memory: &Memory, s: &VmStructs) -> Result<Vec<Addr>> {
    let Ok(holder) = s.static_field("CodeCache", "_heaps") else {
        // JDK 8 has one.
        return Ok(vec![memory.pointer(s.static_field("CodeCache", "_heap")?)?]);
    };
    let array = memory.pointer(holder)?;
    if array == Addr(0) {
        return Err(Error::layout("the code cache is not set up yet"));
    }
    let base = ["GrowableArrayBase", "GenericGrowableArray"];
    let base = base.into_iter().find(|class| s.has_type(class)).unwrap_or("GrowableArrayBase");
    let count = memory.u32(at(array, s.field(base, "_len")?)?)?.min(MAX_HEAPS);
    // GrowableArray<E> adds its elements behind its base class.
    let data = s.field("GrowableArray<int>", "_data").or_else(|_| s.type_size(base))?;
    let data = memory.pointer(at(array, data)?)?;
    (0..count).map(|i| memory.pointer(at(data, u64::from(i) * 8)?)).collect()
}

fn at(addr: Addr, bytes: u64) -> Result<Addr> {
    addr.checked_add(bytes)
        .filter(|_| addr.0 != 0)
        .ok_or_else(|| Error::layout("a null pointer in the code cache"))
}

struct Reader<'a> {
    memory: &'a Memory,
    layout: Layout,
    methods: Methods,
    encoding: Encoding,
    inlining: Inlining<'a>,
    frames_left: usize,
    found: Vec<(Addr, u64, Code)>,
}

impl Reader<'_> {
    fn heap(&mut self, heap: Addr) -> Result<()> {
        let (memory, layout) = (self.memory, &self.layout);
        let space = at(heap, layout.heap_memory)?;
        let low = memory.pointer(at(space, layout.space_low)?)?;
        let high = memory.pointer(at(space, layout.space_high)?)?;
        let segmap = at(heap, layout.heap_segmap)?;
        let segmap = memory.pointer(at(segmap, layout.space_low)?)?;
        let log = memory.u32(at(heap, layout.segment_log)?)?;
        if !(4..=16).contains(&log) {
            return Err(Error::layout(format!("segments of 2^{log} bytes in the code cache")));
        }
        if high.0.saturating_sub(low.0) > MAX_HEAP {
            return Err(Error::layout("a code cache of more than 4 GiB"));
        }
        let mut block = low;
        let mut blocks = 0;
        while block < high && blocks < MAX_BLOBS {
            blocks += 1;
            let segment = (block.0 - low.0) >> log;
            // 0 where a block begins, 255 in what was never used: the heap's end.
            if !matches!(memory.array(at(segmap, segment)?), Ok([0])) {
                break;
            }
            let Ok((length, used)) = self.block(block) else { break };
            let bytes = length.checked_shl(log).filter(|&n| n > 0 && n <= high.0 - block.0);
            let Some(bytes) = bytes else { break };
            if used {
                // What makes no sense is being made or discarded just now.
                let blob = at(block, self.layout.block_size)?;
                if let Ok(Some(entry)) = self.blob(blob, bytes) {
                    self.found.push(entry);
                }
            }
            block = at(block, bytes)?;
        }
        Ok(())
    }

    fn block(&self, block: Addr) -> Result<(u64, bool)> {
        let length = at(block, self.layout.block_length)?;
        let length = match self.layout.block_length_is_long {
            true => self.memory.u64(length)?,
            false => self.memory.u32(length)?.into(),
        };
        let [used] = self.memory.array(at(block, self.layout.block_used)?)?;
        Ok((length, used != 0))
    }

    fn u32(&self, object: Addr, field: u64) -> Result<u64> {
        self.memory.u32(at(object, field)?).map(u64::from)
    }

    fn blob(&mut self, blob: Addr, room: u64) -> Result<Option<(Addr, u64, Code)>> {
        let (memory, layout) = (self.memory, &self.layout);
        let size = self.u32(blob, layout.blob_size)?;
        let end = self.u32(blob, layout.blob_data)?;
        let begin = match layout.code_begin {
            Place::Address(field) => memory.pointer(at(blob, field)?)?,
            Place::Offset(field) => at(blob, self.u32(blob, field)?)?,
        };
        let end = at(blob, end)?;
        if size > room.min(MAX_BLOB) || begin < blob || end <= begin || end.0 - blob.0 > room {
            return Ok(None);
        }
        let name = memory.pointer(at(blob, layout.blob_name)?)?;
        let name = memory.c_string(name, 256)?;
        let length = end.0 - begin.0;
        if !matches!(&*name, "nmethod" | "native nmethod") {
            let kind = if name == "Interpreter" { CodeKind::Interpreter } else { CodeKind::Stub };
            return Ok(Some((begin, length, Code::new(kind, &name))));
        }
        let method = memory.pointer(at(blob, layout.method)?)?;
        let Some(info) = self.methods.get(memory, method) else {
            return Ok(None);
        };
        // Without debug information the method still has its name.
        let wanted = self.inlining.is_wanted(begin, end) && self.frames_left > 0;
        let inlined =
            if wanted { self.inlined(blob, begin, end).unwrap_or_default() } else { Vec::new() };
        let code = Code {
            kind: CodeKind::Method,
            name: Arc::clone(&info.name),
            signature: info.signature.clone(),
            inlined: inlined.into(),
        };
        Ok(Some((begin, length, code)))
    }

    /// The ranges of a method's code. A PcDesc describes the code that ends at its pc:
    /// that is where a call returns to, and where a poll was.
    fn inlined(&mut self, blob: Addr, begin: Addr, end: Addr) -> Result<Vec<Inlined>> {
        let places = self.debug(blob)?;
        let descs = self.memory.read(places.pcs, places.pcs_len)?;
        let scopes = self.memory.read(places.scopes, places.scopes_len)?;
        let size = usize::try_from(self.layout.pc_desc_size).unwrap_or(0).max(8);
        let field = |desc: &[u8], offset: u64| {
            let offset = usize::try_from(offset).ok()?;
            let bytes = desc.get(offset..offset.checked_add(4)?)?;
            Some(i32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let mut ranges: Vec<Inlined> = Vec::new();
        let mut from = begin;
        for desc in descs.chunks_exact(size) {
            if self.frames_left == 0 {
                break;
            }
            let (Some(pc), Some(scope)) =
                (field(desc, self.layout.pc_desc_pc), field(desc, self.layout.pc_desc_scope))
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
            if self.inlining.is_wanted(from, to)
                && let Some(chain) = self.chain(&scopes, scope, places.metadata)
            {
                self.frames_left = self.frames_left.saturating_sub(chain.len());
                match ranges.last_mut() {
                    Some(last) if last.end == from && last.chain == chain => last.end = to,
                    _ => ranges.push(Inlined { start: from, end: to, chain }),
                }
            }
            from = to;
        }
        Ok(ranges)
    }

    fn debug(&self, blob: Addr) -> Result<DebugPlaces> {
        let bounded = |from: u64, to: u64| {
            let len = to.checked_sub(from).filter(|&len| len <= MAX_DEBUG);
            len.and_then(|len| usize::try_from(len).ok())
                .ok_or_else(|| Error::layout("debug information of an implausible size"))
        };
        match self.layout.debug {
            Debug::Inside { pcs, pcs_end, scopes, metadata } => {
                let pcs = self.u32(blob, pcs)?;
                let pcs_end = self.u32(blob, pcs_end)?;
                let scopes = self.memory.pointer(at(blob, scopes)?)?;
                let pcs_at = at(blob, pcs)?;
                Ok(DebugPlaces {
                    pcs: pcs_at,
                    pcs_len: bounded(pcs, pcs_end)?,
                    // They lie before the PcDescs.
                    scopes,
                    scopes_len: bounded(scopes.0, pcs_at.0)?,
                    metadata: at(blob, self.u32(blob, metadata)?)?,
                })
            }
            Debug::Outside { data, pcs, scopes, size, mutable, relocation } => {
                let data = self.memory.pointer(at(blob, data)?)?;
                let (pcs, scopes) = (self.u32(blob, pcs)?, self.u32(blob, scopes)?);
                let size = self.u32(blob, size)?;
                let mutable = self.memory.pointer(at(blob, mutable)?)?;
                Ok(DebugPlaces {
                    pcs: at(data, pcs)?,
                    pcs_len: bounded(pcs, scopes)?,
                    scopes: at(data, scopes)?,
                    scopes_len: bounded(scopes, size)?,
                    metadata: at(mutable, self.u32(blob, relocation)?)?,
                })
            }
        }
    }

    /// The methods of a scope, innermost first; `None` where they make no sense.
    fn chain(&mut self, scopes: &[u8], offset: i32, metadata: Addr) -> Option<Vec<SourceFrame>> {
        let mut chain = Vec::new();
        let mut offset = usize::try_from(offset).ok()?;
        // Offset 0 is that of no scope (DebugInformationRecorder::serialized_null).
        while offset != 0 && chain.len() < MAX_DEPTH {
            let mut stream = Stream::new(scopes.get(offset..)?, self.encoding);
            let sender = usize::try_from(stream.unsigned()?).ok()?;
            let method = u64::from(stream.unsigned()?).checked_sub(1)?;
            let bci = stream.unsigned()?.wrapping_sub(1) as i32;
            let slot = metadata.checked_add(method.checked_mul(8)?)?;
            let info = self.methods.get(self.memory, self.memory.pointer(slot).ok()?)?;
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

struct DebugPlaces {
    pcs: Addr,
    pcs_len: usize,
    scopes: Addr,
    scopes_len: usize,
    /// The first of the nmethod's Metadata*; 1 in the scopes stands for it.
    metadata: Addr,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// A code cache of JDK 17's shape with one method, `A.b(int)`, in one heap.
    struct Fake {
        image: Image,
        code: Addr,
    }

    fn u32s(low: u32, high: u32) -> u64 {
        u64::from(low) | u64::from(high) << 32
    }

    fn symbol(image: &mut Image, text: &str) -> Addr {
        let mut bytes = (text.len() as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let words: Vec<_> =
            bytes.chunks_exact(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
        image.put(&words)
    }

    fn fake() -> Fake {
        let mut image = Image::new();
        let image_ref = &mut image;
        let class_name = symbol(image_ref, "A");
        let class = image_ref.put(&[class_name.0]);
        let (name, descriptor) = (symbol(image_ref, "b"), symbol(image_ref, "(I)V"));
        // Holder, one more word, then entries 0 to 2.
        let pool = image_ref.put(&[class.0, 0, 0, name.0, descriptor.0]);
        // Pool, then flags, code size, indexes of name and descriptor.
        let indexes = u64::from(1_u16) << 32 | u64::from(2_u16) << 48;
        let const_method = image_ref.put(&[pool.0, indexes]);
        let method = image_ref.put(&[const_method.0]);
        let blob_name = image_ref.text("nmethod");
        // A block of eight segments of 16 bytes: header, blob of eight words, code.
        let block = image_ref.put(&[8, 1]);
        let code = Addr(block.0 + 80);
        image_ref.put(&[blob_name.0, u32s(112, 112), code.0, method.0, 0, 0, u32s(0, 0), 0]);
        image_ref.put(&[0; 6]);
        let segmap = image_ref.put(&[0x0706_0504_0302_0100, u64::MAX]);
        let heap = image_ref.put(&[block.0, block.0 + 256, segmap.0, u32s(4, 0)]);
        let elements = image_ref.put(&[heap.0]);
        let array = image_ref.put(&[u32s(1, 1), elements.0]);
        let heaps = image_ref.put(&[array.0]);
        image_ref.static_field("CodeCache", "_heaps", heaps);
        for (class, field, offset) in [
            ("CodeHeap", "_memory", 0),
            ("CodeHeap", "_segmap", 16),
            ("CodeHeap", "_log2_segment_size", 24),
            ("VirtualSpace", "_low", 0),
            ("VirtualSpace", "_high", 8),
            ("GrowableArrayBase", "_len", 0),
            ("HeapBlock::Header", "_length", 0),
            ("HeapBlock::Header", "_used", 8),
            ("CodeBlob", "_name", 0),
            ("CodeBlob", "_size", 8),
            ("CodeBlob", "_data_offset", 12),
            ("CodeBlob", "_code_begin", 16),
            ("nmethod", "_method", 24),
            ("nmethod", "_scopes_data_begin", 32),
            ("nmethod", "_scopes_pcs_offset", 48),
            ("nmethod", "_dependencies_offset", 52),
            ("nmethod", "_metadata_offset", 40),
            ("PcDesc", "_pc_offset", 0),
            ("PcDesc", "_scope_decode_offset", 4),
            ("Method", "_constMethod", 0),
            ("ConstMethod", "_constants", 0),
            ("ConstMethod", "_flags", 8),
            ("ConstMethod", "_code_size", 10),
            ("ConstMethod", "_name_index", 12),
            ("ConstMethod", "_signature_index", 14),
            ("ConstantPool", "_pool_holder", 0),
            ("Klass", "_name", 0),
            ("Symbol", "_length", 0),
            ("Symbol", "_body", 6),
        ] {
            image_ref.field(class, field, offset);
        }
        for (class, size) in [
            ("HeapBlock", 16),
            ("HeapBlock::Header", 16),
            ("GrowableArrayBase", 8),
            ("PcDesc", 16),
            ("ConstMethod", 16),
            ("ConstantPool", 16),
        ] {
            image_ref.class(class, size);
        }
        image.finish();
        Fake { image, code }
    }

    #[test]
    fn finds_the_method() {
        let fake = fake();
        let found = read(&own_memory(), &fake.image.read().unwrap(), 17, Inlining::Everywhere);
        let found = found.unwrap();
        let [(begin, size, code)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*begin, *size), (fake.code, 48));
        assert_eq!((&*code.name, code.signature.as_deref()), ("A.b", Some("(int)")));
    }

    #[test]
    fn names_the_field_that_is_missing() {
        let mut image = Image::new();
        image.field("Method", "_constMethod", 0);
        image.finish();
        let error = read(&own_memory(), &image.read().unwrap(), 17, Inlining::Nowhere);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no field"), "{error}");
    }

    #[test]
    fn inlining_is_wanted_where_it_was_asked_for() {
        let at = Inlining::At(&[Addr(10), Addr(20)]);
        assert!(at.is_wanted(Addr(10), Addr(11)) && at.is_wanted(Addr(0), Addr(99)));
        assert!(!at.is_wanted(Addr(11), Addr(20)) && !at.is_wanted(Addr(21), Addr(99)));
    }

    proptest! {
        #[test]
        fn hostile_structures_do_no_harm(
            damage in prop::collection::vec((any::<usize>(), any::<u64>()), 0..6),
            small in prop::collection::vec((any::<usize>(), 0..4096_u64), 0..6),
        ) {
            let mut fake = fake();
            let structs = fake.image.read().unwrap();
            for (index, value) in damage.into_iter().chain(small) {
                fake.image.damage(index, value);
            }
            let _ = read(&own_memory(), &structs, 17, Inlining::Everywhere);
            let _ = read(&own_memory(), &structs, 21, Inlining::At(&[fake.code]));
        }
    }
}
