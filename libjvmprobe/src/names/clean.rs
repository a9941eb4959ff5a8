//! Escapes harmful characters in foreign text. The owner of a target controls the text in the target's
//! memory, files and answers, and tools print this text on the terminal of their user.
//!
//! A control character could move the cursor, set the window's title or start a new line. A character that changes the
//! direction of text or is invisible could make a name look like another one. Each of these is replaced by a visible
//! escape such as `\x1b` or `\u{202e}`. All other characters, of any script, stay.

use std::{borrow::Cow, fmt::Write, sync::Arc};

/// Maximum size of a name in bytes. In practice, the name of a method with its parameter types is shorter.
/// Longer names are cut, because they would be repeated in every stack.
pub(crate) const MAX_NAME: usize = 8192;

/// Maximum size in bytes of the name of a class, a method or a source file. Generated names are shorter than 500 bytes.
pub(crate) const MAX_PART: usize = 1024;
/// Maximum size in bytes of a method's parameters. In practice they are shorter than 3,000 bytes.
pub(crate) const MAX_PARAMETERS: usize = 4096;
/// End of a text that was cut.
pub(crate) const CUT: char = '…';

/// Limits a text to `max` bytes. A text that was cut ends in [`CUT`].
pub(crate) fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let max = max.saturating_sub(CUT.len_utf8());
    let end = (0..=max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    Cow::Owned(format!("{}{CUT}", &text[..end]))
}

/// Returns whether a character is a control character, is invisible, or changes how the text around it is shown. Source: Unicode, DerivedCoreProperties.txt,
/// `Default_Ignorable_Code_Point`; in addition, line and paragraph separators, characters that set the direction of
/// text, and interlinear annotations.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes harmful characters in a part of a line. Cleaning a cleaned text changes nothing.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    replace(text, |clean, c| match u32::from(c) {
        byte @ ..=0xff => write!(clean, "\\x{byte:02x}"),
        code => write!(clean, "\\u{{{code:x}}}"),
    })
}

/// Escapes harmful characters in a name and limits its length.
pub(crate) fn name(text: &str) -> Cow<'_, str> {
    let clean = line(text);
    if clean.len() <= MAX_NAME {
        return clean;
    }
    let end = (0..=MAX_NAME).rev().find(|&at| clean.is_char_boundary(at)).unwrap_or(0);
    Cow::Owned(format!("{}...", &clean[..end]))
}

/// Cleans a shared name; the result is the same object if nothing changes.
pub(crate) fn shared(text: Arc<str>) -> Arc<str> {
    match name(&text) {
        Cow::Borrowed(_) => text,
        Cow::Owned(clean) => clean.into(),
    }
}

/// Escapes harmful characters in one line of JSON, where they can only occur in strings. Uses JSON's own escapes, so
/// parsers get the original text.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    replace(text, |clean, c| {
        c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(clean, "\\u{unit:04x}"))
    })
}

fn replace(text: &str, escape: impl Fn(&mut String, char) -> std::fmt::Result) -> Cow<'_, str> {
    // Nearly all texts are printable ASCII.
    if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) || !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) {
            // Writing to a String does not fail.
            let _ = escape(&mut clean, c);
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_and_formatting_characters_are_escaped() {
        for (text, clean) in [
            ("a.Main.run", "a.Main.run"),
            ("größe \u{1f600} 名前 \u{5e9}", "größe \u{1f600} 名前 \u{5e9}"),
            ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
            ("two\r\nlines\t", "two\\x0d\\x0alines\\x09"),
            ("\u{7f}\u{9b}31m", "\\x7f\\x9b31m"),
            ("ab\u{202e}cd\u{2066}\u{2028}", "ab\\u{202e}cd\\u{2066}\\u{2028}"),
            ("a\u{200b}b\u{feff}\u{e0041}", "a\\u{200b}b\\u{feff}\\u{e0041}"),
            ("", ""),
        ] {
            assert_eq!(line(text), clean);
            assert_eq!(name(text), clean);
        }
        assert!(matches!(line("größe"), Cow::Borrowed(_)));
    }

    #[test]
    fn long_name_is_truncated() {
        let long = name(&"ä\n".repeat(MAX_NAME)).into_owned();
        assert!(long.ends_with("...") && long.len() <= MAX_NAME + 3);
        assert_eq!(name(&long), long);
        let long: Arc<str> = "x".repeat(MAX_NAME + 1).into();
        assert_eq!(shared(long).len(), MAX_NAME + 3);
    }

    #[test]
    fn cut_text_is_marked_and_has_complete_characters() {
        assert_eq!(cut("größe", 7), "größe");
        for (max, shown) in [(6, "gr…"), (5, "gr…"), (3, "…")] {
            assert_eq!(cut("größe", max), shown);
            assert_eq!(cut(shown, max), shown);
        }
    }

    #[test]
    fn escaped_json_decodes_to_the_original_text() {
        let text = "\u{7f}\u{202e}\u{e0041}\n\x1b ä";
        let json = json(&serde_json::to_string(text).unwrap()).into_owned();
        assert!(!json.contains(is_harmful), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    proptest! {
        #[test]
        fn cleaned_text_has_no_harmful_characters(text in any::<String>()) {
            let clean = line(&text).into_owned();
            prop_assert!(!clean.contains(is_harmful));
            prop_assert_eq!(line(&clean), clean.clone());
            prop_assert!(!json(&text).contains(is_harmful));
        }
    }
}
