//! Tracer of waits: what the threads of a JVM wait for, for how long, and which thread made them wait.
//!
//! The kernel side (bpf/javawait.bpf.c) reports each wait of at least [`Options::min`] when it ends. `session` loads it.
//! `classify` decides what a wait was for, [`Tracer`] joins waits that belong together and finds the thread that ended
//! them, and `jvm` keeps what is known about a JVM's threads. `in_progress` adds the waits that have not ended, and
//! `unmounted` the virtual threads that wait without a carrier.

mod classify;
mod event;
mod in_progress;
mod jvm;
mod limits;
mod resources;
mod session;
mod tracer;
mod unmounted;
mod wait;

/// Generated from bpf/javawait.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javawait.skel.rs"));
}

pub use jvm::Jvm;
pub use resources::application_frame;
pub use tracer::{Options, Sink, Tracer};
pub use unmounted::{Unmounted, UnmountedReading};
pub use wait::{Awaited, Holder, Kind, Others, Relation, ThreadName, Wait};
