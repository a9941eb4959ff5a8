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
    elf::{ElfFile, SymbolFile, is_out_of_memory},
    process::{
        FileId, Process, cgroup, file_id::Version, libjvm, maps, memory::Memory, root::Root,
    },
    sys::{
        Idle,
        budget::{Budget, Reservation, Share},
        descriptors::{self, ran_out},
        limited,
    },
};

/// Maximum number of executable mappings kept per process; a large JVM has 500. Code beyond has no names and no unwind
/// tables.
pub(crate) const MAX_MAPPINGS: usize = 8191;
/// Maximum number of files kept open per process; a large JVM maps 400. Functions of other files are shown by the file's
/// name.
const MAX_FILES: usize = 512;
/// Files are opened within this time whenever the mappings are read, but at least `MIN_OPENED` files if this takes no
/// longer than `MAX_OPENING`. The next read opens the others.
const OPENING: Duration = Duration::from_millis(50);
const MIN_OPENED: usize = 64;
const MAX_OPENING: Duration = Duration::from_secs(1);

/// Number of further descriptors that a file on overlays has, each from another tenant.
const MAX_COPIES: usize = 3;

/// Descriptors of the same file from other containers of its image. A container that writes to the file changes what its own
/// descriptor leads to, and then another one is read.
#[derive(Debug, Default)]
struct Copies([OnceLock<(File, Reservation)>; MAX_COPIES]);

/// An open file that contains code. Processes of several tenants may share it.
#[derive(Debug)]
pub struct CodeFile {
    file: File,
    /// Its version when it was opened. A descriptor that leads to another one is not read.
    version: Version,
    copies: Copies,
    /// A separate file with the symbols, if `file` has none.
    symbols: Option<File>,
    /// Share of the limit of open files.
    place: Reservation,
}

impl CodeFile {
    #[cfg(test)]
    pub(crate) fn new(file: File) -> Self {
        let version = Version::of(&file).unwrap();
        let (symbols, copies, place) = Default::default();
        Self { file, version, copies, symbols, place }
    }

    /// Makes a code file of a core file, with symbols only from sources that no target controls.
    pub(super) fn with_installed_symbols(file: File) -> Self {
        let symbols = file.try_clone().ok().and_then(|file| {
            let elf = ElfFile::open(file).ok().filter(|elf| !elf.has_symbols())?;
            elf.installed_symbols()
        });
        let (version, copies, place) = Default::default();
        Self { file, version, copies, symbols, place }
    }

    /// Makes a code file at the expense of the tenant whose place it takes.
    ///
    /// # Errors
    /// [`crate::Error::Io`] of the kind `OutOfMemory` if the tenant's share does not suffice. Other tenants that map the
    /// file would lack its symbols, too, if it were opened without them.
    fn in_place(file: File, place: Reservation) -> Result<Self> {
        let failed = |e| crate::Error::io("reopen a mapped file", e);
        let version = Version::of(&file).map_err(failed)?;
        let copy = file.try_clone().map_err(failed)?;
        let symbols = match ElfFile::open_for(copy, &memory_of(&place)) {
            Ok(elf) if !elf.has_symbols() => elf.installed_symbols(),
            Err(error) if is_out_of_memory(&error) => return Err(error),
            Ok(_) | Err(_) => None,
        };
        Ok(Self { file, version, copies: Copies::default(), symbols, place })
    }

    /// Returns the same file with the debug file in the root of process `pid`, and that debug file's identity. `None`
    /// if this file has symbols or there is no debug file.
    fn in_root_of(&self, pid: Pid, place: Reservation) -> Option<(Self, DebugFile)> {
        if self.symbols.is_some() {
            return None;
        }
        let elf = ElfFile::open_for(self.reopen().ok()?, &memory_of(&place)).ok()?;
        if elf.has_symbols() || elf.has_packed_symbols() {
            return None;
        }
        let root = Root::open(&Process::open(pid).ok()?).ok()?;
        let symbols = elf.symbols_in(|path| root.file(path))?;
        let meta = symbols.metadata().ok()?;
        let (file, version, copies) = (self.reopen().ok()?, self.version, Copies::default());
        let file = Self { file, version, copies, symbols: Some(symbols), place };
        Some((file, (meta.dev(), meta.ino())))
    }

