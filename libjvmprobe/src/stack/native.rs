//! Symbols of the ELF files that processes have mapped.
//!
//! [`crate::process::code`] keeps the files open. A confined child ([`super::symbolizer`]) parses them; this process
//! itself reads only parts of limited size, in limited time.
//!
//! Symbols that a file lacks are read from a separate file of the same build:
//! `crate::elf::separate_debug_file`.
//!
//! Debug information is found by links in a file (`.gnu_debuglink`, `.gnu_debugaltlink`), which may contain
//! any path. So it is used only if the process has our root directory, and both the file and the linked file
//! belong to root and cannot be written by other users. For all other files, only symbol tables are used.

use std::{
    collections::HashMap,
    fs::{File, Metadata, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Instant,
};

use crate::{
    FileOffset, Pid, Result,
    bpf::walker::Walker,
    elf::{
        ElfFile, Functions, Segments, SymbolFile, is_out_of_memory, separate_debug_file::DebugLink,
    },
    native_image::Image,
    process::{
        Process, cgroup,
        code::{CodeFile, FileCache},
        root::Root,
    },
    stack::{
        known_functions::KnownFunctions,
        symbolizer::{Bundle, DebugFiles, Symbolizer},
    },
    sys::{
        budget::{Budget, Reservation, Share},
        limited, reading_cost, thread_cpu_time,
    },
};

pub(crate) use crate::stack::symbolizer::Symbol;

/// Looks up symbols of files, through one thread that serves all threads of this process.
#[derive(Clone, Debug)]
pub struct Symbols {
    /// Whether debug information may be read for files that belong to root. Set only if the process
    /// has our root directory, because the files contain paths of debug files, which we open in our own file
    /// system.
    reads_debug_info: bool,
    /// The process's tenant, which is held responsible for files that crash or stall the confined child, and pays for
    /// native images.
    tenant: Arc<str>,
}

/// Maximum total size of the heaps of native images in bytes. Most heaps have less than 50 MB.
const MAX_IMAGES: usize = 256 << 20;

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

/// Mode bits: writable by users other than the owner.
const WRITABLE: u32 = 0o022;

impl Files {
    /// Releases data of files that no process has used for a while, here and in the kernel.
    pub(crate) fn release_unused(&mut self, walker: Option<&mut Walker>) {
        let now = Instant::now();
        if let Some(walker) = walker {
            walker.free_unused(now);
        }
        self.mapped.close_unused(now);
        worker::release_unused();
    }

    /// Returns the symbols of the files that a process has mapped. They stay valid
    /// after the process has ended.
    pub fn symbols(&self, pid: Pid) -> Symbols {
        let root = Process::open(pid).ok().and_then(|process| Root::open(&process).ok());
        let root = root.and_then(|root| root.id().ok());
        let ours = std::fs::metadata("/").map(|meta| (meta.dev(), meta.ino())).ok();
        let tenant = cgroup::tenant_of(pid);
        Symbols { reads_debug_info: root.is_some() && root == ours, tenant }
    }
}

impl Symbols {
    /// Returns the symbols of the files of a core file. Debug information is not read, because the core file chooses the
    /// files.
    pub(crate) fn of_core() -> Self {
        Self { reads_debug_info: false, tenant: "core file".into() }
    }

    /// Returns the functions at an offset of a file.
    pub(crate) fn elf(&self, file: &Arc<CodeFile>, offset: FileOffset) -> FunctionsAt {
        if let Some(symbol) = known().get(self.key(file), offset) {
            return FunctionsAt { symbols: vec![symbol], start: None };
        }
        worker::find(file, offset, self.clone())
    }

    fn key(&self, file: &Arc<CodeFile>) -> FileKey {
        (Arc::as_ptr(file) as usize, self.reads_debug_info)
    }

    /// Returns a hash of the tenant.
    fn tenant_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.tenant.hash(&mut hasher);
        hasher.finish()
    }
}

