//! Where a class comes from, as a person looks for it.

use libjvmprobe::hotspot::loaded::LoadedClass;
use serde::Serialize;

/// What kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A jar, perhaps within another.
    Jar,
    /// A folder of class files.
    Directory,
    /// A module.
    Module,
    /// Another URL.
    Url,
    /// What is appended to the class path of the boot loader.
    Boot,
    /// Made while the program ran: proxies, accessors, lambdas.
    Generated,
    /// It cannot be told.
    Unknown,
}

/// Where a class comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// What kind of place.
    pub kind: Kind,
    /// Its path, the module's name, or a word in brackets.
    pub name: String,
}

impl Origin {
    /// Of a class. `is_boot` says that the boot loader has loaded it.
    pub fn of(class: &LoadedClass, is_boot: bool) -> Self {
        let named = |kind, name: &str| Self { kind, name: name.into() };
        if class.is_hidden {
            return named(Kind::Generated, "(hidden)");
        }
        match (class.source.as_deref(), class.module.as_deref()) {
            (Some(url), module) => Self::of_url(url, module),
            (None, Some(module)) => match class.module_location.as_deref() {
                // Modules that are made for proxies are nowhere.
                None if module.starts_with("jdk.proxy") => named(Kind::Generated, "(generated)"),
                _ => named(Kind::Module, module),
            },
            (None, None) if is_boot => named(Kind::Boot, "(boot class path)"),
            (None, None) if class.has_source_read => named(Kind::Generated, "(generated)"),
            (None, None) => named(Kind::Unknown, "(unknown)"),
        }
    }

    fn of_url(url: &str, module: Option<&str>) -> Self {
        let named = |kind, name: &str| Self { kind, name: name.into() };
        if let Some(inside) = url.strip_prefix("jrt:/") {
            return named(Kind::Module, module.unwrap_or(inside));
        }
        // Spring Boot's two spellings: `jar:file:/app.jar!/BOOT-INF/lib/x.jar!/` and
        // `jar:nested:/app.jar/!BOOT-INF/lib/x.jar!/`.
        if let Some(inner) = url.strip_prefix("jar:") {
            let path = ["nested:", "file:"].iter().find_map(|scheme| inner.strip_prefix(scheme));
            if let Some(path) = path {
                let path = path.trim_end_matches("!/").replace("/!", "!/");
                return named(Kind::Jar, &decoded(&path));
            }
        }
        match url.strip_prefix("file:").map(decoded) {
            // Both `file:/x` and `file:///x` are in use.
            Some(path) => {
                let path = path.strip_prefix("//").map_or(path.as_str(), |path| path).to_owned();
                let kind = if path.ends_with('/') { Kind::Directory } else { Kind::Jar };
                Self { kind, name: path }
            }
            None => named(Kind::Url, url),
        }
    }
}

/// A URL's path as the file system has it: `%20` is a blank.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let hex = |digits: &[u8; 2]| {
            let text = std::str::from_utf8(digits).ok()?;
            // from_str_radix() would take a sign.
            text.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())?;
            u8::from_str_radix(text, 16).ok()
        };
        match (byte, behind.first_chunk().and_then(hex)) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = behind.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The package of a class; none for those in no package.
pub fn package(class: &str) -> Option<&str> {
    // Of `a.B$$Lambda`, and of arrays, it is the same.
    class.rsplit_once('.').map(|(package, _)| package)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(url: &str) -> (Kind, String) {
        let Origin { kind, name } = Origin::of_url(url, None);
        (kind, name)
    }

    #[test]
    fn urls_become_places() {
        for (url, kind, name) in [
            ("file:/opt/app.jar", Kind::Jar, "/opt/app.jar"),
            ("file:///opt/app.jar", Kind::Jar, "/opt/app.jar"),
            ("file:/opt/my%20app/", Kind::Directory, "/opt/my app/"),
            ("jrt:/jdk.compiler", Kind::Module, "jdk.compiler"),
            ("jar:file:/a.jar!/BOOT-INF/lib/x.jar!/", Kind::Jar, "/a.jar!/BOOT-INF/lib/x.jar"),
            ("jar:nested:/a.jar/!BOOT-INF/lib/x.jar!/", Kind::Jar, "/a.jar!/BOOT-INF/lib/x.jar"),
            ("http://host/x.jar", Kind::Url, "http://host/x.jar"),
            ("file:/100%", Kind::Jar, "/100%"),
            ("file:/a%+1", Kind::Jar, "/a%+1"),
        ] {
            assert_eq!(of(url), (kind, name.into()), "{url}");
        }
    }

    #[test]
    fn packages_are_what_is_before_the_last_dot() {
        assert_eq!(package("java.lang.String"), Some("java.lang"));
        assert_eq!(package("Main"), None);
    }

    proptest! {
        #[test]
        fn hostile_urls_do_no_harm(url in "(file:|jar:|jrt:/)?[%!/a-f0-9\\PC]{0,60}") {
            let _ = Origin::of_url(&url, None);
        }
    }
}
