//! The confined child that reads symbols: its rights, its limits and its end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::{net::UnixDatagram, process::CommandExt},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    load::Load,
    run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
    process::{Pid, Signal, kill_process},
};

/// Timeout. Nothing takes that long even on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts javaprof as the confined child that reads symbols. Returns the process and the socket to
/// it.
fn start() -> (Child, UnixDatagram) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut command = Command::new(binary("javaprof"));
    command.arg0("jvmprobe-confined").stdin(theirs);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (child, socket) = (command.spawn().unwrap(), UnixDatagram::from(ours));
    assert_eq!(receive(&socket), b"ready");
    (child, socket)
}

/// Sends an invalid request, and returns the answer.
fn send_invalid_request(socket: &UnixDatagram) -> Vec<u8> {
    socket.send(b"nonsense").unwrap();
    receive(socket)
}

fn receive(socket: &UnixDatagram) -> Vec<u8> {
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer).unwrap();
    answer[..length].to_vec()
}

fn wait_for_end(child: &mut Child) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < TIMEOUT, "the child has not exited");
        thread::sleep(Duration::from_millis(10));
    }
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {status}")).trim().to_owned()
}

#[test]
fn child_has_no_capabilities_and_exits_with_its_socket() {
    let (mut child, socket) = start();
    assert_eq!(send_invalid_request(&socket), [1], "refused");
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
    let status = read("status");
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(&status, set), "0000000000000000", "{set}");
    }
    assert_eq!(field(&status, "NoNewPrivs"), "1");
    assert_eq!(field(&status, "Seccomp"), "2");
    assert_eq!(field(&status, "Threads"), "1");
    let limits = read("limits");
    for (name, limit) in [
        ("Max address space", "1073741824"),
        ("Max open files", "128"),
        ("Max core file size", "0"),
        ("Max file size", "0"),
    ] {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert_eq!(line.split_whitespace().next(), Some(limit), "{name}");
    }
    let opened = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    assert_eq!(opened.count(), 3, "the socket, and /dev/null twice");
    drop(socket);
    wait_for_end(&mut child);
}

#[test]
fn child_exits_with_the_thread_that_started_it() {
    binary("javaprof");
    let started = thread::spawn(|| {
        let (child, socket) = start();
        // Once the child answers, its preparation is complete.
        send_invalid_request(&socket);
        (child, socket)
    });
    // The socket stays open, so the child ends only because of the thread's end.
    let (mut child, _socket) = started.join().unwrap();
    wait_for_end(&mut child);
}

/// Waits until a tool has a confined child, not counting the child `other_than`. Returns its PID.
fn child_of(tool: &Tool, other_than: Option<Pid>) -> Pid {
    let begin = Instant::now();
    loop {
        let tasks = fs::read_dir(format!("/proc/{}/task", tool.pid())).unwrap().flatten();
        let children =
            tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: String = children.collect();
        for pid in children.split_whitespace() {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
            if arguments.starts_with(b"jvmprobe-confined") && Some(pid) != other_than {
                return pid;
            }
        }
        assert!(begin.elapsed() < TIMEOUT, "no child");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Profiles a JVM in intervals of one second, and meanwhile sends a signal to the tool's confined
/// child. Returns stdout and stderr.
fn profile_while_signalling_child(
    signal: Signal,
    wait: impl FnOnce(&Tool, Pid),
) -> (String, String) {
    run_beside_others();
    let mut load = Load::start(named("temurin-21"), "-XX:+UseSerialGC");
    load.go(60.0);
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &["-p", &pid, "-F", "199", "-j", "1", "60"]);
    // A child that is two seconds old has opened its files, and waits for requests most of the time.
    let child = loop {
        let child = child_of(&tool, None);
        thread::sleep(Duration::from_secs(2));
        if fs::exists(format!("/proc/{}", child.as_raw_nonzero())).unwrap() {
            break child;
        }
    };
    kill_process(child, signal).unwrap();
    wait(&tool, child);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    load.kill();
    // The init process reaps the remaining children of a tool.
    let begin = Instant::now();
    while fs::exists(format!("/proc/{}", child.as_raw_nonzero())).unwrap() {
        assert!(begin.elapsed() < TIMEOUT, "the tool has exited, but its child has not");
        thread::sleep(Duration::from_millis(10));
    }
    (output.stdout, output.stderr)
}

#[test]
fn a_child_that_was_killed_is_replaced() {
    let (stdout, _) = profile_while_signalling_child(Signal::STOP, |tool, stopped| {
        // After this time, the stopped child has received a request, because there are new stacks
        // each second. The deadline of this request has not expired yet.
        thread::sleep(Duration::from_millis(2500));
        kill_process(stopped, Signal::KILL).unwrap();
        child_of(tool, Some(stopped));
        thread::sleep(Duration::from_secs(3));
    });
    let unknown = stdout.lines().filter(|line| line.contains("[unknown libjvm.so")).count();
    assert_eq!(unknown, 0, "{stdout}");
}

#[test]
fn stopped_child_skips_the_file_with_a_message() {
    let (stdout, stderr) = profile_while_signalling_child(Signal::STOP, |tool, stopped| {
        child_of(tool, Some(stopped));
        thread::sleep(Duration::from_secs(3));
    });
    let skipped: Vec<_> =
        stderr.lines().filter(|line| line.contains("skipping the symbols of")).collect();
    assert_eq!(skipped.len(), 1, "{stderr}");
    assert!(skipped[0].contains("the symbol reader timed out"), "{stderr}");
    // Java code is named nevertheless.
    assert!(stdout.contains("\"method\":\"GcLoad."), "{stdout}");
}
