//! Unwinding by `.eh_frame`, converted to a table for binary search.
//!
//! Compilers omit frame pointers. Instead, `.eh_frame` describes for each instruction how to compute the
//! canonical frame address (CFA: the value of rsp before the call) and where the caller's registers are
//! saved. The descriptions are programs for a small virtual machine. Here they are run once for the complete
//! file. The result is a table that a BPF program can search, with one [`Row`] of eight bytes for each
//! address at which the rules change. Only the rules needed to walk frames are converted: CFA, return address and
//! frame pointer. `x86_64` and `aarch64` convert them.
//!
//! Sources: DWARF 5, chapter 6.4 (the machine and its instructions); Linux
//! Standard Base Core 5.0, chapter 10.6 (`.eh_frame`).
//!
//! A rule that a row cannot express becomes `RowKind::Unknown`, never a guess. Time is limited by the size of the
//! section. The number of rows is limited by the size of the file's code (`limits`), and the caller limits the memory.

mod aarch64;
mod assembly;
mod limits;
mod native_image;
mod x86_64;

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EhFrame, EndianSlice, FrameDescriptionEntry,
    LittleEndian, Reader, Register, RegisterRule, UnwindContext, UnwindContextStorage,
    UnwindExpression, UnwindSection, UnwindTableRow, Vendor,
    constants::{DW_OP_breg0, DW_OP_breg31},
};

use crate::{
    Error, Result, Vaddr,
    elf::{ElfFile, Machine},
    unwind::limits::Limits,
};

/// Maximum number of CIEs. Linkers merge equal ones, and there are few different ones.
const MAX_CIES: usize = 65_536;

/// Maximum size of a CIE in bytes. A CIE is run again for each of its functions, so a long one would make the time
/// quadratic in the size of the section.
const MAX_CIE: usize = 128;

/// Unit of all offsets in a row, in bytes: the size of a register.
const WORD: i64 = 8;

type SavedLocation = Option<(Register, i64)>;

/// Rule to find the caller's frame: the meaning of [`Row::kind`].
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// No rule is known: there is no function, or a row cannot express the rule.
    Unknown = 0,
    /// CFA = sp + cfa * 8.
    Sp = 1,
    /// CFA = fp + cfa * 8.
    Fp = 2,
    /// GNU ld's lazy PLT: CFA = rsp + 8, plus 8 if rip & 15 >= cfa.
    Plt = 3,
    /// Code to which a signal handler returns. On x86-64, the interrupted state is in the `ucontext` at rsp: rip at
    /// rsp + 168, rsp at rsp + 160, rbp at rsp + 120.
    Signal = 4,
    /// CFA = *(rbp + cfa * 8), with `cfa` as an `i16`: used by gcc if it aligns the stack.
    DerefFp = 5,
    /// CFA = *(rsp + cfa * 8), with `cfa` as an `i16`.
    DerefSp = 6,
    /// The outermost frame: there is no return address.
    End = 7,
    /// CFA = *(rbp + cfa * 8) + 8, with `cfa` as an `i16`. OpenSSL's assembly saves the value that rsp has at
    /// the function's entry. At the entry, rsp points to the return address, 8 bytes below the CFA.
    DerefFpPlus8 = 8,
    /// CFA = *(rsp + cfa * 8) + 8, with `cfa` as an `i16`: used by most of OpenSSL's code for AES, SHA
    /// and big numbers.
    DerefSpPlus8 = 9,
}

/// Where the return address is: `enum row_return` of bpf/walk/walk.h, in the bits of [`Row::kind`] from
/// [`ROW_KIND_BITS`] on.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowReturn {
    /// One word below the CFA.
    BelowEnd = 0,
    /// In the link register.
    InRegister = 1,
    /// One word above the location of the saved frame pointer.
    AboveFp = 2,
    /// At CFA + fp * 8. The frame pointer is unchanged.
    Alone = 3,
    /// The frame pointer and, above it, the return address are `fp` words above the address in the register from which
    /// the CFA is computed.
    InPair = 4,
}

/// Number of bits of [`Row::kind`] that contain the `RowKind`.
const ROW_KIND_BITS: u32 = 4;

/// Rule that is valid from a pc until the next row. Has the layout of `struct unwind_row` of bpf/walk/walk.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Row {
    /// Link-time address minus [`UnwindTable::base`], in bytes.
    pub pc: u32,
    /// Offset in units of 8 bytes, or another value depending on `kind`.
    pub cfa: u16,
    /// A `RowKind`, and a `RowReturn` in the bits above.
    pub kind: u8,
    /// Location of the caller's frame pointer: `Row::FP_SAME` or `Row::FP_LOST`; any other
    /// value means that it is saved at CFA + fp * 8. Without meaning if `kind` is
    /// `RowKind::Unknown`, `RowKind::Signal` or `RowKind::End`. `RowReturn` may give it another meaning.
    pub fp: i8,
}

