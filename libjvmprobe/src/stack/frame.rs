//! A named frame.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    names::{
        clean,
        code::{MethodOrigin, SourceFrame},
    },
    stack::name::display_name,
};

/// Kind of code that a frame runs. Stored profiles contain the position of a variant, so new variants must be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Kind {
    /// Compiled Java code.
    Java,
    /// Java code that was inlined into its caller.
    Inlined,
    /// The interpreter.
    Interpreted,
    /// Code that the JVM generated for itself: stubs and adapters.
    Stub,
    /// The JVM's own native code (libjvm.so).
    Jvm,
    /// Other native code.
    Native,
    /// The kernel.
    Kernel,
    /// Not code, but a label of the stack: the class of an allocated object or of an exception, for example.
    Class,
    /// User code without a known name, or a placeholder such as `[idle]`.
    Unknown,
}

impl Kind {
    /// All kinds, in the order of their positions.
    pub const ALL: [Self; 9] = [
        Self::Java,
        Self::Inlined,
        Self::Interpreted,
        Self::Stub,
        Self::Jvm,
        Self::Native,
        Self::Kernel,
        Self::Class,
        Self::Unknown,
    ];
}

/// A named frame. It contains only cleaned text (see `names::clean`) if it is made by [`Frame::new`],
/// [`Frame::of_module`] and [`Frame::at`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Kind of code.
    pub kind: Kind,
    /// Name: `java.lang.String.hashCode`, `vfs_read`, `[unknown libz.so+0x12]`.
    pub name: Arc<str>,
    /// File name of native code without its folder: `libc.so.6`.
    pub module: Option<Arc<str>>,
    /// Source file, if known.
    pub file: Option<Arc<str>>,
    /// Source line, or 0 if unknown.
    pub line: u32,
    /// Origin of a Java method; only in thread dumps.
    pub origin: Option<Arc<MethodOrigin>>,
}

impl Frame {
    /// Makes a frame with a kind and a name only.
    pub fn new(kind: Kind, name: impl Into<Arc<str>>) -> Self {
        let name = clean::shared(name.into());
        Self { kind, name, module: None, file: None, line: 0, origin: None }
    }

    /// Returns this frame with the name of the file that contains its native code.
    pub fn of_module(self, module: &Arc<str>) -> Self {
        Self { module: Some(clean::shared(Arc::clone(module))), ..self }
    }

    /// Returns this frame with its source file, if known, and its source line, or 0 if unknown.
    pub fn at(self, file: Option<Arc<str>>, line: u32) -> Self {
        Self { file: file.map(clean::shared), line, ..self }
    }

    /// Makes the frame of a method at a source line. With `signatures`, the name includes the parameters.
    pub(crate) fn of_source(source: &SourceFrame, kind: Kind, signatures: bool) -> Self {
        let name = display_name(&source.name, source.signature.as_deref(), signatures);
        let origin = source.origin.clone();
        Self { origin, ..Self::new(kind, name).at(source.file.clone(), source.line) }
    }

    /// Returns its approximate size in bytes. A text counts for each frame that shares it, which compensates for the
    /// overhead of allocations.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.as_ref().map_or(0, |name| name.len())
    }

    /// Returns the size of frames, as [`Self::size`] does.
    pub(crate) fn sum_of_sizes(frames: &[Self]) -> usize {
        frames.iter().map(Self::size).sum()
    }

    /// Returns the name for folded stacks and flame graphs. As in the output of bcc's `profile`, kernel frames end in
    /// `_[k]`.
    pub fn folded(&self) -> String {
        // The name must not contain the format's separator.
        let name = self.name.replace(';', ":");
        match self.kind {
            Kind::Kernel => name + "_[k]",
            _ => name,
        }
    }

    /// Returns whether the frame is Java code.
    pub fn is_java(&self) -> bool {
        matches!(self.kind, Kind::Java | Kind::Inlined | Kind::Interpreted)
    }
}
