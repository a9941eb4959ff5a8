//! Rows of aarch64. A call leaves the return address in the link register x30. A function that calls others saves x29 and
//! x30, nearly always side by side.
//!
//! Source: DWARF for the Arm 64-bit Architecture (aadwarf64), chapters 4.1 (numbers of registers; without a rule, x30 and
//! x29 are unchanged, because callees preserve x29) and 4.3 (`DW_CFA_AARCH64_negate_ra_state`: signed return addresses,
//! which the walker strips).

use gimli::{AArch64, CfaRule, RegisterRule, Vendor};

use crate::unwind::{CallFrames, Processor, Row, RowKind, RowReturn, State, words};

/// The processor's part of the conversion.
pub(super) const PROCESSOR: Processor = Processor {
    vendor: Vendor::AArch64,
    return_address: AArch64::X30,
    row,
    leaf: Row {
        pc: 0,
        cfa: 0,
        kind: RowKind::Sp as u8 | (RowReturn::InRegister as u8) << super::ROW_KIND_BITS,
        fp: Row::FP_SAME,
    },
};

/// Location of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// Unchanged.
    Same,
    /// Saved at the CFA plus this number of words.
    At(i64),
    /// Lost, or saved in a way that is not supported.
    Lost,
}

fn location(rule: Option<RegisterRule<usize>>) -> Location {
    match rule {
        None | Some(RegisterRule::SameValue) => Location::Same,
        Some(RegisterRule::Offset(offset)) => words(offset).map_or(Location::Lost, Location::At),
        Some(_) => Location::Lost,
    }
}

/// Converts the rules at an instruction to a row.
fn row(_section: CallFrames<'_>, state: &State, is_signal: bool) -> Row {
    let link = state.register(AArch64::X30);
    if matches!(link, Some(RegisterRule::Undefined)) {
        return Row::new(RowKind::End, 0, 0);
    }
    // The walker recognises the trampoline to which a signal handler returns by its instructions.
    if is_signal {
        return Row::unknown();
    }
    let CfaRule::RegisterAndOffset { register, offset } = *state.cfa() else {
        return Row::unknown();
    };
    let kind = match register {
        AArch64::SP => RowKind::Sp,
        AArch64::X29 => RowKind::Fp,
        _ => return Row::unknown(),
    };
    let Some(cfa) = words(offset).and_then(|words| u16::try_from(words).ok()) else {
        return Row::unknown();
    };
    let short = |at: i64| i8::try_from(at).ok().filter(|at| *at != Row::FP_LOST && *at != 0);
    let row = |fp: Option<i8>, location| fp.map(|fp| Row::new(kind, cfa, fp).returning(location));
    let row = match (location(state.register(AArch64::X29)), location(link)) {
        (Location::Same, Location::Same) => row(Some(Row::FP_SAME), RowReturn::InRegister),
        (Location::Lost, Location::Same) => row(Some(Row::FP_LOST), RowReturn::InRegister),
        (Location::At(fp), Location::Same) => row(short(fp), RowReturn::InRegister),
        (Location::Same, Location::At(link)) => row(short(link), RowReturn::Alone),
        (Location::At(fp), Location::At(link)) if link == fp + 1 => {
            // The pair is usually at the lower end of the frame, to which sp or x29 points.
            match i8::try_from(fp + i64::from(cfa)) {
                Ok(above) if above >= 0 => row(Some(above), RowReturn::InPair),
                _ => row(short(fp), RowReturn::AboveFp),
            }
        }
        _ => None,
    };
    row.unwrap_or_else(Row::unknown)
}

#[cfg(test)]
mod tests {
    use gimli::{
        BaseAddresses,
        constants::{
            DW_CFA_AARCH64_negate_ra_state, DW_CFA_advance_loc, DW_CFA_def_cfa,
            DW_CFA_def_cfa_offset, DW_CFA_offset, DW_CFA_restore, DW_CFA_undefined,
        },
    };

    use super::*;
    use crate::{Vaddr, unwind::UnwindTable};

    const SP: u8 = 31;
    const X29: u8 = 29;
    const X30: u8 = 30;
    const BASE: u64 = 0x1000;

