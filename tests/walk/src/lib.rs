//! The stack walker of `bpf/walk/` in user space, without root. It walks recorded stacks, or stacks
//! of a stopped process.
//!
//! [`harness`] runs the walker's own sources. [`recording`] is a stack with everything that the
//! walker reads on its way, and the correct frames. `record/` makes recordings.

pub mod harness;
pub mod recording;
