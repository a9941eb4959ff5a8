//! Files that a process has mapped as code, kept open.
//!
//! A file that is opened while the process lives can still be read after the process has ended. The opened
//! file is always the mapped one, even if the process runs in another mount namespace or the file was
//! replaced on disk: see `crate::process::libjvm`. Source: proc(5), `/proc/PID/maps` and `map_files`.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io::Write,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use procfs::process::{MMPermissions, MMapPath, MemoryMap};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    Addr, FileOffset, Pid, Result,
    elf::ElfFile,
    process::{FileId, Process, libjvm, maps, memory::Memory, root::Root},
    sys::{Idle, descriptors::ran_out},
};

/// Maximum number of mappings kept per process, above the kernel's default limit (65,530).
const MAX_MAPPINGS: usize = 100_000;

/// An open file that contains code.
#[derive(Debug)]
pub struct CodeFile {
    file: File,
    /// A separate file with the symbols, if `file` has none.
    symbols: Option<File>,
}

impl CodeFile {
    #[cfg(test)]
    pub(crate) fn new(file: File) -> Self {
        Self { file, symbols: None }
    }

    /// Makes a code file with symbols only from sources that no target controls.
    pub(super) fn with_installed_symbols(file: File) -> Self {
        let elf = file.try_clone().ok().and_then(|file| ElfFile::open(file).ok());
        let symbols = elf.filter(|elf| !elf.has_symbols()).and_then(|elf| elf.installed_symbols());
        Self { file, symbols }
    }

    /// Returns the same file with the debug file in the root of process `pid`, and that debug file's identity. `None`
    /// if this file has symbols or there is no debug file.
    fn in_root_of(&self, pid: Pid) -> Option<(Self, DebugFile)> {
        if self.symbols.is_some() {
            return None;
        }
        let elf = ElfFile::open(self.reopen().ok()?).ok()?;
        if elf.has_symbols() || elf.has_packed_symbols() {
            return None;
        }
        let root = Root::open(&Process::open(pid).ok()?).ok()?;
        let symbols = elf.symbols_in(|path| root.file(path))?;
        let meta = symbols.metadata().ok()?;
        let file = self.reopen().ok()?;
        Some((Self { file, symbols: Some(symbols) }, (meta.dev(), meta.ino())))
    }

    /// Returns another file with the symbols, if this file has no symbol table: a separate file of the same
    /// build, or a new file with the symbols that this file contains in compressed form.
    pub(crate) fn separate_symbols(&self) -> Option<File> {
        let found = self.symbols.as_ref().and_then(|file| file.try_clone().ok());
        found.or_else(|| {
            let elf = ElfFile::open(self.reopen().ok()?).ok()?;
            if elf.has_symbols() { None } else { elf.unpacked() }
        })
    }

    /// Fills `to` with the bytes at an offset, as a mapping of the file has them: with zeros from the end of the file
    /// to the end of its last page.
    pub(super) fn read_mapped(&self, offset: u64, to: &mut [u8]) -> std::io::Result<()> {
        let size = self.file.metadata()?.len();
        let in_file = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let (bytes, zeros) = to.split_at_mut(in_file.min(to.len()));
        if offset.saturating_add((bytes.len() + zeros.len()) as u64) > size.next_multiple_of(4096) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        zeros.fill(0);
        self.file.read_exact_at(bytes, offset)
    }

    /// Returns a path that opens this file, valid in this process while `self` lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Returns another descriptor of the same file.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if too many files are open.
    pub fn reopen(&self) -> Result<File> {
        self.file.try_clone().map_err(|e| crate::Error::io("reopen a mapped file", e))
    }
}

impl AsRawFd for CodeFile {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.file.as_raw_fd()
    }
}

/// Cache of open files by device and inode. Clones share the cached files. A file of a container image has
/// different numbers in each container, because each container has its own overlay. So such a file has an
/// entry for each container, and all these entries share one open file.
#[derive(Clone, Debug, Default)]
pub struct FileCache(Arc<Mutex<Opened>>);

