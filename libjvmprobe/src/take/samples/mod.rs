//! Samples: where processors and threads spend their time, and what happens on the way, by stack.
//!
//! [`Options`] say what is wanted. `session` loads the BPF side and samples; [`Taker`] follows
//! the processes (`traced`), collects, and has `naming` turn addresses into names; what
//! can be sampled knows [`events`]. A [`Sink`] gets a profile of each event at each report.

mod asleep;
pub(crate) mod event;
pub mod events;
mod idle;
mod naming;
mod options;
mod session;
pub mod symbols;
mod taker;
mod traced;
mod waits;

/// Generated from bpf/javaprof.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaprof.skel.rs"));
}

pub use options::{Options, StackWalk, SymbolSource, Whom};
pub use taker::{About, Limited, Sink, Taker};
pub use waits::Part;
