//! Failures around a trace, with real processes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "figures and reasons for skipping are printed")]

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    container::Container,
    load::Load,
    proc::{assert_no_breakpoints, breakpoints, probes_leaked},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{self, Tool, assert_traced, binary},
};

fn open_descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the time that a load of 0.2 s takes, in ms, including its pauses and all other delays.
fn load_time_ms(load: &mut Load) -> u128 {
    let begin = Instant::now();
    load.run(0.2);
    begin.elapsed().as_millis()
}

#[test]
fn repeated_traces_leave_the_jvm_unchanged() {
    assert_jvm_unchanged_by_traces(15);
}

#[test]
#[ignore = "long: make test-all"]
fn thousand_traces_leave_the_jvm_unchanged() {
    assert_jvm_unchanged_by_traces(1000);
}

fn assert_jvm_unchanged_by_traces(cycles: usize) {
    run_alone();
    binary("javagc");
    let runtime = named("temurin-17");
    // The initial heap is resident from the start, so it does not look like growth.
    let flags = "-XX:+UseG1GC -Xms64m -XX:+AlwaysPreTouch";
    let mut load = Load::start_program(runtime, flags, "GcLoad");
    load.run(2.0);
    let pid = load.pid();
    let once = || {
        let args = ["-p", &pid.to_string(), "-d", "0.05", "-j"];
        let output = tool::run("javagc", &args);
        assert!(output.status.success(), "{output:?}");
    };
    // The JVM keeps memory that it allocates during the first trace. Therefore the growth is measured
    // from the end of the first trace on.
    once();
    let before = (open_descriptors(pid), resident_kib(pid), load_time_ms(&mut load));
    let leaked = probes_leaked();
    (0..cycles).for_each(|_| once());
    let after = (open_descriptors(pid), resident_kib(pid), load_time_ms(&mut load));
    println!("descriptors, KiB, ms: {before:?}, {after:?}");
    assert_eq!(after.0, before.0, "descriptors");
    assert!(after.1 < before.1 + 8192, "KiB: {before:?}, {after:?}");
    // The load may take three times as long, plus 500 ms, because other programs use this machine,
    // too.
    assert!(after.2 < before.2 * 3 + 500, "ms: {before:?}, {after:?}");
    assert_eq!(breakpoints(pid, runtime), 0);
    assert!(probes_leaked() <= leaked, "see dmesg");
}

#[test]
fn jvm_with_two_thousand_threads_is_traced() {
    run_beside_others();
    binary("javaobjnew");
    let flags = "-XX:+UseSerialGC -Xss256k -Xmx512m";
    let mut load = Load::start_program(named("temurin-17"), flags, "AllocLoad");
    // All three tools trace the same load, because starting 2,000 threads takes long.
    let traces = ["javaobjnew", "javaprof", "javagc"]
        .map(|tool| (tool, Tool::start(tool, &["-p", &load.pid().to_string()])));
    load.ask("go 3 200 2000");
    for (tool, trace) in traces {
        let output = trace.interrupt();
        assert!(output.status.success(), "{tool}: {output:?}");
        assert!(output.stdout.contains(&format!("{}", load.pid())), "{tool}: {output:?}");
    }
}

/// Returns a command for a script that sees a file system of 16 KiB at /mnt, in a mount namespace
/// of its own.
fn command_on_small_disk(script: &str, args: &[&str]) -> Command {
    let mount = "set -e; mount -t tmpfs -o size=16k none /mnt; ";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &format!("{mount}{script}"), "sh"]).args(args);
    command
}

#[test]
fn full_disk_is_reported_in_one_line() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    load.go(60.0);
    let pid = load.pid().to_string();
    let fill = "head -c 1m /dev/zero >/mnt/zero 2>/dev/null || true; exec \"$@\"";
    for (tool, file) in
        [("javagc", "/mnt/a.json"), ("javaprof", "/mnt/a.svg"), ("javaobjnew", "/mnt/a.svg")]
    {
        let tool_path = binary(tool).display().to_string();
        let args = [tool_path.as_str(), "-p", &pid, "-d", "1", "-o", file];
        let output = tool::run_command(command_on_small_disk(fill, &args));
        assert_eq!(output.status.code(), Some(1), "{tool}: {output:?}");
        let said = output.stderr.lines().filter(|line| line.contains("No space left")).count();
        assert_eq!(said, 1, "{tool}: {output:?}");
        assert!(!output.stderr.contains("panicked"), "{tool}: {output:?}");
    }
}

