//! Records stacks of live JVMs for `tests/walk/recordings`.
//!
//! ```text
//! cargo run --release -p walk-harness --example record -- FOLDER [SECONDS [RUNTIME [FLAGS [PART]]]]
//! ```
//!
//! `StackLoad` runs under this program, which stops its threads one after the other and
//! single-steps each through several thousand instructions. At every instruction the walker of
//! `bpf/walk/` runs on the live thread. Its result is compared with two independent sources: the
//! calls and returns that the thread has executed since it was stopped ([`shadow`]), and the table
//! of the program's calls (`tests/lib/callgraph.rs`). One stack of each kind of instant ([`kinds`])
//! is recorded. If the walker disagrees, nothing is recorded and the disagreement is printed.
#![allow(clippy::print_stdout, reason = "progress output")]
#![allow(missing_docs, reason = "an example has no public API")]

#[cfg_attr(target_arch = "aarch64", path = "arch_aarch64.rs")]
#[cfg_attr(not(target_arch = "aarch64"), path = "arch_x86_64.rs")]
mod arch;
mod kinds;
mod live;
mod record_stack;
mod recorder;
mod shadow;
mod tracee;

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    load, runtimes,
    stackload::{self, Native},
};

use crate::{kinds::Seen, live::Live, recorder::Recorder};

/// The program's threads.
const PARTS: [&str; 5] = ["calls", "library", "outside", "virtual", "changes"];

fn main() -> Result<(), Box<dyn Error>> {
    // Permits this program to start the child process that names native frames.
    libjvmprobe::stack::symbolizer::enter();
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(
        args.next().ok_or("usage: record FOLDER [SECONDS [RUNTIME [FLAGS [PART]]]]")?,
    );
    let seconds = args.next().map_or(Ok(30), |n| n.parse())?;
    fs::create_dir_all(&folder)?;
    // Copies the classes before the timer signals start, because these signals would interrupt the copying.
    load::classes();
    tracee::tick();
    match args.next() {
        Some(name) => {
            let flags = args.next().unwrap_or_default();
            let part = args.next();
            let parts = part.as_deref().map_or(PARTS.to_vec(), |part| vec![part]);
            run(&folder, &name, &flags, &parts, seconds)?;
        }
        None => {
            for (name, flags) in arch::RUNS {
                run(&folder, name, flags, &PARTS, seconds)?;
            }
        }
    }
    Ok(())
}

/// Runs each of the program's threads in a JVM of its own, because in one JVM they would compete for
/// processors.
fn run(
    folder: &Path,
    name: &str,
    flags: &str,
    parts: &[&str],
    seconds: u64,
) -> Result<(), Box<dyn Error>> {
    let runtime = runtimes::named(name);
    let mut seen = Seen::default();
    for part in parts.iter().filter(|part| **part != "virtual" || runtime.major >= 21) {
        let all_flags = format!("-Dstackload.parts={part} {flags}");
        let mut load = stackload::start(runtime, &all_flags, Native::WithoutFramePointers);
        load.go(seconds as f64 + 60.0);
        // Skips the start, in which code is interpreted and compiled for the first time.
        thread::sleep(Duration::from_millis(300));
        let mut recorder = Recorder::new(folder, runtime, flags, Live::new(&load)?, seen);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut turn = 0_usize;
        while Instant::now() < end {
            turn += 1;
            let threads = threads(load.pid());
            let Some((tid, name)) = threads.get(turn % threads.len().max(1)) else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            // A thread may end at any time.
            if let Err(error) = recorder.thread(*tid, name) {
                recorder.count("thread has ended", &error.to_string());
            }
            thread::sleep(Duration::from_millis(3 + turn as u64 % 17));
        }
        recorder.print_summary(part);
        seen = recorder.seen;
        load.kill();
    }
    Ok(())
}

/// Returns the threads of the program, as thread ID and name.
fn threads(pid: u32) -> Vec<(i32, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let named = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((task.file_name().to_str()?.parse().ok()?, name.trim_end().to_owned()))
    });
    let is_ours =
        |name: &str| PARTS.contains(&name) && name != "virtual" || name.starts_with("ForkJoi");
    named.filter(|(_, name)| is_ours(name)).collect()
}
