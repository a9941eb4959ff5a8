//! Sizes of BPF hash maps, and when the kernel allocates their entries.
//!
//! A hash map's entries are allocated all at once or, with `BPF_F_NO_PREALLOC`, each when it is first used.
//! Before Linux 6.1, maps with this flag used the kernel's general allocator, in which a tracing program may
//! need locks that the traced code holds. So the verifier refuses such maps to perf_event programs, and warns
//! in the kernel's log for other tracing programs (`check_map_prog_compatibility`, kernel/bpf/verifier.c).
//! Since 6.1, maps have an allocator of their own that works in any context.

use libbpf_rs::OpenObject;
use libbpf_sys::BPF_F_NO_PREALLOC;

use crate::{
    Result,
    bpf::{has_cookies, load_error, preflight::kernel_version},
};

/// First Linux version whose maps can allocate entries in tracing programs.
const FIRST_ON_DEMAND: (u32, u32) = (6, 1);

/// A hash map of which usually few entries are used.
#[derive(Clone, Copy, Debug)]
pub struct SparseMap {
    /// Name of the map.
    pub name: &'static str,
    /// Capacity if entries are allocated when they are used.
    pub on_demand_capacity: u32,
    /// Capacity if all entries are allocated at once.
    pub preallocated_capacity: u32,
}

/// Sets the sizes of the maps of an object before it is loaded.
///
/// # Errors
/// [`Error::Bpf`](crate::Error::Bpf).
pub fn set_sizes(object: &mut OpenObject, maps: &[SparseMap]) -> Result<()> {
    let on_demand = allocates_on_demand(kernel_version());
    for mut map in object.maps_mut() {
        let Some(sparse) = maps.iter().find(|sparse| map.name() == sparse.name) else { continue };
        let (entries, flag) = if on_demand {
            (sparse.on_demand_capacity, BPF_F_NO_PREALLOC)
        } else {
            (sparse.preallocated_capacity, 0)
        };
        let flags = map.map_flags() | flag;
        map.set_max_entries(entries).map_err(load_error)?;
        map.set_map_flags(flags).map_err(load_error)?;
    }
    Ok(())
}

/// Enlarges libbpf's maps for USDT probes. This is needed if many JVMs are attached to separately, which is
/// the case inside a PID namespace, and on any kernel before Linux 5.15. For each attachment, libbpf stores
/// descriptions of the probes' arguments in a map; javagc needs three per JVM. Without this function, the map
/// has space for 1,024 descriptions (`BPF_USDT_MAX_SPEC_CNT` in bpf/jvm.bpf.h).
///
/// # Errors
/// [`Error::Bpf`](crate::Error::Bpf).
pub(super) fn for_probes_by_jvm(object: &mut OpenObject) -> Result<()> {
    /// Number of descriptions; they take 3 MiB.
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

/// Returns whether the maps of this kernel version can allocate entries on demand. An unknown version counts
/// as an old one, because preallocated maps work everywhere. An older version to which a vendor has
/// backported the newer allocator also counts as old.
fn allocates_on_demand(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= FIRST_ON_DEMAND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_allocate_on_demand_only_since_linux_6_1() {
        assert!(allocates_on_demand(Some((6, 1))));
        assert!(allocates_on_demand(Some((10, 0))));
        assert!(!allocates_on_demand(Some((5, 19))));
        assert!(!allocates_on_demand(Some((6, 0))));
        assert!(!allocates_on_demand(None));
    }
}
