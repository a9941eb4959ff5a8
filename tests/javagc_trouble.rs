//! javagc under failure: a clear one-line message, the right exit status, nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bpf::{held_by, keys_of_maps},
    child_process::{ChildProcess, loader, sleeper},
    container::Container,
    fake::Fake,
    gclog,
    load::{Load, classes},
    proc::{assert_no_breakpoints, breakpoints, probes_leaked},
    run_alone, run_beside_others,
    runtimes::{Runtime, named},
    tool::{self, Tool, assert_refused, binary},
};
use rustix::process::Signal;

const G1: &str = "-XX:+UseG1GC";

#[test]
fn usage_errors_exit_with_2() {
    for args in
        [&[][..], &["-p", "x"], &["-p", "1", "-d", "0"], &["-a", "-p", "1"], &["--nonsense"]]
    {
        assert_refused(&tool::run("javagc", args), 2, &["error: ", "--help"]);
    }
}

#[test]
fn missing_process_is_rejected() {
    run_beside_others();
    // Above every pid_max.
    assert_refused(&tool::run("javagc", &["-p", "4194305"]), 1, &["no process 4194305"]);
    assert_refused(&tool::run("javagc", &["-p", "4294967295"]), 1, &["no process"]);
}

#[test]
fn process_that_is_no_jvm_is_rejected() {
    run_beside_others();
    let other = sleeper();
    let pid = other.0.id().to_string();
    assert_refused(
        &tool::run("javagc", &["-p", &pid]),
        1,
        &[&pid, "sleep", "not a JVM", "list JVMs"],
    );
}

#[test]
fn process_with_libjvm_but_no_jvm_is_rejected() {
    run_beside_others();
    let other = loader(&named("temurin-17").libjvm());
    let pid = other.pid().to_string();
    let refused = tool::run("javagc", &["-p", &pid]);
    assert_refused(&refused, 1, &[&pid, "python", "not a JVM", "libjvm.so", "list JVMs"]);
    // With `-a`, the process is not traced, and `-v` reports the reason.
    let tool = Tool::start("javagc", &["-a", "-v", "-j"]);
    thread::sleep(Duration::from_secs(8));
    let output = tool.interrupt();
    let words = format!("process {pid} has mapped libjvm.so, but has not created a JVM");
    assert!(output.stderr.contains(&words), "{}", output.stderr);
    assert!(output.json().iter().all(|r| r["pid"] != other.pid()), "{}", output.stdout);
}

#[test]
fn stopped_jvm_is_reported_as_stopped() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let pid = load.pid();
    let signal = |signal| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    };
    signal(Signal::STOP);
    let output = tool::run("javagc", &["-p", &pid.to_string(), "-d", "1"]);
    assert!(output.status.success(), "{output:?}");
    for words in ["is stopped (SIGSTOP)", &format!("kill -CONT {pid}"), "was stopped"] {
        assert_eq!(output.stderr.matches(words).count(), 1, "{words}: {}", output.stderr);
    }
    // The JVM is stopped during the second of two intervals.
    signal(Signal::CONT);
    load.go(1.5);
    let tool = Tool::start("javagc", &["-p", &pid.to_string(), "2", "2"]);
    load.done();
    thread::sleep(Duration::from_millis(700));
    signal(Signal::STOP);
    let output = tool.wait();
    signal(Signal::CONT);
    assert!(!output.stderr.contains("is stopped"), "{}", output.stderr);
    // The JVM runs during a part of each interval, so no message is expected. On a busy machine,
    // however, the second interval may begin only after the JVM has been stopped.
    assert!(output.stderr.matches("was stopped").count() <= 1, "{}", output.stderr);
}

#[test]
fn thread_id_error_names_the_process_id() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    let pid = load.pid().to_string();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let tid =
        tasks.flatten().map(|t| t.file_name().into_string().unwrap()).find(|t| *t != pid).unwrap();
    assert_refused(&tool::run("javagc", &["-p", &tid]), 1, &[&format!("-p {pid}"), "thread"]);
}

