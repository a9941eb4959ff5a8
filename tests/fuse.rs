//! JVMs with memory and files on a FUSE server that stops answering. The kernel does not interrupt
//! a read there. Nevertheless tools end, the daemon keeps running and can be stopped, and other
//! JVMs lose no data.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "why a test is skipped, for people to read")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    child_process::loader,
    fake::build_library,
    fuse::{BelowOverlay, Server, hostile_jvm},
    load::Load,
    run_beside_others,
    runtimes::named,
    tool::{Tool, binary},
};
use rustix::process::Signal;

/// Maximum time of a tool that has nothing to trace, on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits for the end of a process. Returns `None` if it takes longer than the limit.
fn ends_within(child: &mut Child, limit: Duration) -> Option<i32> {
    let begin = Instant::now();
    while begin.elapsed() < limit {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

/// Runs a tool on one process and returns its output.
fn run_tool_on(tool: &str, args: &[&str], pid: u32, server: &mut Option<Server>) -> String {
    let mut command = Command::new(binary(tool));
    command.args(args).args(["-p", &pid.to_string()]).stdin(Stdio::null());
    if tool != "javaclass" {
        // Longer than a tool waits for memory to answer.
        command.args(["-d", "2"]);
    }
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = ends_within(&mut child, TIMEOUT);
    if status.is_none() {
        // While the server runs, the tool cannot be killed.
        drop(server.take());
        let _ = child.kill();
        let _ = child.wait();
        panic!("{tool} does not end");
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    println!("{tool} {status:?}: {said}");
    assert_ne!(status, Some(101), "{said}");
    said
}

#[test]
fn tools_exit_when_target_memory_on_fuse_hangs() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let content = dir.path().join("content");
    fs::write(&content, vec![0; 1 << 20]).unwrap();
    let Some(server) = Server::start(&content) else { return };
    let jvm = hostile_jvm(&server, dir.path(), |_| ());
    server.stop_answering();
    let mut server = Some(server);
    for tool in ["javagc", "javaprof", "javaobjnew", "javaclass", "javastack", "javawait"] {
        let said = run_tool_on(tool, &[], jvm.pid(), &mut server);
        assert!(said.contains("does not answer"), "{tool}: {said}");
    }
}

#[test]
fn libraries_on_fuse_are_refused() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(&build_library(dir.path())) else { return };
    let process = loader(&server.file());
    let mut server = Some(server);
    let said = run_tool_on("javagc", &[], process.pid(), &mut server);
    assert!(said.contains("FUSE"), "{said}");
    server.as_ref().unwrap().stop_answering();
    let said = run_tool_on("javagc", &[], process.pid(), &mut server);
    assert!(said.contains("FUSE") || said.contains("does not answer"), "{said}");
    // The server is stopped before the process is killed. Otherwise the exiting process would wait
    // for answers of the server.
    drop(server);
}

#[test]
fn library_on_overlay_above_fuse_is_refused() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let Some(process) = BelowOverlay::start(&build_library(dir.path())) else { return };
    process.stop_answering();
    let pid = process.pid();
    let mut command = Command::new(binary("javagc"));
    command.args(["-p", &pid.to_string(), "-d", "1"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = ends_within(&mut child, TIMEOUT);
    // While the server runs, a tool that reads the file cannot be killed.
    drop(process);
    if status.is_none() {
        let _ = child.kill();
    }
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.is_some(), "javagc does not end");
    // The server may stop answering before javagc has opened the file.
    let refusals = ["above a FUSE file system", "no answer within"];
    assert!(refusals.iter().any(|refusal| said.contains(refusal)), "{said}");
}

#[test]
fn attaching_ends_when_working_folder_on_fuse_hangs() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let content = dir.path().join("content");
    fs::write(&content, "").unwrap();
    let Some(server) = Server::start(&content) else { return };
    let mut command = named("temurin-17").command();
    command.current_dir(server.file().parent().unwrap());
    let jvm = Load::spawn(command);
    server.stop_answering();
    let mut server = Some(server);
    let said = run_tool_on("javaprof", &["--symbols", "perfmap"], jvm.pid(), &mut server);
    assert!(said.contains("does not answer"), "{said}");
    drop(server);
}

/// Returns a server's answer and the time that it took.
fn get(listen: &str, path: &str) -> (String, Duration) {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(listen).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer, begin.elapsed())
}

#[test]
fn daemon_stays_responsive_when_fuse_memory_hangs() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let content = build_library(dir.path());
    // The file is extended, because the hostile JVM maps a part of its memory from this file.
    fs::OpenOptions::new().write(true).open(&content).unwrap().set_len(1 << 20).unwrap();
    let Some(server) = Server::start(&content) else { return };
    let mut good = Load::start(named("temurin-17"), "-XX:+UseSerialGC -Xmx64m");
    good.go(1e6);
    let jvm = hostile_jvm(&server, dir.path(), |_| ());
    let library = loader(&server.file());
    server.stop_answering();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new(binary("jvmprobed"));
    command.args(["--config", "/dev/null", "--window", "5s", "--listen", &listen, "--dir"]);
    command.arg(dir.path().join("store"));
    let daemon = Tool::spawn(command);
    let begin = Instant::now();
    // In this time, the daemon completes two windows, and for each it reads the gauges of the JVMs.
    let mut slowest = Duration::ZERO;
    while begin.elapsed() < Duration::from_secs(16) {
        let (answer, took) = get(&listen, "/-/healthy");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        slowest = slowest.max(took);
        thread::sleep(Duration::from_millis(200));
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let (metrics, _) = get(&listen, "/metrics");
    let of = format!(",pid=\"{}\"", good.pid());
    let series = |name: &str| metrics.lines().any(|l| l.starts_with(name) && l.contains(&of));
    println!("slowest answer {slowest:?}");
    for name in
        ["collections_total", "allocated_bytes_total", "loaded_classes", "processor_seconds_total"]
    {
        assert!(series(&format!("jvmprobe_{name}{{")), "no {name}: {metrics}");
    }
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    let ended = daemon.wait();
    let took = begin.elapsed();
    println!("ended after {took:?}: {}", ended.stderr);
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(server);
    drop((jvm, library));
}
