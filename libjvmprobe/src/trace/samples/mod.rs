//! Sampling tracer: records where processors and threads spend their time and which events occur, by stack.
//!
//! [`Options`] configure it. `session` loads the BPF side and reads its maps. [`Sampler`] follows the processes
//! (`process`), collects the samples, and has `naming` turn addresses into names. [`events`] defines what can be
//! sampled. At each report, a [`Sink`] receives one profile of each event.

pub(crate) mod event;
pub mod events;
pub(crate) mod idle;
mod naming;
mod options;
mod process;
mod sampler;
mod session;
pub mod symbols;
mod waits;

/// Generated from bpf/javaprof.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/javaprof.skel.rs"));
}

pub use options::{Options, StackWalk, SymbolSource, Targets};
pub use sampler::{About, Sampler, Sink};
pub use waits::Part;
