//! Unwind rows for the Java code of GraalVM native images, which `.eh_frame` does not describe.
//!
//! The image contains the addresses and frame sizes of methods. Each method allocates its complete frame at its
//! beginning and releases it directly before it returns. Graal's AMD64 backend always uses the same instructions for
//! that (frame contexts in `SubstrateAMD64Backend`). A method that begins differently gets an unknown row. Images of other
//! processors get no rows.

use crate::{
    Result, Vaddr,
    elf::{ElfFile, Machine, NATIVE_IMAGE_HEAP},
    native_image::{Image, Method},
    unwind::{Functions, Row, RowKind, WORD},
};

const PUSH_RBP: u8 = 0x55;
const POP_RBP: u8 = 0x5d;
const RET: u8 = 0xc3;
/// `sub` and `add` with rsp and an immediate of one byte or four.
const SUB: [&[u8]; 2] = [&[0x48, 0x83, 0xec], &[0x48, 0x81, 0xec]];
const ADD: [&[u8]; 2] = [&[0x48, 0x83, 0xc4], &[0x48, 0x81, 0xc4]];
/// Slot of the saved rbp, relative to the CFA in words: below the return address.
const SAVED_FP: i8 = -2;

impl Functions<'_> {
    /// Adds rows for the methods of a native image, if the file is one.
    pub(super) fn add_image(&mut self, elf: &ElfFile) -> Result<()> {
        if elf.machine() != Machine::X86_64 {
            return Ok(());
        }
        if let Some(heap) = elf.section(NATIVE_IMAGE_HEAP) {
            self.limits.reserve(heap.size())?;
        }
        let image = Image::read(elf).unwrap_or_else(|error| {
            log::debug!("native image: no unwind rows for its methods: {error}");
            None
        });
        let Some(image) = image else { return Ok(()) };
        let Some(text) = elf.section(".text") else { return Ok(()) };
        let text_at = text.vaddr();
        let (mut methods, mut unknown) = (0, 0);
        for method in image.methods() {
            let at = |vaddr: Vaddr| vaddr.0.checked_sub(text_at.0);
            let range = at(method.start).zip(at(method.end));
            let code = range.and_then(|(start, end)| text.part(start..end).ok());
            let rows = rows(&method, &code.unwrap_or_default());
            methods += 1;
            unknown += usize::from(rows.is_none());
            self.add_method(&method, rows.unwrap_or_else(|| vec![Row::unknown()]))?;
        }
        log::debug!("native image: {methods} methods, {unknown} of them with an unknown prologue");
        Ok(())
    }

    fn add_method(&mut self, method: &Method, rows: Vec<Row>) -> Result<()> {
        let start = method.start.0.checked_sub(self.base.0).map(u32::try_from);
        let Some(Ok(start)) = start else { return Ok(()) };
        let first = self.rows.len();
        for row in rows {
            self.push(first, u64::from(start) + u64::from(row.pc), row)?;
        }
        let end = method.end.0.saturating_sub(self.base.0).min(1 << 32);
        self.end_function(start, end, first)
    }
}

/// Encodes an instruction that adds to or subtracts from rsp.
fn adjust([short, long]: [&[u8]; 2], bytes: u32) -> Vec<u8> {
    match i8::try_from(bytes) {
        Ok(byte) => [short, &byte.to_le_bytes()].concat(),
        Err(_) => [long, &bytes.to_le_bytes()].concat(),
    }
}

/// Returns the rows of a method, with pcs relative to its start; `None` if it does not begin with the
/// expected instructions.
fn rows(method: &Method, code: &[u8]) -> Option<Vec<Row>> {
    // A method that does not save rbp may overwrite it, so the caller's rbp counts as lost.
    let [before, within] = match method.saves_fp {
        true => [Row::FP_SAME, SAVED_FP],
        false => [Row::FP_LOST; 2],
    };
    let entry = Row::new(RowKind::Sp, 1, before);
    let saved = u32::from(method.saves_fp);
    let locals = u32::from(method.frame_words).checked_sub(1 + saved)?;
    let allocated = Row::new(RowKind::Sp, method.frame_words, within);
    let pushed = Row::new(RowKind::Sp, 2, within);
    let mut rows = vec![entry];
    let mut at = 0;
    if method.saves_fp {
        (code.first() == Some(&PUSH_RBP)).then_some(())?;
        rows.push(pushed.at(1));
        at = 1;
    }
    if locals == 0 {
        return Some(rows);
    }
    let bytes = locals * u32::try_from(WORD).ok()?;
    let (sub, add) = (adjust(SUB, bytes), adjust(ADD, bytes));
    code.get(at..)?.starts_with(&sub).then_some(())?;
    let pc_at = |at: usize| u32::try_from(at).ok();
    rows.push(allocated.at(pc_at(at + sub.len())?));
    let ending: &[u8] = if method.saves_fp { &[POP_RBP, RET] } else { &[RET] };
    let mut rest = at + sub.len();
    while let Some(found) = find(code.get(rest..)?, &add) {
        let after = rest + found + add.len();
        rest = after;
        if !code.get(after..)?.starts_with(ending) {
            continue;
        }
        if method.saves_fp {
            rows.push(pushed.at(pc_at(after)?));
        }
        let ret = after + ending.len() - 1;
        rows.push(entry.at(pc_at(ret)?));
        rows.push(allocated.at(pc_at(ret + 1)?));
        rest = ret + 1;
    }
    Some(rows)
}

