//! The options that the agent is loaded with.
//!
//! The option text consists of comma-separated `key=value` pairs and flags. A
//! path cannot contain a comma. Unknown keys are an error, because a misspelt
//! option would otherwise go unnoticed.

use core::ffi::c_char;

/// Maximum length of the option text in bytes.
const MAX_TEXT: usize = 16384;
/// PATH_MAX of Linux, which includes the NUL.
pub const PATH_MAX: usize = 4096;

/// Entries that the perf map contains for a compiled method.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unfold {
    /// One entry, with the method's own name.
    None,
    /// One entry for each inlined range, with the innermost method's name.
    Simple,
    /// One entry for each inlined range, with the names of the complete chain.
    All,
}

/// Notation of class names in the perf map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ClassStyle {
    /// `Ljava/lang/String;`
    Signature,
    /// `java/lang/String`
    Clean,
    /// `java.lang.String`
    Dotted,
}

/// Options for the entries and names of the perf map.
#[derive(Clone, Copy)]
pub struct Style {
    /// Entries of a compiled method.
    pub unfold: Unfold,
    /// Notation of class names.
    pub class: ClassStyle,
    /// Append the method's signature.
    pub signature: bool,
    /// Append `(File.java:line)`.
    pub source: bool,
    /// Append `_[j]`, or `_[i]` to an inlined method.
    pub annotate: bool,
}

/// All options.
pub struct Options<'a> {
    /// The rich map's path.
    pub map: Option<&'a [u8]>,
    /// The perf map's path.
    pub perf: Option<&'a [u8]>,
    /// Write a snapshot of the existing code, and nothing afterwards. Ignored if the agent is loaded at the
    /// JVM's start.
    pub once: bool,
    /// Entries and names of the perf map.
    pub style: Style,
}

/// Returns the option text from the JVM as a slice, without its NUL; `None` if it is too long.
///
/// # Safety
///
/// `text` must be null or point to a string that ends in NUL and outlives `'a`.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return Some(&[]);
    }
    let mut len = 0;
    // SAFETY: this reads up to the NUL at most.
    while unsafe { *text.add(len) } != 0 {
        len += 1;
        if len > MAX_TEXT {
            return None;
        }
    }
    // SAFETY: the first `len` bytes have just been read, and they live as long as the string.
    Some(unsafe { core::slice::from_raw_parts(text.cast(), len) })
}

/// Parses the option text; `None` if a part of it is invalid.
pub fn parse(text: &[u8]) -> Option<Options<'_>> {
    let mut style = Style {
        unfold: Unfold::None,
        class: ClassStyle::Signature,
        signature: false,
        source: false,
        annotate: false,
    };
    let (mut map, mut perf) = (None, None);
    let (mut once, mut dotted, mut clean) = (false, false, false);
    for part in text.split(|&byte| byte == b',') {
        let mut halves = part.splitn(2, |&byte| byte == b'=');
        let key = halves.next().unwrap_or_default();
        let value = halves.next();
        match key {
            b"" if value.is_none() => {}
            b"map" => map = Some(path(value?)?),
            b"perf" => perf = Some(path(value?)?),
            b"unfold" => {
                style.unfold = match value {
                    Some(b"none") => Unfold::None,
                    Some(b"simple") | None => Unfold::Simple,
                    Some(b"all") => Unfold::All,
                    Some(_) => return None,
                }
            }
            b"once" => once = flag(value)?,
            b"msig" => style.signature = flag(value)?,
            b"sourcepos" => style.source = flag(value)?,
            b"annotate" => style.annotate = flag(value)?,
            b"dottedclass" => dotted = flag(value)?,
            b"cleanclass" => clean = flag(value)?,
            _ => return None,
        }
    }
    if dotted {
        style.class = ClassStyle::Dotted;
    } else if clean {
        style.class = ClassStyle::Clean;
    }
    Some(Options { map, perf, once, style })
}

fn path(value: &[u8]) -> Option<&[u8]> {
    (!value.is_empty() && value.len() < PATH_MAX).then_some(value)
}

fn flag(value: Option<&[u8]>) -> Option<bool> {
    match value {
        None | Some(b"1" | b"on" | b"yes" | b"true") => Some(true),
        Some(b"0" | b"off" | b"no" | b"false") => Some(false),
        Some(_) => None,
    }
}
