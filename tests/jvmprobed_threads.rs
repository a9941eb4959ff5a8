//! jvmprobed stores thread dumps of JVMs that have a deadlock or make no progress, and of no others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    bpf::held_by,
    container::Container,
    load::{Load, VIRTUAL},
    run_beside_others,
    runtimes::named,
    tool::{Output, Tool, run},
};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// Time within which the daemon finds something, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A daemon's directory, configuration and port.
struct TestDaemon {
    dir: TempDir,
    listen: String,
    /// A rule that selects only the JVMs of the test.
    rule: String,
}

impl TestDaemon {
    fn new(pids: &[u32]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let pids: Vec<_> = pids.iter().map(u32::to_string).collect();
        let rule = format!(
            "[[rule]]\naction = \"select\"\nwhen = {{ \"process.pid\" = \"^({})$\" }}\n",
            pids.join("|")
        );
        Self { dir: tempfile::tempdir().unwrap(), listen: free.to_string(), rule }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Writes the configuration with these settings of `[take]`.
    fn configure(&self, take: &str) {
        fs::write(self.path("config"), format!("[take]\n{take}\n{}", self.rule)).unwrap();
    }

    fn start(&self) -> Tool {
        let (config, store) = (self.path("config"), self.path("store"));
        let args =
            ["--config", &config, "--window", "5s", "--listen", &self.listen, "--dir", &store];
        Tool::start("jvmprobed", &args)
    }

    /// Returns the number of dumps by cause.
    fn dumps(&self, cause: &str) -> u64 {
        let mut stream = TcpStream::connect(&self.listen).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let name = format!("jvmprobed_thread_dumps_total{{cause=\"{cause}\"}} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{answer}")).parse::<f64>().unwrap() as u64
    }

    fn wait_for(&self, cause: &str, dumps: u64) {
        wait_until(cause, || self.dumps(cause) >= dumps);
    }

    fn show(&self, args: &[&str]) -> Output {
        let store = self.path("store");
        let output =
            run("jvmprobed", &[&["show", "--thread-dumps", "--dir", &store], args].concat());
        assert!(output.status.success(), "{output:?}");
        output
    }
}

fn wait_until(what: &str, is_done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_done() {
        assert!(begin.elapsed() < TIMEOUT, "{what}");
        sleep(Duration::from_millis(200));
    }
}

fn start(runtime: &str) -> Load {
    Load::start_program(named(runtime), "-XX:+UseSerialGC", "LockLoad")
}

/// Returns the locks and deadlocks of a JVM as javastack prints them.
fn locks(load: &Load) -> String {
    run("javastack", &["-q", "-p", &load.pid().to_string()]).stdout
}

/// Returns whether the daemon has the thread that searches for deadlocks.
fn searches(tool: &Tool) -> bool {
    let tasks = fs::read_dir(PathBuf::from(format!("/proc/{}/task", tool.pid()))).unwrap();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
    tasks.flatten().filter_map(name).any(|name| name.trim() == "tracer-threads")
}

