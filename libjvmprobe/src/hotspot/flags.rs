//! The JVM's flags, read from its own table. Source: runtime/flags/jvmFlag.hpp.

use std::collections::HashSet;

use super::vmstructs::{Names, VmStructs};
use crate::{Addr, Error, Result, jvm::memory::Memory};

/// HotSpot has about 1,500 flags.
const MAX_FLAGS: u64 = 16_384;

/// Of some boolean flags, those that are on.
///
/// # Errors
/// [`Error::Layout`] or [`Error::Memory`] where the table cannot be read. A flag
/// that this JVM does not have is off.
pub fn switched_on(
    memory: &Memory,
    structs: &VmStructs,
    wanted: &[&'static str],
) -> Result<HashSet<&'static str>> {
    // JDK 10 and older call the type Flag.
    let of = if structs.has("JVMFlag", "flags") { "JVMFlag" } else { "Flag" };
    let table = memory.pointer(structs.static_field(of, "flags")?)?;
    let count = memory.u64(structs.static_field(of, "numFlags")?)?;
    let stride = structs.size_of(of)?;
    if count > MAX_FLAGS || !(16..=256).contains(&stride) {
        return Err(Error::layout(format!("{count} flags of {stride} bytes are implausible")));
    }
    let name_at = structs.offset(of, "_name")? as usize;
    let value_at = structs.offset(of, "_addr")? as usize;
    let bytes = memory.read(table, (count * stride) as usize)?;
    let mut names = Names::new(memory);
    let mut on = HashSet::new();
    for entry in bytes.chunks_exact(stride as usize) {
        let word = |at: usize| -> Option<u64> {
            entry.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
        };
        let (Some(name), Some(value)) = (word(name_at), word(value_at)) else {
            return Err(Error::layout(format!("{of} is smaller than its fields")));
        };
        if name == 0 {
            continue;
        }
        let name = names.at(name)?;
        if let Some(flag) = wanted.iter().find(|flag| **flag == name)
            && memory.array::<1>(Addr(value))? != [0]
        {
            on.insert(*flag);
        }
    }
    Ok(on)
}
