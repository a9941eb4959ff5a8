//! Allocations: what JVMs allocate, by class, and from which stacks.
//!
//! `probes` finds where they can be watched; `counters` loads the BPF side, which counts by
//! class and sends some `event`s. The `model` of a JVM knows the names of its classes (`names`) and
//! reads full TLABs (`census`); its `books` keep what `tally` adds up and estimates. Where
//! [`stacks`] are wanted, [`split`] splits classes among them; `moments` knows when it was.
//! `tracer` puts these together for the library's loop.

pub mod books;
mod census;
mod counters;
pub(crate) mod event;
mod model;
mod moments;
mod names;
mod probes;
pub mod record;
pub mod split;
pub mod stacks;
mod tally;
mod told;
mod tracer;

/// Generated from bpf/javaobjnew.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaobjnew.skel.rs"));
}

pub use model::Jvm;
pub use told::{Begin, Told};
pub use tracer::{Options, Sink, Taker};
