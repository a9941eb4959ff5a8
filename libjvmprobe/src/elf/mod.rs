//! ELF files: what a libjvm.so offers to a tracer.
//!
//! | module | what it knows |
//! |---|---|
//! | `addresses` | symbols by address |
//! | `apart` | symbols of a stripped file, which are kept apart |
//! | `file` | headers and sections, read piece by piece |
//! | `functions` | where functions begin |
//! | `relocations` | what it has in memory once it is loaded |
//! | `stapsdt` | USDT probes: `.note.stapsdt` |
//! | `symbols` | `.symtab` and `.dynsym` |
//!
//! The bytes are hostile: a file may be truncated, replaced while it is read or
//! made to hurt. Every length is checked against the file's real size before
//! anything is allocated, and nothing is memory-mapped, for a mapped file that
//! is truncated kills its reader by SIGBUS.

mod addresses;
pub(crate) mod apart;
pub(crate) mod file;
mod functions;
mod relocations;
pub(crate) mod stapsdt;
pub(crate) mod symbols;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use addresses::Addresses;
pub(crate) use file::Machine;
pub use file::{ElfFile, Segments};
pub(crate) use functions::Functions;
pub(crate) use relocations::Relocations;
pub(crate) use stapsdt::Probes;
pub use symbols::Symbols;
