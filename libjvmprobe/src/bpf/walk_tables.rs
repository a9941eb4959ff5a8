//! Mappings and unwind tables for walks in [this process](super::user_walker).

use std::{collections::HashMap, sync::Arc, time::Instant};

use crate::{
    bpf::{
        table_memory::{Reading, TableMemory, in_process},
        walker::{Loaded, MappingEntry, TableState},
    },
    process::code::{CodeFile, CodeMaps, MAX_MAPPINGS},
    sys::limited,
    unwind::Row,
};

/// A process's mappings and unwind tables, to walk its stacks in [this process](super::user_walker).
#[derive(Debug)]
pub struct WalkData<'a> {
    mappings: &'a [MappingEntry],
    tables: HashMap<u32, &'a [Row]>,
}

impl<'a> WalkData<'a> {
    pub(super) fn new(
        mappings: &'a [MappingEntry],
        tables: impl Iterator<Item = &'a Loaded>,
    ) -> Self {
        let tables = tables.map(|loaded| (loaded.index, &*loaded.copied_rows)).collect();
        Self { mappings, tables }
    }

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
/// processes that map the file; the tenant whose process was walked first pays for it.
#[derive(Debug)]
pub(crate) struct WalkTables {
    /// Mappings of each process, by key.
    mappings: HashMap<u64, Vec<MappingEntry>>,
    /// Files by their addresses. They are kept, so that no address is reused.
    files: HashMap<usize, (Arc<CodeFile>, TableState)>,
    memory: TableMemory,
    next_index: u32,
}

impl Default for WalkTables {
    fn default() -> Self {
        /// Maximum number of files.
        const MAX_FILES: usize = 1 << 16;
        let memory = TableMemory::new(MAX_FILES);
        Self { mappings: HashMap::new(), files: HashMap::new(), memory, next_index: 0 }
    }
}

impl WalkTables {
    /// Sets the mappings of a process, and reads the unwind tables of new files. Drops the tables of other tenants that
    /// exceed their shares while this one is short of memory.
    pub(crate) fn set_mappings(&mut self, key: u64, maps: &CodeMaps) {
        self.drop_excess(Instant::now());
        let mut entries = vec![MappingEntry::default()];
        for mapping in maps.iter().take(MAX_MAPPINGS) {
            let Some(file) = &mapping.file else { continue };
            let address = Arc::as_ptr(file) as usize;
            let state = self.files.get(&address).map(|(_, state)| state);
            if !matches!(state, Some(TableState::Loaded(_) | TableState::Unusable)) {
                let need = state.map_or(0, TableState::need);
                let state = self.read(file, &mapping.module, maps.tenant(), need);
                self.files.insert(address, (Arc::clone(file), state));
            }
            let table = self.files.get(&address).and_then(|(_, state)| state.loaded());
            entries.extend(table.and_then(|table| table.entry(mapping)));
        }
        entries[0].start = entries.len() as u64 - 1;
        self.mappings.insert(key, entries);
    }

    fn read(
        &mut self,
        file: &CodeFile,
        module: &str,
        tenant: &Arc<str>,
        need: usize,
    ) -> TableState {
        let missing = |need| TableState::Missing { tenant: Arc::clone(tenant), need };
        match self.memory.read(file, module, tenant, need, in_process) {
            Reading::Later => missing(need),
            Reading::Short(need) => missing(need),
            Reading::Nothing => TableState::Unusable,
            Reading::Table { table, segments, payment, transient: _held } => {
                let index = self.next_index;
                self.next_index += 1;
                let rows = table.rows().to_vec();
                TableState::Loaded(Loaded::new(index, &table, rows, segments, payment))
            }
        }
    }

    /// Drops tables of tenants that hold more than their shares while others are short of memory.
    fn drop_excess(&mut self, now: Instant) {
        for (_, state) in self.files.values_mut() {
            let TableState::Loaded(loaded) = state else { continue };
            let tenant = Arc::clone(loaded.payment.tenant());
            if self.memory.excess(&tenant) != (0, 0) {
                limited::add("unwind", &tenant, 1);
                self.memory.pause(&tenant, now);
                *state = TableState::Missing { tenant, need: loaded.payment.need() };
            }
        }
        self.memory.end_pauses(now);
    }

    /// Returns the data of a process.
    pub(crate) fn walk_data(&self, key: u64) -> Option<WalkData<'_>> {
        let mappings = self.mappings.get(&key)?;
        Some(WalkData::new(mappings, self.files.values().filter_map(|(_, state)| state.loaded())))
    }
}
