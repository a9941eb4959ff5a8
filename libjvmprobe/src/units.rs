//! Numbers that must not be mixed up: a type for each meaning.
//!
//! A process has one number for each PID namespace that sees it; an address in
//! the target is not an offset in a file; a link-time address is neither. Each
//! of these is a `u32` or `u64` to the machine, so the compiler keeps them apart.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

unit!(
    /// A process, numbered as this process sees it (the number that `ps` shows here).
    Pid(u32), "{}"
);
unit!(
    /// A process, numbered as it sees itself: inside its innermost PID namespace.
    NsPid(u32), "{}"
);
unit!(
    /// A virtual address in the traced process.
    Addr(u64), "{:#x}"
);
unit!(
    /// A link-time virtual address in an ELF file, before relocation.
    Vaddr(u64), "{:#x}"
);
unit!(
    /// A byte position in a file.
    FileOffset(u64), "{:#x}"
);

impl Addr {
    /// The address `bytes` further on; `None` where that leaves the address space.
    pub(crate) fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}
