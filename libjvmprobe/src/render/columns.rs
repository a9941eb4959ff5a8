//! Text that keeps its layout, whatever names it contains.
//!
//! Each character counts as one column. This is exact for the names of VM operations, and wrong by at most a
//! few columns for other names.

/// Maximum width of a line, so that terminals do not wrap it. Only a long name makes a line wider.
pub(crate) const WIDTH: usize = 100;

/// Fits a name into a column: a wider one is cut at its end, with an ellipsis.
pub fn fit(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.into();
    }
    name.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Breaks a text into lines if it is wider than `WIDTH`. A line is broken after the last `; ` that fits; if
/// none fits, after the last `, `. All lines but the first are indented by two spaces.
pub fn wrap(text: &str) -> String {
    let mut lines = String::new();
    let mut rest = text;
    let mut line_width = WIDTH;
    while let Some((end, _)) = rest.char_indices().nth(line_width) {
        let head = &rest[..end];
        // Without a separator in this line, the rest of the text is not broken.
        let Some(at) = head.rfind("; ").or_else(|| head.rfind(", ")) else {
            break;
        };
        lines.push_str(&rest[..=at]);
        lines.push_str("\n  ");
        rest = &rest[at + 2..];
        line_width = WIDTH - 2;
    }
    lines + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_wider_than_its_column_is_truncated() {
        assert_eq!(fit("G1CollectFull", 28), "G1CollectFull");
        assert_eq!(fit("CleanClassLoaderDataMetaspaces", 28), "CleanClassLoaderDataMetaspa…");
        assert_eq!(fit("äöü", 2), "ä…");
    }

    #[test]
    fn long_sentences_wrap_at_semicolons_before_commas() {
        assert_eq!(wrap("a, b; c"), "a, b; c");
        let long = format!("{}; {}, {}", "a".repeat(60), "b".repeat(30), "c".repeat(30));
        let broken = format!("{};\n  {}, {}", "a".repeat(60), "b".repeat(30), "c".repeat(30));
        assert_eq!(wrap(&long), broken);
        assert_eq!(wrap(&"x".repeat(200)), "x".repeat(200));
    }

    proptest! {
        #[test]
        fn wrap_retains_words_and_fit_respects_width(text in "[a-zä,; ]{0,400}", width in 1..50_usize) {
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            prop_assert_eq!(words(&wrap(&text)), words(&text));
            prop_assert!(fit(&text, width).chars().count() <= width);
        }
    }
}
