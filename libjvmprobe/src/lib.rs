//! Finds, reads and traces running HotSpot JVMs from outside: no flag, no
//! restart, no agent, and nothing written to them.
//!
//! Below is what each module knows; a module uses only those that stand below it.
//!
//! | module | what it knows |
//! |---|---|
//! | [`cli`] | what the tools' command lines have in common |
//! | [`take`] | what is taken of JVMs: pauses, samples, allocations |
//! | [`follow`] | JVMs that come, get ready, are stopped, end; the loop of every tool |
//! | [`render`] | numbers, tables, histograms and profiles as text |
//! | [`stack`] | stacks: walked, named, as profiles |
//! | [`bpf`] | loading and attaching BPF programs, event streams, clocks, the stack walker |
//! | [`ask`] | all that touches a JVM |
//! | [`hotspot`] | HotSpot's own layout: vmStructs, flags, collector, heap, code cache, methods |
//! | [`unwind`] | unwind tables: how to find a caller's frame |
//! | `image` | GraalVM native images: what they say of their own code |
//! | [`process`] | a process: its fate, maps, memory, root, its libjvm.so |
//! | [`elf`] | what an ELF file offers: stapsdt notes, symbols |
//! | [`own`] | this process itself: rights, memory, deadlines, signals, notes |
//! | [`names`] | what a piece of code is called |
//!
//! Data flow one way: a process number becomes a [`process::Target`] (found, named,
//! checked), its file's probes become places to attach to
//! ([`bpf::probes::resolve`]), attached programs send events
//! (`bpf::stream::EventStream`), and the tools turn these into output.
//!
//! Everything that comes from outside (ELF files, /proc, the target's memory)
//! is checked once, where it enters; errors ([`Error`]) say what to do next.

pub mod ask;
pub mod bpf;
pub mod cli;
pub mod elf;
mod error;
pub mod follow;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
#[allow(clippy::unwrap_used, reason = "a fuzzer fails by panicking")]
pub mod fuzzing;
pub mod hotspot;
pub(crate) mod image;
pub mod names;
pub mod own;
pub mod process;
pub mod render;
pub mod stack;
pub mod take;
mod units;
pub mod unwind;

pub use error::{Error, Result};
pub use units::{Addr, Pid};
pub(crate) use units::{FileOffset, NsPid, Vaddr};