/// Address of a [`CodeFile`], and whether its debug information may be read.
type FileKey = (usize, bool);

/// Functions at an offset of a file.
#[derive(Debug, Default)]
pub(crate) struct FunctionsAt {
    /// Named functions, innermost first; empty if no name is known.
    pub(crate) symbols: Vec<Symbol>,
    /// File offset at which the unnamed function begins, if known.
    pub(crate) start: Option<FileOffset>,
}

/// Functions that were found, for all threads. An entry of a file exists only while [`Readers`] has one, which holds the
/// file's allocation, so that no other file has its address.
fn known() -> MutexGuard<'static, KnownFunctions<FileKey>> {
    static KNOWN: Mutex<KnownFunctions<FileKey>> = Mutex::new(KnownFunctions::new());
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Symbol data of files. An entry is dropped after the last user of its [`CodeFile`] has gone.
#[derive(Debug, Default)]
struct Readers {
    readers: HashMap<FileKey, Reader>,
    symbolizer: Symbolizer,
    last_key: u64,
    /// Number of lookups.
    lookups: u64,
}

#[derive(Debug)]
struct Reader {
    /// Holds the allocation, so that no other file gets its address while this entry exists.
    file: Weak<CodeFile>,
    /// The file for the child; `None` if our own parser rejects it.
    bundle: Option<Bundle>,
    /// Code information of a native image, if the file is one.
    image: Option<(Image, Segments)>,
    /// Memory of symbols that the file contains in compressed form.
    unpacked: Reservation,
    /// Tenant for which the file was read, and who pays for it.
    tenant: Arc<str>,
    /// Whether the tenant's share of memory did not suffice for all data of the file.
    is_short: bool,
    /// Start addresses of functions; a function without a name is shown by its start.
    functions: Option<Functions>,
    /// Number of the lookup that used it last.
    last_use: u64,
}

impl Reader {
    fn new(key: u64, file: &Arc<CodeFile>, symbols: &Symbols, share: &Share) -> Self {
        let mut reader = Self {
            file: Arc::downgrade(file),
            bundle: None,
            image: None,
            unpacked: Reservation::default(),
            tenant: Arc::clone(&symbols.tenant),
            is_short: false,
            functions: None,
            last_use: 0,
        };
        let elf = match file.reopen().and_then(|file| ElfFile::open_for(file, share)) {
            Ok(elf) => elf,
            Err(error) => {
                reader.is_short = is_out_of_memory(&error);
                return reader;
            }
        };
        let separate_symbols = file.separate_symbols(&elf).unwrap_or_else(|error| {
            reader.is_short |= is_out_of_memory(&error);
            None
        });
        let (separate_symbols, unpacked) = separate_symbols.map(SymbolFile::into_parts).unzip();
        reader.unpacked = unpacked.unwrap_or_default();
        let reads_debug_info = symbols.reads_debug_info && is_writable_only_by_root(elf.file());
        let companions = companions(file, &elf, separate_symbols, reads_debug_info);
        reader.bundle = elf.file().try_clone().ok().map(|file| Bundle::new(key, file, companions));
        reader.functions = Functions::read(&elf);
        reader.image = image(elf).unwrap_or_else(|error| {
            if is_out_of_memory(&error) {
                limited::add("images", &symbols.tenant, 1);
                reader.is_short = true;
            }
            None
        });
        reader
    }

    /// Drops its data, which is read again at a later lookup. Returns the bundle, which the child may have.
    fn drop_data(&mut self) -> Option<Bundle> {
        (self.image, self.is_short) = (None, true);
        self.unpacked.release();
        self.bundle.take()
    }

    /// Returns the memory that is reserved for it, in bytes.
    fn size(&self) -> usize {
        self.unpacked.bytes() + self.image_size()
    }

    /// Returns the size of its native image's heap in bytes.
    fn image_size(&self) -> usize {
        self.image.as_ref().map_or(0, |(image, _)| image.size())
    }

