//! Offsets of the fields that a loaded class declares, by name and signature.
//!
//! Sources: hotspot/share/oops/{instanceKlass,fieldInfo,fieldInfo.inline,constantPool,array}.hpp. Up to JDK 20, an
//! InstanceKlass has an array of six shorts for each field (`InstanceKlass::_fields`). Since JDK 21, it has a stream of
//! compressed integers (`InstanceKlass::_fieldinfo_stream`). Name and signature are indexes into the constant pool.
//! Fields that the JVM adds (injected fields) follow those of the class file. They are not read, because their names
//! are in another table.

use std::ops::Range;

use crate::{
    Addr, Error, Result,
    hotspot::{
        compressed::{Encoding, Stream},
        layout::Item,
        loaded::at,
        pages::Pages,
        resolved::Layout,
    },
};

/// Maximum number of fields of a class that are read. A class file may have 65,535 (JVMS 4.1), but the classes that are
/// read here have at most about 100.
const MAX_FIELDS: u32 = 4096;
/// Maximum length of the compressed stream, in bytes: enough for eight numbers of five bytes for each field.
const MAX_STREAM: u32 = MAX_FIELDS * 8 * 5;
/// Maximum number of classes in a lineage: a class and its superclasses. It ends the walk of a cyclic list.
const MAX_SUPERS: usize = 64;
/// Number of shorts for each field (`FieldInfo::field_slots`).
const SHORTS: usize = 6;
/// Bit of the offset's lowest short that is set when the offset is determined (`FIELDINFO_TAG_OFFSET`), and the number
/// of tag bits (`FIELDINFO_TAG_SIZE`).
const TAG_OFFSET: u32 = 1;
const TAG_SIZE: u32 = 2;
/// The first JDK with value classes, whose field flags have other bits.
const FIRST_WITH_VALUES: u32 = 28;
/// Field flags (`FieldInfo::FieldFlags`) each of which means that one more number follows: initialized, generic,
/// contended.
const EXTRA: u32 = 1 << 0 | 1 << 2 | 1 << 4;
/// The field flags of this kind in JDKs with value classes: flat, null marker, initialized, generic, contended.
const EXTRA_WITH_VALUES: u32 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 7;
/// `JVM_ACC_STATIC`.
const STATIC: u32 = 8;

/// Name and signature of a field, for example `daemon` and `Z`.
pub(super) type FieldName = (&'static str, &'static str);

/// Reads the fields of classes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    form: Form,
    array_length: u64,
    constants: u64,
    pool_size: u64,
    pool_length: u64,
    symbol_length: u64,
    symbol_body: u64,
    super_class: u64,
}

/// Form of a class's fields, with the offsets of its parts.
#[derive(Clone, Copy, Debug)]
enum Form {
    Shorts { fields: u64, count: u64, data: u64 },
    Stream { stream: u64, data: u64, encoding: Encoding, has_values: bool },
}

/// A field of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    /// Indexes into the constant pool.
    name: u32,
    signature: u32,
    /// Offset in an object, or in the class's mirror if it is static; `None` if it is not determined yet.
    offset: Option<u32>,
    is_static: bool,
}

