//! HotSpot's description of itself: `gHotSpotVMStructs` and `gHotSpotVMTypes`.
//!
//! Both are arrays of C structures in libjvm.so. The last entry of an array has no name.
//! Exported variables give the size of an entry and the offsets of its members.
//! The layout is that of `vmStructs.hpp` and `vmStructs.cpp` (`src/hotspot/share/runtime`;
//! JDK 8: `hotspot/src/share/vm/runtime`), unchanged from JDK 8 to 28, in stripped and
//! unstripped files, with glibc or musl. The dynamic linker fills in the addresses of statics, so
//! the tables are read from memory, not from the file.
//!
//! Limits: 65,536 entries in a table, 4 KiB for an entry, 1 KiB for a name, 8 MiB for all names, and 4 MiB
//! for all memory pages that are read. [`super::resolved`] stores only the entries that [`super::layout`]
//! names.

use crate::{Addr, Error, Result, hotspot::pages::Pages, process::memory::Memory};

/// Maximum number of entries; the longest table, of JDK 17, has about 3,000.
const MAX_ENTRIES: usize = 65_536;
/// Maximum size of all names in bytes, against hostile tables whose names overlap; real names take 300 kB.
const MAX_NAMES: usize = 8 << 20;
/// Maximum size of an entry in bytes; the longest known has 48.
const MAX_STRIDE: u64 = 4096;

/// A fact from a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// A member's offset, in bytes from the start of its object.
    Offset(u64),
    /// A static member's address.
    Static(Addr),
    /// The size of a type, in bytes.
    Size(u64),
}

/// Reads both tables. `wants` returns whether fields of a type are wanted; `visit` receives each
/// fact with the name of its type and, for a field, the field's name.
///
/// `lookup` returns the address in the target of a symbol of libjvm.so; all requested symbols
/// begin with `gHotSpotVM` and are in `.dynsym`.
///
/// # Errors
/// [`Error::Layout`] if a symbol is missing or a table is implausible,
/// [`Error::Memory`] if the target has exited.
pub(super) fn read(
    memory: &Memory,
    lookup: impl Fn(&str) -> Option<Addr>,
    wants: impl Fn(&str) -> bool,
    mut visit: impl FnMut(&str, Option<&str>, Fact),
) -> Result<()> {
    let mut reader = Reader { memory, pages: Pages::new(memory), lookup, free_bytes: MAX_NAMES };
    reader.fields(wants, &mut visit)?;
    reader.types(&mut visit)
}

/// Reads the table of integer constants; `visit` receives the name and value of each.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn int_constants(
    memory: &Memory,
    lookup: impl Fn(&str) -> Option<Addr>,
    mut visit: impl FnMut(&str, u32),
) -> Result<()> {
    let mut reader = Reader { memory, pages: Pages::new(memory), lookup, free_bytes: MAX_NAMES };
    let table = reader.table("gHotSpotVMIntConstants", "gHotSpotVMIntConstantEntryArrayStride")?;
    let name = reader.member(&table, "gHotSpotVMIntConstantEntryNameOffset", 8)?;
    let value = reader.member(&table, "gHotSpotVMIntConstantEntryValueOffset", 4)?;
    reader.entries(&table, [name], |reader, [name], entry| {
        visit(&reader.name(name)?, u32_at(entry, value));
        Ok(())
    })
}

/// Address of a table, and size of its entries.
struct Table {
    at: Addr,
    stride: u64,
}

struct Reader<'a, F> {
    memory: &'a Memory,
    pages: Pages<'a>,
    lookup: F,
    /// Number of bytes that further names may take.
    free_bytes: usize,
}

