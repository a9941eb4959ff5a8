//! GC pauses: each stop of the application with its cause, and the concurrent cycles beside it.
//!
//! `probes` picks what to attach to in a libjvm.so; `session` loads the BPF side, whose
//! `event`s `assemble` pairs up into [`record`]s for the `model` of a JVM; `requests` tells
//! who asked for them, [`summary`] adds them up. `counted` looks
//! at the counters of JVMs that nothing can be attached to. `tracer` puts these together for the library's
//! loop.

mod assemble;
mod counted;
pub(crate) mod event;
mod model;
mod probes;
pub mod record;
mod requests;
mod session;
pub mod summary;
mod tracer;

/// Generated from bpf/javagc.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javagc.skel.rs"));
}

pub use model::Jvm;
pub use tracer::{Options, Sink, Taker};
