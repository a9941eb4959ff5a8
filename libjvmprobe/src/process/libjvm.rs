//! The libjvm.so that a process runs: finds and opens exactly the mapped file.
//!
//! The path in /proc/PID/maps is valid in the target's file system. If the target runs in a container, the
//! same path may name a different file here, and an upgrade may have replaced or removed the file since it
//! was mapped. `/proc/PID/map_files/RANGE` is always the mapped file itself (proc(5)).

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
    fs::File,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use procfs::process::{MMPermissions, MMapPath, MemoryMap};

use crate::{
    Addr, Error, FileOffset, Pid, Result,
    elf::{ElfFile, Lookups, Machine, core_dump::FileMapping, separate_debug_file::SymbolFile},
    process::{FileId, Process, cgroup, file_id::Version, maps, reader, root::Root},
    sys::{
        budget::{Budget, Share},
        limited,
        reading_marks::{self, FileVersion, Mark, Reading},
    },
};

/// The libjvm.so of one process.
#[derive(Debug)]
pub struct LibJvm {
    /// The path as the target sees it.
    pub target_path: PathBuf,
    /// Address of its first mapping in the target.
    pub(crate) map_start: Addr,
    /// File offset of the byte at `map_start`.
    pub(crate) map_offset: FileOffset,
    /// Identity of the file.
    pub id: FileId,
    /// Identity of the inode that the kernel attaches probes to, once it is known: `bpf::inodes`.
    pub(crate) attached_as: OnceLock<FileId>,
    file: File,
    /// Its version when it was opened.
    version: Version,
    /// Share of memory in which data of the file is reserved: that of the process's tenant.
    share: Share,
    /// Results of searches for symbols, for all users of this object.
    lookups: Arc<Lookups>,
    /// A separate file with the symbols, if `file` has none.
    separate_symbols: Option<Arc<SymbolFile>>,
    /// What other modules have read from the file, if its symbols come from the root of the process, so that it must not
    /// be shared with other processes.
    pub(crate) facts: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Whether `separate_symbols` comes from the root of the process, where the owner of the process controls
    /// the content.
    pub(crate) has_untrusted_symbols: bool,
}

/// Identity of a file, with its size and the time of its last change, which shows that it was rewritten.
type Content = (FileId, u64, i64, i64);

/// Symbol files from sources that no target controls, by the libjvm.so that they belong to. The libjvm.so is kept open,
/// so that its inode number is not reused.
type SymbolFileCache = HashMap<FileId, (File, Option<Arc<SymbolFile>>)>;
/// Maximum number of entries; when it is exceeded, the cache is cleared.
const MAX_CACHED_FILES: usize = 64;

/// Maximum number of mappings of its libjvm.so that a process may have. A JVM has five. The kernel visits each mapping of
/// a file for each probe in it.
const MAX_MAPPINGS: usize = 1000;

/// File names in the mappings of a JVM: HotSpot's library and OpenJ9's.
pub(super) const JVM_NAMES: [&[u8]; 2] = [b"/libjvm.so", b"/libj9vm"];

impl LibJvm {
    /// Returns the first mapping of the libjvm.so that a process runs. Reads only the list of mappings of the
    /// process. If there is no such mapping, also reads the file of the process's program.
    ///
    /// # Errors
    /// [`Error::NotAJvm`], [`Error::OpenJ9`], [`Error::NativeImage`], [`Error::TooManyMappings`] or [`Error::Permission`].
    pub(super) fn find(pid: Pid, comm: &str) -> Result<MemoryMap> {
        let maps = maps::of(pid, |line| JVM_NAMES.iter().any(|name| maps::has(line, name)))?;
        if maps.iter().any(|m| file_name(m).is_some_and(|n| n.starts_with("libj9vm"))) {
            return Err(Error::OpenJ9 { pid });
        }
        let is_libjvm = |m: &&MemoryMap| file_name(m).is_some_and(|n| n == "libjvm.so");
        // A process that maps the file without execute permission only reads it; a profiler may do so.
        let runs = |m: MemoryMap| m.perms.contains(MMPermissions::EXECUTE);
        let is_run = maps.iter().filter(is_libjvm).cloned().any(runs);
        let map = maps.iter().find(is_libjvm).filter(|_| is_run);
        let count = maps.iter().filter(is_libjvm).count();
        if count > MAX_MAPPINGS {
            limited::add("mappings", &cgroup::tenant_of(pid), 1);
            if map.is_some() {
                return Err(Error::TooManyMappings { pid, count, max: MAX_MAPPINGS });
            }
        }
        map.cloned().ok_or_else(|| match native_image(pid).is_some() {
            true => Error::NativeImage { pid },
            false => Error::NotAJvm { pid, comm: comm.to_owned() },
        })
    }

