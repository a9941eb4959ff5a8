//! A recorded stack: the registers, everything that the walker reads from there on, and the correct
//! frames.
//!
//! A file is gzipped text (`zcat` shows it), so that it can be read, compared and judged without
//! this program. Numbers are hexadecimal. Each line has one fact:
//!
//! ```text
//! about TEXT                      JDK, JVM flags, and what the thread executed, such as a prologue
//! truth TEXT                      how the frames are known to be correct
//! processor NAME                  x86_64 if this line is missing
//! start IP SP FP OTHERS...        the registers; OTHERS are those of struct registers, and may be fewer
//! jvm FIELD NUMBER                a member of struct jvm
//! heap LOW HIGH SEGMAP LOG        its code heaps
//! mapping INDEX START END BIAS TABLE ROWS
//! row TABLE INDEX PC CFA KIND FP
//! line ADDR BYTES                 64 bytes of memory
//! code ADDR ID                    a frame of code, and a compiled method's compile id; innermost frame first
//! method METHOD BCI               a frame of an interpreted method, and its bytecode index
//! frame WORD                      a frame in older recordings, in which an address had 47 bits
//! name TEXT                       a frame's name, outermost first, including inlined frames
//! end CODE UNLOADS                why the walk ended and where its first guess is, in one number;
//!                                 number of classes that the JVM had unloaded
//! ```

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use libjvmprobe::{
    Addr,
    bpf::{user_walker::OTHER_REGISTERS, walker::MappingEntry},
    hotspot::walking::{CodeHeap, JvmLayout},
    stack::raw::RawFrame,
    unwind::Row,
};

use crate::harness::{Processor, Registers, Source, Stack};

/// Size in bytes of a recorded block of memory.
pub const LINE: usize = 64;

/// `NO_BCI` of bpf/walk/walk.h.
const NO_BCI: u16 = 0xffff;

/// Decodes a frame of older recordings: 47 bits of an address, and 16 bits of a compile id or bytecode index. The highest
/// bit is set for an interpreted method.
fn frame_of_47_bits(word: u64) -> RawFrame {
    let (addr, above) = (Addr(word & ((1 << 47) - 1)), (word >> 47) as u16);
    match word >> 63 {
        0 => RawFrame::Code { addr, compile_id: above & 0x7fff },
        _ => RawFrame::Interpreted { method: addr, bci: Some(above) },
    }
}

/// A recorded stack.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// JDK, JVM flags, and what the thread executed when it was recorded, such as a prologue or a stub.
    pub about: String,
    /// How the frames are known to be correct.
    pub truth: String,
    /// Processor on which it was recorded.
    pub processor: Processor,
    /// Registers at the start of the walk.
    pub start: Registers,
    /// Layout of the JVM's data that the walker reads.
    pub jvm: JvmLayout,
    /// Mappings that the walker read, by index.
    pub mappings: BTreeMap<u32, MappingEntry>,
    /// Unwind rows that the walker read, by table and index.
    pub rows: BTreeMap<(u32, u32), Row>,
    /// Memory, by address of the line.
    pub lines: BTreeMap<u64, [u8; LINE]>,
    /// The correct result of the walk.
    pub stack: Stack,
    /// Names of the frames, for people.
    pub names: Vec<String>,
}

/// Calls a macro with the names of all numeric fields of `JvmLayout`.
macro_rules! with_fields {
    ($call:ident, $($args:tt)*) => {
        $call!(
            ($($args)*) interpreter_low interpreter_high nmethod_name return_barrier
            cont_return_pc_at unloads_at heap_count block_header blob_bytes blob_form name
            code_begin data_offset frame_size frame_complete verified_entry osr_entry
            deopt_handler deopt_mh_handler orig_pc_offset const_method const_method_size
            bcp_slot compile_id
        )
    };
}

macro_rules! list {
    (($jvm:expr) $($field:ident)*) => { [$((stringify!($field), u64::from($jvm.$field))),*] };
}

