//! Parser for folded stacks.

/// One line: a stack and its count.
#[derive(Clone, Debug)]
pub struct Line {
    /// Outermost first; the command's name comes first, then perhaps the thread's.
    pub frames: Vec<String>,
    /// Number of samples.
    pub count: u64,
}

impl Line {
    /// Whether a frame has exactly this name.
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame == name)
    }
}

/// Reads folded stacks.
///
/// # Panics
/// If a line is not a folded stack.
pub fn parse(text: &str) -> Vec<Line> {
    let parse = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no count: {line}"));
        let frames = stack.split(';').map(str::to_owned).collect();
        Line { frames, count: count.parse().unwrap_or_else(|e| panic!("{e}: {line}")) }
    };
    text.lines().map(parse).collect()
}

/// Returns the number of samples of these lines.
pub fn total<'a>(lines: impl IntoIterator<Item = &'a Line>) -> u64 {
    lines.into_iter().map(|line| line.count).sum()
}
