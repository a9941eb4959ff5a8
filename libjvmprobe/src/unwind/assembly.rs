//! Unwind rows for libjvm.so's assembly functions, which `.eh_frame` does not describe.
//!
//! HotSpot's assembly (`linux_x86_64.s`, in newer releases `linux_x86_64.S` and `safefetch_linux_x86_64.S`;
//! `{copy,atomic,safefetch}_linux_aarch64.S`) is built without call frame information. Its functions (`SpinPause`,
//! `_Copy_*`, `SafeFetch*`) use neither the stack nor the frame pointer. So wherever `.text` has no other row, the return
//! address is at rsp on x86-64, and in the link register on aarch64.
//!
//! On aarch64, the PLT of any file has no call frame information either, and also leaves the return address in the link
//! register.

use std::ops::Range;

use crate::{
    Result, Vaddr,
    elf::{ElfFile, Machine},
    unwind::Functions,
};

/// A dynamic symbol that identifies libjvm.so, as in `.dynstr`.
const VM_STRUCTS: &str = "gHotSpotVMStructs";

impl Functions<'_> {
    /// Adds rows for the gaps in `.text` of a libjvm.so. Does nothing for other files.
    pub(super) fn add_assembly(&mut self, elf: &ElfFile) -> Result<()> {
        if elf.machine() == Machine::Aarch64
            && let Some(plt) = elf.section(".plt")
        {
            self.add_leaves(plt.vaddr(), plt.size())?;
        }
        let Some(text) = elf.section(".text") else { return Ok(()) };
        if elf.dynamic_symbols()?.find(VM_STRUCTS).is_none() {
            return Ok(());
        }
        self.add_leaves(text.vaddr(), text.size())
    }

    /// Adds rows of frameless functions for the gaps in `size` bytes from an address on.
    fn add_leaves(&mut self, start: Vaddr, size: u64) -> Result<()> {
        let Some(start) = start.0.checked_sub(self.base.0) else { return Ok(()) };
        let end = start.saturating_add(size).min(1 << 32);
        // The functions' ranges and the gaps.
        self.limits.reserve((self.functions.len() * 2 * size_of::<Range<u64>>()) as u64)?;
        for gap in self.gaps(start..end) {
            let Ok(start) = u32::try_from(gap.start) else { break };
            let end = self.limits.end_of_code(start).min(gap.end);
            if end <= gap.start {
                continue;
            }
            let first = self.rows.len();
            self.push(first, gap.start, self.processor.leaf)?;
            self.end_function(start, end, first)?;
        }
        Ok(())
    }

    /// Returns the parts of a range that belong to no function.
    fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut functions: Vec<_> =
            self.functions.iter().map(|function| u64::from(function.start)..function.end).collect();
        functions.sort_by_key(|function| function.start);
        let mut gaps = Vec::new();
        let mut covered = range.start;
        for function in functions {
            let start = function.start.min(range.end);
            if start > covered {
                gaps.push(covered..start);
            }
            covered = covered.max(function.end);
        }
        if covered < range.end {
            gaps.push(covered..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        elf::testing::{Library, open},
        unwind::{RowKind, UnwindTable},
    };

    /// A function with a frame, one without call frame information, and a third one.
    fn assembly(symbol: &str) -> String {
        format!(
            ".text\n\
             .globl {symbol}\n\
             .type {symbol}, @function\n\
             {symbol}:\n .cfi_startproc\n push %rbp\n .cfi_def_cfa_offset 16\n .skip 15, 0x90\n .cfi_endproc\n\
             SpinPause:\n pause\n ret\n .skip 13, 0x90\n\
             last:\n .cfi_startproc\n ret\n .cfi_endproc\n"
        )
    }

    #[test]
    fn gaps_in_libjvm_unwind_as_frameless_functions() {
        let kind_at = |symbol: &str, offset: u64| {
            let elf = Library::build(&assembly(symbol), &[]).elf();
            let start = elf.symbols().unwrap().find(symbol).unwrap().value;
            let table = UnwindTable::read(&elf).unwrap();
            let row = *table.find(Vaddr(start.0 + offset)).unwrap();
            (row.kind, row.cfa)
        };
        let leaf = (RowKind::Sp as u8, 1);
        assert_eq!(kind_at("gHotSpotVMStructs", 1), (RowKind::Sp as u8, 2));
        assert_eq!(kind_at("gHotSpotVMStructs", 16), leaf);
        assert_eq!(kind_at("gHotSpotVMStructs", 18), leaf);
        assert_eq!(kind_at("other", 1), (RowKind::Sp as u8, 2));
        assert_eq!(kind_at("other", 18).0, RowKind::Unknown as u8);
    }

    #[test]
    fn unreadable_names_leave_the_rows_of_other_functions() {
        let library = Library::build(&assembly("other"), &[]);
        let start = library.elf().symbols().unwrap().find("other").unwrap().value;
        let mut bytes = library.bytes();
        // The section headers are the last part of the file. Makes each string table one without content.
        let table = u64::from_ne_bytes(bytes[40..48].try_into().unwrap()) as usize;
        for header in bytes[table..].chunks_exact_mut(64) {
            if header[4..12] == [3, 0, 0, 0, 2, 0, 0, 0] {
                header[4] = 8;
            }
        }
        let elf = open(&bytes).unwrap();
        assert!(elf.section(".dynstr").unwrap().data().is_err());
        assert_eq!(UnwindTable::read(&elf).unwrap().find(start).unwrap().kind, RowKind::Sp as u8);
    }
}
