//! HotSpot's own layout: what a JVM tells of itself in its memory, without being asked.
//!
//! | module | what it knows |
//! |---|---|
//! | `layout` | all that we know by name, and what changed in which JDK |
//! | `resolved` | what of that one JVM has, and where |
//! | `build` | what one libjvm.so tells, read once |
//! | `vmstructs` | the tables of fields and types that every libjvm.so exports |
//! | `instance` | one JVM: what it is |
//! | `operations` | its operations and collections |
//! | `flags` | the JVM's flags and their values |
//! | `collector` | which collector runs |
//! | [`gauge`] | where the numbers are that belong into every event |
//! | `perfdata` | its performance data (`hsperfdata`) |
//! | `heap` | where the used bytes of the heap are counted |
//! | `holds` | how full its code cache is, and how many classes it has loaded |
//! | [`code`] | what is in the code cache, and what was inlined into it |
//! | `methods` | methods: names, parameters, lines |
//! | [`classes`] | classes: names |
//! | [`loaded`] | all classes that are loaded: state, origin, which methods were called |
//! | `symbols` | names that are kept once each |
//! | [`objects`] | objects in the heap, by class |
//! | [`threads`] | what threads have allocated |
//! | [`deopt`] | why compiled code was given up |
//! | `compressed` | its compressed integers |
//! | `hashing` | maps by numbers that the target chose |
//! | `pages` | the target's pages that were read, in bounds |
//! | [`walking`] | what the stack walker must know of it |
//!
//! [`HotSpot::read`] puts them together. Nothing is written to the target and
//! it is never stopped; a JVM that is just starting up tells less, and more later.

mod build;
pub mod classes;
pub mod code;
pub(crate) mod collector;
pub(crate) mod compressed;
pub(crate) mod counters;
pub mod deopt;
pub(crate) mod flags;
#[cfg(feature = "fuzzing")]
#[allow(clippy::unwrap_used, reason = "a fuzzer fails by panicking")]
pub(crate) mod fuzzing;
pub mod gauge;
mod hashing;
pub(crate) mod heap;
mod holds;
mod instance;
mod layout;
pub mod loaded;
pub(crate) mod methods;
pub mod objects;
pub(crate) mod operations;
mod pages;
pub(crate) mod perfdata;
mod references;
mod resolved;
mod symbols;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code))]
#[allow(clippy::unwrap_used, reason = "for tests only")]
pub(crate) mod testing;
pub mod thread_names;
pub mod threads;
mod vmstructs;
pub mod walking;

pub use collector::Collector;
pub use holds::Fill;
pub use instance::HotSpot;
