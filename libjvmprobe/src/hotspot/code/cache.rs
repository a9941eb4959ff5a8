//! Contents of the blocks in a JVM's code cache: methods, stubs, the interpreter.
//!
//! Sources: hotspot/share/code/codeBlob.hpp, code/nmethod.hpp.

use std::{collections::BTreeSet, sync::Arc};

use crate::{
    Addr, Error, Result,
    hotspot::{
        code::{
            Inlining, PartField, at,
            heap::{Blocks, Heap, HeapBlock, heaps},
            monitors::FrameMonitor,
            scopes::Scopes,
        },
        layout::Item,
        methods::Methods,
        pages::Pages,
        resolved::Layout,
    },
    names::code::{Code, CodeKind},
    process::memory::Memory,
};

/// Plausibility limit for the size of a blob in bytes.
const MAX_BLOB: u64 = 64 << 20;
/// Maximum number of pieces of code. Large JVMs have some hundred thousand.
const MAX_CODE: usize = 1 << 22;
/// Maximum total length of the names of stubs. A JVM has some thousand stubs with short names.
const MAX_STUB_NAMES: usize = 16 << 20;
/// Plausibility limit for the number of inlined methods.
const MAX_INLINED: usize = 1 << 20;
/// Number of words that show whether a piece of code is still there.
pub(super) const MARKS: usize = 4;

/// Offsets of a blob's fields.
struct Fields {
    name: u64,
    size: u64,
    data: u64,
    code_begin: PartField,
    method: u64,
    compile_id: u64,
}

impl Fields {
    fn read(layout: &Layout) -> Result<Self> {
        let code_begin = match layout.get(Item::BlobCodeBegin) {
            _ if layout.is_jdk_8() => PartField::Offset(layout.get(Item::BlobCodeOffset8)?),
            Ok(field) => PartField::Address(field),
            Err(_) => PartField::Offset(layout.get(Item::BlobCodeOffset)?),
        };
        Ok(Self {
            name: layout.get(Item::BlobName)?,
            size: layout.get(Item::BlobSize)?,
            data: layout.get(Item::BlobData)?,
            code_begin,
            method: layout.get(Item::CodeMethod)?,
            compile_id: layout.get(Item::CompileId)?,
        })
    }
}

/// Reads all code: methods, the interpreter, stubs; with inlined methods where `inlining` requests
/// them.
///
/// # Errors
/// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has
/// exited.
pub(in crate::hotspot) fn read(
    memory: &Memory,
    layout: &Layout,
    inlining: Inlining<'_>,
) -> Result<CodeList> {
    let pages = &mut Pages::sequential(memory);
    let mut blobs = Blobs::new(layout, inlining)?;
    let mut methods = Methods::new(layout)?;
    let mut found = CodeList::default();
    for heap in heaps(pages, layout)? {
        blobs.each(pages, &heap, |blobs, pages, blob| {
            if !found.is_full
                && let Some(code) = blobs.code(pages, &mut methods, blob)
            {
                found.push(blob, code);
            }
        })?;
        if found.is_full {
            break;
        }
    }
    Ok(found)
}

/// Code that was read, within limits that only a hostile JVM exceeds.
#[derive(Debug, Default)]
pub(in crate::hotspot) struct CodeList {
    /// Address, size in bytes, and name of each piece.
    pub(in crate::hotspot) code: Vec<(Addr, u64, Code)>,
    /// Total length of the names of stubs.
    stub_names: usize,
    /// Whether a limit was reached, and further code was left out.
    pub(in crate::hotspot) is_full: bool,
}

impl CodeList {
    fn push(&mut self, blob: Blob, code: Code) {
        // The cache of methods limits their names.
        self.stub_names += if blob.method.is_none() { code.name.len() } else { 0 };
        self.is_full = self.code.len() >= MAX_CODE || self.stub_names > MAX_STUB_NAMES;
        if !self.is_full {
            self.code.push((blob.begin, blob.end.0 - blob.begin.0, code));
        }
    }
}