#[test]
fn deadlock_and_standstill_are_stored_once_and_idle_and_busy_jvms_never() {
    run_beside_others();
    let [mut dead, mut stuck] = ["temurin-21", "temurin-17"].map(start);
    let [idle, mut busy] = ["temurin-25", "temurin-11"].map(start);
    let daemon = TestDaemon::new(&[&dead, &stuck, &idle, &busy].map(Load::pid));
    daemon.configure("thread-dumps = \"3s\"\nmax-cpu = 200.0");
    busy.send("busy 3600");
    let tool = daemon.start();
    dead.ask("deadlock 3");
    let address = stuck.ask("socket 2");
    let address = address.trim().strip_prefix("done ").unwrap();
    daemon.wait_for("deadlock", 1);
    daemon.wait_for("no-progress", 1);
    let truth = [&dead, &stuck].map(locks);
    // The daemon must store no further dumps in several times the configured time.
    sleep(Duration::from_secs(15));
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");

    let dumps = daemon.show(&["-j"]).json();
    let [of_dead, of_stuck] = [&dead, &stuck].map(|load| {
        let of = dumps.iter().filter(|dump| dump["pid"] == load.pid());
        let [dump] = of.collect::<Vec<_>>()[..] else { panic!("{dumps:?}") };
        dump
    });
    assert_eq!(dumps.len(), 2, "{dumps:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();

    assert_eq!((&of_dead["type"], &of_dead["cause"]), (&"threads".into(), &"deadlock".into()));
    let cycles = of_dead["deadlocks"].as_array().unwrap();
    let [cycle] = &cycles[..] else { panic!("{of_dead}") };
    let mut cycle: Vec<_> = cycle.as_array().unwrap().iter().map(text).collect();
    let first = cycle.iter().position(|name| name == "dead-0-0").unwrap();
    cycle.rotate_left(first);
    // Each thread waits for a lock of the next one.
    assert_eq!(cycle, ["dead-0-0", "dead-0-1", "dead-0-2"]);
    assert_eq!(text(&of_dead["locks"]), truth[0]);
    let threads = text(&of_dead["threads"]);
    assert!(threads.contains("\nFull thread dump ") && threads.contains("\n\"main\" #1 prio=5"));
    assert!(threads.contains("\tat LockLoad$Dead.takeSecond(LockLoad.java:"), "{threads}");

    assert_eq!((&of_stuck["cause"], &of_stuck["waiting"]), (&"no-progress".into(), &3.into()));
    assert!(of_stuck["deadlocks"].as_array().unwrap().is_empty());
    assert_eq!(text(&of_stuck["locks"]), truth[1]);
    assert!(truth[1].contains(address), "{}", truth[1]);

    let log = |load: &Load, text: &str| {
        let (pid, text) = (load.pid(), text.to_owned());
        let line =
            output.stderr.lines().find(|line| line.contains(&format!("(PID {pid}): {text}")));
        let line = line.unwrap_or_else(|| panic!("{}", output.stderr));
        assert!(line.ends_with(&format!("see `jvmprobed show --thread-dumps --jvm {pid}`")));
    };
    log(&dead, "deadlock of \"dead-0-");
    log(&stuck, "3 threads have waited for locks without progress: 2 threads wait for <0x");

    let shown = daemon.show(&["--jvm", &dead.pid().to_string()]).stdout;
    assert!(shown.contains(truth[0].trim_end()) && !shown.contains("Full thread dump"), "{shown}");
    let shown = daemon.show(&["-s"]).stdout;
    for text in truth.iter().chain([&threads]) {
        assert!(shown.contains(text.trim_end()), "{shown}");
    }
    drop(idle);
}

#[test]
fn deadlock_and_standstill_of_virtual_threads_are_stored() {
    run_beside_others();
    let mut loads = ["temurin-21", "temurin-25"].map(|runtime| {
        let flags = format!("{VIRTUAL} -XX:+UseSerialGC");
        Load::start_program(named(runtime), &flags, "VirtualLoad")
    });
    let daemon = TestDaemon::new(&[&loads[0], &loads[1]].map(Load::pid));
    daemon.configure("thread-dumps = \"3s\"\nmax-cpu = 200.0");
    let tool = daemon.start();
    for load in &mut loads {
        load.ask("park 1000");
        // Two virtual threads wait for locks of a third one, which sleeps.
        load.ask("start");
    }
    daemon.wait_for("no-progress", 2);
    let stuck = [&loads[0], &loads[1]].map(locks);
    for load in &mut loads {
        load.ask("deadlock vpv both");
    }
    daemon.wait_for("deadlock", 2);
    let dead = [&loads[0], &loads[1]].map(locks);
    assert!(tool.interrupt().status.success());
    let dumps = daemon.show(&["-j"]).json();
    assert_eq!(dumps.len(), 4, "{dumps:?}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    for ((load, stuck), dead) in loads.iter().zip(stuck).zip(dead) {
        let of = |cause: &str| {
            let mut of = dumps.iter().filter(|dump| dump["pid"] == load.pid());
            of.find(|dump| dump["cause"] == cause).unwrap()
        };
        let (of_stuck, of_dead) = (of("no-progress"), of("deadlock"));
        assert_eq!(of_stuck["waiting"], 2);
        assert_eq!(of_stuck["deadlocks"], Value::Array(Vec::new()));
        assert_eq!(text(&of_stuck["locks"]), stuck);
        let mut cycle: Vec<_> =
            of_dead["deadlocks"][0].as_array().unwrap().iter().map(text).collect();
        let first = cycle.iter().position(|name| name == "dead-0-0").unwrap();
        cycle.rotate_left(first);
        assert_eq!(cycle, ["dead-0-0", "dead-0-1", "dead-0-2"]);
        assert_eq!(text(&of_dead["locks"]), dead);
        let threads = text(&of_dead["threads"]);
        assert!(threads.contains("\n\"main\" #"), "{threads}");
        assert!(threads.contains("1000 virtual threads with equal stacks: #"), "{threads}");
        assert!(threads.contains("\tat VirtualLoad.deep(VirtualLoad.java:"), "{threads}");
    }
}

#[test]
fn search_of_a_container_is_off_by_default_and_switched_by_a_reload() {
    run_beside_others();
    let mut dead = Container::start(named("temurin-17"), &[], "LockLoad");
    dead.ask("deadlock 2");
    let daemon = TestDaemon::new(&[dead.pid()]);
    daemon.configure("");
    let tool = daemon.start();
    sleep(Duration::from_secs(5));
    assert!(!searches(&tool));
    let programs = || held_by(tool.pid()).programs.len();
    let before = programs();
    assert_eq!(daemon.dumps("deadlock"), 0);
    daemon.configure("thread-dumps = \"2s\"");
    tool.signal(Signal::HUP);
    daemon.wait_for("deadlock", 1);
    assert!(searches(&tool) && programs() > before);
    daemon.configure("");
    tool.signal(Signal::HUP);
    sleep(Duration::from_secs(2));
    dead.ask("deadlock 2");
    sleep(Duration::from_secs(5));
    assert_eq!(daemon.dumps("deadlock"), 1);
    daemon.configure("thread-dumps = \"2s\"");
    tool.signal(Signal::HUP);
    daemon.wait_for("deadlock", 2);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    let dumps = daemon.show(&["-j"]).json();
    let deadlocks: Vec<_> =
        dumps.iter().map(|dump| dump["deadlocks"].as_array().unwrap().len()).collect();
    assert_eq!(deadlocks, [1, 2]);
}
