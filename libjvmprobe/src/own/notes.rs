//! Words to the person at the terminal: on stderr, behind the tool's name; or, for programs that
//! collect logs, one JSON object a line. That nobody reads them is no reason to fail.

use std::{
    collections::HashSet,
    fmt::Write as _,
    io::{Write, stderr},
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

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

/// Whether lines are for programs.
static AS_JSON: AtomicBool = AtomicBool::new(false);

/// What a line is to who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Of interest to somebody who wants to know all.
    Debug,
    /// All is well.
    Info,
    /// Something is not as it should be.
    Warning,
}

/// What a line says, for programs: a name, and values by their names.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What they are about: `saving`.
    pub about: &'a str,
    /// Values by their names.
    pub values: &'a [(&'a str, Value)],
}

/// From here on, each line is a JSON object with `time` (RFC 3339), `level` (`debug`, `info`,
/// `warning`), `tool`, `message` and what facts there are, by what they are about.
pub fn note_as_json() {
    AS_JSON.store(true, Ordering::Relaxed);
}

/// Writes a line of what is not as it should be, whatever stands in the text.
pub fn note(text: &str) {
    say(Level::Warning, text, None);
}

/// The same of what is as it should be.
pub fn inform(text: &str) {
    say(Level::Info, text, None);
}

/// Writes a line, whatever stands in the text, with what it says for programs.
pub fn say(level: Level, text: &str, facts: Option<Facts<'_>>) {
    let tool = TOOL.get().map_or("jvmprobe", String::as_str);
    let line = match AS_JSON.load(Ordering::Relaxed) {
        true => as_json(tool, level, text, facts, Timestamp::now()),
        false => as_text(tool, text, facts),
    };
    let _ = writeln!(stderr(), "{line}");
}

/// Facts stand behind the text in brackets, as structured data of RFC 5424, section 6.3.
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

/// Notes with `-v` what is ignored, and why; the same once. A text that names the process is
/// said once of each.
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
