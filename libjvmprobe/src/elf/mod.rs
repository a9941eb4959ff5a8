//! ELF files: what a libjvm.so offers to a tracer.
//!
//! | module | what it knows |
//! |---|---|
//! | [`file`](mod@file) | headers and sections, read piece by piece |
//! | [`stapsdt`] | USDT probes: `.note.stapsdt` |
//! | [`args`] | how a probe's arguments are spelled |
//! | [`symbols`] | `.symtab` and `.dynsym` |
//! | [`unwind`] | how to find a caller's frame: `.eh_frame` as a sorted table |
//!
//! The bytes are hostile: a file may be truncated, replaced while it is read or
//! made to hurt. Every length is checked against the file's real size before
//! anything is allocated, and nothing is memory-mapped, for a mapped file that
//! is truncated kills its reader by SIGBUS.

pub mod args;
pub mod file;
pub mod stapsdt;
pub mod symbols;
#[cfg(test)]
mod testing;
pub mod unwind;

pub use args::{ArgPlace, ArgSpec};
pub use file::{ElfFile, Machine, Section, Segments};
pub use stapsdt::{Probe, Probes};
pub use symbols::{Symbol, Symbols};
