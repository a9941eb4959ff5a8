//! HotSpot's data structures, read from a JVM's memory without its cooperation.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | table of all names that are used, and of changes from JDK to JDK |
//! | `resolved` | the table's offsets and addresses in one JVM |
//! | `build` | facts about one libjvm.so, read once |
//! | `vmstructs` | the tables of fields and types that every libjvm.so exports |
//! | `instance` | one JVM and its properties |
//! | `operations` | its VM operations and collections |
//! | `flags` | its flags and their values |
//! | `collector` | its garbage collector |
//! | [`gauge`] | addresses of the numbers that every event carries |
//! | `perfdata` | its performance data (`hsperfdata`) |
//! | `heap` | how to compute the used bytes of its heap |
//! | `holds` | how full its code cache is, and how many classes it has loaded |
//! | [`code`] | contents of the code cache, and inlined methods |
//! | `methods` | methods: names, parameters, lines |
//! | [`classes`] | classes: names |
//! | [`loaded`] | all loaded classes: state, origin, which methods were called |
//! | `symbols` | names of which the JVM stores each once |
//! | [`objects`] | objects in the heap, by class |
//! | [`threads`] | bytes that threads have allocated |
//! | [`deopt`] | reasons of deoptimisations |
//! | `compressed` | HotSpot's compressed integers |
//! | `hashing` | hash maps keyed by numbers from the target |
//! | `pages` | cache of the target's pages, with bounds |
//! | [`walking`] | data for the stack walker |
//!
//! [`HotSpot::read`] combines them. Nothing is written to the target and it is never stopped.
//! A JVM that is starting up provides less at first, and the rest later.

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
