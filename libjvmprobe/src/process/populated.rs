//! Kernel memory that reads take: page tables in the targets.
//!
//! If a page is not present, a read populates it. For the first page of 2 MB, the kernel also allocates a page table, and for
//! the first one of 1 GB another. It charges them to the control group of the process that reads, and keeps them until the
//! target unmaps the addresses or ends (`__pte_alloc()` of mm/memory.c, `GFP_PGTABLE_USER` of
//! include/asm-generic/pgalloc.h). In a mapping of terabytes, a target could make each read take 8 kB, so each populated
//! region is reserved in the name of its tenant.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid,
    process::pid,
    sys::{
        budget::{Reservation, Share},
        limited,
    },
};

/// Addresses that share a page table, as a shift: 512 pages of 4 kB.
const REGION_SHIFT: u32 = 21;
/// Reserved for each region, in bytes: a table for it, and one for the table of the next level.
const REGION_BYTES: usize = 2 << 12;

/// Regions in which reads of one process found pages that were not present.
#[derive(Debug)]
struct Regions {
    seen: HashSet<u64>,
    memory: Reservation,
    is_full: bool,
}

/// Regions of all processes, and when those of ended processes were removed last.
#[derive(Debug, Default)]
struct All {
    by_process: HashMap<Pid, Regions>,
    pruned: Option<Instant>,
}

/// Minimum time between removals of ended processes.
const PRUNE_INTERVAL: Duration = Duration::from_secs(10);

fn all() -> MutexGuard<'static, All> {
    static ALL: LazyLock<Mutex<All>> = LazyLock::new(Mutex::default);
    // Each change is complete before the lock is released, even if a thread panics.
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether reads of a process must end, because its tenant's share of memory does not suffice for page tables.
pub(super) fn is_full(pid: Pid) -> bool {
    all().by_process.get(&pid).is_some_and(|regions| regions.is_full)
}

/// Reserves memory for page tables after a read that had to populate pages, in any of its blocks.
pub(super) fn add(pid: Pid, blocks: &[Addr], size: usize, share: impl FnOnce() -> Share) {
    let mut all = all();
    all.prune(Instant::now());
    let regions = match all.by_process.entry(pid) {
        Entry::Occupied(regions) => regions.into_mut(),
        Entry::Vacant(new) => new.insert(Regions {
            seen: HashSet::new(),
            memory: Reservation::within(&share()),
            is_full: false,
        }),
    };
    for block in blocks {
        let last = block.0.saturating_add(size.saturating_sub(1) as u64);
        for region in block.0 >> REGION_SHIFT..=last >> REGION_SHIFT {
            if regions.is_full || regions.seen.contains(&region) {
                continue;
            }
            regions.is_full = !regions.memory.reserve(REGION_BYTES);
            if regions.is_full {
                limited::add("page-tables", &Arc::clone(regions.memory.tenant()), 1);
            } else {
                regions.seen.insert(region);
            }
        }
    }
}

impl All {
    /// Removes processes that have ended, if that was not done recently.
    fn prune(&mut self, now: Instant) {
        if self.pruned.is_none_or(|pruned| now.saturating_duration_since(pruned) >= PRUNE_INTERVAL)
        {
            self.by_process.retain(|pid, _| pid::exists(*pid));
            self.pruned = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        process::{Child, Command},
        ptr::null_mut,
    };

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    use super::*;
    use crate::{process::memory::Memory, sys::budget::Budget};

    const REGION: u64 = 1 << REGION_SHIFT;

    fn count(pid: Pid) -> usize {
        all().by_process.get(&pid).map_or(0, |regions| regions.seen.len())
    }

    #[test]
    fn regions_are_reserved_once_if_their_pages_were_not_present() {
        const COUNT: u64 = 50;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let size = (2 * COUNT * REGION) as usize;
        // SAFETY: a new mapping, to which nothing else refers.
        let at = unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ, flags) }.unwrap();
        let pid = Pid(std::process::id());
        let memory = Memory::open(pid).unwrap();
        let blocks: Vec<_> = (0..COUNT).map(|n| Addr(at as u64 + n * REGION)).collect();
        // Other tests read this process, too, but not at these addresses.
        let is_seen = |block: &Addr| {
            let all = all();
            let own = all.by_process.get(&pid);
            own.is_some_and(|own| own.seen.contains(&(block.0 >> REGION_SHIFT)))
        };
        assert!(memory.words(&blocks).unwrap().iter().all(|word| *word == Some(0)));
        assert!(blocks.iter().all(is_seen));
        let populated = Addr(at as u64 + COUNT * REGION);
        // SAFETY: a readable byte of the mapping.
        unsafe { std::ptr::read_volatile(populated.0 as *const u8) };
        let mut word = [0; 8];
        for _ in 0..3 {
            memory.read_into(populated, &mut word).unwrap();
        }
        assert!(!is_seen(&populated));
    }

    #[test]
    fn process_above_its_share_is_not_read_until_it_ends() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let end = |mut child: Child| (child.kill().unwrap(), child.wait().unwrap());
        let (one, other) = (sleep(), sleep());
        let [pid, next] = [&one, &other].map(|child| Pid(child.id()));
        let budget = Budget::of(20 * REGION_BYTES);
        let share = || budget.share(&"tenant".into());
        let at = |region: u64| Addr(region * REGION);
        add(pid, &[at(1), at(2), at(1)], 8, share);
        // A block may touch two regions.
        add(pid, &[Addr(at(4).0 - 4)], 8, share);
        assert_eq!((count(pid), is_full(pid)), (4, false));
        add(pid, &(5..30).map(at).collect::<Vec<_>>(), 8, share);
        assert_eq!((count(pid), is_full(pid)), (10, true));
        assert_eq!(budget.held(), 10 * REGION_BYTES);
        assert!(limited::take().keys().any(|(reason, _)| *reason == "page-tables"));
        let error = Memory::open(pid).unwrap().u64(at(1)).unwrap_err();
        assert!(error.to_string().contains("kernel's memory"), "{error}");
        end(one);
        all().prune(Instant::now() + PRUNE_INTERVAL);
        // The next process of the tenant gets the memory of the one that has ended.
        add(next, &[at(1)], 8, share);
        assert_eq!((budget.held(), is_full(next)), (REGION_BYTES, false));
        end(other);
    }
}
