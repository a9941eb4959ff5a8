//! Recordings of JDK Flight Recorder, as the JDK's own `jfr` command reads them.

use std::{collections::BTreeMap, path::Path, process::Command};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::runtimes::Runtime;

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its type, for example `jdk.ExecutionSample`.
    pub kind: String,
    values: Value,
}

impl Event {
    /// Returns a field as text; empty if it has no value.
    pub fn text(&self, field: &str) -> &str {
        self.values[field].as_str().unwrap_or_default()
    }

    /// Returns a field that is a number.
    ///
    /// # Panics
    /// If it is none.
    pub fn number(&self, field: &str) -> u64 {
        self.values[field].as_u64().unwrap_or_else(|| panic!("{field}: {self:?}"))
    }

    /// Returns a field that is a `float`, as Rust prints it.
    ///
    /// # Panics
    /// If it is none.
    pub fn share(&self, field: &str) -> String {
        let value = self.values[field].as_f64().unwrap_or_else(|| panic!("{field}: {self:?}"));
        (value as f32).to_string()
    }

    /// Returns whether a field is `false`.
    pub fn is_false(&self, field: &str) -> bool {
        self.values[field].as_bool() == Some(false)
    }

    /// Returns a field that is a duration, in nanoseconds.
    ///
    /// # Panics
    /// If it is none.
    pub fn duration_ns(&self, field: &str) -> u64 {
        let duration: SignedDuration =
            self.text(field).parse().unwrap_or_else(|e| panic!("{field}: {e}: {self:?}"));
        u64::try_from(duration.as_nanos()).expect("it is not negative")
    }

    /// Returns the start in nanoseconds since 1970.
    ///
    /// # Panics
    /// If it has none.
    pub fn start_ns(&self) -> u64 {
        let time: Timestamp = self.text("startTime").parse().expect("a time");
        u64::try_from(time.as_nanosecond()).expect("after 1970")
    }

    /// Returns the name of a class, in the form of class files.
    pub fn class(&self, field: &str) -> &str {
        self.values[field]["name"].as_str().unwrap_or_default()
    }

    /// Returns a method as `CLASS.NAME`, with the class in the form of class files.
    pub fn method(&self, field: &str) -> String {
        let method = &self.values[field];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!("{}.{}", text(&method["type"]["name"]), text(&method["name"]))
    }

    /// Returns a field that is a boolean.
    ///
    /// # Panics
    /// If it is none.
    pub fn boolean(&self, field: &str) -> bool {
        self.values[field].as_bool().unwrap_or_else(|| panic!("{field}: {self:?}"))
    }

    /// Returns the name of a thread in the operating system; empty if it is unknown.
    pub fn thread(&self, field: &str) -> &str {
        self.values[field]["osName"].as_str().unwrap_or_default()
    }

    /// Returns the stack in the form of folded stacks, outermost first.
    pub fn folded(&self) -> String {
        let frames = self.values["stackTrace"]["frames"].as_array().map_or(&[][..], Vec::as_slice);
        frames.iter().rev().map(folded_frame).collect::<Vec<_>>().join(";")
    }

    /// Returns the source lines of the stack, outermost first; 0 if a line is unknown.
    pub fn lines(&self) -> Vec<u64> {
        let frames = self.values["stackTrace"]["frames"].as_array().map_or(&[][..], Vec::as_slice);
        frames.iter().rev().map(|frame| frame["lineNumber"].as_u64().unwrap_or(0)).collect()
    }
}

fn folded_frame(frame: &Value) -> String {
    let method = &frame["method"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&method["name"]).replace(';', ":");
    match frame["type"].as_str() {
        Some("Kernel") => name + "_[k]",
        Some("Native" | "C++") => name,
        _ => match text(&method["type"]["name"]).replace('/', ".") {
            class if class.is_empty() => name,
            class => format!("{class}.{name}"),
        },
    }
}

/// Returns the `jfr` command of a runtime.
fn command(runtime: &Runtime) -> Command {
    let mut command = Command::new(runtime.java.with_file_name("jfr"));
    // It runs for less than a second.
    command.args(["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]);
    command
}

/// Runs the `jfr` command of a runtime, and returns its output.
///
/// # Panics
/// If it rejects the file.
pub fn run(runtime: &Runtime, args: &[&str], file: &Path) -> String {
    let output = command(runtime).args(args).arg(file).output().expect("run jfr");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {text}{error}");
    text
}

/// Reads all events of a recording, in order of time.
///
/// # Panics
/// If `jfr` rejects the file.
pub fn read(runtime: &Runtime, file: &Path) -> Vec<Event> {
    // By default, only five frames of a stack are printed.
    let text = run(runtime, &["print", "--json", "--stack-depth", "5000"], file);
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    let Value::Array(events) = json["recording"]["events"].take() else { panic!("no events") };
    let event = |mut event: Value| Event {
        kind: event["type"].as_str().expect("a type").to_owned(),
        values: event["values"].take(),
    };
    events.into_iter().map(event).collect()
}

/// Returns the number of events of each type, as `jfr summary` counts them.
///
/// # Panics
/// If `jfr` rejects the file.
pub fn counts(runtime: &Runtime, file: &Path) -> BTreeMap<String, u64> {
    let text = run(runtime, &["summary"], file);
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, count) = (words.next()?, words.next()?.parse().ok()?);
        (name.contains('.') && count > 0).then(|| (name.to_owned(), count))
    };
    text.lines().filter_map(row).collect()
}
