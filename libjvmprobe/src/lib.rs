//! Finds, reads and traces running HotSpot JVMs from outside: no flag, no
//! restart, no agent, and nothing written to them.
//!
//! | module | what it knows |
//! |---|---|
//! | [`jvm`] | what a JVM process is: discovery, its libjvm.so, namespaces, memory, performance data |
//! | [`elf`] | what an ELF file offers: stapsdt notes, symbols, unwind tables |
//! | [`hotspot`] | HotSpot's own layout: vmStructs, flags, collector, heap, code cache, methods |
//! | [`stack`] | stacks: walked, named, as profiles |
//! | [`trace`] | loading and attaching BPF programs, event streams, clocks, the stack walker |
//! | [`follow`] | JVMs that come, get ready, are stopped |
//! | [`cli`] | what the tools' command lines have in common |
//! | [`budget`] | what may be kept in memory |
//! | [`end`] | signals, deadlines, and what is undone however a run ends |
//! | [`render`] | numbers and histograms as text, line-buffered output |
//! | [`clean`] | words of others, made harmless |
//!
//! Data flow one way: a process number becomes a [`jvm::Target`] (found, named,
//! checked), its file's probes become places to attach to
//! ([`trace::attach::resolve`]), attached programs send events
//! ([`trace::stream::EventStream`]), and the tools turn these into output.
//!
//! Everything that comes from outside (ELF files, /proc, the target's memory)
//! is checked once, where it enters; errors ([`Error`]) say what to do next.

pub mod budget;
pub mod clean;
pub mod cli;
pub mod elf;
pub mod end;
mod error;
pub mod follow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod hotspot;
pub mod jvm;
pub mod render;
pub mod stack;
pub mod trace;
mod units;

pub use error::{Error, Result};
pub use units::{Addr, FileOffset, NsPid, Pid, Vaddr};
