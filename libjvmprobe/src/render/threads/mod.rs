//! Thread dumps as text.
//!
//! [`report`] prints a dump in jstack's format, [`virtual_threads`] its virtual threads. [`blocked`] describes the owners of
//! locks, and [`changes`] compares a dump with the last one.

pub mod blocked;
pub mod changes;
pub mod report;
pub mod virtual_threads;
