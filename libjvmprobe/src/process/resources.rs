//! Resources of a process: processors that it may use, and file descriptors.
//!
//! Sources: sched_setaffinity(2), cgroups(7), the kernel's cgroup-v2.rst (`cpu.max`) and scheduler/sched-bwc.rst
//! (`cpu.cfs_quota_us`), proc(5).

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use procfs::process::{LimitValue, Process as Proc};
use rustix::thread::sched_getaffinity;

use crate::Pid;

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Maximum number of descriptors that are counted one by one.
const MAX_COUNTED: usize = 1 << 16;

/// Returns the number of processors that a process may use, as `Runtime.availableProcessors` computes it: the processors of
/// its affinity, but at most its CPU quota, rounded up. `None` if the process has ended, or if its control group is not visible to
/// this process, for example because this process runs in a container of its own.
pub fn available_processors(pid: Pid) -> Option<u64> {
    let affinity = sched_getaffinity(rustix::process::Pid::from_raw(pid.0.cast_signed())).ok()?;
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mut quota = None;
    for line in cgroup.lines() {
        quota = match quota_of(line) {
            Quota::Unknown => return None,
            Quota::None => quota,
            Quota::Processors(count) => Some(quota.map_or(count, |other: u64| other.min(count))),
        };
    }
    let allowed = u64::from(affinity.count());
    Some(quota.map_or(allowed, |quota| quota.clamp(1, allowed.max(1))))
}

/// Returns the number of open file descriptors, and their maximum number. `None` for each that is unknown.
pub fn file_descriptors(pid: Pid) -> (Option<u64>, Option<u64>) {
    let Ok(process) =
        i32::try_from(pid.0).map_err(|_| ()).and_then(|pid| Proc::new(pid).map_err(|_| ()))
    else {
        return (None, None);
    };
    let count = descriptor_count(pid);
    let limit = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
        LimitValue::Value(limit) => Some(limit),
        LimitValue::Unlimited => None,
    });
    (count, limit)
}

/// Returns the number of descriptors. Since Linux 6.2 it is the size of the directory; before, the entries are counted.
fn descriptor_count(pid: Pid) -> Option<u64> {
    let directory = format!("/proc/{pid}/fd");
    let size = fs::metadata(&directory).ok()?.len();
    if size > 0 {
        return Some(size);
    }
    let count = fs::read_dir(directory).ok()?.take(MAX_COUNTED + 1).count();
    (count <= MAX_COUNTED).then(|| count.try_into().ok())?
}

/// CPU quota of a control group and its parents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quota {
    /// The control group is not visible.
    Unknown,
    /// There is none.
    None,
    /// The lowest one in processors, rounded up.
    Processors(u64),
}

/// Returns the CPU quota that a line of /proc/PID/cgroup refers to; [`Quota::None`] if the line is of another controller.
fn quota_of(line: &str) -> Quota {
    let path_of = |line: &'_ str| -> Option<(String, PathBuf)> {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some((controllers.to_owned(), path.strip_prefix('/')?.into()))
    };
    let Some((controllers, path)) = path_of(line) else { return Quota::None };
    let is_version_2 = controllers.is_empty();
    if !is_version_2 && !controllers.split(',').any(|name| name == "cpu") {
        return Quota::None;
    }
    let mount = Path::new(CGROUPS).join(controllers);
    // A process outside of this process's control group namespace has a path that begins with "..", or that does not exist
    // here.
    let is_outside = path.components().any(|part| part == Component::ParentDir);
    if is_outside || mount.is_dir() && !mount.join(&path).is_dir() {
        return Quota::Unknown;
    }
    let of = |group: &Path| {
        let read = |file| fs::read_to_string(mount.join(group).join(file)).ok();
        match is_version_2 {
            true => processors(read("cpu.max")?.split_whitespace()),
            false => {
                let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
                processors([quota.trim(), period.trim()].into_iter())
            }
        }
    };
    let lowest = path.ancestors().filter_map(of).min();
    lowest.map_or(Quota::None, Quota::Processors)
}

/// Returns a quota in processors from its microseconds and those of the period. `max` and -1 mean that there is no quota.
fn processors<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<u64> {
    let quota: u64 = fields.next()?.parse().ok()?;
    let period: u64 = fields.next()?.parse().ok().filter(|&period| period > 0)?;
    Some(quota.div_ceil(period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_is_rounded_up_to_whole_processors() {
        let of = |text: &str| processors(text.split_whitespace());
        assert_eq!(of("150000 100000"), Some(2));
        assert_eq!(of("20000 100000"), Some(1));
        for none in ["max 100000", "-1 100000", "1 0", "", "5"] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn quota_outside_of_the_namespace_is_unknown() {
        assert_eq!(quota_of("0::/../../etc"), Quota::Unknown);
        assert_eq!(quota_of("3:memory:/x"), Quota::None);
        assert_eq!(quota_of("nonsense"), Quota::None);
    }

    #[test]
    fn own_process_has_processors_and_descriptors() {
        let pid = Pid(std::process::id());
        assert!(available_processors(pid).unwrap() >= 1);
        let (count, limit) = file_descriptors(pid);
        assert!((3..=limit.unwrap()).contains(&count.unwrap()));
    }
}