impl<F: Fn(&str) -> Option<Addr>> Reader<'_, F> {
    fn fields(
        &mut self,
        wants: impl Fn(&str) -> bool,
        visit: &mut impl FnMut(&str, Option<&str>, Fact),
    ) -> Result<()> {
        let table = self.table("gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride")?;
        let type_name = self.member(&table, "gHotSpotVMStructEntryTypeNameOffset", 8)?;
        let field_name = self.member(&table, "gHotSpotVMStructEntryFieldNameOffset", 8)?;
        let is_static = self.member(&table, "gHotSpotVMStructEntryIsStaticOffset", 4)?;
        let offset = self.member(&table, "gHotSpotVMStructEntryOffsetOffset", 8)?;
        let address = self.member(&table, "gHotSpotVMStructEntryAddressOffset", 8)?;
        // Entries of a type are adjacent, so an entry usually has the same type name as the entry before it.
        let mut last = (0, String::new(), false);
        self.entries(&table, [type_name, field_name], |reader, [t, f], entry| {
            if last.0 != t {
                let name = reader.name(t)?;
                let is_wanted = wants(&name);
                last = (t, name, is_wanted);
            }
            if last.2 {
                let fact = match u32_at(entry, is_static) {
                    0 => Fact::Offset(u64_at(entry, offset)),
                    _ => Fact::Static(Addr(u64_at(entry, address))),
                };
                visit(&last.1, Some(&reader.name(f)?), fact);
            }
            Ok(())
        })
    }

    fn types(&mut self, visit: &mut impl FnMut(&str, Option<&str>, Fact)) -> Result<()> {
        let table = self.table("gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride")?;
        let name = self.member(&table, "gHotSpotVMTypeEntryTypeNameOffset", 8)?;
        let size = self.member(&table, "gHotSpotVMTypeEntrySizeOffset", 8)?;
        self.entries(&table, [name], |reader, [name], entry| {
            visit(&reader.name(name)?, None, Fact::Size(u64_at(entry, size)));
            Ok(())
        })
    }

    fn name(&mut self, at: u64) -> Result<String> {
        let name = self.pages.name(Addr(at))?;
        self.free_bytes = self
            .free_bytes
            .checked_sub(name.len())
            .ok_or_else(|| Error::layout("the names in the tables are too long"))?;
        Ok(name)
    }

    fn variable(&self, symbol: &str) -> Result<u64> {
        let addr = (self.lookup)(symbol)
            .ok_or_else(|| Error::layout(format!("there is no symbol {symbol}")))?;
        self.memory.u64(addr)
    }

    fn table(&self, array: &str, stride: &str) -> Result<Table> {
        let at = Addr(self.variable(array)?);
        let stride = match self.variable(stride)? {
            n @ 8..=MAX_STRIDE => n,
            n => return Err(Error::layout(format!("{stride} has the implausible value {n}"))),
        };
        Ok(Table { at, stride })
    }

    /// Returns the offset of a member of `size` bytes, which must lie within the entry.
    fn member(&self, table: &Table, symbol: &str, size: u64) -> Result<usize> {
        match self.variable(symbol)? {
            n if n <= table.stride.saturating_sub(size) => Ok(n as usize),
            n => Err(Error::layout(format!("{symbol} has the implausible value {n}"))),
        }
    }

    /// Reads entries until one has a null pointer for any of its `names`.
    fn entries<const N: usize>(
        &mut self,
        table: &Table,
        names: [usize; N],
        mut parse: impl FnMut(&mut Self, [u64; N], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut entry = vec![0; table.stride as usize];
        let mut at = Some(table.at);
        for _ in 0..MAX_ENTRIES {
            let here = at.ok_or_else(|| Error::layout("the address of a table overflows"))?;
            self.pages.read(here, &mut entry)?;
            let pointers = names.map(|n| u64_at(&entry, n));
            if pointers.contains(&0) {
                return Ok(());
            }
            parse(self, pointers, &entry)?;
            at = here.checked_add(table.stride);
        }
        Err(Error::layout(format!(
            "the table at {} does not end within {MAX_ENTRIES} entries",
            table.at
        )))
    }
}

