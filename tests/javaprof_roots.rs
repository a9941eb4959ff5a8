//! javaprof and targets whose file system is laid out to mislead it: every file or socket that it
//! creates, reads or connects to must belong to the target.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    container::Container,
    folded,
    load::{FRAMES, Load},
    proc::{cpu_seconds, threads},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{self, Tool, binary},
};
use rustix::process::Signal;
use tempfile::TempDir;

/// Longer than javaprof ever waits for a JVM, even on a busy machine.
const MAX_ATTACH_TIME: Duration = Duration::from_secs(20);

fn start() {
    run_beside_others();
    binary("javaprof");
}

/// Returns the names of the files in a folder.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns a folder of the host and its path. The caller creates a folder with the same path in the
/// container.
fn host_folder_with_path() -> (TempDir, String) {
    let dir = tempfile::Builder::new().prefix("jvmprobe-host-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let path = dir.path().to_str().unwrap().to_owned();
    (dir, path)
}

/// Returns the path by which the host can open `path` in the container. `path` must not contain a
/// symbolic link.
fn host_path(container: &Container, path: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{path}", container.pid()))
}

/// Runs javaprof in each mode that writes files into a target.
fn assert_requests_succeed(container: &mut Container, what: &str) {
    let pid = container.pid().to_string();
    for symbols in ["agent", "perfmap"] {
        let args = ["-p", &pid, "-F", "499", "-f", "--symbols", symbols];
        let tool = Tool::start("javaprof", &args);
        container.run(0.5);
        let output = tool.interrupt();
        assert!(output.status.success(), "{what} {symbols}: {output:?}");
        let lines = folded::parse(&output.stdout);
        assert!(lines.iter().any(|line| line.has("CpuLoad.deep")), "{what} {symbols}: {lines:#?}");
    }
    let output = tool::run("javaprof", &["-p", &pid, "--write-maps"]);
    assert!(output.status.success(), "{what}: {output:?}");
}

#[test]
fn absolute_symlink_resolves_inside_the_container() {
    start();
    let (host, path) = host_folder_with_path();
    // An absolute link, a relative link, and an absolute link with `..`, as an attacker might make it. Resolved
    // at the host's root, each leads to the host's folder.
    for link in [path.clone(), format!("..{path}"), format!("/../..{path}")] {
        let mut container =
            Container::start_with_link(named("temurin-17"), "CpuLoad", &link, &path);
        container.run(0.5);
        assert_requests_succeed(&mut container, &link);
        let there = files(&host_path(&container, &path));
        assert!(there.contains(&"perf-1.map".to_owned()), "{link}: {there:?}");
        assert!(there.iter().all(|name| !name.starts_with(".jvmprobe")), "{link}: {there:?}");
        assert_eq!(files(host.path()), Vec::<String>::new(), "{link}");
    }
}

#[test]
fn symlink_through_proc_is_not_followed() {
    start();
    // javaprof does not open a /tmp that is such a link, so each run fails.
    for link in ["/proc/1/root/var/tmp", "/proc/self/cwd"] {
        let container =
            Container::start_with_link(named("temurin-17"), "CpuLoad", link, "/var/tmp");
        let before = files(Path::new("/var/tmp"));
        let pid = container.pid().to_string();
        for args in [
            &["-p", &pid, "--write-maps"][..],
            &["-p", &pid, "-d", "0.2", "--symbols", "agent"],
            &["-p", &pid, "-d", "0.2", "--symbols", "perfmap"],
        ] {
            let output = tool::run("javaprof", args);
            assert_eq!(output.status.code(), Some(1), "{link} {args:?}: {output:?}");
            assert!(output.stderr.contains("/tmp"), "{link} {args:?}: {}", output.stderr);
        }
        assert_eq!(files(Path::new("/var/tmp")), before, "{link}");
    }
}

/// The path of the JVM's attach socket is a link to the socket of another process, for example to
/// docker.sock.
#[test]
fn symlink_in_place_of_attach_socket_is_not_followed() {
    run_beside_others();
    start();
    let mut load = Load::start_program(named("temurin-17"), FRAMES, "CpuLoad");
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    listener.set_nonblocking(true).unwrap();
    let pid = load.pid().to_string();
    let socket = PathBuf::from(format!("/tmp/.java_pid{pid}"));
    symlink(&other, &socket).unwrap();
    let output = tool::run("javaprof", &["-p", &pid, "-d", "0.2", "--symbols", "perfmap"]);
    // javaprof requests that the JVM listens, and the JVM replaces the link by its own socket.
    fs::remove_file(&socket).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(listener.accept().is_err(), "javaprof connected to the foreign socket");
    load.run(0.1);
    load.quit();
}

/// Another user's socket at the path of the JVM's socket.
#[test]
fn attach_socket_of_another_user_is_rejected() {
    run_beside_others();
    start();
    let mut load = Load::start_program(named("temurin-17"), FRAMES, "CpuLoad");
    let pid = load.pid().to_string();
    let socket = PathBuf::from(format!("/tmp/.java_pid{pid}"));
    let listener = UnixListener::bind(&socket).unwrap();
    chown(&socket, Some(12345), None).unwrap();
    listener.set_nonblocking(true).unwrap();
    let output = tool::run("javaprof", &["-p", &pid, "-d", "0.2", "--symbols", "perfmap"]);
    fs::remove_file(&socket).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stderr.contains("own user"), "{}", output.stderr);
    assert!(listener.accept().is_err(), "javaprof connected to the foreign socket");
    load.run(0.1);
    load.quit();
}

