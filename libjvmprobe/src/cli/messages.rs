//! Messages of the library and the tools: on stderr, prefixed with the tool's name, or as one JSON object per line for
//! log collectors. Errors while writing them are ignored.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    io::{Write, stderr},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use log::{Level, LevelFilter, Log, Metadata, Record, kv};
use serde_json::{Map, Value, json};

use crate::names::clean;

static MESSAGES: OnceLock<Messages> = OnceLock::new();

/// Maximum number of different messages at the debug level that are printed.
const MAX_DETAILS: usize = 10_000;

/// Maximum number of warnings per minute that differ only in numbers, and of all warnings per minute.
const MAX_ALIKE: u64 = 10;
const MAX_WARNINGS: u64 = 200;
const MINUTE: Duration = Duration::from_secs(60);

/// Prints messages.
#[derive(Debug)]
struct Messages {
    /// Name of the running tool. Its crate has the same name.
    tool: String,
    /// Whether messages are printed as JSON.
    as_json: AtomicBool,
    /// Messages at the debug level that were printed. Each text is printed once; a text that contains a PID is printed
    /// once per process.
    details: Mutex<HashSet<String>>,
    /// Warnings of the current minute; `None` if their number is not limited.
    limit: Mutex<Option<Limit>>,
}

/// Begins to print messages with the tool's name; if `verbose`, also those at the debug level.
pub fn init(tool: &str, verbose: bool) {
    let messages = MESSAGES.get_or_init(|| Messages {
        tool: tool.to_owned(),
        as_json: AtomicBool::new(false),
        details: Mutex::default(),
        limit: Mutex::default(),
    });
    if log::set_logger(messages).is_ok() {
        log::set_max_level(if verbose { LevelFilter::Debug } else { LevelFilter::Info });
    }
}

/// From now on, prints each message as a JSON object with `time` (RFC 3339), `level` (`debug`, `info`, `warning`),
/// `tool`, `message` and the message's key-value pairs.
pub fn print_messages_as_json() {
    if let Some(messages) = MESSAGES.get() {
        messages.as_json.store(true, Ordering::Relaxed);
    }
}

