//! Words to the person at the terminal, apart from the results.

/// Writes a line to stderr, behind the tool's name.
pub fn note(text: &str) {
    libjvmprobe::cli::note("javaobjnew", text);
}
