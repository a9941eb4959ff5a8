//! Allocations: what JVMs allocate, by class, and from which stacks.
//!
//! `probes` finds where they can be watched; `counters` loads the BPF side, which counts by
//! class and sends some `event`s. The `model` of a JVM knows the names of its classes (`names`) and
//! reads full TLABs; its `books` keep what `tally` adds up and estimates. Where
//! [`stacks`] are wanted, [`split`] splits classes among them; `moments` knows when it was.
//! `tracer` puts these together for the library's loop.
//!
//! The objects that begin TLABs are a sample of one in many thousands, and a lopsided one:
//! those that do not fit into a rest of a TLAB begin the next one, and a program that does
//! the same over and over may always begin it with the same class. What lies in a TLAB is
//! what was allocated. So of all full TLABs some, chosen at random by the kernel side, are
//! read while they are fresh. As many as a small share of one processor allows: the
//! chance adapts.
//!
//! In a daemon ([`Pace::Calm`](crate::own::Pace)) stacks are adapted likewise: a program that
//! defines classes all the time has new ones all the time, and each is to be named. And probes that
//! are hit too often are attached for a part of the time only (`duty`).

pub mod books;
mod counters;
mod duty;
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
