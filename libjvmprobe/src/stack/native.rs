//! Symbols of ELF files, by blazesym.
//!
//! Files are read by path; [`crate::process::code`] gives paths that open exactly what a
//! process has mapped. Names are demangled here, for blazesym would take a C
//! function `f` for the mangled name of C++'s `float`.
//!
//! Symbols that a file lacks are taken from where its build has them: `crate::elf::apart`.
//!
//! blazesym finds debug information by links in the file (`.gnu_debuglink`,
//! `.gnu_debugaltlink`), which may be any path. So only files of root's in our own file system
//! have theirs read; all others are named by their own symbol tables. It maps files: see
//! [`super::shrunk`].

use std::{
    collections::HashMap,
    fs::Metadata,
    os::unix::fs::MetadataExt,
    sync::{Arc, Weak},
    time::Instant,
};

use blazesym::symbolize::{
    CodeInfo, Input, Symbolizer,
    source::{Elf, Source},
};

use crate::{
    FileOffset, Pid,
    bpf::walker::Walker,
    elf::{ElfFile, Segments},
    image::Image,
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
    /// Whether it is a Java method that was compiled beforehand.
    pub(crate) is_java: bool,
}

/// Looks up symbols of files, for all threads of this process together.
#[derive(Clone, Copy, Debug)]
pub struct Symbols {
    /// Whether debug information may be looked for: it is found by paths that a file names,
    /// which whoever made the file has chosen.
    trusts_roots_files: bool,
}

/// Files that processes have mapped, and their symbols.
#[derive(Debug)]
pub struct Files {
    /// The files.
    pub mapped: FileCache,
}

impl Default for Files {
    fn default() -> Self {
        Self { mapped: FileCache::of_this_process() }
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
        clerk::let_go();
    }

    /// Symbols of the files that a process has mapped, also after it has ended.
    pub fn symbols(&self, pid: Pid) -> Symbols {
        let root = Process::open(pid).ok().and_then(|process| Root::open(&process).ok());
        let root = root.and_then(|root| root.id().ok());
        let ours = std::fs::metadata("/").map(|meta| (meta.dev(), meta.ino())).ok();
        Symbols { trusts_roots_files: root.is_some() && root == ours }
    }
}

fn symbolizer() -> Symbolizer {
    survive_shrinking();
    let dirs = Some(["/usr/lib/debug"]);
    Symbolizer::builder().enable_demangling(false).set_debug_dirs(dirs).build()
}

impl Symbols {
    /// What is at an offset of a file, innermost first; empty where unknown.
    pub(crate) fn elf(self, file: &Arc<CodeFile>, offset: FileOffset) -> Vec<Symbol> {
        clerk::ask(file, offset, self.trusts_roots_files)
    }
}

/// What was read of files, while somebody holds them ([`CodeFile`]): one image after the other runs
/// on a machine.
#[derive(Debug, Default)]
struct Readers(HashMap<(*const CodeFile, bool), Reader>);

#[derive(Debug)]
struct Reader {
    /// No other file is at its address while this is here.
    file: Weak<CodeFile>,
    symbolizer: Symbolizer,
    /// What it says of its own code, if it is a native image.
    image: Option<(Image, Segments)>,
    /// A file that has its symbols, and where its own segments are.
    apart: Option<(CodeFile, Segments)>,
}

impl Reader {
    fn new(file: &Arc<CodeFile>) -> Self {
        let (image, apart) = (image(file), apart(file));
        Self { file: Arc::downgrade(file), symbolizer: symbolizer(), image, apart }
    }

    /// What blazesym knows of a place in a file.
    fn symbols(&self, file: &CodeFile, at: Input<u64>, debug_syms: bool) -> Vec<Symbol> {
        let mut elf = Elf::new(file.path());
        elf.debug_syms = debug_syms;
        let found = self.symbolizer.symbolize_single(&Source::Elf(elf), at);
        let Some(sym) = found.ok().and_then(|found| found.into_sym()) else {
            return Vec::new();
        };
        let inlined = sym.inlined.iter().rev();
        let mut symbols: Vec<_> =
            inlined.map(|inlined| symbol(&inlined.name, inlined.code_info.as_ref())).collect();
        symbols.push(symbol(&sym.name, sym.code_info.as_deref()));
        symbols
    }

    /// By the file's symbols that are kept apart.
    fn symbols_apart(&self, offset: FileOffset) -> Vec<Symbol> {
        let found = self.apart.as_ref().and_then(|(file, segments)| {
            let at = segments.vaddr(offset)?;
            Some(self.symbols(file, Input::VirtOffset(at.0), false))
        });
        found.unwrap_or_default()
    }

    /// The Java code of a native image.
    fn java(&self, offset: FileOffset) -> Option<Vec<Symbol>> {
        let (image, segments) = self.image.as_ref()?;
        let frames = image.at(segments.vaddr(offset)?).into_iter();
        let symbols: Vec<_> = frames
            .map(|method| Symbol {
                name: method.name.to_string(),
                file: None,
                line: method.line,
                is_java: true,
            })
            .collect();
        (!symbols.is_empty()).then_some(symbols)
    }
}

