//! CPU time and memory of this process's descendants: readers, and the confined child.
//!
//! Source: proc(5), `/proc/PID/task/TID/children` (kernels with `CONFIG_PROC_CHILDREN`; without it, only descendants
//! that have ended are counted), `/proc/PID/stat` and `/proc/PID/smaps_rollup`.

use std::{fs, mem::MaybeUninit};

use procfs::process::Process;

/// Maximum number of descendants counted. Only children and grandchildren are counted.
const MAX: usize = 256;

/// Resource usage of descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in nanoseconds; for live processes in steps of 10 ms.
    pub cpu_ns: u64,
    /// Memory in bytes, with shared pages divided among the processes that share them (PSS).
    pub memory: u64,
}

/// Returns the usage of all descendants of this process so far.
pub fn usage() -> Usage {
    let mut all = children_of(std::process::id());
    for child in all.clone() {
        all.extend(children_of(child));
    }
    all.truncate(MAX);
    let cpu_ns = all.iter().map(|pid| cpu_ns_of(*pid)).sum::<u64>().saturating_add(ended_ns());
    Usage { cpu_ns, memory: all.iter().map(|pid| memory_of(*pid)).sum() }
}

/// Returns the children started by all threads of a process.
fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let parse = |text: String| {
        text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
    };
    texts.flat_map(parse).take(MAX).collect()
}

fn cpu_ns_of(pid: u32) -> u64 {
    let stat = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).ok()?.stat().ok());
    let ticks = stat.map_or(0, |stat| stat.utime + stat.stime);
    ticks.saturating_mul(1_000_000_000 / procfs::ticks_per_second().max(1))
}

fn memory_of(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kb = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kb.unwrap_or(0) << 10
}

/// Returns the CPU time of descendants that have ended and were waited for.
fn ended_ns() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the complete struct, or the call fails.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) != 0 {
            return 0;
        }
        usage.assume_init()
    };
    let ns = |time: libc::timeval| {
        let micros = time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_usec);
        u64::try_from(micros).unwrap_or(0).saturating_mul(1000)
    };
    ns(usage.ru_utime).saturating_add(ns(usage.ru_stime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_includes_running_and_ended_children() {
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo done; read line";
        let mut child = std::process::Command::new("sh")
            .args(["-c", busy])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let before = usage();
        let mut output = child.stdout.take().unwrap();
        std::io::Read::read_exact(&mut output, &mut [0; 5]).unwrap();
        let living = usage();
        assert!(living.cpu_ns >= before.cpu_ns + 10_000_000, "{before:?} {living:?}");
        assert!(living.memory > 50 << 10, "{living:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        // CPU times of live processes are rounded.
        assert!(usage().cpu_ns + 20_000_000 >= living.cpu_ns);
    }
}
