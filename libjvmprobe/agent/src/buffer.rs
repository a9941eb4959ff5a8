//! A text buffer that holds complete records.
//!
//! This module defines how numbers, fields and names are written in the map. The
//! records of one event are built in memory and go to the file in one write, so
//! that records of other threads never interleave with them. The buffer grows with the records, up to 16 MiB. A record has at
//! most 32 KiB; the rest of a longer record is dropped.

use core::ptr::NonNull;
use core::slice;

use crate::jvmti::Env;

/// Maximum length of a name in bytes; longer names are truncated.
const MAX_NAME: usize = 4096;
/// Maximum size of a record, its line feed included.
const MAX_RECORD: usize = 32 << 10;
/// Initial capacity of a buffer.
const INITIAL_CAPACITY: usize = 2 * MAX_RECORD;
/// Maximum capacity of a buffer.
const MAX_CAPACITY: usize = 16 << 20;

/// Text in memory from JVMTI's Allocate, deallocated when dropped.
pub struct Buffer {
    env: Env,
    start: NonNull<u8>,
    capacity: usize,
    len: usize,
    limit: usize,
    truncated: bool,
}

impl Buffer {
    /// Creates an empty buffer; `None` if JVMTI has no memory.
    pub fn new(env: Env) -> Option<Self> {
        let start = env.allocate(INITIAL_CAPACITY)?;
        Some(Self { env, start, capacity: INITIAL_CAPACITY, len: 0, limit: 0, truncated: false })
    }

    /// Begins a record. Returns false if there is no space for one.
    pub fn begin(&mut self) -> bool {
        if self.capacity - self.len < MAX_RECORD && !self.grow() {
            return false;
        }
        self.truncated = false;
        // One byte is reserved for the line feed.
        self.limit = self.len + MAX_RECORD - 1;
        true
    }

    fn grow(&mut self) -> bool {
        let capacity = self.capacity * 2;
        if capacity > MAX_CAPACITY {
            return false;
        }
        let Some(start) = self.env.allocate(capacity) else {
            return false;
        };
        // SAFETY: the new memory is larger than the old, and the two do not overlap.
        unsafe { start.copy_from_nonoverlapping(self.start, self.len) };
        self.env.deallocate(self.start.as_ptr());
        self.start = start;
        self.capacity = capacity;
        true
    }

    /// Ends the record with a line feed.
    pub fn end(&mut self) {
        // `begin` reserved this byte.
        self.limit = self.len + 1;
        self.truncated = false;
        self.byte(b'\n');
        self.limit = self.len;
    }

    /// Length of the text, which can be passed to `rewind`.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Truncates the text to a length that `len` returned earlier.
    pub fn rewind(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether a part of this record did not fit.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Writes one byte. After the first byte that does not fit, the rest of the record is dropped.
    pub fn byte(&mut self, byte: u8) {
        if self.len < self.limit && !self.truncated {
            // SAFETY: the limit is never above the capacity.
            unsafe { self.start.add(self.len).write(byte) };
            self.len += 1;
        } else {
            self.truncated = true;
        }
    }

    /// Writes bytes unchanged.
    pub fn text(&mut self, text: &[u8]) {
        for &byte in text {
            self.byte(byte);
        }
    }

    /// Writes a number in hexadecimal, without 0x.
    pub fn hex(&mut self, mut value: u64) {
        let mut digits = [0_u8; 16];
        let mut count = 0;
        for slot in digits.iter_mut().rev() {
            *slot = digit((value & 15) as u8);
            value >>= 4;
            count += 1;
            if value == 0 {
                break;
            }
        }
        for &digit in digits.iter().skip(16 - count) {
            self.byte(digit);
        }
    }

    /// Writes a TAB and a number in hexadecimal, without 0x.
    pub fn field(&mut self, value: u64) {
        self.byte(b'\t');
        self.hex(value);
    }

    /// Writes a name, with control characters and the backslash as `\xNN`. A
    /// name of more than `MAX_NAME` bytes is truncated between characters.
    pub fn name(&mut self, name: impl Iterator<Item = u8>) {
        let first = self.len;
        let end = first + MAX_NAME;
        for byte in name {
            let plain = byte >= b' ' && byte != 0x7F && byte != b'\\';
            let size = if plain { 1 } else { 4 };
            if self.len + size > end.min(self.limit) {
                self.truncated |= self.len + size > self.limit;
                if is_continuation(byte) {
                    self.drop_character(first);
                }
                return;
            }
            if plain {
                self.byte(byte);
            } else {
                self.text(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }

    /// Removes the incomplete character at the end of the name that began at `first`.
    fn drop_character(&mut self, first: usize) {
        while let Some(&last) = self.bytes().get(first..).and_then(<[u8]>::last) {
            self.len -= 1;
            if !is_continuation(last) {
                return;
            }
        }
    }

    /// Returns all records written so far.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the first `len` bytes have been written.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.env.deallocate(self.start.as_ptr());
    }
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + (value & 15) - 10 }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}
