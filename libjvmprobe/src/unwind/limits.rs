//! Limits of one unwind table: code that has rows, number of rows, and memory.
//!
//! Rows apply to code, so a file cannot have many more rows than its executable segments have bytes. Real libraries have
//! one row for 25 to 100 bytes of code. Functions that are compiled without optimization have four rows in eleven bytes
//! or more.

use std::ops::Range;

use crate::{Error, Result, Vaddr, elf::ElfFile};

/// Maximum number of rows of any file; a libjvm.so has about 200,000.
pub(super) const MAX_ROWS: usize = 4_000_000;
/// Minimum size of code for which a row is allowed, on average, in bytes.
const CODE_PER_ROW: u64 = 4;
/// Number of rows that are allowed in addition, for files with little code.
const EXTRA_ROWS: u64 = 1024;

/// Limits of a table.
pub(super) struct Limits<'a> {
    /// Code, relative to the table's base; ascending, without overlaps.
    code: Vec<Range<u64>>,
    max_rows: usize,
    reserve: &'a mut dyn FnMut(usize) -> bool,
}

impl<'a> Limits<'a> {
    /// Returns the limits of a file whose table has this base. `reserve` is called before memory is allocated, and
    /// returns whether there is enough.
    pub(super) fn of(
        elf: &ElfFile,
        base: Vaddr,
        reserve: &'a mut dyn FnMut(usize) -> bool,
    ) -> Self {
        let relative = |code: Range<Vaddr>| {
            let at = |vaddr: Vaddr| vaddr.0.saturating_sub(base.0).min(1 << 32);
            at(code.start)..at(code.end)
        };
        Self::new(elf.code().into_iter().map(relative).collect(), reserve)
    }

    /// Returns the limits of a file that has this number of bytes of code.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_code(size: u64, reserve: &'a mut dyn FnMut(usize) -> bool) -> Self {
        Self::new(std::iter::once(0..size).collect(), reserve)
    }

    fn new(code: Vec<Range<u64>>, reserve: &'a mut dyn FnMut(usize) -> bool) -> Self {
        let size: u64 = code.iter().map(|part| part.end - part.start).sum();
        let max_rows = usize::try_from(size / CODE_PER_ROW + EXTRA_ROWS).unwrap_or(MAX_ROWS);
        Self { code, max_rows: max_rows.min(MAX_ROWS), reserve }
    }

    /// Returns the maximum number of rows.
    pub(super) fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Returns the end of the code that contains a pc; 0 if the pc is not in code.
    pub(super) fn end_of_code(&self, pc: u32) -> u64 {
        let after = self.code.partition_point(|code| code.start <= pc.into());
        let code = after.checked_sub(1).and_then(|index| self.code.get(index));
        code.filter(|code| u64::from(pc) < code.end).map_or(0, |code| code.end)
    }

    /// Reserves memory.
    ///
    /// # Errors
    /// [`Error::Elf`] if there is too little.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<()> {
        let is_reserved = usize::try_from(bytes).is_ok_and(|bytes| (self.reserve)(bytes));
        is_reserved.then_some(()).ok_or_else(|| Error::elf("too little memory for unwind rows"))
    }

    /// Makes space for at least one more element.
    ///
    /// # Errors
    /// [`Error::Elf`] if there is too little memory.
    pub(super) fn make_space<T>(&mut self, elements: &mut Vec<T>) -> Result<()> {
        if elements.len() == elements.capacity() {
            let more = elements.len().max(512);
            self.reserve((more * size_of::<T>()) as u64)?;
            elements.reserve_exact(more);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{elf::testing::Library, unwind::UnwindTable};

    #[test]
    fn number_of_rows_is_limited_by_the_size_of_the_code() {
        let max = |size: u64| Limits::of_code(size, &mut |_| true).max_rows();
        assert_eq!((max(0), max(1 << 20)), (1024, (1 << 18) + 1024));
        assert_eq!(max(1 << 40), MAX_ROWS);
    }

    #[test]
    fn only_addresses_of_code_have_rows() {
        let mut reserve = |_| true;
        let limits = Limits::new(vec![0x1000..0x2000, 0x3000..0x3008], &mut reserve);
        let ends = [0, 0xfff, 0x1000, 0x1fff, 0x2000, 0x3007, 0x3008, u32::MAX]
            .map(|pc| limits.end_of_code(pc));
        assert_eq!(ends, [0, 0, 0x2000, 0x2000, 0, 0x3008, 0, 0]);
    }

    #[test]
    fn memory_is_reserved_before_it_is_allocated() {
        let functions =
            ".cfi_startproc\n push %rbp\n .cfi_def_cfa_offset 16\n .skip 15, 0x90\n .cfi_endproc\n";
        let elf = Library::build(&format!(".text\n{}", functions.repeat(2000)), &[]).elf();
        let rows = UnwindTable::read(&elf).unwrap().rows().len();
        let mut reserved = 0;
        let mut add = |bytes| {
            reserved += bytes;
            true
        };
        UnwindTable::read_within(&elf, &mut add).unwrap();
        assert!(reserved > rows * 16 && reserved < rows * 200, "{reserved} for {rows} rows");
        for max in [0, reserved / 2, reserved - 1] {
            let mut left = max;
            let mut take = |bytes| {
                let is_enough = bytes <= left;
                left -= if is_enough { bytes } else { 0 };
                is_enough
            };
            let error = UnwindTable::read_within(&elf, &mut take).unwrap_err().to_string();
            assert!(error.contains("too little memory"), "{error}");
        }
    }
}