/// Limits warnings, so that a JVM cannot fill the log, not even on purpose. From now on, prints at most ten
/// warnings per minute that differ only in numbers, and at most 200 warnings per minute in total. The number
/// of suppressed warnings is printed before the first warning after the minute.
pub fn limit_warnings() {
    if let Some(messages) = MESSAGES.get() {
        lock(&messages.limit).get_or_insert_with(|| Limit::new(Instant::now()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log for Messages {
    /// Messages of other crates are not for users.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let module = metadata.target();
        ["libjvmprobe", &self.tool].iter().any(|own| module.starts_with(own))
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        match record.level() {
            Level::Debug | Level::Trace => {
                let mut details = lock(&self.details);
                if details.len() >= MAX_DETAILS || !details.insert(text.clone()) {
                    return;
                }
            }
            Level::Warn | Level::Error => {
                let admitted = lock(&self.limit).as_mut().map(|l| l.admits(&text, Instant::now()));
                let (is_admitted, suppressed) = admitted.unwrap_or((true, 0));
                if suppressed > 0 {
                    let line = format!(
                        "dropped {suppressed} further warnings of an earlier minute, because there \
                         were too many"
                    );
                    self.print(Level::Warn, &line, &Map::new());
                }
                if !is_admitted {
                    return;
                }
            }
            Level::Info => {}
        }
        let mut values = Values(Map::new());
        // The visitor accepts each value.
        let _ = record.key_values().visit(&mut values);
        self.print(record.level(), &text, &values.0);
    }

    fn flush(&self) {}
}

impl Messages {
    fn print(&self, level: Level, text: &str, values: &Map<String, Value>) {
        let line = match self.as_json.load(Ordering::Relaxed) {
            true => as_json(&self.tool, level, text, values, Timestamp::now()),
            false => as_text(&self.tool, text, values),
        };
        let _ = writeln!(stderr(), "{line}");
    }
}

/// Collects the key-value pairs of a message.
struct Values(Map<String, Value>);

impl<'a> kv::VisitSource<'a> for Values {
    fn visit_pair(&mut self, key: kv::Key<'a>, value: kv::Value<'a>) -> Result<(), kv::Error> {
        self.0.insert(key.to_string(), serde_json::to_value(value).unwrap_or_default());
        Ok(())
    }
}

/// Formats a message as text. After the text, each key-value pair follows in brackets, in the style of the structured
/// data of RFC 5424, section 6.3: the key, then each field of the value, which is a JSON object, as `name="value"`.
fn as_text(tool: &str, text: &str, values: &Map<String, Value>) -> String {
    let mut line = format!("{tool}: {}", clean::name(text));
    for (about, values) in values {
        let _ = write!(line, " [{about}");
        for (name, value) in values.as_object().into_iter().flatten() {
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
    values: &Map<String, Value>,
    now: Timestamp,
) -> String {
    let level = match level {
        Level::Debug | Level::Trace => "debug",
        Level::Info => "info",
        Level::Warn | Level::Error => "warning",
    };
    let time = format!("{now:.3}");
    let mut line = json!({"time": time, "level": level, "tool": tool, "message": text});
    values.iter().for_each(|(about, value)| line[about] = value.clone());
    line.to_string()
}

/// Warning counters of the current minute.
#[derive(Debug)]
struct Limit {
    begin: Instant,
    all: u64,
    suppressed: u64,
    /// Number of warnings by their text without numbers.
    alike: HashMap<String, u64>,
}

impl Limit {
    fn new(begin: Instant) -> Self {
        Self { begin, all: 0, suppressed: 0, alike: HashMap::new() }
    }

    /// Counts a warning. Returns whether to print it, and, if a minute has just ended, the number of warnings
    /// suppressed in it.
    fn admits(&mut self, text: &str, now: Instant) -> (bool, u64) {
        let mut suppressed = 0;
        if now.duration_since(self.begin) >= MINUTE {
            suppressed = self.suppressed;
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
        let is_admitted = *alike <= MAX_ALIKE && self.all < MAX_WARNINGS;
        match is_admitted {
            true => self.all += 1,
            false => self.suppressed += 1,
        }
        // At the maximum of all warnings, every further warning is suppressed, so the counters by text are
        // not needed any more.
        if self.all >= MAX_WARNINGS {
            self.alike.clear();
        }
        (is_admitted, suppressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_differing_only_in_numbers_are_rate_limited() {
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
        // Warnings that differ in more than numbers are limited by their total number only.
        let names = (0..1000_u32)
            .map(|n| format!("process of the name {}", char::from_u32(0x4e00 + n).unwrap()));
        let admitted = names.filter(|text| limit.admits(text, later).0).count() as u64;
        assert_eq!(admitted, MAX_WARNINGS - MAX_ALIKE - 1);
        assert!(limit.alike.len() <= 1, "{limit:?}");
    }

    #[test]
    fn message_formats_as_one_text_or_json_line() {
        let saving = json!({"step": 3, "off-cpu": false, "why": "a \"b\"]"});
        let values = Map::from_iter([("saving".to_owned(), saving.clone())]);
        assert_eq!(
            as_text("tool", "less\nnow", &values),
            r#"tool: less\x0anow [saving off-cpu="false" step="3" why="a _b__"]"#
        );
        let now = Timestamp::from_millisecond(1_500).unwrap();
        let line = as_json("tool", Level::Info, "less\n\u{1b}", &values, now);
        assert_eq!(line.lines().count(), 1);
        assert!(!line.contains('\u{1b}'));
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["time"], "1970-01-01T00:00:01.500Z");
        assert_eq!((&read["level"], &read["message"]), (&json!("info"), &json!("less\n\u{1b}")));
        assert_eq!(read["saving"], saving);
    }
}
