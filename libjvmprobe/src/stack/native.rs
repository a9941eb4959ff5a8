//! Symbols of the ELF files that processes have mapped.
//!
//! [`crate::process::code`] holds the files open. A confined child reads them
//! ([`super::symbolizer`]): this process asks it, and reads only what is bounded by construction.
//!
//! Symbols that a file lacks are taken from where its build has them: `crate::elf::apart`.
//!
//! Debug information is found by links in a file (`.gnu_debuglink`, `.gnu_debugaltlink`), which may be
//! any path. So only files of root's in our own file system, and linked files of root's, have theirs
//! read; all others are named by their own symbol tables.

use std::{
    collections::HashMap,
    fs::{File, Metadata, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Instant,
};

use crate::{
    FileOffset, Pid,
    bpf::walker::Walker,
    elf::{ElfFile, Functions, Segments, apart::DebugLink},
    image::Image,
    process::{
        Process, cgroup,
        code::{CodeFile, FileCache},
        root::Root,
    },
    stack::symbolizer::{Bundle, Companions, Symbolizer},
};

pub(crate) use crate::stack::symbolizer::Symbol;

/// Looks up symbols of files, for all threads of this process together.
#[derive(Clone, Copy, Debug)]
pub struct Symbols {
    /// Whether debug information may be looked for: it is found by paths that a file names,
    /// which whoever made the file has chosen.
    trusts_roots_files: bool,
    /// The control group of the process, as a number: it answers for what its files do to the reader.
    tenant: u64,
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
    pub(crate) fn let_go(&mut self, walker: Option<&mut Walker>) {
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
        Symbols { trusts_roots_files: root.is_some() && root == ours, tenant: tenant(pid) }
    }
}

/// Returns a number for the tenant of a process.
fn tenant(pid: Pid) -> u64 {
    let mut hasher = DefaultHasher::new();
    cgroup::tenant_of(pid).hash(&mut hasher);
    hasher.finish()
}

impl Symbols {
    /// The functions at an offset of a file.
    pub(crate) fn elf(self, file: &Arc<CodeFile>, offset: FileOffset) -> At {
        clerk::ask(file, offset, self)
    }
}

/// The functions at an offset of a file.
#[derive(Debug, Default)]
pub(crate) struct At {
    /// The functions there, innermost first; empty where they have no names.
    pub(crate) symbols: Vec<Symbol>,
    /// Where in the file the function without a name begins, as far as that is known.
    pub(crate) start: Option<FileOffset>,
}

/// Symbols of files, dropped with the last user of a [`CodeFile`], because images come and go.
#[derive(Debug, Default)]
struct Readers {
    readers: HashMap<(*const CodeFile, bool), Reader>,
    symbolizer: Symbolizer,
    last_key: u64,
}

#[derive(Debug)]
struct Reader {
    /// No other file is at its address while this is here.
    file: Weak<CodeFile>,
    /// The file for the child; `None` where our own parser refuses it.
    bundle: Option<Bundle>,
    /// What it says of its own code, if it is a native image.
    image: Option<(Image, Segments)>,
    /// Where functions without a name begin.
    functions: Option<Functions>,
}

impl Reader {
    fn new(key: u64, file: &Arc<CodeFile>, trusts: bool) -> Self {
        let own = file.reopen().ok().and_then(|file| ElfFile::open(file).ok());
        let bundle = own.as_ref().and_then(|elf| {
            let companions = companions(file, elf, trusts && is_roots(elf.file()));
            Some(Bundle::new(key, file.reopen().ok()?, companions))
        });
        let functions = own.as_ref().and_then(Functions::read);
        Self { file: Arc::downgrade(file), bundle, image: own.and_then(image), functions }
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
fn image(elf: ElfFile) -> Option<(Image, Segments)> {
    let image = Image::read(&elf).ok()??;
    Some((image, elf.into_segments()))
}

/// Finds the files with symbols and debug information that a file lacks.
fn companions(file: &CodeFile, elf: &ElfFile, trusts: bool) -> Companions {
    let apart = file.symbols_apart();
    if !trusts {
        return Companions { apart, ..Companions::default() };
    }
    // Where the file is in our file system, if it still is.
    let folder = |path: PathBuf| std::fs::read_link(path).ok()?.parent().map(Path::to_path_buf);
    let folder = folder(file.path());
    let debug = elf.debug_link().zip(folder.clone()).and_then(|(link, folder)| {
        let inside = folder.strip_prefix("/").ok()?;
        let folders =
            [folder.clone(), folder.join(".debug"), Path::new("/usr/lib/debug").join(inside)];
        folders.iter().find_map(|folder| linked(folder, &link))
    });
    // Relative to the file that has the link.
    let with_link =
        debug.as_ref().map_or((elf, folder), |(debug, folder)| (debug, Some(folder.clone())));
    let common = with_link.0.debug_alt_link().zip(with_link.1);
    let common = common.and_then(|(link, folder)| linked(&folder, &link));
    let file = |(elf, _): (ElfFile, PathBuf)| elf.file().try_clone().ok();
    Companions {
        apart,
        debug: debug.and_then(file),
        common: common.and_then(file),
        debug_info: true,
    }
}

/// Opens a linked file, if it is root's, with the folder that it is in.
fn linked(folder: &Path, link: &DebugLink) -> Option<(ElfFile, PathBuf)> {
    let path = folder.join(&link.name);
    // Opening a pipe must not wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
    let file = Some(file).filter(is_roots)?;
    let elf = ElfFile::open(file).ok().filter(|elf| link.leads_to(elf))?;
    Some((elf, path.parent()?.to_path_buf()))
}

/// Returns whether only root can have written a file.
fn is_roots(file: &File) -> bool {
    let is_roots =
        |meta: Metadata| meta.is_file() && meta.uid() == 0 && meta.mode() & WRITABLE == 0;
    file.metadata().is_ok_and(is_roots)
}

impl Readers {
    fn find(&mut self, file: &Arc<CodeFile>, offset: FileOffset, symbols: Symbols) -> At {
        let trusts = symbols.trusts_roots_files;
        let reader = self.readers.entry((Arc::as_ptr(file), trusts)).or_insert_with(|| {
            self.last_key += 1;
            Reader::new(self.last_key, file, trusts)
        });
        if let Some(symbols) = reader.java(offset) {
            return At { symbols, start: None };
        }
        let Some(bundle) = &mut reader.bundle else { return At::default() };
        let symbols = self.symbolizer.find(bundle, offset, symbols.tenant);
        let functions = reader.functions.as_ref().filter(|_| symbols.is_empty());
        At { symbols, start: functions.and_then(|functions| functions.start_in_file(offset)) }
    }

    /// Drops the symbols of files without users.
    fn let_go(&mut self) {
        let is_gone = |reader: &Reader| reader.file.strong_count() == 0;
        for (_, gone) in self.readers.extract_if(|_, reader| is_gone(reader)) {
            if let Some(bundle) = gone.bundle {
                self.symbolizer.close(bundle.key());
            }
        }
        self.symbolizer.rest();
    }
}

/// The thread that starts the confined child and asks it, for all threads.
mod clerk {
    use super::{Arc, At, CodeFile, FileOffset, Readers, Symbols};
    use crate::own::{note, privileges};
    use std::{
        sync::{
            OnceLock,
            atomic::{AtomicBool, Ordering},
            mpsc::{Receiver, RecvTimeoutError, Sender, channel},
        },
        thread,
        time::Duration,
    };

    /// Maximum time of an answer: the child has deadlines of its own, and this thread reads files only
    /// whose file system may not answer.
    const DEADLINE: Duration = Duration::from_secs(90);

    /// Set while an answer is overdue; until it comes, callers do not wait for another one.
    static IS_STUCK: AtomicBool = AtomicBool::new(false);

    enum Job {
        Find { file: Arc<CodeFile>, offset: FileOffset, symbols: Symbols, answer: Sender<At> },
        LetGo,
    }

    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

    /// See [`Readers::find`]. Without a thread nothing is known.
    pub(super) fn ask(file: &Arc<CodeFile>, offset: FileOffset, symbols: Symbols) -> At {
        if IS_STUCK.load(Ordering::Relaxed) {
            return At::default();
        }
        let Some(jobs) = JOBS.get_or_init(begin) else { return At::default() };
        let (answer, answered) = channel();
        let job = Job::Find { file: Arc::clone(file), offset, symbols, answer };
        if jobs.send(job).is_err() {
            return At::default();
        }
        answered.recv_timeout(DEADLINE).unwrap_or_else(|error| {
            let is_late = error == RecvTimeoutError::Timeout;
            if is_late && !IS_STUCK.swap(true, Ordering::Relaxed) {
                note(
                    "symbols of a file: reading it takes too long; native functions have no names \
                      until it was read",
                );
            }
            At::default()
        })
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
                Job::Find { file, offset, symbols, answer } => {
                    let found = readers.find(&file, offset, symbols);
                    IS_STUCK.store(false, Ordering::Relaxed);
                    // Who has asked may have ended.
                    let _ = answer.send(found);
                }
                Job::LetGo => readers.let_go(),
            }
        }
    }
}

/// What a fuzzer calls: looks up what lies at some offsets of a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: File) {
    super::symbolizer::fuzz(file);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const UNTRUSTED: Symbols = Symbols { trusts_roots_files: false, tenant: 0 };

    #[test]
    fn what_was_read_of_a_file_goes_with_it() {
        let own = || File::open("/proc/self/exe").unwrap();
        let mut readers = Readers::default();
        let files: Vec<_> = (0..3).map(|_| Arc::new(CodeFile::new(own()))).collect();
        for file in &files {
            readers.find(file, FileOffset(0), UNTRUSTED);
        }
        assert_eq!(readers.readers.len(), 3);
        let last = files.into_iter().next_back();
        readers.let_go();
        assert_eq!(readers.readers.len(), 1);
        drop(last);
    }

    #[test]
    fn the_child_gets_no_file_that_our_own_parser_refuses() {
        let file = Arc::new(CodeFile::new(File::open("/proc/self/status").unwrap()));
        assert!(Reader::new(1, &file, true).bundle.is_none());
        let own = Arc::new(CodeFile::new(File::open("/proc/self/exe").unwrap()));
        assert!(Reader::new(1, &own, true).bundle.is_some());
    }

    /// As `objcopy --add-gnu-debuglink` makes them.
    #[test]
    fn debug_information_is_found_by_a_link_for_files_of_roots_only() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: files of root's are made by root only");
            return;
        }
        let library =
            crate::elf::testing::Library::build(".globl f\nf: nop", &["-Wl,--build-id=none"]);
        let (path, debug) = (library.path(), library.dir().join("library.debug"));
        let run = |args: &[&std::ffi::OsStr]| {
            let status = Command::new("objcopy").args(args).current_dir(library.dir()).status();
            assert!(status.unwrap().success());
        };
        run(&["--only-keep-debug".as_ref(), path.as_ref(), debug.as_ref()]);
        run(&["--strip-all".as_ref(), "--add-gnu-debuglink=library.debug".as_ref(), path.as_ref()]);
        let find = |trusts: bool| {
            let file = CodeFile::new(File::open(&path).unwrap());
            let elf = library.elf();
            companions(&file, &elf, trusts && is_roots(elf.file()))
        };
        let set_mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap();
        };
        set_mode(&debug, 0o644);
        set_mode(&path, 0o755);
        assert!(find(true).debug.is_some() && find(true).debug_info);
        assert!(find(false).debug.is_none() && !find(false).debug_info);
        // Others could have written either.
        set_mode(&debug, 0o666);
        assert!(find(true).debug.is_none());
        set_mode(&debug, 0o644);
        set_mode(&path, 0o777);
        assert!(!find(true).debug_info);
        set_mode(&path, 0o755);
        // Another file in its place.
        std::fs::copy("/proc/self/exe", &debug).unwrap();
        set_mode(&debug, 0o644);
        assert!(find(true).debug.is_none());
    }
}
