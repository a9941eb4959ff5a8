//! Stacks: who called whom, and what these addresses are.
//!
//! | module | what it knows |
//! |---|---|
//! | [`walk`] | stacks as the walker sends them, and how far it came |
//! | [`frame`] | a named frame |
//! | [`name`] | what an address of a process is: all sources behind one trait |
//! | [`code`] | what lay where in a code cache, and when |
//! | [`perfmap`] | perf-PID.map files |
//! | [`agent_map`] | the map that our agent writes |
//! | [`builtin_map`] | the map that a JVM writes when asked |
//! | [`maps`] | the files that a process has mapped as code |
//! | [`native`] | symbols of ELF files and of the kernel |
//! | [`shrunk`] | files that shrink while they are mapped |
//! | [`entry`] | where threads begin |
//! | [`live`] | stacks named as they come |
//! | [`profile`] | samples with named stacks |
//!
//! *Walking* happens in the kernel and yields [`walk::RawStack`]s; *naming* happens
//! here. Java frames are named as soon as they are seen
//! ([`crate::hotspot::places`]), which makes a [`walk::Stack`] of a raw one; what is an
//! address still goes through [`name::Name`]. The walker knows no names, so that a better
//! one needs no new names, and new symbols no new walker.

pub mod agent_map;
pub mod builtin_map;
pub mod code;
pub mod entry;
pub mod frame;
pub mod live;
pub mod maps;
pub mod name;
pub mod native;
pub mod perfmap;
pub mod profile;
pub mod shrunk;
pub mod walk;

pub use frame::{Frame, Kind};
pub use walk::{Place, Stack, WalkEnd};
