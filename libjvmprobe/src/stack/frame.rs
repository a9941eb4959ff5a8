//! A named frame.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    names::{clean, code::SourceFrame},
    stack::name::shown,
};

/// Kind of code that a frame runs. Stored profiles have the position of a variant, so a new one goes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Kind {
    /// Compiled Java code.
    Java,
    /// Java code that was inlined into its caller.
    Inlined,
    /// The interpreter.
    Interpreted,
    /// Code that the JVM generated for itself: stubs, adapters.
    Stub,
    /// The JVM's own native code (libjvm.so).
    Jvm,
    /// Other native code.
    Native,
    /// The kernel.
    Kernel,
    /// No code, but the class of what was allocated: innermost in such stacks.
    Class,
    /// User code of which no name is known.
    Unknown,
}

/// One frame, named. Made by [`Frame::new`] and what follows it, whatever stands in it is
/// harmless.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What kind of code.
    pub kind: Kind,
    /// `java.lang.String.hashCode`, `vfs_read`, `[unknown libz.so+0x12]`.
    pub name: Arc<str>,
    /// The file that native code comes from, its last part: `libc.so.6`.
    pub module: Option<Arc<str>>,
    /// The source file, where it is known.
    pub file: Option<Arc<str>>,
    /// The line in it, 0 where it is unknown.
    pub line: u32,
}

impl Frame {
    /// A frame of which nothing but kind and name are known.
    pub fn new(kind: Kind, name: impl Into<Arc<str>>) -> Self {
        Self { kind, name: clean::shared(name.into()), module: None, file: None, line: 0 }
    }

    /// Returns this frame with the file that its native code comes from.
    pub fn of_module(self, module: &Arc<str>) -> Self {
        Self { module: Some(clean::shared(Arc::clone(module))), ..self }
    }

    /// Returns this frame with its source file, if it is known, and the line in it, or 0.
    pub fn at(self, file: Option<Arc<str>>, line: u32) -> Self {
        Self { file: file.map(clean::shared), line, ..self }
    }

    /// A method at a line of its source, with its parameters if wanted.
    pub(crate) fn of_source(source: &SourceFrame, kind: Kind, signatures: bool) -> Self {
        Self::new(kind, shown(&source.name, source.signature.as_deref(), signatures))
            .at(source.file.clone(), source.line)
    }

    /// The name as folded stacks and flame graphs have it: kernel frames end in
    /// `_[k]`, as bcc's `profile` writes them.
    pub fn folded(&self) -> String {
        // The format's own separator must not occur in it.
        let name = self.name.replace(';', ":");
        match self.kind {
            Kind::Kernel => name + "_[k]",
            _ => name,
        }
    }

    /// Whether it is code that a Java program consists of.
    pub fn is_java(&self) -> bool {
        matches!(self.kind, Kind::Java | Kind::Inlined | Kind::Interpreted)
    }
}
