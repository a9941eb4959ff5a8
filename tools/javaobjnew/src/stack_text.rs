//! Formats the stacks of the first classes as text below the table.

use libjvmprobe::{
    render::units::{bytes, percent},
    stack::{Frame, StackFrame},
    trace::allocations::{jvm_totals::Row, split::StackShare, stacks::Stacks},
};

use crate::report::cut;

/// Maximum number of classes whose stacks are shown.
const CLASSES: usize = 5;
/// Maximum number of stacks per class.
const STACKS: usize = 3;
/// Maximum number of frames per stack, counted from the innermost.
const FRAMES: usize = 10;

/// Returns the lines for the first rows that have stacks.
pub fn lines(rows: &[&Row], stacks: &Stacks) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| !row.parts.is_empty()).take(CLASSES) {
        let class = &row.class;
        let thread = class.thread.as_ref().map_or(String::new(), |name| format!(" in {name}"));
        lines.push(format!("{}{thread}, {}, from:", cut(&class.class), bytes(class.bytes)));
        let parts = stacks.without_spans(&row.parts);
        for part in parts.iter().take(STACKS) {
            let share = part.bytes as f64 / row.class.bytes.max(1) as f64;
            lines.push(format!("  {} {:>10}", percent(share, 1.0), bytes(part.bytes)));
            lines.extend(frames(part, stacks));
        }
        let hidden = parts.get(STACKS..).unwrap_or_default();
        if !hidden.is_empty() {
            let sum = hidden.iter().map(|part| part.bytes).sum();
            lines.push(format!("  {} more stacks with {}", hidden.len(), bytes(sum)));
        }
    }
    lines
}

/// Formats the frames of a stack, without the native frames outside the outermost Java frame, which
/// are of little interest.
fn frames(part: &StackShare, stacks: &Stacks) -> Vec<String> {
    let frames = stacks.frames(part.stack);
    let java = frames.iter().rposition(Frame::is_java).map_or(frames.len(), |last| last + 1);
    let mut lines: Vec<_> = frames.iter().take(java.min(FRAMES)).map(|f| at(&f.into())).collect();
    if java > FRAMES {
        lines.push(format!("      ... {} more", java - FRAMES));
    }
    lines
}

/// Formats a frame as in a Java stack trace.
pub fn at(frame: &StackFrame) -> String {
    format!("      at {frame}")
}
