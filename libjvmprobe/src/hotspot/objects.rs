//! Counts the objects in a range of the Java heap by class.
//!
//! Sources: hotspot/share/oops/{oop,arrayOop,klass,instanceMirrorKlass,markWord}.hpp. In a
//! TLAB objects lie without gaps, each with its class in its header. The size of an object follows from
//! its class's layout helper and, if it is an array, from its length. The next object begins after it, so
//! only the headers are examined.
//!
//! The target runs on and may collect garbage meanwhile. Therefore a result is valid only if the last
//! object ends exactly at the end of the range. In memory that was reused meanwhile, the sizes of the
//! objects do not add up to the size of the range.

use std::{collections::HashMap, time::Duration};

use crate::{
    Addr, Error, Result,
    hotspot::{
        classes::ClassLayout, flags::Flags, layout::Item, resolved::Layout, threads::MAX_TLAB,
    },
    process::{memory::Memory, reader::within},
};

/// Number of bytes read at once. Larger objects are skipped, not read.
const CHUNK: usize = 64 << 10;
/// The part of an object that is examined: mark, class, array length.
const HEADER: usize = 24;
/// Maximum number of classes in one range. The largest TLABs hold several hundred thousand objects, but of
/// fewer classes.
const MAX_CLASSES: usize = 1 << 17;
/// Maximum number of objects in one range, about a second of work. Protects against ranges that do not contain objects.
const MAX_OBJECTS: u64 = 1 << 25;
/// Maximum time for reading the memory of one range and of the classes in it. Protects against ranges that do not
/// contain objects, and against memory that answers slowly.
const MAX_TIME: Duration = Duration::from_secs(1);
/// With compact headers the class is in the highest bits of the mark (markWord::klass_shift).
pub(crate) const COMPACT_SHIFT: u32 = 42;
/// Klass::_lh_log2_element_size_mask.
const LOG2_MASK: i32 = 63;

/// Totals of the objects of one class in a range of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassCount {
    /// Number of objects.
    pub objects: u64,
    /// Their total size.
    pub bytes: u64,
}

/// Object layout of a JVM.
#[derive(Clone, Copy, Debug)]
struct ObjectLayout {
    class: ClassField,
    alignment: u64,
    /// Offset in a Class object of the field that holds the object's size in words
    /// (`java_lang_Class::_oop_size_offset`).
    mirror_size_at: Option<u64>,
}

/// How an object's header refers to its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassField {
    /// Address of the class, after the mark.
    Pointer,
    /// Compressed class pointer of 32 bits, after the mark.
    Compressed {
        /// Added to the shifted number.
        base: u64,
        /// Number of bits by which the number is shifted left.
        shift: u32,
    },
    /// Compressed class pointer in the highest bits of the mark, from [`COMPACT_SHIFT`] on.
    Compact {
        /// Added to the shifted number.
        base: u64,
        /// Number of bits by which the number is shifted left.
        shift: u32,
    },
}

/// Where the header of an object contains the class, for the BPF side. For a class pointer of 4 bytes, the class is at
/// `base + (number << shift)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassPlace {
    /// Size of the class pointer in bytes.
    pub(crate) bytes: u32,
    /// Its offset in the header, in bytes.
    pub(crate) at: u32,
    /// Its lowest bit at that offset.
    pub(crate) bit: u32,
    /// Number of bits by which it is shifted left.
    pub(crate) shift: u32,
    /// Added to the shifted number.
    pub(crate) base: u64,
}

impl ClassField {
    /// Returns the place of the class in an object's header.
    pub(crate) fn place(self) -> ClassPlace {
        /// Offset of the class field: it follows the 8-byte mark word.
        const AFTER_MARK: u32 = 8;
        let (at, bytes, bit, base, shift) = match self {
            Self::Pointer => (AFTER_MARK, 8, 0, 0, 0),
            Self::Compressed { base, shift } => (AFTER_MARK, 4, 0, base, shift),
            Self::Compact { base, shift } => (0, 4, COMPACT_SHIFT, base, shift),
        };
        ClassPlace { bytes, at, bit, shift, base }
    }

    /// Determines the form that a JVM uses.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, or if the shift is implausible.
    pub(super) fn read(memory: &Memory, layout: &Layout, flags: &Flags) -> Result<Self> {
        let on = |name| flags.flag_bool(memory, name) == Some(true);
        let compressed = || -> Result<(u64, u32)> {
            let base = layout.address(Item::NarrowKlassBase)?;
            let shift = layout.address(Item::NarrowKlassShift)?;
            match memory.u32(shift)? {
                shift @ 0..32 => Ok((memory.u64(base)?, shift)),
                shift => Err(Error::layout(format!("a shift of {shift} bits is implausible"))),
            }
        };
        if on("UseCompactObjectHeaders") {
            compressed().map(|(base, shift)| Self::Compact { base, shift })
        } else if on("UseCompressedClassPointers") {
            compressed().map(|(base, shift)| Self::Compressed { base, shift })
        } else {
            Ok(Self::Pointer)
        }
    }
}

