//! Words to the person at the terminal, apart from the results.

use std::io::Write;

/// Writes a line to stderr, behind the tool's name; a closed stderr is no reason to fail.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "javagc: {text}");
}
