//! Names of the frames of a native image.
//!
//! The inlined frames at a call are a list, in which each frame has the number of a method, a line and a bytecode
//! index. A frame that many lists share is stored once, and the lists refer to its offset. If a shared frame
//! always has the same caller, it also refers to the caller's frame (`FrameInfoDecoder`). The number of a
//! method leads to its class and its name.

use std::{collections::HashSet, ops::Range, sync::Arc};

use crate::{
    names::code::{SourceFrame, method_name},
    native_image::{
        code::Table,
        heap::{Heap, Object, WORD},
        locate::CodeTables,
    },
};

/// Maximum number of frames in a list.
const MAX_FRAMES: usize = 512;
/// Maximum number of frames in all lists; a large image has some millions.
const MAX_ALL_FRAMES: usize = 50_000_000;
/// Number that is added to a line when it is encoded.
const LINE_ADDEND: i64 = 3;
/// Offset in the encoding of positions of shared frames: position p is stored as -(p + 2).
const SHARED_ADDEND: i64 = 2;
/// Marks frames in an uncompressed format, for code that may be deoptimized. This format does not occur in
/// images.
const UNCOMPRESSED: i64 = -1;
/// Words of a class object in which the reference to its name is searched.
const CLASS_WORDS: Range<usize> = 1..32;

/// Names and lines of all frames.
#[derive(Debug)]
pub(super) struct Names {
    frames: Range<usize>,
    classes: Range<usize>,
    methods: Methods,
    names: Range<usize>,
    /// Offset of the name in a class object.
    class_name: usize,
    /// Reference to the class of byte arrays, as in the header of such an array.
    bytes_class: u64,
}

/// The method table.
#[derive(Clone, Debug)]
struct Methods {
    table: Range<usize>,
    /// Sizes in bytes of a class number, of a name number, and of a complete entry.
    class: usize,
    name: usize,
    entry: usize,
}

impl Names {
    /// Finds the tables, and checks them by decoding all frames.
    pub(super) fn read(heap: &Heap, tables: &CodeTables, table: &Table) -> Option<Self> {
        let field = |number: usize| heap.object(tables.frames_field + number * WORD);
        let bytes_class = heap.class(tables.index)?;
        let frames = heap.elements(field(0)?, 1)?;
        let classes = heap.elements(field(2)?, WORD)?;
        let names = heap.elements(field(3)?, WORD)?;
        let strings = heap.elements(field(4)?, WORD)?;
        let methods = heap.elements(field(5)?, 1)?;
        let of = |array: &Range<usize>| if array.len() / WORD <= 0xffff { 2 } else { 4 };
        let (class, name) = (of(&classes), of(&names));
        // Entries have parameters and modifiers, too, if the image keeps all method data at run time.
        let entry_with_details = class + name + of(&strings) + 2;
        let is_of = |array: &Range<usize>| heap.class(Object(array.start - 2 * WORD));
        (is_of(&frames) == Some(bytes_class) && is_of(&methods) == Some(bytes_class))
            .then_some(())?;
        let class_name = class_name(heap, &classes, &names)?;
        [class + name, entry_with_details].into_iter().find_map(|entry| {
            let methods = Methods { table: methods.clone(), class, name, entry };
            let (frames, classes, names) = (frames.clone(), classes.clone(), names.clone());
            let all = Self { frames, classes, methods, names, class_name, bytes_class };
            all.is_consistent(heap, table).then_some(all)
        })
    }

    fn is_consistent(&self, heap: &Heap, table: &Table) -> bool {
        let (mut numbers, mut left) = (HashSet::new(), MAX_ALL_FRAMES);
        let is_read = table.infos().iter().all(|&info| {
            let frames = self.list(heap, info);
            frames.is_some_and(|frames| {
                numbers.extend(frames.iter().map(|frame| frame.0));
                left = left.saturating_sub(frames.len());
                !frames.is_empty() && left > 0
            })
        });
        is_read && numbers.iter().all(|&number| self.method(heap, number).is_some())
    }

    /// Returns the frames at an offset of the frame information, innermost first.
    pub(super) fn frames(&self, heap: &Heap, info: u32) -> Option<Vec<SourceFrame>> {
        let frame = |(number, line): (usize, u32)| {
            let (class, name) = self.method(heap, number)?;
            let class = heap.object(class + self.class_name)?;
            let class = heap.string(class, self.bytes_class)?;
            let name = heap.string(name, self.bytes_class)?;
            let name: Arc<str> = method_name(&format!("{class}.{name}"));
            Some(SourceFrame { name, signature: None, file: None, line, origin: None })
        };
        self.list(heap, info)?.into_iter().map(frame).collect()
    }

