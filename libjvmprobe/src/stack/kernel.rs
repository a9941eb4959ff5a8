//! Symbols of the kernel.
//!
//! They are kept small, for a daemon has them for months: a hundred thousand names take some
//! megabytes. Source: `s_show` of kernel/kallsyms.c.

use std::{
    cell::OnceCell,
    fs::File,
    io::{BufRead, BufReader, Read},
};

use crate::Addr;

/// Of /proc/kallsyms, so much is read: ten times what large kernels have.
const MAX_TEXT: u64 = 256 << 20;
/// As much of names is kept.
const MAX_NAMES: usize = 64 << 20;

/// Looks up functions of the kernel. Reads them when the first is asked for.
#[derive(Debug, Default)]
pub(crate) struct KernelSymbols(OnceCell<Table>);

impl KernelSymbols {
    /// The kernel function at an address; `None` where the kernel does not tell addresses
    /// (`kptr_restrict`).
    pub(crate) fn find(&self, addr: Addr) -> Option<String> {
        let read = || {
            let file = File::open("/proc/kallsyms");
            file.map(|file| Table::read(BufReader::new(file.take(MAX_TEXT)))).unwrap_or_default()
        };
        self.0.get_or_init(read).find(addr).map(str::to_owned)
    }
}

/// Functions by their addresses.
#[derive(Debug, Default)]
struct Table {
    /// The lowest address.
    base: u64,
    /// How far behind it a function begins, and where its name does; ascending.
    rows: Vec<(u32, u32)>,
    /// Names, each with a line's end.
    names: String,
}

impl Table {
    /// Reads lines of an address, a type, a name, and perhaps a module. What is no function, or
    /// lies four gigabytes behind the first, is left out.
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
        let base = all.iter().map(|(addr, _)| *addr).min().unwrap_or(0);
        let row = |(addr, name): (u64, u32)| Some((u32::try_from(addr - base).ok()?, name));
        let mut rows: Vec<_> = all.into_iter().filter_map(row).collect();
        // Several names of one function keep their order.
        rows.sort_by_key(|(offset, _)| *offset);
        rows.shrink_to_fit();
        names.shrink_to_fit();
        Self { base, rows, names }
    }

    /// The name that has the fewest underscores in front, where a function has several.
    fn find(&self, addr: Addr) -> Option<&str> {
        let offset = u32::try_from(addr.0.checked_sub(self.base)?).ok()?;
        let behind = self.rows.partition_point(|(at, _)| *at <= offset);
        let (start, _) = *self.rows.get(behind.checked_sub(1)?)?;
        let first = self.rows.partition_point(|(at, _)| *at < start);
        let name = |(_, at): &(u32, u32)| self.names.get(*at as usize..)?.lines().next();
        let underscores = |name: &&str| name.len() - name.trim_start_matches('_').len();
        self.rows.get(first..behind)?.iter().filter_map(name).min_by_key(underscores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        Table::read(text.as_bytes())
    }

    #[test]
    fn a_function_goes_up_to_the_next() {
        let table = table(
            "ffffffff81000000 T _stext\nffffffff81000000 T first\nffffffff81000100 d data\n\
             ffffffffc0001000 t of_module\t[ext4]\nffffffff81000200 t __second\nodd\n",
        );
        let find = |addr| table.find(Addr(addr));
        assert_eq!(find(0xffff_ffff_80ff_ffff), None);
        assert_eq!(find(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(find(0xffff_ffff_8100_01ff), Some("first"));
        assert_eq!(find(0xffff_ffff_8100_0200), Some("__second"));
        assert_eq!(find(0xffff_ffff_c000_1004), Some("of_module"));
    }

    #[test]
    fn addresses_that_are_not_told_are_unknown() {
        let table = table("0000000000000000 T _stext\n0000000000000000 T first\n");
        assert_eq!(table.find(Addr(0)), None);
        assert_eq!(table.find(Addr(0xffff_ffff_8100_0000)), None);
    }

    #[test]
    fn ours_are_read() {
        let symbols = KernelSymbols::default();
        // Whoever may not see them sees zeros, and knows nothing.
        let text = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let line = text.lines().find(|line| line.ends_with(" T schedule"));
        let addr = line.and_then(|line| u64::from_str_radix(line.get(..16)?, 16).ok());
        if let Some(addr) = addr.filter(|addr| *addr > 0) {
            assert_eq!(symbols.find(Addr(addr + 1)).as_deref(), Some("schedule"));
        }
    }
}
