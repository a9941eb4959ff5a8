//! Capabilities, and dropping them when they are no longer needed.
//!
//! Data from a target (ELF files, its memory, its maps) is read with as few of root's capabilities as the
//! trace allows, so that the owner of a hostile target gains less from a vulnerability in our code. The right
//! to read other users' processes is powerful by itself, but these tools cannot work without it. Source:
//! capabilities(7).
//!
//! Capabilities belong to threads, and new threads inherit them. So call [`keep_only`] before starting
//! threads. Threads of this library drop all capabilities that they do not need.

use rustix::{
    io::Result,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

/// A set of capabilities.
pub use rustix::thread::CapabilitySet as Rights;

/// For loading BPF programs and creating their maps. Before Linux 6.0, also for using the maps afterwards.
pub const MAPS: CapabilitySet = CapabilitySet::BPF;
/// For reading processes of other users, their files and `map_files`.
pub const READ: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE);
/// For attaching to USDT probes since Linux 6.6, and for sampling.
pub const PROBE: CapabilitySet = CapabilitySet::PERFMON;
/// For attaching to functions and, before Linux 6.6, to any probe.
pub const ATTACH: CapabilitySet = PROBE.union(CapabilitySet::SYS_ADMIN);
/// For raising the scheduling priority during setup.
pub const RAISE_PRIORITY: CapabilitySet =
    CapabilitySet::SYS_NICE.union(CapabilitySet::SYS_RESOURCE);
/// For reading the kernel's symbols.
pub const KERNEL_SYMBOLS: CapabilitySet = CapabilitySet::SYSLOG;
/// For creating and removing files in folders of other users, as `sudo` users do with `-o`.
pub const OUTPUT: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
/// For the attach protocol: acting as the JVM's user, creating files and sending a signal.
pub const ATTACH_PROTOCOL: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Irrevocably drops all capabilities of this thread except `needed`. Executing set-user-ID programs does not restore
/// them.
///
/// Capabilities that the thread does not have are ignored, and so are failures to drop one.
pub fn keep_only(needed: CapabilitySet) {
    let _ = set_no_new_privs(true);
    let _ = try_keep(needed);
}

fn try_keep(needed: CapabilitySet) -> Result<()> {
    let held = capabilities(None)?.permitted;
    let kept = kept(held, needed);
    // The bounding set is reduced first, because that requires CAP_SETPCAP, which may be dropped below.
    for capability in all_capabilities().filter(|&one| !kept.contains(one)) {
        // This fails without CAP_SETPCAP, or if the kernel does not know `capability`. Then the bounding set
        // stays unchanged.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
}

/// Returns the capabilities to keep. CAP_SYS_ADMIN includes some newer capabilities. CAP_SYS_ADMIN is
/// kept if one of these is needed and the thread does not have all of them.
fn kept(held: CapabilitySet, needed: CapabilitySet) -> CapabilitySet {
    let newer = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE;
    let needs_sys_admin = !held.contains(newer) && needed.intersects(newer);
    let admin = if needs_sys_admin { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    held & (needed | admin)
}

fn all_capabilities() -> impl Iterator<Item = CapabilitySet> {
    (0..CapabilitySet::CHECKPOINT_RESTORE.bits().ilog2() + 1)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_needed_and_held_capabilities_are_retained() {
        let held = ATTACH | READ | MAPS | CapabilitySet::SYS_MODULE;
        assert_eq!(kept(held, MAPS | READ), MAPS | READ);
        assert_eq!(kept(READ, MAPS | READ), READ);
        assert_eq!(all_capabilities().count(), 41);
    }

    #[test]
    fn cap_sys_admin_replaces_missing_newer_capabilities() {
        let old = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE;
        assert_eq!(kept(old, MAPS | READ), old);
        assert_eq!(kept(old, CapabilitySet::empty()), CapabilitySet::empty());
    }
}
