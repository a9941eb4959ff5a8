//! How a USDT probe says where its arguments are.
//!
//! An argument is `SIZE@PLACE`, size in bytes, negative when signed. The place
//! is an assembler operand: AT&T syntax on x86-64, the GNU syntax on aarch64.
//! Source: SystemTap's UserSpaceProbeImplementation, `sys/sdt.h`.

use std::fmt;

use crate::{Error, Result};

/// One argument: its size and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgSpec {
    /// 1, 2, 4 or 8 bytes.
    pub size: u8,
    /// Whether the value is to be sign-extended.
    pub signed: bool,
    /// Where it is at the probe.
    pub place: ArgPlace,
}

/// Where an argument is at the probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgPlace {
    /// In a register, or in its low part.
    Register(Register),
    /// In memory, at base + index * scale + displacement.
    Memory {
        /// The base register.
        base: Register,
        /// An index register and its scale: 1, 2, 4 or 8.
        index: Option<(Register, u8)>,
        /// Added to it.
        displacement: i64,
    },
    /// Known when the file was built.
    Constant(i64),
}

/// A register by its full-width name: `rax` for `%al`, `x0` for `w0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    name: &'static str,
}

impl Register {
    /// Its full-width name.
    pub fn name(self) -> &'static str {
        self.name
    }

    fn x86(text: &str) -> Option<Self> {
        let name = X86.iter().find(|(full, parts)| *full == text || parts.contains(&text))?.0;
        Some(Self { name })
    }

    fn aarch64(text: &str) -> Option<Self> {
        let wide = match text.strip_prefix('w') {
            Some(number) => format!("x{number}"),
            None => text.to_owned(),
        };
        AARCH64.iter().find(|name| **name == wide).map(|name| Self { name })
    }
}

/// x86-64 registers and the names of their parts; `%ah` and its like do not
/// occur, for they cannot be used together with a REX prefix.
const X86: [(&str, &[&str]); 17] = [
    ("rax", &["eax", "ax", "al"]),
    ("rbx", &["ebx", "bx", "bl"]),
    ("rcx", &["ecx", "cx", "cl"]),
    ("rdx", &["edx", "dx", "dl"]),
    ("rsi", &["esi", "si", "sil"]),
    ("rdi", &["edi", "di", "dil"]),
    ("rbp", &["ebp", "bp", "bpl"]),
    ("rsp", &["esp", "sp", "spl"]),
    ("r8", &["r8d", "r8w", "r8b"]),
    ("r9", &["r9d", "r9w", "r9b"]),
    ("r10", &["r10d", "r10w", "r10b"]),
    ("r11", &["r11d", "r11w", "r11b"]),
    ("r12", &["r12d", "r12w", "r12b"]),
    ("r13", &["r13d", "r13w", "r13b"]),
    ("r14", &["r14d", "r14w", "r14b"]),
    ("r15", &["r15d", "r15w", "r15b"]),
    ("rip", &[]),
];

const AARCH64: [&str; 32] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",
    "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27",
    "x28", "x29", "x30", "sp",
];

impl ArgSpec {
    /// Parses a note's argument string.
    ///
    /// # Errors
    /// [`Error::Elf`] naming the first argument whose shape is unknown.
    pub fn parse_all(text: &str) -> Result<Vec<Self>> {
        split(text).map(Self::parse).collect()
    }

    /// Parses one argument.
    ///
    /// # Errors
    /// [`Error::Elf`] where its shape is unknown.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_known(text)
            .ok_or_else(|| Error::elf(format!("a probe argument of unknown shape: {text:?}")))
    }

    fn parse_known(text: &str) -> Option<Self> {
        let (size, place) = text.split_once('@')?;
        let (signed, size) = match size.strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, size),
        };
        let size = size.parse().ok().filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
        let place = x86_place(place).or_else(|| aarch64_place(place))?;
        Some(Self { size, signed, place })
    }
}

/// Splits at blanks, but not inside the brackets of `[sp, 16]`.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c: char| {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        c.is_ascii_whitespace() && !inside
    })
    .filter(|arg| !arg.is_empty())
}

/// `%reg`, `$constant`, `disp(%base,%index,scale)`.
fn x86_place(text: &str) -> Option<ArgPlace> {
    if let Some(register) = text.strip_prefix('%') {
        return Register::x86(register).map(ArgPlace::Register);
    }
    if let Some(constant) = text.strip_prefix('$') {
        return number(constant).map(ArgPlace::Constant);
    }
    let (displacement, rest) = text.split_once('(')?;
    let displacement = if displacement.is_empty() { 0 } else { number(displacement)? };
    let mut parts = rest.strip_suffix(')')?.split(',').map(str::trim);
    let base = Register::x86(parts.next()?.strip_prefix('%')?)?;
    let index = match parts.next() {
        None => None,
        Some(index) => {
            let scale = match parts.next() {
                None => 1,
                Some(scale) => scale.parse().ok().filter(|s| matches!(s, 1 | 2 | 4 | 8))?,
            };
            Some((Register::x86(index.strip_prefix('%')?)?, scale))
        }
    };
    parts.next().is_none().then_some(ArgPlace::Memory { base, index, displacement })
}

