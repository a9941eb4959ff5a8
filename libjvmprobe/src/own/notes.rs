//! Words to the person at the terminal: on stderr, behind the tool's name. That nobody reads
//! them is no reason to fail.

use std::{
    collections::HashSet,
    io::{Write, stderr},
    sync::{Mutex, OnceLock, PoisonError},
};

use crate::names::clean;

/// The name of the tool that runs.
static TOOL: OnceLock<String> = OnceLock::new();

/// What was remarked, where remarks are wanted.
static REMARKS: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();

/// More remarks than anybody reads.
const MAX_REMARKS: usize = 10_000;

/// Which tool runs, and whether remarks are wanted.
pub(crate) fn set_up(tool: &str, verbose: bool) {
    TOOL.get_or_init(|| tool.to_owned());
    if verbose {
        REMARKS.get_or_init(Mutex::default);
    }
}

/// Writes a line, whatever stands in the text.
pub fn note(text: &str) {
    let tool = TOOL.get().map_or("jvmprobe", String::as_str);
    let _ = writeln!(stderr(), "{tool}: {}", clean::name(text));
}

/// Notes with `-v` what is ignored, and why; the same once. A text that names the process is
/// said once of each.
pub fn remark(text: impl FnOnce() -> String) {
    let Some(remarks) = REMARKS.get() else { return };
    let text = text();
    let mut said = remarks.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < MAX_REMARKS && !said.contains(&text) {
        note(&text);
        said.insert(text);
    }
}