    /// Returns another file with the symbols, if this file has no symbol table: a separate file of the same
    /// build, or a new file with the symbols that this file contains in compressed form. `elf` is this file.
    ///
    /// # Errors
    /// [`crate::Error::Io`] of the kind `OutOfMemory` if the tenant's share of memory is used up.
    pub(crate) fn separate_symbols(&self, elf: &ElfFile) -> Result<Option<SymbolFile>> {
        match self.symbols.as_ref().and_then(|file| file.try_clone().ok()) {
            Some(file) => Ok(Some(file.into())),
            None if elf.has_symbols() => Ok(None),
            None => elf.unpacked(),
        }
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
        let file = self.current().unwrap_or(&self.file);
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// Returns another descriptor of the same file. After reading it for several processes, check by `is_same` that
    /// it still is the file.
    ///
    /// # Errors
    /// [`crate::Error::Io`] if too many files are open, or all containers from which it was opened have replaced it.
    pub fn reopen(&self) -> Result<File> {
        let file = self.current().ok_or_else(|| std::io::Error::other("it has been replaced"));
        let file = file.and_then(File::try_clone);
        file.map_err(|e| crate::Error::io("reopen a mapped file", e))
    }

    /// Returns whether a descriptor that [`reopen`](Self::reopen) has returned still leads to this file.
    pub(crate) fn is_same(&self, file: &File) -> bool {
        self.version.is_of(file)
    }

    /// Returns a descriptor that leads to this file.
    fn current(&self) -> Option<&File> {
        let copies = self.copies.0.iter().filter_map(|copy| Some(&copy.get()?.0));
        std::iter::once(&self.file).chain(copies).find(|file| self.is_same(file))
    }

    /// Adds a descriptor of the same file from another tenant's container.
    fn add_copy(&self, file: File, place: Reservation) {
        let tenants = self.copies.0.iter().filter_map(|copy| Some(copy.get()?.1.tenant()));
        let mut tenants = tenants.chain([self.place.tenant()]);
        if self.version != Version::default() && !tenants.any(|tenant| tenant == place.tenant()) {
            let mut copy = Some((file, place));
            for free in &self.copies.0 {
                if let Some(added) = copy.take() {
                    copy = free.set(added).err();
                }
            }
        }
    }
}

/// Returns the share of memory of the tenant that holds a place for an open file.
fn memory_of(place: &Reservation) -> Share {
    Budget::of_process().share(place.tenant())
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
    /// Number of files at which those that no process maps any more are closed: twice the number that was left the last
    /// time, so that opening `n` files takes time proportional to `n`.
    next_sweep: usize,
    /// Places for open files.
    places: Budget,
}

/// If the cache contains fewer files than this, unused files are closed after the idle timeout only. A JVM maps about
/// fifteen files.
const MANY_FILES: usize = 64;

/// Result of an attempt to open a mapped file.
enum Opening {
    /// The file; `None` if it cannot be opened.
    Done(Option<Arc<CodeFile>>),
    /// The tenant's share of open files is used up.
    Refused,
    /// Too many files are open.
    Later,
}

/// Limits the files that one process has open, and the time for opening them.
struct Pass {
    begin: Instant,
    opened: usize,
    /// Files of the process that are open.
    open: HashSet<FileNumber>,
}

impl Pass {
    fn new(open: HashSet<FileNumber>) -> Self {
        Self { begin: Instant::now(), opened: 0, open }
    }

    /// Returns whether the process may have this file open, too.
    fn allows(&self, file: FileNumber) -> bool {
        self.open.len() < MAX_FILES || self.open.contains(&file)
    }

    /// Returns whether there is time to open another file.
    fn has_time(&self) -> bool {
        let elapsed = self.begin.elapsed();
        elapsed < OPENING || self.opened < MIN_OPENED && elapsed < MAX_OPENING
    }
}

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
/// Key of the cache: the tenant, a mapped file, and the debug file for it in the root of the process. Containers share the
/// files of a container image, but if their debug files differ, they must not share function names. The numbers in the list
/// of mappings do not prove what was opened, so tenants share only files that have the same [`FileId`].
type CacheKey = (Arc<str>, FileNumber, Option<DebugFile>);

impl Mapping {
    /// Makes a mapping whose file is not open.
    fn new(map: &MemoryMap) -> Self {
        Self {
            start: Addr(map.address.0),
            end: Addr(map.address.1),
            offset: FileOffset(map.offset),
            module: module_name(&map.pathname),
            file: None,
            id: (map.dev.0, map.dev.1, map.inode),
            is_tried: false,
        }
    }

