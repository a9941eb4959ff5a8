//! Stacks: who called whom, and what these addresses are.
//!
//! | module | what it knows |
//! |---|---|
//! | [`walk`] | stacks as addresses, and how far their walk came |
//! | [`frame`] | a named frame |
//! | [`name`] | what an address of a process is: all sources behind one trait |
//! | [`code`] | what lay where in a code cache, and when |
//! | [`perfmap`] | perf-PID.map files |
//! | [`agent_map`] | the map that our agent writes |
//! | [`builtin_map`] | the map that a JVM writes when asked |
//! | [`maps`] | the files that a process has mapped as code |
//! | [`native`] | symbols of ELF files and of the kernel |
//! | [`entry`] | where threads begin |
//! | [`live`] | stacks named as they come |
//! | [`profile`] | samples with named stacks |
//!
//! *Walking* happens in the kernel and yields [`walk::Stack`]s; *naming* happens
//! here and goes through [`name::Name`]. Neither knows the other, so that a better
//! walker needs no new names, and new symbols no new walker.

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
pub mod walk;

pub use frame::{Frame, Kind};
pub use walk::{Place, Stack, WalkEnd};
