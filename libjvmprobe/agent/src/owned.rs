//! Memory that JVMTI hands out, in types that give it back.
//!
//! What is known here: strings end in NUL, a line table is an array of
//! `jvmtiLineNumberEntry`, and both have to go back by Deallocate. That comes
//! from the JVM Tool Interface specification ("Memory Management", "Get Line
//! Number Table") and from `jvmti.h`.

use core::ffi::c_char;
use core::slice;

use crate::jvmti::Env;

/// Strings are read no further than this: a class file's have at most 65535 bytes.
const CHARS_MOST: usize = 1 << 17;
/// Line tables longer than this are cut: code has at most 65535 bytes.
const LINES_MOST: i32 = 65536;

/// A string that JVMTI allocated, given back when dropped.
pub struct Chars {
    env: Env,
    start: *mut c_char,
    len: usize,
}

impl Chars {
    /// Takes over a string that JVMTI made, or a null pointer.
    pub fn new(env: Env, start: *mut c_char) -> Self {
        let mut len = 0;
        // SAFETY: a string of JVMTI's ends in NUL, where this stops at the latest.
        while !start.is_null() && len < CHARS_MOST && unsafe { *start.add(len) } != 0 {
            len += 1;
        }
        Self { env, start, len }
    }

    /// The string (in modified UTF-8), empty if there is none.
    pub fn bytes(&self) -> &[u8] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: `len` bytes were seen there, and they live as long as `self`.
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

/// A line table that JVMTI allocated, given back when dropped.
pub struct Lines {
    env: Env,
    start: *mut Line,
    len: usize,
}

impl Lines {
    /// Takes over a table of `count` entries that JVMTI made.
    pub fn new(env: Env, start: *mut Line, count: i32) -> Self {
        Self { env, start, len: count.clamp(0, LINES_MOST) as usize }
    }

    /// The entries, in no order that could be relied on.
    pub fn entries(&self) -> &[Line] {
        if self.start.is_null() {
            return &[];
        }
        // SAFETY: JVMTI made the table with so many entries.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.env.deallocate(self.start.cast());
    }
}
