//! Dumps of all threads of a JVM. A dump contains the stack and the state of each thread, and the lock that
//! the thread waits for. The JVM is not stopped.
//!
//! [`Dumper`] loads the BPF side (bpf/javastack.bpf.c) once and takes any number of dumps. `session` reads the threads
//! that the BPF side reports, `dump` walks and names their stacks, `virtual_threads` adds the virtual threads, `limit` selects the threads if there are too many, and
//! `deadlocks` finds cycles of waiting threads. [`CoreDumper`] takes the dump of a core file. [`Changes`] compares a dump
//! with the previous one. [`Waits`] reads only which threads wait for locks, without BPF.

mod changes;
mod core;
mod deadlocks;
mod dump;
mod event;
mod limit;
mod session;
mod virtual_threads;
mod waits;

/// Generated from bpf/javastack.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javastack.skel.rs"));
}

pub use self::core::CoreDumper;
pub use crate::hotspot::virtual_threads::MAX_VIRTUAL_THREADS;
pub use changes::{Change, Changes};
pub use dump::{Activity, Dump, Dumper, Thread};
pub use limit::{LeftOut, MAX_THREADS};
pub use virtual_threads::VirtualThread;
pub(super) use virtual_threads::raw_stack;
pub use waits::{Root, ThreadId, Wait, Waits};
