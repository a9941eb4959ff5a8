//! Messages to the user: on stderr, prefixed with the tool's name, or as one JSON object per line for log collectors.
//! Errors while writing them are ignored.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fmt::Write as _,
    io::{Write, stderr},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::names::clean;

/// Name of the running tool.
static TOOL: OnceLock<String> = OnceLock::new();

/// Remarks printed so far; unset if remarks are off.
static REMARKS: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();

/// Maximum number of remarks printed.
const MAX_REMARKS: usize = 10_000;

/// Sets the tool's name, and whether remarks are printed.
pub(crate) fn set_up(tool: &str, verbose: bool) {
    TOOL.get_or_init(|| tool.to_owned());
    if verbose {
        REMARKS.get_or_init(Mutex::default);
    }
}

/// Whether messages are printed as JSON.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A detail, printed with `-v` only.
    Debug,
    /// Normal operation.
    Info,
    /// A problem.
    Warning,
}

/// Structured data of a message.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Topic, for example `saving`.
    pub about: &'a str,
    /// Values with their names.
    pub values: &'a [(&'a str, Value)],
}

/// From now on, prints each message as a JSON object with `time` (RFC 3339), `level` (`debug`, `info`, `warning`),
/// `tool`, `message` and, under the name of their topic, the facts if there are any.
pub fn note_as_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Warnings of the current minute; unset if their number is not limited.
static LIMIT: OnceLock<Mutex<Limit>> = OnceLock::new();

/// Maximum number of warnings per minute that differ only in numbers, and of all warnings per minute.
const MAX_ALIKE: u64 = 10;
const MAX_ALL: u64 = 200;
const MINUTE: Duration = Duration::from_secs(60);

/// Limits warnings, so that JVMs that cause many, perhaps on purpose, do not fill the log: from now on, at most ten per
/// minute that differ only in numbers, and at most 200 in total. The number of suppressed warnings is printed with the
/// first warning after the minute.
pub fn limit_warnings() {
    LIMIT.get_or_init(|| Mutex::new(Limit::new(Instant::now())));
}

/// Warning counters of the current minute.
#[derive(Debug)]
struct Limit {
    begin: Instant,
    all: u64,
    left_out: u64,
    /// Number of warnings by their text without numbers.
    alike: HashMap<String, u64>,
}

impl Limit {
    fn new(begin: Instant) -> Self {
        Self { begin, all: 0, left_out: 0, alike: HashMap::new() }
    }

    /// Counts a warning. Returns whether to print it, and, if a minute has just ended, the number of warnings
    /// suppressed in it.
    fn admits(&mut self, text: &str, now: Instant) -> (bool, u64) {
        let mut left_out = 0;
        if now.duration_since(self.begin) >= MINUTE {
            left_out = self.left_out;
            *self = Self::new(now);
        }
        let is_hex = |c: char| c.is_ascii_hexdigit();
        let words = text.split(|c: char| !c.is_alphanumeric());
        // Words of hexadecimal digits that contain a decimal digit may be addresses, so they count as numbers.
        let words = words.filter(|word| {
            !(word.contains(|c: char| c.is_ascii_digit())
                && word.trim_start_matches("0x").chars().all(is_hex))
        });
        let shape: String = words.collect();
        let alike = self.alike.entry(shape).or_default();
        *alike += 1;
        let is_admitted = *alike <= MAX_ALIKE && self.all < MAX_ALL;
        match is_admitted {
            true => self.all += 1,
            false => self.left_out += 1,
        }
        // At the maximum, new texts are suppressed, too, so their counters are not needed.
        if self.all >= MAX_ALL {
            self.alike.clear();
        }
        (is_admitted, left_out)
    }
}

/// Prints a warning. Control characters in the text are escaped.
pub fn note(text: &str) {
    if let Some(limit) = LIMIT.get() {
        let mut limit = limit.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_admitted, left_out) = limit.admits(text, Instant::now());
        if left_out > 0 {
            say(
                Level::Warning,
                &format!("{left_out} more warnings were left out of the last minutes"),
                None,
            );
        }
        if !is_admitted {
            return;
        }
    }
    say(Level::Warning, text, None);
}

