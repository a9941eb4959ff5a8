//! ELF files: symbols, probes and code of a libjvm.so and other libraries.
//!
//! | module | contents |
//! |---|---|
//! | `addresses` | symbols by address |
//! | `content` | content of sections: complete within a budget, or piece by piece |
//! | `core_dump` | core dumps: memory, threads, mapped files |
//! | `separate_debug_file` | symbols that a stripped file lacks: separate files, `.gnu_debugdata` |
//! | `file` | headers and sections, read piece by piece |
//! | `functions` | start addresses of functions |
//! | `lookups` | cache of searches for symbols |
//! | `relocations` | relocations of position-independent files |
//! | `stapsdt` | USDT probes: `.note.stapsdt` |
//! | `string_search` | search in string tables |
//! | `symbols` | `.symtab` and `.dynsym` |
//! | `tls` | exported thread-local variables |
//!
//! The bytes are untrusted: a file may be truncated, replaced while it is read, or malicious. Each length is checked
//! against the file's real size before anything is allocated. Memory that depends on a file's content is reserved in the
//! name of the tenant whose process uses the file; large tables are searched piece by piece. This module maps no file into memory, because a
//! process that reads a mapped file is killed by SIGBUS if the file is truncated.

mod addresses;
mod content;
pub(crate) mod core_dump;
pub(crate) mod file;
mod functions;
mod lookups;
mod relocations;
pub(crate) mod separate_debug_file;
pub(crate) mod stapsdt;
mod string_search;
pub(crate) mod symbols;
#[cfg(test)]
pub(crate) mod testing;
mod tls;

pub(crate) use addresses::Addresses;
pub(crate) use content::SectionData;
pub(crate) use file::Machine;
pub(crate) use file::NATIVE_IMAGE_HEAP;
pub use file::{ElfFile, Segments};
pub(crate) use functions::Functions;
pub(crate) use lookups::Lookups;
pub(crate) use relocations::Relocations;
pub(crate) use separate_debug_file::{SymbolFile, is_out_of_memory};
pub(crate) use stapsdt::Probes;
pub use symbols::Symbols;
pub(crate) use tls::TlsAccess;