#[derive(Debug, Default)]
struct Opened {
    files: HashMap<CacheKey, Option<Arc<CodeFile>>>,
    /// The same files by their identity below an overlay.
    by_id: HashMap<FileId, Weak<CodeFile>>,
    idle: Idle<CacheKey>,
}

/// If the cache contains this number of files, the files that no process maps any more are closed before
/// another one is added. A JVM maps about fifteen files.
const MANY_FILES: usize = 64;

/// An executable mapping.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// First address.
    pub start: Addr,
    /// End address, exclusive.
    pub end: Addr,
    /// File offset at `start`.
    pub offset: FileOffset,
    /// File name without its folder, `[vdso]`, `[vsyscall]` or `[anon]`.
    pub module: Arc<str>,
    /// The open file; `None` if there is none or it cannot be opened.
    pub file: Option<Arc<CodeFile>>,
    /// Identity of the file, independent of its name.
    id: FileNumber,
    /// Whether no further attempt to open the file is needed.
    is_tried: bool,
}

/// Device (major, minor) and inode of a file.
type FileNumber = (i32, i32, u64);
/// Device and inode of a debug file.
type DebugFile = (u64, u64);
/// Key of the cache: a mapped file, and the debug file for it in the root of the process. Containers share
/// the files of a container image, but if their debug files differ, they must not share function names.
type CacheKey = (FileNumber, Option<DebugFile>);

impl Mapping {
    /// Returns the file offset of an address in this mapping.
    pub(crate) fn file_offset(&self, addr: Addr) -> FileOffset {
        FileOffset(addr.0.wrapping_sub(self.start.0).wrapping_add(self.offset.0))
    }

    /// Returns whether the mapping has a file, or is the vDSO or vsyscall page.
    pub(crate) fn is_file(&self) -> bool {
        &*self.module != "[anon]"
    }
}

/// Limits how often the mappings of a process are read again because of unmapped addresses.
#[derive(Debug)]
pub(crate) struct RereadLimit {
    /// Earliest time of the next re-read: `interval` after the last one.
    next: Option<Instant>,
    interval: Duration,
    max_interval: Duration,
}

impl RereadLimit {
    /// Initial minimum time between two re-reads. Each time that an address is still unmapped after a re-read, the
    /// minimum time doubles, up to `max_interval`.
    const MIN_INTERVAL: Duration = Duration::from_millis(10);

    pub(crate) fn new(max_interval: Duration) -> Self {
        Self { next: None, interval: Self::MIN_INTERVAL, max_interval }
    }

    /// Returns whether the mappings may be read again.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Counts a re-read. `is_unmapped`: an address is still unmapped.
    pub(crate) fn add(&mut self, now: Instant, is_unmapped: bool) {
        self.interval = match is_unmapped {
            true => (self.interval * 2).min(self.max_interval),
            false => Self::MIN_INTERVAL,
        };
        self.next = Some(now + self.interval);
    }
}

/// Executable mappings of a process, present and past.
#[derive(Clone, Debug, Default)]
pub struct CodeMaps {
    maps: BTreeMap<Addr, Mapping>,
    version: u64,
}

impl CodeMaps {
    /// Makes the list from mappings that do not change: addresses, file offset, path, and the open file.
    pub(super) fn of(
        mappings: impl Iterator<Item = (Range<Addr>, FileOffset, MMapPath, Arc<CodeFile>)>,
    ) -> Self {
        let mapping = |(range, offset, path, file): (Range<Addr>, _, _, _)| {
            let (start, end) = (range.start, range.end);
            let (module, file, id) = (module_name(&path), Some(file), FileNumber::default());
            (start, Mapping { start, end, offset, module, file, id, is_tried: true })
        };
        Self { maps: mappings.take(MAX_MAPPINGS).map(mapping).collect(), version: 1 }
    }

