//! This process itself: its rights, descriptors and memory, how long it waits, what it says,
//! and how it ends.
//!
//! | module | what it knows |
//! |---|---|
//! | [`budget`] | what may be kept in memory |
//! | `channel` | messages with descriptors to and from child processes |
//! | [`confined`] | a child without privileges, for work on hostile bytes |
//! | [`descendants`] | what its child processes use |
//! | [`descriptors`] | how many files may be open |
//! | [`privileges`] | which rights it needs, and when no more |
//! | `heap` | what the allocator keeps for itself |
//! | `effort` | how much it does, within what that may take |
//! | `deadline` | how long something is waited for |
//! | `fair` | shares of a bounded resource |
//! | `idle` | what is needed no more |
//! | `notes` | words to the person at the terminal |
//! | `pace` | how often it looks around |
//! | `hurry` | being preferred for a moment |
//! | `signals` | what Ctrl-C does |
//! | [`undo`] | what is undone however the end comes |
//!
//! The first signal asks a tool to end: it prints what it has. The second one ends it at
//! once with status 130. Attachments go with the process, for the kernel takes them back; what
//! it does not take back (a file in a target's folder, a command that we started) is undone by
//! [`undo`].

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
mod notes;
mod pace;
pub mod privileges;
mod signals;
pub mod undo;

pub(crate) use deadline::Deadline;
pub(crate) use effort::{Effort, processor_time};
pub use fair::fair_share;
pub use heap::give_back_soon;
pub use hurry::Hurry;
pub use idle::Idle;
pub(crate) use notes::note_once;
pub(crate) use notes::set_up;
pub use notes::{Facts, Level, inform, limit_warnings, note, note_as_json, remark, say};
pub use pace::Pace;
pub use signals::{Endings, stop_on_signal};
