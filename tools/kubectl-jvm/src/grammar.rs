//! Grammars of the values that the cluster stores. A value that reaches a command line, a selector or a manifest has
//! one of these types, so none of them can be an option, a line, a path or a part of another field.

use std::fmt;

use anyhow::{Result, bail};

use crate::clean::quote;

/// Declares a type of texts that match a grammar.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $expected:literal, $matches:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(String);

        impl $name {
            /// Checks a value of the field `field`.
            ///
            /// # Errors
            /// A message with the field and the value, if the value does not match the grammar.
            pub(crate) fn new(field: &str, text: &str) -> Result<Self> {
                if !$matches(text) {
                    bail!("{field} is {}, but expected {}", quote(text), $expected);
                }
                Ok(Self(text.to_owned()))
            }

            /// Parses a value of the command line.
            ///
            /// # Errors
            /// The expected grammar.
            #[allow(dead_code, reason = "some values cannot be given on the command line")]
            pub(crate) fn parse(text: &str) -> Result<Self, String> {
                if $matches(text) { Ok(Self(text.to_owned())) } else { Err(concat!("expected ", $expected).into()) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

texts! {
    /// Name of a namespace.
    Namespace: "a DNS label (a-z, 0-9 and -)", is_dns_label;
    /// Name of a pod or of a workload.
    ObjectName: "a DNS subdomain (a-z, 0-9, - and .)", is_dns_subdomain;
    /// Name of a node.
    NodeName: "a DNS subdomain (a-z, 0-9, - and .)", is_dns_subdomain;
    /// Name of a container.
    ContainerName: "a DNS label (a-z, 0-9 and -)", is_dns_label;
    /// ID of a container, without the runtime. The tools accept IDs of at least 12 digits.
    ContainerId: "RUNTIME://ID with an ID of 12 to 128 hexadecimal digits",
        |text: &str| (12..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    /// UID of a pod, or the hash that a static pod has instead.
    Uid: "hexadecimal digits and dashes",
        |text: &str| {
            let is_digit = |byte: u8| byte.is_ascii_hexdigit();
            text.len() <= 64 && consists_of(text, is_digit, |byte| is_digit(byte) || byte == b'-')
        };
    /// Key of a label.
    LabelKey: "the key of a label", is_label_key;
    /// Value of a label.
    LabelValue: "the value of a label", |text: &str| text.is_empty() || is_qualified_name(text);
}

impl ContainerId {
    /// Checks a value of the form `containerd://ID`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn after_runtime(field: &str, text: &str) -> Result<Self> {
        match text.split_once("://") {
            Some((_, id)) => Self::new(field, id),
            None => Self::new(field, text),
        }
    }
}

/// Returns whether all bytes are `is_inner` ones, and the first and last one are `is_outer` ones.
fn consists_of(text: &str, is_outer: impl Fn(u8) -> bool, is_inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|byte| is_outer(*byte))
        && bytes.last().is_some_and(|byte| is_outer(*byte))
        && bytes.iter().all(|byte| is_inner(*byte))
}

fn is_dns_part(text: &str) -> bool {
    let is_outer = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    consists_of(text, is_outer, |byte| is_outer(byte) || byte == b'-')
}

/// RFC 1123, as Kubernetes checks it.
fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_part(text)
}

/// RFC 1123, as Kubernetes checks it, which does not limit the parts.
fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_part)
}

fn is_qualified_name(text: &str) -> bool {
    let is_outer = |byte: u8| byte.is_ascii_alphanumeric();
    text.len() <= 63 && consists_of(text, is_outer, |byte| is_outer(byte) || b"-_.".contains(&byte))
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_qualified_name(name),
        None => is_qualified_name(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_cluster_match() {
        for name in ["a", "0", "node-1", "x".repeat(63).as_str()] {
            assert!(Namespace::parse(name).is_ok() && ContainerName::parse(name).is_ok(), "{name}");
        }
        for name in ["ip-10-0-0-1.eu-central-1.compute.internal", &"x".repeat(253)] {
            assert!(NodeName::parse(name).is_ok() && ObjectName::parse(name).is_ok(), "{name}");
        }
        let id = "ab".repeat(32);
        for text in [format!("containerd://{id}"), format!("cri-o://{id}"), id.clone()] {
            assert_eq!(ContainerId::after_runtime("x", &text).unwrap().to_string(), id);
        }
        for uid in ["0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f", "d3b07384d113edec49eaa6238ad5ff00"] {
            assert!(Uid::parse(uid).is_ok(), "{uid}");
        }
        for key in ["app", "app.kubernetes.io/name", "batch.kubernetes.io/controller-uid", "A_b"] {
            assert!(LabelKey::parse(key).is_ok(), "{key}");
        }
        assert!(LabelValue::parse("").is_ok() && LabelValue::parse("v1.2_3").is_ok());
    }

    #[test]
    fn hostile_values_do_not_match() {
        let long = "a".repeat(1 << 20);
        for text in [
            "",
            "a\n",
            "\na",
            "a\nnode b",
            "a\r",
            "a\0",
            "--flag",
            "-f",
            "a-",
            "../a",
            "a/b",
            "a;b",
            "a b",
            "\"",
            "'",
            "a: b",
            "a,b",
            "a=b",
            "ä",
            "a\u{2028}",
            "..",
            ".",
            ".a",
            "a..b",
            "A",
            "$(a)",
            "`a`",
            "{a}",
            &long,
        ] {
            assert!(
                Namespace::parse(text).is_err() && ContainerName::parse(text).is_err(),
                "{text:?}"
            );
            assert!(NodeName::parse(text).is_err() && ObjectName::parse(text).is_err(), "{text:?}");
            assert!(ContainerId::after_runtime("x", text).is_err(), "{text:?}");
            // Some of them are values of other fields.
            assert!(text == "A" || Uid::parse(text).is_err(), "{text:?}");
            let is_label = ["A", "a..b", ""].contains(&text);
            assert!(is_label || LabelValue::parse(text).is_err(), "{text:?}");
            let is_key = ["A", "a..b", "a/b"].contains(&text);
            assert!(is_key || LabelKey::parse(text).is_err(), "{text:?}");
        }
        for text in ["containerd://", "containerd://abc", "://a\nb", "x://../../a", "a.b"] {
            assert!(ContainerId::after_runtime("x", text).is_err(), "{text:?}");
        }
        let error = NodeName::new("spec.nodeName", "a\n\x1b").unwrap_err().to_string();
        assert_eq!(
            error,
            "spec.nodeName is \"a\\x0a\\x1b\", but expected a DNS subdomain (a-z, 0-9, - and .)"
        );
    }
}