    /// Returns whether this is the same mapping. A different library of the same size and name may have replaced an
    /// earlier one.
    fn is_same(&self, other: &Self) -> bool {
        (self.end, self.offset, self.id) == (other.end, other.offset, other.id)
            && self.module == other.module
    }

    /// Returns whether its file has been replaced by every container from which it was opened.
    fn is_replaced(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.current().is_none())
    }

    /// Returns the memory that it takes in the list of a process and in one copy of this list, in bytes.
    fn size(&self) -> usize {
        2 * (2 * size_of::<Self>() + self.module.len())
    }

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
    /// Minimum time between two re-reads, as a multiple of the time that a re-read takes. A process that has many
    /// mappings is read less often.
    const PAUSE_FACTOR: u32 = 10;
    /// Time of a re-read that causes no longer pause, because an ordinary JVM maps its libraries one after another.
    const QUICK: Duration = Duration::from_millis(20);

    pub(crate) fn new(max_interval: Duration) -> Self {
        Self { next: None, interval: Self::MIN_INTERVAL, max_interval }
    }

    /// Returns whether the mappings may be read again.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| now >= next)
    }

    /// Counts a re-read that ended at `now` and took `duration`. `is_unmapped`: an address is still unmapped.
    pub(crate) fn add(&mut self, now: Instant, duration: Duration, is_unmapped: bool) {
        self.interval = match is_unmapped {
            true => (self.interval * 2).min(self.max_interval),
            false => Self::MIN_INTERVAL,
        };
        let excess = duration.saturating_sub(Self::QUICK);
        self.next = Some(now + self.interval.max(excess * Self::PAUSE_FACTOR));
    }
}

/// Executable mappings of a process, present and past. Clones share the reservation of memory.
#[derive(Clone, Debug)]
pub struct CodeMaps {
    maps: BTreeMap<Addr, Mapping>,
    version: u64,
    /// The process's tenant, once its mappings were read.
    tenant: Arc<str>,
    memory: Arc<Mutex<Reservation>>,
    /// Size of the mappings in bytes.
    size: usize,
    /// Whether files remain to be opened that the process may have open.
    is_incomplete: bool,
    /// Number of present mappings, and of files, that were left out by the last read.
    left_out: LeftOut,
}

impl Default for CodeMaps {
    fn default() -> Self {
        Self {
            maps: BTreeMap::new(),
            version: 0,
            tenant: "".into(),
            memory: Arc::default(),
            size: 0,
            is_incomplete: false,
            left_out: LeftOut::default(),
        }
    }
}

/// Numbers of things that were left out.
#[derive(Clone, Copy, Debug, Default)]
struct LeftOut {
    mappings: usize,
    files: usize,
}

impl LeftOut {
    /// Counts what was not left out before.
    fn report(self, before: Self, tenant: &Arc<str>) {
        let more = |now: usize, before: usize| now.saturating_sub(before) as u64;
        limited::add("mappings", tenant, more(self.mappings, before.mappings));
        limited::add("files", tenant, more(self.files, before.files));
    }
}

impl CodeMaps {
    /// Makes the list of a core file from mappings that do not change: addresses, file offset, path, and the open file.
    pub(super) fn of(
        mappings: impl Iterator<Item = (Range<Addr>, FileOffset, MMapPath, Arc<CodeFile>)>,
    ) -> Self {
        let mapping = |(range, offset, path, file): (Range<Addr>, _, _, _)| {
            let (start, end) = (range.start, range.end);
            let (module, file, id) = (module_name(&path), Some(file), FileNumber::default());
            (start, Mapping { start, end, offset, module, file, id, is_tried: true })
        };
        let maps = mappings.take(MAX_MAPPINGS).map(mapping).collect();
        Self { maps, version: 1, tenant: "core file".into(), ..Self::default() }
    }