    /// Returns the Java methods at an offset of a native image.
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

/// Reads the code information of a native image; `None` if the file is not one. If it cannot be read, its symbols are used.
fn image(elf: ElfFile) -> Result<Option<(Image, Segments)>> {
    Ok(Image::read(&elf)?.map(|image| (image, elf.into_segments())))
}

/// Adds the separate files with debug information of a file to the one with its symbols.
fn companions(
    file: &CodeFile,
    elf: &ElfFile,
    separate_symbols: Option<File>,
    reads_debug_info: bool,
) -> DebugFiles {
    if !reads_debug_info {
        return DebugFiles { separate_symbols, ..DebugFiles::default() };
    }
    // The folder of the file: /proc/self/fd shows the path of an open file in our file system.
    let folder = |path: PathBuf| std::fs::read_link(path).ok()?.parent().map(Path::to_path_buf);
    let folder = folder(file.path());
    let debug = elf.debug_link().zip(folder.clone()).and_then(|(link, folder)| {
        let inside = folder.strip_prefix("/").ok()?;
        let folders =
            [folder.clone(), folder.join(".debug"), Path::new("/usr/lib/debug").join(inside)];
        folders.iter().find_map(|folder| linked(folder, &link))
    });
    // The alternate link is relative to the file that contains it.
    let with_link =
        debug.as_ref().map_or((elf, folder), |(debug, folder)| (debug, Some(folder.clone())));
    let common = with_link.0.debug_alt_link().zip(with_link.1);
    let common = common.and_then(|(link, folder)| linked(&folder, &link));
    let file = |(elf, _): (ElfFile, PathBuf)| elf.file().try_clone().ok();
    DebugFiles {
        separate_symbols,
        debug: debug.and_then(file),
        common: common.and_then(file),
        debug_info: true,
    }
}

/// Opens a linked file that belongs to root. Returns it with its folder.
fn linked(folder: &Path, link: &DebugLink) -> Option<(ElfFile, PathBuf)> {
    let path = folder.join(&link.name);
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).ok()?;
    let file = Some(file).filter(is_writable_only_by_root)?;
    let elf = ElfFile::open(file).ok().filter(|elf| link.matches(elf))?;
    Some((elf, path.parent()?.to_path_buf()))
}

/// Returns whether only root can have written a file.
fn is_writable_only_by_root(file: &File) -> bool {
    let is_protected =
        |meta: Metadata| meta.is_file() && meta.uid() == 0 && meta.mode() & WRITABLE == 0;
    file.metadata().is_ok_and(is_protected)
}

