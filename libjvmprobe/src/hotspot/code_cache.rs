//! What is in a JVM's code cache, read from its memory.
//!
//! Sources: hotspot/share/memory/heap.hpp (CodeHeap: blocks one behind the other, each
//! with its length in segments), code/codeBlob.hpp, code/nmethod.hpp, code/pcDesc.hpp,
//! code/debugInfo.cpp. The JVM goes on while we read: a block that changes under our eyes
//! makes no sense or ends the walk of its heap; it is left out.

use std::sync::Arc;

use crate::{
    Addr, Error, Result,
    hotspot::{
        compressed::Encoding, methods::Methods, pages::Pages, scopes::Scopes, vmstructs::VmStructs,
    },
    names::code::{Code, CodeKind},
    process::memory::Memory,
};

/// HotSpot has three heaps, or one.
const MAX_HEAPS: u32 = 16;
/// More than any code cache holds.
const MAX_BLOBS: usize = 4_000_000;
/// A block is a method at most, and methods have limits.
const MAX_BLOB: u64 = 64 << 20;
/// A method of megabytes is that many steps of the segment map long at most.
const MAX_HOPS: usize = 1024;

/// A heap is as large as the code cache may be at most, which is 2 GiB.
const MAX_HEAP: u64 = 4 << 30;
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
    pub(super) fn is_wanted(self, from: Addr, to: Addr) -> bool {
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
    compile_id: u64,
}

#[derive(Clone, Copy)]
enum Place {
    /// The field holds an address.
    Address(u64),
    /// The field holds 32 bits to add to the address of the blob.
    Offset(u64),
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
            compile_id: s.field("nmethod", "_compile_id")?,
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
    let mut reader = Reader::new(memory, structs, major, inlining)?;
    let mut found = Vec::new();
    for heap in heaps(memory, structs)? {
        reader.heap(heap, &mut found)?;
    }
    Ok(found)
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

pub(super) fn at(addr: Addr, bytes: u64) -> Result<Addr> {
    addr.checked_add(bytes)
        .filter(|_| addr.0 != 0)
        .ok_or_else(|| Error::layout("a null pointer in the code cache"))
}

/// A piece of code, not yet named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    /// Its CodeBlob.
    pub(super) at: Addr,
    /// The first of its instructions, and the first address behind them.
    pub(super) begin: Addr,
    pub(super) end: Addr,
    name: Addr,
    /// Its Method, if it is one's.
    method: Option<Addr>,
    /// By which two that were in one place in turn are told apart.
    pub(super) compile_id: u32,
}

/// A CodeHeap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heap {
    low: Addr,
    high: Addr,
    segmap: Addr,
    log: u32,
}

