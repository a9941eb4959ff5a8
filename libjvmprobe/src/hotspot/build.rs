//! What one libjvm.so tells, read once for all JVMs that run it.
//!
//! Only what is read from the file, or is found to be the same in each process: a JVM
//! may lie about itself, but not about others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock},
};

use crate::{
    Addr, Error, Result, Vaddr,
    elf::{ElfFile, symbols::Symbol},
    hotspot::{PRIVATES, heap, vmstructs::Tables},
    process::{FileId, LibJvm},
};

/// A machine that runs more builds of the JDK at once reads some of them again.
const MAX_BUILDS: usize = 64;
/// How the names begin of what is exported for those who look from outside.
const EXPORTED: &str = "gHotSpotVM";

/// One libjvm.so.
#[derive(Debug)]
pub(super) struct Build {
    /// Keeps the file open, so that its number stays its own.
    pub elf: ElfFile,
    exported: HashMap<String, Symbol>,
    /// Private statics that we want, where there is a symbol table.
    pub privates: HashMap<String, Symbol>,
    /// The tables of the JVM that was read last.
    tables: Mutex<Option<Arc<Tables>>>,
}

impl Build {
    /// The libjvm.so of a JVM.
    ///
    /// # Errors
    /// [`Error::Elf`], [`Error::Io`].
    pub fn of(libjvm: &LibJvm) -> Result<Arc<Self>> {
        static KNOWN: OnceLock<Mutex<HashMap<FileId, Arc<Build>>>> = OnceLock::new();
        let known = KNOWN.get_or_init(Mutex::default);
        // What a thread left behind that panicked is whole: entries are put in at once.
        let mut known = known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(build) = known.get(&libjvm.id) {
            return Ok(Arc::clone(build));
        }
        let build = Arc::new(Self::read(libjvm.elf()?)?);
        if known.len() >= MAX_BUILDS {
            known.clear();
        }
        known.insert(libjvm.id, Arc::clone(&build));
        Ok(build)
    }

    fn read(elf: ElfFile) -> Result<Self> {
        let exported = elf.dynamic_symbols()?.with_prefixes(&[EXPORTED]);
        let names: Vec<_> = PRIVATES.into_iter().chain(heap::PRIVATES).collect();
        let privates = elf.symbols()?.with_prefixes(&names);
        Ok(Self { elf, exported, privates, tables: Mutex::default() })
    }

    /// What is to be added to its addresses in a JVM.
    ///
    /// # Errors
    /// [`Error::Elf`] where it cannot be mapped like that.
    pub fn bias(&self, libjvm: &LibJvm) -> Result<u64> {
        let bias = self.elf.load_bias(libjvm.map_start, libjvm.map_offset);
        bias.ok_or_else(|| Error::elf("libjvm.so is mapped outside its segments"))
    }

    /// Where a variable lies that is exported for tools.
    pub fn exported(&self, name: &str, bias: u64) -> Option<Addr> {
        Some(moved(self.exported.get(name)?.value, bias))
    }

    /// Where a private static lies.
    pub fn private(&self, name: &str, bias: u64) -> Option<Addr> {
        Some(moved(self.privates.get(name)?.value, bias))
    }

    /// The same tables, kept once where another JVM has them, too.
    pub fn share(&self, tables: Tables) -> Arc<Tables> {
        let mut last = self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*last {
            Some(last) if **last == tables => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(tables))),
        }
    }
}

fn moved(value: Vaddr, bias: u64) -> Addr {
    Addr(value.0.wrapping_add(bias))
}