#[test]
fn zombie_process_is_rejected() {
    run_beside_others();
    let mut child = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        thread::sleep(Duration::from_millis(5));
    }
    assert_refused(&tool::run("javagc", &["-p", &child.id().to_string()]), 1, &["zombie"]);
    child.wait().unwrap();
}

#[test]
fn missing_capabilities_are_named() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    let pid = load.pid().to_string();
    let without = |caps: &str| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--bounding-set={caps}"), &format!("--inh-caps={caps}")]);
        command.arg(binary("javagc")).args(["-p", &pid]);
        tool::run_command(command)
    };
    assert_refused(&without("-all"), 1, &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "root"]);
    assert_refused(&without("-sys_ptrace"), 1, &["CAP_SYS_PTRACE is missing"]);
}

#[test]
fn named_capabilities_suffice_for_tracing() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let mut command = Command::new("setpriv");
    let caps = "-all,+bpf,+perfmon,+sys_ptrace";
    command.args([&format!("--bounding-set={caps}"), &format!("--inh-caps={caps}")]);
    command.arg(binary("javagc")).args(["-p", &load.pid().to_string(), "-j"]);
    let tool = Tool::spawn(command);
    load.run(0.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(output.json().len() > 5);
}

/// A fake JVM: a process that maps a given file under the name libjvm.so.
struct Mapper {
    child: ChildProcess,
    _dir: tempfile::TempDir,
}

impl Mapper {
    fn start(bytes: &[u8], name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let script = "import mmap,sys,time\n\
            f=open(sys.argv[1],'rb')\n\
            m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ|mmap.PROT_EXEC,flags=mmap.MAP_PRIVATE)\n\
            print('mapped',flush=True)\n\
            time.sleep(60)";
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line, "mapped\n");
        Self { child: ChildProcess(child), _dir: dir }
    }

    fn assert_javagc_refuses(&self, words: &[&str]) {
        let pid = self.child.0.id().to_string();
        assert_refused(&tool::run("javagc", &["-p", &pid]), 1, words);
    }
}

#[test]
fn openj9_is_rejected_by_name() {
    run_beside_others();
    Mapper::start(&[0; 64], "libj9vm29.so").assert_javagc_refuses(&["OpenJ9", "HotSpot"]);
}

#[test]
fn libjvm_of_another_architecture_is_rejected() {
    run_beside_others();
    let mut elf = fs::read(std::env::current_exe().unwrap()).unwrap();
    // e_machine: 64-bit Arm, or x86-64 on Arm.
    elf[18] = if cfg!(target_arch = "aarch64") { 62 } else { 183 };
    elf[19] = 0;
    let theirs = if cfg!(target_arch = "aarch64") { "x86-64" } else { "aarch64" };
    Mapper::start(&elf, "libjvm.so").assert_javagc_refuses(&[theirs]);
}

#[test]
fn libjvm_without_probes_and_symbols_is_rejected() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let stripped = dir.path().join("libjvm.so");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&stripped).arg(named("musl-17").libjvm());
    assert!(strip.status().expect("strip").success());
    let bytes = fs::read(&stripped).unwrap();
    Mapper::start(&bytes, "libjvm.so")
        .assert_javagc_refuses(&["no USDT probe", "JDK build with probes"]);
}

#[test]
fn broken_elf_files_are_refused() {
    run_beside_others();
    let whole = fs::read(named("temurin-17").libjvm()).unwrap();
    let mut wild = whole.clone();
    // Section headers at the end of the address space.
    wild[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
    for (what, bytes) in [
        ("empty head", vec![0u8; 100]),
        ("only a magic", b"\x7fELF".to_vec()),
        ("cut", whole[..whole.len() / 2].to_vec()),
        ("cut in the header", whole[..40].to_vec()),
        ("wild section headers", wild),
    ] {
        println!("{what}");
        Mapper::start(&bytes, "libjvm.so").assert_javagc_refuses(&["ELF"]);
    }
}

#[test]
fn closed_stdout_ends_the_trace_quietly() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let script = format!("{} -p {} | head -n 2", binary("javagc").display(), load.pid());
    let shell = Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {script}")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(500));
    load.run(1.0);
    let output = shell.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2);
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "only Tracing...");
}

