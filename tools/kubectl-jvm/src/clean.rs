//! Escapes text of the cluster before it reaches the user's terminal, and prints messages.
//!
//! Whoever may write an object of the cluster, or controls a node, chooses this text. A control character could move
//! the cursor or start a new line, and an invisible one could make a name look like another. libjvmprobe has the same
//! rules for text of targets.

use std::{
    fmt::Write as _,
    io::{self, BufRead, BufReader, Read, Write},
};

/// Maximum number of characters of a quoted value.
const MAX_QUOTED: usize = 100;
/// Maximum number of characters of a message.
const MAX_MESSAGE: usize = 4000;
/// Maximum size of a line in bytes. A longer line is processed in pieces.
const MAX_LINE: u64 = 64 << 10;

/// Returns whether a character is a control character, is invisible, or changes how the text around it is shown.
/// Source: Unicode, DerivedCoreProperties.txt, `Default_Ignorable_Code_Point`; in addition, line and paragraph
/// separators, characters that set the direction of text, and interlinear annotations.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

fn escape(text: &str, is_allowed: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        // Writing to a String does not fail.
        let _ = match u32::from(c) {
            _ if is_allowed(c) || !is_harmful(c) => clean.write_char(c),
            byte @ ..=0xff => write!(clean, "\\x{byte:02x}"),
            code => write!(clean, "\\u{{{code:x}}}"),
        };
    }
    clean
}

/// Escapes harmful characters, including line breaks.
pub(crate) fn line(text: &str) -> String {
    escape(text, |_| false)
}

/// Returns a value in quotes, escaped and truncated.
pub(crate) fn quote(text: &str) -> String {
    let short: String = text.chars().take(MAX_QUOTED).collect();
    let rest = if short.len() < text.len() { "..." } else { "" };
    format!("\"{}{rest}\"", line(&short))
}

/// Prints a message on standard error. Nobody could read an error about that.
pub(crate) fn say(text: &str) {
    let short: String = text.chars().take(MAX_MESSAGE).collect();
    let _ = writeln!(io::stderr(), "kubectl-jvm: {}", line(&short));
}

/// Prints text of kubectl on standard error. Its line breaks and tabs stay.
pub(crate) fn print(text: &str) {
    let _ = write!(io::stderr(), "{}", escape(text, |c| c == '\n' || c == '\t'));
}

/// Copies text to a terminal until its end.
pub(crate) fn copy(from: impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut from = BufReader::new(from);
    while let Some(line) = next_line(&mut from)? {
        let text = String::from_utf8_lossy(&line);
        to.write_all(escape(&text, |c| c == '\n' || c == '\t').as_bytes())?;
        to.flush()?;
    }
    Ok(())
}

/// Reads a line with its line break, or a piece of a line that is too long; `None` at the end.
pub(crate) fn next_line(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let size = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok((size > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_characters_are_escaped() {
        assert_eq!(
            line("a\r\n\x1b[2J\0\u{9b}\u{202e}ä"),
            "a\\x0d\\x0a\\x1b[2J\\x00\\x9b\\u{202e}ä"
        );
        assert_eq!(quote("a\nb"), "\"a\\x0ab\"");
        assert_eq!(quote(&"ä".repeat(1 << 20)), format!("\"{}...\"", "ä".repeat(MAX_QUOTED)));
    }

    #[test]
    fn long_lines_are_copied_in_pieces() {
        let text = format!("{}\x1b\nb\tc", "x".repeat(200_000));
        let mut copied = Vec::new();
        copy(text.as_bytes(), &mut copied).unwrap();
        assert_eq!(String::from_utf8(copied).unwrap(), text.replace('\x1b', "\\x1b"));
    }
}
