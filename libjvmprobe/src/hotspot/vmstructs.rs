//! The tables in which HotSpot describes itself to debuggers.
//!
//! Every libjvm.so, stripped or not, exports `gHotSpotVMStructs` (fields),
//! `gHotSpotVMTypes` (sizes) and variables that tell the layout of the tables'
//! own entries. Offsets come from here and never from constants of ours.
//! Source: HotSpot's runtime/vmStructs.hpp, `VMStructEntry`, `VMTypeEntry`.

use std::collections::HashMap;

use crate::{Addr, Error, Result, jvm::memory::Memory};

/// HotSpot has about 3,500 fields and 1,200 types; more is no table of HotSpot's.
const MAX_ENTRIES: usize = 65_536;
/// An entry has six words.
const MAX_STRIDE: usize = 256;
/// The longest name of a type or field is a few dozen bytes.
const MAX_NAME: usize = 512;

/// Finds the address in the target of a symbol that libjvm.so exports.
pub trait Lookup: Fn(&str) -> Option<Addr> {}
impl<F: Fn(&str) -> Option<Addr>> Lookup for F {}

/// Fields and types of one JVM.
#[derive(Debug, Default)]
pub struct VmStructs {
    /// By type, then by field.
    fields: HashMap<String, HashMap<String, Place>>,
    sizes: HashMap<String, u64>,
}

/// Where a field is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Static(Addr),
    Offset(u64),
}

impl VmStructs {
    /// Reads the tables of a live process.
    ///
    /// # Errors
    /// [`Error::Layout`] where a table is missing or implausible,
    /// [`Error::Memory`] where it cannot be read.
    pub fn read(memory: &Memory, lookup: impl Lookup) -> Result<Self> {
        let mut names = Names::new(memory);
        let variable = |name: &str| -> Result<u64> {
            let addr = lookup(name)
                .ok_or_else(|| Error::layout(format!("libjvm.so exports no symbol {name}")))?;
            memory.u64(addr)
        };
        let mut tables = Self::default();

        let table =
            Table::find("gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride", &variable)?;
        let type_name = table.column("gHotSpotVMStructEntryTypeNameOffset", &variable)?;
        let field_name = table.column("gHotSpotVMStructEntryFieldNameOffset", &variable)?;
        let is_static = table.column("gHotSpotVMStructEntryIsStaticOffset", &variable)?;
        let offset = table.column("gHotSpotVMStructEntryOffsetOffset", &variable)?;
        let address = table.column("gHotSpotVMStructEntryAddressOffset", &variable)?;
        table.each(memory, type_name, |entry| {
            let place = if entry.u32(is_static)? != 0 {
                Place::Static(Addr(entry.u64(address)?))
            } else {
                Place::Offset(entry.u64(offset)?)
            };
            let of = names.at(entry.u64(type_name)?)?;
            let field = names.at(entry.u64(field_name)?)?;
            tables.fields.entry(of).or_default().insert(field, place);
            Ok(())
        })?;

        let table = Table::find("gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride", &variable)?;
        let type_name = table.column("gHotSpotVMTypeEntryTypeNameOffset", &variable)?;
        let size = table.column("gHotSpotVMTypeEntrySizeOffset", &variable)?;
        table.each(memory, type_name, |entry| {
            tables.sizes.insert(names.at(entry.u64(type_name)?)?, entry.u64(size)?);
            Ok(())
        })?;
        Ok(tables)
    }

    /// The offset of a field in its object.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the field, as for all accessors.
    pub fn offset(&self, of: &str, field: &str) -> Result<u64> {
        match self.place(of, field) {
            Some(Place::Offset(offset)) => Ok(offset),
            _ => Err(missing(of, field)),
        }
    }

    /// The address of a static field.
    pub fn static_field(&self, of: &str, field: &str) -> Result<Addr> {
        match self.place(of, field) {
            Some(Place::Static(addr)) => Ok(addr),
            _ => Err(missing(of, field)),
        }
    }

    /// The size of a type in bytes.
    pub fn size_of(&self, of: &str) -> Result<u64> {
        let size = self.sizes.get(of).copied();
        size.ok_or_else(|| Error::layout(format!("no type {of} in this JVM's tables")))
    }