#[test]
fn closed_stdout_ends_the_trace_of_an_idle_jvm() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    // The JVM does not collect, so javagc writes nothing and gets no error from writing to the closed pipe.
    let script = format!("timeout 20 {} -p {} | true", binary("javagc").display(), load.pid());
    let output =
        Command::new("bash").args(["-c", &format!("set -o pipefail; {script}")]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn unwritable_output_file_is_reported_before_tracing() {
    run_beside_others();
    let load = Load::start(named("temurin-17"), G1);
    let output = tool::run("javagc", &["-p", &load.pid().to_string(), "-o", "/nonexistent/x.json"]);
    assert_refused(&output, 1, &["/nonexistent/x.json", "No such file"]);
}

#[test]
fn full_disk_is_reported() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let tool = Tool::start("javagc", &["-p", &load.pid().to_string(), "-o", "/dev/full"]);
    load.run(0.5);
    let output = tool.wait();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("No space left"), "{output:?}");
}

#[test]
fn twenty_thousand_stops_per_second_lose_none() {
    run_alone();
    let mut fake = Fake::start();
    let tool = Tool::start("javagc", &["-p", &fake.pid().to_string(), "-j", "-q"]);
    fake.fire(50_000, 20_000.0);
    let records = tool.interrupt().json();
    let summary = records.last().unwrap();
    assert_eq!((&summary["pauses"], &summary["lost"]), (&50_000.into(), &0.into()), "{summary}");
    assert_eq!(summary["operations"][0]["op"], "FakeCollect");
}

#[test]
fn lost_events_are_counted_exactly() {
    run_beside_others();
    let mut fake = Fake::start();
    let tool = Tool::start("javagc", &["-p", &fake.pid().to_string(), "-j", "-q"]);
    // The tool is stopped and does not read, so the ring buffer overflows.
    tool.signal(Signal::STOP);
    fake.fire(20_000, 50_000.0);
    tool.signal(Signal::CONT);
    thread::sleep(Duration::from_millis(500));
    fake.fire(1_000, 5_000.0);
    let output = tool.interrupt();
    let records = output.json();
    let summary = records.last().unwrap();
    let number = |field: &str| summary[field].as_u64().unwrap();
    assert!(number("lost") > 0, "{summary}");
    assert_eq!(number("pauses") + number("lost"), 21_000, "{summary}");
    let reported: u64 =
        records.iter().filter(|r| r["type"] == "lost").map(|r| r["events"].as_u64().unwrap()).sum();
    assert_eq!(reported, number("lost"));
}

/// The probes of a shared file are hit by every process that maps the file.
#[test]
fn hits_of_untraced_processes_leave_no_entries() {
    run_alone();
    let mut fake = Fake::start();
    let tool = Tool::start("javagc", &["-a", "-j"]);
    // The entry is added before the probes are attached.
    let has_probes = || !held_by(tool.pid()).links.is_empty();
    let is_traced = |fake: &Fake| keys_of_maps("stops").contains(&fake.pid().into());
    let wait_until_traced = |fake: &Fake| {
        let begin = Instant::now();
        while !(is_traced(fake) && has_probes()) {
            assert!(begin.elapsed() < Duration::from_secs(30), "timeout: it is not traced");
            thread::sleep(Duration::from_millis(100));
        }
    };
    wait_until_traced(&fake);
    thread::sleep(Duration::from_millis(500));
    fake.fire(1, 1000.0);
    // A stopped tool cannot find the other process, but its probes are hit.
    tool.signal(Signal::STOP);
    let mut other = fake.start_another();
    other.fire(10, 1000.0);
    assert!(!is_traced(&other));
    tool.signal(Signal::CONT);
    wait_until_traced(&other);
    let records = tool.interrupt().json();
    let is_pause = |r: &serde_json::Value| r["type"] == "pause" && r["pid"] == fake.pid();
    assert!(records.iter().any(is_pause), "the probes were not attached: {records:?}");
}

