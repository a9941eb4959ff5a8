//! Data for the kernel side's stack walker (`bpf/walk/walk.bpf.h`): the layout of each JVM's code cache, the files that
//! a process has mapped, and their unwind tables.
//!
//! A process without such data is walked by frame pointers.

use std::{
    collections::{HashMap, HashSet},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, OpenObject};
use libbpf_sys::{BPF_F_INNER_MAP, bpf_map_create_opts};
use plain::Plain;

use crate::{
    Error, Result,
    bpf::{
        defect, load_error,
        map_writer::{Job, MapWriter, Outer},
        records::{bytes, entries, plain_structs},
    },
    elf::{ElfFile, Segments},
    hotspot::walking::JvmLayout,
    process::code::{CodeFile, CodeMaps, Mapping},
    sys::{Idle, descriptors::ran_out},
    unwind::{Row, UnwindTable},
};

/// `MAX_TABLES` of bpf/walk/walk.h.
const MAX_TABLES: u32 = 4096;
/// Maximum number of mappings that the walker's binary search can cover: `MAX_MAPPING_STEPS` of bpf/walk/native.bpf.h.
const MAX_MAPPINGS: usize = 8191;
/// Maximum number of rows of all tables together, eight bytes each: 128 MiB of memory that the kernel cannot swap out.
/// A libjvm.so has 200,000 rows, and all libraries of a JVM together have twice as many.
const MAX_ALL_ROWS: usize = 16 << 20;
/// Number of entries written to a map by one system call.
const BATCH: usize = 16_384;

/// `struct mapping` of bpf/walk/walk.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MappingEntry {
    pub start: u64,
    pub end: u64,
    pub bias: u64,
    pub table: u32,
    pub rows: u32,
}

plain_structs!(JvmLayout, MappingEntry, Row);

/// Maps that are needed for stacks only: to walk them, and to send each once.
const MAPS: [&str; 7] =
    ["jvms", "mappings", "tables", "walkers", "address_cache", "stacks", "known_stacks"];

/// Disables the creation of the walker's maps in an object that is loaded without the walker.
///
/// # Errors
/// [`Error::Bpf`].
pub fn disable_maps(object: &mut OpenObject) -> Result<()> {
    for mut map in object.maps_mut() {
        if MAPS.iter().any(|name| map.name() == *name) {
            map.set_autocreate(false).map_err(load_error)?;
        }
    }
    Ok(())
}

/// Removes the entries of a process that has ended from the map `known_stacks` of bpf/walk/intern.bpf.h.
pub(crate) fn forget_stacks(known: &impl MapCore, key: u64) {
    let key = key.to_ne_bytes();
    // Entries that cannot be read stay until the map is emptied.
    for (id, of) in entries(known).unwrap_or_default() {
        if of == key {
            // Failure means that it was removed already.
            let _ = known.delete(&id);
        }
    }
}

/// A file's unwind table.
#[derive(Debug)]
struct Loaded {
    index: u32,
    rows: u32,
    /// Copy of the rows, if `Walker::keep_rows` was called.
    copied_rows: Vec<Row>,
    base: u64,
    segments: Segments,
}

impl Loaded {
    fn new(index: u32, table: &UnwindTable, copied_rows: Vec<Row>, segments: Segments) -> Self {
        let rows = u32::try_from(table.rows().len()).unwrap_or(u32::MAX);
        Self { index, rows, copied_rows, base: table.base().0, segments }
    }

    /// Returns the entry of a mapping of the file; `None` if the mapping contradicts the file's segments.
    fn entry(&self, mapping: &Mapping) -> Option<MappingEntry> {
        let bias = self.segments.load_bias(mapping.start, mapping.offset)?;
        Some(MappingEntry {
            start: mapping.start.0,
            end: mapping.end.0,
            bias: bias.wrapping_add(self.base),
            table: self.index,
            rows: self.rows,
        })
    }
}

