//! The VM's flags (`-XX:…`) with their current values, including those that ergonomics chose.
//!
//! `JVMFlag::flags` (`src/hotspot/share/runtime/flags/jvmFlag.hpp`; before JDK 10
//! `Flag::flags` in `runtime/globals.hpp`) is an array of `numFlags` entries, of which vmStructs
//! describes `_name`, `_addr` and `_type`. `_type` determines the width of a value. It is a C string
//! up to about JDK 15, and an enumerator since then.

use std::collections::HashMap;

use crate::{
    Addr, Error, Result,
    hotspot::{layout::Item, pages::Pages, resolved::Layout},
    process::memory::Memory,
};

/// Plausibility limit for the number of flags; HotSpot has about 1,500.
const MAX_FLAGS: u64 = 16_384;

/// Width and meaning of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Bits32,
    Bits64,
    /// A pointer to a C string.
    Text,
    /// `double` and unknown types, which are not read.
    Other,
}

/// Addresses of the flags' values.
#[derive(Debug)]
pub(crate) struct Flags {
    flags: HashMap<Box<str>, (Addr, Kind)>,
}

impl Flags {
    /// Reads the table of flags without their values.
    ///
    /// # Errors
    /// [`Error::Layout`] if the table is missing or implausible.
    pub(super) fn read(memory: &Memory, layout: &Layout) -> Result<Self> {
        let table = memory.pointer(layout.address(Item::Flags)?)?;
        let count = memory.u64(layout.address(Item::FlagCount)?)?;
        let stride = layout.get(Item::FlagSize)?;
        let name = layout.get(Item::FlagName)?;
        let addr = layout.get(Item::FlagAddr)?;
        let kind = layout.get(Item::FlagType)?;
        if count > MAX_FLAGS || !(24..=256).contains(&stride) {
            return Err(Error::layout(format!(
                "implausible table of {count} flags of {stride} bytes"
            )));
        }
        let mut pages = Pages::new(memory);
        let mut flags = HashMap::with_capacity(count as usize);
        for index in 0..count {
            // The product cannot overflow, because both factors are limited. A sum that is too large
            // makes the read fail.
            let entry = table.0.saturating_add(index * stride);
            let name_ptr = pages.u64(Addr(entry.saturating_add(name)))?;
            // The last entry is empty.
            if name_ptr == 0 {
                continue;
            }
            let value = Addr(pages.u64(Addr(entry.saturating_add(addr)))?);
            let raw_at = Addr(entry.saturating_add(kind));
            // A pointer is always aligned to eight bytes. So if the offset of `_type` is not a multiple of
            // eight, `_type` is an enumerator of four bytes, in the upper half of an 8-byte word.
            let raw =
                if kind % 8 == 0 { pages.u64(raw_at)? } else { u64::from(pages.u32(raw_at)?) };
            let name = pages.name(Addr(name_ptr))?;
            let kind = Kind::decode(raw, &mut pages);
            flags.insert(name.into_boxed_str(), (value, kind));
        }
        Ok(Self { flags })
    }

    /// Returns the current value of a `bool` flag; `None` if this JVM has no such flag.
    pub(crate) fn flag_bool(&self, memory: &Memory, name: &str) -> Option<bool> {
        match self.flags.get(name)? {
            (addr, Kind::Bool) => Some(memory.array::<1>(*addr).ok()? != [0]),
            _ => None,
        }
    }

    /// Returns the current value of an integer flag of any width (negative values as two's
    /// complement); `None` if this JVM has no such flag.
    pub(crate) fn flag_u64(&self, memory: &Memory, name: &str) -> Option<u64> {
        match self.flags.get(name)? {
            (addr, Kind::Bits32) => memory.u32(*addr).ok().map(u64::from),
            (addr, Kind::Bits64) => memory.u64(*addr).ok(),
            _ => None,
        }
    }

    /// Returns the current value of a text flag; `None` if it is unset or this JVM has no such flag.
    pub(crate) fn flag_string(&self, memory: &Memory, name: &str) -> Option<String> {
        match self.flags.get(name)? {
            (addr, Kind::Text) => match memory.pointer(*addr).ok()? {
                Addr(0) => None,
                text => memory.c_string(text, 4096).ok(),
            },
            _ => None,
        }
    }
}

impl Kind {
    /// Decodes `_type`: a pointer to the type's name, or an `int` enumerator. An enumerator is only
    /// the lower half of `raw`; the upper half may contain other data.
    fn decode(raw: u64, pages: &mut Pages<'_>) -> Self {
        if raw > u64::from(u32::MAX)
            && let Ok(name) = pages.name(Addr(raw))
        {
            return Self::named(&name);
        }
        // enum JVMFlagType (JVMFlag::TYPE_bool and so on), in the order of
        // JVM_FLAG_NON_STRING_TYPES_DO.
        match raw as u32 {
            0 => Self::Bool,
            1 | 2 => Self::Bits32,
            3..=6 => Self::Bits64,
            8 | 9 => Self::Text,
            _ => Self::Other,
        }
    }

    fn named(name: &str) -> Self {
        match name {
            "bool" => Self::Bool,
            "int" | "uint" => Self::Bits32,
            "intx" | "uintx" | "size_t" | "uint64_t" => Self::Bits64,
            "ccstr" | "ccstrlist" => Self::Text,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspot::testing::{Image, own_memory};

    /// A table of two flags and the empty last entry; `_type` as a name or a number.
    fn flags_with(types: impl FnOnce(&mut Image) -> [u64; 2]) -> Result<Flags> {
        let mut image = Image::new();
        let values = image.put(&[1, 77]);
        let kinds = types(&mut image);
        let names = [image.text("UseG1GC").0, image.text("MaxHeapSize").0];
        let table =
            image.put(&[values.0, names[0], kinds[0], values.0 + 8, names[1], kinds[1], 0, 0, 0]);
        image.flags(table, 3);
        image.finish();
        let memory = own_memory();
        let flags = Flags::read(&memory, &image.read()?)?;
        assert_eq!(flags.flag_bool(&memory, "UseG1GC"), Some(true));
        assert_eq!(flags.flag_u64(&memory, "MaxHeapSize"), Some(77));
        assert_eq!(flags.flag_bool(&memory, "MaxHeapSize"), None);
        assert_eq!(flags.flag_u64(&memory, "NoSuchFlag"), None);
        Ok(flags)
    }

    #[test]
    fn flag_types_are_read_by_name_or_number() {
        let named = flags_with(|i| [i.text("bool").0, i.text("size_t").0]).unwrap();
        let numbered = flags_with(|_| [0, 6]).unwrap();
        assert_eq!((named.flags.len(), numbered.flags.len()), (2, 2));
    }
}
