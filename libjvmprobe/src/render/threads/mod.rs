//! Thread dumps as text.
//!
//! [`report`] prints a dump in jstack's format, and [`virtual_threads`] prints the virtual threads of the
//! dump. [`blocked`] describes the owners of locks, and [`changes`] compares a dump with the previous one.

pub mod blocked;
pub mod changes;
pub mod report;
pub mod virtual_threads;
