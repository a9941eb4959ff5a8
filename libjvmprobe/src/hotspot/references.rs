//! Objects of the Java heap, and the references in their fields.
//!
//! Sources: hotspot/share/oops/{oop,klass,arrayOop,compressedOops}.hpp. Some
//! callers find a field by the class of the object that the field refers to. Others know the field's offset,
//! which the module `fields` reads.
//!
//! Collectors move objects. While an object is being moved, its old copy keeps its contents and can still be
//! read. Later, the memory of the old copy is used for something else. Therefore a result is valid only if
//! each object that was read for it had the expected class. With ZGC, references to an old copy may exist for
//! a long time after its memory was reused. [`References`] finds the new copy if the JVM has the fields for it.

use crate::{
    Addr, Error, Result,
    hotspot::{
        Collector,
        flags::Flags,
        forwarding::Forwarding,
        hashing::NumberMap,
        layout::Item,
        loaded::at,
        objects::{COMPACT_SHIFT, ClassField},
        pages::{PAGE, Pages},
        processor::uncolored,
        resolved::Layout,
    },
    process::memory::Memory,
};

/// Number of bytes read of an object.
pub(super) const MAX_OBJECT: usize = 256;
/// Maximum number of layout helpers cached.
const MAX_HELPERS: usize = 4096;

/// Form of the references in objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Addresses.
    Address,
    /// 32-bit numbers, to be shifted and added to a base.
    Narrow {
        /// The base.
        base: u64,
        /// Number of bits.
        shift: u32,
    },
    /// The form of generational ZGC: metadata in the low bits, the address above them.
    Colored,
}

/// Reads objects.
#[derive(Debug)]
pub(super) struct References {
    klass_name: u64,
    symbol_length: u64,
    symbol_body: u64,
    layout_helper: u64,
    class: ClassField,
    form: Form,
    /// Whether references may lead to an object's former address (ZGC).
    pub(super) may_be_stale: bool,
    /// Finds objects that ZGC has moved; `None` for other collectors, and if the JVM lacks a field for it.
    forwarding: Option<Forwarding>,
    /// Cached layout helpers by class, because most objects are of few classes.
    helpers: NumberMap<Addr, i32>,
}

impl References {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn new(memory: &Memory, layout: &Layout) -> Result<Self> {
        let flags = Flags::read(memory, layout)?;
        let collector = Collector::from_flags(memory, &flags, layout.major);
        let may_be_stale = matches!(collector, Collector::Z | Collector::GenerationalZ);
        let form = match flags.flag_bool(memory, "UseCompressedOops") {
            _ if collector == Collector::GenerationalZ => Form::Colored,
            Some(true) if !may_be_stale => {
                let base = memory.u64(layout.address(Item::NarrowOopBase)?)?;
                match memory.u32(layout.address(Item::NarrowOopShift)?)? {
                    shift @ 0..32 => Form::Narrow { base, shift },
                    shift => {
                        let what = format!("a shift of {shift} bits is implausible");
                        return Err(Error::layout(what));
                    }
                }
            }
            // Non-generational ZGC maps its heap once for each state of the metadata bits, so every reference
            // is a valid address.
            _ => Form::Address,
        };
        let forwarding = Forwarding::read(memory, layout, collector)
            .inspect_err(|why| log::debug!("objects that ZGC has moved are not found: {why}"))
            .unwrap_or_default();
        Ok(Self {
            klass_name: layout.get(Item::KlassName)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
            layout_helper: layout.get(Item::LayoutHelper)?,
            class: ClassField::read(memory, layout, &flags)?,
            form,
            may_be_stale,
            forwarding,
            helpers: NumberMap::default(),
        })
    }

    /// Returns how objects refer to their classes.
    pub(super) fn class_field(&self) -> ClassField {
        self.class
    }

    /// Returns the form of the references.
    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Returns the size of a reference in an object, in bytes.
    pub(super) fn width(&self) -> usize {
        match self.form {
            Form::Narrow { .. } => 4,
            Form::Address | Form::Colored => 8,
        }
    }

    /// Returns the offset of an object's first field if this field is a reference.
    pub(super) fn first_reference(&self) -> u64 {
        self.class.header_bytes().next_multiple_of(self.width()) as u64
    }

