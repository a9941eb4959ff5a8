//! How much memory hash maps take, and when.
//!
//! A hash map's entries are allocated all at once, or (`BPF_F_NO_PREALLOC`) each when it is
//! first needed. Before Linux 6.1 the latter went through the kernel's general allocator, where
//! a tracing program may meet locks that the traced code holds: the verifier refuses it to
//! perf_event programs and warns in the kernel's log of all others that trace
//! (`check_map_prog_compatibility`, kernel/bpf/verifier.c). Since 6.1 maps have an allocator
//! of their own, which works anywhere.

use libbpf_rs::OpenObject;
use libbpf_sys::BPF_F_NO_PREALLOC;

use crate::{
    Result,
    bpf::{has_cookies, load_error, preflight::kernel_version},
};

/// The first Linux whose maps may allocate while programs trace.
const ALLOCATES_LATE: (u32, u32) = (6, 1);

/// A hash map of which few entries are used as a rule.
#[derive(Clone, Copy, Debug)]
pub struct Roomy {
    /// Its name.
    pub name: &'static str,
    /// As many entries as it may ever have, where they cost nothing before they are used.
    pub most: u32,
    /// ... and where all of them are allocated beforehand.
    pub allocated: u32,
}

/// Sizes the maps of an object that is to be loaded.
///
/// # Errors
/// [`Error::Bpf`](crate::Error::Bpf).
pub fn make(object: &mut OpenObject, maps: &[Roomy]) -> Result<()> {
    let late = allocates_late(kernel_version());
    for mut map in object.maps_mut() {
        let Some(roomy) = maps.iter().find(|roomy| map.name() == roomy.name) else { continue };
        let (entries, flag) =
            if late { (roomy.most, BPF_F_NO_PREALLOC) } else { (roomy.allocated, 0) };
        let flags = map.map_flags() | flag;
        map.set_max_entries(entries).map_err(load_error)?;
        map.set_map_flags(flags).map_err(load_error)?;
    }
    Ok(())
}

/// Makes room for USDT probes of many JVMs, of which each is attached to alone: inside a PID
/// namespace, and before Linux 5.15. libbpf keeps a description of the arguments for each
/// attachment, 256 by default (its usdt.bpf.h), of which javagc uses three a JVM.
///
/// # Errors
/// [`Error::Bpf`](crate::Error::Bpf).
pub(super) fn for_probes_by_jvm(object: &mut OpenObject) -> Result<()> {
    /// 3 MiB.
    const DESCRIPTIONS: u32 = 1 << 14;
    for mut map in object.maps_mut() {
        if map.name() == "__bpf_usdt_specs"
            || (!has_cookies() && map.name() == "__bpf_usdt_ip_to_spec_id")
        {
            map.set_max_entries(DESCRIPTIONS).map_err(load_error)?;
        }
    }
    Ok(())
}

/// A version that cannot be told is taken for an old one: what is allocated beforehand works
/// everywhere. So it is for the kernels of vendors that have the newer allocator under an older
/// number.
fn allocates_late(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= ALLOCATES_LATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_that_are_known_to_may_allocate_late() {
        assert!(allocates_late(Some((6, 1))));
        assert!(allocates_late(Some((10, 0))));
        assert!(!allocates_late(Some((5, 19))));
        assert!(!allocates_late(Some((6, 0))));
        assert!(!allocates_late(None));
    }
}
