//! ELF files: what a libjvm.so offers to a tracer.
//!
//! | module | what it knows |
//! |---|---|
//! | `file` | headers and sections, read piece by piece |
//! | `stapsdt` | USDT probes: `.note.stapsdt` |
//! | `symbols` | `.symtab` and `.dynsym` |
//!
//! The bytes are hostile: a file may be truncated, replaced while it is read or
//! made to hurt. Every length is checked against the file's real size before
//! anything is allocated, and nothing is memory-mapped, for a mapped file that
//! is truncated kills its reader by SIGBUS.

pub(crate) mod file;
pub(crate) mod stapsdt;
pub(crate) mod symbols;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use file::Machine;
pub use file::{ElfFile, Segments};
pub(crate) use stapsdt::Probes;
pub use symbols::Symbols;