/// Lost events are counted exactly: if many JVMs already collect when the trace begins, each stop
/// since the first reported one is either reported or counted as lost.
#[test]
fn stops_of_30_jvms_are_reported_or_counted_lost() {
    run_alone();
    binary("javagc");
    let flags = "-Xms8m -Xmx8m -XX:+UseSerialGC -XX:TieredStopAtLevel=1";
    let mut loads: Vec<_> =
        (0..30).map(|_| Load::start_program(named("temurin-17"), flags, "TrickleLoad")).collect();
    loads.iter_mut().for_each(|load| load.go(6.0));
    let tool = Tool::start("javagc", &["-a", "-j"]);
    loads.iter_mut().for_each(|load| drop(load.done()));
    // Collections at the JVMs' end are not part of the comparison.
    let done_ns = jvmprobe_tests::proc::monotonic_ns();
    let records = tool.interrupt().json();
    for load in loads {
        let pid = load.pid();
        let log = gclog::parse(&load.quit());
        let of = |kind: &'static str| {
            records.iter().filter(move |r| r["type"] == kind && r["pid"] == pid)
        };
        let first = of("pause").map(|r| r["ts_ns"].as_u64().unwrap()).min().expect("a pause");
        let fired = log.stops.iter().filter(|s| !s.collections.is_empty());
        let fired: Vec<_> =
            fired.filter(|stop| (first..done_ns).contains(&stop.begin_ns())).collect();
        // Indexes of the missing stops.
        let begins: BTreeSet<_> = of("pause").map(|r| r["ts_ns"].as_u64().unwrap()).collect();
        let is_reported =
            |begin_ns: u64, end_ns: u64| begins.range(begin_ns..end_ns).next().is_some();
        let missing: Vec<_> = fired
            .iter()
            .enumerate()
            .filter(|(_, stop)| !is_reported(stop.begin_ns(), stop.end_ns))
            .map(|(at, stop)| (at, stop.begin_ns() - first, &stop.op))
            .collect();
        let fired = fired.len() as u64;
        let lost: u64 = of("lost").map(|r| r["events"].as_u64().unwrap()).sum();
        let reported =
            of("pause").filter(|r| r["ts_ns"].as_u64().unwrap() < done_ns).count() as u64;
        assert!(reported > 10, "{reported} of {fired}");
        assert_eq!(reported + lost, fired, "{reported} reported, {lost} lost: {missing:?}");
    }
}

/// The trace ends normally when the target ends, in whichever way.
fn assert_trace_ends_with_target(end: impl FnOnce(&mut Load), words: &str) {
    run_alone();
    let mut load = Load::start(named("temurin-17"), G1);
    let tool = Tool::start("javagc", &["-p", &load.pid().to_string(), "-j"]);
    load.run(0.5);
    end(&mut load);
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains(words), "{}", output.stderr);
    let records = output.json();
    assert_eq!(records.last().unwrap()["type"], "summary");
    assert!(records.len() > 5);
}

#[test]
fn trace_ends_when_the_target_is_killed() {
    run_beside_others();
    assert_trace_ends_with_target(Load::kill, "has ended");
}

#[test]
fn trace_ends_when_a_busy_target_is_killed() {
    run_beside_others();
    assert_trace_ends_with_target(
        |load| {
            load.go(5.0);
            thread::sleep(Duration::from_millis(300));
            load.kill();
        },
        "has ended",
    );
}

