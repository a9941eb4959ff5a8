//! The daemon under the limits of its systemd unit, and what it recorded of the neighbour.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    cgroup::{Cgroup, Limits},
    tool::{Tool, binary, run},
};
use rustix::process::Signal;
use tempfile::TempDir;

/// CPU samples per second: more than by default, so that a trial of seconds has enough.
pub const HERTZ: f64 = 99.0;
/// The user alice with the password hunter2. Scrapers that send it are verified by each daemon anew.
const USERS: &str =
    "basic_auth_users:\n  alice: $2b$05$ITzq9dTtxlW0lpIpnLPnReOqXZq5kM1OKRS5vzykJ.LuJtBDvZs7u\n";
const PASSWORD: &str = "Authorization: Basic YWxpY2U6aHVudGVyMg==\r\n";
/// Maximum time until a request is answered, on a busy machine.
const MAX_ANSWER: Duration = Duration::from_secs(10);
/// Time after which a daemon that does not end is stopped by the end of the attackers.
const MAX_STOP: Duration = Duration::from_secs(20);

/// Returns a port that nobody uses.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What a daemon has recorded of the neighbour, and its use of resources.
pub struct Recorded {
    /// CPU samples of the neighbour.
    pub samples: f64,
    /// Bytes that the neighbour has allocated.
    pub bytes: f64,
    /// Peak memory of the daemon's control group.
    pub peak_memory: u64,
    /// Number of its processes that the kernel has killed.
    pub oom_kills: u64,
    pub slowest_health: Duration,
    /// Time from SIGTERM to its end.
    pub stop_time: Duration,
    /// Time from its start to SIGTERM.
    pub age: Duration,
    pub is_success: bool,
    pub stderr: String,
}

/// A running daemon.
pub struct Daemon {
    tool: Tool,
    group: Cgroup,
    dir: TempDir,
    begin: Instant,
    ports: (u16, u16),
    slowest_health: Duration,
}

impl Daemon {
    /// Starts a daemon that serves metrics and health on these ports.
    pub fn start(ports: (u16, u16)) -> Self {
        let (group, dir) =
            (Cgroup::new("daemon", Limits::of_unit()).unwrap(), tempfile::tempdir().unwrap());
        let users = dir.path().join("users.yml");
        fs::write(&users, USERS).unwrap();
        let mut command = Command::new(binary("jvmprobed"));
        command.args(["--config", "/dev/null", "--window", "5s", "--waits", "1ms"]);
        command.args(["--thread-dumps", "5s", "-F", &HERTZ.to_string(), "--web-config"]).arg(users);
        command.args(["--listen", &format!("127.0.0.1:{}", ports.0)]);
        command.args(["--health-listen", &format!("127.0.0.1:{}", ports.1)]);
        command.arg("--dir").arg(dir.path().join("store"));
        if cfg!(debug_assertions) {
            // Without optimization, the daemon uses many times the CPU time.
            command.args(["--max-cpu", "100"]);
        }
        group.enter(&mut command);
        let begin = Instant::now();
        Self {
            tool: Tool::spawn(command),
            group,
            dir,
            begin,
            ports,
            slowest_health: Duration::ZERO,
        }
    }

    /// Checks that the daemon lives, has started, and answers.
    pub fn check_health(&mut self) {
        let begin = Instant::now();
        self.get(self.ports.1, "/-/healthy");
        self.get(self.ports.1, "/-/ready");
        self.slowest_health = self.slowest_health.max(begin.elapsed());
        assert_eq!(self.group.oom_kills(), 0, "killed for memory after {:?}", self.begin.elapsed());
    }

    /// Returns its metrics.
    pub fn metrics(&self) -> String {
        self.get(self.ports.0, "/metrics")
    }

    /// Repeats a request until it succeeds.
    fn get(&self, port: u16, path: &str) -> String {
        let begin = Instant::now();
        loop {
            let answer = request(port, path);
            match &answer {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return answer.clone(),
                _ => {}
            }
            let kills = self.group.oom_kills();
            assert_eq!(kills, 0, "killed for memory after {:?}", self.begin.elapsed());
            assert!(begin.elapsed() < MAX_ANSWER, "{path}: {answer:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends it, and returns what it has recorded of a JVM. If it does not end, calls `unblock`.
    pub fn stop(self, pid: u32, unblock: impl Fn()) -> Recorded {
        let age = self.begin.elapsed();
        let ending = Instant::now();
        self.tool.signal(Signal::TERM);
        let status = format!("/proc/{}/status", self.tool.pid());
        let runs = || fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
        while runs() && ending.elapsed() < MAX_STOP {
            thread::sleep(Duration::from_millis(10));
        }
        let stop_time = ending.elapsed();
        unblock();
        let output = self.tool.wait();
        let total = |name: &str, more: &[&str]| {
            let path = |name: &str| self.dir.path().join(name).display().to_string();
            let (store, file, pid) = (path("store"), path(name), pid.to_string());
            let args = ["show", "--dir", &store, "--since", "1h", "--jvm", &pid, "-q", "-o", &file];
            run("jvmprobed", &[&args[..], more].concat());
            // There is no file if nothing is recorded.
            let text = fs::read_to_string(file).unwrap_or_default();
            let counts =
                text.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            counts.sum()
        };
        Recorded {
            samples: total("cpu.folded", &[]),
            bytes: total("alloc.folded", &["--alloc"]),
            peak_memory: self.group.peak_memory().unwrap_or_default(),
            oom_kills: self.group.oom_kills(),
            slowest_health: self.slowest_health,
            stop_time,
            age,
            is_success: output.status.success(),
            stderr: output.stderr,
        }
    }
}

/// Sends a request, and returns the answer with its headers.
fn request(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(MAX_ANSWER))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n{PASSWORD}Connection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
