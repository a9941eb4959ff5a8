//! Names of methods and classes in the form of class files, as recordings contain them.

use crate::{
    names::java::{descriptor, internal_name},
    stack::{Frame, Kind},
};

/// Modifier of native methods (JVMS 4.6).
pub(super) const NATIVE_MODIFIER: u64 = 0x100;

/// Descriptors of functions that are not Java methods, as async-profiler writes them.
const NATIVE: &str = "()L;";
const KERNEL: &str = "(Lk;)L;";

/// Descriptor of Java methods whose parameters are unknown. Readers show it as `(...)` or `()`.
const UNKNOWN_PARAMETERS: &str = "(L...;)V";

/// Name of a method, or of a function that is shown as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MethodName {
    /// Class of a Java method; file of a native function.
    pub(super) class: String,
    /// The method.
    pub(super) name: String,
    /// Its parameters. The result type is never known, and therefore `void`.
    pub(super) descriptor: String,
    /// Whether it is not a Java method.
    pub(super) is_native: bool,
}

impl MethodName {
    /// Returns the method or function of a frame.
    pub(super) fn of(frame: &Frame) -> Self {
        if frame.is_java() {
            return Self::of_java(&frame.name);
        }
        let (class, descriptor) = match frame.kind {
            Kind::Kernel => ("kernel", KERNEL),
            Kind::Stub => ("stub", NATIVE),
            // Names that begin with a bracket, such as `[vdso]`, would be those of arrays.
            _ => (frame.module.as_deref().unwrap_or_default().trim_matches(['[', ']']), NATIVE),
        };
        Self {
            class: class.to_owned(),
            name: frame.name.to_string(),
            descriptor: descriptor.to_owned(),
            is_native: true,
        }
    }

    /// Returns a method named like `java.lang.String.indexOf(int)` or, without parameters,
    /// `java.lang.String.indexOf`.
    pub(super) fn of_java(name: &str) -> Self {
        let with_parameters = name.ends_with(')').then(|| name.split_once('(')).flatten();
        let (path, descriptor) = match with_parameters {
            Some((path, parameters)) => (path, descriptor(parameters.trim_end_matches(')'))),
            None => (name, UNKNOWN_PARAMETERS.to_owned()),
        };
        let (class, method) = path.rsplit_once('.').unwrap_or(("", path));
        let class = class.trim_start_matches('[').replace('.', "/");
        Self { class, name: method.to_owned(), descriptor, is_native: false }
    }
}

/// Returns the class file name of a class in Java syntax. Placeholders such as `[other]` lose their brackets, which would
/// make them arrays.
pub(super) fn class_name(class: &str) -> String {
    match class.strip_prefix('[') {
        Some(placeholder) => placeholder.trim_matches(['[', ']']).to_owned(),
        None => internal_name(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_names_are_split_into_class_method_and_descriptor() {
        let parts = |name: &str| {
            let MethodName { class, name, descriptor, .. } = MethodName::of_java(name);
            [class, name, descriptor].join(" ")
        };
        assert_eq!(parts("java.lang.String.<init>"), "java/lang/String <init> (L...;)V");
        assert_eq!(parts("a.B.c(int, a.D[])"), "a/B c (I[La/D;)V");
        assert_eq!(parts("a.B.c()"), "a/B c ()V");
        assert_eq!(parts("run"), " run (L...;)V");
        assert_eq!(parts("[x].run"), "x] run (L...;)V");
        assert_eq!(["byte[]", "[others]", "a.B"].map(class_name), ["[B", "others", "a/B"]);
    }
}
