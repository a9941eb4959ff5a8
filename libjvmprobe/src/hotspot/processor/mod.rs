//! Constants and instructions of HotSpot that depend on the processor; those of this build's processor are selected.

#[cfg(not(target_arch = "aarch64"))]
mod x86_64;
#[cfg(not(target_arch = "aarch64"))]
pub(super) use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;

/// Position of the lowest of the four remapped bits of a reference of generational ZGC (`ZPointerRemappedShift`,
/// zAddress.hpp), which is the same on each processor.
pub(super) const REMAPPED_SHIFT: u32 = 12;