/// Returns the methods that are inlined into other methods' code, sorted, each once. Skips code whose debug
/// information cannot be read.
///
/// # Errors
/// The errors of [`read`].
pub(in crate::hotspot) fn inlined(memory: &Memory, layout: &Layout) -> Result<Vec<Addr>> {
    let pages = &mut Pages::sequential(memory);
    let mut blobs = Blobs::new(layout, Inlining::Nowhere)?;
    let mut found = BTreeSet::new();
    for heap in heaps(pages, layout)? {
        blobs.each(pages, &heap, |blobs, pages, blob| {
            if found.len() <= MAX_INLINED
                && let Some(own) = blob.method
                && let Ok(methods) = blobs.scopes.inlined_methods(pages, blob)
            {
                found.extend(methods.into_iter().filter(|&method| method != own));
            }
        })?;
    }
    if found.len() > MAX_INLINED {
        return Err(Error::layout("implausible number of inlined methods"));
    }
    Ok(found.into_iter().collect())
}

/// A piece of code. [`Blobs::code`] returns its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) struct Blob {
    /// Address of its CodeBlob, and the CodeBlob's size in bytes, including all data in it. Up to JDK 22,
    /// these data include the debug information.
    pub(crate) at: Addr,
    pub(crate) size: u64,
    /// Address of its first instruction, and of the first byte after the last one.
    pub(crate) begin: Addr,
    pub(crate) end: Addr,
    /// Address of the byte that is nonzero while its block is in use.
    used: Addr,
    name: Addr,
    /// Its Method, if it is a compiled method.
    method: Option<Addr>,
    /// Distinguishes methods that occupy the same address one after the other.
    pub(crate) compile_id: u32,
}

/// Reads the contents of blocks.
pub(in crate::hotspot) struct Blobs<'a> {
    fields: Fields,
    blocks: Blocks,
    scopes: Scopes<'a>,
}

impl<'a> Blobs<'a> {
    pub(crate) fn new(layout: &Layout, inlining: Inlining<'a>) -> Result<Self> {
        Ok(Self {
            fields: Fields::read(layout)?,
            blocks: Blocks::read(layout)?,
            scopes: Scopes::new(layout, inlining)?,
        })
    }

