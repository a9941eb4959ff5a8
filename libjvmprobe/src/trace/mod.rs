//! The tracers: GC pauses, samples of threads, and allocations of JVMs.
//!
//! Each tracer has its own BPF side. It is configured by plain options, follows the JVMs, and passes its
//! results to a sink that the caller supplies. The sink of a tool prints them. A process may run several
//! tracers at a time, each in the thread that created it; see [`crate::jvms`] for the main loop.
//!
//! | module | what it records |
//! |---|---|
//! | [`allocations`] | allocations, by class and stack |
//! | [`pauses`] | stops of the application, collections, concurrent cycles |
//! | [`samples`] | CPU time, waits and events of all kinds, by stack |
//! | [`threads`] | stacks of all threads at one time |
//! | [`waits`] | waits of threads, with the threads that ended them |

pub mod allocations;
mod asleep;
mod live;
pub mod pauses;
pub mod samples;
mod sink;
mod tenants;
pub mod threads;
pub mod waits;

pub use sink::Sink;
