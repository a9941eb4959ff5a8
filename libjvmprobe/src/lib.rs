//! Finds, reads and traces running HotSpot JVMs from outside. The JVMs need no
//! flag, no restart and no agent, and nothing is written to them. Only the module
//! [`attach`] contacts a JVM, on request.
//!
//! The table lists the subject of each module. A module uses only modules below it.
//!
//! | module | subject |
//! |---|---|
//! | [`cli`] | common parts of the tools' command lines |
//! | [`trace`] | the tracers: pauses, samples, allocations |
//! | [`jvms`] | discovery and life cycle of JVMs; the main loop of every tool |
//! | [`render`] | output: numbers, tables, histograms and profile files |
//! | [`stack`] | stacks: as walked, with names, and as profiles |
//! | [`bpf`] | loading and attaching BPF programs, event streams, clocks, the stack walker |
//! | [`attach`] | everything that touches a JVM: attach protocol, agent, maps |
//! | [`hotspot`] | HotSpot's own layout: vmStructs, flags, collector, heap, code cache, methods |
//! | [`unwind`] | unwind tables: how to find a caller's frame |
//! | `native_image` | GraalVM native images: their metadata about their own code |
//! | [`process`] | a process: its identity, files, memory, and its libjvm.so |
//! | [`elf`] | ELF files: stapsdt notes, symbols |
//! | [`sys`] | this process itself: privileges, memory, deadlines, signals |
//! | [`names`] | names of code: generated code, perf maps, demangling |
//!
//! Data flows in one direction: a PID becomes a [`process::Target`] (a process
//! and its libjvm.so), the probes of its libjvm.so become locations to attach to
//! ([`bpf::probes::resolve`]), attached programs send events
//! (`bpf::stream::EventStream`), and the tools turn these into output.
//!
//! All external input (ELF files, /proc, the target's memory) is checked once,
//! where it enters the library. Errors ([`Error`]) say what to do next.

pub mod attach;
pub mod bpf;
pub mod cli;
pub mod elf;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
#[allow(clippy::unwrap_used, reason = "a fuzzer fails by panicking")]
pub mod fuzzing;
pub mod hotspot;
pub mod jvms;
pub mod names;
pub(crate) mod native_image;
pub mod process;
pub mod render;
pub mod stack;
pub mod sys;
pub mod trace;
mod units;
pub mod unwind;

pub use error::{Error, Result};
pub use units::{Addr, Pid};
pub(crate) use units::{FileOffset, NsPid, Vaddr};