    /// Returns the word by which objects refer to the object at an address; `None` if there are several such words (ZGC),
    /// or none.
    pub(super) fn encoded(&self, address: Addr) -> Option<u64> {
        let word = match self.form {
            Form::Narrow { base, shift } => address.0.checked_sub(base)? >> shift,
            Form::Address if !self.may_be_stale => address.0,
            Form::Address | Form::Colored => return None,
        };
        let width = self.width();
        (self.decoded(word.to_le_bytes()) == Some(address)
            && word.checked_shr(8 * width as u32).unwrap_or(0) == 0)
            .then_some(word)
    }

    /// Returns the form of the headers of arrays.
    pub(super) fn array_header(&self) -> ArrayHeader {
        ArrayHeader(self.class)
    }

    /// Returns the offsets at which an object may hold references, within the bytes that were read of the
    /// object. For arrays, there are none.
    pub(super) fn fields(&self, object: &Object) -> impl Iterator<Item = usize> + use<> {
        let end = object.size().unwrap_or(0).min(MAX_OBJECT);
        (object.header.next_multiple_of(self.width())..end).step_by(self.width())
    }

    /// Reads the beginning of an object.
    pub(super) fn object(&mut self, now: &mut Pages<'_>, address: Addr) -> Result<Object> {
        check(address)?;
        let mut bytes = [0; MAX_OBJECT];
        if let Err(why) = now.read(address, &mut bytes) {
            // An object smaller than MAX_OBJECT may lie at the end of the mapped part of the heap.
            let in_page = PAGE - address.0 as usize % PAGE;
            now.read(address, bytes.get_mut(..in_page).ok_or(why)?)?;
        }
        let [first, second, ..] = *bytes.as_chunks::<8>().0 else {
            return Err(Error::layout("an object has no header"));
        };
        let klass = self.class.klass(first, second);
        let helper = match self.helpers.get(&klass) {
            Some(&helper) => helper,
            None => {
                let helper = now.u32(at(klass, self.layout_helper)?)?.cast_signed();
                if self.helpers.len() >= MAX_HELPERS {
                    self.helpers.clear();
                }
                *self.helpers.entry(klass).or_insert(helper)
            }
        };
        Ok(Object { bytes, klass, header: self.class.header_bytes(), helper })
    }

    /// Returns the Klass of an object. Reads only the object's header.
    pub(super) fn class_of(&self, now: &mut Pages<'_>, address: Addr) -> Result<Addr> {
        check(address)?;
        let [first, second] = [now.array(address)?, now.array(at(address, 8)?)?];
        Ok(self.class.klass(first, second))
    }

    /// Whether an object's class has this name.
    pub(super) fn is_of(&self, now: &mut Pages<'_>, object: &Object, class: &str) -> bool {
        let mut read = || -> Result<bool> {
            let symbol = now.pointer(at(object.klass, self.klass_name)?)?;
            let length = u16::from_ne_bytes(now.array(at(symbol, self.symbol_length)?)?);
            if usize::from(length) != class.len() {
                return Ok(false);
            }
            let text = now.bytes(at(symbol, self.symbol_body)?, class.len())?;
            Ok(text == class.as_bytes())
        };
        read().unwrap_or(false)
    }

    /// Reads a field of the object at `object`, and returns the address that the field refers to.
    pub(super) fn reference_at(
        &self,
        now: &mut Pages<'_>,
        object: Addr,
        field: usize,
    ) -> Option<Addr> {
        self.read_reference(now, object, field as u64).ok().flatten()
    }

    /// Reads a field of the object at `object`, and returns the address that the field refers to; `None` for null.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no object at the address.
    pub(super) fn read_reference(
        &self,
        now: &mut Pages<'_>,
        object: Addr,
        field: u64,
    ) -> Result<Option<Addr>> {
        let mut bytes = [0; 8];
        let width = self.width();
        now.read(at(object, field)?, &mut bytes[..width])?;
        let address = self.decoded(bytes);
        address.map(|address| self.current(now, u64::from_le_bytes(bytes), address)).transpose()
    }

    /// Decodes a reference that is stored outside of the heap, and returns the present address of the object; `None`
    /// for null.
    ///
    /// # Errors
    /// The errors of [`Forwarding::current`].
    pub(super) fn read_root(&self, now: &mut Pages<'_>, word: Addr) -> Result<Option<Addr>> {
        self.root(word).map(|address| self.current(now, word.0, address)).transpose()
    }

