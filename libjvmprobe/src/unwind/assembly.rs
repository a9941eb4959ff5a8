//! Unwind rows for libjvm.so's assembly functions, which `.eh_frame` does not describe.
//!
//! HotSpot's x86-64 assembly (`linux_x86_64.s`, in newer releases `linux_x86_64.S` and
//! `safefetch_linux_x86_64.S`) is built without call frame information. Its functions (`SpinPause`,
//! `_Copy_*`, `SafeFetch*`) use neither the stack nor rbp. So wherever `.text` has no other row, the return
//! address is at rsp.

use std::ops::Range;

use crate::{
    Result,
    elf::ElfFile,
    unwind::{Function, Functions, Row, RowKind},
};

/// A dynamic symbol that identifies libjvm.so, as in `.dynstr`.
const VM_STRUCTS: &[u8] = b"\0gHotSpotVMStructs\0";

/// The frame of a function that uses neither the stack nor rbp.
const LEAF: Row = Row { pc: 0, cfa: 1, kind: RowKind::Sp as u8, fp: Row::FP_SAME };

impl Functions {
    /// Adds rows for the gaps in `.text` of a libjvm.so. Does nothing for other files.
    pub(super) fn add_assembly(&mut self, elf: &ElfFile) -> Result<()> {
        let (Some(names), Some(text)) = (elf.section(".dynstr"), elf.section(".text")) else {
            return Ok(());
        };
        if !names.data()?.windows(VM_STRUCTS.len()).any(|window| window == VM_STRUCTS) {
            return Ok(());
        }
        let Some(start) = text.vaddr().0.checked_sub(self.base.0) else { return Ok(()) };
        let end = start.saturating_add(text.size()).min(1 << 32);
        for gap in self.gaps(start..end) {
            let first = self.rows.len();
            self.push(first, gap.start, LEAF)?;
            let Ok(start) = u32::try_from(gap.start) else { break };
            self.functions.push(Function { start, end: gap.end, rows: first..self.rows.len() });
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
    use crate::{Vaddr, elf::testing::Library, unwind::UnwindTable};

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
}
