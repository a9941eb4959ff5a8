//! Process data from /proc, which tests use as reference.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::FileExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::runtimes::Runtime;

/// Returns the current `CLOCK_MONOTONIC` in nanoseconds: the clock of the JVM's log.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the names of a process's threads by thread ID.
///
/// # Panics
/// If the process has ended.
pub fn threads(pid: u32) -> BTreeMap<u32, String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process that runs");
    tasks
        .flatten()
        .filter_map(|task| {
            let tid = task.file_name().to_str()?.parse().ok()?;
            // A thread may end while the list is read.
            let name = fs::read_to_string(task.path().join("comm")).ok()?;
            Some((tid, name.trim_end().to_owned()))
        })
        .collect()
}

/// Returns the CPU time that a process has used so far, in seconds.
///
/// # Panics
/// If the process has ended.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process that runs");
    // The second field is the name, in parentheses, and may contain blanks.
    let (_, rest) = stat.rsplit_once(") ").expect("proc_pid_stat(5)");
    let field = |i: usize| rest.split(' ').nth(i).and_then(|f| f.parse::<f64>().ok());
    let ticks = field(11).zip(field(12)).map(|(user, system)| user + system);
    // USER_HZ is 100 on all platforms of HotSpot.
    ticks.expect("utime and stime") / 100.0
}

/// Returns how often the kernel's log reports that a uprobe could not be unregistered. Its
/// breakpoint then stays until the next tracer has attached and detached.
///
/// # Panics
/// If the log cannot be read.
pub fn probes_leaked() -> usize {
    let log = Command::new("dmesg").output().expect("dmesg");
    assert!(log.status.success(), "{log:?}");
    let log = String::from_utf8_lossy(&log.stdout);
    log.lines().filter(|line| line.contains("leaking uprobe")).count()
}

/// Waits at most for `limit` until no probe is in a JVM's code. The kernel may remove the breakpoints of a killed tool some
/// time after the tool's end, and the tools of other tests may have probes in the same file for a while. `after` says what
/// should have removed them.
///
/// # Panics
/// If there are breakpoints after the limit.
pub fn assert_no_breakpoints(pid: u32, runtime: &Runtime, limit: Duration, after: &str) {
    let until = Instant::now() + limit;
    while breakpoints(pid, runtime) > 0 {
        assert!(Instant::now() < until, "{after}: probes are still attached");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the number of bytes in a JVM's mapped libjvm.so code that differ from the file. They are
/// the breakpoints of probes.
///
/// # Panics
/// If the process has ended.
pub fn breakpoints(pid: u32, runtime: &Runtime) -> usize {
    let file = fs::read(runtime.libjvm()).expect("libjvm.so");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process that runs");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut different = 0;
    for line in maps.lines().filter(|l| l.contains("libjvm.so") && l.contains("r-xp")) {
        let mut fields = line.split_ascii_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-')).expect("a range");
        let hex = |text| u64::from_str_radix(text, 16).expect("proc_pid_maps(5)");
        let (start, end) = (hex(range.0), hex(range.1));
        let offset = hex(fields.nth(1).expect("an offset")) as usize;
        let mut code = vec![0; (end - start) as usize];
        memory.read_exact_at(&mut code, start).expect("mapped code can be read");
        let on_disk = file.get(offset..).unwrap_or_default();
        different += code.iter().zip(on_disk).filter(|(a, b)| a != b).count();
    }
    different
}
