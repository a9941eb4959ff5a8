//! What is taken of JVMs: pauses of their collectors, samples of their threads, what they allocate.
//!
//! One taker for each, with its BPF side. It is told by plain options what is wanted, follows the
//! JVMs, and hands what it has to a sink, which is the caller's: a tool prints it. A process may run
//! several at a time, each in a thread of its own, in which it was made; see [`crate::follow`] for
//! the loop.
//!
//! | module | what it takes |
//! |---|---|
//! | [`allocations`] | what is allocated, by class and stack |
//! | [`pauses`] | stops of the application, collections, concurrent cycles |
//! | [`samples`] | processor time, waits, events of all kinds, by stack |

pub mod allocations;
pub mod pauses;
pub mod samples;
