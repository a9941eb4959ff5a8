//! What depends on the processor in the data of HotSpot: selects the processor that this library is compiled for.

#[cfg(not(target_arch = "aarch64"))]
mod x86_64;
#[cfg(not(target_arch = "aarch64"))]
pub(super) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;
