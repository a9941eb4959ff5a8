//! Stacks: who called whom, and what these addresses are.
//!
//! | module | what it knows |
//! |---|---|
//! | [`raw`] | stacks as the walker sends them, and how far it came |
//! | `frame` | a named frame |
//! | [`joined`] | profiles of successive times as one |
//! | [`name`] | what an address of a process is: all sources behind one trait |
//! | [`code_log`] | what lay where in a code cache, and when |
//! | [`java_frames`] | what the Java frames of stacks are |
//! | `kernel` | symbols of the kernel |
//! | [`native`] | symbols of ELF files |
//! | [`symbolizer`] | symbols of ELF files, read by a confined child |
//! | `thread_entry` | where threads begin |
//! | [`namer`] | stacks with names, as they come or in the end |
//! | [`profile`] | samples with named stacks |
//! | [`times`] | how much there was when |
//! | [`timeline`] | when samples were taken, and what else happened |
//! | [`waiting`] | what stands in place of code where a thread does not run |
//!
//! *Walking* happens in the kernel and yields [`raw::RawStack`]s; *naming* happens
//! here. Java frames are named as soon as they are seen
//! ([`crate::stack::java_frames`]), which makes a [`raw::Stack`] of a raw one; what is an
//! address still goes through [`name::Name`]. The walker knows no names, so that a better
//! one needs no new names, and new symbols no new walker.

pub mod code_log;
pub(crate) mod frame;
pub mod java_frames;
pub mod joined;
mod kernel;
pub mod name;
pub mod namer;
pub mod native;
pub mod profile;
pub mod raw;
pub mod symbolizer;
pub(crate) mod thread_entry;
pub mod timeline;
pub mod times;
pub mod waiting;

pub use frame::{Frame, Kind};
pub(crate) use raw::Place;
pub use raw::Stack;
pub(crate) use raw::WalkEnd;