/// If there are more files than this, the tables of files that no process has mapped any more are freed when
/// a process ends, and not only after the idle timeout.
const MANY_FILES: usize = 128;

/// User space's part of the walker of one loaded object: fills its maps.
#[derive(Debug)]
pub struct Walker {
    map_writer: MapWriter,
    /// Layouts of JVMs whose mappings are not set yet, by key.
    pending: HashMap<u64, Vec<u8>>,
    /// Files by descriptor, which is kept open so that its number is not reused.
    files: HashMap<i32, (Arc<CodeFile>, Option<Loaded>)>,
    idle: Idle<i32>,
    next_table: u32,
    /// Indexes of tables that were freed.
    free: Vec<u32>,
    /// Tables that are filled and not yet handed over to the kernel side.
    filled: Vec<(u32, MapHandle)>,
    /// Mappings of each process as last handed over, by key.
    handed_over: HashMap<u64, Vec<MappingEntry>>,
    free_memory: RowBudget,
    keeps_rows: bool,
}

/// A process's mappings and unwind tables, to walk its stacks in [this process](super::user_walker).
#[derive(Debug)]
pub struct WalkData<'a> {
    mappings: &'a [MappingEntry],
    tables: HashMap<u32, &'a [Row]>,
}

impl WalkData<'_> {
    /// Returns a mapping; the first entry holds the number of mappings after it.
    pub fn mapping(&self, index: u32) -> Option<MappingEntry> {
        self.mappings.get(index as usize).copied()
    }

    /// Returns a row of a table.
    pub fn row(&self, table: u32, index: u32) -> Option<Row> {
        self.tables.get(&table)?.get(index as usize).copied()
    }
}

/// Mappings and unwind tables that only this process has, for walks in user space. The table of a file is shared by all
/// processes that map the file.
#[derive(Debug)]
pub(crate) struct WalkTables {
    /// Mappings of each process, by key.
    mappings: HashMap<u64, Vec<MappingEntry>>,
    /// Files by their addresses. They are kept, so that no address is reused.
    files: HashMap<usize, (Arc<CodeFile>, Option<Loaded>)>,
    budget: RowBudget,
}

impl Default for WalkTables {
    fn default() -> Self {
        let budget = RowBudget { rows: MAX_ALL_ROWS, is_reported: false };
        Self { mappings: HashMap::new(), files: HashMap::new(), budget }
    }
}

impl WalkTables {
    /// Sets the mappings of a process, and reads the unwind tables of new files.
    pub(crate) fn set_mappings(&mut self, key: u64, maps: &CodeMaps) {
        let mut entries = vec![MappingEntry::default()];
        for mapping in maps.iter().take(MAX_MAPPINGS) {
            let Some(file) = &mapping.file else { continue };
            let address = Arc::as_ptr(file) as usize;
            let next = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
            let budget = &mut self.budget;
            let (_, table) = self.files.entry(address).or_insert_with(|| {
                let table = read_table(file).inspect_err(|error| {
                    log::debug!("no unwind table of {}: {error}", mapping.module);
                });
                let table = table.ok().filter(|(table, _)| budget.take(table.rows().len()));
                let loaded = |(table, elf): (UnwindTable, ElfFile)| {
                    let rows = table.rows().to_vec();
                    Loaded::new(next, &table, rows, elf.into_segments())
                };
                (Arc::clone(file), table.map(loaded))
            });
            entries.extend(table.as_ref().and_then(|table| table.entry(mapping)));
        }
        entries[0].start = entries.len() as u64 - 1;
        self.mappings.insert(key, entries);
    }

    /// Returns the data of a process.
    pub(crate) fn walk_data(&self, key: u64) -> Option<WalkData<'_>> {
        let mappings = self.mappings.get(&key)?;
        let loaded = self.files.values().filter_map(|(_, loaded)| loaded.as_ref());
        let tables = loaded.map(|loaded| (loaded.index, &*loaded.copied_rows)).collect();
        Some(WalkData { mappings, tables })
    }
}

