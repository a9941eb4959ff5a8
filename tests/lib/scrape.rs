//! Reads the metrics of a running jvmprobed, as Prometheus does.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

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