/// Where it cannot be read, its symbols must do.
fn image(file: &CodeFile) -> Option<(Image, Segments)> {
    let elf = ElfFile::open(file.reopen().ok()?).ok()?;
    let image = Image::read(&elf).ok()??;
    Some((image, elf.into_segments()))
}

/// The symbols that it lacks itself.
fn apart(file: &CodeFile) -> Option<(CodeFile, Segments)> {
    let symbols = file.symbols_apart()?;
    let elf = ElfFile::open(file.reopen().ok()?).ok()?;
    Some((CodeFile::new(symbols), elf.into_segments()))
}

impl Readers {
    fn find(&mut self, file: &Arc<CodeFile>, offset: FileOffset, trusts: bool) -> Vec<Symbol> {
        let reader = self.0.entry((Arc::as_ptr(file), trusts)).or_insert_with(|| Reader::new(file));
        if let Some(java) = reader.java(offset) {
            return java;
        }
        let is_roots = |meta: Metadata| meta.uid() == 0 && meta.mode() & WRITABLE == 0;
        let path = file.path();
        let trusts = trusts && std::fs::metadata(&path).is_ok_and(is_roots);
        let own = reader.symbols(file, Input::FileOffset(offset.0), trusts);
        // Debug information, which has inlined functions and lines, is more than symbols.
        if own.iter().any(|symbol| symbol.file.is_some()) {
            return own;
        }
        let apart = reader.symbols_apart(offset);
        if apart.is_empty() { own } else { apart }
    }

    /// Lets go of what was read of files that nobody holds any more.
    fn let_go(&mut self) {
        self.0.retain(|_, reader| reader.file.strong_count() > 0);
    }
}

/// The thread that reads files: what was read of one libjvm.so takes 16 MB, and belongs to the
/// thread that has read it.
mod clerk {
    use super::{Arc, CodeFile, FileOffset, Readers, Symbol};
    use crate::own::privileges;
    use std::{
        sync::{
            OnceLock,
            mpsc::{Receiver, Sender, channel},
        },
        thread,
    };

    enum Job {
        Find { file: Arc<CodeFile>, offset: FileOffset, trusts: bool, answer: Sender<Vec<Symbol>> },
        LetGo,
    }

    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

    /// See [`Readers::find`]. Without a thread nothing is known.
    pub(super) fn ask(file: &Arc<CodeFile>, offset: FileOffset, trusts: bool) -> Vec<Symbol> {
        let Some(jobs) = JOBS.get_or_init(begin) else { return Vec::new() };
        let (answer, answered) = channel();
        let job = Job::Find { file: Arc::clone(file), offset, trusts, answer };
        if jobs.send(job).is_err() {
            return Vec::new();
        }
        answered.recv().unwrap_or_default()
    }

    /// See [`Readers::let_go`].
    pub(super) fn let_go() {
        if let Some(Some(jobs)) = JOBS.get() {
            // An error says that the thread has ended, and all that it had read is gone.
            let _ = jobs.send(Job::LetGo);
        }
    }

    fn begin() -> Option<Sender<Job>> {
        let (jobs, todo) = channel();
        let work = move || {
            privileges::keep(privileges::READ);
            work(&todo);
        };
        thread::Builder::new().name("symbols".into()).spawn(work).ok().map(|_| jobs)
    }

    fn work(todo: &Receiver<Job>) {
        let mut readers = Readers::default();
        for job in todo {
            match job {
                Job::Find { file, offset, trusts, answer } => {
                    // Who has asked may have ended.
                    let _ = answer.send(readers.find(&file, offset, trusts));
                }
                Job::LetGo => readers.let_go(),
            }
        }
    }
}

fn symbol(name: &str, code: Option<&CodeInfo<'_>>) -> Symbol {
    Symbol {
        name: demangle::demangle(name),
        file: code.map(|code| code.file.to_string_lossy().into_owned()),
        line: code.and_then(|code| code.line).unwrap_or(0),
        is_java: false,
    }
}

/// What a fuzzer calls: looks up what lies at some offsets of a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: std::fs::File) {
    let mut readers = Readers::default();
    let file = Arc::new(CodeFile::new(file));
    for offset in [0, 0x40, 0x1000, 0x1040] {
        let _ = readers.find(&file, FileOffset(offset), false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_of_a_file_goes_with_it() {
        let own = || std::fs::File::open("/proc/self/exe").unwrap();
        let mut readers = Readers::default();
        let files: Vec<_> = (0..3).map(|_| Arc::new(CodeFile::new(own()))).collect();
        for file in &files {
            readers.find(file, FileOffset(0), false);
        }
        assert_eq!(readers.0.len(), 3);
        let last = files.into_iter().next_back();
        readers.let_go();
        assert_eq!(readers.0.len(), 1);
        drop(last);
    }
}
