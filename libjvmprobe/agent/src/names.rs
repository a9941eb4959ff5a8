//! Names of methods, and their source files and lines.
//!
//! This module parses the class signatures that JVMTI's "Get Class Signature"
//! returns (`Ljava/lang/String;`). In the signature of a hidden class, a number
//! follows the name, after a `.` in newer JVMs and after a `/` in older ones. A line
//! table entry applies to the bytecodes from its start up to the start of the
//! next entry.
//!
//! Calls into the JVM take time, and the same few methods occur repeatedly in
//! the inlining chains of one compiled method, so results are cached during an
//! event. They are never cached longer, because the JVM can reuse a `jmethodID`
//! after the class of its method has been unloaded.

use crate::jni::Jni;
use crate::jvmti::{Env, MethodId};
use crate::owned::{Chars, Lines};

/// Number of methods in the cache.
const CACHE_SIZE: usize = 64;

/// Names, signature, source file and line table of a method, from JVMTI.
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
    fn read(env: Env, jni: Option<Jni>, id: MethodId) -> Self {
        let (class, file) = env.class_of(id, jni);
        let (name, signature) = env.name_of(id);
        Self { id, class, file, name, signature, lines: env.lines_of(id) }
    }

    /// Returns the name of the class in Java's notation.
    pub fn class(&self) -> impl Iterator<Item = u8> + '_ {
        let whole = self.class.bytes();
        let inner = whole.strip_prefix(b"L").and_then(|rest| rest.strip_suffix(b";"));
        let text = inner.unwrap_or(whole);
        text.iter().enumerate().map(move |(at, &byte)| match byte {
            // Java's notation has a slash before the number of a hidden class.
            b'/' if text.get(at + 1).is_some_and(u8::is_ascii_digit) => b'/',
            b'/' => b'.',
            b'.' => b'/',
            _ => byte,
        })
    }

    /// Returns the source file's name, empty if unknown.
    pub fn file(&self) -> impl Iterator<Item = u8> + '_ {
        self.file.bytes().iter().copied()
    }

    /// Returns the line at a bytecode index. A negative index, which the JVM uses
    /// for code before the first bytecode, and `None` return the method's first line.
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

/// Cache of the methods of one event.
pub struct Methods {
    env: Env,
    jni: Option<Jni>,
    cache: [Option<Method>; CACHE_SIZE],
    next: usize,
}

impl Methods {
    /// Creates an empty cache.
    pub fn new(env: Env, jni: Option<Jni>) -> Self {
        Self { env, jni, cache: [const { None }; CACHE_SIZE], next: 0 }
    }

    /// Calls `then` with a method, which is read from the JVM unless it is cached.
    pub fn with<T>(&mut self, id: MethodId, then: impl FnOnce(&Method) -> T) -> T {
        for method in self.cache.iter().flatten() {
            if method.id == id {
                return then(method);
            }
        }
        let method = Method::read(self.env, self.jni, id);
        let result = then(&method);
        if let Some(slot) = self.cache.get_mut(self.next % CACHE_SIZE) {
            *slot = Some(method);
        }
        self.next = self.next.wrapping_add(1);
        result
    }
}