    /// Opens the file of a mapping that [`Self::find`] has returned.
    ///
    /// # Errors
    /// [`Error::ForeignArch`], [`Error::Permission`], [`Error::Io`] if the file cannot be opened, and the errors of
    /// [`Self::mark_reading`].
    pub(super) fn open(process: &Process, map: &MemoryMap) -> Result<Self> {
        let pid = process.pid;
        let path = mapped_path(map).unwrap_or(Path::new(""));
        let (target_path, _) = strip_deleted(path);
        let file = open_mapped(pid, map, path)?;
        let mapped = (device(map.dev), map.inode);
        let id = FileId::of(&file, Some(mapped))
            .map_err(|e| Error::io(format!("stat {}", target_path.display()), e))?;
        let version = Version::of(&file)
            .map_err(|e| Error::io(format!("stat {}", target_path.display()), e))?;
        let share = Budget::of_process().share(&cgroup::tenant_of(pid));
        let mut found = Self {
            lookups: Lookups::within(&share).into(),
            share,
            facts: OnceLock::new(),
            map_start: Addr(map.address.0),
            map_offset: FileOffset(map.offset),
            id,
            attached_as: OnceLock::new(),
            target_path,
            file,
            version,
            separate_symbols: None,
            has_untrusted_symbols: false,
        };
        let _mark = found.mark_reading(process)?;
        let machine = found.elf()?.machine();
        if machine != Machine::NATIVE {
            return Err(Error::ForeignArch {
                pid,
                theirs: machine.to_string(),
                ours: std::env::consts::ARCH,
            });
        }
        found.separate_symbols = found.trusted_symbols()?;
        if found.separate_symbols.is_none() {
            found.separate_symbols =
                found.symbols_in_root_of(pid)?.map(|file| Arc::new(file.into()));
            found.has_untrusted_symbols = found.separate_symbols.is_some();
        }
        if found.has_untrusted_symbols
            && let Some(lookups) = found.shared_lookups()
        {
            found.lookups = lookups;
        }
        Ok(found)
    }

