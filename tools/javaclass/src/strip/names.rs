//! Finds the classes of a jar that a text names.

use std::collections::HashMap;

/// Maximum number of positions in a word at which a class name is looked up. A descriptor may have
/// primitive types directly before a class name, so a name may begin after any `L`.
const MAX_BEGINNINGS: usize = 64;

/// The classes of a jar by name, with slashes instead of dots.
#[derive(Debug, Default)]
pub struct Names {
    classes: HashMap<String, usize>,
    longest: usize,
}

impl Names {
    /// Adds a class by its name with dots, and returns its index; an equal name has an equal index.
    pub fn add(&mut self, name: &str) -> usize {
        self.longest = self.longest.max(name.len());
        let next = self.classes.len();
        *self.classes.entry(name.replace('.', "/")).or_insert(next)
    }

    /// Calls `found` for each class that a text names: in the form of class files, in a descriptor or
    /// signature, or in source form. Every possible match counts.
    pub fn find_in_text(&self, text: &[u8], mut found: impl FnMut(usize)) {
        let text = String::from_utf8_lossy(text);
        let is_part = |c: char| c.is_alphanumeric() || "_$./-".contains(c);
        for word in text.split(|c| !is_part(c)) {
            let word = word.trim_matches(['.', '/']).replace('.', "/");
            let word = word.strip_suffix("/class").unwrap_or(&word);
            if word.len() <= self.longest
                && let Some(&class) = self.classes.get(word)
            {
                found(class);
            }
            // `(ILa/B;)V`: the text after an L may be a class.
            for (at, _) in word.match_indices('L').take(MAX_BEGINNINGS) {
                let name = word.get(at + 1..).unwrap_or_default();
                if name.len() <= self.longest
                    && let Some(&class) = self.classes.get(name)
                {
                    found(class);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let mut names = Names::default();
        for name in ["a.B", "a.B$C", "Main", "a.Long"] {
            names.add(name);
        }
        let mut found = Vec::new();
        names.find_in_text(text.as_bytes(), |class| found.push(class));
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn class_names_are_found_in_every_notation() {
        for (text, expected) in [
            ("a/B", &[0][..]),
            ("a.B", &[0]),
            ("[[La/B$C;", &[1]),
            ("(ILa/B;J[La/Long;)LMain;", &[0, 2, 3]),
            ("Ljava/util/Map<La/B;-La/B$C;>;", &[0, 1]),
            ("java/util/Map<+La/B$C;TK;>", &[1]),
            ("Main-Class: Main\r\n", &[2]),
            ("<bean class=\"a.B$C\"/>", &[1]),
            ("com.x=a.B,a.Long # see a.B.", &[0, 3]),
            ("/a/B.class", &[0]),
            ("a/B.class", &[0]),
            ("a.Bx b.a.B", &[]),
            ("", &[]),
        ] {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn random_texts_cause_no_panic(text in "[L/.;a$\\PC]{0,300}") {
            let _ = found(&text);
        }
    }
}
