//! javaprof under failure: a clear one-line message, the right exit status, nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use jvmprobe_tests::{
    bpf::held_by,
    child_process::{ChildProcess, loader, sleeper},
    container::Container,
    fake::Fake,
    folded::{self, Line},
    load::{FRAMES, Load, classes},
    proc::{assert_no_breakpoints, breakpoints, cpu_seconds, probes_leaked, threads},
    run_alone, run_beside_others,
    runtimes::{Runtime, named, of_unstable},
    stackload::compile_native,
    tool::{self, Output, Tool, assert_refused, binary},
};
use rustix::process::{Pid, Signal, kill_process};

fn start_load(runtime: &str, flags: &str) -> Load {
    run_beside_others();
    // Builds the tools now, so that the build does not run beside the load.
    binary("javaprof");
    Load::start_program(named(runtime), &format!("{FRAMES} {flags}"), "CpuLoad")
}

/// Starts a JVM whose methods have been compiled.
fn start_warm_load() -> Load {
    let mut load = start_load("temurin-17", "");
    load.run(0.7);
    load
}

fn run(args: &[&str]) -> Output {
    tool::run("javaprof", args)
}

fn start(load: &Load, args: &[&str]) -> Tool {
    Tool::start("javaprof", &[&["-p", &load.pid().to_string()], args].concat())
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// Returns the path of the perf map that a JVM writes on request.
fn perf_map_path(pid: u32) -> PathBuf {
    format!("/tmp/perf-{pid}.map").into()
}

fn has(lines: &[Line], name: &str) -> bool {
    lines.iter().any(|line| line.has(name))
}

/// Asserts that there are only messages to the user, and that one contains these words.
fn assert_one_line(output: &Output, words: &[&str]) {
    assert!(output.stderr.lines().all(|l| l.starts_with("javaprof: ")), "{}", output.stderr);
    let said = output.stderr.lines().filter(|line| words.iter().all(|word| line.contains(word)));
    assert_eq!(said.count(), 1, "{words:?} in {}", output.stderr);
}

/// The Zero VM interprets Java code in C++: stacks contain the interpreter's functions, and a
/// message reports that.
#[test]
fn zero_vm_profile_warns_about_missing_method_names() {
    run_beside_others();
    let Some(runtime) = of_unstable("zero-17") else { return };
    let mut load = Load::start(runtime, "-XX:+UseSerialGC");
    load.go(4.0);
    let output = tool::run("javaprof", &["-p", &load.pid().to_string(), "-d", "1"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr.matches("Java methods have no names").count(), 1, "{output:?}");
    assert!(output.stdout.contains("BytecodeInterpreter::run"), "{output:?}");
    load.kill();
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [
        &[][..],
        &["-p", "x"],
        &["-p", "0"],
        &["-p", "1", "-F", "0"],
        &["-p", "1", "-F", "100000"],
        &["-p", "1", "-F", "fast"],
        &["-p", "1", "-d", "0"],
        &["-p", "1", "-d", "1", "2"],
        &["-p", "1", "-U", "-K"],
        &["-p", "1", "-q", "-f"],
        &["-p", "1", "--include", "("],
        &["-p", "1", "--exclude", "["],
        &["-p", "1", "--symbols", "magic"],
        &["-p", "1", "--symbols", "file:"],
        &["-a", "-p", "1"],
        &["-a", "--", "true"],
        &["--nonsense"],
    ] {
        assert_refused(&run(args), 2, &["error: ", "--help"]);
    }
}

#[test]
fn nonexistent_process_is_rejected() {
    run_beside_others();
    run_beside_others();
    // Above every pid_max.
    assert_refused(&run(&["-p", "4194305"]), 1, &["no process 4194305"]);
    assert_refused(&run(&["-p", "4294967295"]), 1, &["no process"]);
}

#[test]
fn process_without_libjvm_is_rejected() {
    run_beside_others();
    let other = sleeper();
    let pid = other.pid().to_string();
    run_beside_others();
    assert_refused(&run(&["-p", &pid]), 1, &[&pid, "sleep", "not a JVM", "list JVMs"]);
}

#[test]
fn process_with_libjvm_but_no_jvm_is_rejected() {
    run_beside_others();
    run_beside_others();
    let other = loader(&named("temurin-17").libjvm());
    let pid = other.pid().to_string();
    assert_refused(
        &run(&["-p", &pid]),
        1,
        &[&pid, "python", "not a JVM", "libjvm.so", "list JVMs"],
    );
}

/// JVMs that live for about a second, hardly longer than it takes to detect them. Their CPU time
/// before the detection is sampled, too.
#[test]
fn most_cpu_time_of_short_lived_jvms_is_sampled() {
    run_alone();
    binary("javaprof");
    // A name of their own, to distinguish them from other JVMs.
    let dir = tempfile::tempdir().unwrap();
    let java = dir.path().join("short-lived");
    symlink(&named("temurin-17").java, &java).unwrap();
    let runtime = Runtime { java, ..named("temurin-17").clone() };
    classes();
    let tool = Tool::start("javaprof", &["-a", "-F", "499", "-f"]);
    let mut spent = 0.0;
    for _ in 0..15 {
        let mut load = Load::start_program(&runtime, "-XX:+UseSerialGC", "CpuLoad");
        load.run(0.4);
        spent += cpu_seconds(load.pid());
        load.quit();
    }
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    let theirs = lines.iter().filter(|line| line.frames[0] == "short-lived");
    let seen = folded::total(theirs.clone()) as f64 / 499.0;
    assert!(seen > 0.85 * spent, "{seen} s of {spent} s");
    let work = theirs.filter(|line| line.has("CpuLoad.work"));
    assert!(folded::total(work) as f64 / 499.0 > 0.3 * spent, "{output:?}");
}

#[test]
fn thread_id_is_rejected_with_the_process_id() {
    run_beside_others();
    let load = start_load("temurin-17", "");
    let pid = load.pid();
    let tid = threads(pid).into_keys().find(|&tid| tid != pid).unwrap().to_string();
    assert_refused(&run(&["-p", &tid]), 1, &[&format!("-p {pid}"), "thread"]);
}

#[test]
fn zombie_process_is_rejected() {
    run_beside_others();
    run_beside_others();
    let child = ChildProcess::spawn(&mut Command::new("true"));
    let stat = format!("/proc/{}/stat", child.pid());
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        thread::sleep(Duration::from_millis(5));
    }
    assert_refused(&run(&["-p", &child.pid().to_string()]), 1, &["zombie"]);
}

#[test]
fn unexecutable_command_is_reported_in_one_line() {
    run_beside_others();
    run_beside_others();
    let output = run(&["--", "/nonexistent/java", "-jar", "x"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_one_line(&output, &["cannot run /nonexistent/java", "No such file"]);
    let output = run(&["--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_one_line(&output, &["cannot run /etc/passwd", "Permission denied"]);
}

#[test]
fn unwritable_output_files_are_rejected_before_sampling() {
    run_beside_others();
    let load = start_load("temurin-17", "");
    let pid = load.pid().to_string();
    let dir = tempfile::tempdir().unwrap();
    for name in ["x.txt", "x", "svg", "x.pb", "x.svg.gz"] {
        let path = dir.path().join(name);
        let output = run(&["-p", &pid, "-o", path.to_str().unwrap()]);
        assert_refused(&output, 1, &[name, ".svg", ".folded", ".pb.gz", ".json"]);
        assert!(!path.exists(), "{name}");
    }
    let output = run(&["-p", &pid, "-o", "/nonexistent/x.svg"]);
    assert_refused(&output, 1, &["/nonexistent/x.svg", "No such file"]);
    let folder = dir.path().join("a.svg");
    fs::create_dir(&folder).unwrap();
    let output = run(&["-p", &pid, "-o", folder.to_str().unwrap()]);
    assert_refused(&output, 1, &["a.svg", "Is a directory"]);
}

#[test]
fn full_disk_is_reported_with_the_file_name() {
    run_beside_others();
    let mut load = start_warm_load();
    let dir = tempfile::tempdir().unwrap();
    for name in ["x.svg", "x.html", "x.folded", "x.pb.gz", "x.ffprof.json", "x.json"] {
        let path = dir.path().join(name);
        symlink("/dev/full", &path).unwrap();
        let tool = start(&load, &["-q", "-o", path.to_str().unwrap()]);
        load.run(0.3);
        let output = tool.interrupt();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_one_line(&output, &["cannot write", name, "No space left"]);
    }
}

#[test]
fn closed_output_pipe_ends_javaprof_silently() {
    run_beside_others();
    let mut load = start_warm_load();
    for (option, reader) in [("-f", "true"), ("-f", "head -n 1"), ("-t", "head -n 2")] {
        let tool = binary("javaprof");
        let script = format!("{} -p {} -d 1 {option} | {reader}", tool.display(), load.pid());
        let shell = Command::new("bash")
            .args(["-c", &format!("set -o pipefail; {script}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        load.run(1.2);
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.lines().count(), 1, "{script}: only Sampling...: {said}");
    }
}

fn with_capabilities(caps: &str, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args([&format!("--bounding-set={caps}"), &format!("--inh-caps={caps}")]);
    command.arg(binary("javaprof")).args(args);
    command
}

#[test]
fn missing_capabilities_are_named_in_the_error() {
    run_beside_others();
    let load = start_load("temurin-17", "");
    let pid = load.pid().to_string();
    let without = |caps: &str| tool::run_command(with_capabilities(caps, &["-p", &pid]));
    assert_refused(&without("-all"), 1, &["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "root"]);
    assert_refused(&without("-sys_ptrace"), 1, &["CAP_SYS_PTRACE is missing"]);
}

#[test]
fn documented_capabilities_are_sufficient() {
    run_beside_others();
    let mut load = start_warm_load();
    let caps = "-all,+bpf,+perfmon,+sys_ptrace";
    let args = ["-p", &load.pid().to_string(), "-F", "499", "-f"];
    let tool = Tool::spawn(with_capabilities(caps, &args));
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    assert!(
        has(&lines, "CpuLoad.deep") && has(&lines, "JavaThread::thread_main_inner"),
        "{output:?}"
    );
}

#[test]
fn killed_target_ends_only_its_own_profile() {
    run_beside_others();
    let mut load = start_warm_load();
    let mut other = start_warm_load();
    let both = start(&load, &["-p", &other.pid().to_string(), "-F", "499", "-f", "-t"]);
    let tool = start(&load, &["-F", "499"]);
    load.go(10.0);
    thread::sleep(Duration::from_millis(1000));
    load.kill();
    // The profile ends normally with the JVM, and contains everything that was sampled.
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    for word in [" samples; ", "CpuLoad.deep", "complete"] {
        assert!(output.stdout.contains(word), "no {word:?} in {}", output.stdout);
    }
    assert_one_line(&output, &["process", &load.pid().to_string(), "has ended"]);
    // The profile continues as long as another JVM runs.
    other.run(1.0);
    let output = both.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    let workers: std::collections::BTreeSet<_> =
        lines.iter().filter(|l| l.has("CpuLoad.deep")).map(|l| &l.frames[1]).collect();
    assert_eq!(workers.len(), 2, "{workers:?}");
}

#[test]
fn samples_before_exec_keep_their_command_and_symbols() {
    run_beside_others();
    run_beside_others();
    binary("javaprof");
    // java never execs after it has loaded libjvm.so, but a program that embeds a JVM might.
    let script = "import mmap,os,sys,time\n\
        f=open(sys.argv[1],'rb')\n\
        m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ|mmap.PROT_EXEC,flags=mmap.MAP_PRIVATE)\n\
        print('mapped',flush=True)\n\
        sys.stdin.readline()\n\
        end=time.time()+0.6\n\
        while time.time()<end: pass\n\
        os.execvp('sh',['sh','-c','while :; do :; done'])";
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(named("temurin-17").libjvm());
    let mut child = ChildProcess::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mapped\n");
    let tool = Tool::start("javaprof", &["-p", &child.pid().to_string(), "-F", "499", "-f"]);
    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    thread::sleep(Duration::from_secs(2));
    // The target is killed, and javaprof is not interrupted: the profile must end with the target,
    // although the target has called exec() during the trace and runs another program.
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    assert!(lines.iter().any(|l| l.frames[0] == "sh"), "{output:?}");
    // Samples of the program before exec keep its command name and its symbol names.
    let before: Vec<_> = lines.iter().filter(|l| l.frames[0].starts_with("python")).collect();
    assert!(folded::total(before.iter().copied()) > 10, "{output:?}");
    assert!(
        before.iter().any(|l| l.frames.iter().any(|f| f.contains("clock_gettime"))),
        "{before:#?}"
    );
}

#[test]
fn stopped_target_is_reported_and_not_attached_to() {
    run_beside_others();
    let mut load = start_warm_load();
    signal(load.pid(), Signal::STOP);
    let output = run(&["-p", &load.pid().to_string(), "-d", "1"]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("No samples"), "{}", output.stdout);
    for words in ["is stopped (SIGSTOP)", &format!("kill -CONT {}", load.pid()), "was stopped"] {
        assert_one_line(&output, &[words]);
    }
    assert_eq!(
        output.stderr.lines().count(),
        3,
        "names come from memory, so there is no message about an attach: {}",
        output.stderr
    );
    // The JVM cannot answer a request.
    let output = run(&["-p", &load.pid().to_string(), "--symbols", "perfmap", "1"]);
    signal(load.pid(), Signal::CONT);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_one_line(&output, &["cannot attach", "stopped", "kill -CONT"]);
    assert!(!perf_map_path(load.pid()).exists());
    // The JVM still works and has not printed its threads in response to a signal.
    load.run(0.2);
    load.kill();
}

#[test]
fn jvm_with_attach_disabled_is_profiled_from_memory() {
    run_beside_others();
    let mut load = start_load("temurin-17", "-XX:+DisableAttachMechanism");
    load.run(0.7);
    let tool = start(&load, &["-F", "499", "-f"]);
    // On SIGQUIT, this JVM would print its threads to stdout, where the load's answer is expected.
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    // The names were read from its memory, without a request.
    for name in ["CpuLoad.deep", "JavaThread::thread_main_inner"] {
        assert!(has(&lines, name), "{name}: {lines:#?}");
    }
    // `--symbols perfmap` allows no other source than the JVM's map, so it fails.
    let output = run(&["-p", &load.pid().to_string(), "--symbols", "perfmap", "1"]);
    assert_refused(&output, 1, &["cannot attach", "DisableAttachMechanism"]);
    load.run(0.2);
    load.quit();
}

#[test]
fn perfmap_symbols_are_rejected_for_jdk_11() {
    run_beside_others();
    let load = start_load("temurin-11", "");
    let pid = load.pid().to_string();
    let output = tool::run("javaprof", &["-p", &pid, "--symbols", "perfmap"]);
    assert_refused(&output, 1, &["JDK 11", "JDK 17", "agent"]);
    load.quit();
}

#[test]
fn malformed_symbol_maps_yield_valid_profiles() {
    let mut load = start_warm_load();
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map");
    let symbols = format!("file:{}", map.display());
    let mut random: Vec<u8> = (0..2_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    random.extend_from_slice(b"\n7f00 10\n");
    let everywhere = "0 ffffffffffffffff all\n1 fffffffffffffff0 ;<&\x1b[31m\n".repeat(1000);
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("binary junk", random),
        ("one long line", vec![b'a'; 50_000_000]),
        ("one long name", [&b"7f0000000000 ffffffffff "[..], &vec![b'x'; 5_000_000]].concat()),
        ("no line ends", b"7f0000000000 10 a ".repeat(100_000)),
        ("one symbol everywhere", everywhere.into_bytes()),
    ] {
        println!("{what}");
        fs::write(&map, bytes).unwrap();
        let paths = ["x.svg", "x.folded", "x.pb.gz", "x.json"].map(|name| dir.path().join(name));
        let mut args = vec!["-F", "199", "--symbols", &symbols];
        args.extend(paths.iter().flat_map(|path| ["-o", path.to_str().unwrap()]));
        let tool = start(&load, &args);
        load.run(0.4);
        let output = tool.interrupt();
        assert!(output.status.success(), "{what}: {}", output.stderr);
        assert!(output.stdout.contains(" samples; "), "{what}");
        let folded = fs::read_to_string(&paths[1]).unwrap();
        let texts = [0, 3].map(|i| fs::read_to_string(&paths[i]).unwrap());
        for text in [&output.stdout, &output.stderr, &folded, &texts[0], &texts[1]] {
            assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{what}: {text}");
        }
        let lines = folded::parse(&folded);
        assert!(folded::total(&lines) > 5, "{what}");
        if what == "one symbol everywhere" {
            assert!(has(&lines, r":<&\x1b[31m"), "{folded}");
        }
    }
}

/// A library is unloaded, and another file of the same name and size is loaded at the same address.
#[test]
fn library_at_a_reused_address_has_its_own_names() {
    run_beside_others();
    binary("javaprof");
    let dir = tempfile::tempdir().unwrap();
    let libraries = ["first_spin", "other_spin"].map(|name| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        let library = folder.join("libswap.so");
        compile_native("swapload.c", &library, &[&format!("-DSPIN={name}")]);
        library.to_str().unwrap().to_owned()
    });
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseSerialGC", "SwapLoad");
    let place = load.ask(&format!("load {}", libraries[0]));
    load.ask("spin 0.1");
    let tool = start(&load, &["-F", "499", "-f"]);
    assert_eq!(load.ask(&format!("load {}", libraries[1])), place, "the same address");
    load.ask("spin 2.5");
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    let of = |name| folded::total(lines.iter().filter(|line: &&Line| line.has(name)));
    assert!(of("other_spin") > 300, "{output:?}");
    assert_eq!(of("first_spin"), 0, "{output:?}");
}

#[test]
fn unreadable_vm_structs_are_reported_as_the_reason() {
    run_beside_others();
    run_beside_others();
    let fake = Fake::start();
    let pid = fake.pid().to_string();
    for (tool, words) in [
        ("javaprof", "cannot read its version: HotSpot's vmStructs: "),
        ("javagc", "collector, heap sizes and causes are still unknown: HotSpot's vmStructs: "),
    ] {
        let output = tool::run(tool, &["-p", &pid, "-d", "0.5"]);
        assert!(output.status.success(), "{output:?}");
        let told = output.stderr.lines().filter(|line| line.contains(words));
        assert_eq!(told.count(), 1, "{}", output.stderr);
    }
    let output = run(&["-p", &pid, "--symbols", "hotspot", "-d", "0.5", "-v"]);
    assert!(output.stderr.contains("vmStructs"), "{}", output.stderr);
}

#[test]
fn untrusted_symbol_maps_are_rejected() {
    run_beside_others();
    let load = start_warm_load();
    let pid = load.pid().to_string();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let refused = |name: &str, words: &[&str]| {
        let symbols = format!("file:{}", path(name).display());
        let output = run(&["-p", &pid, "--symbols", &symbols, "1"]);
        assert_refused(&output, 1, &[&[name], words].concat());
    };
    fs::write(path("real"), "7f00 10 a\n").unwrap();
    symlink(path("real"), path("link")).unwrap();
    refused("link", &["symbolic link"]);
    fs::write(path("foreign"), "7f00 10 a\n").unwrap();
    chown(path("foreign"), Some(12345), None).unwrap();
    refused("foreign", &["trust", "user 12345"]);
    refused("missing", &["No such file"]);
    fs::create_dir(path("folder")).unwrap();
    refused("folder", &["trust"]);
    // When javaprof opens this FIFO, it must not wait for a writer.
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    refused("fifo", &["trust"]);
}

/// The JVM would follow the link and overwrite the file to which it points.
#[test]
fn symlink_at_the_perf_map_path_is_not_followed() {
    run_beside_others();
    let load = start_warm_load();
    let dir = tempfile::tempdir().unwrap();
    let (precious, map) = (dir.path().join("precious"), perf_map_path(load.pid()));
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, &map).unwrap();
    let output = run(&["-p", &load.pid().to_string(), "--symbols", "perfmap", "1"]);
    let is_link = fs::symlink_metadata(&map).is_ok_and(|meta| meta.is_symlink());
    fs::remove_file(&map).unwrap();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert!(is_link, "javaprof must not remove this link");
    assert_refused(&output, 1, &[map.to_str().unwrap()]);
}

#[test]
fn perf_map_of_another_user_is_rejected() {
    run_beside_others();
    let load = start_warm_load();
    let map = perf_map_path(load.pid());
    fs::write(&map, "7f0000000000 ffffffffff lies\n").unwrap();
    chown(&map, Some(12345), Some(12345)).unwrap();
    let output = run(&["-p", &load.pid().to_string(), "--symbols", "perfmap", "1"]);
    let text = fs::read_to_string(&map).unwrap();
    fs::remove_file(&map).unwrap();
    assert_eq!(text, "7f0000000000 ffffffffff lies\n");
    assert_refused(&output, 1, &["user 12345"]);
}

#[test]
fn existing_perf_map_is_used_and_not_deleted() {
    run_beside_others();
    let mut load = start_warm_load();
    let map = perf_map_path(load.pid());
    fs::write(&map, "").unwrap();
    let tool = start(&load, &["-F", "499", "-f", "--symbols", "perfmap"]);
    load.run(0.5);
    let output = tool.interrupt();
    let was_there = fs::remove_file(&map).is_ok();
    assert!(output.status.success() && was_there, "{output:?}");
    assert!(has(&folded::parse(&output.stdout), "CpuLoad.deep"), "{output:?}");
}

/// Returns the files that a tool may have left in a JVM's folders.
fn files_left(pid: u32, ns_pid: u32) -> Vec<PathBuf> {
    let places = [
        format!("/proc/{pid}/root/tmp/perf-{ns_pid}.map"),
        format!("/proc/{pid}/root/tmp/.attach_pid{ns_pid}"),
        format!("/proc/{pid}/cwd/.attach_pid{ns_pid}"),
    ];
    places.into_iter().map(PathBuf::from).filter(|p| p.symlink_metadata().is_ok()).collect()
}

#[test]
fn no_probes_or_files_remain_after_any_signal() {
    // Tools of other tests that trace all JVMs would have breakpoints here, too.
    run_alone();
    let mut load = start_warm_load();
    let pid = load.pid();
    let breakpoints = || breakpoints(pid, named("temurin-17"));
    let assert_gone = |after: &str| {
        assert_no_breakpoints(pid, named("temurin-17"), Duration::from_secs(20), after);
    };
    assert_gone("before");
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let tool = start(&load, &["-F", "499", "--symbols", "perfmap"]);
        load.run(0.3);
        assert!(breakpoints() >= 2, "while sampling");
        let held = held_by(tool.pid());
        assert!(held.programs.len() >= 3 && !held.links.is_empty(), "{held:?}");
        tool.signal(signal);
        assert_eq!(tool.wait().status.success(), signal != Signal::KILL, "{signal:?}");
        held.assert_gone();
        assert_gone(&format!("{signal:?}"));
        assert_eq!(files_left(pid, pid), [] as [PathBuf; 0], "{signal:?}");
    }
    // The JVM still works.
    load.run(0.2);
    load.quit();
}

/// The command outlives the tool, but inherits none of the tool's resources.
#[test]
fn command_inherits_no_bpf_or_perf_descriptors() {
    run_beside_others();
    let mut command = Command::new(binary("javaprof"));
    command.arg("--").arg(&named("temurin-17").java).arg("-cp").arg(classes()).arg("CpuLoad");
    let tool = Tool::spawn_reading(command, Stdio::piped());
    thread::sleep(Duration::from_secs(1));
    let held = held_by(tool.pid());
    assert!(held.programs.len() >= 3 && !held.links.is_empty(), "{held:?}");
    let children = fs::read_dir(format!("/proc/{}/task", tool.pid())).unwrap().flatten();
    let child = children
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .find_map(|list| list.split_ascii_whitespace().next()?.parse::<u32>().ok())
        .expect("the command");
    assert_eq!(held_by(child), jvmprobe_tests::bpf::Held::default());
    for entry in fs::read_dir(format!("/proc/{child}/fd")).unwrap().flatten() {
        let file = fs::read_link(entry.path()).unwrap_or_default();
        assert!(!file.to_string_lossy().contains("perf_event"), "{}", file.display());
    }
    tool.signal(Signal::KILL);
    // End of file on its stdin ends the command.
    tool.wait();
    held.assert_gone();
}

#[test]
fn concurrent_profiles_of_one_jvm_do_not_interfere() {
    let mut load = start_warm_load();
    let pid = load.pid();
    // The load runs for longer than this test takes on a busy machine; it is killed at the end.
    load.go(600.0);
    let leaked = probes_leaked();
    for round in 0..3 {
        let begin = || {
            let args = ["-p", &pid.to_string(), "-d", "0.5", "-F", "499", "-f"];
            let args = [&args[..], &["--symbols", "perfmap"]].concat();
            let args: Vec<_> = args.into_iter().map(str::to_owned).collect();
            thread::spawn(move || {
                tool::run("javaprof", &args.iter().map(String::as_str).collect::<Vec<_>>())
            })
        };
        let tools = [begin(), begin(), begin(), begin()];
        for output in tools.map(|tool| tool.join().unwrap()) {
            assert!(output.status.success(), "{round}: {output:?}");
            assert_eq!(output.stderr.lines().count(), 1, "{round}: {}", output.stderr);
            let lines = folded::parse(&output.stdout);
            assert!(has(&lines, "CpuLoad.deep") || has(&lines, "CpuLoad.medium"), "{lines:#?}");
        }
        assert_eq!(files_left(pid, pid), [] as [PathBuf; 0], "{round}");
    }
    // The JVM still runs, and its code is unmodified.
    // Tools of other tests trace all JVMs for up to a minute.
    let limit = Duration::from_secs(180);
    assert_no_breakpoints(pid, named("temurin-17"), limit, "four tools at once");
    assert!(probes_leaked() <= leaked, "see dmesg");
    load.kill();
}

#[test]
fn methods_of_a_jvm_in_a_container_have_names() {
    run_beside_others();
    run_beside_others();
    binary("javaprof");
    let flags: Vec<_> = FRAMES.split_ascii_whitespace().collect();
    let mut container = Container::start(named("temurin-21"), &flags, "CpuLoad");
    container.run(1.5);
    let pid = container.pid();
    // Names come from the JVM's memory, from its map in the container's /tmp, or from the agent,
    // which is copied into that /tmp.
    for symbols in ["hotspot", "perfmap", "agent"] {
        let args = ["-p", &pid.to_string(), "-F", "499", "-f", "--symbols", symbols];
        let tool = Tool::start("javaprof", &args);
        container.run(1.0);
        let output = tool.interrupt();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        let lines = folded::parse(&output.stdout);
        // Native names come from the container's files.
        for name in ["CpuLoad.small", "CpuLoad.deep", "JavaThread::thread_main_inner"] {
            assert!(has(&lines, name), "{symbols}: {name}: {lines:#?}");
        }
        assert_eq!(files_left(pid, 1), [] as [PathBuf; 0]);
        assert!(!Path::new("/tmp/perf-1.map").exists() && !perf_map_path(pid).exists());
    }
}

#[test]
fn full_or_read_only_tmp_is_reported() {
    run_beside_others();
    binary("javaprof");
    let mut flags: Vec<_> = FRAMES.split_ascii_whitespace().collect();
    flags.push("-XX:-UsePerfData");
    for (options, why) in [("size=4k", "truncated"), ("ro", "Read-only file system")] {
        let runtime = named("temurin-21");
        let mut container = Container::start_with_tmp(runtime, &flags, "CpuLoad", options);
        container.run(1.5);
        let pid = container.pid().to_string();
        let output = run(&["-p", &pid, "-d", "0.2", "--symbols", "perfmap"]);
        assert_refused(&output, 1, &[why]);
        assert_eq!(files_left(container.pid(), 1), [] as [PathBuf; 0], "{options}");
    }
}

/// JEP 451: from JDK 21 on a JVM can refuse agents.
#[test]
fn jvm_with_agent_loading_disabled_is_reported() {
    run_beside_others();
    let load = start_load("temurin-21", "-XX:-EnableDynamicAgentLoading");
    let pid = load.pid().to_string();
    let output = tool::run("javaprof", &["-p", &pid, "--symbols", "agent"]);
    assert_refused(&output, 1, &["did not load the agent", "EnableDynamicAgentLoading"]);
    assert_eq!(files_left(load.pid(), load.pid()), [] as [PathBuf; 0]);
    load.quit();
}

#[test]
fn a_profile_without_samples_leaves_no_empty_file() {
    run_beside_others();
    let load = start_warm_load();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (svg, folded) = (path("x.svg"), path("x.folded"));
    let pid = load.pid().to_string();
    let exclude = ["--exclude", ".", "-o", &svg, "-o", &folded];
    let output = tool::run("javaprof", &[&["-p", &pid, "-d", "0.2"], &exclude[..]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.contains("No samples"), "{}", output.stdout);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    load.quit();
}

#[test]
fn profiling_works_without_kernel_btf() {
    run_beside_others();
    run_beside_others();
    binary("javaprof");
    // The load causes page faults, so that there are kernel frames.
    let flags = "-XX:+PreserveFramePointer -XX:+UseParallelGC";
    let mut load = Load::start_program(named("temurin-17"), flags, "GcLoad");
    load.run(1.0);
    let pid = load.pid().to_string();
    let args = ["-p", &pid, "-F", "499", "-f"];
    let tool = Tool::spawn(tool::without_btf("javaprof", &args));
    load.run(1.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let lines = folded::parse(&output.stdout);
    assert!(has(&lines, "GcLoad.allocate"), "{lines:#?}");
    // Samples in the kernel have user frames, too.
    let is_mixed = |l: &Line| {
        l.frames.last().is_some_and(|f| f.ends_with("_[k]")) && l.has("thread_native_entry")
    };
    assert!(lines.iter().any(is_mixed), "{lines:#?}");
    load.quit();
}

/// For Java VMs other than HotSpot, javaprof prints a message and profiles native code.
#[test]
fn non_hotspot_vms_are_profiled_by_frame_pointers() {
    run_beside_others();
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libj9vm29.so");
    fs::write(&library, [0; 64]).unwrap();
    let script = "import mmap,sys\n\
                  f = open(sys.argv[1], 'rb')\n\
                  m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
                  while True: pass";
    let openj9 = ChildProcess::spawn(Command::new("python3").args(["-c", script]).arg(&library));
    let source = dir.path().join("image.c");
    fs::write(
        &source,
        "__attribute__((section(\".svm_heap\"))) int heap = 1;\n\
         int main(void) { for (;;) heap++; }\n",
    )
    .unwrap();
    let image = dir.path().join("image");
    let status = Command::new("cc").arg(&source).arg("-o").arg(&image).status();
    assert!(status.unwrap().success());
    let image = ChildProcess::spawn(&mut Command::new(image));
    // Time for them to start up.
    thread::sleep(Duration::from_millis(500));
    for (process, word) in [(&openj9, "OpenJ9"), (&image, "native image")] {
        let args = ["-p", &process.pid().to_string(), "-F", "199", "0.5"];
        let output = tool::run("javaprof", &args);
        assert!(output.status.success(), "{word}: {}", output.stderr);
        let first = output.stderr.lines().next().unwrap_or_default();
        assert!(first.contains(word) && first.contains("frame pointers"), "{}", output.stderr);
        assert!(output.stdout.contains(" samples; "), "{word}: {}", output.stdout);
        let refused = tool::run("javagc", &["-p", &process.pid().to_string()]);
        assert_refused(&refused, 1, &[word]);
    }
}