impl Row {
    /// The caller's frame pointer is still in the register.
    pub(crate) const FP_SAME: i8 = 0;
    /// The caller's frame pointer is lost, or saved in a location that a row cannot express.
    pub(crate) const FP_LOST: i8 = i8::MIN;

    /// Makes a row whose pc is set later.
    fn new(kind: RowKind, cfa: u16, fp: i8) -> Self {
        Self { pc: 0, cfa, kind: kind as u8, fp }
    }

    /// Returns the row with the location of the return address.
    fn returning(self, location: RowReturn) -> Self {
        Self { kind: self.kind | (location as u8) << ROW_KIND_BITS, ..self }
    }

    fn unknown() -> Self {
        Self::new(RowKind::Unknown, 0, 0)
    }

    fn at(self, pc: u32) -> Self {
        Self { pc, ..self }
    }
}

/// A processor's part of the conversion.
struct Processor {
    /// Extension of the instructions in `.eh_frame`.
    vendor: Vendor,
    /// Register, or column, of the return address.
    return_address: Register,
    /// Converts the rules at an instruction to a row. The flag is set in functions that are marked as signal frames.
    row: fn(CallFrames<'_>, &State, bool) -> Row,
    /// Row of a function that uses neither the stack nor the frame pointer.
    leaf: Row,
}

impl Processor {
    fn of(machine: Machine) -> Option<&'static Self> {
        machine.select(&x86_64::PROCESSOR, &aarch64::PROCESSOR)
    }
}

/// All rows of a file, in strictly ascending order.
#[derive(Clone, Debug, Default)]
pub struct UnwindTable {
    base: Vaddr,
    rows: Vec<Row>,
}

impl UnwindTable {
    /// Reads the table, without a limit on memory.
    ///
    /// # Errors
    /// The errors of [`read_within`](Self::read_within).
    pub fn read(elf: &ElfFile) -> Result<Self> {
        Self::read_within(elf, &mut |_| true)
    }

    /// Reads the table. A file without `.eh_frame` has no rows, which is not an error. Calls `reserve` with each number
    /// of bytes before it is allocated. If `reserve` returns `false`, the table is not read.
    ///
    /// # Errors
    /// [`Error::Elf`] if the file is for another machine or malformed, has more rows than its code can need, or if
    /// `reserve` has returned `false`; [`Error::Io`] if it cannot be read.
    pub fn read_within(elf: &ElfFile, reserve: &mut dyn FnMut(usize) -> bool) -> Result<Self> {
        let processor = Processor::of(elf.machine()).filter(|_| elf.ctx().container.is_big());
        let Some(processor) = processor else {
            let what = format!(
                "unwinding is only supported on 64-bit x86-64 and aarch64, not on {}",
                elf.machine()
            );
            return Err(Error::elf(what));
        };
        let base = elf.base().unwrap_or_default();
        let mut functions = Self::functions(elf, base, processor, Limits::of(elf, base, reserve))?;
        functions.add_image(elf)?;
        functions.add_assembly(elf)?;
        Ok(Self { base, rows: functions.into_rows()? })
    }