    /// Returns the tenant of the process.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Returns whether another [`refresh`](Self::refresh) would open more files.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Reads the mappings of a process again. Mappings that have disappeared are kept, because earlier
    /// samples may contain their addresses, unless there are too many mappings or files. The time for opening files is
    /// limited; `is_incomplete` returns whether the next call opens more.
    ///
    /// # Errors
    /// Returns an error if the process has ended or is hidden; the known mappings stay.
    pub fn refresh(&mut self, pid: Pid, files: &FileCache) -> Result<()> {
        // `ran_out` warns the user once if too many files are open. The callers do not report this error,
        // because they can continue with the mappings that are known.
        let (maps, omitted) = maps::first_of(pid, MAX_MAPPINGS, maps::is_code)
            .inspect_err(|error| _ = ran_out(error))?;
        if self.tenant.is_empty() {
            self.tenant = cgroup::tenant_of(pid);
            *self.lock_memory() = Reservation::within(&Budget::of_process().share(&self.tenant));
        }
        let mut files = files.opened();
        let places = files.places.share(&self.tenant);
        self.close_excess(places.excess());
        let maps = maps.iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE));
        let (known, new): (Vec<_>, Vec<_>) = maps.partition(|map| self.knows(map));
        let mut left_out = LeftOut { mappings: omitted, files: 0 };
        self.is_incomplete = false;
        if !new.is_empty() {
            let mut open = self.open_files();
            let is_full = self.maps.len() + new.len() > MAX_MAPPINGS;
            if is_full || open.len() + new.len() > MAX_FILES {
                self.drop_past(known.iter().chain(&new).copied());
                open = self.open_files();
            }
            let mut pass = Pass::new(open);
            for map in new {
                self.add(pid, map, &mut files, &places, &mut pass, &mut left_out);
            }
        }
        left_out.report(self.left_out, &self.tenant);
        self.left_out = left_out;
        Ok(())
    }

    /// Adds a mapping, or tries again to open the file of one.
    fn add(
        &mut self,
        pid: Pid,
        map: &MemoryMap,
        files: &mut Opened,
        places: &Share,
        pass: &mut Pass,
        left_out: &mut LeftOut,
    ) {
        let mut mapping = Mapping::new(map);
        if file_key(map).is_some() {
            if !pass.allows(mapping.id) {
                left_out.files += 1;
            } else if !pass.has_time() {
                self.is_incomplete = true;
            } else {
                pass.opened += 1;
                match files.open(pid, map, places) {
                    Opening::Done(file) => (mapping.file, mapping.is_tried) = (file, true),
                    Opening::Refused => left_out.files += 1,
                    Opening::Later => {}
                }
            }
        } else {
            mapping.is_tried = true;
        }
        let (start, end) = (mapping.start, mapping.end);
        if let Some(known) = self.maps.get_mut(&start).filter(|known| known.is_same(&mapping)) {
            let has_changed = mapping.file.is_some();
            known.is_tried = mapping.is_tried;
            if has_changed {
                pass.open.insert(mapping.id);
                known.file = mapping.file;
                self.version += 1;
            }
            return;
        }
        let overlapping = self.maps.range(..end).rev().take_while(|(_, m)| m.end > start);
        for old in overlapping.map(|(&at, _)| at).collect::<Vec<_>>() {
            self.remove(old);
        }
        if self.maps.len() >= MAX_MAPPINGS || !self.reserve(mapping.size()) {
            left_out.mappings += 1;
            return;
        }
        if mapping.file.is_some() {
            pass.open.insert(mapping.id);
        }
        self.maps.insert(start, mapping);
        self.version += 1;
    }

    /// Returns whether a mapping is known, with its file if that can be opened.
    fn knows(&self, map: &MemoryMap) -> bool {
        let known = self.maps.get(&Addr(map.address.0));
        known.is_some_and(|known| {
            known.is_tried && known.is_same(&Mapping::new(map)) && !known.is_replaced()
        })
    }

    fn open_files(&self) -> HashSet<FileNumber> {
        self.maps.values().filter(|map| map.file.is_some()).map(|map| map.id).collect()
    }

    /// Drops the mappings that have disappeared.
    fn drop_past<'a>(&mut self, present: impl Iterator<Item = &'a MemoryMap>) {
        let present: HashSet<_> = present.map(|map| map.address.0).collect();
        let is_past = |at: &Addr| !present.contains(&at.0);
        let past: Vec<_> = self.maps.keys().copied().filter(is_past).collect();
        past.into_iter().for_each(|at| self.remove(at));
    }

    /// Closes files beyond the tenant's share of open files.
    fn close_excess(&mut self, excess: usize) {
        let files: HashSet<_> = self.open_files().into_iter().take(excess).collect();
        if !files.is_empty() {
            for mapping in self.maps.values_mut().filter(|mapping| files.contains(&mapping.id)) {
                (mapping.file, mapping.is_tried) = (None, false);
            }
            self.version += 1;
        }
    }

    fn remove(&mut self, at: Addr) {
        if let Some(old) = self.maps.remove(&at) {
            self.size -= old.size();
            self.version += 1;
        }
    }

    /// Reserves memory of a mapping.
    fn reserve(&mut self, size: usize) -> bool {
        let mut memory = self.lock_memory();
        let more = (self.size + size).saturating_sub(memory.bytes());
        let is_reserved = more == 0 || memory.reserve(more);
        drop(memory);
        self.size += if is_reserved { size } else { 0 };
        is_reserved
    }

    fn lock_memory(&self) -> MutexGuard<'_, Reservation> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
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
        // All processes of a kernel have the same vDSO, unless they change it.
        MMapPath::Vdso => Some((0, 0, 0)),
        _ => None,
    }
}

