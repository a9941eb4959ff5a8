//! Synthetic windows with known numbers, which tests can check after reading them back.

use std::{path::Path, sync::Arc};

use jvmprobed::window::{HostTicks, Identity, JvmData, Window};
use libjvmprobe::{
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
    },
    trace::pauses::record::{Record, Stop},
};
use tempfile::TempDir;

/// Creates a temporary folder on a memory file system, if there is one. Thousands of windows, each
/// written to disk before the next one, would take minutes on a busy disk.
///
/// # Panics
/// If it cannot be created.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    made.expect("a folder")
}

/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Process ID of the JVM that is in each window.
pub const PID: u32 = 77;

/// CPU time of this JVM in each window, in nanoseconds, as the kernel accounts it.
pub const CPU_NS: u64 = 6_300_000_000;

/// Part of it in the kernel.
pub const SYSTEM_CPU_NS: u64 = 300_000_000;

/// CPU time of the host in each window: two processors, which were busy for half of the time.
pub const HOST_TICKS: HostTicks = HostTicks { busy: 1500, total: 3000 };

/// Number of CPU samples of `shop.Main.run` in a window, all of them in its fourth second.
pub const SAMPLES: u64 = 100;

/// Returns window number `at` of consecutive windows of 15 seconds, the first of which begins at
/// `begin_s`, in seconds since 1970. It has [`SAMPLES`] samples of `shop.Main.run`, `at` samples of
/// `shop.Main.window`, 1000 bytes of `byte[]` in 10 objects, and one pause. Every seventh window
/// has a second JVM.
pub fn synthetic_window(begin_s: u64, at: u64) -> Window {
    let begin_ns = (begin_s + at * 15) * SECOND;
    let mut jvms = vec![jvm_data("shop", PID, begin_ns, at)];
    if at % 7 == 3 {
        jvms.push(jvm_data("batch", PID + 1, begin_ns, at));
    }
    let (end_ns, host_ticks) = (begin_ns + 15 * SECOND, Some(HOST_TICKS));
    Window { begin_ns, end_ns, jvms, host_ticks, ..Window::default() }
}

fn jvm_data(name: &str, pid: u32, begin_ns: u64, at: u64) -> JvmData {
    let attributes = [
        ("service.name", name),
        ("jvm.main", "shop.jar"),
        ("process.runtime.description", "OpenJDK 64-Bit Server VM 21"),
    ];
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let identity =
        Identity { pid, started_ns: SECOND, name: name.into(), attributes: attributes.into() };
    let (mut cpu, mut alloc) = (Profile::default(), Profile::of(Measure::Allocation));
    cpu.hertz = 20;
    cpu.slot_ns = SECOND;
    for profile in [&mut cpu, &mut alloc] {
        profile.begin_unix_ns = begin_ns;
        profile.duration_ns = 15 * SECOND;
    }
    let run =
        [Frame::new(Kind::Java, "shop.Main.main"), Frame::new(Kind::Inlined, "shop.Main.run")];
    add(&mut cpu, pid, &run, SAMPLES, 0, 3);
    let window = [run[0].clone(), Frame::new(Kind::Interpreted, "shop.Main.window")];
    add(&mut cpu, pid, &window, at, 0, 9);
    let class = [run[0].clone(), Frame::new(Kind::Class, "byte[]")];
    add(&mut alloc, pid, &class, 1000, 10, 0);
    let pause = Stop {
        time: rfc3339(begin_ns + 7 * SECOND),
        ts_ns: 1,
        pid,
        collector: "G1".into(),
        op: Some("G1CollectForAllocation".into()),
        cause: Some("G1 Evacuation Pause".into()),
        collections: 1,
        operations: 1,
        ttsp_ns: Some(1000),
        pause_ns: Some(2_000_000),
        stopped_ns: 2_500_000 + at,
        heap_before: Some(100 << 20),
        heap_after: Some(20 << 20),
        ..Stop::default()
    };
    JvmData {
        identity: Arc::new(identity),
        profiles: vec![cpu, alloc],
        pauses: vec![Record::Pause(pause)],
        cpu_ns: Some(CPU_NS),
        system_cpu_ns: Some(SYSTEM_CPU_NS),
        ..JvmData::default()
    }
}

fn add(profile: &mut Profile, pid: u32, frames: &[Frame], count: u64, occurrences: u64, slot: u32) {
    let stack = frames.iter().map(|frame| profile.intern(frame.clone())).collect();
    profile.samples.push(Sample {
        count,
        occurrences,
        times: if profile.slot_ns > 0 { vec![(slot, count)] } else { Vec::new() },
        ..Sample::of(pid, "main".into(), pid, stack)
    });
}

/// Formats a timestamp as in RFC 3339.
fn rfc3339(ns: u64) -> String {
    let at = jiff::Timestamp::from_nanosecond(ns.into()).unwrap_or_default();
    format!("{at:.9}")
}
