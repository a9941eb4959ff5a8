//! The files that a process has mapped as code, held open.
//!
//! What is opened while the process lives can be read after it has ended; and it
//! is the mapped file itself, in whichever mount namespace, replaced or not: see
//! [`crate::jvm::libjvm`]. Source: proc(5), `/proc/PID/maps` and `map_files`.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File, Metadata},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use procfs::process::{MMPermissions, MMapPath, MemoryMap};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::{
    Addr, FileOffset, Pid, Result,
    cli::note,
    jvm::{libjvm, memory::Memory},
    stack::native::Symbols,
};

/// More mappings than any process has.
const MAX_MAPPINGS: usize = 100_000;

/// A larger file is not copied, and its symbols are not read.
const MAX_COPY: u64 = 128 << 20;
/// Nor is one beyond that many bytes of copies.
const MAX_COPIES: u64 = 256 << 20;

/// An open file with code.
#[derive(Debug)]
pub struct CodeFile {
    file: File,
    /// Whether nobody but root changes it.
    is_trusted: bool,
    copy: OnceLock<Option<Copy>>,
}

/// A copy in memory, counted in [`Copy::all`].
#[derive(Debug)]
struct Copy {
    file: File,
    bytes: u64,
}

impl Copy {
    /// The bytes of all copies that there are.
    fn all() -> &'static AtomicU64 {
        static ALL: AtomicU64 = AtomicU64::new(0);
        &ALL
    }

    /// Copies a file; one that shrinks or grows meanwhile is what it was then.
    fn of(file: &File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let too_large = || io::Error::from(io::ErrorKind::FileTooLarge);
        let all = Self::all().fetch_add(len.min(MAX_COPY), Ordering::Relaxed);
        let memfd = memfd_create("code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // From here on it is counted, and no more when it is dropped.
        let copy = Self { file: memfd.into(), bytes: len.min(MAX_COPY) };
        if len > MAX_COPY || all + copy.bytes > MAX_COPIES {
            return Err(too_large());
        }
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        while at < len {
            let room = buffer.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            let part = &mut buffer[..room];
            match file.read_at(part, at) {
                Ok(0) => break,
                Ok(n) => {
                    copy.file.write_all_at(&part[..n], at)?;
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        fcntl_add_seals(&copy.file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
        Ok(copy)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        Self::all().fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl CodeFile {
    fn new(file: File, is_trusted: bool) -> Self {
        Self { file, is_trusted, copy: OnceLock::new() }
    }

    /// Whether nobody but root of this machine changes it.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// A path that opens what this file holds, in this process, while it is held; to be
    /// mapped by those who read symbols. A file that somebody may cut short meanwhile, which
    /// would end who has it mapped (SIGBUS), is copied; `None` where it is too large for that.
    pub fn stable_path(&self) -> Option<PathBuf> {
        let file = match self.is_trusted {
            true => &self.file,
            false => &self.copy.get_or_init(|| self.copy()).as_ref()?.file,
        };
        Some(PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())))
    }

    fn copy(&self) -> Option<Copy> {
        let copy = Copy::of(&self.file);
        if let Err(error) = &copy {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Ordering::Relaxed) {
                note(&format!(
                    "code of some files has no names, for they are not root's and cannot be \
                     copied ({error})"
                ));
            }
        }
        copy.ok()
    }

    /// The same file, opened once more.
    ///
    /// # Errors
    /// [`crate::Error::Io`] where there are too many open files.
    pub fn reopen(&self) -> Result<File> {
        self.file.try_clone().map_err(|e| crate::Error::io("reopen a mapped file", e))
    }
}

impl AsRawFd for CodeFile {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

/// Files by device and inode, so that processes share them, with their symbols.
#[derive(Debug)]
pub struct FileCache {
    files: HashMap<(i32, i32, u64), Option<Arc<CodeFile>>>,
    symbols: Symbols,
}

impl Default for FileCache {
    fn default() -> Self {
        Self { files: HashMap::new(), symbols: Symbols::of_files() }
    }
}

/// When there are so many files, those are closed that no process has mapped any more.
const MANY_FILES: usize = 512;

/// A mapped range of code.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Its first address.
    pub start: Addr,
    /// The first address behind it.
    pub end: Addr,
    /// Which position of the file lies at `start`.
    pub offset: FileOffset,
    /// The file's last name, `[vdso]`, or `[anon]`.
    pub module: Arc<str>,
    /// The file; `None` where there is none or it cannot be opened.
    pub file: Option<Arc<CodeFile>>,
}

impl Mapping {
    /// Where in the file an address of the range lies.
    pub fn file_offset(&self, addr: Addr) -> FileOffset {
        FileOffset(addr.0.wrapping_sub(self.start.0).wrapping_add(self.offset.0))
    }

    /// Whether it has a file or stands for one.
    pub fn is_file(&self) -> bool {
        &*self.module != "[anon]"
    }
}

/// The code that a process has mapped.
#[derive(Clone, Debug, Default)]
pub struct CodeMaps(BTreeMap<Addr, Mapping>);

impl CodeMaps {
    /// Looks at a process again. What was mapped before and is no more is kept,
    /// for there may be samples of it.
    ///
    /// # Errors
    /// Where the process is gone or hidden; what is known stays.
    pub fn refresh(&mut self, pid: Pid, files: &mut FileCache) -> Result<()> {
        let maps = libjvm::memory_maps(pid)?;
        for map in maps.iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE)) {
            let (start, end) = (Addr(map.address.0), Addr(map.address.1));
            let module = module_name(&map.pathname);
            let known = self.0.get(&start);
            if known.is_some_and(|known| known.end == end && known.module == module) {
                continue;
            }
            if self.0.len() >= MAX_MAPPINGS {
                break;
            }
            let file = files.open(pid, map);
            let overlapping = self.0.range(..end).rev().take_while(|(_, m)| m.end > start);
            for old in overlapping.map(|(&at, _)| at).collect::<Vec<_>>() {
                self.0.remove(&old);
            }
            let offset = FileOffset(map.offset);
            self.0.insert(start, Mapping { start, end, offset, module, file });
        }
        Ok(())
    }

    /// All that is and was mapped, by ascending addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.0.values()
    }

    /// The mapping that an address lies in.
    pub fn find(&self, addr: Addr) -> Option<&Mapping> {
        self.0.range(..=addr).next_back().map(|(_, map)| map).filter(|map| addr < map.end)
    }
}