#[test]
fn trace_ends_when_the_target_execs() {
    run_beside_others();
    // java never execs after it has loaded libjvm.so, but a program that embeds a JVM might.
    let libjvm = named("temurin-17").libjvm();
    let script = "import mmap,os,sys\n\
        f=open(sys.argv[1],'rb')\n\
        m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ|mmap.PROT_EXEC,flags=mmap.MAP_PRIVATE)\n\
        print('mapped',flush=True)\n\
        sys.stdin.readline()\n\
        os.execvp('sleep',['sleep','60'])";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(libjvm)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let child = ChildProcess(child);
    let tool = Tool::start("javagc", &["-p", &child.0.id().to_string(), "-j"]);
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("runs another program"), "{}", output.stderr);
}

#[test]
fn concurrent_traces_report_the_same_stops() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let pid = load.pid().to_string();
    let tools = [Tool::start("javagc", &["-p", &pid, "-j"]), Tool::start("javagc", &["-a", "-j"])];
    load.run(1.0);
    thread::sleep(Duration::from_millis(200));
    let stops = tools.map(|tool| {
        let records = tool.interrupt().json();
        let pauses = records.into_iter().filter(|r| r["type"] == "pause" && r["pid"] == load.pid());
        pauses
            .map(|r| (r["op"].to_string(), r["collections"].to_string(), r["cause"].to_string()))
            .collect::<Vec<_>>()
    });
    assert!(stops[0].len() > 5);
    assert_eq!(stops[0], stops[1]);
}

/// Every uprobe is a breakpoint, which makes a page of libjvm.so in the target differ from the
/// file. After the tool has ended, all pages are equal to the file again.
#[test]
fn no_breakpoint_remains_after_interrupt_or_kill() {
    run_alone();
    let mut load = Load::start(named("temurin-17"), G1);
    let pid = load.pid().to_string();
    let clean = breakpoints(load.pid(), named("temurin-17"));
    assert_eq!(clean, 0, "before");
    let leaked = probes_leaked();
    for kill in [false, true] {
        let tool = Tool::start("javagc", &["-p", &pid]);
        load.run(0.2);
        assert!(breakpoints(load.pid(), named("temurin-17")) >= 5, "while tracing");
        if kill {
            tool.signal(Signal::KILL);
            assert!(!tool.wait().status.success());
        } else {
            assert!(tool.interrupt().status.success());
        }
        let after = format!("after, kill: {kill}");
        let limit = Duration::from_secs(30);
        assert_no_breakpoints(load.pid(), named("temurin-17"), limit, &after);
    }
    assert!(probes_leaked() <= leaked, "see dmesg");
    // The JVM still works.
    load.run(0.2);
    load.quit();
}

/// A copy of a runtime that a test may damage.
fn copy_of(runtime: &Runtime, to: &Path) -> PathBuf {
    let home = runtime.java.parent().and_then(Path::parent).unwrap();
    let status = Command::new("cp").arg("-r").arg(home).arg(to).status().unwrap();
    assert!(status.success());
    to.join("bin/java")
}

#[test]
fn jvm_is_traced_after_libjvm_is_replaced_on_disk() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let java = copy_of(named("temurin-17"), &dir.path().join("jre"));
    let mut load = Load::spawn(Command::new(&java));
    // An upgrade while the JVM runs: another build at the same path.
    let libjvm = dir.path().join("jre/lib/server/libjvm.so");
    fs::remove_file(&libjvm).unwrap();
    fs::copy(named("temurin-21").libjvm(), &libjvm).unwrap();
    let tool = Tool::start("javagc", &["-p", &load.pid().to_string(), "-j"]);
    load.run(0.7);
    let records = tool.interrupt().json();
    let pauses: Vec<_> = records.iter().filter(|r| r["type"] == "pause").collect();
    assert!(pauses.len() > 5);
    assert!(pauses.iter().all(|r| r["heap_before"].is_u64() && r["cause"].is_string()));
}

