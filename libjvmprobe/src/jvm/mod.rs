//! What a JVM process is.

pub mod memory;