/// A page has about 60 kB, so a part of it has been written when the disk is full.
#[test]
fn full_disk_leaves_no_partial_page() {
    run_beside_others();
    let tools = ["javaprof", "javaobjnew"].map(|tool| binary(tool).display().to_string());
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    load.go(60.0);
    let pid = load.pid().to_string();
    let script = "code=0; \"$@\" || code=$?; ls -A /mnt; exit $code";
    for tool in &tools {
        let args = [tool, "-p", &pid, "-d", "1", "-o", "/mnt/a.html"];
        let output = tool::run_command(command_on_small_disk(script, &args));
        assert_eq!(output.status.code(), Some(1), "{tool}: {output:?}");
        let said: Vec<_> =
            output.stderr.lines().filter(|line| line.contains("No space left")).collect();
        assert!(said.len() == 1 && said[0].contains("/mnt/a.html"), "{tool}: {output:?}");
        assert!(!output.stdout.lines().any(|line| line == "a.html"), "{tool}: {output:?}");
    }
}

/// An upgrade while a JVM runs: its libjvm.so has been replaced by another file, or removed.
#[test]
fn jvm_is_traced_after_libjvm_is_replaced_or_removed() {
    run_beside_others();
    let original = named("temurin-17");
    let home = original.java.canonicalize().unwrap();
    let home = home.ancestors().nth(2).unwrap();
    for replaced in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("jre");
        let status = Command::new("cp").arg("-rL").args([home, &copy]).status();
        assert!(status.unwrap().success());
        let runtime =
            jvmprobe_tests::runtimes::Runtime { java: copy.join("bin/java"), ..original.clone() };
        let mut load = Load::start_program(&runtime, "-XX:+UseG1GC", "GcLoad");
        load.run(1.0);
        let libjvm: &Path = &copy.join("lib/server/libjvm.so");
        fs::remove_file(libjvm).unwrap();
        if replaced {
            fs::copy(named("temurin-21").libjvm(), libjvm).unwrap();
        }
        for tool in ["javagc", "javaobjnew", "javaprof"] {
            let trace = Tool::start(tool, &["-p", &load.pid().to_string()]);
            load.run(1.0);
            std::thread::sleep(Duration::from_millis(100));
            let output = trace.interrupt();
            assert_traced(tool, &output);
        }
    }
}

/// Returns a command for a tool that may not use a system call, as with the seccomp profiles of
/// container runtimes.
fn command_with_syscall_denied(call: libc::c_long, name: &str, args: &[&str]) -> Command {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let program = [
        // Loads the system call's number. Only the system call `call` fails, with EPERM.
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut command = Command::new(binary(name));
    command.args(args);
    let install = move || {
        let mut filters = program;
        let program = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_mut_ptr() };
        // SAFETY: a valid program, which the kernel copies.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: runs between fork and exec, allocates nothing, and makes system calls only.
    unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, install) };
    command
}

#[test]
fn syscall_denied_by_seccomp_is_reported_in_one_line() {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    load.run(0.2);
    let pid = load.pid().to_string();
    for tool in ["javagc", "javaprof", "javaobjnew"] {
        for (call, word) in [(libc::SYS_bpf, "BPF"), (libc::SYS_perf_event_open, "PERFMON")] {
            let output = tool::run_command(command_with_syscall_denied(
                call,
                tool,
                &["-p", &pid, "-d", "0.5"],
            ));
            // A tool that attaches its probes with bpf() alone does not need perf_event_open().
            let needs_it = call == libc::SYS_bpf || tool == "javaprof";
            if needs_it || !output.status.success() {
                assert_eq!(output.status.code(), Some(1), "{tool} {word}: {output:?}");
                let words = [word, "seccomp"];
                let is_named = words.iter().any(|word| output.stderr.contains(word));
                assert!(is_named, "{tool} {word}: {}", output.stderr);
                assert_eq!(output.stderr.trim().lines().count(), 1, "{tool}: {}", output.stderr);
            }
        }
        // Without openat2(), a tool cannot open files by their paths in the target's root. It can still
        // open mapped files through /proc/PID/map_files.
        let output = tool::run_command(command_with_syscall_denied(
            libc::SYS_openat2,
            tool,
            &["-p", &pid, "-d", "0.5"],
        ));
        assert!(output.status.success(), "{tool} openat2: {output:?}");
    }
    load.run(0.1);
    load.quit();
}

/// Path of a control group (version 1 or 2) with a memory limit. The group is removed when this is dropped.
struct MemoryGroup(std::path::PathBuf);