impl Readers {
    fn find(&mut self, file: &Arc<CodeFile>, offset: FileOffset, symbols: Symbols) -> FunctionsAt {
        /// More attempts than a file has descriptors.
        const ATTEMPTS: usize = 5;
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.find_once(file, offset, &symbols) {
                return found;
            }
            self.remove(symbols.key(file));
        }
        FunctionsAt::default()
    }

    /// Returns `None` if a container has replaced the file that was read.
    fn find_once(
        &mut self,
        file: &Arc<CodeFile>,
        offset: FileOffset,
        symbols: &Symbols,
    ) -> Option<FunctionsAt> {
        let key = symbols.key(file);
        self.lookups += 1;
        // Another tenant's share may suffice.
        let is_short = self.readers.get(&key).is_some_and(|reader| reader.is_short);
        if is_short && reading_cost::wait_until(&symbols.tenant).is_none() {
            self.remove(key);
        }
        if !self.readers.contains_key(&key) {
            self.last_key += 1;
            let share = Budget::of_process().share(&symbols.tenant);
            let begin = thread_cpu_time();
            let reader = Reader::new(self.last_key, file, symbols, &share);
            if is_short || reader.is_short {
                reading_cost::charge(&symbols.tenant, thread_cpu_time().saturating_sub(begin));
            }
            self.readers.insert(key, reader);
            self.limit_images(key, MAX_IMAGES);
        }
        let Some(reader) = self.readers.get_mut(&key) else { return Some(FunctionsAt::default()) };
        reader.last_use = self.lookups;
        let java = reader.java(offset);
        let Some(bundle) = &mut reader.bundle else { return Some(FunctionsAt::default()) };
        let found = match java {
            Some(_) => None,
            None => self.symbolizer.find(bundle, offset, symbols.tenant_hash()),
        };
        if !bundle.file().is_some_and(|read| file.is_same(read)) {
            return None;
        }
        if let Some(symbols) = java {
            return Some(FunctionsAt { symbols, start: None });
        }
        if let Some(found) = found.filter(|found| !found.symbols.is_empty()) {
            known().insert(key, &found);
            return Some(FunctionsAt { symbols: found.symbols, start: None });
        }
        let start = reader.functions.as_ref().and_then(|functions| functions.start_in_file(offset));
        Some(FunctionsAt { symbols: Vec::new(), start })
    }

    /// Drops the symbols of files without users, and those of tenants that hold more memory than their shares while others
    /// are short of it.
    fn release_unused(&mut self) {
        let is_gone = |reader: &Reader| reader.file.strong_count() == 0;
        for (key, gone) in self.readers.extract_if(|_, reader| is_gone(reader)) {
            known().remove(key);
            if let Some(bundle) = gone.bundle {
                self.symbolizer.close(bundle.key());
            }
        }
        // Each drop reduces the tenant's excess, so the next one is decided after it.
        for reader in self.readers.values_mut().filter(|reader| reader.size() > 0) {
            if Budget::of_process().share(&reader.tenant).excess() > 0 {
                limited::add("files", &reader.tenant, 1);
                if let Some(bundle) = reader.drop_data() {
                    self.symbolizer.close(bundle.key());
                }
            }
        }
        self.symbolizer.stop_if_idle();
    }

    /// Removes a file, whose functions are looked up again at the next lookup.
    fn remove(&mut self, key: FileKey) {
        known().remove(key);
        if let Some(bundle) = self.readers.remove(&key).and_then(|reader| reader.bundle) {
            self.symbolizer.close(bundle.key());
        }
    }

    /// Drops native images other than `newest`, the least recently used ones first, until the heaps of all have at most
    /// `max` bytes. An image is read again at its next lookup.
    fn limit_images(&mut self, newest: FileKey, max: usize) {
        let mut size: usize = self.readers.values().map(Reader::image_size).sum();
        while size > max {
            let others = self.readers.iter();
            let others = others.filter(|(key, reader)| **key != newest && reader.image.is_some());
            let oldest = others.min_by_key(|(_, reader)| reader.last_use).map(|(&key, _)| key);
            let Some(key) = oldest else { break };
            size -= self.readers.get(&key).map_or(0, Reader::image_size);
            self.remove(key);
        }
    }
}

/// The worker thread that starts the confined child and talks to it, for all threads.
mod worker {
    use super::{Arc, CodeFile, FileOffset, FunctionsAt, Readers, Symbols};
    use crate::sys::{Worker, privileges::READ};
    use std::{
        sync::{
            OnceLock,
            atomic::{AtomicBool, Ordering},
            mpsc::{RecvTimeoutError, Sender, channel},
        },
        time::Duration,
    };

    /// Maximum time for an answer. Requests to the child have their own deadlines, but the worker thread also
    /// reads files itself, and their file system may not answer.
    const DEADLINE: Duration = Duration::from_secs(90);

    /// Set while an answer is overdue. Until it arrives, callers do not wait for further answers.
    static IS_STUCK: AtomicBool = AtomicBool::new(false);

    enum Job {
        Find {
            file: Arc<CodeFile>,
            offset: FileOffset,
            symbols: Symbols,
            answer: Sender<FunctionsAt>,
        },
        ReleaseUnused,
    }

