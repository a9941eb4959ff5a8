//! Lines that keep their shape, whatever stands in them.
//!
//! A character is taken for a column, which is true of what JVMs call their operations and
//! wrong at most by a few columns elsewhere.

/// How wide a line is that nobody's terminal breaks, where names allow.
pub(crate) const WIDTH: usize = 100;

/// A name for a column: cut at its end, with an ellipsis, where it is wider.
pub fn fit(name: &str, width: usize) -> String {
    if name.chars().count() <= width {
        return name.into();
    }
    name.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A sentence of parts that are set apart by `; ` or `, `, broken between them where it is
/// wider than `WIDTH`. Further lines are indented by two blanks.
pub fn wrap(text: &str) -> String {
    let mut lines = String::new();
    let mut rest = text;
    let mut room = WIDTH;
    while let Some((end, _)) = rest.char_indices().nth(room) {
        let head = &rest[..end];
        // A part that is wider than all the room stays whole.
        let Some(at) = head.rfind("; ").or_else(|| head.rfind(", ")) else {
            break;
        };
        lines.push_str(&rest[..=at]);
        lines.push_str("\n  ");
        rest = &rest[at + 2..];
        room = WIDTH - 2;
    }
    lines + rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_too_wide_is_cut() {
        assert_eq!(fit("G1CollectFull", 28), "G1CollectFull");
        assert_eq!(fit("CleanClassLoaderDataMetaspaces", 28), "CleanClassLoaderDataMetaspa…");
        assert_eq!(fit("äöü", 2), "ä…");
    }

    #[test]
    fn sentences_are_broken_between_parts() {
        assert_eq!(wrap("a, b; c"), "a, b; c");
        let long = format!("{}; {}, {}", "a".repeat(60), "b".repeat(30), "c".repeat(30));
        let broken = format!("{};\n  {}, {}", "a".repeat(60), "b".repeat(30), "c".repeat(30));
        assert_eq!(wrap(&long), broken);
        assert_eq!(wrap(&"x".repeat(200)), "x".repeat(200));
    }

    proptest! {
        #[test]
        fn nothing_is_lost(text in "[a-zä,; ]{0,400}", width in 1..50_usize) {
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            prop_assert_eq!(words(&wrap(&text)), words(&text));
            prop_assert!(fit(&text, width).chars().count() <= width);
        }
    }
}