    /// Returns the offset of a method's class, and the method's name.
    fn method(&self, heap: &Heap, number: usize) -> Option<(usize, Object)> {
        let Methods { table, class, name, entry } = &self.methods;
        let at = number.checked_mul(*entry).and_then(|at| table.start.checked_add(at))?;
        (at.checked_add(*entry)? <= table.end).then_some(())?;
        let index = |at: usize, bytes: usize| match bytes {
            2 => heap.u16(at).map(usize::from),
            _ => heap.u32(at).and_then(|index| usize::try_from(index).ok()),
        };
        let class_index = index(at, *class)?;
        let name_index = index(at + class, *name)?;
        let class = heap.element(&self.classes, class_index)?;
        Some((class.0, heap.element(&self.names, name_index)?))
    }

    /// Decodes a list into pairs of a method's number and a line.
    fn list(&self, heap: &Heap, info: u32) -> Option<Vec<(usize, u32)>> {
        let bytes = heap.bytes(self.frames.clone())?;
        let mut reader = Reader { bytes, at: usize::try_from(info).ok()? };
        let mut found = Vec::new();
        // Offset of the caller's frame, if the previous frame has a fixed caller.
        let mut caller: Option<usize> = None;
        loop {
            let is_caller = caller.is_some();
            let mut own = match caller.take() {
                Some(at) => Reader { bytes, at },
                None => Reader { bytes, at: reader.at },
            };
            let mut first = own.signed()?;
            if first == UNCOMPRESSED {
                return None;
            }
            if first < 0 {
                if is_caller {
                    return None;
                }
                reader.at = own.at;
                own.at = usize::try_from(-(first + SHARED_ADDEND)).ok()?;
                first = own.signed()?;
                let (end, next) = frame(&mut own, first, &mut found)?;
                if end {
                    return Some(found);
                }
                caller = next;
                continue;
            }
            let (end, next) = frame(&mut own, first, &mut found)?;
            if end {
                return Some(found);
            }
            caller = next;
            if !is_caller {
                reader.at = own.at;
            }
        }
    }
}

/// Decodes a frame whose method number was read already, and adds it to `found`. Returns whether it is the
/// last frame of its list, and the offset of the caller's frame if the caller is always the same.
fn frame(
    reader: &mut Reader<'_>,
    number: i64,
    found: &mut Vec<(usize, u32)>,
) -> Option<(bool, Option<usize>)> {
    let line = reader.signed()?;
    let has_caller = reader.signed()? < 0;
    let caller = match has_caller {
        true => Some(usize::try_from(reader.signed()?).ok()?),
        false => None,
    };
    // The result is negative if the line is unknown.
    let shown = line.checked_abs()? - LINE_ADDEND;
    let shown = if shown < 0 { 0 } else { u32::try_from(shown).ok().filter(|&l| l <= 0xffff)? };
    found.push((usize::try_from(number).ok()?, shown));
    (found.len() <= MAX_FRAMES && line != 0).then_some((line < 0, caller))
}

/// Finds the offset of the field with the name of a class. The field must contain a string that differs in
/// almost all classes, because class names are unique per class loader. The other string of a class, the name
/// of its source file, is often the same in several classes.
fn class_name(heap: &Heap, classes: &Range<usize>, names: &Range<usize>) -> Option<usize> {
    let all = |array: &Range<usize>| {
        let count = array.len() / WORD;
        let objects: Vec<_> = (0..count).filter_map(|i| heap.element(array, i)).collect();
        objects
    };
    let (classes, names) = (all(classes), all(names));
    let string = heap.class(*names.first()?)?;
    let mut fields = CLASS_WORDS.map(|word| word * WORD);
    fields.find(|field| {
        let strings = classes.iter().filter_map(|class| heap.object(class.0 + field));
        let strings = strings.filter(|&object| heap.class(object) == Some(string));
        let different: HashSet<_> = strings.collect();
        // Up to 2 % of the classes may have the name of another class, because several loaders may define a
        // class of the same name.
        !different.is_empty() && different.len() >= classes.len() - classes.len() / 50
    })
}

/// Decoder of Pack200's UNSIGNED5 format: a byte of 192 or more means that further bytes follow.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn unsigned(&mut self) -> Option<u64> {
        const LOW_CODES: u8 = 192;
        const MAX_BYTES: u32 = 11;
        let mut sum = 0_u64;
        for number in 0..MAX_BYTES {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            sum = sum.wrapping_add(u64::from(byte).checked_shl(6 * number)?);
            if byte < LOW_CODES {
                break;
            }
        }
        Some(sum)
    }

    /// Reads a signed number, whose lowest bit is the sign.
    fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_numbers_are_decoded() {
        let read = |bytes: &[u8]| Reader { bytes, at: 0 }.signed();
        for (bytes, number) in [
            (&[0][..], 0),
            (&[1], -1),
            (&[2], 1),
            (&[191], -96),
            (&[192, 0], 96),
            (&[193, 0], -97),
            (&[192, 192, 1], (192 + (192 << 6) + (1 << 12)) >> 1),
        ] {
            assert_eq!(read(bytes), Some(number), "{bytes:?}");
        }
        assert_eq!(read(&[192]), None);
        assert!(read(&[255; 11]).is_some());
        assert_eq!(read(&[]), None);
    }
}