    /// Returns the rows of a function of 32 bytes, without the unknown one after it.
    fn rows(instructions: &[u8]) -> Vec<Row> {
        let entry = |bytes: &mut Vec<u8>, id: u32, content: &[u8]| {
            bytes.extend(u32::try_from(content.len() + 4).unwrap().to_le_bytes());
            bytes.extend(id.to_le_bytes());
            bytes.extend(content);
        };
        let mut bytes = Vec::new();
        // Version 1, no augmentation, code alignment factor 4, data alignment factor -8; CFA = sp.
        entry(&mut bytes, 0, &[1, 0, 4, 0x78, X30, DW_CFA_def_cfa.0, SP, 0]);
        let back = u32::try_from(bytes.len() + 4).unwrap();
        let range = [BASE.to_le_bytes(), 32_u64.to_le_bytes()].concat();
        entry(&mut bytes, back, &[&range, instructions].concat());
        let bases = BaseAddresses::default();
        let table = UnwindTable::from_section_of(&PROCESSOR, &bytes, &bases, Vaddr(BASE)).unwrap();
        let (last, rows) = table.rows().split_last().unwrap();
        assert_eq!(last.at(0), Row::unknown());
        // If the function's row is unknown, too, the two are one row.
        if rows.is_empty() { vec![*last] } else { rows.to_vec() }
    }

    fn at(pc: u32, kind: RowKind, cfa: u16, fp: i8, location: RowReturn) -> Row {
        Row::new(kind, cfa, fp).returning(location).at(pc)
    }

    #[test]
    fn function_with_frame_record_yields_its_rows() {
        let instructions = [
            DW_CFA_AARCH64_negate_ra_state.0, // paciasp
            DW_CFA_advance_loc.0 | 1,         // stp x29, x30, [sp, -48]!
            DW_CFA_def_cfa_offset.0,
            48,
            DW_CFA_offset.0 | X29,
            6,
            DW_CFA_offset.0 | X30,
            5,
            DW_CFA_advance_loc.0 | 2, // mov x29, sp
            DW_CFA_def_cfa.0,
            X29,
            48,
            DW_CFA_advance_loc.0 | 3, // ldp x29, x30, [sp], 48
            DW_CFA_def_cfa.0,
            SP,
            0,
            DW_CFA_restore.0 | X29,
            DW_CFA_restore.0 | X30,
        ];
        let expected = [
            at(0, RowKind::Sp, 0, Row::FP_SAME, RowReturn::InRegister),
            at(4, RowKind::Sp, 6, Row::FP_SAME, RowReturn::InPair),
            at(12, RowKind::Fp, 6, Row::FP_SAME, RowReturn::InPair),
            at(24, RowKind::Sp, 0, Row::FP_SAME, RowReturn::InRegister),
        ];
        assert_eq!(rows(&instructions), expected);
        assert_eq!(PROCESSOR.leaf, expected[0]);
    }

    #[test]
    fn each_location_of_the_return_address_has_a_row() {
        let grow = [DW_CFA_def_cfa_offset.0, 64];
        let save = |register: u8, words: u8| [DW_CFA_offset.0 | register, words];
        let one = |rules: &[u8]| rows(&[&grow[..], rules].concat())[0];
        let sp = |fp, location| at(0, RowKind::Sp, 8, fp, location);
        assert_eq!(one(&save(X30, 7)), sp(-7, RowReturn::Alone));
        assert_eq!(one(&[save(X29, 8), save(X30, 7)].concat()), sp(0, RowReturn::InPair));
        assert_eq!(one(&[save(X29, 2), save(X30, 1)].concat()), sp(6, RowReturn::InPair));
        // A frame of 8 KiB, with the pair at its upper end.
        let large = [&[DW_CFA_def_cfa_offset.0, 0x80, 0x40][..], &save(X29, 2), &save(X30, 1)];
        let expected = at(0, RowKind::Sp, 1024, -2, RowReturn::AboveFp);
        assert_eq!(rows(&large.concat())[0], expected);
        assert_eq!(one(&save(X29, 8)), sp(-8, RowReturn::InRegister));
        assert_eq!(one(&[save(X29, 8), save(X30, 2)].concat()), Row::unknown());
        assert_eq!(one(&[DW_CFA_undefined.0, X30]), Row::new(RowKind::End, 0, 0));
        assert_eq!(one(&[DW_CFA_undefined.0, X29]), sp(Row::FP_LOST, RowReturn::InRegister));
        assert_eq!(one(&[DW_CFA_def_cfa.0, 3, 16]), Row::unknown());
    }
}
