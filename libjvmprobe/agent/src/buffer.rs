//! A text buffer of whole records.
//!
//! What is known here: the way numbers, fields and names are written in both
//! maps. A record is put together in memory, all records of an event go to the
//! file in one write, so that those of other threads never come in between. The
//! buffer grows with the records, up to a bound; a record has a bound of its
//! own, and what is beyond is left out.

use core::ptr::NonNull;
use core::slice;

use crate::jvmti::Env;

/// Names longer than this are cut.
pub const NAME_MOST: usize = 4096;
/// Room that every record has.
const RECORD: usize = 32 << 10;
/// What a buffer starts with.
const LEAST: usize = 2 * RECORD;
/// What a buffer never exceeds.
const MOST: usize = 16 << 20;

/// Text in memory from JVMTI's Allocate, given back when dropped.
pub struct Buffer {
    env: Env,
    start: NonNull<u8>,
    capacity: usize,
    len: usize,
    limit: usize,
    over: bool,
}

impl Buffer {
    /// An empty buffer, if there is memory.
    pub fn new(env: Env) -> Option<Self> {
        let start = env.allocate(LEAST)?;
        Some(Self { env, start, capacity: LEAST, len: 0, limit: 0, over: false })
    }

    /// Begins a record. There is room for one if this says so.
    pub fn begin(&mut self) -> bool {
        if self.capacity - self.len < RECORD && !self.grow() {
            return false;
        }
        self.over = false;
        // One byte is kept for the line's end.
        self.limit = self.len + RECORD - 1;
        true
    }

    fn grow(&mut self) -> bool {
        let capacity = self.capacity * 2;
        if capacity > MOST {
            return false;
        }
        let Some(start) = self.env.allocate(capacity) else {
            return false;
        };
        // SAFETY: the new memory is larger than the old and another.
        unsafe { start.copy_from_nonoverlapping(self.start, self.len) };
        self.env.deallocate(self.start.as_ptr());
        self.start = start;
        self.capacity = capacity;
        true
    }

    /// Lets the rest of the record have so many bytes at most.
    pub fn narrow(&mut self, most: usize) {
        self.limit = self.limit.min(self.len + most);
    }

    /// Ends the record.
    pub fn end(&mut self) {
        // `begin` kept this byte, and a narrower limit is below it.
        self.limit = self.len + 1;
        self.over = false;
        self.byte(b'\n');
        self.limit = self.len;
    }

    /// Where the text ends; to `rewind` to.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Drops what was written since the text was of that length.
    pub fn rewind(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether anything of this record did not fit.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// One byte. Once one did not fit, no further ones are taken.
    pub fn byte(&mut self, byte: u8) {
        if self.len < self.limit && !self.over {
            // SAFETY: the limit is never above the capacity.
            unsafe { self.start.add(self.len).write(byte) };
            self.len += 1;
        } else {
            self.over = true;
        }
    }

    /// Bytes as they are.
    pub fn text(&mut self, text: &[u8]) {
        for &byte in text {
            self.byte(byte);
        }
    }

    /// A number in hexadecimal, without 0x.
    pub fn hex(&mut self, value: u64) {
        self.number(value, 16);
    }

    /// A number in decimal.
    pub fn decimal(&mut self, value: u64) {
        self.number(value, 10);
    }

    fn number(&mut self, mut value: u64, base: u64) {
        let mut digits = [0_u8; 20];
        let mut count = 0;
        for place in digits.iter_mut().rev() {
            *place = digit((value % base) as u8);
            value /= base;
            count += 1;
            if value == 0 {
                break;
            }
        }
        for &digit in digits.iter().skip(20 - count) {
            self.byte(digit);
        }
    }

    /// A TAB, and a number in hexadecimal.
    pub fn field(&mut self, value: u64) {
        self.byte(b'\t');
        self.hex(value);
    }

    /// A name of up to `NAME_MOST` bytes, with control characters and the
    /// backslash as `\xNN`. It is cut between characters.
    pub fn name(&mut self, name: impl Iterator<Item = u8>) {
        let first = self.len;
        let end = first + NAME_MOST;
        for byte in name {
            let plain = byte >= b' ' && byte != 0x7F && byte != b'\\';
            let size = if plain { 1 } else { 4 };
            if self.len + size > end.min(self.limit) {
                self.over |= self.len + size > self.limit;
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

    /// Drops the character that the name, which began at `first`, ends within.
    fn drop_character(&mut self, first: usize) {
        while let Some(&last) = self.bytes().get(first..).and_then(<[u8]>::last) {
            self.len -= 1;
            if !is_continuation(last) {
                return;
            }
        }
    }

    /// All records so far.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes have been written there.
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
