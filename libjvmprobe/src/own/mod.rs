//! This process itself: privileges, descriptors, memory, deadlines, messages, and its end.
//!
//! | module | contents |
//! |---|---|
//! | [`budget`] | memory budget of all JVMs |
//! | `channel` | messages with descriptors to and from child processes |
//! | [`confined`] | a child without privileges, for work on hostile bytes |
//! | [`descendants`] | resource usage of child processes |
//! | [`descriptors`] | limit on open files |
//! | [`privileges`] | capabilities, and dropping them when no longer needed |
//! | `heap` | memory retained by the allocator |
//! | `effort` | CPU time limit of sampling work |
//! | `deadline` | deadlines of waits for other processes |
//! | `fair` | fair shares of a limited resource |
//! | `idle` | release of resources that are no longer used |
//! | `once` | warnings that many processes would cause |
//! | `pace` | intervals of periodic work |
//! | `hurry` | temporary scheduling priority |
//! | `signals` | handling of Ctrl-C, SIGTERM and SIGHUP |
//! | [`undo`] | cleanup that happens however the process ends |
//! | `worker` | threads, and worker threads |
//!
//! The first signal asks a tool to end: it prints the data collected so far. The second one ends it immediately with
//! status 130. The kernel removes attachments when the process ends. Other effects (a file in a target's folder, a
//! command that we started) are undone by [`undo`].

pub mod budget;
pub(crate) mod channel;
pub mod confined;
mod deadline;
pub mod descendants;
pub mod descriptors;
mod effort;
mod fair;
mod heap;
mod hurry;
mod idle;
mod once;
mod pace;
pub mod privileges;
mod signals;
pub mod undo;
mod worker;

pub(crate) use deadline::Deadline;
pub(crate) use effort::{Effort, processor_time};
pub use fair::fair_share;
pub use heap::return_memory_sooner;
pub use hurry::PriorityBoost;
pub use idle::Idle;
pub(crate) use once::warn_once;
pub use pace::Pace;
pub use signals::{Endings, stop_on_signal};
pub(crate) use worker::{Worker, start_thread};