impl FileCache {
    /// Returns the cache shared by all threads of this process, which examine the same JVMs.
    pub(crate) fn of_this_process() -> Self {
        static ALL: OnceLock<FileCache> = OnceLock::new();
        /// Each file takes up to four descriptors: for its code, its symbols, and for those who read them.
        const DESCRIPTORS: usize = 4;
        let new = || {
            let places = Budget::of(descriptors::limit() / DESCRIPTORS);
            Self(Arc::new(Mutex::new(Opened { places, ..Opened::default() })))
        };
        ALL.get_or_init(new).clone()
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
    /// Opens the file of a mapping at the expense of a tenant.
    fn open(&mut self, pid: Pid, map: &MemoryMap, places: &Share) -> Opening {
        let Some(number) = file_key(map) else { return Opening::Done(None) };
        let tenant = places.tenant();
        let shared = self.open_shared(pid, map, (Arc::clone(tenant), number, None), places);
        let Opening::Done(Some(file)) = &shared else { return shared };
        let mut place = Reservation::within(places);
        if !place.reserve(1) {
            return shared;
        }
        let Some((with_symbols, debug_file)) = file.in_root_of(pid, place) else { return shared };
        let key = (Arc::clone(tenant), number, Some(debug_file));
        let known = self.files.get(&key).cloned().flatten();
        let known = known.filter(|known| known.current().is_some());
        let file = Some(known.unwrap_or_else(|| Arc::new(with_symbols)));
        self.files.insert(key, file.clone());
        Opening::Done(file)
    }

    fn open_shared(&mut self, pid: Pid, map: &MemoryMap, key: CacheKey, places: &Share) -> Opening {
        let is_usable = |file: &Arc<CodeFile>| file.current().is_some();
        if let Some(file) = self.files.get(&key).filter(|file| file.as_ref().is_none_or(is_usable))
        {
            return Opening::Done(file.clone());
        }
        let mut place = Reservation::within(places);
        if !place.reserve(1) {
            return Opening::Refused;
        }
        let opened = match &map.pathname {
            MMapPath::Path(path) => libjvm::open_mapped(pid, map, path),
            _ => Memory::open(pid).and_then(|memory| {
                copy_of_memory(&memory, Addr(map.address.0)..Addr(map.address.1))
            }),
        };
        let opened = opened.and_then(|file| self.share(file, map, place));
        match &opened {
            Err(error) if ran_out(error) => return Opening::Later,
            Err(error) if is_out_of_memory(error) => return Opening::Refused,
            Ok(_) | Err(_) => {}
        }
        if self.files.len() >= self.next_sweep.max(MANY_FILES) {
            // Failed attempts are removed, too, because their inode numbers may belong to other files by now.
            let used = self.used();
            self.files.retain(|key, _| used.contains(key));
            self.by_id.retain(|_, file| file.strong_count() > 0);
            self.next_sweep = 2 * self.files.len();
        }
        let file = match opened {
            Ok(file) => Some(file),
            Err(error) => {
                let name = module_name(&map.pathname);
                log::debug!(
                    "process {pid}: cannot open {name}, so its functions have no names: {error}"
                );
                None
            }
        };
        self.files.insert(key, file.clone());
        Opening::Done(file)
    }

    /// Returns the cached file that is the same as `file` below an overlay. If there is none, or all its containers have
    /// replaced it, returns a new [`CodeFile`] for `file`.
    fn share(&mut self, file: File, map: &MemoryMap, place: Reservation) -> Result<Arc<CodeFile>> {
        let id = FileId::of(&file, Some((libjvm::device(map.dev), map.inode))).ok();
        let known = id.and_then(|id| self.by_id.get(&id)?.upgrade());
        if let Some(known) = known.filter(|known| known.current().is_some()) {
            known.add_copy(file, place);
            return Ok(known);
        }
        let file = Arc::new(CodeFile::in_place(file, place)?);
        self.by_id.extend(id.map(|id| (id, Arc::downgrade(&file))));
        Ok(file)
    }

    fn close_unused(&mut self, now: Instant) {
        let mut kept = self.used();
        let failed = self.files.iter().filter(|(_, file)| file.is_none());
        kept.extend(failed.map(|(key, _)| key.clone()));
        if !self.idle.release(&mut self.files, kept, now).is_empty() {
            self.by_id.retain(|_, file| file.strong_count() > 0);
        }
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
        used.map(|(key, _)| key.clone()).collect()
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
        let short = Duration::from_micros(10);
        limit.add(now, short, true);
        assert!(!limit.allows(after(19)) && limit.allows(after(20)));
        (0..10).for_each(|_| limit.add(now, short, true));
        assert!(!limit.allows(after(999)) && limit.allows(after(1000)));
        limit.add(now, short, false);
        assert!(!limit.allows(after(9)) && limit.allows(after(10)));
        limit.add(now, Duration::from_millis(30), false);
        assert!(
            !limit.allows(after(99)) && limit.allows(after(100)),
            "ten times the excess over 20 ms"
        );
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
        cache.opened().files.extend(keys.map(|(number, debug_file)| {
            (("a".into(), number, debug_file), Some(Arc::clone(&file)))
        }));
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
    fn container_that_replaces_a_file_of_its_image_does_not_change_it_for_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // The mounts are visible to this thread only.
        let thread = std::thread::spawn(|| {
            // SAFETY: this thread opens no files of others.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
            let folder = tempfile::tempdir().unwrap();
            let script =
                "mount --make-rprivate /; mkdir r; mount -t tmpfs image r; cd r; mkdir i; printf original > i/lib
                for n in 1 2; do mkdir u$n w$n m$n
                mount -t overlay o -o lowerdir=i,upperdir=u$n,workdir=w$n m$n; done";
            let mut mount = std::process::Command::new("sh");
            let status = mount.args(["-ec", script]).current_dir(folder.path()).status();
            assert!(status.unwrap().success());
            let path = |container: &str| folder.path().join("r").join(container).join("lib");
            let open = |container| File::open(path(container)).unwrap();
            let map = maps::of(Pid(std::process::id()), maps::is_code).unwrap().remove(0);
            let places = Budget::of(100);
            let share = |cache: &mut Opened, file, tenant: &str| {
                let mut place = Reservation::within(&places.share(&tenant.into()));
                assert!(place.reserve(1));
                cache.share(file, &map, place).unwrap()
            };
            let content = |file: &CodeFile| {
                file.reopen().map(|_| std::fs::read_to_string(file.path()).unwrap())
            };
            let [mut alone, mut both] = [Opened::default(), Opened::default()];
            let first = open("m1");
            let alone_first = share(&mut alone, open("m1"), "first");
            let shared = share(&mut both, open("m1"), "first");
            assert!(Arc::ptr_eq(&shared, &share(&mut both, open("m2"), "second")));
            let modified = first.metadata().unwrap().modified().unwrap();
            std::fs::write(path("m1"), "replaced").unwrap();
            let writable = File::options().write(true).open(path("m1")).unwrap();
            writable.set_times(std::fs::FileTimes::new().set_modified(modified)).unwrap();
            assert_eq!(std::io::read_to_string(&first).unwrap(), "replaced", "why this is tested");
            assert_eq!(content(&shared).unwrap(), "original");
            assert!(!shared.is_same(&first));
            assert!(content(&alone_first).is_err());
            for cache in [&mut alone, &mut both] {
                let second = share(cache, open("m2"), "second");
                assert_eq!(content(&second).unwrap(), "original");
                let first = share(cache, open("m1"), "first");
                assert_eq!(content(&first).unwrap(), "replaced");
            }
        });
        thread.join().unwrap();
    }

    #[test]
    fn failed_file_is_not_tried_again_when_the_cache_drops_it() {
        let pid = Pid(std::process::id());
        let (files, mut maps) = (FileCache::default(), CodeMaps::default());
        let addr =
            Addr(failed_file_is_not_tried_again_when_the_cache_drops_it as fn() as usize as u64);
        maps.refresh(pid, &FileCache::default()).unwrap();
        let failed = (cgroup::tenant_of(pid), maps.find(addr).unwrap().id, None);
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

    #[test]
    fn files_beyond_the_limit_are_not_opened_and_cost_no_time() {
        let mut pass = Pass::new((1..MAX_FILES as u64).map(|inode| (8, 1, inode)).collect());
        assert!(pass.allows((8, 1, 0)));
        pass.open.insert((8, 1, 0));
        assert!(!pass.allows((8, 1, MAX_FILES as u64)) && pass.allows((8, 1, 7)));
        assert!(pass.has_time());
        let before = |time| Instant::now().checked_sub(time).unwrap();
        pass.begin = before(OPENING);
        assert!(pass.has_time(), "an ordinary JVM's files are opened in one pass");
        pass.opened = MIN_OPENED;
        assert!(!pass.has_time());
        (pass.begin, pass.opened) = (before(MAX_OPENING), 0);
        assert!(!pass.has_time());
    }

    #[test]
    fn files_of_a_tenant_have_a_share_of_all_descriptors() {
        let pid = Pid(std::process::id());
        let places = Budget::of(2);
        let files = FileCache(Arc::new(Mutex::new(Opened { places, ..Opened::default() })));
        let mut maps = CodeMaps::default();
        maps.refresh(pid, &files).unwrap();
        let open = |maps: &CodeMaps| maps.iter().filter(|map| map.file.is_some()).count();
        assert_eq!((open(&maps), files.opened().places.held()), (1, 1));
        assert!(maps.left_out.files > 0 && !maps.is_incomplete());
        let version = maps.version();
        maps.refresh(pid, &files).unwrap();
        assert_eq!(maps.version(), version, "failed attempts are no changes");
        files.opened().places = Budget::of(1000);
        maps.refresh(pid, &files).unwrap();
        assert!(open(&maps) > 1 && maps.version() > version);
        assert_eq!(maps.left_out.files, 0);
        maps.close_excess(1000);
        assert_eq!(open(&maps), 0);
        maps.refresh(pid, &files).unwrap();
        assert!(open(&maps) > 1);
    }

    #[test]
    fn past_mappings_are_dropped_when_there_are_too_many() {
        let (pid, files, mut maps) =
            (Pid(std::process::id()), FileCache::default(), CodeMaps::default());
        maps.refresh(pid, &files).unwrap();
        let present = maps.iter().count();
        let sample = maps.iter().next().unwrap().clone();
        for at in 0..MAX_MAPPINGS as u64 - 2 {
            let (start, end) = (Addr(at * 16), Addr(at * 16 + 16));
            let past = Mapping { start, end, file: None, ..sample.clone() };
            if maps.maps.len() < MAX_MAPPINGS && maps.reserve(past.size()) {
                maps.maps.insert(start, past);
            }
        }
        assert_eq!(maps.iter().count(), MAX_MAPPINGS);
        // A mapping that is not known yet needs a place.
        let own_address = past_mappings_are_dropped_when_there_are_too_many as fn() as usize as u64;
        let own = maps.find(Addr(own_address)).unwrap().start;
        maps.remove(own);
        assert!(maps.reserve(sample.size()));
        maps.maps.insert(Addr(1 << 40), Mapping { start: Addr(1 << 40), ..sample });
        maps.refresh(pid, &files).unwrap();
        assert!(maps.find(Addr(own_address)).is_some());
        assert!((present..present + 10).contains(&maps.iter().count()));
        assert_eq!(maps.size, maps.iter().map(Mapping::size).sum::<usize>());
    }

    #[test]
    fn memory_of_mappings_is_reserved_until_the_last_copy_is_dropped() {
        let budget = Budget::of(10_000);
        let memory = Reservation::within(&budget.share(&"a".into()));
        let mut maps = CodeMaps { memory: Arc::new(Mutex::new(memory)), ..CodeMaps::default() };
        assert!(maps.reserve(3000) && maps.reserve(2000) && !maps.reserve(1));
        let copy = maps.clone();
        drop(maps);
        assert_eq!((budget.held(), copy.size), (5000, 5000));
        drop(copy);
        assert_eq!(budget.held(), 0);
    }
}
