//! The lines of a list: classes, packages, methods.

use std::{fs::File, io::Read, path::Path, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};

use crate::origin::package;

/// Maximum number of lines and of bytes in a list.
const MAX_LINES: usize = 1_000_000;
const MAX_BYTES: u64 = 64 << 20;

/// A line of a list.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its text in the file.
    pub text: String,
    /// The class, package or method that it names.
    pub selector: Selector,
    /// The vulnerability to which it belongs: the last `[NAME]` above it.
    pub vulnerability: Option<Arc<str>>,
}

/// Reads a list.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let name = path.display();
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
    let mut file = file.take(MAX_BYTES + 1);
    let read = file.read_to_string(&mut text).with_context(|| format!("cannot read {name}"))?;
    if read as u64 > MAX_BYTES {
        bail!("{name} is too large for a list");
    }
    let mut lines = Vec::new();
    let mut vulnerability = None;
    for line in text.lines() {
        let text = line.trim();
        if let Some(named) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            vulnerability = Some(named.trim()).filter(|named| !named.is_empty()).map(Arc::from);
            continue;
        }
        let selector = Selector::parse(text).map_err(|why| anyhow!("{name}: {why}"))?;
        let line = |selector| Line {
            text: text.to_owned(),
            selector,
            vulnerability: vulnerability.clone(),
        };
        lines.extend(selector.map(line));
        if lines.len() > MAX_LINES {
            bail!("{name} has more than {MAX_LINES} lines");
        }
    }
    if lines.is_empty() {
        bail!("{name} has no entries");
    }
    Ok(lines)
}

/// The class, package or method that a line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A class, by its name.
    Class(String),
    /// All classes of a package and its subpackages.
    Package(String),
    /// A method of a class, perhaps with its descriptor.
    Method {
        /// The class.
        class: String,
        /// The method's name.
        name: String,
        /// Its descriptor; `None` for all methods of that name.
        descriptor: Option<String>,
    },
}

impl Selector {
    /// Parses a line; `None` for an empty line or a comment.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(line: &str) -> Result<Option<Self>, String> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        if line.contains(char::is_whitespace) {
            return Err(format!(
                "`{line}`: expected a class, `package.*` or `class#method` per line"
            ));
        }
        let (class, method) = match line.split_once('#') {
            Some((class, method)) => (class, Some(method)),
            None => (line, None),
        };
        let class = class.replace('/', ".");
        let class = class.strip_suffix(".class").unwrap_or(&class);
        let package = class.strip_suffix(".*").or_else(|| class.strip_suffix(".**"));
        let is_name = |name: &str| !name.is_empty() && !name.contains('*');
        match (package, method) {
            (Some(package), None) if is_name(package) => Ok(Some(Self::Package(package.into()))),
            (None, None) if is_name(class) => Ok(Some(Self::Class(class.into()))),
            (None, Some(method)) if is_name(class) && is_name(method) => {
                let (name, descriptor) = match method.find('(') {
                    Some(at) => method.split_at(at),
                    None => (method, ""),
                };
                let descriptor = Some(descriptor).filter(|d| !d.is_empty()).map(Into::into);
                Ok(Some(Self::Method { class: class.into(), name: name.into(), descriptor }))
            }
            _ => Err(format!("`{line}`: expected a class, `package.*` or `class#method` per line")),
        }
    }

    /// Whether the selector names the class, a package that contains it, or one of its methods.
    pub fn matches_class(&self, name: &str) -> bool {
        match self {
            Self::Class(class) | Self::Method { class, .. } => class == name,
            Self::Package(selector) => package(name).is_some_and(|package| {
                let below = package.strip_prefix(selector.as_str());
                below.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(line: &str) -> Selector {
        Selector::parse(line).unwrap().unwrap()
    }

    #[test]
    fn lines_parse_as_class_package_or_method() {
        assert!(parse("a.B").matches_class("a.B") && !parse("a.B").matches_class("a.B$C"));
        assert!(parse("a/B.class").matches_class("a.B"));
        let package = parse("a.b.*");
        assert!(package.matches_class("a.b.C") && package.matches_class("a.b.c.D"));
        assert!(
            !package.matches_class("a.bc.D")
                && !package.matches_class("a.C")
                && !package.matches_class("Main")
        );
        let method = parse("a.B#run(I)V");
        let expected = Selector::Method {
            class: "a.B".into(),
            name: "run".into(),
            descriptor: Some("(I)V".into()),
        };
        assert_eq!(method, expected);
        assert!(method.matches_class("a.B"));
        for nothing in ["", "  ", "# a comment"] {
            assert_eq!(Selector::parse(nothing), Ok(None));
        }
        for bad in ["a b", "*", "a.*#b", "#", "a#", "a*.b", "a.B#*"] {
            assert!(!matches!(Selector::parse(bad), Ok(Some(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn random_lines_cause_no_panic(line in "\\PC{0,40}", name in "\\PC{0,40}") {
            if let Ok(Some(selector)) = Selector::parse(&line) {
                let _ = selector.matches_class(&name);
            }
        }
    }
}
