//! What benchmarks have in common: parts by name, medians with their spread, what a
//! process uses.

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

/// The one in the middle.
///
/// # Panics
/// Where there is none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median, smallest and largest.
pub fn spread(mut values: Vec<f64>) -> String {
    if values.is_empty() {
        return "no values".into();
    }
    let (middle, count) = (median(&mut values), values.len());
    format!("{middle:.1} ({:.1} to {:.1}, n={count})", values[0], values[count - 1])
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Resident memory at its peak, in kB.
    pub peak_kb: u64,
    /// Processor time, user and system, in seconds.
    pub seconds: f64,
}

/// Reads what a process has used.
///
/// # Panics
/// Where it is gone.
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