/// Prints a warning about a process with its reason. Further warnings with the same reason, for example about a file
/// that lacks something, are printed with `-v` only.
pub(crate) fn note_once(line: &str, why: &str) {
    static REASONS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut reasons = REASONS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = !reasons.contains(why);
    if is_new && reasons.len() < MAX_REMARKS {
        reasons.insert(why.to_owned());
    }
    drop(reasons);
    let text = format!("{line}: {why}");
    if is_new { note(&text) } else { remark(|| text) }
}

/// Prints an informational message.
pub fn inform(text: &str) {
    say(Level::Info, text, None);
}

/// Prints a message with optional structured data. Control characters in the text are escaped.
pub fn say(level: Level, text: &str, facts: Option<Facts<'_>>) {
    let tool = TOOL.get().map_or("jvmprobe", String::as_str);
    let line = match AS_JSON.load(Ordering::Relaxed) {
        true => as_json(tool, level, text, facts, Timestamp::now()),
        false => as_text(tool, text, facts),
    };
    let _ = writeln!(stderr(), "{line}");
}

/// Formats a message as text. Facts follow in brackets, as structured data of RFC 5424, section 6.3.
fn as_text(tool: &str, text: &str, facts: Option<Facts<'_>>) -> String {
    let mut line = format!("{tool}: {}", clean::name(text));
    if let Some(Facts { about, values }) = facts {
        let _ = write!(line, " [{about}");
        for (name, value) in values {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let quoted = clean::name(&text).replace(['\\', '"', ']'], "_");
            let _ = write!(line, " {name}=\"{quoted}\"");
        }
        line.push(']');
    }
    line
}

fn as_json(
    tool: &str,
    level: Level,
    text: &str,
    facts: Option<Facts<'_>>,
    now: Timestamp,
) -> String {
    let level = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warning => "warning",
    };
    let time = format!("{now:.3}");
    let mut line = json!({"time": time, "level": level, "tool": tool, "message": text});
    if let Some(Facts { about, values }) = facts {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        line[about] = Value::Object(values.collect::<Map<_, _>>());
    }
    line.to_string()
}

/// Prints a message with `-v` only, for example what is ignored and why. Each text is printed once; a text that
/// contains a PID is printed once per process.
pub fn remark(text: impl FnOnce() -> String) {
    let Some(remarks) = REMARKS.get() else { return };
    let text = text();
    let mut said = remarks.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() < MAX_REMARKS && !said.contains(&text) {
        say(Level::Debug, &text, None);
        said.insert(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_that_differ_in_numbers_only_are_limited() {
        let begin = Instant::now();
        let mut limit = Limit::new(begin);
        let flood = |limit: &mut Limit, now| {
            let texts = (0..500)
                .map(|n| format!("process {n}: cannot read 4096 bytes at {:#x}", n * 0xabc));
            texts.filter(|text| limit.admits(text, now).0).count() as u64
        };
        assert_eq!(flood(&mut limit, begin), MAX_ALIKE);
        assert_eq!(limit.admits("something else", begin), (true, 0));
        let later = begin + MINUTE;
        assert_eq!(limit.admits("process 7 is another JVM", later), (true, 500 - MAX_ALIKE));
        assert_eq!(flood(&mut limit, later), MAX_ALIKE);
        // Texts that differ in more than numbers.
        let names = (0..1000_u32)
            .map(|n| format!("process of the name {}", char::from_u32(0x4e00 + n).unwrap()));
        let admitted = names.filter(|text| limit.admits(text, later).0).count() as u64;
        assert_eq!(admitted, MAX_ALL - MAX_ALIKE - 1);
        assert!(limit.alike.len() <= 1, "{limit:?}");
    }

    #[test]
    fn a_line_is_for_people_or_for_programs() {
        let values = [("step", json!(3)), ("off-cpu", json!(false)), ("why", json!("a \"b\"]"))];
        let facts = Some(Facts { about: "saving", values: &values });
        assert_eq!(
            as_text("tool", "less\nnow", facts),
            r#"tool: less\x0anow [saving step="3" off-cpu="false" why="a _b__"]"#
        );
        let now = Timestamp::from_millisecond(1_500).unwrap();
        let line = as_json("tool", Level::Info, "less\n\u{1b}", facts, now);
        assert_eq!(line.lines().count(), 1);
        assert!(!line.contains('\u{1b}'));
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!((&read["level"], &read["message"]), (&json!("info"), &json!("less\n\u{1b}")));
        assert_eq!(read["saving"], json!({"step": 3, "off-cpu": false, "why": "a \"b\"]"}));
    }
}
