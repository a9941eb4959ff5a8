//! The origin of a class, such as a jar or a module, under the name by which a user would look for it.

use libjvmprobe::hotspot::loaded::LoadedClass;
use percent_encoding::percent_decode_str;
use serde::Serialize;

/// Kind of an origin.
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
    /// The append path of the boot loader.
    Boot,
    /// Generated while the program ran: proxies, accessors, lambdas.
    Generated,
    /// It cannot be determined.
    Unknown,
}

/// Origin of a class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// Its kind.
    pub kind: Kind,
    /// Its path, the module's name, or a text in parentheses.
    pub name: String,
}

impl Origin {
    /// Determines the origin of a class. `is_boot` is whether the boot loader has loaded it.
    pub fn of(class: &LoadedClass, is_boot: bool) -> Self {
        let with_name = |kind, name: &str| Self { kind, name: name.into() };
        if class.is_hidden {
            return with_name(Kind::Generated, "(hidden)");
        }
        match (class.source.as_deref(), class.module.as_deref()) {
            (Some(url), module) => Self::of_url(url, module),
            (None, Some(module)) => match class.module_location.as_deref() {
                // Modules created for proxies have no location.
                None if module.starts_with("jdk.proxy") => {
                    with_name(Kind::Generated, "(generated)")
                }
                _ => with_name(Kind::Module, module),
            },
            (None, None) if is_boot => with_name(Kind::Boot, "(boot class path)"),
            (None, None) if class.has_source_read => with_name(Kind::Generated, "(generated)"),
            (None, None) => with_name(Kind::Unknown, "(unknown)"),
        }
    }

    fn of_url(url: &str, module: Option<&str>) -> Self {
        let with_name = |kind, name: &str| Self { kind, name: name.into() };
        if let Some(inside) = url.strip_prefix("jrt:/") {
            return with_name(Kind::Module, module.unwrap_or(inside));
        }
        // Spring Boot uses two forms: `jar:file:/app.jar!/BOOT-INF/lib/x.jar!/` and
        // `jar:nested:/app.jar/!BOOT-INF/lib/x.jar!/`.
        if let Some(inner) = url.strip_prefix("jar:") {
            let path = ["nested:", "file:"].iter().find_map(|scheme| inner.strip_prefix(scheme));
            if let Some(path) = path {
                let path = path.trim_end_matches("!/").replace("/!", "!/");
                return with_name(Kind::Jar, &decode_percent(&path));
            }
        }
        match url.strip_prefix("file:").map(decode_percent) {
            // Both `file:/x` and `file:///x` are in use.
            Some(path) => {
                let path = path.strip_prefix("//").map_or(path.as_str(), |path| path).to_owned();
                let kind = if path.ends_with('/') { Kind::Directory } else { Kind::Jar };
                Self { kind, name: path }
            }
            None => with_name(Kind::Url, url),
        }
    }
}

/// Decodes percent-encoding in a URL's path: `%20` is a space.
fn decode_percent(path: &str) -> String {
    percent_decode_str(path).decode_utf8_lossy().into_owned()
}

/// Returns the package of a class; `None` for the unnamed package.
pub fn package(class: &str) -> Option<&str> {
    // This works for `a.B$$Lambda` and for arrays, too.
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
    fn urls_convert_to_origins() {
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
    fn package_is_the_name_before_the_last_dot() {
        assert_eq!(package("java.lang.String"), Some("java.lang"));
        assert_eq!(package("Main"), None);
    }

    proptest! {
        #[test]
        fn random_urls_cause_no_panic(url in "(file:|jar:|jrt:/)?[%!/a-f0-9\\PC]{0,60}") {
            let _ = Origin::of_url(&url, None);
        }
    }
}