impl Fields {
    /// Creates a reader for a JVM.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(super) fn new(layout: &Layout) -> Result<Self> {
        let form = if layout.has(Item::FieldsOf) && !layout.has(Item::FieldStream) {
            Form::Shorts {
                fields: layout.get(Item::FieldsOf)?,
                count: layout.get(Item::FieldCount)?,
                data: layout.get(Item::ShortArrayData)?,
            }
        } else {
            Form::Stream {
                stream: layout.get(Item::FieldStream)?,
                data: layout.get(Item::ByteArrayData)?,
                encoding: Encoding::of_jdk(layout.major),
                has_values: layout.major >= FIRST_WITH_VALUES,
            }
        };
        Ok(Self {
            form,
            array_length: layout.get(Item::MethodArrayLength)?,
            constants: layout.get(Item::ConstantsOf)?,
            pool_size: layout.get(Item::PoolSize)?,
            pool_length: layout.get(Item::PoolLength)?,
            symbol_length: layout.get(Item::SymbolLength)?,
            symbol_body: layout.get(Item::SymbolBody)?,
            super_class: layout.get(Item::SuperClass)?,
        })
    }

    /// Returns a class and its superclasses, at most [`MAX_SUPERS`], beginning with the class itself.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no class at one of the addresses.
    pub(super) fn lineage(&self, pages: &mut Pages<'_>, klass: Addr) -> Result<Vec<Addr>> {
        let mut lineage = vec![klass];
        let mut klass = klass;
        while lineage.len() < MAX_SUPERS {
            klass = pages.pointer(at(klass, self.super_class)?)?;
            if klass == Addr(0) {
                break;
            }
            lineage.push(klass);
        }
        Ok(lineage)
    }

    /// Returns the offset, in an object of a class, of each field in `wanted`. The offset is `None` if the
    /// class does not declare the field, or if the field's offset is not determined yet. Static fields and
    /// fields of superclasses do not count. `klass` must not be an array class.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no class at the address, [`Error::Layout`] if its fields are implausible.
    pub(super) fn offsets<const N: usize>(
        &self,
        pages: &mut Pages<'_>,
        klass: Addr,
        wanted: [FieldName; N],
    ) -> Result<[Option<u64>; N]> {
        self.offsets_of(pages, klass, wanted, false)
    }

    /// Returns the offset, in the mirror of a class, of each static field in `wanted`, like [`Self::offsets`].
    ///
    /// # Errors
    /// The errors of [`Self::offsets`].
    pub(super) fn static_offsets<const N: usize>(
        &self,
        pages: &mut Pages<'_>,
        klass: Addr,
        wanted: [FieldName; N],
    ) -> Result<[Option<u64>; N]> {
        self.offsets_of(pages, klass, wanted, true)
    }

    fn offsets_of<const N: usize>(
        &self,
        pages: &mut Pages<'_>,
        klass: Addr,
        wanted: [FieldName; N],
        is_static: bool,
    ) -> Result<[Option<u64>; N]> {
        let pool = pages.pointer(at(klass, self.constants)?)?;
        let length = pages.u32(at(pool, self.pool_length)?)?;
        let fields = self.declared(pages, klass, 1..length)?;
        // Visits every field before it fails, so that `Pages::read_batched` reads their pages in one request.
        let mut result = Ok([None; N]);
        for field in fields.iter().filter(|field| field.is_static == is_static) {
            match (self.which(pages, pool, *field, &wanted), &mut result) {
                (Ok(Some(index)), Ok(found)) => {
                    if let Some(slot) = found.get_mut(index) {
                        *slot = field.offset.map(u64::from);
                    }
                }
                (Err(why), result @ Ok(_)) => *result = Err(why),
                (Ok(_), _) | (Err(_), Err(_)) => {}
            }
        }
        result
    }

    /// Returns the index in `wanted` of a field.
    fn which(
        &self,
        pages: &mut Pages<'_>,
        pool: Addr,
        field: Field,
        wanted: &[FieldName],
    ) -> Result<Option<usize>> {
        let name = self.symbol(pages, pool, field.name, wanted.iter().map(|wanted| wanted.0));
        let signature =
            self.symbol(pages, pool, field.signature, wanted.iter().map(|wanted| wanted.1));
        let found = (name?, signature?);
        let is_found = |wanted: &FieldName| found == (Some(wanted.0), Some(wanted.1));
        Ok(wanted.iter().position(is_found))
    }

    /// Returns the text of a Symbol in a constant pool if it is one of `wanted`.
    fn symbol(
        &self,
        pages: &mut Pages<'_>,
        pool: Addr,
        index: u32,
        wanted: impl Iterator<Item = &'static str> + Clone,
    ) -> Result<Option<&'static str>> {
        let entry = at(at(pool, self.pool_size)?, u64::from(index) * 8)?;
        let symbol = pages.pointer(entry)?;
        let length = usize::from(pages.u16(at(symbol, self.symbol_length)?)?);
        if !wanted.clone().any(|text| text.len() == length) {
            return Ok(None);
        }
        let text = pages.bytes(at(symbol, self.symbol_body)?, length)?;
        Ok(wanted.into_iter().find(|wanted| wanted.as_bytes() == text))
    }

    /// Reads the fields that a class declares. `entries` are the valid indexes into its constant pool.
    fn declared(
        &self,
        pages: &mut Pages<'_>,
        klass: Addr,
        entries: Range<u32>,
    ) -> Result<Vec<Field>> {
        let implausible = || Error::layout("implausible fields of a class");
        let array = |pages: &mut Pages<'_>, field| -> Result<(Addr, u32)> {
            let array = pages.pointer(at(klass, field)?)?;
            Ok((array, pages.u32(at(array, self.array_length)?)?))
        };
        match self.form {
            Form::Shorts { fields, count, data } => {
                let (array, length) = array(pages, fields)?;
                let count = usize::from(pages.u16(at(klass, count)?)?);
                if count > MAX_FIELDS as usize || count * SHORTS > length as usize {
                    return Err(implausible());
                }
                let bytes = pages.bytes(at(array, data)?, count * SHORTS * 2)?;
                from_shorts(&bytes, &entries).ok_or_else(implausible)
            }
            Form::Stream { stream, data, encoding, has_values } => {
                let (array, length) = array(pages, stream)?;
                if length > MAX_STREAM {
                    return Err(implausible());
                }
                let bytes = pages.bytes(at(array, data)?, length as usize)?;
                // Builds with value classes exist for older JDKs, too. Therefore both forms of the field
                // flags are tried. Only with the correct form does the stream end after the last field.
                let [first, second] = match has_values {
                    true => [EXTRA_WITH_VALUES, EXTRA],
                    false => [EXTRA, EXTRA_WITH_VALUES],
                };
                from_stream(&bytes, encoding, first, &entries)
                    .or_else(|| from_stream(&bytes, encoding, second, &entries))
                    .ok_or_else(implausible)
            }
        }
    }
}