/// Reads the unwind table of a file.
fn read_table(file: &CodeFile) -> Result<(UnwindTable, ElfFile)> {
    let elf = file.reopen().and_then(ElfFile::open)?;
    Ok((UnwindTable::read(&elf)?, elf))
}

/// Remaining memory for unwind tables in the kernel.
#[derive(Debug)]
struct RowBudget {
    rows: usize,
    /// Whether the user was informed that it is used up.
    is_reported: bool,
}

impl RowBudget {
    /// Reserves memory for rows. If too little is left, returns `false`, the first time with a message.
    fn take(&mut self, rows: usize) -> bool {
        if let Some(left) = self.rows.checked_sub(rows) {
            self.rows = left;
            return true;
        }
        if !self.is_reported {
            self.is_reported = true;
            log::warn!(
                "reached the limit of {} MiB for unwind tables: falling back to frame pointers for \
                 stacks of further files",
                (MAX_ALL_ROWS * size_of::<Row>()) >> 20
            );
        }
        false
    }

    fn release(&mut self, rows: usize) {
        self.rows = self.rows.saturating_add(rows).min(MAX_ALL_ROWS);
    }
}

impl Walker {
    /// Opens the walker of a loaded object.
    ///
    /// # Errors
    /// [`Error::Defect`] if the object has none.
    pub(crate) fn new(object: &Object) -> Result<Self> {
        let map = |name: &str| {
            let map = object.maps().find(|map| map.name() == name);
            let missing = || defect(&format!("find the BPF map {name}"));
            let open = |source| Error::Bpf { what: format!("open the BPF map {name}"), source };
            MapHandle::try_from(&map.ok_or_else(missing)?).map_err(open)
        };
        Ok(Self {
            map_writer: MapWriter::new(Outer {
                jvms: map("jvms")?,
                mappings: map("mappings")?,
                tables: map("tables")?,
            }),
            pending: HashMap::new(),
            files: HashMap::new(),
            idle: Idle::default(),
            next_table: 0,
            free: Vec::new(),
            filled: Vec::new(),
            handed_over: HashMap::new(),
            free_memory: RowBudget { rows: MAX_ALL_ROWS, is_reported: false },
            keeps_rows: false,
        })
    }

    /// Keeps a copy of all rows that are loaded from now on, for [`walk_data`](Self::walk_data). A copy takes
    /// eight bytes per row, about 2 MB for a libjvm.so.
    pub(crate) fn keep_rows(&mut self) {
        self.keeps_rows = true;
    }

