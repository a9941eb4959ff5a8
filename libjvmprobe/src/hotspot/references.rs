//! Objects of the Java heap, and the references in their fields.
//!
//! Sources: hotspot/share/oops/{oop,klass,arrayOop,compressedOops}.hpp; zAddress.hpp, zAddress_x86.cpp. Fields are
//! found by the class of the object that they refer to, not by field descriptors.
//!
//! Collectors move objects. While an object is being moved, its old copy keeps its former contents. A result
//! is valid only if each object on the path had the expected class when it was read. With ZGC, a stale
//! reference may point to memory that is in use for something else, so a result needs confirmation from
//! another source.

use crate::{
    Addr, Error, Result,
    hotspot::{
        Collector,
        flags::Flags,
        hashing::NumberMap,
        layout::Item,
        loaded::at,
        objects::{COMPACT_SHIFT, ClassField},
        pages::Pages,
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
enum Form {
    Address,
    /// A 32-bit number, to be shifted and added to a base.
    Narrow {
        base: u64,
        shift: u32,
    },
    /// The form of generational ZGC: metadata in the low bits, the address above them.
    Colored,
}

/// Position of the lowest of ZGC's remapped bits. Exactly one of these bits is set, and the address begins at
/// the bit above it. (`ZPointerRemappedShift`, `ZPointerLoadShiftTable`, zAddress_x86.cpp.)
const REMAPPED_SHIFT: u32 = 12;
const REMAPPED_BITS: u32 = 4;

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
        Ok(Self {
            klass_name: layout.get(Item::KlassName)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
            layout_helper: layout.get(Item::LayoutHelper)?,
            class: ClassField::read(memory, layout, &flags)?,
            form,
            may_be_stale,
            helpers: NumberMap::default(),
        })
    }

    /// Returns the size of a reference in an object, in bytes.
    pub(super) fn width(&self) -> usize {
        match self.form {
            Form::Narrow { .. } => 4,
            Form::Address | Form::Colored => 8,
        }
    }

    /// Returns the offsets at which an object may hold references, within the bytes that were read of the
    /// object. For arrays, there are none.
    pub(super) fn fields(&self, object: &Object) -> impl Iterator<Item = usize> + use<> {
        let end = object.size().unwrap_or(0).min(MAX_OBJECT);
        (object.header.next_multiple_of(self.width())..end).step_by(self.width())
    }

    /// Reads the beginning of an object.
    pub(super) fn object(&mut self, now: &mut Pages<'_>, address: Addr) -> Result<Object> {
        if address.0 == 0 || !address.0.is_multiple_of(8) {
            return Err(Error::layout("not a valid object reference"));
        }
        let mut bytes = [0; MAX_OBJECT];
        now.read(address, &mut bytes)?;
        let word = u64::from_ne_bytes(*bytes.first_chunk::<8>().unwrap_or(&[0; 8]));
        let behind = |n: usize| bytes.get(8..8 + n).unwrap_or_default().to_vec();
        let (klass, header) = match self.class {
            ClassField::Pointer => {
                let klass = behind(8).try_into().map_or(0, u64::from_ne_bytes);
                (klass, 16)
            }
            ClassField::Compressed { base, shift } => {
                let narrow = behind(4).try_into().map_or(0, u32::from_ne_bytes);
                (base.wrapping_add(u64::from(narrow) << shift), 12)
            }
            ClassField::Compact { base, shift } => {
                let narrow = word >> COMPACT_SHIFT;
                (base.wrapping_add(narrow << shift), 8)
            }
        };
        let klass = Addr(klass);
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
        Ok(Object { bytes, klass, header, helper })
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
        let mut bytes = [0; 8];
        let width = self.width();
        now.read(object.checked_add(field as u64)?, &mut bytes[..width]).ok()?;
        self.decoded(bytes)
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

/// Returns the address in a reference of generational ZGC.
fn uncolored(word: u64) -> u64 {
    let remapped = (word >> REMAPPED_SHIFT | 1 << REMAPPED_BITS).trailing_zeros();
    word >> (REMAPPED_SHIFT + 1 + remapped)
}

/// Returns the text in the character array of a location, a URL from which a class was loaded. An array that
/// contains a zero byte is decoded as UTF-16, because a URL in Latin-1 contains no zero byte.
pub(super) fn text(now: &mut Pages<'_>, at: Addr, array: &Object, max: u32) -> Option<String> {
    let [latin, utf16] = <[String; 2]>::try_from(characters(now, at, array, max)?).ok()?;
    Some(if latin.contains('\0') { utf16 } else { latin })
}

/// Reads a character array both as Latin-1 and as UTF-16, because the encoding is stored in the string, not
/// in the array.
pub(super) fn characters(
    now: &mut Pages<'_>,
    at: Addr,
    array: &Object,
    max: u32,
) -> Option<Vec<String>> {
    // The layout helper (`Klass::_layout_helper`) of an array's class contains the offset of the elements and
    // the binary logarithm of an element's size. The array's length lies between the header and the elements.
    let (header, log2) = (array.helper.cast_unsigned() >> 16 & 0xff, array.helper & 0xff);
    if array.helper >= 0 || log2 > 1 {
        return None;
    }
    let length = u32::from_ne_bytes(array.field(array.header.next_multiple_of(4))?);
    if length > max {
        return None;
    }
    let bytes = now.bytes(at.checked_add(header.into())?, (length as usize) << log2).ok()?;
    let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_ne_bytes(*unit));
    Some(vec![
        bytes.iter().map(|&byte| char::from(byte)).collect(),
        String::from_utf16_lossy(&units.collect::<Vec<_>>()),
    ])
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

    /// Returns its size in bytes; `None` for arrays, whose layout helpers are negative.
    fn size(&self) -> Option<usize> {
        // The lowest bits are flags.
        usize::try_from(self.helper).ok().map(|helper| helper & !7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncolored_drops_bits_up_to_the_remapped_bit() {
        for bit in 0..4 {
            let address = 0x4000_1234_5678_u64;
            let word = address << (REMAPPED_SHIFT + 1 + bit) | 1 << (REMAPPED_SHIFT + bit);
            // The bits for marking and storing (0x5f0) are below the remapped bits.
            assert_eq!(uncolored(word | 0x5f0), address);
        }
        assert_eq!(uncolored(0), 0);
    }
}
