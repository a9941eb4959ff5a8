//! Allocation that `AllocLoad` reports, which tests use as reference.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{load::Load, run_beside_others, runtimes::Runtime, tool::Tool};

/// Allocation by class and by call path.
#[derive(Clone, Debug, Default)]
pub struct Allocated {
    /// Objects and bytes by class.
    pub classes: BTreeMap<String, (u64, u64)>,
    /// Bytes by the outermost method of the call path: `a`, `b`, `c` or `d`.
    pub paths: BTreeMap<String, u64>,
    /// Bytes of all allocations, from `ThreadMXBean.getThreadAllocatedBytes`.
    pub total: u64,
}

/// Runs the load under javaobjnew, and returns the results of both.
///
/// # Panics
/// If one of them fails.
pub fn trace(runtime: &Runtime, flags: &str, args: &[&str], load: &str) -> (Allocated, Vec<Value>) {
    run_beside_others();
    let mut java = Load::start_program(runtime, flags, "AllocLoad");
    // Warm-up: afterwards the classes are loaded, and the TLABs have reached their sizes.
    java.ask("go 1 200 2");
    let pid = java.pid().to_string();
    let tool = Tool::start("javaobjnew", &[&["-p", &pid, "-j"], args].concat());
    let answer = java.ask(load);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    (parse(&answer), output.json())
}

/// Parses the load's answer.
///
/// # Panics
/// If it is malformed.
pub fn parse(answer: &str) -> Allocated {
    let mut allocated = Allocated::default();
    for word in answer.split_ascii_whitespace().skip(1) {
        let (name, value) = word.rsplit_once('=').unwrap_or_else(|| panic!("no value: {word}"));
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|e| panic!("{e}: {word}"));
        if name == "allocated" {
            allocated.total = number(value);
        } else if let Some(path) = name.strip_prefix("path:") {
            allocated.paths.insert(path.into(), number(value));
        } else {
            let (objects, bytes) = value.split_once('/').expect("OBJECTS/BYTES");
            allocated.classes.insert(name.into(), (number(objects), number(bytes)));
        }
    }
    allocated
}
