//! The stacks of the largest classes as text, below the table.

use libjvmprobe::{
    render::{
        stack::StackFrame,
        units::{bytes, percent},
    },
    stack::Frame,
    take::allocations::{books::Row, split::Part, stacks::Stacks},
};

use crate::report::cut;

/// Of so many classes, stacks are shown.
const CLASSES: usize = 5;
/// So many of each.
const STACKS: usize = 3;
/// So many frames of each, the innermost ones.
const FRAMES: usize = 10;

/// The lines for the first of some rows.
pub fn lines(rows: &[&Row], stacks: &Stacks) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| !row.parts.is_empty()).take(CLASSES) {
        let class = &row.class;
        let thread = class.thread.as_ref().map_or(String::new(), |name| format!(" in {name}"));
        lines.push(format!("{}{thread}, {}, from:", cut(&class.class), bytes(class.bytes)));
        for part in row.parts.iter().take(STACKS) {
            let share = part.bytes as f64 / row.class.bytes.max(1) as f64;
            lines.push(format!("  {} {:>10}", percent(share, 1.0), bytes(part.bytes)));
            lines.extend(frames(part, stacks));
        }
        let hidden = row.parts.get(STACKS..).unwrap_or_default();
        if !hidden.is_empty() {
            let sum = hidden.iter().map(|part| part.bytes).sum();
            lines.push(format!("  {} more stacks with {}", hidden.len(), bytes(sum)));
        }
    }
    lines
}

/// What called the Java code is left out: it tells little.
fn frames(part: &Part, stacks: &Stacks) -> Vec<String> {
    let frames = stacks.frames(part.stack);
    let java = frames.iter().rposition(Frame::is_java).map_or(frames.len(), |last| last + 1);
    let mut lines: Vec<_> = frames.iter().take(java.min(FRAMES)).map(|f| at(&f.into())).collect();
    if java > FRAMES {
        lines.push(format!("      ... {} more", java - FRAMES));
    }
    lines
}

/// As Java prints stacks.
pub fn at(frame: &StackFrame) -> String {
    format!("      at {frame}")
}
