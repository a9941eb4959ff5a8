//! JVMs as they come, get ready, are stopped and end: what all tools do with processes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`run`](mod@run) | the loop that every tool runs |
//! | `schedule` | when it looks around, reports and ends |
//! | [`jvms`] | the JVMs that a tool follows, and what is attached to them |
//! | `named` | those that the user has named |
//! | [`registry`] | all JVMs, found and read once for all tracers of this process |
//! | `finder` | processes that have mapped libjvm.so, soon after they have |
//! | `slots` | how many JVMs are followed at once, by control group |
//! | `mappings` | which processes map code just now, as the kernel tells |
//! | [`command`] | a command that is started, and waits until it is traced |
//! | [`user`] | the user that it runs as |
//! | [`ready`] | whether there is a JVM in a process |
//! | `running` | the JVMs that run now, for a person to choose |
//! | `who` | who a JVM is, by OpenTelemetry's conventions |
//! | `stopped` | whether a process was stopped all the time |

pub mod command;
mod finder;
pub mod jvms;
pub(crate) mod mappings;
mod named;
pub mod ready;
pub mod registry;
pub mod run;
pub(crate) mod running;
mod schedule;
mod slots;
pub(crate) mod stopped;
pub mod user;
mod who;

pub use jvms::{ByKey, Followed, Named, Tool, Trace};
pub use registry::{Arrival, Arrivals, Reading, Registry, Select, Stage};
pub use run::{End, Times, Watch};
pub use running::main_of;
pub(crate) use schedule::{Due, Schedule};
pub use slots::Slots;
pub use stopped::Stops;
pub use who::{RUNTIME, Who, host_name, known_attributes};