    /// Returns the results of searches for symbols in the same content, for all processes that have it: a thousand processes
    /// may have the same debug file in their roots. `None` if there is none, or if the content cannot be identified.
    fn shared_lookups(&self) -> Option<Arc<Lookups>> {
        static SHARED: Mutex<BTreeMap<[Content; 2], Weak<Lookups>>> = Mutex::new(BTreeMap::new());
        let content = |file: &File| {
            let (stat, id) = (file.metadata().ok()?, FileId::of(file, None).ok()?);
            Some((id, stat.len(), stat.ctime(), stat.ctime_nsec()))
        };
        let key = [content(&self.file)?, content(self.separate_symbols.as_ref()?)?];
        // A thread that panicked has left a consistent map, because entries are inserted in one step.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lookups) = shared.get(&key).and_then(Weak::upgrade) {
            return Some(lookups);
        }
        shared.retain(|_, lookups| lookups.strong_count() > 0);
        shared.insert(key, Arc::downgrade(&self.lookups));
        Some(Arc::clone(&self.lookups))
    }

    /// Returns a separate file with the library's symbols, from a source that no target controls; `None` if
    /// there is no such file or the library itself has symbols. The result is cached for all processes.
    fn trusted_symbols(&self) -> Result<Option<Arc<SymbolFile>>> {
        static CACHE: OnceLock<Mutex<SymbolFileCache>> = OnceLock::new();
        let cache = CACHE.get_or_init(Mutex::default);
        // A thread that panicked has left a consistent map, because entries are inserted in one step.
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, separate_symbols)) = cache.get(&self.id) {
            return Ok(separate_symbols.clone());
        }
        let separate_symbols = self.elf()?.trusted_symbols(&self.target_path)?.map(Arc::new);
        if cache.len() >= MAX_CACHED_FILES {
            cache.clear();
        }
        if let Ok(file) = self.file.try_clone()
            && self.is_same(&file)
        {
            cache.insert(self.id, (file, separate_symbols.clone()));
        }
        Ok(separate_symbols)
    }

    /// Returns the debug file of the library's build in the root of a process. The result is valid for that
    /// process only, because the root of another process may contain a different debug file.
    fn symbols_in_root_of(&self, pid: Pid) -> Result<Option<File>> {
        let elf = self.elf()?;
        if elf.has_symbols() {
            return Ok(None);
        }
        let Some(root) = Process::open(pid).ok().and_then(|p| Root::open(&p).ok()) else {
            return Ok(None);
        };
        Ok(elf.symbols_in(|path| root.file(path)))
    }

    /// Returns whether one attachment may cover all processes that run this file. If not, each attachment
    /// must be limited to the process for which the library was found, because its symbols come from that
    /// process's root, and processes of other owners may run the same file.
    pub(crate) fn may_share_attachments(&self) -> bool {
        !self.has_untrusted_symbols
    }

    /// Returns whether the descriptor of a file that has this file's identity leads to the content that this file had when it
    /// was opened.
    pub(crate) fn is_same(&self, file: &File) -> bool {
        self.version.is_of(file)
    }

    /// Checks that its descriptor still leads to the file that was opened. If so after an attachment, that was made to this
    /// file, and the sites came from this file, because a file that a container has replaced stays replaced.
    ///
    /// # Errors
    /// [`Error::Io`] if the container has replaced it.
    pub(crate) fn check_is_same(&self) -> Result<()> {
        if self.is_same(&self.file) {
            return Ok(());
        }
        let why = other("its container has replaced the file that the JVM runs".into());
        Err(Error::io(format!("read {}", self.target_path.display()), why))
    }

    /// Makes the libjvm.so of a core file from its first mapping: the path that the JVM used, and the file.
    ///
    /// # Errors
    /// [`Error::Elf`], or [`Error::Io`].
    pub(super) fn of_core(mapping: &FileMapping, file: File) -> Result<Self> {
        let id = FileId::of(&file, None);
        let mut found = Self {
            share: Share::default(),
            lookups: Arc::default(),
            facts: OnceLock::new(),
            target_path: mapping.path.clone(),
            map_start: mapping.start,
            map_offset: mapping.offset,
            id: id.map_err(|e| Error::io(format!("stat {}", mapping.path.display()), e))?,
            attached_as: OnceLock::new(),
            file,
            version: Version::default(),
            separate_symbols: None,
            has_untrusted_symbols: false,
        };
        found.separate_symbols = found.trusted_symbols()?;
        Ok(found)
    }

    /// Opens a file that will be mapped later, as if it were mapped at address 0.
    pub(crate) fn of_file(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let id = FileId::of(&file, None)?;
        Ok(Self {
            share: Share::default(),
            lookups: Arc::default(),
            facts: OnceLock::new(),
            target_path: path.to_owned(),
            map_start: Addr(0),
            map_offset: FileOffset(0),
            id,
            attached_as: id.into(),
            file,
            version: Version::default(),
            separate_symbols: None,
            has_untrusted_symbols: false,
        })
    }

    /// Returns another descriptor of the opened file.
    pub(crate) fn file(&self) -> Result<File> {
        let file = self.file.try_clone();
        file.map_err(|e| Error::io(format!("reopen {}", self.target_path.display()), e))
    }

    /// Marks that this thread reads the library and the process, until the result is dropped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this program has been killed while it read the same.
    pub(crate) fn mark_reading(&self, process: &Process) -> Result<Mark> {
        reading_marks::mark(|| {
            let meta = self.file.metadata().ok()?;
            let mtime_ns = meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec());
            let file =
                FileVersion { dev: meta.dev(), ino: meta.ino(), size: meta.size(), mtime_ns };
            Some(Reading {
                tenant: Arc::clone(self.share.tenant()),
                path: self.target_path.clone(),
                file,
                process: (process.pid.0, process.start_ticks()),
            })
        })
    }

    /// Returns its ELF structure, read from the opened file.
    pub fn elf(&self) -> Result<ElfFile> {
        let file = self.file()?;
        let separate_symbols = self.separate_symbols.as_ref().map(|file| &***file);
        let elf = ElfFile::open_for(file, &self.share)?.with_symbols_of(separate_symbols);
        Ok(elf.with_lookups(&self.lookups))
    }

    /// Returns a path that opens exactly this file, for interfaces that require a path. Valid in this process while
    /// `self` lives.
    pub(crate) fn open_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Returns the program of a process if it is a GraalVM native image.
