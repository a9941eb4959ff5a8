//! Symbols of ELF files and of the kernel, by blazesym.
//!
//! Files are read by path; [`crate::process::code`] gives paths that open exactly what a
//! process has mapped. Names are demangled here, for blazesym would take a C
//! function `f` for the mangled name of C++'s `float`.
//!
//! blazesym finds debug information by links in the file (`.gnu_debuglink`,
//! `.gnu_debugaltlink`), which may be any path. So only files of root's in our own file system
//! have theirs read; all others are named by their own symbol tables. It maps files: see
//! [`super::shrunk`].

use std::{
    cell::RefCell,
    collections::HashMap,
    fs::Metadata,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    rc::Rc,
    sync::{Arc, Weak},
    time::Instant,
};

use blazesym::{
    MaybeDefault,
    symbolize::{
        CodeInfo, Input, Symbolizer,
        source::{Elf, Kernel, Source},
    },
};

use crate::{
    Addr, FileOffset, Pid,
    bpf::walker::Walker,
    names::demangle,
    process::{
        Process,
        code::{CodeFile, FileCache},
        root::Root,
    },
    stack::shrunk::survive_shrinking,
};

/// A symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// Its name, demangled.
    pub(crate) name: String,
    /// The source file's last name.
    pub(crate) file: Option<String>,
    /// The line, 0 where it is unknown.
    pub(crate) line: u32,
}

/// Looks up symbols of files. Keeps what it has read of a file while the file is held
/// ([`CodeFile`]): one image after the other runs on a machine. Clones share it.
#[derive(Clone, Debug)]
pub struct Symbols {
    files: Rc<RefCell<HashMap<*const CodeFile, Read>>>,
    /// Whether debug information may be looked for: it is found by paths that a file names,
    /// which whoever made the file has chosen.
    trusts_roots_files: bool,
}

/// What was read of a file.
#[derive(Debug)]
struct Read {
    /// No other file is at its address while this is here.
    file: Weak<CodeFile>,
    symbolizer: Symbolizer,
}

/// Files that processes have mapped, and their symbols: all share them, for those of one
/// libjvm.so take 16 MB.
#[derive(Debug)]
pub struct Files {
    /// The files.
    pub mapped: FileCache,
    /// For processes in our own file system.
    ours: Symbols,
    others: Symbols,
}

impl Default for Files {
    fn default() -> Self {
        let mapped = FileCache::default();
        Self { mapped, ours: Symbols::new(true), others: Symbols::new(false) }
    }
}

/// By others than its owner.
const WRITABLE: u32 = 0o022;

impl Files {
    /// Lets go of what is known of files that no process has had for a while, here and in the
    /// kernel.
    pub fn let_go(&mut self, walker: Option<&mut Walker>) {
        let now = Instant::now();
        if let Some(walker) = walker {
            walker.free_unused(now);
        }
        self.mapped.close_unused(now);
        self.ours.let_go();
        self.others.let_go();
    }

    /// Symbols of the files that a process has mapped, also after it has ended.
    pub fn symbols(&self, pid: Pid) -> Symbols {
        let root = Process::open(pid).ok().and_then(|process| Root::open(&process).ok());
        let root = root.and_then(|root| root.id().ok());
        let ours = std::fs::metadata("/").map(|meta| (meta.dev(), meta.ino())).ok();
        match root.is_some() && root == ours {
            true => self.ours.clone(),
            false => self.others.clone(),
        }
    }
}

fn symbolizer() -> Symbolizer {
    survive_shrinking();
    let dirs = Some(["/usr/lib/debug"]);
    Symbolizer::builder().enable_demangling(false).set_debug_dirs(dirs).build()
}

impl Symbols {
    fn new(trusts_roots_files: bool) -> Self {
        Self { files: Rc::default(), trusts_roots_files }
    }

    /// Lets go of what was read of files that nobody holds any more.
    fn let_go(&self) {
        self.files.borrow_mut().retain(|_, read| read.file.strong_count() > 0);
    }

    /// What is at an offset of a file, innermost first; empty where unknown.
    pub(crate) fn elf(&self, file: &Arc<CodeFile>, offset: FileOffset) -> Vec<Symbol> {
        let mut files = self.files.borrow_mut();
        let read = files
            .entry(Arc::as_ptr(file))
            .or_insert_with(|| Read { file: Arc::downgrade(file), symbolizer: symbolizer() });
        let is_roots = |meta: Metadata| meta.uid() == 0 && meta.mode() & WRITABLE == 0;
        let path = file.path();
        let mut elf = Elf::new(&path);
        elf.debug_syms = self.trusts_roots_files && std::fs::metadata(&path).is_ok_and(is_roots);
        let source = Source::Elf(elf);
        let found = read.symbolizer.symbolize_single(&source, Input::FileOffset(offset.0));
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
}

/// Looks up symbols of the kernel.
#[derive(Debug)]
pub(crate) struct KernelSymbols(Symbolizer);

impl Default for KernelSymbols {
    fn default() -> Self {
        Self(symbolizer())
    }
}

impl KernelSymbols {
    /// The kernel function at an address.
    pub(crate) fn find(&self, addr: Addr) -> Option<String> {
        let source = Source::Kernel(Kernel {
            kallsyms: MaybeDefault::Some(PathBuf::from("/proc/kallsyms")),
            // kallsyms names everything; an image would only add lines.
            vmlinux: MaybeDefault::None,
            debug_syms: false,
            ..Default::default()
        });
        let found = self.0.symbolize_single(&source, Input::AbsAddr(addr.0)).ok()?;
        found.into_sym().map(|sym| sym.name.into_owned())
    }
}

fn symbol(name: &str, code: Option<&CodeInfo<'_>>) -> Symbol {
    Symbol {
        name: demangle::demangle(name),
        file: code.map(|code| code.file.to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line).unwrap_or(0),
    }
}

/// What a fuzzer calls: looks up what lies at some offsets of a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: std::fs::File) {
    let symbols = Symbols::new(false);
    let file = Arc::new(CodeFile::new(file));
    for offset in [0, 0x40, 0x1000, 0x1040] {
        let _ = symbols.elf(&file, FileOffset(offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_of_a_file_goes_with_it() {
        let own = || std::fs::File::open("/proc/self/exe").unwrap();
        let symbols = Symbols::new(false);
        let files: Vec<_> = (0..3).map(|_| Arc::new(CodeFile::new(own()))).collect();
        for file in &files {
            symbols.elf(file, FileOffset(0));
        }
        assert_eq!(symbols.files.borrow().len(), 3);
        let last = files.into_iter().next_back();
        symbols.let_go();
        assert_eq!(symbols.files.borrow().len(), 1);
        drop(last);
    }
}