/// Reads code.
pub(super) struct Reader<'a> {
    pages: Pages<'a>,
    layout: Layout,
    methods: Methods,
    scopes: Scopes<'a>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        memory: &'a Memory,
        structs: &VmStructs,
        major: u32,
        inlining: Inlining<'a>,
    ) -> Result<Self> {
        let encoding = Encoding::of_jdk(major);
        Ok(Self {
            pages: Pages::many(memory),
            layout: Layout::read(structs)?,
            methods: Methods::new(structs, encoding)?,
            scopes: Scopes::new(structs, encoding, inlining)?,
        })
    }

    /// Where a CodeHeap's memory is.
    pub(super) fn place(&mut self, heap: Addr) -> Result<Heap> {
        let (pages, layout) = (&mut self.pages, &self.layout);
        let space = at(heap, layout.heap_memory)?;
        let low = pages.pointer(at(space, layout.space_low)?)?;
        let high = pages.pointer(at(space, layout.space_high)?)?;
        let segmap = at(heap, layout.heap_segmap)?;
        let segmap = pages.pointer(at(segmap, layout.space_low)?)?;
        let log = pages.u32(at(heap, layout.segment_log)?)?;
        if !(4..=16).contains(&log) {
            return Err(Error::layout(format!("segments of 2^{log} bytes in the code cache")));
        }
        if high.0.saturating_sub(low.0) > MAX_HEAP {
            return Err(Error::layout("a code cache of more than 4 GiB"));
        }
        Ok(Heap { low, high, segmap, log })
    }

    fn heap(&mut self, heap: Addr, found: &mut Vec<(Addr, u64, Code)>) -> Result<()> {
        let heap = self.place(heap)?;
        let mut block = heap.low;
        let mut blocks = 0;
        while block < heap.high && blocks < MAX_BLOBS {
            blocks += 1;
            // 0 where a block begins, 255 in what was never used: the heap's end.
            if !matches!(self.segment(heap, block), Ok(0)) {
                break;
            }
            let Ok((bytes, used)) = self.block(heap, block) else { break };
            if used {
                // What makes no sense is being made or discarded just now.
                let blob = at(block, self.layout.block_size)?;
                if let Ok(Some(blob)) = self.blob(blob, bytes)
                    && let Some(code) = self.code(blob)
                {
                    found.push((blob.begin, blob.end.0 - blob.begin.0, code));
                }
            }
            block = at(block, bytes)?;
        }
        Ok(())
    }

    /// The code that an address of a heap lies in; as CodeHeap::find_block_for.
    pub(super) fn find(&mut self, heaps: &[Heap], addr: Addr) -> Result<Option<Blob>> {
        let Some(&heap) = heaps.iter().find(|heap| (heap.low..heap.high).contains(&addr)) else {
            return Ok(None);
        };
        let mut block = Addr(heap.low.0 + ((addr.0 - heap.low.0) >> heap.log << heap.log));
        for _ in 0..MAX_HOPS {
            let back = u64::from(self.segment(heap, block)?) << heap.log;
            match back >> heap.log {
                0 => {
                    let (bytes, used) = self.block(heap, block)?;
                    let blob = self.blob(at(block, self.layout.block_size)?, bytes)?;
                    let holds = |blob: &Blob| (blob.begin..blob.end).contains(&addr);
                    return Ok(blob.filter(|blob| used && holds(blob)));
                }
                0xff => return Ok(None),
                _ if back > block.0 - heap.low.0 => return Ok(None),
                _ => block = Addr(block.0 - back),
            }
        }
        Ok(None)
    }

    /// What the segment map says of an address.
    fn segment(&mut self, heap: Heap, addr: Addr) -> Result<u8> {
        let [segment] = self.pages.array(at(heap.segmap, (addr.0 - heap.low.0) >> heap.log)?)?;
        Ok(segment)
    }

    /// A block's length in bytes, and whether it is in use.
    fn block(&mut self, heap: Heap, block: Addr) -> Result<(u64, bool)> {
        let length = at(block, self.layout.block_length)?;
        let length = match self.layout.block_length_is_long {
            true => self.pages.u64(length)?,
            false => self.pages.u32(length)?.into(),
        };
        let [used] = self.pages.array(at(block, self.layout.block_used)?)?;
        let bytes = length.checked_mul(1 << heap.log);
        let bytes = bytes.filter(|&n| n > 0 && n <= heap.high.0.saturating_sub(block.0));
        let bytes = bytes.ok_or_else(|| Error::layout("a block of an implausible length"))?;
        Ok((bytes, used != 0))
    }

    fn blob(&mut self, blob: Addr, room: u64) -> Result<Option<Blob>> {
        let (pages, layout) = (&mut self.pages, &self.layout);
        let size = u64::from(pages.u32(at(blob, layout.blob_size)?)?);
        let end = u64::from(pages.u32(at(blob, layout.blob_data)?)?);
        let begin = match layout.code_begin {
            Place::Address(field) => pages.pointer(at(blob, field)?)?,
            Place::Offset(field) => at(blob, pages.u32(at(blob, field)?)?.into())?,
        };
        let end = at(blob, end)?;
        if size > room.min(MAX_BLOB) || begin < blob || end <= begin || end.0 - blob.0 > room {
            return Ok(None);
        }
        let name = pages.pointer(at(blob, layout.blob_name)?)?;
        let is_method = matches!(&*pages.name(name)?, "nmethod" | "native nmethod");
        let (method, compile_id) = match is_method {
            true => (
                Some(pages.pointer(at(blob, layout.method)?)?),
                pages.u32(at(blob, layout.compile_id)?)?,
            ),
            false => (None, 0),
        };
        Ok(Some(Blob { at: blob, begin, end, name, method, compile_id }))
    }

    /// Names a piece of code.
    pub(super) fn code(&mut self, blob: Blob) -> Option<Code> {
        let Some(method) = blob.method else {
            let name = self.pages.name(blob.name).ok()?;
            let is_interpreter = name == "Interpreter";
            let kind = if is_interpreter { CodeKind::Interpreter } else { CodeKind::Stub };
            return Some(Code::new(kind, &name));
        };
        let info = self.methods.get(&mut self.pages, method)?;
        // Without debug information the method still has its name.
        let inlined = self.scopes.inlined(&mut self.pages, &mut self.methods, blob);
        Some(Code {
            kind: CodeKind::Method,
            name: Arc::clone(&info.name),
            signature: info.signature.clone(),
            inlined: inlined.unwrap_or_default().into(),
        })
    }

    /// Whether a piece of code is still what it was: asks the JVM, not what was read of it.
    pub(super) fn is_still(&self, memory: &Memory, blob: Blob) -> bool {
        let field = |offset| at(blob.at, offset);
        let name = field(self.layout.blob_name).and_then(|at| memory.pointer(at));
        if name.ok() != Some(blob.name) {
            return false;
        }
        let Some(method) = blob.method else { return true };
        let now = field(self.layout.method).and_then(|at| memory.pointer(at));
        let id = field(self.layout.compile_id).and_then(|at| memory.u32(at));
        now.ok() == Some(method) && id.ok() == Some(blob.compile_id)
    }
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
            ("nmethod", "_compile_id", 56),
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

    /// Finds the code at an address as one does who comes from there.
    fn find(fake: &Fake, structs: &VmStructs, addr: Addr) -> Result<Option<Blob>> {
        let memory = own_memory();
        let mut reader = Reader::new(&memory, structs, 17, Inlining::Everywhere)?;
        let heaps: Result<Vec<_>> =
            heaps(&memory, structs)?.into_iter().map(|heap| reader.place(heap)).collect();
        let found = reader.find(&heaps?, addr)?;
        if let Some(blob) = found {
            let _ = reader.code(blob);
            assert!(reader.is_still(&memory, blob) || fake.code != addr);
        }
        Ok(found)
    }

    #[test]
    fn finds_the_method_from_any_of_its_addresses() {
        let fake = fake();
        let structs = fake.image.read().unwrap();
        for offset in [0, 1, 47] {
            let found = find(&fake, &structs, Addr(fake.code.0 + offset)).unwrap().unwrap();
            assert_eq!((found.begin, found.end), (fake.code, Addr(fake.code.0 + 48)));
        }
        for addr in [fake.code.0 - 1, fake.code.0 + 48, fake.code.0 + 100, 0, u64::MAX] {
            assert_eq!(find(&fake, &structs, Addr(addr)).unwrap(), None, "{addr:x}");
        }
    }

    #[test]
    fn names_the_field_that_is_missing() {
        let mut image = Image::new();
        image.field("Method", "_constMethod", 0);
        image.finish();
        let error = read(&own_memory(), &image.read().unwrap(), 17, Inlining::Nowhere);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this JVM has no"), "{error}");
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
            let _ = find(&fake, &structs, Addr(fake.code.0 + 20));
        }
    }
}