fn module_name(path: &MMapPath) -> Arc<str> {
    match path {
        MMapPath::Path(path) => {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            name.strip_suffix(" (deleted)").unwrap_or(&name).into()
        }
        MMapPath::Vdso => "[vdso]".into(),
        MMapPath::Vsyscall => "[vsyscall]".into(),
        _ => "[anon]".into(),
    }
}

impl FileCache {
    fn open(&mut self, pid: Pid, map: &MemoryMap) -> Option<Arc<CodeFile>> {
        let key = match map.pathname {
            MMapPath::Path(_) => (map.dev.0, map.dev.1, map.inode),
            // One for all processes of this kernel.
            MMapPath::Vdso => (0, 0, 0),
            _ => return None,
        };
        let open = || match &map.pathname {
            MMapPath::Path(path) => libjvm::open_mapped(pid, map, path).ok().map(|file| {
                let is_trusted = is_roots(&file, path);
                CodeFile::new(file, is_trusted)
            }),
            // What we have written ourselves.
            _ => copy_of_memory(pid, map).ok().map(|file| CodeFile::new(file, true)),
        };
        if self.files.len() >= MANY_FILES && !self.files.contains_key(&key) {
            // What could not be opened may be another file by now.
            self.files.retain(|_, file| file.as_ref().is_some_and(|f| Arc::strong_count(f) > 1));
        }
        self.files.entry(key).or_insert_with(|| open().map(Arc::new)).clone()
    }