/// How the size of a class's objects is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Fixed(u64),
    Array {
        header: u64,
        log2: u32,
    },
    Mirror(u64),
    /// Cannot be determined from the header.
    Unknown,
}

/// Counts objects by class; caches the shapes of classes.
#[derive(Debug)]
pub struct Objects {
    layout: ObjectLayout,
    classes: ClassLayout,
    shapes: HashMap<u64, Shape>,
    buffer: Vec<u8>,
    /// For the current range: index of each class in `found`.
    numbers: HashMap<u64, usize>,
    found: Vec<(Addr, Shape, ClassCount)>,
    /// Cache of recent classes with their indexes, because most objects are of few classes.
    recent: [(u64, usize); 64],
}

impl Objects {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, or if the object alignment is implausible.
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let flags = Flags::read(memory, layout)?;
        let class = ClassField::read(memory, layout, &flags)?;
        let alignment = flags.flag_u64(memory, "ObjectAlignmentInBytes").unwrap_or(8);
        if !alignment.is_power_of_two() || !(8..=256).contains(&alignment) {
            return Err(Error::layout(format!(
                "implausible object alignment of {alignment} bytes"
            )));
        }
        let mirror = layout.try_address(Item::MirrorSize);
        let mirror_size_at = mirror.and_then(|at| memory.u32(at).ok()).map(u64::from);
        Ok(Self {
            layout: ObjectLayout { class, alignment, mirror_size_at },
            classes: ClassLayout::read(layout)?,
            shapes: HashMap::new(),
            buffer: Vec::new(),
            numbers: HashMap::new(),
            found: Vec::new(),
            recent: [(0, 0); 64],
        })
    }

    /// Counts the objects in a range of the heap by class.
    ///
    /// # Errors
    /// [`Error::Layout`] if the range does not consist of objects up to its exact end,
    /// [`Error::Memory`] if it is not mapped, or if reading it takes longer than a second.
    pub(crate) fn count(
        &mut self,
        memory: &Memory,
        start: Addr,
        size: u64,
    ) -> Result<impl Iterator<Item = (Addr, ClassCount)> + '_> {
        let counted = within(MAX_TIME, || self.count_all(memory, start, size));
        // Each JVM has its own reader, and there may be hundreds of JVMs, so the buffer is freed.
        self.buffer = Vec::new();
        counted?;
        Ok(self.found.iter().map(|&(klass, _, count)| (klass, count)))
    }

    fn count_all(&mut self, memory: &Memory, start: Addr, size: u64) -> Result<()> {
        self.numbers.clear();
        self.found.clear();
        self.recent = [(0, 0); 64];
        if size > MAX_TLAB {
            return Err(Error::layout("implausible size of a TLAB"));
        }
        let (mut at, mut objects) = (0, 0);
        // The part of the range that is in the buffer, as offsets from `start`.
        let mut buffered = 0..0;
        while at < size {
            if at + HEADER as u64 > buffered.end && buffered.end < size || at >= buffered.end {
                let len = (size - at).min(CHUNK as u64);
                self.buffer.resize(len as usize, 0);
                let from = start
                    .checked_add(at)
                    .ok_or_else(|| Error::layout("the address of a TLAB overflows"))?;
                memory.read_into(from, &mut self.buffer)?;
                buffered = at..at + len;
            }
            let offset = (at - buffered.start) as usize;
            let number = self.number(memory, offset)?;
            objects += 1;
            if objects > MAX_OBJECTS {
                return Err(Error::layout("too many objects in a TLAB"));
            }
            let object = start.0.wrapping_add(at);
            let bytes = self.size(memory, number, offset, Addr(object))?;
            if bytes == 0 || bytes > size - at {
                return Err(Error::layout("the last object does not end at the end of the TLAB"));
            }
            if let Some((_, _, count)) = self.found.get_mut(number) {
                count.objects += 1;
                count.bytes += bytes;
            }
            at += bytes;
        }
        Ok(())
    }

    /// Clears the cached shapes, because a class's address may be reused.
    pub(crate) fn forget_classes(&mut self) {
        self.shapes.clear();
    }

    fn field<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        let bytes = self.buffer.get(offset..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| Error::layout("an object extends beyond its TLAB"))
    }

    /// Returns the index into `found` for the class of the object at an offset in the buffer.
    fn number(&mut self, memory: &Memory, offset: usize) -> Result<usize> {
        let class = self.layout.class;
        // An object with a compact header may have no second word.
        let second = match class {
            ClassField::Compact { .. } => [0; 8],
            ClassField::Pointer | ClassField::Compressed { .. } => self.field(offset + 8)?,
        };
        let Addr(klass) = class.klass(self.field(offset)?, second);
        let slot = (klass >> 3 ^ klass >> 9) as usize % self.recent.len();
        if self.recent[slot].0 == klass && klass != 0 {
            return Ok(self.recent[slot].1);
        }
        let number = match self.numbers.get(&klass) {
            Some(&number) => number,
            None => {
                let number = self.found.len();
                if number >= MAX_CLASSES {
                    return Err(Error::layout("too many classes in a TLAB"));
                }
                let shape = self.shape(memory, klass)?;
                self.found.push((Addr(klass), shape, ClassCount::default()));
                self.numbers.insert(klass, number);
                number
            }
        };
        self.recent[slot] = (klass, number);
        Ok(number)
    }

    fn size(&mut self, memory: &Memory, number: usize, offset: usize, object: Addr) -> Result<u64> {
        let shape = self.found.get(number).map_or(Shape::Unknown, |found| found.1);
        match shape {
            Shape::Fixed(size) => Ok(size),
            Shape::Array { header, log2 } => {
                let length =
                    u32::from_ne_bytes(self.field(offset + self.layout.class.header_bytes())?);
                let size = header + (u64::from(length) << log2);
                Ok(size.next_multiple_of(self.layout.alignment))
            }
            Shape::Mirror(at) => {
                let words = match self.field(offset.saturating_add(at as usize)) {
                    Ok(bytes) => u32::from_ne_bytes(bytes),
                    // The buffer ends within the object.
                    Err(_) => {
                        let at = object.checked_add(at).ok_or_else(|| {
                            Error::layout("the address of a java.lang.Class object overflows")
                        })?;
                        memory.u32(at)?
                    }
                };
                Ok(u64::from(words) * 8)
            }
            Shape::Unknown => Err(Error::layout("the size of an object is unknown")),
        }
    }

    fn shape(&mut self, memory: &Memory, klass: u64) -> Result<Shape> {
        if let Some(shape) = self.shapes.get(&klass) {
            return Ok(*shape);
        }
        if klass == 0 || !klass.is_multiple_of(8) {
            return Err(Error::layout("an object has no valid class pointer"));
        }
        let at = Addr(klass).checked_add(self.classes.layout_helper);
        let helper = memory
            .u32(at.ok_or_else(|| Error::layout("the address of a class overflows"))?)?
            .cast_signed();
        let symbol = self.classes.name_of(memory, Addr(klass))?;
        let (name, _) = self.classes.symbol(memory, symbol)?;
        let shape = self.shape_of(helper, &name);
        if self.shapes.len() >= MAX_CLASSES {
            self.shapes.clear();
        }
        self.shapes.insert(klass, shape);
        Ok(shape)
    }

    fn shape_of(&self, helper: i32, name: &[u8]) -> Shape {
        match (helper, name) {
            (_, b"java/lang/Class") => {
                self.layout.mirror_size_at.map_or(Shape::Unknown, Shape::Mirror)
            }
            // Its size depends on the stack that it holds.
            (_, b"jdk/internal/vm/StackChunk") => Shape::Unknown,
            (..0, _) => Shape::Array {
                header: u64::from((helper >> 16 & 0xff).cast_unsigned()),
                log2: (helper & LOG2_MASK).cast_unsigned().min(32),
            },
            // The lowest bits are flags, not part of the size.
            (1.., _) => Shape::Fixed(u64::from(helper.cast_unsigned() & !7)),
            (0, _) => Shape::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hotspot::testing::{Image, own_memory, symbol};

    /// `layout_helper` of `int[]` with a header of 24 bytes.
    const INTS: u64 = 0xc018_0a02;

    /// A JVM without compressed class pointers and without flags, and its classes: one with objects of
    /// 32 bytes, an array of ints, java.lang.Class.
    fn jvm() -> (Image, [u64; 3]) {
        let mut image = Image::new();
        let names = ["a/B", "[I", "java/lang/Class"].map(|name| symbol(&mut image, name).0);
        let classes = [(33, names[0]), (INTS, names[1]), (112, names[2])]
            .map(|(helper, name)| image.put(&[helper, name]).0);
        image.flags(Addr(0), 0);
        let mirror = image.put(&[24]);
        image.static_field("java_lang_Class", "_oop_size_offset", mirror);
        image.field("Klass", "_layout_helper", 0);
        image.field("Klass", "_name", 8);
        image.field("Symbol", "_length", 0);
        image.field("Symbol", "_body", 6);
        image.finish();
        (image, classes)
    }

    fn reader(image: &Image) -> Objects {
        Objects::new(&own_memory(), &image.read().unwrap()).unwrap()
    }

    fn count(objects: &mut Objects, heap: &[u64]) -> Result<Vec<(u64, ClassCount)>> {
        let start = Addr(heap.as_ptr() as u64);
        let counts = objects.count(&own_memory(), start, heap.len() as u64 * 8)?;
        Ok(counts.map(|(klass, count)| (klass.0, count)).collect())
    }

    /// Two plain objects, an array of 5 ints (48 bytes with padding), a Class of 6 words.
    fn heap([plain, ints, class]: [u64; 3]) -> Vec<u64> {
        let mut heap = vec![1, plain, 0, 0, 1, plain, 0, 0];
        heap.extend([1, ints, 5, 0, 0, 0]);
        heap.extend([1, class, 0, 6, 0, 0]);
        heap
    }

    #[test]
    fn objects_and_bytes_are_counted_per_class() {
        let (image, classes) = jvm();
        let counts = count(&mut reader(&image), &heap(classes)).unwrap();
        let expected =
            [(2, 64), (1, 48), (1, 48)].map(|(objects, bytes)| ClassCount { objects, bytes });
        let expected: Vec<_> = classes.into_iter().zip(expected).collect();
        assert_eq!(counts, expected);
    }

    #[test]
    fn objects_larger_than_a_chunk_are_counted() {
        let (image, classes) = jvm();
        let mut all = heap(classes);
        // 80,000 ints: longer than CHUNK.
        all.extend([1, classes[1], 80_000]);
        all.extend(vec![u64::MAX; 40_000]);
        all.extend([1, classes[0], 0, 0]);
        let counts = count(&mut reader(&image), &all).unwrap();
        assert_eq!(counts[0].1, ClassCount { objects: 3, bytes: 96 });
        assert_eq!(counts[1].1, ClassCount { objects: 2, bytes: 48 + 24 + 320_000 });
    }

    #[test]
    fn range_that_is_too_large_or_takes_too_long_is_rejected() {
        let (image, classes) = jvm();
        let mut objects = reader(&image);
        let start = Addr(heap(classes).as_ptr() as u64);
        assert!(objects.count(&own_memory(), start, MAX_TLAB + 1).is_err());
        // The time is over at once.
        assert!(within(Duration::ZERO, || count(&mut objects, &heap(classes))).is_err());
    }

    #[test]
    fn class_object_at_the_end_of_a_chunk_is_counted() {
        let (image, [plain, ints, class]) = jvm();
        // Arrays without elements, of 24 bytes, so that only the header of the last object is in the first chunk.
        let mut all = [1, ints, 0].repeat(3);
        all.extend([1, plain, 0, 0].repeat((CHUNK - 4 * 24) / 32));
        assert_eq!(all.len() * 8, CHUNK - HEADER);
        all.extend([1, class, 0, 6, 0, 0]);
        let counts = count(&mut reader(&image), &all).unwrap();
        assert_eq!(counts[2], (class, ClassCount { objects: 1, bytes: 48 }));
    }

    #[test]
    fn range_ending_within_an_object_is_rejected() {
        let (image, classes) = jvm();
        let mut objects = reader(&image);
        let all = heap(classes);
        for cut in 1..all.len() {
            // These cuts lie between objects: after the first one, the second one and the array.
            let is_whole = [4, 8, 14].contains(&cut);
            assert_eq!(count(&mut objects, &all[..cut]).is_ok(), is_whole, "{cut}");
        }
        assert!(objects.count(&own_memory(), Addr(8), 64).is_err());
        assert!(objects.count(&own_memory(), Addr(u64::MAX - 8), 64).is_err());
    }

    proptest! {
        #[test]
        fn hostile_heaps_do_not_panic(words in prop::collection::vec(any::<u64>(), 0..50), at in 0..20_usize, length in any::<u64>()) {
            let (image, classes) = jvm();
            let mut objects = reader(&image);
            let _ = count(&mut objects, &words);
            let mut damaged = heap(classes);
            if let Some(word) = damaged.get_mut(at) {
                *word = length;
            }
            let _ = count(&mut objects, &damaged);
        }
    }
}
