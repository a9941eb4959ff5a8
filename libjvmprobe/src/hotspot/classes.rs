//! Classes in HotSpot's memory: their names, and the sizes of their instances.
//!
//! Sources: hotspot/share/oops/{klass,symbol,instanceMirrorKlass}.hpp, with the fields that
//! vmStructs exports. A Klass points to the Symbol of its name. The name has the form used in class
//! files, `java/lang/String` or `[Ljava/lang/String;`, in modified UTF-8 (JVMS 4.4.7). Each
//! loader's data has the list of its classes (classfile/classLoaderData.hpp).

use std::collections::HashMap;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, pages::Pages, resolved::Layout},
    names::{clean, code::mask_hidden},
    process::memory::Memory,
};

/// Maximum number of bytes read of a name. A Symbol may have 65,535.
pub(crate) const MAX_NAME: usize = 1024;

/// Maximum number of classes and loaders visited. It ends the walk of a cyclic list.
const MAX_CLASSES: usize = 1 << 20;

/// An array has at most 255 dimensions (JVMS 4.3.2).
const MAX_DIMENSIONS: usize = 255;

/// Offsets of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassLayout {
    /// `Klass::_name`.
    pub klass_name: u64,
    /// `Klass::_layout_helper`.
    pub(crate) layout_helper: u64,
    /// `Symbol::_length`, 16 bits.
    pub symbol_length: u64,
    /// `Symbol::_body`.
    pub symbol_body: u64,
}

impl ClassLayout {
    /// Looks up the offsets.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn read(layout: &Layout) -> Result<Self> {
        Ok(Self {
            klass_name: layout.get(Item::KlassName)?,
            layout_helper: layout.get(Item::LayoutHelper)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
        })
    }

    /// Returns the Symbol of a class's name.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no class at the address.
    pub(crate) fn name_of(&self, memory: &Memory, klass: Addr) -> Result<Addr> {
        memory.pointer(plus(klass, self.klass_name)?)
    }

    /// Returns the first [`MAX_NAME`] bytes of a Symbol, and its full length.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no Symbol at the address.
    pub(crate) fn symbol(&self, memory: &Memory, symbol: Addr) -> Result<(Vec<u8>, u32)> {
        let length = u16::from_ne_bytes(memory.array(plus(symbol, self.symbol_length)?)?);
        let bytes =
            memory.read(plus(symbol, self.symbol_body)?, usize::from(length).min(MAX_NAME))?;
        Ok((bytes, length.into()))
    }
}

/// Returns the instance sizes of all loaded classes except arrays, by the Symbols of their names.
/// If classes of the same name have different instance sizes, the name is omitted.
///
/// # Errors
/// [`Error::Layout`] naming the missing field, [`Error::Memory`].
pub(super) fn instance_sizes(memory: &Memory, layout: &Layout) -> Result<HashMap<Addr, u64>> {
    let classes = ClassLayout::read(layout)?;
    let next_loader = layout.get(Item::NextLoader)?;
    let first_class = layout.get(Item::FirstClass)?;
    let next_class = layout.get(Item::NextClass)?;
    let mut pages = Pages::scattered(memory);
    let mut sizes: HashMap<Addr, Option<u64>> = HashMap::new();
    // A hostile JVM may have cyclic lists of classes or loaders.
    let mut left = MAX_CLASSES;
    let mut loader = pages.pointer(layout.address(Item::Loaders)?)?;
    while loader != Addr(0) && left > 0 {
        let mut klass = pages.pointer(plus(loader, first_class)?)?;
        while klass != Addr(0) && left > 0 {
            left -= 1;
            let helper = pages.u32(plus(klass, classes.layout_helper)?)?.cast_signed();
            // The layout helper of an array class is negative. That of any other class is the size of its
            // instances, except for the lowest bits, which are flags.
            if helper > 0 {
                let size = u64::from(helper.cast_unsigned() & !7);
                let known = sizes
                    .entry(pages.pointer(plus(klass, classes.klass_name)?)?)
                    .or_insert(Some(size));
                *known = known.filter(|&known| known == size);
            }
            klass = pages.pointer(plus(klass, next_class)?)?;
        }
        left = left.saturating_sub(1);
        loader = pages.pointer(plus(loader, next_loader)?)?;
    }
    Ok(sizes.into_iter().filter_map(|(symbol, size)| Some((symbol, size?))).collect())
}

fn plus(addr: Addr, bytes: u64) -> Result<Addr> {
    addr.checked_add(bytes)
        .filter(|_| addr.0 != 0)
        .ok_or_else(|| Error::layout("a pointer in a class is null"))
}

/// Returns a class's name as in Java source, from the bytes of its Symbol:
/// `java.lang.String[][]`, `byte[]`. Drops the addresses in names of hidden classes. A truncated
/// name (`length` is the full length) ends in `...`. Control characters are escaped.
pub fn java_name(bytes: &[u8], length: u32) -> String {
    let is_cut = (bytes.len() as u64) < u64::from(length);
    let text = modified_utf8(bytes);
    let text = clean::line(&text);
    let element = text.trim_start_matches('[');
    let dimensions = text.len() - element.len();
    let element = match element {
        _ if dimensions == 0 || dimensions > MAX_DIMENSIONS => return plain(&text, is_cut),
        "B" => "byte".into(),
        "C" => "char".into(),
        "D" => "double".into(),
        "F" => "float".into(),
        "I" => "int".into(),
        "J" => "long".into(),
        "S" => "short".into(),
        "Z" => "boolean".into(),
        class => match class.strip_prefix('L') {
            Some(class) => plain(class.strip_suffix(';').unwrap_or(class), is_cut),
            None => plain(class, is_cut),
        },
    };
    element + &"[]".repeat(dimensions)
}