macro_rules! set {
    (($jvm:expr, $name:expr, $number:expr) $($field:ident)*) => {
        match $name {
            $(stringify!($field) => $jvm.$field = $number.try_into().ok()?,)*
            _ => return None,
        }
    };
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not a recording.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        GzDecoder::new(File::open(path)?).read_to_string(&mut text)?;
        let mut recording = Self::default();
        for line in text.lines() {
            let invalid = || io::Error::other(format!("{}: invalid line: {line}", path.display()));
            recording.parse_line(line).ok_or_else(invalid)?;
        }
        Ok(recording)
    }

    fn parse_line(&mut self, line: &str) -> Option<()> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "about" => self.about = rest.into(),
            "truth" => self.truth = rest.into(),
            "processor" => {
                let all = [Processor::X86_64, Processor::Aarch64];
                self.processor = all.into_iter().find(|processor| processor.name() == rest)?;
            }
            "name" => self.names.push(rest.into()),
            "jvm" => {
                let (name, number) = rest.split_once(' ')?;
                let number = u64::from_str_radix(number, 16).ok()?;
                // Older recordings call this field `is_compact`, because only two forms of blobs were
                // distinguished then.
                let name = if name == "is_compact" { "blob_form" } else { name };
                with_fields!(set, self.jvm, name, number);
            }
            "line" => {
                let (addr, bytes) = rest.split_once(' ')?;
                let byte = |i| u8::from_str_radix(bytes.get(2 * i..2 * i + 2)?, 16).ok();
                let mut line = [0; LINE];
                for (i, slot) in line.iter_mut().enumerate() {
                    *slot = byte(i)?;
                }
                self.lines.insert(u64::from_str_radix(addr, 16).ok()?, line);
            }
            _ => {
                let numbers: Option<Vec<u64>> =
                    rest.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect();
                self.parse_numbers(kind, &numbers?)?;
            }
        }
        Some(())
    }

    fn parse_numbers(&mut self, kind: &str, numbers: &[u64]) -> Option<()> {
        let small = |n: u64| u32::try_from(n).ok();
        match (kind, numbers) {
            ("start", &[ip, sp, fp, ref rest @ ..]) => {
                let mut others = [0; OTHER_REGISTERS];
                others.get_mut(..rest.len())?.copy_from_slice(rest);
                self.start = Registers::new([ip, sp, fp], others);
            }
            ("heap", &[low, high, segmap, segment_log]) => {
                let at = self.jvm.heaps.iter_mut().find(|heap| heap.high == 0)?;
                *at = CodeHeap { low, high, segmap, segment_log };
            }
            ("mapping", &[index, start, end, bias, table, rows]) => {
                let (table, rows) = (small(table)?, small(rows)?);
                let entry = MappingEntry { start, end, bias, table, rows };
                self.mappings.insert(small(index)?, entry);
            }
            ("row", &[table, index, pc, cfa, kind, fp]) => {
                let row = Row {
                    pc: small(pc)?,
                    cfa: cfa.try_into().ok()?,
                    kind: kind.try_into().ok()?,
                    fp: u8::try_from(fp).ok()?.cast_signed(),
                };
                self.rows.insert((small(table)?, small(index)?), row);
            }
            ("frame", &[word]) => self.stack.frames.push(frame_of_47_bits(word).to_word()),
            ("code", &[addr, id]) => {
                let frame = RawFrame::Code { addr: Addr(addr), compile_id: id.try_into().ok()? };
                self.stack.frames.push(frame.to_word());
            }
            ("method", &[method, bci]) => {
                let bci = u16::try_from(bci).ok()?;
                let frame = RawFrame::Interpreted { method: Addr(method), bci: Some(bci) };
                self.stack.frames.push(frame.to_word());
            }
            ("end", &[end, unloads]) => (self.stack.end, self.stack.unloads) = (end, unloads),
            _ => return None,
        }
        Some(())
    }

    /// Returns the text that [`Recording::read`] parses.
    pub fn text(&self) -> String {
        let mut text = format!("about {}\ntruth {}\n", self.about, self.truth);
        let _ = writeln!(text, "processor {}", self.processor.name());
        let mut put = |kind: &str, numbers: &[u64]| {
            text.push_str(kind);
            for number in numbers {
                // Writing into a String does not fail.
                let _ = write!(text, " {number:x}");
            }
            text.push('\n');
        };
        let Registers { ip, sp, fp, others } = self.start;
        put("start", &[&[ip, sp, fp], &others[..]].concat());
        for (name, number) in with_fields!(list, self.jvm) {
            put(&format!("jvm {name}"), &[number]);
        }
        for heap in self.jvm.heaps.iter().filter(|heap| heap.high > 0) {
            put("heap", &[heap.low, heap.high, heap.segmap, heap.segment_log]);
        }
        for (&index, m) in &self.mappings {
            put("mapping", &[index.into(), m.start, m.end, m.bias, m.table.into(), m.rows.into()]);
        }
        for (&(table, index), row) in &self.rows {
            let (pc, cfa, kind) = (row.pc.into(), row.cfa.into(), row.kind.into());
            let fp = u64::from(row.fp.cast_unsigned());
            put("row", &[table.into(), index.into(), pc, cfa, kind, fp]);
        }
        for &frame in &self.stack.frames {
            match RawFrame::from_word(frame) {
                RawFrame::Code { addr, compile_id } => put("code", &[addr.0, compile_id.into()]),
                RawFrame::Interpreted { method, bci } => {
                    put("method", &[method.0, bci.unwrap_or(NO_BCI).into()]);
                }
            }
        }
        put("end", &[self.stack.end, self.stack.unloads]);
        for name in &self.names {
            let _ = writeln!(text, "name {name}");
        }
        for (addr, bytes) in &self.lines {
            let _ = write!(text, "line {addr:x} ");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        text
    }

    /// Returns this recording as the contents of a file: gzipped text.
    ///
    /// # Errors
    /// Never: writing into a Vec does not fail.
    pub fn compressed(&self) -> io::Result<Vec<u8>> {
        let mut to = GzEncoder::new(Vec::new(), Compression::best());
        to.write_all(self.text().as_bytes())?;
        to.finish()
    }
}