    /// Whether a type has a field, static or not.
    pub fn has(&self, of: &str, field: &str) -> bool {
        self.place(of, field).is_some()
    }

    fn place(&self, of: &str, field: &str) -> Option<Place> {
        self.fields.get(of)?.get(field).copied()
    }
}

fn missing(of: &str, field: &str) -> Error {
    Error::layout(format!("no field {of}::{field} in this JVM's tables"))
}

/// A table of equal entries, ended by one without a name.
struct Table {
    start: Addr,
    stride: usize,
}

impl Table {
    fn find(start: &str, stride: &str, variable: &impl Fn(&str) -> Result<u64>) -> Result<Self> {
        let plausible = usize::try_from(variable(stride)?).ok();
        let stride = plausible
            .filter(|n| (16..=MAX_STRIDE).contains(n))
            .ok_or_else(|| Error::layout(format!("{stride} is implausible")))?;
        Ok(Self { start: Addr(variable(start)?), stride })
    }

    /// The offset of a column, as a variable tells it.
    fn column(&self, name: &str, variable: &impl Fn(&str) -> Result<u64>) -> Result<usize> {
        let offset = usize::try_from(variable(name)?).ok();
        offset
            .filter(|&offset| offset < self.stride)
            .ok_or_else(|| Error::layout(format!("{name} is implausible")))
    }

    /// Visits the entries up to the one whose `key` column is null.
    fn each(
        &self,
        memory: &Memory,
        key: usize,
        mut visit: impl FnMut(Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        // Chunks that end with the table's page, so as not to read beyond its mapping.
        let mut pending = Vec::new();
        let mut at = self.start;
        let mut visited = 0;
        loop {
            let chunk = memory.read(at, 4096 - (at.0 % 4096) as usize)?;
            at =
                at.checked_add(chunk.len() as u64).ok_or_else(|| Error::layout("a table wraps"))?;
            pending.extend_from_slice(&chunk);
            let whole = pending.len() / self.stride * self.stride;
            for bytes in pending[..whole].chunks_exact(self.stride) {
                let entry = Entry(bytes);
                if entry.u64(key)? == 0 {
                    return Ok(());
                }
                visited += 1;
                if visited > MAX_ENTRIES {
                    return Err(Error::layout(format!(
                        "a table of more than {MAX_ENTRIES} entries"
                    )));
                }
                visit(entry)?;
            }
            pending.drain(..whole);
        }
    }
}

/// One entry's bytes.
struct Entry<'a>(&'a [u8]);

impl Entry<'_> {
    fn u64(&self, offset: usize) -> Result<u64> {
        self.array(offset).map(u64::from_ne_bytes)
    }

    fn u32(&self, offset: usize) -> Result<u32> {
        self.array(offset).map(u32::from_ne_bytes)
    }

    fn array<const N: usize>(&self, offset: usize) -> Result<[u8; N]> {
        self.0
            .get(offset..)
            .and_then(|rest| rest.first_chunk().copied())
            .ok_or_else(|| Error::layout("an entry ends within a column"))
    }
}

/// Names, which lie close together in libjvm.so: read page by page, once.
pub(super) struct Names<'a> {
    memory: &'a Memory,
    pages: HashMap<u64, Vec<u8>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(memory: &'a Memory) -> Self {
        Self { memory, pages: HashMap::new() }
    }

    /// The NUL-terminated name at an address.
    pub(super) fn at(&mut self, addr: u64) -> Result<String> {
        let mut name = Vec::new();
        let mut page = addr / 4096;
        let mut from = (addr % 4096) as usize;
        while name.len() < MAX_NAME {
            let bytes = match self.pages.entry(page) {
                std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::hash_map::Entry::Vacant(new) => {
                    new.insert(self.memory.read(Addr(page * 4096), 4096)?)
                }
            };
            let rest = bytes.get(from..).unwrap_or_default();
            match rest.iter().position(|&b| b == 0) {
                Some(end) => {
                    name.extend_from_slice(&rest[..end]);
                    return Ok(String::from_utf8_lossy(&name).into_owned());
                }
                None => name.extend_from_slice(rest),
            }
            page += 1;
            from = 0;
        }
        Err(Error::layout(format!("a name of more than {MAX_NAME} bytes at {addr:#x}")))
    }
}