/// `x0`, `w0`, `sp`, `5`, `[x0]`, `[sp, 16]`, `[x0, x1]`.
fn aarch64_place(text: &str) -> Option<ArgPlace> {
    let Some(inside) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) else {
        return Register::aarch64(text)
            .map(ArgPlace::Register)
            .or_else(|| number(text).map(ArgPlace::Constant));
    };
    let mut parts = inside.split(',').map(str::trim);
    let base = Register::aarch64(parts.next()?)?;
    let (index, displacement) = match parts.next() {
        None => (None, 0),
        Some(part) => match Register::aarch64(part) {
            Some(index) => (Some((index, 1)), 0),
            None => (None, number(part.strip_prefix('#').unwrap_or(part))?),
        },
    };
    parts.next().is_none().then_some(ArgPlace::Memory { base, index, displacement })
}

/// Decimal or hexadecimal, signed; unsigned 64-bit constants wrap as in C.
fn number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        // from_str takes a sign of its own, which would be a second one here.
        None if digits.starts_with('+') => return None,
        None => digits.parse().ok()?,
    };
    let value = value.cast_signed();
    Some(if negative { value.wrapping_neg() } else { value })
}

impl fmt::Display for ArgSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.signed { "-" } else { "" };
        write!(f, "{sign}{}@", self.size)?;
        match &self.place {
            ArgPlace::Register(register) => f.write_str(register.name),
            ArgPlace::Constant(value) => write!(f, "{value}"),
            ArgPlace::Memory { base, index, displacement } => {
                write!(f, "[{}", base.name)?;
                if let Some((index, scale)) = index {
                    write!(f, " + {} * {scale}", index.name)?;
                }
                match displacement {
                    0 => write!(f, "]"),
                    _ => write!(f, " {displacement:+}]"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn knows_every_shape() {
        for (text, shown) in [
            ("8@%rdx", "8@rdx"),
            ("-4@%eax", "-4@rax"),
            ("1@%sil", "1@rsi"),
            ("2@%r9w", "2@r9"),
            ("8@-80(%rbp)", "8@[rbp -80]"),
            ("8@152(%rdi)", "8@[rdi +152]"),
            ("8@(%rdi)", "8@[rdi]"),
            ("8@8(%rax,%rbx,4)", "8@[rax + rbx * 4 +8]"),
            ("8@(%rax,%rbx)", "8@[rax + rbx * 1]"),
            ("1@$1", "1@1"),
            ("-4@$-1", "-4@-1"),
            ("8@$0x10", "8@16"),
            ("8@x0", "8@x0"),
            ("4@w1", "4@x1"),
            ("8@sp", "8@sp"),
            ("8@[sp, 16]", "8@[sp +16]"),
            ("8@[x29, -8]", "8@[x29 -8]"),
            ("8@[x0]", "8@[x0]"),
            ("8@[x0, x1]", "8@[x0 + x1 * 1]"),
            ("-4@5", "-4@5"),
        ] {
            let parsed = ArgSpec::parse(text);
            assert_eq!(parsed.map(|p| p.to_string()).ok().as_deref(), Some(shown), "{text}");
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in [
            "",
            "@",
            "8@",
            "8",
            "3@%rax",
            "8@%zax",
            "8@foo(%rip",
            "8@foo(%rip)",
            "8@sym",
            "8@(%rax,%rbx,3)",
            "8@(%rax,%rbx,1,1)",
            "8@[x0, 1, 2]",
            "8@[",
            "8@x31",
            "8@--5",
            "8@$-+5",
        ] {
            assert!(ArgSpec::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn splits_outside_brackets_only() {
        let args = ArgSpec::parse_all("8@x0 -4@[sp, 16]  8@[x1, x2]").unwrap();
        assert_eq!(args.len(), 3);
        assert!(ArgSpec::parse_all("").unwrap().is_empty());
    }

    proptest! {
        #[test]
        fn never_panics(text in "[-0-9@%$()\\[\\], a-z+#x]{0,40}", any in ".{0,60}") {
            let _ = ArgSpec::parse_all(&text);
            let _ = ArgSpec::parse_all(&any);
        }
    }
}
