//! Types for numbers with different meanings, so that the compiler prevents confusion.
//!
//! A process has a different number in each PID namespace that contains it. An address in the target is not a
//! file offset, and neither of them is a link-time address. To the machine, all of these are just `u32` or
//! `u64`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
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
    /// A PID in this process's PID namespace, as `ps` shows it here.
    Pid(u32), "{}"
);
unit!(
    /// The PID of a process in the innermost PID namespace that contains that process.
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
    /// A byte offset in a file.
    FileOffset(u64), "{:#x}"
);

impl Addr {
    /// Returns the address `bytes` further on; `None` if that exceeds the address space.
    pub(crate) fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}
