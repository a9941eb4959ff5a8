//! Data for the kernel side's stack walker (`bpf/walk/walk.bpf.h`): the layout of each JVM's code cache, the files that
//! a process has mapped, and their unwind tables.
//!
//! A process without such data is walked by frame pointers.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
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
        table_memory::{Payment, Reading, TableMemory, in_both, in_kernel, map_size},
    },
    elf::Segments,
    hotspot::walking::JvmLayout,
    process::code::{CodeFile, CodeMaps, MAX_MAPPINGS, Mapping},
    sys::{Idle, budget::Reservation, limited},
    unwind::{Row, UnwindTable},
};

pub use super::walk_tables::WalkData;
pub(crate) use super::walk_tables::WalkTables;

/// `MAX_TABLES` of bpf/walk/walk.h.
const MAX_TABLES: u32 = 4096;
/// Number of mappings that the walker's binary search can cover: `MAX_MAPPING_STEPS` of bpf/walk/native.bpf.h.
const MAPPINGS_OF_WALKER: usize = (1 << 13) - 1;
const _: () = assert!(MAX_MAPPINGS <= MAPPINGS_OF_WALKER);
/// Minimum time between two attempts to read the tables that a process lacks.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
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
pub(super) struct Loaded {
    pub(super) index: u32,
    rows: u32,
    /// Copy of the rows, if `Walker::keep_rows` was called.
    pub(super) copied_rows: Vec<Row>,
    base: u64,
    segments: Segments,
    pub(super) payment: Payment,
}

/// What is known about a file's unwind table.
#[derive(Debug)]
pub(super) enum TableState {
    Loaded(Loaded),
    /// The file has no usable table.
    Unusable,
    /// A tenant's share did not suffice: the tenant, and the number of bytes that it needs.
    Missing {
        tenant: Arc<str>,
        need: usize,
    },
}

impl TableState {
    pub(super) fn loaded(&self) -> Option<&Loaded> {
        match self {
            Self::Loaded(loaded) => Some(loaded),
            Self::Unusable | Self::Missing { .. } => None,
        }
    }

    /// Returns the number of bytes that an attempt to read the table needs, as far as it is known.
    pub(super) fn need(&self) -> usize {
        match self {
            Self::Missing { need, .. } => *need,
            Self::Loaded(_) | Self::Unusable => 0,
        }
    }
}

impl Loaded {
    pub(super) fn new(
        index: u32,
        table: &UnwindTable,
        copied_rows: Vec<Row>,
        segments: Segments,
        payment: Payment,
    ) -> Self {
        let rows = u32::try_from(table.rows().len()).unwrap_or(u32::MAX);
        Self { index, rows, copied_rows, base: table.base().0, segments, payment }
    }

