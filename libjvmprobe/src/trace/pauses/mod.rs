//! GC pauses: each stop of the application with its cause, and concurrent cycles.
//!
//! `probes` chooses the probes to attach to a libjvm.so. `session` loads the BPF programs. `event` decodes
//! the events of these programs, `assemble` combines events into [`record`]s, and `model` has the state of
//! each JVM. `requests` adds the threads that requested a collection, and [`summary`] keeps totals. `counted`
//! evaluates the counters of JVMs that nothing can be attached to. `gauge` describes the JVM's own counters to the BPF
//! programs, which read them with each event. `cpu_wait` locates the kernel's counters of waits
//! for a CPU. `tracer` connects these modules to the
//! main loop in [`crate::jvms`].

mod assemble;
mod counted;
mod cpu_wait;
pub(crate) mod event;
mod gauge;
mod histogram;
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
pub use tracer::{Options, Sink, Tracer};
