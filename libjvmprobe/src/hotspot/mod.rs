//! HotSpot's data structures, read from a JVM's memory without its cooperation.
//!
//! | module | contents |
//! |---|---|
//! | `layout` | table of the HotSpot names that are looked up, and list of changes between JDKs |
//! | `resolved` | the table's offsets and addresses in one JVM |
//! | `boot_classes` | classes of java.base by name |
//! | [`buffers`] | buffers outside of the heap, as JMX shows them |
//! | `build` | facts about one libjvm.so, read once |
//! | `vmstructs` | the tables of fields and types that every libjvm.so exports |
//! | `instance` | one JVM and its properties |
//! | `operations` | VM operations and collections of a JVM |
//! | `flags` | flags of a JVM and their values |
//! | `collector` | garbage collector of a JVM |
//! | [`gauge`] | addresses of the values that the kernel side reads at every event |
//! | [`description`] | a JVM's version, arguments and system properties |
//! | `perfdata` | performance data of a JVM (`hsperfdata`) |
//! | `heap` | how to compute the used bytes of a JVM's heap |
//! | `counters` | the JVM's own counters of safepoints and collections |
//! | `sizes` | sizes of the code cache and the heap, and the number of loaded classes |
//! | [`code`] | contents of the code cache, and inlined methods |
//! | `methods` | methods: names, parameters, lines |
//! | `origins` | methods: whether they are native, and their modules |
//! | `modules` | modules of classes |
//! | [`memory_pools`] | memory pools, as JMX shows them |
//! | `native_locks` | the JVM's own locks by address |
//! | [`classes`] | classes: names |
//! | [`loaded`] | all loaded classes: state, origin, which methods were called |
//! | `symbols` | HotSpot's Symbols: names, each of which is stored once |
//! | [`objects`] | objects in the heap, by class |
//! | `references` | references in the fields of objects |
//! | `fields` | offsets of the fields of classes |
//! | [`java_threads`] | Java threads, their states and the locks that they wait for |
//! | [`virtual_threads`] | virtual threads, their containers and their stacks |
//! | `forwarding` | new addresses of objects that ZGC has moved |
//! | [`thread_names`] | complete names of Java threads |
//! | [`threads`] | bytes that threads have allocated |
//! | [`deopt`] | reasons of deoptimisations |
//! | `compressed` | HotSpot's compressed integers |
//! | `hashing` | hash maps keyed by numbers from the target |
//! | `processor` | what depends on the processor: instructions, interpreted frames, references |
//! | `pages` | cache of the target's memory pages, limited in size |
//! | [`walking`] | data for the stack walker |
//!
//! [`HotSpot::read`] reads the properties of one JVM with these modules. Nothing is written to the
//! target and it is never stopped. While a JVM is starting up, some of its data do not exist yet;
//! [`HotSpot::refresh`] reads them later.

mod boot_classes;
pub mod buffers;
mod build;
pub mod classes;
pub mod code;
pub(crate) mod collector;
pub(crate) mod compressed;
pub(crate) mod counters;
pub mod deopt;
pub mod description;
mod fields;
pub(crate) mod flags;
mod forwarding;
#[cfg(feature = "fuzzing")]
#[allow(clippy::unwrap_used, reason = "a fuzzer fails by panicking")]
pub(crate) mod fuzzing;
pub mod gauge;
mod hashing;
pub(crate) mod heap;
mod instance;
pub mod java_threads;
mod layout;
pub mod loaded;
pub mod memory_pools;
pub(crate) mod methods;
mod modules;
pub(crate) mod native_locks;
pub mod objects;
pub(crate) mod operations;
mod origins;
pub(crate) mod pages;
pub(crate) mod perfdata;
mod processor;
mod references;
mod resolved;
mod sizes;
mod symbols;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code))]
#[allow(clippy::unwrap_used, reason = "for tests only")]
pub(crate) mod testing;
pub mod thread_names;
pub mod threads;
pub mod virtual_threads;
mod vmstructs;
pub mod walking;

pub use collector::Collector;
pub use instance::HotSpot;
pub use sizes::Fill;
