//! Symbols of the kernel.
//!
//! They are stored compactly, because a daemon keeps them for months: a hundred thousand names take a few
//! megabytes. Source of the format of /proc/kallsyms: `s_show` of kernel/kallsyms.c.

use std::{
    cell::OnceCell,
    fs::File,
    io::{BufRead, BufReader, Read},
};

use crate::Addr;

/// Maximum number of bytes read of /proc/kallsyms. With a large kernel, the file has a tenth of this size.
const MAX_TEXT: u64 = 256 << 20;
/// Maximum number of bytes of names kept.
const MAX_NAMES: usize = 64 << 20;

/// Looks up functions of the kernel. Reads the symbols at the first lookup.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols(OnceCell<Table>);

impl KernelSymbols {
    /// Returns the name of the kernel function at an address; `None` if unknown or if the kernel hides addresses
    /// (`kptr_restrict`).
    pub(crate) fn find(&self, addr: Addr) -> Option<String> {
        let read = || {
            let file = File::open("/proc/kallsyms");
            file.map(|file| Table::read(BufReader::new(file.take(MAX_TEXT)))).unwrap_or_default()
        };
        self.0.get_or_init(read).find(addr).map(str::to_owned)
    }
}

/// Maximum distance of an address from its function's beginning, in bytes. It separates the kernel from its modules.
const MAX_FUNCTION: u64 = 16 << 20;

/// Functions, sorted by address.
#[derive(Debug, Default)]
struct Table {
    /// Address of each function, ascending. On x86-64, the kernel and its modules are within 4 GiB of each other; on
    /// aarch64, they may be anywhere.
    addresses: Vec<u64>,
    /// Offset of each function's name in `names`.
    names_at: Vec<u32>,
    /// Names, each followed by a line break.
    names: String,
}

impl Table {
    /// Parses lines that contain an address, a type, a name, and perhaps a module. Omits symbols that are not
    /// functions.
    fn read(lines: impl BufRead) -> Self {
        let mut names = String::new();
        let mut all = Vec::new();
        for line in lines.lines().map_while(Result::ok) {
            let mut words = line.split_ascii_whitespace();
            let (Some(addr), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let addr = u64::from_str_radix(addr, 16).unwrap_or(0);
            if addr == 0 || !matches!(kind, "t" | "T" | "w" | "W") || names.len() > MAX_NAMES {
                continue;
            }
            all.push((addr, names.len() as u32));
            names.push_str(name);
            names.push('\n');
        }
        // A stable sort, so that several names of one function keep their order.
        all.sort_by_key(|(addr, _)| *addr);
        names.shrink_to_fit();
        let addresses = all.iter().map(|(addr, _)| *addr).collect();
        Self { addresses, names_at: all.iter().map(|(_, name)| *name).collect(), names }
    }

    /// Returns the name of the function at an address. If it has several, prefers the one with the fewest leading
    /// underscores.
    fn find(&self, addr: Addr) -> Option<&str> {
        let behind = self.addresses.partition_point(|at| *at <= addr.0);
        let start = *self.addresses.get(behind.checked_sub(1)?)?;
        if addr.0 - start >= MAX_FUNCTION {
            return None;
        }
        let first = self.addresses.partition_point(|at| *at < start);
        let name = |at: &u32| self.names.get(*at as usize..)?.lines().next();
        let underscores = |name: &&str| name.len() - name.trim_start_matches('_').len();
        self.names_at.get(first..behind)?.iter().filter_map(name).min_by_key(underscores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        Table::read(text.as_bytes())
    }

    #[test]
    fn function_extends_to_the_next_symbol() {
        let table = table(
            "ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 d data\n\
             ffffffffc0001000 t of_module\t[ext4]\nffffffff81000200 t __second\n\
             ffff80007a000000 t of_far_module\t[ext4]\nodd\n",
        );
        let find = |addr| table.find(Addr(addr));
        assert_eq!(find(0xffff_ffff_80ff_ffff), None);
        assert_eq!(find(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(find(0xffff_ffff_8100_01ff), Some("first"));
        assert_eq!(find(0xffff_ffff_8100_0200), Some("__second"));
        assert_eq!(find(0xffff_ffff_c000_1004), Some("of_module"));
        assert_eq!(find(0xffff_8000_7a00_0010), Some("of_far_module"));
        assert_eq!(find(0xffff_8000_7fff_ffff), None);
    }

    #[test]
    fn zeroed_kernel_addresses_do_not_resolve() {
        let table = table("0000000000000000 T _stext\n0000000000000000 T first\n");
        assert_eq!(table.find(Addr(0)), None);
        assert_eq!(table.find(Addr(0xffff_ffff_8100_0000)), None);
    }

    #[test]
    fn symbols_of_the_running_kernel_are_read() {
        let symbols = KernelSymbols::default();
        // Without the privilege, all addresses are 0, and no symbol is found.
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let line = text.lines().find(|line| line.ends_with(" T schedule"));
        let addr = line.and_then(|line| u64::from_str_radix(line.get(..16)?, 16).ok());
        if let Some(addr) = addr.filter(|addr| *addr > 0) {
            assert_eq!(symbols.find(Addr(addr + 1)).as_deref(), Some("schedule"));
        }
    }
}