    /// Returns the entry of a mapping of the file; `None` if the mapping contradicts the file's segments.
    pub(super) fn entry(&self, mapping: &Mapping) -> Option<MappingEntry> {
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

/// Mappings of a process as last handed over to the kernel side.
#[derive(Debug)]
struct HandedOver {
    tenant: Arc<str>,
    /// The first entry holds the number of mappings after it.
    entries: Vec<MappingEntry>,
    /// Indexes of the tables of these mappings, ascending.
    tables: Vec<u32>,
    /// Memory of the entries, here and in the kernel.
    _memory: Reservation,
    /// Time of the last attempt to read the tables that are missing; `None` if none is missing.
    incomplete: Option<Instant>,
}

impl HandedOver {
    fn new(
        tenant: &Arc<str>,
        entries: Vec<MappingEntry>,
        memory: Reservation,
        incomplete: Option<Instant>,
    ) -> Self {
        let mut tables: Vec<_> = entries.iter().skip(1).map(|entry| entry.table).collect();
        tables.sort_unstable();
        tables.dedup();
        Self { tenant: Arc::clone(tenant), entries, tables, _memory: memory, incomplete }
    }

    /// Removes the mappings that use one of these tables. Returns whether there were any.
    fn remove(&mut self, tables: &HashSet<u32>, now: Instant) -> bool {
        let before = self.tables.len();
        self.tables.retain(|table| !tables.contains(table));
        if self.tables.len() == before {
            return false;
        }
        let mut index = 0;
        self.entries.retain(|entry| {
            index += 1;
            index == 1 || !tables.contains(&entry.table)
        });
        self.entries[0].start = self.entries.len() as u64 - 1;
        self.incomplete = Some(now);
        true
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
    files: HashMap<i32, (Arc<CodeFile>, TableState)>,
    idle: Idle<i32>,
    next_table: u32,
    /// Indexes of tables that were freed.
    free: Vec<u32>,
    /// Tables that are filled and not yet handed over to the kernel side.
    filled: Vec<(u32, MapHandle)>,
    /// Mappings of each process as last handed over, by key.
    handed_over: HashMap<u64, HandedOver>,
    memory: TableMemory,
    keeps_rows: bool,
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
            memory: TableMemory::new(MAX_TABLES as usize),
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
        let mappings = &self.handed_over.get(&key)?.entries;
        Some(WalkData::new(mappings, self.files.values().filter_map(|(_, state)| state.loaded())))
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
    /// frame pointers. The same applies to files whose tables exceed the share of the process's tenant; a later call
    /// tries again.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(crate) fn set_mappings(&mut self, key: u64, maps: &CodeMaps) -> Result<()> {
        let tenant = maps.tenant();
        let mut entries = vec![MappingEntry::default()];
        let mut missing = HashSet::new();
        for mapping in maps.iter().take(MAX_MAPPINGS) {
            let Some(file) = &mapping.file else { continue };
            let id = file.as_raw_fd();
            if missing.contains(&id) {
                continue;
            }
            if self.load_table(file, &mapping.module, tenant)? {
                let table = self.files.get(&id).and_then(|(_, state)| state.loaded());
                entries.extend(table.and_then(|table| table.entry(mapping)));
            } else {
                missing.insert(id);
            }
        }
        let mut incomplete = (!missing.is_empty()).then(Instant::now);
        entries[0].start = entries.len() as u64 - 1;
        let jvm = self.pending.get(&key).cloned();
        if let Some(handed_over) = self.handed_over.get_mut(&key)
            && jvm.is_none()
            && handed_over.entries == entries
        {
            handed_over.incomplete = incomplete;
            return Ok(());
        }
        let size = map_size::<MappingEntry>(entries.len()) + size_of_val(&*entries);
        let memory = self.memory.reserve(tenant, size).unwrap_or_else(|| {
            limited::add("mappings", tenant, entries[0].start);
            entries = vec![MappingEntry::default()];
            incomplete = Some(Instant::now());
            Reservation::default()
        });
        let inner = mappings_map(&entries)?;
        let tables = std::mem::take(&mut self.filled);
        let sent: Vec<_> = tables.iter().map(|(index, _)| *index).collect();
        let job = Job::Insert { tables, key, mappings: inner, jvm };
        self.map_writer.send(job).inspect_err(|_| self.unload(&sent))?;
        self.pending.remove(&key);
        self.handed_over.insert(key, HandedOver::new(tenant, entries, memory, incomplete));
        Ok(())
    }

    /// Returns whether the mappings of a process should be set again, although they have not changed, because tables are
    /// missing.
    pub(crate) fn is_incomplete(&self, key: u64) -> bool {
        let last_attempt =
            self.handed_over.get(&key).and_then(|handed_over| handed_over.incomplete);
        last_attempt.is_some_and(|at| at.elapsed() >= RETRY_INTERVAL)
    }

    /// Forgets tables that the kernel side did not get. Their files are loaded again when they are used again.
    fn unload(&mut self, tables: &[u32]) {
        let is_lost = |loaded: &Loaded| tables.contains(&loaded.index);
        let lost = self.files.extract_if(|_, (_, state)| state.loaded().is_some_and(is_lost));
        self.free.extend(lost.filter_map(|(_, (_, state))| state.loaded().map(|l| l.index)));
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

    /// Frees the tables of files that no process has mapped for a while, and those that exceed a tenant's share while
    /// another tenant is short of memory.
    pub(crate) fn free_unused(&mut self, now: Instant) {
        let used = self.used();
        let unused = self.idle.release(&mut self.files, used, now);
        if !unused.is_empty() {
            self.free(unused);
        }
        let unpaid = self.settle_payments(now);
        if !unpaid.is_empty() {
            self.drop_tables(&unpaid, now);
        }
        self.memory.end_pauses(now);
    }

    /// Returns the files that are in use: mapped by a process, or with more than `HOLDERS` references.
    fn used(&self) -> Vec<i32> {
        let handed_over = self.handed_over.values().flat_map(|of| of.tables.iter().copied());
        let handed_over: HashSet<u32> = handed_over.collect();
        /// Number of references that do not mean use: one in this walker, and one in the list of all files.
        const HOLDERS: usize = 2;
        let is_used = |(file, state): &(Arc<CodeFile>, TableState)| {
            Arc::strong_count(file) > HOLDERS
                || state.loaded().is_some_and(|loaded| handed_over.contains(&loaded.index))
        };
        self.files.iter().filter(|(_, file)| is_used(file)).map(|(&id, _)| id).collect()
    }

    fn free(&mut self, files: Vec<(Arc<CodeFile>, TableState)>) {
        let indexes = files.iter().filter_map(|(_, state)| state.loaded().map(|l| l.index));
        let tables: Vec<_> = indexes.collect();
        self.filled.retain(|(index, _)| !tables.contains(index));
        if self.map_writer.send(Job::Free { tables: tables.clone() }).is_ok() {
            self.free.extend(tables);
        }
    }

    /// Makes tenants pay for the tables that their processes use, within their shares. Returns the files whose tables
    /// no tenant can pay for.
    fn settle_payments(&mut self, now: Instant) -> Vec<i32> {
        let mut users: HashMap<u32, Vec<&Arc<str>>> = HashMap::new();
        for of in self.handed_over.values() {
            of.tables.iter().for_each(|&table| users.entry(table).or_default().push(&of.tenant));
        }
        let users = |loaded: &Loaded| users.get(&loaded.index).map_or(&[][..], Vec::as_slice);
        let mut unpaid = Vec::new();
        let mut payers: HashSet<Arc<str>> = HashSet::new();
        let mut needs: HashMap<Arc<str>, usize> = HashMap::new();
        for (&id, (_, state)) in &mut self.files {
            match state {
                TableState::Loaded(loaded) => {
                    let users = users(loaded);
                    if users.is_empty() || users.contains(&loaded.payment.tenant()) {
                        payers.insert(Arc::clone(loaded.payment.tenant()));
                    } else if !self.memory.hand_on(&mut loaded.payment, users.iter().copied()) {
                        unpaid.push(id);
                    }
                }
                TableState::Missing { tenant, need } => {
                    let most = needs.entry(Arc::clone(tenant)).or_default();
                    *most = (*most).max(*need);
                }
                TableState::Unusable => {}
            }
        }
        for (tenant, need) in needs {
            self.memory.report_need(&tenant, need);
        }
        for tenant in payers {
            let (mut bytes, mut tables) = self.memory.excess(&tenant);
            if (bytes, tables) == (0, 0) {
                continue;
            }
            self.memory.pause(&tenant, now);
            let own = self.files.iter().filter_map(|(&id, (_, state))| Some((id, state.loaded()?)));
            let own = own.filter(|(_, loaded)| *loaded.payment.tenant() == tenant);
            // The least used tables first, and of those the largest ones.
            let order = |loaded: &Loaded| (users(loaded).len(), Reverse(loaded.payment.bytes()));
            let mut own: Vec<_> = own.map(|(id, loaded)| (order(loaded), id)).collect();
            own.sort_unstable();
            for (_, id) in own {
                let Some((_, TableState::Loaded(loaded))) = self.files.get_mut(&id) else {
                    continue;
                };
                if (bytes, tables) == (0, 0) {
                    break;
                }
                bytes = bytes.saturating_sub(loaded.payment.bytes());
                tables = tables.saturating_sub(1);
                let users = users(loaded).iter().copied();
                if !self.memory.hand_on(&mut loaded.payment, users) {
                    unpaid.push(id);
                }
            }
        }
        unpaid
    }

    /// Drops tables that are in use. Until they are loaded again, the stacks through these files are walked by frame
    /// pointers.
    fn drop_tables(&mut self, files: &[i32], now: Instant) {
        let mut dropped = HashSet::new();
        for id in files {
            let Some((_, state)) = self.files.get_mut(id) else { continue };
            let TableState::Loaded(loaded) = state else { continue };
            let (index, need) = (loaded.index, loaded.payment.need());
            let tenant = Arc::clone(loaded.payment.tenant());
            limited::add("unwind", &tenant, 1);
            dropped.insert(index);
            *state = TableState::Missing { tenant, need };
        }
        self.filled.retain(|(index, _)| !dropped.contains(index));
        let mut is_done = true;
        for (&key, handed_over) in &mut self.handed_over {
            if !handed_over.remove(&dropped, now) {
                continue;
            }
            let send = |mappings| {
                self.map_writer.send(Job::Insert { tables: Vec::new(), key, mappings, jvm: None })
            };
            if let Err(error) = mappings_map(&handed_over.entries).and_then(send) {
                log::debug!("cannot update the mappings of process {key}: {error}");
                is_done = false;
            }
        }
        let tables: Vec<_> = dropped.into_iter().collect();
        // If mappings still refer to a table, its index must not be used again.
        if self.map_writer.send(Job::Free { tables: tables.clone() }).is_ok() && is_done {
            self.free.extend(tables);
        }
    }

    /// Loads the table of a file at the expense of a tenant, unless it is loaded. Returns `false` if this has to be
    /// tried again.
    fn load_table(
        &mut self,
        file: &Arc<CodeFile>,
        module: &str,
        tenant: &Arc<str>,
    ) -> Result<bool> {
        let id = file.as_raw_fd();
        let need = match self.files.get(&id) {
            Some((_, TableState::Loaded(_) | TableState::Unusable)) => return Ok(true),
            Some((_, state)) => state.need(),
            None => 0,
        };
        let size = if self.keeps_rows { in_both } else { in_kernel };
        let state = match self.memory.read(file, module, tenant, need, size) {
            Reading::Later => return Ok(false),
            Reading::Nothing => TableState::Unusable,
            Reading::Short(need) => TableState::Missing { tenant: Arc::clone(tenant), need },
            Reading::Table { table, segments, payment, transient: _held } => {
                let Some(index) = self.unused_index() else { return Ok(false) };
                let loaded = self.load(index, &table, segments, payment);
                TableState::Loaded(loaded.inspect_err(|_| self.free.push(index))?)
            }
        };
        let is_final = !matches!(state, TableState::Missing { .. });
        self.files.insert(id, (Arc::clone(file), state));
        Ok(is_final)
    }

    /// Returns an unused index for a table.
    fn unused_index(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let index = self.next_table;
            self.next_table = (index + 1).min(MAX_TABLES);
            (index < MAX_TABLES).then_some(index)
        })
    }

    fn load(
        &mut self,
        index: u32,
        table: &UnwindTable,
        segments: Segments,
        payment: Payment,
    ) -> Result<Loaded> {
        let rows = table.rows();
        let inner = inner_map("rows", size_of::<Row>(), rows.len())?;
        fill(&inner, rows)?;
        self.filled.push((index, inner));
        let copied_rows = if self.keeps_rows { rows.to_vec() } else { Vec::new() };
        Ok(Loaded::new(index, table, copied_rows, segments, payment))
    }
}

/// Creates the map with the mappings of a process. The first entry also holds a stamp, which no caller compares.
fn mappings_map(entries: &[MappingEntry]) -> Result<MapHandle> {
    let inner = inner_map("mappings", size_of::<MappingEntry>(), entries.len())?;
    let mut entries = entries.to_vec();
    entries[0].bias = stamp();
    fill(&inner, &entries)?;
    Ok(inner)
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
    fn mappings_of_dropped_tables_are_removed() {
        let entry = |start, table| MappingEntry { start, table, ..MappingEntry::default() };
        let entries = vec![entry(3, 0), entry(0x1000, 7), entry(0x2000, 0), entry(0x3000, 7)];
        let memory = Reservation::default();
        let mut of = HandedOver::new(&"a".into(), entries, memory, None);
        assert_eq!(of.tables, [0, 7]);
        let now = Instant::now();
        assert!(!of.remove(&HashSet::from([5]), now) && of.incomplete.is_none());
        assert!(of.remove(&HashSet::from([7, 5]), now));
        assert_eq!(of.entries, [entry(1, 0), entry(0x2000, 0)]);
        assert_eq!((of.tables, of.incomplete), (vec![0], Some(now)));
    }
}