    /// Visits the code of a heap. Skips inconsistent blocks, which are being created or discarded.
    fn each(
        &mut self,
        pages: &mut Pages<'_>,
        heap: &Heap,
        mut visit: impl FnMut(&mut Self, &mut Pages<'_>, Blob),
    ) -> Result<()> {
        self.blocks.clone().each(pages, heap, |pages, block| {
            if let Ok(Some(blob)) = self.blob(pages, block) {
                visit(self, pages, blob);
            }
        })
    }

    /// Returns the code that contains an address.
    pub(crate) fn find(
        &self,
        pages: &mut Pages<'_>,
        heaps: &[Heap],
        addr: Addr,
    ) -> Result<Option<Blob>> {
        let Some(block) = self.blocks.find(pages, heaps, addr)? else { return Ok(None) };
        let blob = self.blob(pages, block)?;
        Ok(blob.filter(|blob| (blob.begin..blob.end).contains(&addr)))
    }

    /// Returns addresses of 64-bit words that [show](Self::is_unchanged) whether a piece of code is
    /// still there.
    pub(crate) fn marks(&self, blob: &Blob) -> [Addr; MARKS] {
        let field = |offset| Addr(blob.at.0.wrapping_add(offset));
        let Fields { name, method, compile_id, .. } = self.fields;
        match blob.method {
            Some(_) => [blob.used, field(name), field(method), field(compile_id)],
            None => [blob.used, field(name), field(name), field(name)],
        }
    }

    /// Whether a piece of code is still there, given the current values of its marks. A value is `None` if
    /// it cannot be read.
    pub(crate) fn is_unchanged(blob: &Blob, marks: &[Option<u64>; MARKS]) -> bool {
        let &[Some(used), Some(name), Some(method), Some(id)] = marks else { return false };
        let is_same = |known: Addr| method == known.0 && id as u32 == blob.compile_id;
        used as u8 != 0 && name == blob.name.0 && blob.method.is_none_or(is_same)
    }

    /// Returns the monitors that the frames at a return address in a method's code have entered: see
    /// [`Scopes::monitors`].
    pub(super) fn monitors(
        &self,
        pages: &mut Pages<'_>,
        blob: Blob,
        pc: Addr,
    ) -> Result<Vec<Vec<FrameMonitor>>> {
        match blob.method {
            Some(_) => self.scopes.monitors(pages, blob, pc),
            None => Ok(Vec::new()),
        }
    }

    fn blob(&self, pages: &mut Pages<'_>, block: HeapBlock) -> Result<Option<Blob>> {
        let (fields, HeapBlock { blob, bytes: capacity, used }) = (&self.fields, block);
        let size = u64::from(pages.u32(at(blob, fields.size)?)?);
        let end = u64::from(pages.u32(at(blob, fields.data)?)?);
        let begin = fields.code_begin.read(pages, blob)?;
        let end = at(blob, end)?;
        if size > capacity.min(MAX_BLOB)
            || begin < blob
            || end <= begin
            || end.0 - blob.0 > capacity
        {
            return Ok(None);
        }
        let name = pages.pointer(at(blob, fields.name)?)?;
        let is_method = matches!(&*pages.name(name)?, "nmethod" | "native nmethod");
        let (method, compile_id) = match is_method {
            true => (
                Some(pages.pointer(at(blob, fields.method)?)?),
                pages.u32(at(blob, fields.compile_id)?)?,
            ),
            false => (None, 0),
        };
        Ok(Some(Blob { at: blob, size, begin, end, used, name, method, compile_id }))
    }

    /// Returns a piece of code with its name and inlined methods.
    pub(crate) fn code(
        &mut self,
        pages: &mut Pages<'_>,
        methods: &mut Methods,
        blob: Blob,
    ) -> Option<Code> {
        let Some(method) = blob.method else {
            let name = pages.name(blob.name).ok()?;
            let is_interpreter = name == "Interpreter";
            let kind = if is_interpreter { CodeKind::Interpreter } else { CodeKind::Stub };
            return Some(Code::new(kind, &name));
        };
        let info = methods.get(pages, method)?;
        // If the debug information is unreadable, the method still has its name.
        let inlined = self.scopes.inlined(pages, methods, blob);
        Some(Code {
            kind: CodeKind::Method,
            name: Arc::clone(&info.name),
            signature: info.signature.clone(),
            origin: info.origin.clone(),
            inlined: inlined.unwrap_or_default().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        hotspot::testing::{CODE_FIELDS, Image, own_memory, symbol, u32s},
        stack::name::frames_of,
    };

    /// A code cache with the structure of JDK 17, with one method, `A.b(int)`, in one heap.
    struct Fake {
        image: Image,
        code: Addr,
    }

    fn fake() -> Fake {
        fake_of("A", "b", "(I)V")
    }

    fn fake_of(class: &str, name: &str, descriptor: &str) -> Fake {
        let mut image = Image::new();
        let image_ref = &mut image;
        let class_name = symbol(image_ref, class);
        let class = image_ref.put(&[class_name.0]);
        let (name, descriptor) = (symbol(image_ref, name), symbol(image_ref, descriptor));
        // Words of a ConstantPool: holder, one more word, then entries 0 to 2.
        let pool = image_ref.put(&[class.0, 0, 0, name.0, descriptor.0]);
        // Words of a ConstMethod: pool, then flags, code size, indexes of name and descriptor.
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
        for (class, field, offset) in CODE_FIELDS {
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
    fn read_returns_the_compiled_method() {
        let fake = fake();
        let found = read(&own_memory(), &fake.image.read().unwrap(), Inlining::Everywhere);
        let found = found.unwrap();
        let [(begin, size, code)] = &found.code[..] else { panic!("{found:?}") };
        assert_eq!((*begin, *size), (fake.code, 48));
        assert_eq!((&*code.name, code.signature.as_deref()), ("A.b", Some("(int)")));
    }

    #[test]
    fn frame_of_a_method_with_long_names_is_small() {
        let long = |letter: &str| letter.repeat(6_000);
        let fake = fake_of(&long("C"), &long("m"), &format!("(L{};)V", long("p")));
        let found = read(&own_memory(), &fake.image.read().unwrap(), Inlining::Nowhere).unwrap();
        let [(begin, _, code)] = &found.code[..] else { panic!("{found:?}") };
        assert!(code.name.starts_with("CCC") && code.name.contains(".mmm"), "{}", code.name);
        assert_eq!(code.signature.as_deref(), Some("(…)"));
        let mut frames = Vec::new();
        for signatures in [false, true] {
            frames_of(code, *begin, signatures, &mut frames);
        }
        assert_eq!(frames.len(), 2);
        for frame in frames {
            // Its size includes the name.
            assert!((2048..2400).contains(&frame.size()), "{}", frame.size());
        }
    }

    /// Finds the code at an address, and names it.
    fn find(layout: &Layout, addr: Addr) -> Result<Option<Blob>> {
        let memory = own_memory();
        let pages = &mut Pages::sequential(&memory);
        let heaps = heaps(pages, layout)?;
        let mut blobs = Blobs::new(layout, Inlining::Everywhere)?;
        let found = blobs.find(pages, &heaps, addr)?;
        if let Some(blob) = found {
            let _ = blobs.code(pages, &mut Methods::new(layout)?, blob);
        }
        Ok(found)
    }

    #[test]
    fn find_returns_the_method_at_any_inner_address() {
        let fake = fake();
        let layout = fake.image.read().unwrap();
        for offset in [0, 1, 47] {
            let found = find(&layout, Addr(fake.code.0 + offset)).unwrap().unwrap();
            assert_eq!((found.begin, found.end), (fake.code, Addr(fake.code.0 + 48)));
        }
        for addr in [fake.code.0 - 1, fake.code.0 + 48, fake.code.0 + 100, 0, u64::MAX] {
            assert_eq!(find(&layout, Addr(addr)).unwrap(), None, "{addr:x}");
        }
    }

    #[test]
    fn freed_or_replaced_code_is_detected() {
        let fake = fake();
        let layout = fake.image.read().unwrap();
        let blob = find(&layout, fake.code).unwrap().unwrap();
        let blobs = Blobs::new(&layout, Inlining::Nowhere).unwrap();
        let marks = own_memory().words(&blobs.marks(&blob)).unwrap();
        let marks = marks.try_into().unwrap();
        assert!(Blobs::is_unchanged(&blob, &marks));
        for changed in 0..MARKS {
            for other in [None, Some(0x100)] {
                let mut marks = marks;
                marks[changed] = other;
                assert!(!Blobs::is_unchanged(&blob, &marks), "{changed} {other:?}");
            }
        }
        let stub = Blob { method: None, ..blob };
        assert!(Blobs::is_unchanged(&stub, &[marks[0], marks[1], marks[1], marks[1]]));
    }

    #[test]
    fn total_length_of_the_names_of_stubs_is_limited() {
        let fake = fake();
        let blob = find(&fake.image.read().unwrap(), fake.code).unwrap().unwrap();
        let name = "x".repeat(1 << 10);
        let mut found = CodeList::default();
        for _ in 0..2 * (MAX_STUB_NAMES >> 10) {
            found.push(blob, Code::new(CodeKind::Method, &name));
        }
        assert!(!found.is_full);
        let methods = found.code.len();
        for _ in 0..2 * (MAX_STUB_NAMES >> 10) {
            found.push(Blob { method: None, ..blob }, Code::new(CodeKind::Stub, &name));
        }
        assert!(found.is_full);
        assert_eq!(found.code.len() - methods, MAX_STUB_NAMES >> 10);
    }

    #[test]
    fn error_names_the_missing_field() {
        let mut image = Image::new();
        image.field("Method", "_constMethod", 0);
        image.finish();
        let error = read(&own_memory(), &image.read().unwrap(), Inlining::Nowhere);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("this JVM has no"), "{error}");
    }

    proptest! {
        #[test]
        fn hostile_structures_do_not_panic(
            damage in prop::collection::vec((any::<usize>(), any::<u64>()), 0..6),
            small in prop::collection::vec((any::<usize>(), 0..4096_u64), 0..6),
        ) {
            let mut fake = fake();
            let layout = fake.image.read().unwrap();
            for (index, value) in damage.into_iter().chain(small) {
                fake.image.damage(index, value);
            }
            let _ = read(&own_memory(), &layout, Inlining::Everywhere);
            let _ = read(&own_memory(), &layout.of_jdk(21), Inlining::At(&[fake.code]));
            let _ = find(&layout, Addr(fake.code.0 + 20));
        }
    }
}