/// On the host, a different build of libjvm.so is at the same path.
#[test]
fn a_jvm_in_a_container_is_traced_from_outside() {
    run_beside_others();
    let mut container = Container::start(named("temurin-21"), &[G1], "GcLoad");
    let tool = Tool::start("javagc", &["-p", &container.pid().to_string(), "-j"]);
    container.run(0.7);
    let records = tool.interrupt().json();
    let pauses: Vec<_> = records.iter().filter(|r| r["type"] == "pause").collect();
    assert!(pauses.len() > 5, "{records:?}");
    for pause in pauses {
        assert_eq!(pause["pid"], container.pid());
        assert!(pause["heap_before"].is_u64() && pause["cause"].is_string(), "{pause}");
    }
}

#[test]
fn a_jvm_that_is_just_starting_is_traced() {
    run_beside_others();
    for delay in [0, 5, 15, 40] {
        let runtime = named("temurin-21");
        let mut command = runtime.command();
        command.args(["-Xmx64m", "-XX:+UseSerialGC", "-cp"]).arg(classes()).arg("GcLoad");
        let mut java =
            ChildProcess(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        thread::sleep(Duration::from_millis(delay));
        // -a, because there may be no libjvm.so mapped yet.
        let tool = Tool::start("javagc", &["-a", "-j"]);
        thread::sleep(Duration::from_millis(600));
        let mut stdin = java.0.stdin.take().unwrap();
        std::io::Write::write_all(&mut stdin, b"go 1\nquit\n").unwrap();
        java.0.wait().unwrap();
        thread::sleep(Duration::from_millis(300));
        let records = tool.interrupt().json();
        let pauses: Vec<_> =
            records.iter().filter(|r| r["type"] == "pause" && r["pid"] == java.0.id()).collect();
        assert!(pauses.len() > 3, "{records:?}");
        let last = pauses.last().unwrap();
        assert!(last["heap_before"].is_u64() && last["collector"] == "Serial", "{last}");
    }
}

/// Starts a JVM while `tool` traces all JVMs, and asserts that the pauses of the new JVM are
/// reported.
fn assert_new_jvm_is_traced(tool: Tool, words: &str) {
    let mut load = Load::start(named("temurin-17"), "-XX:+UseSerialGC");
    thread::sleep(Duration::from_secs(1));
    load.run(0.5);
    let output = tool.interrupt();
    assert!(output.stderr.contains(words), "{}", output.stderr);
    let records = output.json();
    assert!(records.iter().any(|r| r["type"] == "pause" && r["pid"] == load.pid()));
}

#[test]
fn new_jvms_are_found_when_they_map_libjvm() {
    run_beside_others();
    let tool = Tool::start("javagc", &["-a", "-v", "-j"]);
    assert_new_jvm_is_traced(tool, "detecting new JVMs when they map libjvm.so");
}

#[test]
fn new_jvms_are_found_by_polling_without_kernel_events() {
    run_beside_others();
    // The list of online processors is hidden, so the tool cannot open events on them.
    let hide = "mount --bind /dev/null /sys/devices/system/cpu/online; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", hide, "sh"]);
    command.arg(binary("javagc")).args(["-a", "-v", "-j"]);
    assert_new_jvm_is_traced(Tool::spawn(command), "detecting new JVMs by scanning all processes");
}

#[test]
fn tracing_works_without_kernel_btf() {
    run_beside_others();
    let mut load = Load::start(named("temurin-17"), G1);
    let pid = load.pid().to_string();
    let tool = Tool::spawn(tool::without_btf("javagc", &["-p", &pid, "-j"]));
    load.run(0.7);
    let records = tool.interrupt().json();
    assert!(records.iter().any(|r| r["type"] == "pause"), "{records:?}");
}