pub(crate) fn native_image(pid: Pid) -> Option<ElfFile> {
    let file = reader::open_linked(pid, Path::new(&format!("/proc/{pid}/exe"))).ok()?;
    let share = Budget::of_process().share(&cgroup::tenant_of(pid));
    ElfFile::open_for(file, &share).ok().filter(ElfFile::is_native_image)
}

/// Combines the major and minor device number from /proc.
pub(super) fn device((major, minor): (i32, i32)) -> u64 {
    rustix::fs::makedev(major.unsigned_abs(), minor.unsigned_abs())
}

fn mapped_path(map: &MemoryMap) -> Option<&Path> {
    match &map.pathname {
        MMapPath::Path(path) => Some(path),
        _ => None,
    }
}

/// Returns the file name of a mapping without the suffix ` (deleted)`, which the kernel adds for a removed
/// file.
fn file_name(map: &MemoryMap) -> Option<&str> {
    let name = mapped_path(map)?.file_name()?.to_str()?;
    Some(name.strip_suffix(" (deleted)").unwrap_or(name))
}

fn strip_deleted(path: &Path) -> (PathBuf, bool) {
    match path.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
        Some(rest) => (rest.into(), true),
        None => (path.to_owned(), false),
    }
}

/// Opens the file of a mapping, which the target sees as `path`.
pub(crate) fn open_mapped(pid: Pid, map: &MemoryMap, path: &Path) -> Result<File> {
    let (target_path, deleted) = strip_deleted(path);
    let (start, end) = map.address;
    let exact = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let first = match reader::open_linked(pid, Path::new(&exact)) {
        Ok(file) => return Ok(file),
        // The path would lead to the same file, which must not be read.
        Err(e) if e.kind() == std::io::ErrorKind::Other => {
            return Err(Error::io(format!("open {}", target_path.display()), e));
        }
        Err(e) => e,
    };
    if deleted {
        // The path would lead to the replacement, which has different offsets.
        return Err(Error::Permission {
            what: format!("open {} (replaced on disk) through {exact}", target_path.display()),
            missing: first.to_string(),
        });
    }
    // map_files requires CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. The path within the target's root requires neither,
    // and names the same file unless it was replaced.
    let root = Process::open(pid).map(|process| Root::open(&process))?;
    let root = root.map_err(|e| Error::io(format!("open the root of process {pid}"), other(e)))?;
    let shown = root.shown(&target_path);
    let file = root.file(&target_path).map_err(|e| Error::io(format!("open {shown}"), e))?;
    match file.metadata() {
        // On overlays the device number differs, but not the inode.
        Ok(meta) if meta.ino() == map.inode => Ok(file),
        Ok(_) => Err(Error::Permission {
            what: format!("open the {} that process {pid} runs", target_path.display()),
            missing: format!("{shown} was replaced, and {exact} cannot be opened: {first}"),
        }),
        Err(e) => Err(Error::io(format!("stat {shown}"), e)),
    }
}

fn other(why: String) -> std::io::Error {
    std::io::Error::other(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_too_many_mappings_of_its_libjvm_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libjvm.so");
        std::fs::write(&path, vec![0x90; 8192]).unwrap();
        let script = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(sys.argv[1], os.O_RDONLY)
for i in range(int(sys.argv[2])):
    # All mappings begin at the same offset, so the kernel merges none of them.
    assert libc.mmap(None, 4096, 5, 2, fd, 0) not in (None, 2 ** 64 - 1)
print(flush=True)
sys.stdin.read()";
        let find = |count: usize| {
            let mut child = std::process::Command::new("python3")
                .args(["-c", script])
                .arg(&path)
                .arg(count.to_string())
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            std::io::Read::read(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
            let found = LibJvm::find(Pid(child.id()), "test");
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        find(MAX_MAPPINGS).unwrap();
        let error = find(MAX_MAPPINGS + 1).unwrap_err();
        assert!(matches!(error, Error::TooManyMappings { count: 1001, .. }), "{error}");
        assert!(limited::take().keys().any(|(reason, _)| *reason == "mappings"));
    }
}
