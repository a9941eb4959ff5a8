//! Owners of memory that JVMTI allocated, which deallocate it when dropped.
//!
//! Strings end in NUL, a line table is an array of `jvmtiLineNumberEntry`, and
//! both must be freed with Deallocate. This comes from the JVM Tool Interface
//! specification ("Memory Management", "Get Line Number Table") and from
//! `jvmti.h`.

use core::ffi::c_char;
use core::slice;

use crate::jvmti::Env;

/// Maximum number of bytes read of a string. Strings of class files have at most 65535 bytes.
const MAX_CHARS: usize = 1 << 17;
/// Maximum number of entries read of a line table. A method's code has at most 65535 bytes.
const MAX_LINES: i32 = 65536;

/// A string that JVMTI allocated, deallocated when dropped.
pub struct Chars {
    env: Env,
    start: *mut c_char,
    len: usize,
}

impl Chars {
    /// Takes ownership of a string that JVMTI allocated, or of a null pointer.
    pub fn new(env: Env, start: *mut c_char) -> Self {
        let mut len = 0;
        // SAFETY: a string from JVMTI ends in NUL, where this loop stops at the latest.
        while !start.is_null() && len < MAX_CHARS && unsafe { *start.add(len) } != 0 {
            len += 1;
        }
        Self { env, start, len }
    }

    /// Returns the string in modified UTF-8, empty if there is none.
    pub fn bytes(&self) -> &[u8] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: `new` read `len` bytes there, and they live as long as `self`.
        unsafe { slice::from_raw_parts(self.start.cast(), self.len) }
    }
}

impl Drop for Chars {
    fn drop(&mut self) {
        self.env.deallocate(self.start.cast());
    }
}

/// `jvmtiLineNumberEntry`: the line of the bytecodes from `start` on.
#[repr(C)]
pub struct Line {
    /// Bytecode index.
    pub start: i64,
    /// Line number in the source file.
    pub number: i32,
}

/// A line table that JVMTI allocated, deallocated when dropped.
pub struct Lines {
    env: Env,
    start: *mut Line,
    len: usize,
}

impl Lines {
    /// Takes ownership of a table of `count` entries that JVMTI allocated.
    pub fn new(env: Env, start: *mut Line, count: i32) -> Self {
        Self { env, start, len: count.clamp(0, MAX_LINES) as usize }
    }

    /// Returns the entries, which may be in any order.
    pub fn entries(&self) -> &[Line] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: JVMTI allocated the table with at least `len` entries.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.env.deallocate(self.start.cast());
    }
}