/// Decodes fields of six shorts each: access flags, name, signature, initial value, then two halves of the offset, which
/// is shifted and tagged. `None` if an index is invalid.
fn from_shorts(bytes: &[u8], entries: &Range<u32>) -> Option<Vec<Field>> {
    let field = |shorts: &[u8; SHORTS * 2]| {
        let (shorts, _) = shorts.as_chunks::<2>();
        let [access, name, signature, _, low, high] = *shorts else { return None };
        let [access, name, signature, low, high] =
            [access, name, signature, low, high].map(|short| u32::from(u16::from_ne_bytes(short)));
        let packed = high << 16 | low;
        let offset = (packed & TAG_OFFSET != 0).then_some(packed >> TAG_SIZE);
        let is_valid = entries.contains(&name) && entries.contains(&signature);
        is_valid.then_some(Field { name, signature, offset, is_static: access & STATIC != 0 })
    };
    bytes.as_chunks().0.iter().map(field).collect()
}

/// Decodes a stream of fields. It begins with the number of Java fields and the number of injected fields.
/// Then each field has its name, signature, offset, access flags, field flags, and one number for each of its
/// field flags that is in `extra`. Returns the Java fields; `None` if an index is invalid, or if the stream
/// does not end after the last field.
fn from_stream(
    bytes: &[u8],
    encoding: Encoding,
    extra: u32,
    entries: &Range<u32>,
) -> Option<Vec<Field>> {
    let mut stream = Stream::new(bytes, encoding);
    let (java, injected) = (stream.unsigned()?, stream.unsigned()?);
    let all = java.checked_add(injected).filter(|&all| all <= MAX_FIELDS)?;
    let mut fields = Vec::new();
    for index in 0..all {
        let (name, signature) = (stream.unsigned()?, stream.unsigned()?);
        let (offset, access) = (stream.unsigned()?, stream.unsigned()?);
        let flags = stream.unsigned()?;
        for _ in 0..(flags & extra).count_ones() {
            stream.unsigned()?;
        }
        if index < java {
            let is_valid = entries.contains(&name) && entries.contains(&signature);
            let is_static = access & STATIC != 0;
            let offset = (offset != 0).then_some(offset);
            fields.push(is_valid.then_some(Field { name, signature, offset, is_static })?);
        }
    }
    // Up to JDK 24, a zero byte follows the last field.
    matches!(stream.byte(), None | Some(0)).then_some(fields)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hotspot::testing::{Image, own_memory, symbol, words};

    const WANTED: [FieldName; 3] = [("name", "Ljava/lang/String;"), ("tid", "J"), ("name", "J")];

    fn field(name: u32, signature: u32, offset: u32, is_static: bool) -> Field {
        Field { name, signature, offset: Some(offset), is_static }
    }

    /// Bytes of small numbers in the encoding of JDK 20 and later.
    fn stream(numbers: &[u8]) -> Vec<u8> {
        numbers.iter().map(|number| number + 1).collect()
    }

    /// A class with the fields `name` and `tid` and a static field `tid`, in the form of one JDK. Returns the
    /// addresses of the class and of its superclass.
    fn jvm(major: u32) -> (Image, [Addr; 2]) {
        let mut image = Image::new();
        let texts =
            ["name", "Ljava/lang/String;", "tid", "J"].map(|text| symbol(&mut image, text).0);
        // Words of a ConstantPool: its length, then entries from 0 on.
        let pool = image.put(&[5, 0, texts[0], texts[1], texts[2], texts[3]]);
        let shorts = [
            [2, 1, 2, 0, 12 << 2 | 1, 0],
            [8, 3, 4, 0, 40 << 2 | 1, 0],
            [2, 3, 4, 0, 16 << 2 | 1, 0],
        ];
        let bytes: Vec<u8> = if major < 21 {
            shorts.concat().into_iter().flat_map(u16::to_ne_bytes).collect()
        } else {
            let numbers = [&[3, 0][..], &[1, 2, 12, 2, 4, 9], &[3, 4, 40, 8, 0], &[3, 4, 16, 2, 0]];
            [stream(&numbers.concat()), vec![0]].concat()
        };
        let length = if major < 21 { bytes.len() / 2 } else { bytes.len() } as u32;
        let array = image.put(&words(&[&length.to_ne_bytes()[..], &bytes].concat()));
        // Words of a class: superclass, pool, fields, number of fields.
        let parent = image.put(&[0, 0, 0, 0]);
        let klass = image.put(&[parent.0, pool.0, array.0, 3]);
        for (class, name, offset) in [
            ("Klass", "_super", 0),
            ("InstanceKlass", "_constants", 8),
            ("InstanceKlass", if major < 21 { "_fields" } else { "_fieldinfo_stream" }, 16),
            ("InstanceKlass", "_java_fields_count", 24),
            ("ConstantPool", "_length", 0),
            ("Array<int>", "_length", 0),
            ("Array<u1>", "_data", 4),
            ("Array<u2>", "_data", 4),
            ("Symbol", "_length", 0),
            ("Symbol", "_body", 6),
        ] {
            image.field(class, name, offset);
        }
        image.class("ConstantPool", 8);
        image.finish();
        (image, [klass, parent])
    }

    #[test]
    fn offsets_are_found_by_name_and_signature_in_both_forms() {
        for major in [8, 17, 21, 27, 28] {
            let (image, [klass, parent]) = jvm(major);
            let fields = Fields::new(&image.read().unwrap().of_jdk(major)).unwrap();
            let memory = own_memory();
            let pages = &mut Pages::new(&memory);
            let found = fields.offsets(pages, klass, WANTED).unwrap();
            assert_eq!(found, [Some(12), Some(16), None], "{major}");
            assert_eq!(
                fields.static_offsets(pages, klass, WANTED).unwrap(),
                [None, Some(40), None]
            );
            assert_eq!(fields.lineage(pages, klass).unwrap(), [klass, parent]);
            let batched = pages
                .read_batched(&[klass], |pages, &klass| fields.offsets(pages, klass, WANTED).ok());
            assert_eq!(batched, [Some([Some(12), Some(16), None])]);
        }
    }

    #[test]
    fn cyclic_superclasses_terminate() {
        let (mut image, [klass, parent]) = jvm(17);
        image.overwrite(parent, klass.0);
        let fields = Fields::new(&image.read().unwrap().of_jdk(17)).unwrap();
        let lineage = fields.lineage(&mut Pages::new(&own_memory()), klass).unwrap();
        assert_eq!(lineage.len(), MAX_SUPERS);
    }

    #[test]
    fn null_pointer_to_the_fields_or_invalid_index_is_an_error() {
        let (mut image, [klass, _]) = jvm(21);
        let fields = Fields::new(&image.read().unwrap().of_jdk(21)).unwrap();
        let memory = own_memory();
        // Reduces the constant pool to two valid entries, so that some indexes are invalid.
        let pool = memory.pointer(Addr(klass.0 + 8)).unwrap();
        image.overwrite(pool, 3);
        assert!(fields.offsets(&mut Pages::new(&memory), klass, WANTED).is_err());
        image.overwrite(Addr(klass.0 + 16), 0);
        assert!(fields.offsets(&mut Pages::new(&memory), klass, WANTED).is_err());
    }

    #[test]
    fn stream_is_decoded_with_optional_numbers_and_injected_fields() {
        let encoding = Encoding::of_jdk(21);
        // A generic field with an initial value, then an injected field.
        let bytes = stream(&[1, 1, 5, 6, 24, 0, 5, 7, 8, 99, 98, 32, 0, 2]);
        let expected = Some(vec![field(5, 6, 24, false)]);
        let entries = 1..10;
        assert_eq!(from_stream(&bytes, encoding, EXTRA, &entries), expected);
        let ended = [&bytes[..], &[0]].concat();
        assert_eq!(from_stream(&ended, encoding, EXTRA, &entries), expected);
        // With the wrong flags, the stream does not end after the last field.
        assert_eq!(from_stream(&bytes, encoding, EXTRA_WITH_VALUES, &entries), None);
        assert_eq!(from_stream(&bytes[..9], encoding, EXTRA, &entries), None);
        // In a JDK with value classes: a static generic field with an initial value, then a flat field with a
        // null marker.
        let bytes = stream(&[2, 0, 5, 6, 24, 8, 40, 7, 8, 1, 2, 32, 0, 6, 1, 33]);
        let expected = Some(vec![field(5, 6, 24, true), field(1, 2, 32, false)]);
        assert_eq!(from_stream(&bytes, encoding, EXTRA_WITH_VALUES, &entries), expected);
        assert_eq!(from_stream(&bytes, encoding, EXTRA, &entries), None);
    }

    #[test]
    fn offset_without_its_tag_is_not_determined() {
        let shorts = [0_u16, 1, 2, 0, 0, 7].map(u16::to_ne_bytes).concat();
        let found = from_shorts(&shorts, &(1..3)).unwrap();
        assert_eq!(found, [Field { offset: None, ..field(1, 2, 0, false) }]);
        assert_eq!(from_shorts(&shorts, &(1..2)), None);
        // The high half of an offset.
        let shorts = [0_u16, 1, 2, 0, 1, 1].map(u16::to_ne_bytes).concat();
        assert_eq!(from_shorts(&shorts, &(1..3)).unwrap(), [field(1, 2, 1 << 14, false)]);
    }

    proptest! {
        #[test]
        fn damaged_classes_never_panic(
            damage in prop::collection::vec((any::<usize>(), any::<u64>()), 0..6),
            small in prop::collection::vec((any::<usize>(), 0..4096_u64), 0..6),
            major in prop::sample::select(vec![8, 17, 21, 28]),
        ) {
            let (mut image, [klass, _]) = jvm(major);
            let layout = image.read().unwrap().of_jdk(major);
            for (index, value) in damage.into_iter().chain(small) {
                image.damage(index, value);
            }
            let fields = Fields::new(&layout).unwrap();
            let memory = own_memory();
            let pages = &mut Pages::scattered(&memory);
            let _ = fields.offsets(pages, klass, WANTED);
            let _ = fields.lineage(pages, klass);
        }

        #[test]
        fn arbitrary_bytes_are_no_fields_or_valid_ones(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let entries = 1..100;
            let fields = [EXTRA, EXTRA_WITH_VALUES]
                .into_iter()
                .filter_map(|extra| from_stream(&bytes, Encoding::of_jdk(21), extra, &entries))
                .chain(from_shorts(&bytes, &entries));
            for field in fields.flatten() {
                prop_assert!(entries.contains(&field.name) && entries.contains(&field.signature));
            }
        }
    }
}