fn plain(name: &str, is_cut: bool) -> String {
    let name = mask_hidden(name).replace('/', ".");
    if is_cut { name + "..." } else { name }
}

/// Decodes modified UTF-8: NUL has two bytes, and characters beyond the basic plane are
/// pairs of surrogates of three bytes each. Invalid bytes become U+FFFD.
pub(super) fn modified_utf8(bytes: &[u8]) -> String {
    if bytes.is_ascii() {
        return bytes.iter().map(|&b| char::from(b)).collect();
    }
    let mut units = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((unit, behind)) = next_unit(rest) {
        units.push(unit);
        rest = behind;
    }
    String::from_utf16_lossy(&units)
}

/// Returns the first UTF-16 unit, and the remaining bytes.
fn next_unit(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let more = |b: u8| (b & 0xc0 == 0x80).then_some(u16::from(b & 0x3f));
    let (&first, rest) = bytes.split_first()?;
    let head = u16::from(first);
    let whole = match first {
        0..0x80 => Some((head, rest)),
        0xc0..0xe0 => {
            rest.split_first().and_then(|(&b, rest)| Some(((head & 0x1f) << 6 | more(b)?, rest)))
        }
        0xe0..0xf0 => rest.split_first_chunk().and_then(|(&[b, c], rest)| {
            Some(((head & 0x0f) << 12 | more(b)? << 6 | more(c)?, rest))
        }),
        _ => None,
    };
    whole.or(Some((0xfffd, rest)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    fn name(text: &str) -> String {
        java_name(text.as_bytes(), text.len() as u32)
    }

    #[test]
    fn internal_names_become_java_source_names() {
        assert_eq!(name("java/lang/String"), "java.lang.String");
        assert_eq!(name("[B"), "byte[]");
        assert_eq!(name("[[[J"), "long[][][]");
        assert_eq!(name("[[Ljava/lang/String;"), "java.lang.String[][]");
        assert_eq!(name("Nested$Inner"), "Nested$Inner");
        assert_eq!(name(""), "");
        // These class names look like the element types of arrays.
        assert_eq!(name("B"), "B");
        assert_eq!(name("Lisa"), "Lisa");
    }

    #[test]
    fn hidden_class_names_lose_their_addresses() {
        assert_eq!(name("a/B$$Lambda$14+0x0000000800c03400"), "a.B$$Lambda$14");
        assert_eq!(name("a/B$$Lambda/0x00007f0db4001000"), "a.B$$Lambda");
        assert_eq!(name("[La/B$$Lambda+0x0000000800c03400;"), "a.B$$Lambda[]");
    }

    #[test]
    fn modified_utf8_is_decoded_and_control_characters_escaped() {
        assert_eq!(name("größe/Bär"), "größe.Bär");
        // U+1F600 as a pair of surrogates, NUL in two bytes.
        let bytes = [0xed, 0xa0, 0xbd, 0xed, 0xb8, 0x80, b'x', 0xc0, 0x80];
        assert_eq!(java_name(&bytes, 9), "\u{1f600}x\\x00");
        assert_eq!(java_name(&[b'a', 0xed, 0xa0, 0xbd], 4), "a\u{fffd}");
        assert_eq!(name("a\x1b[31m\n"), "a\\x1b[31m\\x0a");
    }

    #[test]
    fn truncated_name_ends_with_an_ellipsis() {
        assert_eq!(java_name(b"a/Very", 2000), "a.Very...");
        assert_eq!(java_name(b"[La/Very", 2000), "a.Very...[]");
    }

    #[test]
    fn instance_sizes_include_classes_of_all_loaders() {
        let mut image = Image::new();
        // Words of a Klass: layout helper, name, next.
        let twin = image.put(&[32, 0x30, 0]);
        let array = image.put(&[0x8010_0002, 0x20, twin.0]);
        let class = image.put(&[25, 0x10, array.0]);
        let other_twin = image.put(&[40, 0x30, 0]);
        let second = image.put(&[0, other_twin.0]);
        let first = image.put(&[second.0, class.0]);
        let head = image.put(&[first.0]);
        image.static_field("ClassLoaderDataGraph", "_head", head);
        image.field("ClassLoaderData", "_next", 0);
        image.field("ClassLoaderData", "_klasses", 8);
        for (field, offset) in [("_layout_helper", 0), ("_name", 8), ("_next_link", 16)] {
            image.field("Klass", field, offset);
        }
        image.field("Symbol", "_length", 0);
        image.field("Symbol", "_body", 6);
        image.finish();
        let structs = image.read().unwrap();
        let sizes = instance_sizes(&own_memory(), &structs).unwrap();
        assert_eq!(sizes, HashMap::from([(Addr(0x10), 24)]));
        // Neither a cyclic list of classes nor one of loaders causes an endless loop.
        image.overwrite(Addr(class.0 + 16), class.0);
        image.overwrite(first, first.0);
        assert_eq!(instance_sizes(&own_memory(), &structs).unwrap()[&Addr(0x10)], 24);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_yield_no_control_characters(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let name = java_name(&bytes, bytes.len() as u32);
            prop_assert!(!name.chars().any(char::is_control));
        }

        #[test]
        fn basic_plane_text_is_decoded_unchanged(text in "[\u{100}-\u{d7ff}]{0,40}") {
            prop_assert_eq!(name(&text), clean::line(&text));
        }
    }
}