    /// Reads the mappings of a process again. Mappings that have disappeared are kept, because earlier
    /// samples may contain their addresses.
    ///
    /// # Errors
    /// Returns an error if the process has ended or is hidden; the known mappings stay.
    pub fn refresh(&mut self, pid: Pid, files: &FileCache) -> Result<()> {
        // `ran_out` warns the user once if too many files are open. The callers do not report this error,
        // because they can continue with the mappings that are known.
        let maps = maps::of(pid, maps::is_code).inspect_err(|error| _ = ran_out(error))?;
        let mut files = files.opened();
        for map in maps.iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE)) {
            let (start, end) = (Addr(map.address.0), Addr(map.address.1));
            let module = module_name(&map.pathname);
            let offset = FileOffset(map.offset);
            let id = (map.dev.0, map.dev.1, map.inode);
            // A different library of the same size and name may have replaced an earlier one.
            let is_same = |known: &Mapping| {
                (known.end, known.offset, known.id) == (end, offset, id) && known.module == module
            };
            // A file that could not be opened for lack of descriptors is tried again.
            if self.maps.get(&start).is_some_and(|known| is_same(known) && known.is_tried) {
                continue;
            }
            if self.maps.len() >= MAX_MAPPINGS {
                break;
            }
            let file = files.open(pid, map);
            let is_tried = files.was_tried(map);
            let overlapping = self.maps.range(..end).rev().take_while(|(_, m)| m.end > start);
            for old in overlapping.map(|(&at, _)| at).collect::<Vec<_>>() {
                self.maps.remove(&old);
            }
            self.maps.insert(start, Mapping { start, end, offset, module, file, id, is_tried });
            self.version += 1;
        }
        Ok(())
    }

    /// Returns the number of changes found so far. It increases whenever the mappings change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns all present and past mappings in ascending order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.maps.values()
    }

    /// Returns whether an address other than 0 is outside of all mappings.
    pub(crate) fn lacks(&self, addr: Addr) -> bool {
        addr > Addr(0) && self.find(addr).is_none()
    }

    /// Returns the mapping that contains an address.
    pub fn find(&self, addr: Addr) -> Option<&Mapping> {
        self.maps.range(..=addr).next_back().map(|(_, map)| map).filter(|map| addr < map.end)
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

/// Returns the device and inode of a mapped file; `None` if the mapping has no file.
fn file_key(map: &MemoryMap) -> Option<(i32, i32, u64)> {
    match map.pathname {
        MMapPath::Path(_) => Some((map.dev.0, map.dev.1, map.inode)),
        // All processes of this kernel share one vDSO.
        MMapPath::Vdso => Some((0, 0, 0)),
        _ => None,
    }
}

impl FileCache {
    /// Returns the cache shared by all threads of this process, which examine the same JVMs.
    pub(crate) fn of_this_process() -> Self {
        static ALL: OnceLock<FileCache> = OnceLock::new();
        ALL.get_or_init(Self::default).clone()
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes files that have been unused for ten seconds, so that the file system of a container that has
    /// ended is released.
    pub(crate) fn close_unused(&self, now: Instant) {
        self.opened().close_unused(now);
    }
}

impl Opened {
    /// Opens the file of a mapping. A file that could not be opened because too many were open is tried again.
    fn open(&mut self, pid: Pid, map: &MemoryMap) -> Option<Arc<CodeFile>> {
        let number = file_key(map)?;
        let file = self.open_shared(pid, map, (number, None))?;
        let Some((with_symbols, debug_file)) = file.in_root_of(pid) else { return Some(file) };
        let file = self.files.entry((number, Some(debug_file)));
        file.or_insert_with(|| Some(Arc::new(with_symbols))).clone()
    }

    fn open_shared(&mut self, pid: Pid, map: &MemoryMap, key: CacheKey) -> Option<Arc<CodeFile>> {
        if let Some(file) = self.files.get(&key) {
            return file.clone();
        }
        let opened = match &map.pathname {
            MMapPath::Path(path) => libjvm::open_mapped(pid, map, path),
            _ => Memory::open(pid).and_then(|memory| {
                copy_of_memory(&memory, Addr(map.address.0)..Addr(map.address.1))
            }),
        };
        if opened.as_ref().is_err_and(ran_out) {
            return None;
        }
        if self.files.len() >= MANY_FILES {
            // Failed attempts are removed, too, because their inode numbers may belong to other files by now.
            let used = self.used();
            self.files.retain(|key, _| used.contains(key));
        }
        let file = match opened {
            Ok(file) => Some(self.share(file, map)),
            Err(error) => {
                let name = module_name(&map.pathname);
                log::debug!(
                    "process {pid}: cannot open {name}, so its functions have no names: {error}"
                );
                None
            }
        };
        self.files.insert(key, file.clone());
        file
    }

    /// Returns the cached file that is the same as `file` below an overlay. If there is none, returns a new
    /// [`CodeFile`] for `file`.
    fn share(&mut self, file: File, map: &MemoryMap) -> Arc<CodeFile> {
        let id = FileId::of(&file, Some((libjvm::device(map.dev), map.inode))).ok();
        if let Some(known) = id.and_then(|id| self.by_id.get(&id)?.upgrade()) {
            return known;
        }
        let file = Arc::new(CodeFile::with_installed_symbols(file));
        self.by_id.retain(|_, file| file.strong_count() > 0);
        self.by_id.extend(id.map(|id| (id, Arc::downgrade(&file))));
        file
    }

    fn close_unused(&mut self, now: Instant) {
        let mut kept = self.used();
        kept.extend(self.files.iter().filter(|(_, file)| file.is_none()).map(|(&key, _)| key));
        self.idle.release(&mut self.files, kept, now);
    }

    /// Returns the keys of the files that are used outside of the cache. Several keys of the cache may refer
    /// to the same file.
    fn used(&self) -> HashSet<CacheKey> {
        let mut held = HashMap::new();
        for file in self.files.values().flatten() {
            *held.entry(Arc::as_ptr(file)).or_insert(0) += 1;
        }
        let is_used = |file: &Arc<CodeFile>| Arc::strong_count(file) > held[&Arc::as_ptr(file)];
        let used = self.files.iter().filter(|(_, file)| file.as_ref().is_some_and(is_used));
        used.map(|(&key, _)| key).collect()
    }

    /// Returns `true` if no further attempt to open the mapping's file is needed after [`Self::open`]: the mapping has
    /// no file, the file was opened, or it could not be opened for a reason other than a lack of descriptors.
    fn was_tried(&self, map: &MemoryMap) -> bool {
        file_key(map).is_none_or(|number| self.files.contains_key(&(number, None)))
    }
}

/// Copies the vDSO, an ELF file that exists in memory only, to a memfd.
pub(super) fn copy_of_memory(memory: &Memory, range: Range<Addr>) -> Result<File> {
    let failed = |e| crate::Error::io("copy the vDSO", e);
    let len = usize::try_from(range.end.0.saturating_sub(range.start.0)).unwrap_or(usize::MAX);
    let bytes = memory.read(range.start, len)?;
    let fd = memfd_create("vdso", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let mut file = File::from(fd);
    file.write_all(&bytes).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn own_code_is_found_in_a_mapped_file() {
        let pid = Pid(std::process::id());
        let mut maps = CodeMaps::default();
        maps.refresh(pid, &FileCache::default()).unwrap();
        let own_address = Addr(own_code_is_found_in_a_mapped_file as fn() as usize as u64);
        let mapping = maps.find(own_address).unwrap();
        assert!(mapping.file.is_some());
        assert!(mapping.start <= own_address && own_address < mapping.end);
        assert!(maps.find(Addr(1)).is_none());
        let version = maps.version();
        maps.refresh(pid, &FileCache::default()).unwrap();
        assert_eq!(maps.version(), version, "nothing has changed");
        assert!(maps.iter().any(|m| &*m.module == "[vdso]" && m.file.is_some()));
    }

    #[test]
    fn rereads_become_rarer_while_an_address_stays_unmapped() {
        let (mut limit, now) = (RereadLimit::new(Duration::from_secs(1)), Instant::now());
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        assert!(limit.allows(now));
        limit.add(now, true);
        assert!(!limit.allows(after(19)) && limit.allows(after(20)));
        (0..10).for_each(|_| limit.add(now, true));
        assert!(!limit.allows(after(999)) && limit.allows(after(1000)));
        limit.add(now, false);
        assert!(!limit.allows(after(9)) && limit.allows(after(10)));
    }

    #[test]
    fn unused_files_are_closed_after_the_idle_timeout() {
        let (files, mut maps) = (FileCache::default(), CodeMaps::default());
        maps.refresh(Pid(std::process::id()), &files).unwrap();
        let of_file = maps.iter().find(|m| m.file.is_some()).unwrap().clone();
        let now = Instant::now();
        let later = |seconds| now + Duration::from_secs(seconds);
        files.close_unused(now);
        files.close_unused(later(60));
        let all = files.opened().files.len();
        drop(maps);
        files.close_unused(later(120));
        files.close_unused(later(121));
        assert_eq!(files.opened().files.len(), all, "the next process may have them");
        files.close_unused(later(180));
        let opened = files.opened();
        let left: Vec<_> = opened.files.values().flatten().collect();
        assert!(left.len() == 1 && Arc::ptr_eq(left[0], of_file.file.as_ref().unwrap()));
    }

    #[test]
    fn file_shared_by_containers_closes_after_last_use() {
        let (cache, now) = (FileCache::default(), Instant::now());
        let file = Arc::new(CodeFile::new(File::open("/proc/self/exe").unwrap()));
        let keys = [1, 2].map(|device| ((device, 0, 3), None));
        cache.opened().files.extend(keys.map(|key| (key, Some(Arc::clone(&file)))));
        let later = |seconds| now + Duration::from_secs(seconds);
        cache.close_unused(now);
        cache.close_unused(later(60));
        assert_eq!(cache.opened().files.len(), 2, "a process has it");
        drop(file);
        cache.close_unused(later(61));
        cache.close_unused(later(120));
        assert!(cache.opened().files.is_empty());
    }

    #[test]
    fn failed_file_is_not_tried_again_when_the_cache_drops_it() {
        let pid = Pid(std::process::id());
        let (files, mut maps) = (FileCache::default(), CodeMaps::default());
        let addr =
            Addr(failed_file_is_not_tried_again_when_the_cache_drops_it as fn() as usize as u64);
        maps.refresh(pid, &FileCache::default()).unwrap();
        let failed = (maps.find(addr).unwrap().id, None);
        files.opened().files.insert(failed, None);
        maps = CodeMaps::default();
        maps.refresh(pid, &files).unwrap();
        files.opened().files.clear();
        maps.refresh(pid, &files).unwrap();
        assert!(maps.find(addr).unwrap().file.is_none());
    }

    /// Maps a file as code, at `at` if an address is given.
    fn map(path: &Path, at: Option<*mut libc::c_void>) -> *mut libc::c_void {
        let file = File::open(path).unwrap();
        let fixed = at.map_or(0, |_| libc::MAP_FIXED);
        let (at, access) = (at.unwrap_or(std::ptr::null_mut()), libc::PROT_READ | libc::PROT_EXEC);
        // SAFETY: makes a new mapping, or replaces the one that this function made last, to which no reference
        // exists.
        let at =
            unsafe { libc::mmap(at, 4096, access, libc::MAP_PRIVATE | fixed, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at
    }

    #[test]
    fn library_replaced_at_the_same_address_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        // Equal name and size, as plug-ins may have.
        let paths = ["a", "b"].map(|name| {
            let path = dir.path().join(name).join("plugin.so");
            std::fs::create_dir(path.parent().unwrap()).unwrap();
            std::fs::write(&path, vec![name.as_bytes()[0]; 4096]).unwrap();
            path
        });
        let at = map(&paths[0], None);
        let (pid, files, mut maps) =
            (Pid(std::process::id()), FileCache::default(), CodeMaps::default());
        let addr = Addr(at as u64 + 8);
        maps.refresh(pid, &files).unwrap();
        let (version, count) = (maps.version(), maps.iter().count());
        let first_byte = |maps: &CodeMaps| {
            let file = maps.find(addr).unwrap().file.clone().unwrap();
            std::fs::read(file.path()).unwrap()[0]
        };
        assert_eq!(first_byte(&maps), b'a');
        map(&paths[1], Some(at));
        maps.refresh(pid, &files).unwrap();
        assert_eq!(maps.iter().count(), count);
        assert!(maps.version() > version);
        assert_eq!(first_byte(&maps), b'b');
    }
}
