//! Helpers for benchmarks: parts selected by name, medians with their spread, resources that a
//! process has used.

use std::{env, fs};

/// Runs the parts that the command line names, or all.
pub fn run_parts(parts: &[(&str, fn())]) {
    let wanted: Vec<_> = env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, part) in parts {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            part();
        }
    }
}

/// Sorts the values and returns their median.
///
/// # Panics
/// If there are no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Formats median, minimum, maximum and number of values.
pub fn spread(mut values: Vec<f64>) -> String {
    if values.is_empty() {
        return "no values".into();
    }
    let (middle, count) = (median(&mut values), values.len());
    format!("{middle:.1} ({:.1} to {:.1}, n={count})", values[0], values[count - 1])
}

/// Resources that a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Peak resident memory, in kB.
    pub peak_kb: u64,
    /// CPU time, user and system, in seconds.
    pub seconds: f64,
}

/// Reads the resources that a process has used.
///
/// # Panics
/// If it is gone.
pub fn usage(pid: u32) -> Usage {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap_or("0");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    // utime and stime, in ticks of 10 ms (proc(5)).
    let ticks: u64 = fields.skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum();
    Usage {
        peak_kb: peak.trim().trim_end_matches(" kB").parse().unwrap_or(0),
        seconds: ticks as f64 / 100.0,
    }
}
