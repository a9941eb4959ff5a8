//! JVMs as they come, get ready and are stopped: what all tools do with processes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`arrivals`] | JVMs that are new, soon after they have mapped libjvm.so |
//! | [`mappings`] | which processes map code just now, as the kernel tells |
//! | [`ready`] | whether there is a JVM in a process |
//! | [`stopped`] | whether a process was stopped all the time |

pub mod arrivals;
pub mod mappings;
pub mod ready;
pub mod stopped;

pub use arrivals::{Arrival, Arrivals};
pub use stopped::Stops;
