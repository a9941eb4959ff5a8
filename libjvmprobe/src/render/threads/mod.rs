//! Thread dumps as text.
//!
//! [`report`] prints a dump in jstack's format, and [`virtual_threads`] prints the virtual threads of the
//! dump. [`blocked`] describes the owners of locks.

pub mod blocked;
pub mod report;
pub mod virtual_threads;
