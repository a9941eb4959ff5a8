//! Selection of JVMs on the command line.

use std::{
    fmt::{self, Display, Formatter},
    str::FromStr,
};

use regex::Regex;

use crate::window::Identity;

/// Attributes that a text without a key is compared with, in addition to the name.
const MATCHED_ATTRIBUTES: [&str; 4] = ["jvm.main", "container.id", "k8s.pod.uid", "systemd.unit"];

/// A selection of JVMs.
#[derive(Clone, Debug)]
pub enum JvmFilter {
    /// PID: `1234`.
    Pid(u32),
    /// Attribute, and regular expression for its value: `k8s.namespace.name=^prod$`.
    Attribute(String, Regex),
    /// A regular expression for the name, main class or jar, container, pod or unit: `shop`.
    Name(Regex),
}

impl FromStr for JvmFilter {
    type Err = regex::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_key = |key: &str| {
            key.contains('.')
                && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        match text.split_once('=') {
            Some((key, value)) if is_key(key) => Ok(Self::Attribute(key.into(), value.parse()?)),
            _ => match text.parse() {
                Ok(pid) => Ok(Self::Pid(pid)),
                Err(_) => text.parse().map(Self::Name),
            },
        }
    }
}

impl JvmFilter {
    /// Returns whether a JVM is selected.
    pub fn includes(&self, identity: &Identity) -> bool {
        let value = |key: &str| identity.attributes.get(key);
        match self {
            Self::Pid(pid) => identity.pid == *pid,
            Self::Attribute(key, regex) => value(key).is_some_and(|value| regex.is_match(value)),
            Self::Name(regex) => {
                let compared = MATCHED_ATTRIBUTES.iter().filter_map(|key| value(key));
                regex.is_match(&identity.name)
                    || compared.into_iter().any(|value| regex.is_match(value))
            }
        }
    }
}

impl Display for JvmFilter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Attribute(key, regex) => write!(f, "{key}={regex}"),
            Self::Name(regex) => write!(f, "{regex}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jvms_are_selected_by_pid_attribute_or_name() {
        let attributes = [
            ("jvm.main", "/srv/shop.jar"),
            ("k8s.namespace.name", "prod"),
            ("container.id", "1234abcd"),
        ];
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let identity = Identity { pid: 77, started_ns: 1, name: "shop".into(), attributes };
        for (text, is_included) in [
            ("77", true),
            // A number is a PID, and matches no part of other texts.
            ("7", false),
            ("1234", false),
            ("^shop$", true),
            ("shop.jar", true),
            ("1234a", true),
            // The namespace is compared only if the filter names the attribute, as in the next line.
            ("prod", false),
            ("k8s.namespace.name=^pr", true),
            ("k8s.namespace.name=shop", false),
            ("k8s.pod.name=", false),
            ("shop=", false),
        ] {
            let filter: JvmFilter = text.parse().unwrap();
            assert_eq!(
                (filter.includes(&identity), filter.to_string()),
                (is_included, text.to_owned())
            );
        }
        assert!("(".parse::<JvmFilter>().is_err() && "a.b=(".parse::<JvmFilter>().is_err());
    }
}