    /// Reads the functions in `.eh_frame`.
    fn functions<'a>(
        elf: &ElfFile,
        base: Vaddr,
        processor: &'static Processor,
        mut limits: Limits<'a>,
    ) -> Result<Functions<'a>> {
        let Some(section) = elf.section(".eh_frame") else {
            return Ok(Functions::new(base, processor, limits));
        };
        limits.reserve(section.size())?;
        let mut bases = BaseAddresses::default().set_eh_frame(section.vaddr().0);
        if let Some(section) = elf.section(".eh_frame_hdr") {
            bases = bases.set_eh_frame_hdr(section.vaddr().0);
        }
        if let Some(section) = elf.section(".text") {
            bases = bases.set_text(section.vaddr().0);
        }
        if let Some(section) = elf.section(".got") {
            bases = bases.set_got(section.vaddr().0);
        }
        let mut functions = Functions::new(base, processor, limits);
        functions.read(EhFrame::new(&section.data()?, LittleEndian), &bases)?;
        Ok(functions)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn from_section(data: &[u8], bases: &BaseAddresses, base: Vaddr) -> Result<Self> {
        Self::from_section_of(&x86_64::PROCESSOR, data, bases, base)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    fn from_section_of(
        processor: &'static Processor,
        data: &[u8],
        bases: &BaseAddresses,
        base: Vaddr,
    ) -> Result<Self> {
        let reserve = &mut |_| true;
        let mut functions = Functions::new(base, processor, Limits::of_code(1 << 32, reserve));
        functions.read(EhFrame::new(data, LittleEndian), bases)?;
        Ok(Self { base, rows: functions.into_rows()? })
    }

    /// Returns the rows, in ascending order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the base of [`Row::pc`]: the file's first loaded page.
    pub fn base(&self) -> Vaddr {
        self.base
    }

    /// Returns the row of an address; `None` before the first one.
    #[cfg(test)]
    fn find(&self, vaddr: Vaddr) -> Option<&Row> {
        let pc = vaddr.0.checked_sub(self.base.0)?;
        let end = self.rows.partition_point(|row| u64::from(row.pc) <= pc);
        self.rows.get(end.checked_sub(1)?)
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type CallFrames<'a> = EhFrame<Bytes<'a>>;
type Cie<'a> = CommonInformationEntry<Bytes<'a>>;
type Fde<'a> = FrameDescriptionEntry<Bytes<'a>>;
type State = UnwindTableRow<usize, Storage>;

/// Limits of the state that gimli keeps while it runs a program. Each instruction searches all rules and may copy them,
/// so the default of 192 rules would help hostile files to waste time.
struct Storage;

impl UnwindContextStorage<usize> for Storage {
    /// `__restore_rt` of x86-64 has rules for all 17 registers.
    type Rules = [(Register, RegisterRule<usize>); 32];
    /// Programs that compilers write save only one state at a time (`DW_CFA_remember_state`).
    type Stack = Box<[State; 8]>;
}

/// A function's part of the table, not yet sorted.
struct Function {
    /// Start, relative to the base.
    start: u32,
    /// End address, exclusive, relative to the base; at most 4 GiB.
    end: u64,
    /// Range of its rows.
    rows: Range<usize>,
}

/// Functions of a file.
struct Functions<'a> {
    base: Vaddr,
    processor: &'static Processor,
    limits: Limits<'a>,
    functions: Vec<Function>,
    rows: Vec<Row>,
}

impl<'a> Functions<'a> {
    fn new(base: Vaddr, processor: &'static Processor, limits: Limits<'a>) -> Self {
        Self { base, processor, limits, functions: Vec::new(), rows: Vec::new() }
    }

    /// Adds the functions of a section.
    fn read(&mut self, mut section: CallFrames<'_>, bases: &BaseAddresses) -> Result<()> {
        section.set_vendor(self.processor.vendor);
        let mut context = UnwindContext::new_in();
        // CIEs by their offset in the section, ascending.
        let mut common: Vec<(usize, Cie<'_>)> = Vec::new();
        let mut entries = section.entries(bases);
        while let Some(entry) = entries.next().map_err(malformed)? {
            match entry {
                CieOrFde::Cie(cie) if cie.entry_len() <= MAX_CIE => {
                    if common.len() == MAX_CIES {
                        return Err(Error::elf(format!(".eh_frame: more than {MAX_CIES} CIEs")));
                    }
                    common.push((cie.offset(), cie));
                }
                CieOrFde::Cie(_) => {}
                CieOrFde::Fde(partial) => {
                    // An FDE refers to an earlier CIE. An FDE without a valid CIE or range is skipped; its
                    // code becomes a gap, which gets an unknown row.
                    let at = partial.cie_offset().0;
                    let found = common.binary_search_by_key(&at, |(at, _)| *at).ok();
                    let Some((_, cie)) = found.and_then(|index| common.get(index)) else {
                        continue;
                    };
                    if let Ok(fde) = partial.parse(|_, _, _| Ok(cie.clone())) {
                        self.add(section, bases, &mut context, &fde)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        section: CallFrames<'_>,
        bases: &BaseAddresses,
        context: &mut UnwindContext<usize, Storage>,
        fde: &Fde<'_>,
    ) -> Result<()> {
        let start = fde.initial_address().checked_sub(self.base.0).map(u32::try_from);
        let Some(Ok(start)) = start else {
            return Ok(());
        };
        // Rows are looked up for addresses of code only.
        let end = self.limits.end_of_code(start).min(u64::from(start).saturating_add(fde.len()));
        if end <= u64::from(start) {
            return Ok(());
        }
        let first = self.rows.len();
        let processor = self.processor;
        let has_standard_ra = fde.cie().return_address_register() == processor.return_address;
        let mut states = fde.rows(&section, bases, context).ok().filter(|_| has_standard_ra);
        let mut pc = u64::from(start);
        while pc < end {
            match states.as_mut().map(gimli::UnwindTable::next_row) {
                Some(Ok(Some(state))) => {
                    self.push(
                        first,
                        pc,
                        (processor.row)(section, state, fde.is_signal_trampoline()),
                    )?;
                    pc = state.end_address().saturating_sub(self.base.0);
                }
                Some(Ok(None)) => break,
                // After an invalid instruction, the rest of the function is unknown. If its CIE is not
                // supported, the complete function is unknown.
                Some(Err(_)) | None => {
                    self.push(first, pc, Row::unknown())?;
                    break;
                }
            }
        }
        self.end_function(start, end, first)
    }

    /// Adds a function whose rows begin at `first`.
    fn end_function(&mut self, start: u32, end: u64, first: usize) -> Result<()> {
        self.limits.make_space(&mut self.functions)?;
        self.functions.push(Function { start, end, rows: first..self.rows.len() });
        Ok(())
    }

    /// Adds a row to the function whose rows begin at `first`.
    fn push(&mut self, first: usize, pc: u64, row: Row) -> Result<()> {
        let Ok(pc) = u32::try_from(pc) else {
            return Ok(());
        };
        // If there are several rows for one instruction, the last one is valid.
        if self.rows.get(first..).and_then(<[Row]>::last).is_some_and(|last| last.pc == pc) {
            self.rows.pop();
        }
        push(&mut self.limits, &mut self.rows, first, row.at(pc))
    }

    /// Sorts all functions, and adds unknown rows for the gaps between them.
    fn into_rows(mut self) -> Result<Vec<Row>> {
        // Sorting takes memory for half of the functions.
        let sorting = self.functions.len() * size_of::<Function>() / 2;
        self.limits.reserve(sorting as u64)?;
        self.functions.sort_by_key(|function| function.start);
        self.functions.dedup_by_key(|function| function.start);
        let mut rows = Vec::new();
        let mut functions = self.functions.iter().peekable();
        while let Some(function) = functions.next() {
            // If functions overlap, the one with the later start is valid, because functions that the linker
            // discarded may remain with address 0.
            let next = functions.peek().map_or(1 << 32, |next| u64::from(next.start));
            let end = function.end.min(next);
            let own = self.rows.get(function.rows.clone()).unwrap_or_default();
            for row in own.iter().take_while(|row| u64::from(row.pc) < end) {
                push(&mut self.limits, &mut rows, 0, *row)?;
            }
            if let Some(gap) = u32::try_from(end).ok().filter(|_| end < next) {
                push(&mut self.limits, &mut rows, 0, Row::unknown().at(gap))?;
            }
        }
        rows.shrink_to_fit();
        Ok(rows)
    }
}

/// Adds a row if the rules change. Rows before `first` belong to other functions.
fn push(limits: &mut Limits<'_>, rows: &mut Vec<Row>, first: usize, row: Row) -> Result<()> {
    let last = rows.get(first..).and_then(<[Row]>::last);
    if last.is_some_and(|last| last.at(row.pc) == row) {
        return Ok(());
    }
    if rows.len() >= limits.max_rows() {
        let max = limits.max_rows();
        return Err(Error::elf(format!(".eh_frame: more than {max} rows for its code")));
    }
    limits.make_space(rows)?;
    rows.push(row);
    Ok(())
}

fn malformed(error: gimli::Error) -> Error {
    Error::elf(format!(".eh_frame: {error}"))
}

/// Converts an offset in bytes to the unit of rows; `None` if it is not a multiple of that unit.
fn words(offset: i64) -> Option<i64> {
    (offset % WORD == 0).then_some(offset / WORD)
}

fn bytes<'a>(section: CallFrames<'a>, expression: &UnwindExpression<usize>) -> Option<Bytes<'a>> {
    expression.get(&section).ok().map(|expression| expression.0)
}

/// Reads `DW_OP_breg<n> offset`: register + offset.
fn register_plus(expression: &mut Bytes<'_>) -> SavedLocation {
    let op = expression.read_u8().ok()?;
    let register = (DW_OP_breg0.0..=DW_OP_breg31.0).contains(&op).then(|| op - DW_OP_breg0.0)?;
    Some((Register(register.into()), expression.read_sleb128().ok()?))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        env,
        fs::{self, File},
        mem,
        path::{Path, PathBuf},
        process::{Command, Stdio},
    };

    use gimli::constants::{
        DW_CFA_advance_loc, DW_CFA_advance_loc4, DW_CFA_def_cfa, DW_CFA_def_cfa_expression,
        DW_CFA_def_cfa_offset, DW_CFA_def_cfa_register, DW_CFA_expression, DW_CFA_offset,
        DW_CFA_register, DW_CFA_remember_state, DW_CFA_restore, DW_CFA_restore_state,
        DW_CFA_same_value, DW_CFA_set_loc, DW_CFA_undefined, DW_OP_and, DW_OP_breg6, DW_OP_breg7,
        DW_OP_breg16, DW_OP_deref, DW_OP_ge, DW_OP_lit0, DW_OP_lit3, DW_OP_lit15, DW_OP_plus,
        DW_OP_plus_uconst, DW_OP_shl,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::elf::testing::{Library, open};

    const RBP: u8 = 6;
    const RSP: u8 = 7;
    const RIP: u8 = 16;
    const BASE: u64 = 0x1000;

    /// The rules at the start of every function: CFA = rsp + 8, return address at CFA - 8.
    const STANDARD_ENTRY: &[u8] = &[DW_CFA_def_cfa.0, RSP, 8, DW_CFA_offset.0 | RIP, 1];

    /// A handmade `.eh_frame`.
    #[derive(Default)]
    struct Frames {
        bytes: Vec<u8>,
        common: usize,
    }

    impl Frames {
        fn new(augmentation: &str, instructions: &[u8]) -> Self {
            Self::default().common(augmentation, instructions)
        }

        /// Adds a CIE for the functions after it.
        fn common(mut self, augmentation: &str, instructions: &[u8]) -> Self {
            self.common = self.bytes.len();
            // Version 1, code alignment factor 1, data alignment factor -8.
            let head = [&[1], augmentation.as_bytes(), &[0, 1, 0x78, RIP]].concat();
            self.entry(0, &[&head, instructions].concat());
            self
        }

        fn function(mut self, start: u64, len: u64, instructions: &[u8]) -> Self {
            let back = self.bytes.len() + 4 - self.common;
            let range = [start.to_le_bytes(), len.to_le_bytes()].concat();
            self.entry(u32::try_from(back).unwrap(), &[&range, instructions].concat());
            self
        }

        fn entry(&mut self, id: u32, content: &[u8]) {
            let len = u32::try_from(content.len() + 4).unwrap();
            self.bytes.extend(len.to_le_bytes());
            self.bytes.extend(id.to_le_bytes());
            self.bytes.extend(content);
        }

        fn read(&self) -> Result<UnwindTable> {
            UnwindTable::from_section(&self.bytes, &BaseAddresses::default(), Vaddr(BASE))
        }

        fn rows(&self) -> Vec<Row> {
            self.read().unwrap().rows
        }
    }

    /// Returns the rows of a single function of 16 bytes at the base.
    fn rows(instructions: &[&[u8]]) -> Vec<Row> {
        Frames::new("", STANDARD_ENTRY).function(BASE, 16, &instructions.concat()).rows()
    }

    fn advance(bytes: u8) -> Vec<u8> {
        vec![DW_CFA_advance_loc.0 | bytes]
    }

    fn cfa_expression(expression: &[u8]) -> Vec<u8> {
        [&[DW_CFA_def_cfa_expression.0, u8::try_from(expression.len()).unwrap()], expression]
            .concat()
    }

    fn at(pc: u32, kind: RowKind, cfa: u16, fp: i8) -> Row {
        Row::new(kind, cfa, fp).at(pc)
    }

    fn unknown(pc: u32) -> Row {
        Row::unknown().at(pc)
    }

    #[test]
    fn a_row_takes_eight_bytes() {
        assert_eq!((size_of::<Row>(), align_of::<Row>()), (8, 4));
        assert_eq!(mem::offset_of!(Row, cfa), 4);
        assert_eq!(mem::offset_of!(Row, kind), 6);
        assert_eq!(mem::offset_of!(Row, fp), 7);
    }

    #[test]
    fn function_with_frame_pointer_yields_its_rows() {
        let function = [
            &advance(1)[..], // push %rbp
            &[DW_CFA_def_cfa_offset.0, 16, DW_CFA_offset.0 | RBP, 2],
            &advance(3), // mov %rsp, %rbp
            &[DW_CFA_def_cfa_register.0, RBP],
            &advance(4), // leave, ret: the first of two returns
            &[DW_CFA_remember_state.0, DW_CFA_restore.0 | RBP, DW_CFA_def_cfa.0, RSP, 8],
            &advance(1),
            &[DW_CFA_restore_state.0],
        ];
        let expected = [
            at(0, RowKind::Sp, 1, Row::FP_SAME),
            at(1, RowKind::Sp, 2, -2),
            at(4, RowKind::Fp, 2, -2),
            at(8, RowKind::Sp, 1, Row::FP_SAME),
            at(9, RowKind::Fp, 2, -2),
            unknown(16),
        ];
        assert_eq!(rows(&function), expected);
    }

    #[test]
    fn cfa_expressions_of_linkers_and_assemblers_are_decoded() {
        let plt = |number: u8| {
            let shift = [DW_OP_ge.0, DW_OP_lit3.0, DW_OP_shl.0, DW_OP_plus.0];
            let rip = [DW_OP_breg7.0, 8, DW_OP_breg16.0, 0, DW_OP_lit15.0, DW_OP_and.0];
            [&rip[..], &[DW_OP_lit0.0 + number], &shift].concat()
        };
        let (rbp, rsp, deref, plus) =
            (DW_OP_breg6.0, DW_OP_breg7.0, DW_OP_deref.0, DW_OP_plus_uconst.0);
        let minus_8 = 0x78;
        for (expression, kind, cfa) in [
            (plt(11), RowKind::Plt, 11),
            (plt(5), RowKind::Plt, 5),
            (vec![rbp, minus_8, deref], RowKind::DerefFp, 0xffff),
            (vec![rsp, 40, deref], RowKind::DerefSp, 5),
            (vec![rbp, 16, deref, plus, 8], RowKind::DerefFpPlus8, 2),
            (vec![rsp, minus_8, deref, plus, 8], RowKind::DerefSpPlus8, 0xffff),
            (vec![rsp, 40, deref, plus, 16], RowKind::Unknown, 0),
            (vec![rsp, 40, deref, deref], RowKind::Unknown, 0),
            (vec![rsp, 41, deref], RowKind::Unknown, 0),
            (vec![rsp, 40], RowKind::Unknown, 0),
            (vec![DW_OP_breg0.0, 0, deref], RowKind::Unknown, 0),
            ([plt(11), vec![DW_OP_lit3.0]].concat(), RowKind::Unknown, 0),
            (vec![], RowKind::Unknown, 0),
        ] {
            let found = rows(&[&cfa_expression(&expression)])[0];
            assert_eq!(found, at(0, kind, cfa, 0), "{expression:x?}");
        }
    }

    #[test]
    fn unsupported_rules_yield_unknown_rows() {
        for instructions in [
            &[DW_CFA_def_cfa.0, 10, 0][..],                        // CFA = r10
            &[DW_CFA_def_cfa_offset.0, 12],                        // no multiple of 8
            &[DW_CFA_def_cfa_offset.0, 0x80, 0x80, 0x20],          // half a megabyte
            &[DW_CFA_offset.0 | RIP, 2],                           // return address elsewhere
            &[DW_CFA_register.0, RIP, 1],                          // return address in rdx
            &[DW_CFA_same_value.0, RIP],                           // return address unchanged
            &[DW_CFA_restore_state.0],                             // nothing is remembered
            &[0x3f],                                               // no such instruction
            &[DW_CFA_def_cfa.0, RSP],                              // cut off
            &[DW_CFA_def_cfa_expression.0, 100, DW_OP_breg7.0, 8], // expression cut off
        ] {
            let found = rows(&[&advance(4), instructions]);
            let expected = [at(0, RowKind::Sp, 1, 0), unknown(4)];
            assert_eq!(found, expected, "{instructions:x?}");
        }
    }

    #[test]
    fn unsupported_frame_pointer_rule_retains_the_cfa() {
        for (instructions, fp) in [
            (&[DW_CFA_offset.0 | RBP, 127][..], -127),
            (&[DW_CFA_offset.0 | RBP, 0x80, 1], Row::FP_LOST),
            (&[DW_CFA_offset.0 | RBP, 0], Row::FP_LOST),
            (&[DW_CFA_undefined.0, RBP], Row::FP_LOST),
            (&[DW_CFA_register.0, RBP, 0], Row::FP_LOST),
            (&[DW_CFA_expression.0, RBP, 2, DW_OP_breg6.0, 0], Row::FP_LOST),
            (&[DW_CFA_same_value.0, RBP], Row::FP_SAME),
        ] {
            assert_eq!(rows(&[instructions])[0], at(0, RowKind::Sp, 1, fp), "{instructions:x?}");
        }
    }

    #[test]
    fn signal_and_outermost_frames_are_recognized() {
        let saved = |register, offset: [u8; 2]| {
            [DW_CFA_expression.0, register, 3, DW_OP_breg7.0, offset[0], offset[1]]
        };
        let restore_rt = |rip| {
            let cfa = cfa_expression(&[DW_OP_breg7.0, 0xa0, 1, DW_OP_deref.0]);
            [&cfa[..], &saved(RIP, rip), &saved(RBP, [0xf8, 0])].concat()
        };
        let first = |augmentation, instructions: &[u8]| {
            Frames::new(augmentation, &[]).function(BASE, 16, instructions).rows()[0]
        };
        let rip = [0xa8, 1];
        assert_eq!(first("S", &restore_rt(rip)), at(0, RowKind::Signal, 0, 0));
        assert_eq!(first("", &restore_rt(rip)), unknown(0));
        assert_eq!(first("S", &restore_rt([0xb0, 1])), unknown(0));
        // Some ordinary functions are marked as signal frames.
        assert_eq!(first("S", STANDARD_ENTRY), at(0, RowKind::Sp, 1, 0));
        assert_eq!(first("", &[DW_CFA_undefined.0, RIP]), at(0, RowKind::End, 0, 0));
    }

    #[test]
    fn equal_rows_merge_and_gaps_are_unknown() {
        let grow = [DW_CFA_def_cfa_offset.0, 16];
        let twice = [&advance(4)[..], &[DW_CFA_def_cfa_offset.0, 8], &advance(4), &grow].concat();
        let table = Frames::new("", STANDARD_ENTRY)
            .function(BASE + 64, 16, &grow)
            .function(BASE, 16, &twice)
            .function(BASE + 16, 16, &grow)
            .read()
            .unwrap();
        let expected = [
            at(0, RowKind::Sp, 1, 0),
            at(8, RowKind::Sp, 2, 0),
            unknown(32),
            at(64, RowKind::Sp, 2, 0),
            unknown(80),
        ];
        assert_eq!(table.rows(), expected);
        assert_eq!(table.base(), Vaddr(BASE));
        assert_eq!(table.find(Vaddr(BASE - 1)), None);
        for (pc, row) in [(0, 0), (7, 0), (8, 1), (31, 1), (32, 2), (64, 3), (1 << 40, 4)] {
            assert_eq!(table.find(Vaddr(BASE + pc)), Some(&expected[row]), "{pc}");
        }
    }

    #[test]
    fn later_start_wins_if_functions_overlap() {
        let grow = [DW_CFA_def_cfa_offset.0, 16];
        let found = Frames::new("", STANDARD_ENTRY)
            .function(BASE, 100, &[&advance(50)[..], &grow].concat())
            .function(BASE + 20, 10, &grow)
            .function(BASE + 20, 20, &[])
            .rows();
        let expected = [at(0, RowKind::Sp, 1, 0), at(20, RowKind::Sp, 2, 0), unknown(30)];
        assert_eq!(found, expected);
    }

    #[test]
    fn functions_outside_the_address_range_are_dropped() {
        let far = |start| Frames::new("", STANDARD_ENTRY).function(start, 16, &[]).rows();
        assert_eq!(far(BASE - 8), []);
        assert_eq!(far(BASE + (1 << 32)), []);
        assert_eq!(far(u64::MAX), []);
        // A function that extends beyond the highest address that a row can have. No unknown row follows it.
        assert_eq!(far(BASE + (1 << 32) - 8), [at(u32::MAX - 7, RowKind::Sp, 1, 0)]);
        // A program cannot add rows outside of its function.
        let leap = [DW_CFA_advance_loc4.0, 0xff, 0xff, 0xff, 0xff, DW_CFA_def_cfa_offset.0, 16];
        assert_eq!(rows(&[&leap]), [at(0, RowKind::Sp, 1, 0), unknown(16)]);
        let back = [&[DW_CFA_set_loc.0][..], &[0; 8]].concat();
        assert_eq!(rows(&[&advance(4), &back]), [at(0, RowKind::Sp, 1, 0), unknown(4)]);
        assert_eq!(Frames::new("", STANDARD_ENTRY).function(BASE, 0, &[]).rows(), []);
    }

    #[test]
    fn too_many_rows_or_cies_are_rejected() {
        let mut program = Vec::new();
        for _ in 0..=limits::MAX_ROWS / 2 {
            program.extend([DW_CFA_def_cfa_offset.0, 16, DW_CFA_advance_loc.0 | 1]);
            program.extend([DW_CFA_def_cfa_offset.0, 24, DW_CFA_advance_loc.0 | 1]);
        }
        let many = Frames::new("", STANDARD_ENTRY).function(BASE, 1 << 30, &program).read();
        let error = many.unwrap_err().to_string();
        assert!(error.contains("more than 4000000 rows"), "{error}");
        let mut many = Frames::default();
        for _ in 0..=MAX_CIES {
            many = many.common("", STANDARD_ENTRY);
        }
        let error = many.read().unwrap_err().to_string();
        assert!(error.contains("more than 65536 CIEs"), "{error}");
    }

    #[test]
    fn file_for_another_processor_type_is_rejected() {
        let mut bytes = Library::build(".text\nnop\n", &[]).bytes();
        bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
        let error = UnwindTable::read(&open(&bytes).unwrap()).unwrap_err().to_string();
        assert!(error.contains("not on machine 243"), "{error}");
    }

    #[test]
    fn file_without_call_frame_information_has_no_rows() {
        if Machine::NATIVE == Machine::X86_64 {
            let elf = Library::build(".text\nnop\n", &[]).elf();
            assert_eq!(UnwindTable::read(&elf).unwrap().rows(), []);
        }
    }

    /// For each address, the text that readelf prints for CFA, rbp and return address.
    type Truth = BTreeMap<u64, [String; 3]>;

    /// Returns all rows of a file, and the ends of functions; `None` without readelf.
    fn readelf(path: &Path) -> Option<(Truth, Vec<u64>)> {
        let output = Command::new("readelf")
            .args(["-W", "--debug-dump=frames-interp"])
            .arg(path)
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |hex| u64::from_str_radix(hex, 16).unwrap();
        let (mut truth, mut ends) = (Truth::new(), Vec::new());
        // The rules of a CIE apply to a function without rules of its own.
        let (mut common, mut cie) = (BTreeMap::new(), None);
        let mut columns = Vec::new();
        for line in output.lines() {
            // A register is printed as `r9 (r9)`.
            let words = line.split_whitespace().filter(|word| !word.starts_with('('));
            let words: Vec<_> = words.collect();
            match words[..] {
                [_, "ZERO", "terminator"] => {}
                [at, _, _, "CIE", ..] => cie = Some(at),
                [_, _, _, "FDE", of, range, ..] => {
                    cie = None;
                    let (start, end) = range.trim_start_matches("pc=").split_once("..").unwrap();
                    if let Some(row) = common.get(of.trim_start_matches("cie=")) {
                        truth.insert(number(start), <[String; 3]>::clone(row));
                    }
                    ends.push(number(end));
                }
                ["LOC", "CFA", ..] => columns = words,
                [pc, cfa, ..] if words.len() == columns.len() => {
                    let column = |name| {
                        let at = columns.iter().position(|column| *column == name);
                        at.map_or("u", |at| words[at]).to_owned()
                    };
                    let row = [cfa.to_owned(), column("rbp"), column("ra")];
                    match cie {
                        Some(cie) => _ = common.insert(cie, row),
                        None => _ = truth.insert(number(pc), row),
                    }
                }
                _ => {}
            }
        }
        Some((truth, ends))
    }

    /// Converts a result to a row; `None` for an expression, because readelf prints only `exp`.
    fn row_of([cfa, rbp, ra]: &[String; 3]) -> Option<Row> {
        let words = |bytes: &str| bytes.parse().ok().filter(|n: &i64| n % 8 == 0).map(|n| n / 8);
        if cfa == "exp" || ra == "exp" {
            return None;
        }
        let kind = match cfa.split_at_checked(3) {
            Some(("rsp", rest)) => words(rest).map(|n| (RowKind::Sp, n)),
            Some(("rbp", rest)) => words(rest).map(|n| (RowKind::Fp, n)),
            _ => None,
        };
        let fp = match (rbp.as_str(), rbp.strip_prefix('c').and_then(words)) {
            ("u", _) => 0,
            (_, Some(n)) => i8::try_from(n).unwrap_or(Row::FP_LOST),
            _ => Row::FP_LOST,
        };
        Some(match (ra.as_str(), kind) {
            ("u", _) => Row::new(RowKind::End, 0, 0),
            ("c-8", Some((kind, cfa))) => Row::new(kind, u16::try_from(cfa).unwrap(), fp),
            _ => Row::unknown(),
        })
    }

    /// Compares a file's table with readelf's result. Returns the number of compared rows; `None` without
    /// readelf.
    fn agrees_with_readelf(path: &Path) -> Option<usize> {
        let elf = ElfFile::open(File::open(path).unwrap()).unwrap();
        let table = UnwindTable::read(&elf).unwrap();
        assert!(table.rows().is_sorted_by(|a, b| a.pc < b.pc));
        let (truth, ends) = readelf(path)?;
        for end in ends {
            if !truth.contains_key(&end) {
                let next = truth.range(end..).next().map_or(u64::MAX, |(next, _)| *next);
                for pc in [end, next - 1] {
                    assert_eq!(table.find(Vaddr(pc)).unwrap().kind, 0, "{pc:#x}");
                }
            }
        }
        let mut expressions = 0;
        for (pc, row) in &truth {
            let found = *table.find(Vaddr(*pc)).unwrap();
            match row_of(row) {
                Some(expected) => assert_eq!(found.at(0), expected, "{pc:#x} {row:?}"),
                None => expressions += usize::from(found.kind != RowKind::Unknown as u8),
            }
        }
        // The table has no row that readelf lacks.
        for row in table.rows().iter().filter(|row| row.kind != RowKind::Unknown as u8) {
            let pc = table.base().0 + u64::from(row.pc);
            assert!(truth.contains_key(&pc), "{pc:#x} {row:?}");
        }
        println!("{}: {} rows, {expressions} expressions", path.display(), truth.len());
        Some(truth.len())
    }

    #[test]
    fn real_files_agree_with_readelf() {
        if Machine::NATIVE != Machine::X86_64 {
            println!("skipped: not on x86-64");
            return;
        }
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])))
            .find(|path| path.ends_with("libc.so.6"));
        for path in env::current_exe().into_iter().chain(libc) {
            match agrees_with_readelf(&path) {
                Some(rows) => assert!(rows > 1000, "{}: {rows}", path.display()),
                None => println!("skipped {}: no readelf (binutils)", path.display()),
            }
        }
    }

    #[test]
    fn hostile_frames_yield_only_valid_rows() {
        let whole = Frames::new("", STANDARD_ENTRY)
            .function(BASE, 16, &[&advance(4)[..], &[DW_CFA_def_cfa_offset.0, 16]].concat())
            .function(BASE + 8, 32, &cfa_expression(&[DW_OP_breg7.0, 8, DW_OP_deref.0]))
            .common("S", &[])
            .function(BASE + 64, 16, &[DW_CFA_remember_state.0, DW_CFA_restore_state.0])
            .bytes;
        let at = 0..whole.len();
        let flips = prop::collection::vec((at.clone(), any::<u8>()), 0..8);
        let program = prop::collection::vec(any::<u8>(), 0..200);
        let check = |bytes: Vec<u8>| {
            let frames = Frames { bytes, common: 0 };
            if let Ok(table) = frames.read() {
                assert!(table.rows().is_sorted_by(|a, b| a.pc < b.pc));
                assert!(table.rows().iter().all(|row| row.kind <= RowKind::DerefSpPlus8 as u8));
            }
        };
        proptest!(ProptestConfig::with_cases(3000), |(cut in at, flips in flips, program in program)| {
            check(whole[..cut].to_vec());
            let mut flipped = whole.clone();
            for (at, byte) in flips {
                flipped[at] = byte;
            }
            check(flipped);
            check(Frames::new("", STANDARD_ENTRY).function(BASE, 0x1_0000, &program).bytes);
            check(Frames::new("zRS", &program).function(BASE, 0x1_0000, &program).bytes);
        });
    }
}