/// Behaviour of a hanging JVM towards a client of its attach socket.
#[derive(Clone, Copy, Debug)]
enum Hang {
    /// The socket's backlog is full.
    Full,
    /// It accepts the request and never answers.
    Silent,
    /// It answers one byte at a time, without end.
    Slow,
}

/// Starts a JVM whose attach socket is served by this test.
fn start_hung_jvm(hang: Hang) -> (Load, PathBuf, thread::JoinHandle<()>, &'static AtomicBool) {
    let load = Load::start_program(named("temurin-17"), FRAMES, "CpuLoad");
    let socket = PathBuf::from(format!("/tmp/.java_pid{}", load.pid()));
    let listener = UnixListener::bind(&socket).unwrap();
    let end: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let path = socket.clone();
    let thread = thread::spawn(move || {
        let mut held = Vec::new();
        if matches!(hang, Hang::Full) {
            let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
            loop {
                let client = rustix::net::socket_with(
                    rustix::net::AddressFamily::UNIX,
                    rustix::net::SocketType::STREAM,
                    rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
                    None,
                )
                .unwrap();
                if rustix::net::connect(&client, &address).is_err() {
                    break;
                }
                held.push(client);
            }
        }
        listener.set_nonblocking(true).unwrap();
        let mut clients = Vec::new();
        while !end.load(Ordering::Relaxed) {
            if !matches!(hang, Hang::Full)
                && let Ok((mut client, _)) = listener.accept()
            {
                let mut request = [0; 64];
                let _ = client.read(&mut request);
                clients.push(client);
            }
            if matches!(hang, Hang::Slow) {
                for client in &mut clients {
                    let _ = client.write_all(b"0");
                }
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    thread::sleep(Duration::from_millis(200));
    (load, socket, thread, end)
}

#[test]
fn attach_to_a_hung_jvm_times_out() {
    run_beside_others();
    start();
    // The three cases run at the same time, because each of them only waits.
    thread::scope(|scope| {
        for hang in [Hang::Full, Hang::Silent, Hang::Slow] {
            scope.spawn(move || assert_attach_times_out(hang));
        }
    });
}

fn assert_attach_times_out(hang: Hang) {
    let (load, socket, thread, end) = start_hung_jvm(hang);
    let begin = Instant::now();
    let args = ["-p", &load.pid().to_string(), "-d", "0.2", "--symbols", "perfmap"];
    let output = tool::run("javaprof", &args);
    let waited = begin.elapsed();
    end.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    fs::remove_file(&socket).unwrap();
    assert_eq!(output.status.code(), Some(1), "{hang:?}: {output:?}");
    assert!(output.stderr.contains("is it hung?"), "{hang:?}: {}", output.stderr);
    assert!(waited < MAX_ATTACH_TIME, "{hang:?}: {waited:?}");
}

#[test]
fn signal_during_attach_aborts_and_removes_agent_files() {
    start();
    let before = files(Path::new("/tmp"));
    let (load, socket, thread, end) = start_hung_jvm(Hang::Silent);
    let args = ["-p", &load.pid().to_string(), "-d", "0.2", "--symbols", "agent"];
    let mut command = std::process::Command::new(binary("javaprof"));
    command.args(args);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    // Other tests may create such files, too.
    let is_ours = |name: &String| name.starts_with(".jvmprobe") && !before.contains(name);
    let there = || files(Path::new("/tmp")).into_iter().filter(is_ours).collect::<Vec<_>>();
    let begin = Instant::now();
    // The files appear one after the other.
    while there().len() < 2 && begin.elapsed() < MAX_ATTACH_TIME {
        thread::sleep(Duration::from_millis(10));
    }
    let seen = there();
    assert!(seen.len() >= 2, "the agent and its map: {seen:?}");
    let pid = rustix::process::Pid::from_child(&child);
    // Both signals are sent while javaprof is stopped, so they arrive at the same time. Together they
    // count as one signal, which aborts the attach request.
    rustix::process::kill_process(pid, Signal::STOP).unwrap();
    for _ in 0..2 {
        rustix::process::kill_process(pid, Signal::INT).unwrap();
    }
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
    let status = child.wait().unwrap();
    end.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    fs::remove_file(&socket).unwrap();
    // A second signal that counted would end javaprof with status 130.
    assert_eq!(status.code(), Some(1), "{status:?}");
    let left: Vec<_> = seen.into_iter().filter(|name| there().contains(name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn command_that_ignores_sigterm_is_killed() {
    start();
    let script = "trap '' TERM; while :; do :; done";
    let begin = Instant::now();
    let tool = Tool::start("javaprof", &["-d", "1", "-f", "--", "sh", "-c", script]);
    let output = tool.wait();
    assert!(output.status.success(), "{output:?}");
    assert!(folded::total(&folded::parse(&output.stdout)) > 20, "{}", output.stdout);
    assert!(output.stderr.contains("did not exit within"), "{}", output.stderr);
    assert!(begin.elapsed() < MAX_ATTACH_TIME, "{:?}", begin.elapsed());
}

#[test]
fn second_signal_kills_a_command_that_ignores_the_first() {
    start();
    let script = "trap '' TERM INT; echo $$; while :; do :; done";
    let mut command = std::process::Command::new(binary("javaprof"));
    command.args(["-f", "--", "sh", "-c", script]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut first = [0; 16];
    let read = child.stdout.as_mut().unwrap().read(&mut first).unwrap();
    let shell = String::from_utf8_lossy(&first[..read]).trim().to_owned();
    // The number of samples depends on the CPU time that the machine grants.
    let begin = Instant::now();
    while cpu_seconds(shell.parse().unwrap()) < 0.5 {
        assert!(begin.elapsed() < MAX_ATTACH_TIME, "the shell got no CPU time");
        thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    // The profile is printed, and javaprof waits for the command.
    thread::sleep(Duration::from_secs(1));
    rustix::process::kill_process(pid, Signal::INT).unwrap();
    let begin = Instant::now();
    let status = child.wait().unwrap();
    assert!(begin.elapsed() < MAX_ATTACH_TIME, "{:?}", begin.elapsed());
    assert_eq!(status.code(), Some(130), "{status:?}");
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert!(folded::total(&folded::parse(rest.trim())) > 20, "{rest}");
    let gone = Instant::now();
    let stat = format!("/proc/{shell}/stat");
    while fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z")) {
        assert!(gone.elapsed() < MAX_ATTACH_TIME, "{shell} still runs");
        thread::sleep(Duration::from_millis(20));
    }
}

/// `timeout` sends its signal to the process and to its group.
#[test]
fn duplicate_signal_from_timeout_counts_once() {
    run_beside_others();
    start();
    let mut load = Load::start_program(named("temurin-17"), FRAMES, "CpuLoad");
    let mut command = std::process::Command::new("timeout");
    command.args(["-s", "TERM", "2"]).arg(binary("javaprof"));
    command.args(["-p", &load.pid().to_string(), "-F", "199"]);
    let tool = thread::spawn(move || command.output().unwrap());
    load.run(2.5);
    let output = tool.join().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("CpuLoad.deep"), "{output:?}");
    load.quit();
}

/// An attacker who owns the folder in which the agent is placed, and replaces each new file by a
/// link to a file that javaprof would then overwrite.
#[test]
fn racing_symlinks_in_agent_folder_overwrite_no_file() {
    start();
    let (host, path) = host_folder_with_path();
    let mut container = Container::start_with_link(named("temurin-17"), "CpuLoad", &path, &path);
    container.run(0.3);
    let folder = host_path(&container, &path);
    // Without the sticky bit, so any user who can write there can replace everything.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let victim = host.path().join("victim");
    fs::write(&victim, "as it was\n").unwrap();
    let ends = AtomicBool::new(false);
    let replaced = thread::scope(|scope| {
        let rival = scope.spawn(|| {
            let mut replaced = 0;
            while !ends.load(Ordering::Relaxed) {
                for entry in fs::read_dir(&folder).unwrap().flatten() {
                    let name = entry.file_name().into_string().unwrap();
                    let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
                    if name.starts_with(".jvmprobe") && !is_link {
                        let there = entry.path();
                        let _ = fs::remove_file(&there);
                        replaced += usize::from(symlink(&victim, &there).is_ok());
                    }
                }
            }
            replaced
        });
        let pid = container.pid().to_string();
        for _ in 0..8 {
            for args in [
                &["-p", &pid, "-d", "0.05", "--symbols", "agent"][..],
                &["-p", &pid, "--write-maps"],
            ] {
                // The attacker may make javaprof fail.
                tool::run("javaprof", args);
            }
        }
        ends.store(true, Ordering::Relaxed);
        rival.join().unwrap()
    });
    assert!(replaced > 8, "{replaced}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "as it was\n");
    assert_eq!(files(host.path()), ["victim"]);
}

/// With `-a` or `--name`, javaprof only reads from a JVM; it sends no requests to it.
#[test]
fn option_all_sends_no_request_to_any_jvm() {
    // Alone, because JVMs of other tests match the pattern, too.
    run_alone();
    start();
    for symbols in ["agent", "perfmap"] {
        let args = ["-a", "-d", "0.1", "--symbols", symbols];
        let output = tool::run("javaprof", &args);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stderr.contains("-p PID"), "{}", output.stderr);
    }
    let output = tool::run("javaprof", &["-a", "--write-maps"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // A JVM from whose memory the compiled methods cannot be read.
    let folder = tempfile::tempdir().unwrap();
    let runtime = named("zulu-8").without_field("_scopes_pcs_offset", folder.path());
    let mut load = Load::start_program(&runtime, FRAMES, "CpuLoad");
    load.run(0.5);
    // Selected by a pattern, not by PID.
    let output = tool::run("javaprof", &["--name", "^CpuLoad$", "--write-maps"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!output.stderr.contains("loading the jvmprobe agent"), "{}", output.stderr);
    let tool = Tool::start("javaprof", &["-a", "-F", "199", "-f"]);
    load.run(0.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let pid = load.pid();
    assert!(output.stderr.contains(&format!("-p {pid} --symbols agent")), "{}", output.stderr);
    assert!(!output.stderr.contains("loading the jvmprobe agent"), "{}", output.stderr);
    let listens = || threads(pid).values().any(|name| name == "Attach Listener");
    assert!(!listens(), "javaprof sent the JVM a request");
    // For a JVM that is named by PID, javaprof uses the agent, and announces that first.
    let tool = Tool::start("javaprof", &["-p", &pid.to_string(), "-F", "199", "-f"]);
    load.run(0.5);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("loading the jvmprobe agent"), "{}", output.stderr);
    let lines = folded::parse(&output.stdout);
    assert!(lines.iter().any(|line| line.has("CpuLoad.deep")), "{lines:#?}");
    assert!(listens());
    load.quit();
}
