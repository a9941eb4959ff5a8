//! BPF objects that a process holds, and whether the kernel has freed them.

use std::{
    collections::HashSet,
    fs, io,
    os::fd::{FromRawFd, OwnedFd},
    thread::sleep,
    time::{Duration, Instant},
};

use libbpf_rs::{
    MapCore, MapHandle,
    libbpf_sys::{BPF_STATS_RUN_TIME, bpf_enable_stats},
    query::{LinkInfoIter, MapInfoIter, ProgInfoIter},
};

/// Timeout for the kernel to free objects, which it does shortly after their last holder has closed
/// them.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the kernel measure the run time of BPF programs until the returned descriptor is dropped.
///
/// # Panics
/// If the kernel refuses.
pub fn measure_programs() -> OwnedFd {
    // SAFETY: the call takes a number, and returns a new file descriptor or less than zero.
    let fd = unsafe { bpf_enable_stats(BPF_STATS_RUN_TIME) };
    assert!(fd >= 0, "BPF_ENABLE_STATS: {}", io::Error::from_raw_os_error(-fd));
    // SAFETY: a new descriptor, which has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Returns the number of BPF maps in the kernel.
pub fn count_maps() -> usize {
    MapInfoIter::default().count()
}

/// Returns the keys of all BPF maps that have this name and a number as their key.
pub fn keys_of_maps(name: &str) -> HashSet<u64> {
    let ids = MapInfoIter::default().filter(|map| map.name == name).map(|map| map.id);
    // A map of a tool that has just ended may disappear meanwhile.
    let maps: Vec<_> = ids.filter_map(|id| MapHandle::from_map_id(id).ok()).collect();
    let keys = maps.iter().flat_map(MapCore::keys).filter_map(|key| key.try_into().ok());
    keys.map(u64::from_ne_bytes).collect()
}

/// IDs of programs, links and maps.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Program IDs.
    pub programs: HashSet<u32>,
    /// Link IDs; a link is an attachment.
    pub links: HashSet<u32>,
    /// Map IDs.
    pub maps: HashSet<u32>,
}

/// Returns the BPF objects that a process holds through file descriptors.
///
/// # Panics
/// If the process has ended.
pub fn held_by(pid: u32) -> Held {
    let mut held = Held::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("a process that runs").flatten()
    {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().parse::<u32>().ok()
        };
        held.links.extend(number("link_id:"));
        held.programs.extend(number("prog_id:"));
        held.maps.extend(number("map_id:"));
    }
    held
}

impl Held {
    /// Waits until the kernel has freed all of these objects.
    ///
    /// # Panics
    /// If some still exist after 20 seconds.
    pub fn assert_gone(&self) {
        let begin = Instant::now();
        loop {
            let left = Self {
                programs: ProgInfoIter::default().map(|p| p.id).collect(),
                links: LinkInfoIter::default().map(|l| l.id).collect(),
                maps: MapInfoIter::default().map(|m| m.id).collect(),
            };
            let both = |a: &HashSet<u32>, b: &HashSet<u32>| a.intersection(b).copied().collect();
            let left = Self {
                programs: both(&left.programs, &self.programs),
                links: both(&left.links, &self.links),
                maps: both(&left.maps, &self.maps),
            };
            if left == Self::default() {
                return;
            }
            assert!(begin.elapsed() < TIMEOUT, "left behind: {left:?}");
            sleep(Duration::from_millis(50));
        }
    }
}