    static WORKER: OnceLock<Option<Worker<Job>>> = OnceLock::new();

    /// Makes the worker thread call [`Readers::find`], and returns the result; empty if the thread is missing
    /// or does not answer in time.
    pub(super) fn find(file: &Arc<CodeFile>, offset: FileOffset, symbols: Symbols) -> FunctionsAt {
        if IS_STUCK.load(Ordering::Relaxed) {
            return FunctionsAt::default();
        }
        let Some(worker) = WORKER.get_or_init(start) else { return FunctionsAt::default() };
        let (answer, answered) = channel();
        let job = Job::Find { file: Arc::clone(file), offset, symbols, answer };
        if !worker.send(job) {
            return FunctionsAt::default();
        }
        answered.recv_timeout(DEADLINE).unwrap_or_else(|error| {
            let has_timed_out = error == RecvTimeoutError::Timeout;
            if has_timed_out && !IS_STUCK.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "reading the symbols of a file takes longer than {} s; native functions have \
                     no names until it completes",
                    DEADLINE.as_secs()
                );
            }
            FunctionsAt::default()
        })
    }

    /// Sends a job for [`Readers::release_unused`] to the worker thread.
    pub(super) fn release_unused() {
        if let Some(Some(worker)) = WORKER.get() {
            // If the thread has ended, its data has been freed.
            worker.send(Job::ReleaseUnused);
        }
    }

    fn start() -> Option<Worker<Job>> {
        let make = || {
            let mut readers = Readers::default();
            move |job| match job {
                Job::Find { file, offset, symbols, answer } => {
                    let found = readers.find(&file, offset, symbols);
                    IS_STUCK.store(false, Ordering::Relaxed);
                    // The caller may have stopped waiting.
                    let _ = answer.send(found);
                }
                Job::ReleaseUnused => readers.release_unused(),
            }
        };
        Worker::start("symbols", READ, make).ok()
    }
}