    /// Returns the data of a process as the kernel side has them.
    pub fn walk_data(&self, key: u64) -> Option<WalkData<'_>> {
        let mappings = self.handed_over.get(&key)?;
        let loaded = self.files.values().filter_map(|(_, loaded)| loaded.as_ref());
        let tables = loaded.map(|loaded| (loaded.index, &*loaded.copied_rows)).collect();
        Some(WalkData { mappings, tables })
    }

    /// Sets a JVM's layout. It is handed over together with the process's mappings, which the caller sets next.
    pub(crate) fn add_jvm(&mut self, key: u64, layout: &JvmLayout) {
        let layout = JvmLayout { stamp: stamp(), ..*layout };
        self.pending.insert(key, bytes(&layout).to_vec());
    }

    /// Waits until the kernel side has all data.
    pub(crate) fn flush(&self) {
        self.map_writer.wait();
    }

    /// Sets the current mappings of a process. Code of files that have no unwind table, or an invalid one, is walked by
    /// frame pointers.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(crate) fn set_mappings(&mut self, key: u64, maps: &CodeMaps) -> Result<()> {
        let mut entries = vec![MappingEntry::default()];
        for mapping in maps.iter().take(MAX_MAPPINGS) {
            let Some(file) = &mapping.file else { continue };
            let table = self.table(file, &mapping.module)?;
            entries.extend(table.and_then(|table| table.entry(mapping)));
        }
        entries[0].start = entries.len() as u64 - 1;
        let jvm = self.pending.get(&key).cloned();
        if jvm.is_none() && self.handed_over.get(&key) == Some(&entries) {
            return Ok(());
        }
        let inner = inner_map("mappings", size_of::<MappingEntry>(), entries.len())?;
        entries[0].bias = stamp();
        fill(&inner, &entries)?;
        // The stamp is not part of the comparison above, nor of the copy kept here.
        entries[0].bias = 0;
        let tables = std::mem::take(&mut self.filled);
        let sent: Vec<_> = tables.iter().map(|(index, _)| *index).collect();
        let job = Job::Insert { tables, key, mappings: inner, jvm };
        self.map_writer.send(job).inspect_err(|_| self.unload(&sent))?;
        self.pending.remove(&key);
        self.handed_over.insert(key, entries);
        Ok(())
    }

    /// Forgets tables that the kernel side did not get. Their files are loaded again when they are used again.
    fn unload(&mut self, tables: &[u32]) {
        let is_lost = |loaded: &Loaded| tables.contains(&loaded.index);
        let lost = self.files.extract_if(|_, (_, loaded)| loaded.as_ref().is_some_and(is_lost));
        for loaded in lost.filter_map(|(_, (_, loaded))| loaded) {
            self.free_memory.release(loaded.rows as usize);
            self.free.push(loaded.index);
        }
    }

    /// Removes the data of a process that has ended.
    pub(crate) fn forget(&mut self, key: u64) {
        self.pending.remove(&key);
        if self.handed_over.remove(&key).is_some() {
            // An error means that the thread has ended; then the kernel side is not updated any more.
            let _ = self.map_writer.send(Job::Remove { key });
        }
        if self.files.len() > MANY_FILES {
            let used: HashSet<_> = self.used().into_iter().collect();
            let unused = self.files.extract_if(|file, _| !used.contains(file));
            let unused: Vec<_> = unused.map(|(_, file)| file).collect();
            self.free(unused);
        }
    }

    /// Frees the tables of files that no process has mapped for a while.
    pub(crate) fn free_unused(&mut self, now: Instant) {
        let used = self.used();
        let unused = self.idle.release(&mut self.files, used, now);
        if !unused.is_empty() {
            self.free(unused);
        }
    }

    /// Returns the files that are in use: mapped by a process, or with more than `HOLDERS` references.
    fn used(&self) -> Vec<i32> {
        let handed_over =
            self.handed_over.values().flat_map(|handed_over| handed_over.iter().skip(1));
        let handed_over: HashSet<u32> = handed_over.map(|mapping| mapping.table).collect();
        /// Number of references that do not mean use: one in this walker, and one in the list of all files.
        const HOLDERS: usize = 2;
        let is_used = |(file, loaded): &(Arc<CodeFile>, Option<Loaded>)| {
            Arc::strong_count(file) > HOLDERS
                || loaded.as_ref().is_some_and(|loaded| handed_over.contains(&loaded.index))
        };
        self.files.iter().filter(|(_, file)| is_used(file)).map(|(&id, _)| id).collect()
    }

    fn free(&mut self, files: Vec<(Arc<CodeFile>, Option<Loaded>)>) {
        let mut free = Vec::new();
        for loaded in files.into_iter().filter_map(|(_, loaded)| loaded) {
            self.free_memory.release(loaded.rows as usize);
            free.push(loaded.index);
        }
        if self.map_writer.send(Job::Free { tables: free.clone() }).is_ok() {
            self.free.extend(free);
        }
    }

    fn table(&mut self, file: &Arc<CodeFile>, name: &str) -> Result<Option<&Loaded>> {
        let id = file.as_raw_fd();
        if !self.files.contains_key(&id) {
            let table = read_table(file);
            if table.as_ref().is_err_and(ran_out) {
                // Out of file descriptors: the next call tries again.
                return Ok(None);
            }
            let ignored = |why: &str| {
                log::debug!("falling back to frame pointers for stacks through {name}: {why}");
                None
            };
            let loaded = match table {
                Ok((table, _)) if table.rows().is_empty() => ignored("it has no unwind table"),
                Ok((table, _)) if !self.free_memory.take(table.rows().len()) => None,
                Ok((table, elf)) => {
                    let loaded = match self.unused_index() {
                        Some(index) => self
                            .load(index, &table, elf.into_segments())
                            .inspect_err(|_| self.free.push(index))
                            .map(Some),
                        None => Ok(ignored("there are too many unwind tables")),
                    };
                    if !matches!(loaded, Ok(Some(_))) {
                        self.free_memory.release(table.rows().len());
                    }
                    loaded?
                }
                Err(error) => ignored(&error.to_string()),
            };
            self.files.insert(id, (Arc::clone(file), loaded));
        }
        Ok(self.files.get(&id).and_then(|(_, loaded)| loaded.as_ref()))
    }

    /// Returns an unused index for a table.
    fn unused_index(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let index = self.next_table;
            self.next_table = (index + 1).min(MAX_TABLES);
            (index < MAX_TABLES).then_some(index)
        })
    }

    fn load(&mut self, index: u32, table: &UnwindTable, segments: Segments) -> Result<Loaded> {
        let rows = table.rows();
        let inner = inner_map("rows", size_of::<Row>(), rows.len())?;
        fill(&inner, rows)?;
        self.filled.push((index, inner));
        let copied_rows = if self.keeps_rows { rows.to_vec() } else { Vec::new() };
        Ok(Loaded::new(index, table, copied_rows, segments))
    }
}

