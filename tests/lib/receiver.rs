//! A receiver for jvmprobed's push requests: `tests/receiver/receiver.py`, which decodes them with
//! other libraries than those that encoded them.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

/// Returns the path of a program or folder that `tests/receivers` downloads.
///
/// # Panics
/// If the download fails.
pub fn downloaded_path(name: &str) -> PathBuf {
    listed_path("receivers", name)
}

/// Runs a script of `tests` that prints "name path" for each thing that it downloads, and returns the path of
/// one of them.
pub(crate) fn listed_path(script: &str, name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(path).stderr(Stdio::inherit()).output().expect("run it");
    assert!(output.status.success(), "tests/{script} failed");
    let text = String::from_utf8(output.stdout).expect("paths are UTF-8");
    let path = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    path.unwrap_or_else(|| panic!("no {name}")).into()
}

/// Answers of the receiver: the number of confirmed modes, and the requests that it has received.
#[derive(Debug, Default)]
struct Answers {
    modes: usize,
    requests: Vec<Value>,
}

/// A running receiver.
#[derive(Debug)]
pub struct Receiver {
    child: Child,
    input: ChildStdin,
    answers: Arc<(Mutex<Answers>, Condvar)>,
    /// Port for HTTP, or HTTPS.
    pub http: u16,
    /// Port for gRPC.
    pub grpc: u16,
}

impl Receiver {
    /// Starts a receiver. With a file that contains certificate and key, it speaks HTTPS.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(tls: Option<&Path>) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("receiver/receiver.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args(tls)
            .env("PYTHONPATH", downloaded_path("python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let input = child.stdin.take().expect("a pipe");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.next().expect("a line").expect("text");
        let ports: Vec<u16> =
            ready.split(' ').skip(1).map(|port| port.parse().expect("a port")).collect();
        let answers: Arc<(Mutex<Answers>, Condvar)> = Arc::default();
        let shared = Arc::clone(&answers);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut answers = shared.0.lock().expect("no panic");
                match line.starts_with("mode ") {
                    true => answers.modes += 1,
                    false => answers.requests.push(serde_json::from_str(&line).expect("JSON")),
                }
                shared.1.notify_all();
            }
        });
        Self { child, input, answers, http: ports[0], grpc: ports[1] }
    }

    /// Sets how the next requests are answered: see the head of the script.
    ///
    /// # Panics
    /// If it does not accept the mode.
    pub fn mode(&self, mode: &str) {
        self.send_command(mode);
    }

    /// Sends it a line, and waits for the answer.
    fn send_command(&self, line: &str) -> Vec<Value> {
        let before = self.answers.0.lock().expect("no panic").modes;
        writeln!(&self.input, "{line}").expect("it runs");
        self.wait(|answers| answers.modes > before, "the receiver did not confirm the command")
    }

    /// Waits until `count` requests have arrived in total, and returns them.
    ///
    /// # Panics
    /// If they do not arrive.
    pub fn wait_for(&self, count: usize) -> Vec<Value> {
        self.wait(|answers| answers.requests.len() >= count, "too few requests arrived")
    }

    /// Returns all requests that the receiver has printed so far. It prints a request before it answers.
    ///
    /// # Panics
    /// If it has ended.
    pub fn requests(&self) -> Vec<Value> {
        self.send_command("all")
    }

    fn wait(&self, met: impl Fn(&Answers) -> bool, what: &str) -> Vec<Value> {
        let (answers, news) = &*self.answers;
        let until = Instant::now() + Duration::from_secs(60);
        let mut answers = answers.lock().expect("no panic");
        while !met(&answers) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} within a minute: {} requests", answers.requests.len());
            answers = news.wait_timeout(answers, left).expect("no panic").0;
        }
        answers.requests.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