/// Returns the number at an offset that [`Reader::member`] has checked; 0 beyond the end.
fn u64_at(entry: &[u8], at: usize) -> u64 {
    let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |b| u64::from_ne_bytes(*b))
}

fn u32_at(entry: &[u8], at: usize) -> u32 {
    let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |b| u32::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    fn sample() -> Image {
        let mut image = Image::new();
        image.field("Klass", "_name", 24);
        image.static_field("Universe", "_collectedHeap", Addr(0x7000));
        image.field("Other", "_name", 8);
        image.class("Klass", 208);
        image.finish();
        image
    }

    #[test]
    fn total_length_of_table_names_is_limited() {
        let name = Box::new([b'a'; 1024]);
        let mut text = name.to_vec();
        text.push(0);
        // The names of the entries overlap: each begins at one of the first 16 bytes of the same text.
        let entries: Vec<u64> = (0..20_000_u64)
            .flat_map(|i| [text.as_ptr() as u64 + i % 16, 0, 8])
            .chain([0; 3])
            .collect();
        let mut image = sample();
        let table = image.put(&[]);
        assert!(table.0 > 0);
        image.set("gHotSpotVMTypes", entries.as_ptr() as u64);
        let error = image.read().unwrap_err().to_string();
        assert!(error.contains("names in the tables"), "{error}");
    }

    #[test]
    fn struct_and_type_tables_are_read() {
        let image = sample();
        let mut facts = Vec::new();
        let memory = own_memory();
        let wants = |class: &str| class != "Other";
        read(
            &memory,
            |name| image.symbol(name),
            wants,
            |class, field, fact| {
                facts.push((class.to_owned(), field.map(str::to_owned), fact));
            },
        )
        .unwrap();
        let fact = |class: &str, field: Option<&str>, fact| {
            (class.to_owned(), field.map(str::to_owned), fact)
        };
        let expected = [
            fact("Klass", Some("_name"), Fact::Offset(24)),
            fact("Universe", Some("_collectedHeap"), Fact::Static(Addr(0x7000))),
            fact("Klass", None, Fact::Size(208)),
        ];
        assert_eq!(facts, expected);
        let error = read(&memory, |_| None, wants, |_, _, _| {}).unwrap_err().to_string();
        assert!(error.contains("gHotSpotVMStructs"), "{error}");
    }

    #[test]
    fn implausible_strides_and_offsets_are_rejected() {
        for stride in [0, 7, 4097, u64::MAX] {
            let mut image = sample();
            image.set("gHotSpotVMStructEntryArrayStride", stride);
            assert!(image.read().is_err(), "{stride}");
        }
        for offset in [41, 48, u64::MAX] {
            let mut image = sample();
            image.set("gHotSpotVMStructEntryAddressOffset", offset);
            assert!(image.read().is_err(), "{offset}");
        }
    }

    #[test]
    fn a_table_without_an_end_is_an_error() {
        // Entries of 8 bytes, each a pointer to the same name, without a null pointer at the end.
        let mut image = sample();
        let name = image.text("x").0;
        let endless = vec![name; MAX_ENTRIES + 1];
        image.set("gHotSpotVMStructs", endless.as_ptr() as u64);
        image.set("gHotSpotVMStructEntryArrayStride", 8);
        for symbol in ["TypeName", "FieldName", "IsStatic", "Offset", "Address"] {
            image.set(&format!("gHotSpotVMStructEntry{symbol}Offset"), 0);
        }
        let error = image.read().unwrap_err().to_string();
        assert!(error.contains("does not end"), "{error}");
    }

    proptest! {
        #[test]
        fn damaged_tables_never_panic(
            damage in prop::collection::vec((any::<usize>(), any::<u64>()), 1..12),
            small in prop::collection::vec((any::<usize>(), 0u64..64), 0..4),
        ) {
            let mut image = sample();
            for (index, value) in damage.into_iter().chain(small) {
                image.damage(index, value);
            }
            let _ = image.read();
        }
    }
}
