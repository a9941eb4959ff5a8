//! The stack walker of `bpf/walk/` in user space, without root: on recorded stacks, or on those
//! of a process that is stopped.
//!
//! [`harness`] runs the walker's own sources; [`recording`] is a stack with all that the walker
//! reads on its way, and the frames that are right. `record/` makes recordings.

pub mod harness;
pub mod recording;
