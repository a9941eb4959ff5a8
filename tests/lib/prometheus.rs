//! Runs Prometheus and its tools.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::receiver::downloaded_path;

/// Returns status and body of an HTTP response, parsed by hand.
///
/// # Panics
/// If the server sends no valid response.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(address).expect("a server");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")
        .expect("send a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("a response");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(answer[..end].to_vec()).expect("a head in UTF-8");
    let mut body = answer.split_off(end + 4);
    // Prometheus's API sends chunks if it does not know the length in advance.
    if head.to_lowercase().contains("transfer-encoding: chunked") {
        body = join_chunks(&body);
    }
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body)
}

/// Joins the chunks of a body.
fn join_chunks(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = chunked.windows(2).position(|two| two == b"\r\n").expect("a chunk");
        let size = std::str::from_utf8(&chunked[..end]).expect("a size");
        let size = usize::from_str_radix(size, 16).expect("a size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&chunked[end + 2..end + 2 + size]);
        chunked = &chunked[end + 4 + size..];
    }
}

/// Escapes a text for a URL.
fn escape(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// A running Prometheus; killed when dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes one address each second.
    ///
    /// # Panics
    /// If it does not start.
    pub fn scraping(scraped: SocketAddr, features: &[&str]) -> Self {
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: jvmprobed\n  static_configs: [{{targets: ['{scraped}']}}]\n"
        );
        let prometheus = Self::start(tempfile::tempdir().expect("a folder"), &config, features);
        prometheus.wait_for("up == 1");
        prometheus
    }

    /// Starts a Prometheus whose database has these samples: OpenMetrics with timestamps.
    ///
    /// # Panics
    /// If promtool refuses the samples, or if Prometheus does not start.
    pub fn with_samples(openmetrics: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("samples");
        fs::write(&file, openmetrics).expect("write the samples");
        let data = folder.path().join("data");
        let paths = [&file, &data].map(|path| path.to_str().expect("a path in UTF-8"));
        let (good, text) =
            promtool(&["tsdb", "create-blocks-from", "openmetrics", paths[0], paths[1]], b"");
        assert!(good, "{text}");
        let prometheus = Self::start(folder, "global: {}\n", &[]);
        prometheus.wait_for("vector(1)");
        prometheus
    }

    fn start(folder: TempDir, config: &str, features: &[&str]) -> Self {
        let path = folder.path().join("prometheus.yml");
        fs::write(&path, config).expect("write the configuration");
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let child = Command::new(downloaded_path("prometheus"))
            .arg(format!("--config.file={}", path.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(features)
            .stderr(Stdio::null())
            .spawn()
            .expect("start Prometheus");
        Self { child, address, _folder: folder }
    }

    /// Waits until a query has a result.
    fn wait_for(&self, query: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        let answers = || {
            let ready = TcpStream::connect(self.address).is_ok()
                && get(self.address, "/-/ready", "").0 == 200;
            ready && !self.query(query).is_empty()
        };
        while !answers() {
            assert!(Instant::now() < until, "no result of `{query}` within a minute");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the current values of a query with their labels.
    ///
    /// # Panics
    /// If Prometheus refuses the query.
    pub fn query(&self, query: &str) -> Vec<(Value, f64)> {
        self.instant(&format!("/api/v1/query?query={}", escape(query)))
    }

    /// Returns the values of a query at a time, in seconds since 1970.
    ///
    /// # Panics
    /// If Prometheus refuses the query.
    pub fn query_at(&self, query: &str, time: u64) -> Vec<(Value, f64)> {
        self.instant(&format!("/api/v1/query?query={}&time={time}", escape(query)))
    }

    fn instant(&self, path: &str) -> Vec<(Value, f64)> {
        let answer = self.api(path);
        let results = answer["data"]["result"].as_array().expect("results");
        let value = |one: &Value| {
            let value = one["value"][1].as_str().and_then(|value| value.parse().ok());
            (one["metric"].clone(), value.expect("a number"))
        };
        results.iter().map(value).collect()
    }

    /// Returns the values that a label has in the series that match a selector.
    ///
    /// # Panics
    /// If Prometheus refuses the selector.
    pub fn label_values(&self, selector: &str, label: &str) -> Vec<String> {
        let path = format!("/api/v1/label/{label}/values?match[]={}", escape(selector));
        let answer = self.api(&path);
        let values = answer["data"].as_array().expect("values").iter();
        values.map(|value| value.as_str().expect("a text").to_owned()).collect()
    }

    fn api(&self, path: &str) -> Value {
        let (status, body) = get(self.address, path, "");
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Returns the single value of a query.
    ///
    /// # Panics
    /// If it has not exactly one value.
    pub fn one(&self, query: &str) -> f64 {
        let all = self.query(query);
        assert_eq!(all.len(), 1, "{query}: {all:?}");
        all[0].1
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs promtool, and returns whether it succeeded and what it printed. Callers also pass invalid input,
/// which shows that a check can fail.
///
/// # Panics
/// If it cannot be run.
pub fn promtool(arguments: &[&str], input: &[u8]) -> (bool, String) {
    let mut child = Command::new(downloaded_path("promtool"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start promtool");
    // promtool may end without reading all of its input.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let output = child.wait_with_output().expect("wait for promtool");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}