fn inner_map(name: &str, value: usize, entries: usize) -> Result<MapHandle> {
    let opts = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as libbpf_sys::size_t,
        map_flags: BPF_F_INNER_MAP,
        ..Default::default()
    };
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    MapHandle::create(MapType::Array, Some(name), 4, size(value), size(entries), &opts)
        .map_err(|source| Error::Bpf { what: "create a table for the stack walker".into(), source })
}

/// Fills an array map.
fn fill<T: Plain>(map: &MapHandle, values: &[T]) -> Result<()> {
    let mut index = 0_u32;
    for batch in values.chunks(BATCH) {
        let keys: Vec<u8> = (index..).take(batch.len()).flat_map(u32::to_ne_bytes).collect();
        let count = u32::try_from(batch.len()).unwrap_or(0);
        map.update_batch(&keys, bytes(batch), count, MapFlags::ANY, MapFlags::ANY).map_err(
            |source| Error::Bpf { what: "fill a table of the stack walker".into(), source },
        )?;
        index += count;
    }
    Ok(())
}

/// Returns a number that was never returned before: see bpf/walk/address_cache.bpf.h.
fn stamp() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Returns the size of [`JvmLayout`] and the offsets of some members. Tests of the tools compare these
/// numbers with those of the type that is generated from the header.
#[cfg(test)]
pub(crate) fn layout_offsets() -> [usize; 5] {
    use std::mem::offset_of;

    [
        size_of::<JvmLayout>(),
        offset_of!(JvmLayout, interpreter_low),
        offset_of!(JvmLayout, unloads_at),
        offset_of!(JvmLayout, heap_count),
        offset_of!(JvmLayout, compile_id),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_rows_of_all_unwind_tables_are_limited() {
        let mut free_memory = RowBudget { rows: MAX_ALL_ROWS, is_reported: false };
        assert!(free_memory.take(MAX_ALL_ROWS - 10) && free_memory.take(10) && free_memory.take(0));
        assert!(!free_memory.is_reported);
        assert!(!free_memory.take(1));
        assert!(free_memory.is_reported);
        free_memory.release(10);
        assert!(!free_memory.take(11) && free_memory.take(10));
        free_memory.release(usize::MAX);
        assert_eq!(free_memory.rows, MAX_ALL_ROWS);
    }
}
