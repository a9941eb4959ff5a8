//! HotSpot's description of itself: `gHotSpotVMStructs` and its three sister tables.
//!
//! Four arrays of plain C structures in libjvm.so, ended by an entry without a
//! name; exported variables say how long an entry is and where its members are.
//! The layout is that of `vmStructs.hpp` and `vmStructs.cpp` (`src/hotspot/share/runtime`;
//! JDK 8: `hotspot/src/share/vm/runtime`), unchanged from JDK 8 to 25, stripped or
//! not, glibc or musl. Static addresses are filled in by the dynamic linker, hence
//! the tables are read from memory, not from the file.
//!
//! A table of 65,536 entries, entries of 4 KiB, names of 1 KiB and 4 MiB in all
//! are the most that is read.

use std::{collections::HashMap, sync::Arc};

use crate::{Addr, Error, Result, hotspot::pages::Pages, process::memory::Memory};

/// JDK 17 has the longest table: about 3,000 entries.
const MAX_ENTRIES: usize = 65_536;
/// Names of all tables together, which take some 300 kB: a bound for names that overlap.
const MAX_NAMES: usize = 8 << 20;
/// The longest entry known has 48 bytes.
const MAX_STRIDE: u64 = 4096;

/// Where a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Offset(u64),
    /// Without the load bias of libjvm.so, so that the tables of JVMs can be compared.
    Static(Addr),
}

/// The tables of one JVM.
#[derive(Clone, Debug, Default)]
pub struct VmStructs {
    tables: Arc<Tables>,
    /// What static addresses are to be moved by.
    bias: u64,
}

/// What the tables say, wherever libjvm.so lies.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Keyed `Type::field`.
    fields: HashMap<Box<str>, Place>,
    types: HashMap<Box<str>, u64>,
    ints: HashMap<Box<str>, i32>,
    longs: HashMap<Box<str>, u64>,
}

impl VmStructs {
    /// Reads all four tables, and lets `share` keep what is alike once.
    ///
    /// `lookup` gives the address in the target of a symbol of libjvm.so, which is moved
    /// by `bias`; all that are asked for begin with `gHotSpotVM` and are in `.dynsym`.
    ///
    /// # Errors
    /// [`Error::Layout`] when a symbol is missing or a table implausible,
    /// [`Error::Memory`] when the target is gone.
    pub fn read(
        memory: &Memory,
        bias: u64,
        lookup: impl Fn(&str) -> Option<Addr>,
        share: impl FnOnce(Tables) -> Arc<Tables>,
    ) -> Result<Self> {
        let mut reader =
            Reader { memory, pages: Pages::new(memory), lookup, bias, room: MAX_NAMES };
        let tables = Tables {
            fields: reader.fields()?,
            types: reader.types()?,
            ints: reader.ints()?,
            longs: reader.longs()?,
        };
        Ok(Self { tables: share(tables), bias })
    }

    /// The offset of a member, in bytes from the start of its object.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field: this HotSpot has no such member.
    pub fn field(&self, type_name: &str, name: &str) -> Result<u64> {
        match self.place(type_name, name) {
            Some(Place::Offset(offset)) => Ok(offset),
            _ => Err(missing("field", &format!("{type_name}::{name}"))),
        }
    }

    /// The address of a static member.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field: this HotSpot has no such static member.
    pub fn static_field(&self, type_name: &str, name: &str) -> Result<Addr> {
        match self.place(type_name, name) {
            Some(Place::Static(addr)) => Ok(Addr(addr.0.wrapping_add(self.bias))),
            _ => Err(missing("static field", &format!("{type_name}::{name}"))),
        }
    }

    /// The size of a type in bytes.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the type.
    pub fn type_size(&self, type_name: &str) -> Result<u64> {
        get(&self.tables.types, "type", type_name)
    }

    /// The value of an `int` constant or enumerator.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the constant.
    pub fn int_constant(&self, name: &str) -> Result<i32> {
        get(&self.tables.ints, "constant", name)
    }

    /// The value of a 64-bit constant.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the constant.
    pub fn long_constant(&self, name: &str) -> Result<u64> {
        get(&self.tables.longs, "constant", name)
    }