/// Maximum size in bytes of a read that is not a read-ahead of the stack (`MAX_BLOB_BYTES` of
/// bpf/walk/state.bpf.h). The walker also works if a read-ahead fails.
pub const MAX_DIRECT_READ: usize = 512;

/// Source from which the walker can read ahead on the stack, as it does in the kernel. A recording may lack
/// some of the memory of such a read; here these bytes are zero, while a plain [`Recording`] fails the read.
#[derive(Debug)]
pub struct PiecewiseSource<'a> {
    recording: &'a Recording,
    /// End of the last page of the stack.
    end: u64,
    /// Number of read-aheads that included bytes which the recording lacks.
    pub count: usize,
}

impl<'a> PiecewiseSource<'a> {
    /// Returns a source that reads the stack of a recording in pieces.
    pub fn of(recording: &'a Recording) -> Self {
        let mut end = recording.start.sp;
        // From the stack pointer on, recorded lines belong to the stack until a gap of 64 KiB or more.
        for &line in recording.lines.keys() {
            if line >= end && line - end < 64 << 10 {
                end = line + 1;
            }
        }
        Self { recording, end: end.next_multiple_of(4096), count: 0 }
    }
}

impl Source for PiecewiseSource<'_> {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        let mut recording = self.recording;
        if recording.read(addr, to) {
            return true;
        }
        let is_stack = addr >= self.recording.start.sp.saturating_sub(4096) && addr < self.end;
        // A read-ahead that ends with the last page of the stack may be shorter than the others.
        let is_last = addr + to.len() as u64 == self.end;
        if !is_stack
            || addr + to.len() as u64 > self.end
            || !(to.len() > MAX_DIRECT_READ || is_last)
        {
            return false;
        }
        self.count += 1;
        for (byte, addr) in to.iter_mut().zip(addr..) {
            let mut one = [0];
            recording.read(addr, &mut one);
            *byte = one[0];
        }
        true
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        self.recording.mappings.get(&index).copied()
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        self.recording.rows.get(&(table, index)).copied()
    }

    fn jvm(&self) -> JvmLayout {
        self.recording.jvm
    }
}

impl Source for &Recording {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        to.iter_mut().zip(addr..).all(|(byte, addr)| {
            let at = (addr % LINE as u64) as usize;
            let found = self.lines.get(&(addr - at as u64)).and_then(|line| line.get(at));
            found.is_some_and(|found| {
                *byte = *found;
                true
            })
        })
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        self.mappings.get(&index).copied()
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        self.rows.get(&(table, index)).copied()
    }

    fn jvm(&self) -> JvmLayout {
        self.jvm
    }
}