fn find(code: &[u8], instruction: &[u8]) -> Option<usize> {
    code.windows(instruction.len()).position(|window| window == instruction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{elf::testing::Library, native_image::testing::FakeImage, unwind::UnwindTable};

    #[test]
    fn image_methods_get_unwind_rows() {
        let library = Library::build(&FakeImage::new().assembly(), &[]);
        let elf = library.elf();
        let table = UnwindTable::read(&elf).unwrap();
        let start = Image::read(&elf).unwrap().unwrap().methods().next().unwrap().start;
        let at = |offset: u64| {
            let row = table.find(Vaddr(start.0 + offset)).unwrap();
            (row.kind, row.cfa, row.fp)
        };
        let sp = RowKind::Sp as u8;
        // The first method: before its frame is allocated, with its frame, at `ret`, and after `ret`.
        assert_eq!(at(0), (sp, 1, Row::FP_LOST));
        assert_eq!(at(4), (sp, 2, Row::FP_LOST));
        assert_eq!(at(9), (sp, 1, Row::FP_LOST));
        assert_eq!(at(10), (sp, 2, Row::FP_LOST));
        // The second method saves rbp.
        assert_eq!(at(0x40), (sp, 1, Row::FP_SAME));
        assert_eq!(at(0x41), (sp, 2, SAVED_FP));
        assert_eq!(at(0x45), (sp, 10, SAVED_FP));
        assert_eq!(at(0x1004), (sp, 2, SAVED_FP));
        assert_eq!(at(0x1005), (sp, 1, Row::FP_SAME));
        assert_eq!(at(0x1006), (sp, 10, SAVED_FP));
        assert_eq!(at(0x1200).0, RowKind::Unknown as u8);
    }

    #[test]
    fn unreadable_heap_leaves_the_rows_of_other_functions() {
        let function = ".text\n.globl f\nf:\n.cfi_startproc\nret\n.cfi_endproc\n";
        let heap = ".section .svm_heap,\"aw\",@nobits\n.skip 8\n";
        let elf = Library::build(&[function, heap].concat(), &[]).elf();
        assert!(Image::read(&elf).is_err());
        let start = elf.symbols().unwrap().find("f").unwrap().value;
        assert_eq!(UnwindTable::read(&elf).unwrap().find(start).unwrap().kind, RowKind::Sp as u8);
    }

    #[test]
    fn rows_depend_on_prologue_and_frame_size() {
        let method = |frame_words, saves_fp| Method {
            start: Vaddr(0),
            end: Vaddr(16),
            frame_words,
            saves_fp,
        };
        let code = [0x48, 0x83, 0xec, 8, 0x48, 0x83, 0xc4, 8, 0x90, 0x90];
        assert!(rows(&method(3, false), &code).is_none());
        assert!(rows(&method(3, true), &code).is_none());
        assert!(rows(&method(0, false), &code).is_none());
        assert!(rows(&method(2, false), &[]).is_none());
        // The code adds to rsp, but does not return afterwards, so no row is added for it.
        assert_eq!(rows(&method(2, false), &code).unwrap().len(), 2);
        // A method without a frame of its own.
        assert_eq!(rows(&method(1, false), &[]).unwrap().len(), 1);
        let large = [0x48, 0x81, 0xec, 0, 2, 0, 0, 0x48, 0x81, 0xc4, 0, 2, 0, 0, 0xc3];
        assert_eq!(rows(&method(65, false), &large).unwrap().len(), 4);
    }
}
