//! A stack frame in JSON lines and text.

use std::fmt;

use serde::Serialize;

use crate::stack::Frame;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackFrame {
    /// Name of the method or function: `java.lang.String.concat`, `JavaCalls::call_helper`, `[unsampled]`.
    pub(crate) method: String,
    /// Source file, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// Source line, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
}

impl From<&Frame> for StackFrame {
    fn from(frame: &Frame) -> Self {
        Self {
            method: frame.name.to_string(),
            file: frame.file.as_ref().map(ToString::to_string),
            line: (frame.line > 0).then_some(frame.line),
        }
    }
}

/// In the format of Java's stack traces.
impl fmt::Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{} ({file}:{line})", self.method),
            (Some(file), None) => write!(f, "{} ({file})", self.method),
            _ => f.write_str(&self.method),
        }
    }
}