    /// Returns the possible present addresses of an object to which a thread's lock stack refers.
    ///
    /// # Errors
    /// The errors of [`Forwarding::current`].
    pub(super) fn lock_candidates(&self, now: &mut Pages<'_>, address: Addr) -> Result<Vec<Addr>> {
        match &self.forwarding {
            Some(forwarding) if address.0 != 0 => forwarding.candidates(now, address),
            _ => Ok(vec![address]),
        }
    }

    /// Returns the possible addresses of an object to which a stack in the heap refers. The reference has the form of
    /// references on stacks or, once a collector has visited the stack, that of references in objects.
    pub(super) fn heap_lock_candidates(&self, now: &mut Pages<'_>, word: u64) -> Result<Vec<Addr>> {
        let mut candidates = self.lock_candidates(now, Addr(word))?;
        candidates.extend(match self.form {
            Form::Narrow { .. } => self.decoded((word & u64::from(u32::MAX)).to_le_bytes()),
            Form::Address | Form::Colored => self.read_root(now, Addr(word)).ok().flatten(),
        });
        Ok(candidates)
    }

    fn current(&self, now: &mut Pages<'_>, reference: u64, address: Addr) -> Result<Addr> {
        match &self.forwarding {
            Some(forwarding) => forwarding.current(now, reference, address),
            None => Ok(address),
        }
    }

    /// Returns the address that a field refers to; `None` for null.
    pub(super) fn reference(&self, object: &Object, field: usize) -> Option<Addr> {
        let mut bytes = [0; 8];
        let width = self.width();
        bytes[..width].copy_from_slice(object.bytes.get(field..)?.get(..width)?);
        self.decoded(bytes)
    }

    /// Decodes a reference that is stored outside of the heap, for example in a thread or a handle; `None`
    /// for null.
    pub(super) fn root(&self, word: Addr) -> Option<Addr> {
        let address = match self.form {
            Form::Address | Form::Narrow { .. } => word.0,
            Form::Colored => uncolored(word.0),
        };
        (address != 0).then_some(Addr(address))
    }

    /// Decodes a compressed reference of a frame; `None` for null, and if the JVM does not compress references.
    pub(super) fn decompressed(&self, word: u32) -> Option<Addr> {
        match self.form {
            Form::Narrow { .. } => self.decoded(u64::from(word).to_le_bytes()),
            Form::Address | Form::Colored => None,
        }
    }

    /// Decodes a reference within an object; `None` for null.
    fn decoded(&self, bytes: [u8; 8]) -> Option<Addr> {
        let word = u64::from_le_bytes(bytes);
        match self.form {
            Form::Narrow { base, shift } => {
                (word != 0).then(|| Addr(base.wrapping_add(word << shift)))
            }
            Form::Address | Form::Colored => self.root(Addr(word)),
        }
    }
}

/// Returns the text in the byte array of a location, a URL from which a class was loaded; `None` if it is longer than
/// `max` bytes. The encoding is stored in the string, not in the array. An array that contains a zero byte is decoded
/// as UTF-16, because a URL in Latin-1 contains no zero byte.
pub(super) fn text(now: &mut Pages<'_>, at: Addr, array: &Object, max: u16) -> Option<String> {
    array.elements().filter(|elements| elements.length <= max.into())?;
    let mut decoded = |is_utf16| first_characters(now, at, array, is_utf16, max).ok();
    decoded(false).filter(|latin| !latin.contains('\0')).or_else(|| decoded(true))
}

/// Reads at most the first `max` characters of a character array, as Latin-1 or as UTF-16.
///
/// # Errors
/// [`Error::Layout`] if it is not such an array.
pub(super) fn first_characters(
    now: &mut Pages<'_>,
    address: Addr,
    array: &Object,
    is_utf16: bool,
    max: u16,
) -> Result<String> {
    let elements = array.elements().filter(|found| found.log2 <= 1);
    let Some(Elements { begin, log2, length }) = elements else {
        return Err(Error::layout("not an array of characters"));
    };
    let bytes = (u64::from(length) << log2).min(u64::from(max) << u32::from(is_utf16));
    let bytes = now.bytes(at(address, begin)?, bytes as usize)?;
    if !is_utf16 {
        return Ok(bytes.iter().map(|&byte| char::from(byte)).collect());
    }
    let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_ne_bytes(*unit));
    Ok(String::from_utf16_lossy(&units.collect::<Vec<_>>()))
}