    /// The symbols of files that a process has mapped, also after it has ended.
    pub fn symbols(&self) -> Symbols {
        self.symbols.clone()
    }
}

/// Whether only root of this machine writes to a file: it is root's, and it is what our own
/// root has at that path, for in a container user 0 may be anybody.
fn is_roots(file: &File, path: &Path) -> bool {
    let is_same = |ours: &Metadata, meta: &Metadata| {
        (ours.dev(), ours.ino()) == (meta.dev(), meta.ino()) && meta.is_file()
    };
    let (Ok(meta), Ok(ours)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    is_same(&ours, &meta) && meta.uid() == 0 && meta.mode() & 0o022 == 0
}

/// The vDSO is an ELF file in memory only.
fn copy_of_memory(pid: Pid, map: &MemoryMap) -> Result<File> {
    let failed = |e| crate::Error::io("copy the vDSO", e);
    let len = usize::try_from(map.address.1.saturating_sub(map.address.0)).unwrap_or(usize::MAX);
    let bytes = Memory::open(pid)?.read(Addr(map.address.0), len)?;
    let fd = memfd_create("vdso", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let mut file = File::from(fd);
    file.write_all(&bytes).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, process::Command};

    use super::*;
    use crate::elf::ElfFile;

    /// A library with two functions, as anybody's.
    fn somebodys(dir: &Path) -> (PathBuf, CodeFile) {
        let (source, path) = (dir.join("a.c"), dir.join("a.so"));
        fs::write(&source, "int first(void) { return 1; } int second(void) { return 2; }").unwrap();
        let mut cc = Command::new("cc");
        let status = cc.args(["-shared", "-o"]).args([&path, &source]).status().unwrap();
        assert!(status.success());
        let file = CodeFile::new(File::open(&path).unwrap(), false);
        (path, file)
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_read_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = somebodys(dir.path());
        let elf = ElfFile::open(file.reopen().unwrap()).unwrap();
        let table = elf.symbols().unwrap();
        let symbols = Symbols::of_files();
        let name = |name: &str| {
            let offset = elf.vaddr_to_offset(table.find(name).unwrap().value).unwrap();
            let found = symbols.elf(&file.stable_path().unwrap(), file.is_trusted(), offset);
            assert_eq!(found.first().map(|symbol| symbol.name.as_str()), Some(name));
        };
        name("first");
        File::options().write(true).open(path).unwrap().set_len(0).unwrap();
        name("second");
    }

    #[test]
    fn copies_have_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        File::create(&path).unwrap().set_len(MAX_COPY + 1).unwrap();
        let large = CodeFile::new(File::open(&path).unwrap(), false);
        assert_eq!(large.stable_path(), None);
        drop(large);
        Copy::all().fetch_add(MAX_COPIES, Ordering::Relaxed);
        let (_, file) = somebodys(dir.path());
        let path = file.stable_path();
        Copy::all().fetch_sub(MAX_COPIES, Ordering::Relaxed);
        assert_eq!(path, None);
    }

    #[test]
    fn roots_own_files_are_trusted() {
        let open = |path: &Path| is_roots(&File::open(path).unwrap(), path);
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert!(open(&shell));
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("sh");
        fs::copy(&shell, &copy).unwrap();
        // Another file of the same name is not the one that is mapped.
        assert!(!is_roots(&File::open(&copy).unwrap(), &shell));
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(!open(&copy));
    }

    #[test]
    fn finds_our_own_code() {
        let pid = Pid(std::process::id());
        let mut maps = CodeMaps::default();
        maps.refresh(pid, &mut FileCache::default()).unwrap();
        let here = Addr(finds_our_own_code as fn() as usize as u64);
        let mapping = maps.find(here).unwrap();
        assert!(mapping.file.is_some());
        assert!(mapping.start <= here && here < mapping.end);
        assert!(maps.find(Addr(1)).is_none());
        assert!(maps.0.values().any(|m| &*m.module == "[vdso]" && m.file.is_some()));
    }
}