    /// Whether the table of types has this one, as a question about the version.
    pub fn has_type(&self, type_name: &str) -> bool {
        self.tables.types.contains_key(type_name)
    }

    fn place(&self, type_name: &str, name: &str) -> Option<Place> {
        self.tables.fields.get(format!("{type_name}::{name}").as_str()).copied()
    }
}

fn get<T: Copy>(table: &HashMap<Box<str>, T>, kind: &str, name: &str) -> Result<T> {
    table.get(name).copied().ok_or_else(|| missing(kind, name))
}

fn missing(kind: &str, name: &str) -> Error {
    Error::layout(format!("this JVM has no {kind} {name}"))
}

/// One table's shape: where it is, how long an entry is.
struct Table {
    at: Addr,
    stride: u64,
}

struct Reader<'a, F> {
    memory: &'a Memory,
    pages: Pages<'a>,
    lookup: F,
    bias: u64,
    /// How many more bytes names may take.
    room: usize,
}

impl<F: Fn(&str) -> Option<Addr>> Reader<'_, F> {
    fn fields(&mut self) -> Result<HashMap<Box<str>, Place>> {
        let table = self.table("gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride")?;
        let type_name = self.member(&table, "gHotSpotVMStructEntryTypeNameOffset", 8)?;
        let field_name = self.member(&table, "gHotSpotVMStructEntryFieldNameOffset", 8)?;
        let is_static = self.member(&table, "gHotSpotVMStructEntryIsStaticOffset", 4)?;
        let offset = self.member(&table, "gHotSpotVMStructEntryOffsetOffset", 8)?;
        let address = self.member(&table, "gHotSpotVMStructEntryAddressOffset", 8)?;
        // Types come in runs: the last one's name is usually the next one's.
        let mut last = (0, String::new());
        let bias = self.bias;
        self.entries(&table, [type_name, field_name], |pages, [t, f], entry| {
            if last.0 != t {
                last = (t, pages.name(Addr(t))?);
            }
            let key = format!("{}::{}", last.1, pages.name(Addr(f))?);
            let place = match u32_at(entry, is_static) {
                0 => Place::Offset(u64_at(entry, offset)),
                _ => Place::Static(Addr(u64_at(entry, address).wrapping_sub(bias))),
            };
            Ok((key, place))
        })
    }

    fn types(&mut self) -> Result<HashMap<Box<str>, u64>> {
        let table = self.table("gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride")?;
        let name = self.member(&table, "gHotSpotVMTypeEntryTypeNameOffset", 8)?;
        let size = self.member(&table, "gHotSpotVMTypeEntrySizeOffset", 8)?;
        self.entries(&table, [name], |pages, [name], entry| {
            Ok((pages.name(Addr(name))?, u64_at(entry, size)))
        })
    }

    fn ints(&mut self) -> Result<HashMap<Box<str>, i32>> {
        let table =
            self.table("gHotSpotVMIntConstants", "gHotSpotVMIntConstantEntryArrayStride")?;
        let name = self.member(&table, "gHotSpotVMIntConstantEntryNameOffset", 8)?;
        let value = self.member(&table, "gHotSpotVMIntConstantEntryValueOffset", 4)?;
        self.entries(&table, [name], |pages, [name], entry| {
            let value = u32_at(entry, value).cast_signed();
            Ok((pages.name(Addr(name))?, value))
        })
    }

    fn longs(&mut self) -> Result<HashMap<Box<str>, u64>> {
        let table =
            self.table("gHotSpotVMLongConstants", "gHotSpotVMLongConstantEntryArrayStride")?;
        let name = self.member(&table, "gHotSpotVMLongConstantEntryNameOffset", 8)?;
        let value = self.member(&table, "gHotSpotVMLongConstantEntryValueOffset", 8)?;
        self.entries(&table, [name], |pages, [name], entry| {
            Ok((pages.name(Addr(name))?, u64_at(entry, value)))
        })
    }

    fn variable(&self, symbol: &str) -> Result<u64> {
        let addr =
            (self.lookup)(symbol).ok_or_else(|| Error::layout(format!("no symbol {symbol}")))?;
        self.memory.u64(addr)
    }

    fn table(&self, array: &str, stride: &str) -> Result<Table> {
        let at = Addr(self.variable(array)?);
        let stride = match self.variable(stride)? {
            n @ 8..=MAX_STRIDE => n,
            n => return Err(Error::layout(format!("{stride} is {n}: implausible"))),
        };
        Ok(Table { at, stride })
    }

    /// The position of a member `size` bytes long, which lies within the entry.
    fn member(&self, table: &Table, symbol: &str, size: u64) -> Result<usize> {
        match self.variable(symbol)? {
            n if n <= table.stride.saturating_sub(size) => Ok(n as usize),
            n => Err(Error::layout(format!("{symbol} is {n}: implausible"))),
        }
    }

    /// Reads entries until one has a null pointer for any of its `names`.
    fn entries<T, const N: usize>(
        &mut self,
        table: &Table,
        names: [usize; N],
        mut parse: impl FnMut(&mut Pages<'_>, [u64; N], &[u8]) -> Result<(String, T)>,
    ) -> Result<HashMap<Box<str>, T>> {
        let mut found = HashMap::new();
        let mut entry = vec![0; table.stride as usize];
        let mut at = Some(table.at);
        for _ in 0..MAX_ENTRIES {
            let here = at.ok_or_else(|| Error::layout("a table leaves the address space"))?;
            self.pages.read(here, &mut entry)?;
            let pointers = names.map(|n| u64_at(&entry, n));
            if pointers.contains(&0) {
                return Ok(found);
            }
            let (name, value) = parse(&mut self.pages, pointers, &entry)?;
            self.room = self
                .room
                .checked_sub(name.len())
                .ok_or_else(|| Error::layout("the names in the tables are too long"))?;
            found.insert(name.into_boxed_str(), value);
            at = here.checked_add(table.stride);
        }
        Err(Error::layout(format!(
            "the table at {} does not end within {MAX_ENTRIES} entries",
            table.at
        )))
    }
}

