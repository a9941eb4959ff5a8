//! The confined child that reads symbols: its rights, its limits and its end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::{net::UnixDatagram, process::CommandExt},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::tool::binary;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a tool as the child that it starts itself to read symbols, with the socket to it.
fn start() -> (Child, UnixDatagram) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut command = Command::new(binary("javaprof"));
    command.arg0("jvmprobe-confined").stdin(theirs);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    (command.spawn().unwrap(), UnixDatagram::from(ours))
}

/// Sends a request that has no meaning, and returns the answer.
fn ask(socket: &UnixDatagram) -> Vec<u8> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.send(b"nonsense").unwrap();
    let mut answer = [0; 64];
    let length = socket.recv(&mut answer).unwrap();
    answer[..length].to_vec()
}

fn wait_for_end(child: &mut Child) {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "the child runs on");
        thread::sleep(Duration::from_millis(10));
    }
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name}: {status}")).trim().to_owned()
}

#[test]
fn the_child_has_no_rights_and_ends_with_its_socket() {
    let (mut child, socket) = start();
    assert_eq!(ask(&socket), [1], "refused");
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
fn the_child_ends_with_the_thread_that_started_it() {
    binary("javaprof");
    let started = thread::spawn(|| {
        let (child, socket) = start();
        // Its last preparation is over when it answers.
        ask(&socket);
        (child, socket)
    });
    // The socket stays open.
    let (mut child, _socket) = started.join().unwrap();
    wait_for_end(&mut child);
}
