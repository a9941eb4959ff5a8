//! This process itself: privileges, descriptors, memory, deadlines, messages, and its end.
//!
//! | module | contents |
//! |---|---|
//! | [`budget`] | memory for data of targets, shared among tenants |
//! | `channel` | messages with descriptors to and from child processes |
//! | [`confined`] | a child without privileges, for work on hostile bytes |
//! | [`descendants`] | resource usage of child processes |
//! | [`descriptors`] | limit on open files |
//! | [`privileges`] | capabilities, and dropping them when no longer needed |
//! | `heap` | memory retained by the allocator |
//! | `cpu_limit` | CPU time limit of sampling work |
//! | `deadline` | deadlines of waits for other processes |
//! | `forked` | child processes that are forked without executing a program |
//! | `fair_share` | fair shares of a limited resource |
//! | [`fair_slots`] | a limited number of slots, shared among tenants |
//! | `idle` | release of resources that are no longer used |
//! | [`limited`] | counts of detail that tenants did not get |
//! | `once` | warnings that are logged once, although many processes may cause them |
//! | [`output_file`] | files that the user names for output |
//! | `pace` | intervals of periodic work |
//! | `priority` | temporary scheduling priority |
//! | `reading_cost` | time that reading each tenant's files and processes takes |
//! | [`reading_marks`] | marks of what is read, for a program that is restarted |
//! | `signals` | handling of Ctrl-C, SIGTERM and SIGHUP |
//! | [`undo`] | cleanup that happens even if a signal ends the process |
//! | `worker` | threads with few capabilities, and worker threads that process jobs |
//!
//! The first signal asks a tool to print the data collected so far and to end. The second one ends it
//! immediately with status 130. The kernel removes attachments when the process ends. Other effects (a file
//! in a target's folder, a command that we started) are undone by [`undo`].

pub mod budget;
pub(crate) mod channel;
pub mod confined;
mod cpu_limit;
mod deadline;
pub mod descendants;
pub mod descriptors;
mod fair_share;
pub mod fair_slots;
pub(crate) mod forked;
mod heap;
mod idle;
pub mod limited;
mod once;
pub mod output_file;
mod pace;
pub(crate) mod priority;
pub mod privileges;
pub(crate) mod reading_cost;
pub mod reading_marks;
mod signals;
pub mod undo;
mod worker;

pub(crate) use cpu_limit::{Effort, thread_cpu_time};
pub(crate) use deadline::Deadline;
pub use fair_share::fair_share;
pub use heap::return_memory_sooner;
pub use idle::Idle;
pub(crate) use once::warn_once;
pub use pace::Pace;
pub use priority::PriorityBoost;
pub use signals::{EndSignals, stop_on_signal};
pub(crate) use worker::{Worker, start_thread};
