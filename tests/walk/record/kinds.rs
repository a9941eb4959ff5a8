//! Classifies the instant at which a thread is stopped, by the kinds that a walker may confuse.

use std::collections::HashMap;

use walk_harness::harness::Blob;

use crate::{arch, live::Live};

// Values of `enum blob_kind` in bpf/walk/state.bpf.h.
const METHOD: u64 = 1;
const DISPATCH: u64 = 2;
const ADAPTER: u64 = 3;
const STUB: u64 = 4;
const DEOPT: u64 = 5;
/// Same as `HANDLER_BYTES` and `CODE_BYTES` in bpf/walk/.
const HANDLER_BYTES: u64 = 32;
const CODE_BYTES: u64 = 64;

/// State of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Instant<'a> {
    pub ip: u64,
    pub blob: Blob,
    pub code: &'a [u8; 16],
    /// Number of instructions since the thread entered this code. A return into the code does not count
    /// as an entry.
    pub since_entry: usize,
    /// Instructions since a frame was left by `leave`.
    pub since_leave: usize,
}

/// Kind of an instant, and a detail that distinguishes instants of the same kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    pub name: String,
    pub detail: String,
}

/// Maximum number of recordings of a kind per runtime and flags.
pub fn max_recordings(kind: &str) -> usize {
    match kind.trim_start_matches("virtual thread: ").trim_start_matches("signal: ") {
        "stub" | "adapter" => 10,
        "interpreted, entry" | "epilogue" | "deoptimised caller" => 6,
        "deoptimisation" => 10,
        "prologue" | "dispatch" | "entry by on-stack replacement" => 4,
        _ => 2,
    }
}

/// Returns the kind of an instant. `name` returns the innermost frame's name; it is called for
/// stubs only.
pub fn kind(live: &Live, at: &Instant<'_>, name: impl FnOnce() -> String) -> Kind {
    let c = at.code;
    let opcode = arch::name(c);
    let (kind, detail) = if live.is_interpreter(at.ip) {
        match (at.since_entry, at.since_leave) {
            (0..40, _) => ("interpreted, entry", opcode),
            (_, 0..8) => ("interpreted, exit", opcode),
            _ => ("interpreted", String::new()),
        }
    } else {
        match at.blob.kind {
            METHOD => method(at, opcode),
            DISPATCH => ("dispatch", opcode),
            ADAPTER => ("adapter", opcode),
            DEOPT => ("deoptimisation", opcode),
            STUB => ("stub", name()),
            _ if live.is_code(at.ip) => ("code of no blob", opcode),
            _ => ("native", live.module(at.ip)),
        }
    };
    Kind { name: kind.into(), detail }
}

fn method(at: &Instant<'_>, opcode: String) -> (&'static str, String) {
    let c = at.code;
    let b = &at.blob;
    let is_osr = b.osr_entry > b.begin && at.ip.wrapping_sub(b.osr_entry) < CODE_BYTES;
    if at.ip.wrapping_sub(b.deopt_handler) < HANDLER_BYTES {
        ("deoptimisation handler", opcode)
    } else if is_osr && at.since_entry < 12 {
        ("entry by on-stack replacement", opcode)
    } else if at.since_entry < 10 && at.ip < b.entry + CODE_BYTES {
        ("prologue", opcode)
    } else if arch::is_native_exit(c) {
        ("epilogue of a native method", opcode)
    } else if arch::is_last(c) {
        ("epilogue", opcode)
    } else {
        ("compiled", String::new())
    }
}

/// Number of recordings of each kind.
#[derive(Clone, Default)]
pub struct Seen(HashMap<Kind, usize>);

impl Seen {
    /// Whether a recording of this kind is still wanted: there is none with this detail, and there
    /// are fewer recordings with this name than the maximum.
    pub fn wants(&mut self, kind: &Kind) -> bool {
        let of_name = self.0.keys().filter(|known| known.name == kind.name).count();
        !self.0.contains_key(kind) && of_name < max_recordings(&kind.name)
    }

    pub fn add(&mut self, kind: &Kind) {
        *self.0.entry(kind.clone()).or_default() += 1;
    }
}
