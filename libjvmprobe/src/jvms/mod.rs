//! JVM discovery and life cycle: finds JVMs, waits until they have started, attaches to them and detaches when they
//! end.
//!
//! | module | contents |
//! |---|---|
//! | [`run`](mod@run) | main loop of every tool |
//! | `schedule` | times of ticks, reports and the end of a trace |
//! | [`tracing`] | JVMs that a tool follows, and the probes attached to them |
//! | `named` | JVMs that the user has named |
//! | [`registry`] | all JVMs, found and read once for all tracers of this process |
//! | `finder` | detection of processes that have mapped libjvm.so |
//! | `slots` | limit on the number of JVMs followed at once; the slots are divided among tenants |
//! | `mappings` | kernel events for executable mappings |
//! | [`command`] | a command that is started and held until tracing has begun |
//! | [`user`] | the user that such a command runs as |
//! | [`ready`] | detection of a JVM within a process that has mapped libjvm.so |
//! | `lost` | record of lost events |
//! | `identity` | identity of a JVM as OpenTelemetry attributes |
//! | `pod` | its pod, from the kubelet's directories |
//! | `host` | attributes of the host, which all its JVMs share |
//! | `cloud` | the cloud that the host runs in |
//! | `stopped` | detection of processes stopped (SIGSTOP) for a complete interval |
//! | `testing` | processes that unit tests treat as JVMs |

mod cloud;
pub mod command;
mod finder;
mod host;
mod identity;
mod lost;
pub(crate) mod mappings;
mod named;
mod pod;
pub mod ready;
pub mod registry;
pub mod run;
mod schedule;
mod slots;
pub(crate) mod stopped;
#[cfg(test)]
mod testing;
pub mod tracing;
pub mod user;

pub use finder::MinAge;
pub use host::{configured_attributes, host_attributes, host_name};
pub(crate) use identity::user_name;
pub use identity::{JvmIdentity, RUNTIME, imitates_host, is_of_host, known_attributes};
pub use lost::Lost;
pub use registry::{Arrival, Arrivals, Reading, Registry, Select, Stage};
pub use run::{End, Tick, Times, Watch};
pub use schedule::next as next_report;
pub(crate) use schedule::{Due, Schedule};
pub use slots::Slots;
pub use stopped::Stops;
pub use tracing::{ByKey, Followed, Named, Tool, Trace};
