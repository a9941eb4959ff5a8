//! Allocations of JVMs, by class and by stack.
//!
//! `probes` finds the functions to attach to. `counters` loads the BPF side, which counts by class and sends
//! some `event`s. The `model` of a JVM has the names of its classes (`names`), reads full TLABs, and keeps
//! `jvm_totals`. `tally` adds up counters and estimates the allocations of each class. If [`stacks`] are
//! walked, [`split`] splits the allocations of each class among them. `time_slots` distributes the
//! allocations over time. `tracer` connects these modules to the main loop in [`crate::jvms`].
//!
//! The objects that begin TLABs are a sample of one in many thousands, and the sample is biased by the objects'
//! sizes, which can be corrected only approximately. A program that repeats the same work may always begin TLABs with
//! the same class. A TLAB itself contains everything that was allocated in it. The kernel side therefore chooses some full TLABs at random, and user
//! space reads them before a collection moves their objects. The probability adapts so that reading takes
//! only a small share of one processor.
//!
//! In a daemon ([`Pace::Calm`](crate::sys::Pace)) the number of stacks adapts in the same way, because a
//! program that keeps defining classes keeps producing new stacks, and each has to be named. Probes that are
//! hit too often are attached for a part of the time only (`duty`).

mod counters;
mod duty;
pub(crate) mod event;
pub mod jvm_totals;
mod model;
mod names;
mod probes;
pub mod record;
mod report;
pub mod split;
pub mod stacks;
mod tally;
mod time_slots;
mod tracer;

/// Generated from bpf/javaobjnew.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaobjnew.skel.rs"));
}

pub use model::Jvm;
pub use report::{AllocationReport, Begin};
pub use tracer::{Options, Sink, Tracer};
