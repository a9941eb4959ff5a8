//! A running process from which the walker in user space reads memory and unwind tables.

use crate::{
    Addr,
    bpf::{
        user_walker::Source,
        walker::{MappingEntry, WalkData},
    },
    hotspot::walking::JvmLayout,
    process::memory::Memory,
    unwind::Row,
};

/// A running process whose threads are walked while they do not run.
pub(crate) struct Live<'a> {
    /// Memory of the process.
    pub(crate) memory: Memory,
    /// Layout of the process's JVM.
    pub(crate) layout: JvmLayout,
    /// Mappings and unwind tables of the process.
    pub(crate) walk_data: WalkData<'a>,
}

impl Source for Live<'_> {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        self.memory.read_into(Addr(addr), to).is_ok()
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        self.walk_data.mapping(index)
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        self.walk_data.row(table, index)
    }

    fn jvm(&self) -> JvmLayout {
        self.layout
    }
}