impl MemoryGroup {
    fn new(limit: &str) -> Option<Self> {
        for (root, file) in
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        {
            let folder = Path::new(root).join(format!("jvmprobe-test-{}", std::process::id()));
            if fs::create_dir(&folder).is_ok() {
                let group = Self(folder);
                if fs::write(group.0.join(file), limit).is_ok() {
                    return Some(group);
                }
            }
        }
        None
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Killed processes take some time to disappear.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The kernel kills a JVM in the middle of its work.
#[test]
fn jvm_killed_by_memory_cgroup_is_reported_as_ended() {
    run_beside_others();
    for tool in ["javagc", "javaprof", "javaobjnew"] {
        binary(tool);
        let Some(group) = MemoryGroup::new("96M") else {
            println!("SKIPPED: no memory controller that can be written to");
            return;
        };
        let flags = "-XX:+UseSerialGC -Xms600m -Xmx600m -Xmn500m";
        let mut load = Load::start_program(named("temurin-17"), flags, "GcLoad");
        fs::write(group.0.join("cgroup.procs"), load.pid().to_string()).unwrap();
        let trace = Tool::start(tool, &["-p", &load.pid().to_string(), "-d", "60"]);
        load.go(60.0);
        let begin = Instant::now();
        let output = trace.wait();
        assert!(begin.elapsed() < Duration::from_secs(40), "{tool}: {:?}", begin.elapsed());
        assert!(output.status.success(), "{tool}: {output:?}");
        assert!(output.stderr.contains("has ended"), "{tool}: {}", output.stderr);
        drop(load);
    }
}

/// After SIGKILL the tool cannot clean up. The kernel releases everything that the tool held.
#[test]
fn killed_tool_leaves_no_probes_or_bpf_objects() {
    run_alone();
    let runtime = named("temurin-17");
    let mut load = Load::start_program(runtime, "-XX:+UseG1GC", "GcLoad");
    load.run(0.2);
    let pid = load.pid();
    for (tool, more) in [("javagc", "-v"), ("javaprof", "-v"), ("javaobjnew", "-s")] {
        let trace = Tool::start(tool, &["-p", &pid.to_string(), more]);
        let held = jvmprobe_tests::bpf::held_by(trace.pid());
        trace.signal(rustix::process::Signal::KILL);
        let output = trace.wait();
        assert!(!output.status.success(), "{tool}: {output:?}");
        held.assert_gone();
        assert_no_breakpoints(pid, runtime, Duration::from_secs(10), tool);
    }
    load.run(0.1);
    load.quit();
}

/// The wall clock is stepped; measured durations are not affected.
#[test]
#[ignore = "long: make test-all"]
fn wall_clock_step_changes_no_duration() {
    run_alone();
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    if !Path::new(library).exists() {
        println!("SKIPPED: {library} is not there (tests/setup test-all installs it)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let offset = dir.path().join("offset");
    fs::write(&offset, "+0").unwrap();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    let mut command = Command::new(binary("javagc"));
    command.args(["-p", &load.pid().to_string(), "-j", "-v"]);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &offset);
    command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
    let trace = Tool::spawn(command);
    load.run(1.0);
    fs::write(&offset, "-2d").unwrap();
    load.run(1.0);
    let output = trace.interrupt();
    assert!(output.status.success(), "{output:?}");
    let pauses: Vec<_> = output.json().into_iter().filter(|v| v["type"] == "pause").collect();
    assert!(pauses.len() > 10, "{output:?}");
    let mut before = 0;
    for pause in &pauses {
        let at = pause["ts_ns"].as_u64().unwrap();
        assert!(at >= before, "{pause}");
        before = at;
        assert!(pause["stopped_ns"].as_u64().unwrap() < 5_000_000_000, "{pause}");
    }
}

/// A real container runtime, with its own seccomp profile, capabilities, root directory and PID
/// namespace.
#[test]
#[ignore = "long: make test-all"]
fn a_jvm_in_podman_is_traced() {
    run_alone();
    if Command::new("podman").arg("--version").output().is_err() {
        println!("SKIPPED: there is no podman (tests/setup test-all installs it)");
        return;
    }
    let mut container = Container::start_in_podman(named("temurin-17"), "CpuLoad");
    let pid = container.pid().to_string();
    for args in [
        &["javaprof", "-F", "499", "-f"][..],
        &["javaprof", "-F", "499", "-f", "--symbols", "agent"],
        &["javaprof", "-F", "499", "-f", "--symbols", "perfmap"],
        &["javagc"],
        &["javaobjnew"],
    ] {
        let trace = Tool::start(args[0], &[&["-p", &*pid], &args[1..]].concat());
        container.run(1.0);
        let output = trace.interrupt();
        assert!(output.status.success(), "{args:?}: {output:?}");
        if args[0] == "javaprof" {
            assert!(output.stdout.contains("CpuLoad.deep"), "{args:?}: {output:?}");
        }
    }
    let output = tool::run("javaprof", &["-p", &pid, "--write-maps"]);
    assert!(output.status.success(), "{output:?}");
    let map = fs::read_to_string(format!("/proc/{pid}/root/tmp/perf-1.map")).unwrap();
    assert!(map.contains("CpuLoad.deep"), "{map}");
}
