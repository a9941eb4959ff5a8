//! Finds, reads and traces running HotSpot JVMs from outside.

pub mod elf;
mod error;
pub mod hotspot;
pub mod jvm;
mod units;

pub use error::{Error, Result};
pub use units::{Addr, FileOffset, NsPid, Pid, Vaddr};
