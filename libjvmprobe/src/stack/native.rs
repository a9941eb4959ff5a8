//! Symbols of ELF files and of the kernel, by blazesym.
//!
//! Files are read by path; [`super::maps`] gives paths that open exactly what a
//! process has mapped. Names are demangled here, for blazesym would take a C
//! function `f` for the mangled name of C++'s `float`.

use std::{
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

use crate::{Addr, FileOffset};

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

/// Looks up symbols. Keeps what it has read; clones share it, for the symbols of one
/// libjvm.so take 16 MB.
#[derive(Clone, Debug)]
pub struct Symbols {
    symbolizer: Rc<Symbolizer>,
}

impl Symbols {
    /// For files, with debug information (`.gnu_debuglink`, build-id) of this machine's.
    pub fn of_files() -> Self {
        let dirs = Some([PathBuf::from("/usr/lib/debug")]);
        let builder = Symbolizer::builder().enable_demangling(false);
        Self { symbolizer: Rc::new(builder.set_debug_dirs(dirs).build()) }
    }

    /// For the kernel.
    pub fn of_kernel() -> Self {
        let symbolizer = Symbolizer::builder().enable_demangling(false).build();
        Self { symbolizer: Rc::new(symbolizer) }
    }

    /// What is at an offset of a file, innermost first; empty where unknown. Only a file
    /// that is trusted has inlined functions and lines: debug information may name other
    /// files to be opened, whatever they are.
    pub fn elf(&self, path: &Path, is_trusted: bool, offset: FileOffset) -> Vec<Symbol> {
        let mut elf = Elf::new(path);
        elf.debug_syms = is_trusted;
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
pub(crate) fn fuzz(file: &impl std::os::fd::AsRawFd) {
    let symbols = Symbols::of_kernel();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    for offset in [0, 0x40, 0x1000, 0x1040] {
        let _ = symbols.elf(&path, false, FileOffset(offset));
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
