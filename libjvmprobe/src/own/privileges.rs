//! Rights that are given up once they are not needed any more.
//!
//! What comes from a target (ELF files, its memory, its maps) is read with as few of root's
//! rights as the trace allows, so that a fault of ours is worth less to whoever made the target.
//! To read another user's processes is a strong right by itself: these tools cannot be without
//! it. Source: capabilities(7).
//!
//! Capabilities belong to threads. Call this before threads are started: those have what the
//! thread had that has started them. Those of this library give up all but their own.

use rustix::{
    io::Result,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

/// Some rights.
pub use rustix::thread::CapabilitySet as Rights;

/// To load programs, and to use their maps (before Linux 6.0 also later).
pub const MAPS: CapabilitySet = CapabilitySet::BPF;
/// To read processes of other users, their files and `map_files`.
pub const READ: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::CHECKPOINT_RESTORE);
/// To attach to USDT probes from Linux 6.6 on, and to sample.
pub const PROBE: CapabilitySet = CapabilitySet::PERFMON;
/// To attach to functions and, before Linux 6.6, to any probe.
pub const ATTACH: CapabilitySet = PROBE.union(CapabilitySet::SYS_ADMIN);
/// To go first while we get ready.
pub const HURRY: CapabilitySet = CapabilitySet::SYS_NICE.union(CapabilitySet::SYS_RESOURCE);
/// To read the kernel's symbols.
pub const KERNEL_SYMBOLS: CapabilitySet = CapabilitySet::SYSLOG;
/// To create and remove files in folders of other users, as `sudo` users do with `-o`.
pub const OUTPUT: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
/// To ask a JVM: as its user, with files and a signal.
pub const ASK: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Gives up all rights of this thread but these, for good, also through programs that have more
/// (set-user-ID).
///
/// What is not held cannot be given up, and to have kept a right is no reason to fail.
pub fn keep(needed: CapabilitySet) {
    let _ = set_no_new_privs(true);
    let _ = try_keep(needed);
}

fn try_keep(needed: CapabilitySet) -> Result<()> {
    let held = capabilities(None)?.permitted;
    let kept = kept(held, needed);
    // First: this wants a right itself.
    for capability in every().filter(|&one| !kept.contains(one)) {
        // Without that right, or in a kernel that does not know it, it stays as it is.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
}

/// Whoever has CAP_SYS_ADMIN in place of the younger ones keeps it.
fn kept(held: CapabilitySet, needed: CapabilitySet) -> CapabilitySet {
    let young = CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE;
    let stands_in = !held.contains(young) && needed.intersects(young);
    let admin = if stands_in { CapabilitySet::SYS_ADMIN } else { CapabilitySet::empty() };
    held & (needed | admin)
}

fn every() -> impl Iterator<Item = CapabilitySet> {
    (0..CapabilitySet::CHECKPOINT_RESTORE.bits().ilog2() + 1)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_needed_is_kept_of_what_is_held() {
        let held = ATTACH | READ | MAPS | CapabilitySet::SYS_MODULE;
        assert_eq!(kept(held, MAPS | READ), MAPS | READ);
        assert_eq!(kept(READ, MAPS | READ), READ);
        assert_eq!(every().count(), 41);
    }

    #[test]
    fn cap_sys_admin_stands_for_younger_ones() {
        let old = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE;
        assert_eq!(kept(old, MAPS | READ), old);
        assert_eq!(kept(old, CapabilitySet::empty()), CapabilitySet::empty());
    }
}
