//! How a run ends: what may be waited for and how long, what Ctrl-C does, and what is undone
//! however the end comes.
//!
//! The first signal asks a tool to end: it prints what it has. The second one ends it at
//! once with status 130. Attachments go with the process, for the kernel takes them back; what
//! it does not take back (a file in a target's folder, a command that we started) is undone by
//! [`undo`].

mod deadline;
mod signals;
pub mod undo;

pub use deadline::Deadline;
pub use signals::stop_on_signal;
