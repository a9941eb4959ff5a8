//! What a method is called, and where its source is.
//!
//! What is known here: the form of class signatures (`Ljava/lang/String;`), and
//! how HotSpot sets the number of a hidden class off (`.` in newer JVMs, `/` in
//! older ones, from JVMTI's "Get Class Signature"). A line table entry holds
//! for the bytecodes from its start up to the next entry's.
//!
//! Asking the JVM takes time, and the same few methods come again and again in
//! the inlining chains of one compiled method, so answers are kept during an
//! event. They are never kept longer: a method's number can be used anew after
//! its class is gone.

use crate::jni::Jni;
use crate::jvmti::{Env, MethodId};
use crate::options::ClassStyle;
use crate::owned::{Chars, Lines};

/// Methods kept at a time.
const KEPT: usize = 64;

/// What the JVM says about a method.
pub struct Method {
    id: MethodId,
    class: Chars,
    file: Chars,
    /// The method's name.
    pub name: Chars,
    /// Its parameter and result types.
    pub signature: Chars,
    lines: Lines,
}

impl Method {
    fn ask(env: Env, jni: Option<Jni>, id: MethodId) -> Self {
        let (class, file) = env.class_of(id, jni);
        let (name, signature) = env.name_of(id);
        Self { id, class, file, name, signature, lines: env.lines_of(id) }
    }

    /// The name of the class, in that style.
    pub fn class(&self, style: ClassStyle) -> impl Iterator<Item = u8> + '_ {
        let whole = self.class.bytes();
        let inner = whole.strip_prefix(b"L").and_then(|rest| rest.strip_suffix(b";"));
        let text = if style == ClassStyle::Signature { whole } else { inner.unwrap_or(whole) };
        text.iter().enumerate().map(move |(at, &byte)| match byte {
            _ if style != ClassStyle::Dotted => byte,
            // The number of a hidden class stands behind a slash in Java's notation.
            b'/' if text.get(at + 1).is_some_and(u8::is_ascii_digit) => b'/',
            b'/' => b'.',
            b'.' => b'/',
            _ => byte,
        })
    }

    /// The source file's name, empty if unknown.
    pub fn file(&self) -> impl Iterator<Item = u8> + '_ {
        self.file.bytes().iter().copied()
    }

    /// The line at a bytecode index. A negative index is the JVM's sign for a
    /// place before the first bytecode, as is `None` here.
    pub fn line(&self, bci: Option<i32>) -> Option<u64> {
        let bci = i64::from(bci.unwrap_or(-1));
        let entries = self.lines.entries().iter();
        let found = if bci < 0 {
            entries.min_by_key(|line| line.start)
        } else {
            entries.filter(|line| line.start <= bci).max_by_key(|line| line.start)
        };
        found.and_then(|line| u64::try_from(line.number).ok())
    }
}

/// The methods of one event.
pub struct Methods {
    env: Env,
    jni: Option<Jni>,
    kept: [Option<Method>; KEPT],
    next: usize,
}

impl Methods {
    /// None so far.
    pub fn new(env: Env, jni: Option<Jni>) -> Self {
        Self { env, jni, kept: [const { None }; KEPT], next: 0 }
    }

    /// Hands a method to `then`.
    pub fn with<T>(&mut self, id: MethodId, then: impl FnOnce(&Method) -> T) -> T {
        for method in self.kept.iter().flatten() {
            if method.id == id {
                return then(method);
            }
        }
        let method = Method::ask(self.env, self.jni, id);
        let result = then(&method);
        if let Some(place) = self.kept.get_mut(self.next % KEPT) {
            *place = Some(method);
        }
        self.next = self.next.wrapping_add(1);
        result
    }
}
