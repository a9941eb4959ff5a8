//! Reads the metrics of a running jvmprobed, as Prometheus does.

use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Maximum time until windows are complete, on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the answer of a daemon's metrics server, headers included.
///
/// # Panics
/// If it does not answer.
pub fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("a metrics server");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("send a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Waits until a daemon has completed this number of windows since its start. Returns its metrics.
///
/// # Panics
/// If this takes longer than two minutes.
pub fn until_windows(address: &str, number: f64) -> String {
    let begin = Instant::now();
    loop {
        let metrics = get(address);
        if completed_windows(&metrics) >= number {
            return metrics;
        }
        assert!(
            begin.elapsed() < TIMEOUT,
            "timeout: {number} windows were not completed:\n{metrics}"
        );
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until a daemon has completed this number of further windows. With 2, the last window has begun after the call.
/// Returns the daemon's metrics.
///
/// # Panics
/// If this takes longer than two minutes.
pub fn after_windows(address: &str, more: u32) -> String {
    until_windows(address, completed_windows(&get(address)) + f64::from(more))
}

/// Returns the number of windows that a daemon had completed when its metrics were read.
pub fn completed_windows(metrics: &str) -> f64 {
    sum(metrics, "jvmprobed_windows_total", &[])
}

/// Returns the sum of a metric's series whose labels contain all of these texts.
///
/// # Panics
/// If a value is no number.
pub fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let is_one = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let values = metrics.lines().filter(is_one);
    let values = values.map(|line| line.rsplit_once(' ').expect("a value").1);
    values.map(|value| value.parse::<f64>().expect("a number")).sum()
}
