//! Symbols of ELF files and of the kernel, by blazesym.
//!
//! Files are read by path; [`super::maps`] gives paths that open exactly what a
//! process has mapped. Names are demangled here, for blazesym would take a C
//! function `f` for the mangled name of C++'s `float`.
//!
//! blazesym finds debug information by links in the file (`.gnu_debuglink`,
//! `.gnu_debugaltlink`), which may be any path. So only files of root's in our own file system
//! have theirs read; all others are named by their own symbol tables. It maps files: see
//! [`super::shrunk`].

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    rc::Rc,
};

use blazesym::{
    MaybeDefault,
    symbolize::{
        CodeInfo, Input, Symbolizer,
        source::{Elf, Kernel, Source},
    },
};

use super::shrunk::survive_shrinking;
use crate::{
    Addr, FileOffset, Pid,
    jvm::{Process, root::Root},
};

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Its name, demangled.
    pub name: String,
    /// The source file's last name.
    pub file: Option<String>,
    /// The line, 0 where it is unknown.
    pub line: u32,
}

/// Looks up symbols. Keeps what it has read; clones share it.
#[derive(Clone, Debug)]
pub struct Symbols {
    symbolizer: Rc<Symbolizer>,
    /// Whether debug information may be looked for: it is found by paths that a file names,
    /// which whoever made the file has chosen.
    trusts_roots_files: bool,
}

/// Symbols for processes: all share them, for the symbols of one libjvm.so take 16 MB.
#[derive(Debug)]
pub struct SymbolsOfAll {
    /// For processes in our own file system.
    ours: Symbols,
    others: Symbols,
}

impl Default for SymbolsOfAll {
    fn default() -> Self {
        Self { ours: Symbols::new(true), others: Symbols::new(false) }
    }
}

/// By others than its owner.
const WRITABLE: u32 = 0o022;

impl SymbolsOfAll {
    /// For files of a process, which may end.
    pub fn of_process(&self, pid: Pid) -> Symbols {
        let root = Process::open(pid).ok().and_then(|process| Root::open(&process).ok());
        let root = root.and_then(|root| root.id().ok());
        let ours = std::fs::metadata("/").map(|meta| (meta.dev(), meta.ino())).ok();
        match root.is_some() && root == ours {
            true => self.ours.clone(),
            false => self.others.clone(),
        }
    }
}

impl Symbols {
    fn new(trusts_roots_files: bool) -> Self {
        survive_shrinking();
        let dirs = Some(["/usr/lib/debug"]);
        let symbolizer =
            Symbolizer::builder().enable_demangling(false).set_debug_dirs(dirs).build();
        Self { symbolizer: Rc::new(symbolizer), trusts_roots_files }
    }

    /// For the kernel.
    pub fn of_kernel() -> Self {
        Self::new(false)
    }

    /// What is at an offset of a file, innermost first; empty where unknown.
    pub fn elf(&self, path: &Path, offset: FileOffset) -> Vec<Symbol> {
        let is_roots = |meta: Metadata| meta.uid() == 0 && meta.mode() & WRITABLE == 0;
        let mut elf = Elf::new(path);
        elf.debug_syms = self.trusts_roots_files && std::fs::metadata(path).is_ok_and(is_roots);
        let source = Source::Elf(elf);
        let found = self.symbolizer.symbolize_single(&source, Input::FileOffset(offset.0));
        let Some(sym) = found.ok().and_then(|found| found.into_sym()) else {
            return Vec::new();
        };
        let mut symbols: Vec<_> = sym
            .inlined
            .iter()
            .rev()
            .map(|inlined| symbol(&inlined.name, inlined.code_info.as_ref()))
            .collect();
        symbols.push(symbol(&sym.name, sym.code_info.as_deref()));
        symbols
    }

    /// The kernel function at an address.
    pub fn kernel(&self, addr: Addr) -> Option<String> {
        let source = Source::Kernel(Kernel {
            kallsyms: MaybeDefault::Some(PathBuf::from("/proc/kallsyms")),
            // kallsyms names everything; an image would only add lines.
            vmlinux: MaybeDefault::None,
            debug_syms: false,
            ..Default::default()
        });
        let found = self.symbolizer.symbolize_single(&source, Input::AbsAddr(addr.0)).ok()?;
        found.into_sym().map(|sym| sym.name.into_owned())
    }
}

fn symbol(name: &str, code: Option<&CodeInfo<'_>>) -> Symbol {
    Symbol {
        name: demangle(name),
        file: code.map(|code| code.file.to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line).unwrap_or(0),
    }
}

/// The readable form of a C++ or Rust name, without a function's parameters;
/// any other name as it is.
pub fn demangle(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let cpp = cpp_demangle::Symbol::new(name)
            .ok()
            .and_then(|s| s.demangle_with_options(&options).ok());
        return cpp.unwrap_or_else(|| name.to_owned());
    }
    name.to_owned()
}

/// What a fuzzer calls: looks up what lies at some offsets of a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: &std::fs::File) {
    use std::os::fd::AsRawFd;
    let symbols = Symbols::of_kernel();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    for offset in [0, 0x40, 0x1000, 0x1040] {
        let _ = symbols.elf(&path, FileOffset(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demangles_what_is_mangled_only() {
        for (name, readable) in [
            ("_ZN9JavaCalls11call_helperEP9JavaValueRK12methodHandle", "JavaCalls::call_helper"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("f", "f"),
            ("_Znonsense", "_Znonsense"),
            ("vfs_read", "vfs_read"),
        ] {
            assert_eq!(demangle(name), readable);
        }
    }
}