/// The number at a position that [`Reader::member`] has checked; 0 beyond the end.
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
    use crate::hotspot::testing::Image;

    fn sample() -> Image {
        let mut image = Image::new();
        image.field("Klass", "_name", 24);
        image.static_field("Universe", "_collectedHeap", Addr(0x7000));
        image.class("Klass", 208);
        image.finish();
        image
    }

    #[test]
    fn all_names_together_have_a_bound() {
        let name = Box::new([b'a'; 1024]);
        let mut text = name.to_vec();
        text.push(0);
        // Each entry names the same text, from another byte on.
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
    fn reads_all_four_tables() {
        let vm = sample().read().unwrap();
        assert_eq!(vm.field("Klass", "_name").unwrap(), 24);
        let heap = vm.static_field("Universe", "_collectedHeap").unwrap();
        assert_eq!(heap, Addr(0x7000));
        assert_eq!(vm.type_size("Klass").unwrap(), 208);
        assert_eq!(vm.int_constant("answer").unwrap(), 42);
        assert_eq!(vm.long_constant("answer").unwrap(), 1 << 40);
        assert!(vm.has_type("Klass"));
    }

    #[test]
    fn statics_are_where_the_library_was_moved_to() {
        let image = sample();
        let [low, high] = [0x1000, 0x3000].map(|bias| image.read_at(bias).unwrap());
        // Kept without the bias: so these differ, though they say the same.
        assert_ne!(low.tables, high.tables);
        for vm in [low, high] {
            assert_eq!(vm.static_field("Universe", "_collectedHeap").unwrap(), Addr(0x7000));
        }
    }

    #[test]
    fn names_what_is_missing() {
        let vm = sample().read().unwrap();
        let error = vm.field("Klass", "_shoe").unwrap_err().to_string();
        assert!(error.contains("Klass::_shoe"), "{error}");
        // A static field is no offset and the other way round.
        assert!(vm.field("Universe", "_collectedHeap").is_err());
        assert!(vm.static_field("Klass", "_name").is_err());
        let error = VmStructs::read(&crate::hotspot::testing::own_memory(), 0, |_| None, Arc::new);
        assert!(error.unwrap_err().to_string().contains("gHotSpotVMStructs"));
    }

    #[test]
    fn refuses_implausible_shapes() {
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
        // Entries of 8 bytes in a megabyte of pointers to one name.
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
