//! Rows of x86-64. A call pushes the return address, so it is directly below the CFA.
//!
//! Sources: System V psABI for x86-64, chapters 3.6 (numbers of registers) and 4.2.4; the rules that GNU ld writes for its
//! PLT (`elf_x86_64_eh_frame_lazy_plt` in binutils' elf64-x86-64.c), and glibc's rules for the return from a signal
//! handler (`__restore_rt` in libc_sigaction.c for x86-64).

use gimli::{
    CfaRule, Reader, RegisterRule, Vendor, X86_64,
    constants::{
        DW_OP_and, DW_OP_breg7, DW_OP_breg16, DW_OP_deref, DW_OP_ge, DW_OP_lit0, DW_OP_lit3,
        DW_OP_lit15, DW_OP_lit31, DW_OP_plus, DW_OP_plus_uconst, DW_OP_shl,
    },
};

use crate::unwind::{
    Bytes, CallFrames, Processor, Row, RowKind, RowReturn, SavedLocation, State, WORD, bytes,
    register_plus, words,
};

/// The processor's part of the conversion.
pub(super) const PROCESSOR: Processor = Processor {
    vendor: Vendor::Default,
    return_address: X86_64::RA,
    row,
    leaf: Row { pc: 0, cfa: 1, kind: RowKind::Sp as u8, fp: Row::FP_SAME },
};

/// Location of the return address where a call pushes it.
const RETURN_ADDRESS: RegisterRule<usize> = RegisterRule::Offset(-WORD);

/// CFA, rip and rbp of the code that a signal interrupted, as `__restore_rt` describes them.
const INTERRUPTED: (Option<(RowKind, u16)>, SavedLocation, SavedLocation) =
    (Some((RowKind::DerefSp, 160 / 8)), Some((X86_64::RSP, 168)), Some((X86_64::RSP, 120)));

/// Converts the rules at an instruction to a row.
fn row(section: CallFrames<'_>, state: &State, signal: bool) -> Row {
    let rbp = state.register(X86_64::RBP);
    match state.register(X86_64::RA) {
        Some(RegisterRule::Undefined) => Row::new(RowKind::End, 0, 0),
        Some(RETURN_ADDRESS) => match cfa(section, state.cfa()) {
            Some((kind, cfa)) => Row::new(kind, cfa, fp(rbp)).returning(RowReturn::BelowEnd),
            None => Row::unknown(),
        },
        rip if signal => {
            let interrupted = (cfa(section, state.cfa()), saved(section, rip), saved(section, rbp));
            if interrupted == INTERRUPTED {
                Row::new(RowKind::Signal, 0, 0)
            } else {
                Row::unknown()
            }
        }
        _ => Row::unknown(),
    }
}

/// Converts a CFA rule to [`Row::kind`] and [`Row::cfa`].
fn cfa(section: CallFrames<'_>, rule: &CfaRule<usize>) -> Option<(RowKind, u16)> {
    let (kind, offset) = match rule {
        CfaRule::RegisterAndOffset { register: X86_64::RSP, offset } => (RowKind::Sp, *offset),
        CfaRule::RegisterAndOffset { register: X86_64::RBP, offset } => (RowKind::Fp, *offset),
        CfaRule::RegisterAndOffset { .. } => return None,
        CfaRule::Expression(expression) => {
            let expression = bytes(section, expression)?;
            if let Some(number) = plt(expression.slice()) {
                return Some((RowKind::Plt, number.into()));
            }
            return deref(expression);
        }
    };
    Some((kind, u16::try_from(words(offset)?).ok()?))
}

/// Converts the rule of rbp to [`Row::fp`].
fn fp(rule: Option<RegisterRule<usize>>) -> i8 {
    match rule {
        // By the psABI, callees preserve rbp, so without a rule it is unchanged.
        None | Some(RegisterRule::SameValue) => Row::FP_SAME,
        Some(RegisterRule::Offset(offset)) => words(offset)
            .and_then(|words| i8::try_from(words).ok())
            .filter(|words| (-127..=126).contains(words) && *words != Row::FP_SAME)
            .unwrap_or(Row::FP_LOST),
        Some(_) => Row::FP_LOST,
    }
}

/// Returns the location (register and offset) that an expression rule computes.
fn saved(section: CallFrames<'_>, rule: Option<RegisterRule<usize>>) -> SavedLocation {
    let Some(RegisterRule::Expression(expression)) = rule else {
        return None;
    };
    let mut expression = bytes(section, &expression)?;
    register_plus(&mut expression).filter(|_| expression.is_empty())
}

/// Returns kind and offset of an expression that follows a pointer: *(register + offset) + plus.
fn deref(mut expression: Bytes<'_>) -> Option<(RowKind, u16)> {
    let (register, offset) = register_plus(&mut expression)?;
    if expression.read_u8().ok()? != DW_OP_deref.0 {
        return None;
    }
    let plus = match expression.read_u8() {
        Ok(op) if op == DW_OP_plus_uconst.0 => expression.read_uleb128().ok()?,
        Ok(_) => return None,
        Err(_) => 0,
    };
    let kind = match (register, plus) {
        (X86_64::RBP, 0) => RowKind::DerefFp,
        (X86_64::RSP, 0) => RowKind::DerefSp,
        (X86_64::RBP, 8) => RowKind::DerefFpPlus8,
        (X86_64::RSP, 8) => RowKind::DerefSpPlus8,
        _ => return None,
    };
    let offset = i16::try_from(words(offset)?).ok()?;
    expression.is_empty().then_some((kind, offset.cast_unsigned()))
}

/// Returns the number in GNU ld's expression for its lazy PLT:
/// rsp + 8 + ((rip & 15) >= number) << 3.
fn plt(expression: &[u8]) -> Option<u8> {
    let [sp, 8, ip, 0, fifteen, and, number, ge, three, shl, plus] = *expression else {
        return None;
    };
    let ops = [sp, ip, fifteen, and, ge, three, shl, plus];
    let expected = [
        DW_OP_breg7,
        DW_OP_breg16,
        DW_OP_lit15,
        DW_OP_and,
        DW_OP_ge,
        DW_OP_lit3,
        DW_OP_shl,
        DW_OP_plus,
    ];
    let number = (DW_OP_lit0.0..=DW_OP_lit31.0).contains(&number).then(|| number - DW_OP_lit0.0)?;
    (ops == expected.map(|op| op.0)).then_some(number)
}