/// Entry point for the fuzzer: looks up the functions at some offsets of a file.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(file: File) {
    super::symbolizer::fuzz(file);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{elf::NATIVE_IMAGE_HEAP, native_image::testing::FakeImage};

    fn untrusted() -> Symbols {
        Symbols { reads_debug_info: false, tenant: "a".into() }
    }

    #[test]
    fn readers_of_closed_files_are_dropped() {
        let own = || File::open("/proc/self/exe").unwrap();
        let mut readers = Readers::default();
        let files: Vec<_> = (0..3).map(|_| Arc::new(CodeFile::new(own()))).collect();
        for file in &files {
            readers.find(file, FileOffset(0), untrusted());
        }
        assert_eq!(readers.readers.len(), 3);
        let last = files.into_iter().next_back();
        readers.release_unused();
        assert_eq!(readers.readers.len(), 1);
        drop(last);
    }

    #[test]
    fn least_recently_used_images_are_dropped() {
        let library = crate::elf::testing::Library::build(&FakeImage::new().assembly(), &[]);
        let file = || Arc::new(CodeFile::new(File::open(library.path()).unwrap()));
        let files = [file(), file(), file()];
        let mut readers = Readers::default();
        for at in [0, 1, 0, 2] {
            readers.find(&files[at], FileOffset(0), untrusted());
        }
        let keys = files.each_ref().map(|file| untrusted().key(file));
        let size = readers.readers[&keys[0]].image_size();
        readers.limit_images(keys[2], 3 * size);
        assert_eq!(readers.readers.len(), 3);
        readers.limit_images(keys[2], 2 * size);
        assert!(!readers.readers.contains_key(&keys[1]) && readers.readers.len() == 2);
        readers.limit_images(keys[2], 0);
        assert!(readers.readers.len() == 1 && readers.readers.contains_key(&keys[2]));
    }

    #[test]
    fn child_gets_only_files_that_the_parent_can_parse() {
        let file = Arc::new(CodeFile::new(File::open("/proc/self/status").unwrap()));
        let trusted = Symbols { reads_debug_info: true, ..untrusted() };
        let share = Share::default();
        assert!(Reader::new(1, &file, &trusted, &share).bundle.is_none());
        let own = Arc::new(CodeFile::new(File::open("/proc/self/exe").unwrap()));
        assert!(Reader::new(1, &own, &trusted, &share).bundle.is_some());
    }

    /// The test makes the link with `objcopy --add-gnu-debuglink`.
    #[test]
    fn debuglink_is_followed_only_for_root_owned_files() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can create files that belong to root");
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
        let find = |reads_debug_info: bool| {
            let file = CodeFile::new(File::open(&path).unwrap());
            let elf = library.elf();
            companions(&file, &elf, None, reads_debug_info && is_writable_only_by_root(elf.file()))
        };
        let set_mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap();
        };
        set_mode(&debug, 0o644);
        set_mode(&path, 0o755);
        assert!(find(true).debug.is_some() && find(true).debug_info);
        assert!(find(false).debug.is_none() && !find(false).debug_info);
        // In each of the next two cases, other users could have written one of the files.
        set_mode(&debug, 0o666);
        assert!(find(true).debug.is_none());
        set_mode(&debug, 0o644);
        set_mode(&path, 0o777);
        assert!(!find(true).debug_info);
        set_mode(&path, 0o755);
        // Here, a different file has replaced the debug file.
        std::fs::copy("/proc/self/exe", &debug).unwrap();
        set_mode(&debug, 0o644);
        assert!(find(true).debug.is_none());
    }

    #[test]
    fn image_larger_than_the_share_of_its_tenant_is_not_read() {
        let library = crate::elf::testing::Library::build(&FakeImage::new().assembly(), &[]);
        let size = library.elf().section(NATIVE_IMAGE_HEAP).unwrap().size() as usize;
        let file = Arc::new(CodeFile::new(File::open(library.path()).unwrap()));
        let read = |max| {
            let budget = Budget::of(max);
            let reader = Reader::new(1, &file, &untrusted(), &budget.share(&"a".into()));
            assert_eq!(budget.held(), reader.size());
            (reader.image.is_some(), reader.is_short)
        };
        // The headers, and the tables that are read while the image is located, are released.
        assert_eq!(read(2 * size + (1 << 20)), (true, false));
        assert_eq!(read(2 * size - 2), (false, true));
    }

    #[test]
    fn unpacked_symbols_stay_reserved_while_they_are_open() {
        let library = crate::elf::testing::Library::build(".text\nhidden: nop", &[]);
        let (path, symbols) = (library.path(), library.dir().join("symbols"));
        std::fs::copy(&path, &symbols).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            assert!(Command::new(program).args(args).status().unwrap().success(), "{program}");
        };
        run("xz", &[symbols.as_ref()]);
        let mut section = std::ffi::OsString::from(".gnu_debugdata=");
        section.push(library.dir().join("symbols.xz"));
        let args = ["--strip-all".as_ref(), "--add-section".as_ref(), &*section, path.as_ref()];
        run("objcopy", &args);
        let file = Arc::new(CodeFile::new(File::open(path).unwrap()));
        let budget = Budget::of(128 << 20);
        let share = budget.share(&"a".into());
        let mut reader = Reader::new(1, &file, &untrusted(), &share);
        assert!(!reader.is_short && reader.unpacked.bytes() > 0);
        assert_eq!(budget.held(), reader.unpacked.bytes());
        assert!(reader.drop_data().is_some() && reader.is_short);
        assert_eq!(budget.held(), 0);
        // Without memory, the file is read again later, for a tenant that has some.
        let share = Budget::of(1 << 20).share(&"a".into());
        assert!(Reader::new(1, &file, &untrusted(), &share).is_short);
    }
}