/// Checks the form of an object's address.
fn check(address: Addr) -> Result<()> {
    if address.0 == 0 || !address.0.is_multiple_of(8) {
        return Err(Error::layout("not a valid object reference"));
    }
    Ok(())
}

impl ClassField {
    /// Returns the Klass of an object from its first two words.
    pub(super) fn klass(self, first: [u8; 8], second: [u8; 8]) -> Addr {
        let [first, second] = [first, second].map(u64::from_ne_bytes);
        Addr(match self {
            Self::Pointer => second,
            Self::Compressed { base, shift } => {
                let narrow = second & u64::from(u32::MAX);
                base.wrapping_add(narrow << shift)
            }
            Self::Compact { base, shift } => {
                let narrow = first >> COMPACT_SHIFT;
                base.wrapping_add(narrow << shift)
            }
        })
    }

    /// Returns the size of an object's header in bytes. In an array, the length follows.
    pub(super) fn header_bytes(self) -> usize {
        match self {
            Self::Pointer => 16,
            Self::Compressed { .. } => 12,
            Self::Compact { .. } => 8,
        }
    }
}

/// Form of the headers of arrays.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayHeader(ClassField);

impl ArrayHeader {
    /// Whether the first word of an object is that of an object that was neither locked nor hashed, like an array by
    /// which the JVM fills unused memory.
    pub(super) fn is_unlocked(self, word: u64) -> bool {
        let mark = match self.0 {
            ClassField::Compact { .. } => word & ((1 << COMPACT_SHIFT) - 1),
            ClassField::Pointer | ClassField::Compressed { .. } => word,
        };
        mark == 1
    }

    /// Whether the header of an object has only one word.
    pub(super) fn is_compact(self) -> bool {
        matches!(self.0, ClassField::Compact { .. })
    }

    /// Returns the Klass of an object from its first bytes.
    pub(super) fn class(self, head: &[u8; 24]) -> Addr {
        let ([first, second, _], _) = head.as_chunks() else { return Addr(0) };
        self.0.klass(*first, *second)
    }

    /// Returns the end of an `int` array from its first bytes.
    pub(super) fn end_of_ints(self, array: Addr, head: &[u8; 24]) -> Option<Addr> {
        let at = self.0.header_bytes();
        let length = u32::from_ne_bytes(*head.get(at..)?.first_chunk()?);
        let size = (at as u64 + 4 + u64::from(length) * 4).next_multiple_of(8);
        array.checked_add(size)
    }
}

/// Elements of an array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    /// Offset of the first element.
    pub(super) begin: u64,
    /// Binary logarithm of an element's size in bytes.
    pub(super) log2: u32,
    pub(super) length: u32,
}

/// The beginning of an object in the Java heap.
#[derive(Debug)]
pub(super) struct Object {
    bytes: [u8; MAX_OBJECT],
    pub(super) klass: Addr,
    /// Size of its header in bytes, without the length of an array.
    header: usize,
    /// Its class's layout helper (`Klass::_layout_helper`).
    helper: i32,
}

impl Object {
    pub(super) fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }

    /// Whether an address is among its words.
    pub(super) fn has(&self, address: Addr) -> bool {
        self.bytes.as_chunks::<8>().0.contains(&address.0.to_ne_bytes())
    }

    /// Returns the elements of an array; `None` for other objects. The layout helper (`Klass::_layout_helper`) of an
    /// array's class contains the offset of the elements and the binary logarithm of an element's size. The array's
    /// length lies between the header and the elements.
    pub(super) fn elements(&self) -> Option<Elements> {
        let helper = self.helper.cast_unsigned();
        let (begin, log2) = (u64::from(helper >> 16 & 0xff), helper & 0xff);
        if self.helper >= 0 || log2 > 3 {
            return None;
        }
        let length = u32::from_ne_bytes(self.field(self.header.next_multiple_of(4))?);
        Some(Elements { begin, log2, length })
    }

    /// Returns its size in bytes; `None` for arrays, whose layout helpers are negative.
    fn size(&self) -> Option<usize> {
        // The lowest bits are flags.
        usize::try_from(self.helper).ok().map(|helper| helper & !7)
    }
}
