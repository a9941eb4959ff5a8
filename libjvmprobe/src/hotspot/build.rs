//! What one libjvm.so tells, read once for all JVMs that run it.
//!
//! Only what is read from the file, or is found to be the same in each process: a JVM
//! may lie about itself, but not about others.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{
    Addr, Error, Result, Vaddr,
    elf::{ElfFile, symbols::Symbol},
    hotspot::{
        code::stubs,
        layout::{Kind, STUBS, TABLE},
        resolved::{Layout, Values},
    },
    own::remark,
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
    pub(crate) elf: ElfFile,
    exported: HashMap<String, Symbol>,
    /// Private statics that we want, where there is a symbol table.
    privates: HashMap<String, Symbol>,
    /// Where the entries of stubs are kept, with the stubs' names.
    pub(crate) stubs: Vec<(Vaddr, Arc<str>)>,
    /// What the JVM said of its layout that was read last.
    values: Mutex<Option<Arc<Values>>>,
    /// Whether it was said what is missing.
    is_told: AtomicBool,
}

impl Build {
    /// The libjvm.so of a JVM.
    ///
    /// # Errors
    /// [`Error::Elf`], [`Error::Io`].
    pub(crate) fn of(libjvm: &LibJvm) -> Result<Arc<Self>> {
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

    pub(super) fn read(elf: ElfFile) -> Result<Self> {
        let exported = elf.dynamic_symbols()?.with_prefixes(&[EXPORTED]);
        let symbols = TABLE.iter().filter(|row| row.kind == Kind::Symbol);
        let names = symbols.flat_map(|row| row.names).map(|(_, name)| *name);
        let names: Vec<_> = names.chain([STUBS]).collect();
        let mut privates = elf.symbols()?.with_prefixes(&names);
        let stubs = stubs::statics(&privates);
        privates.retain(|name, _| names.contains(&name.as_str()));
        let (values, is_told) = Default::default();
        Ok(Self { elf, exported, privates, stubs, values, is_told })
    }

    /// What is to be added to its addresses in a JVM.
    ///
    /// # Errors
    /// [`Error::Elf`] where it cannot be mapped like that.
    pub(crate) fn bias(&self, libjvm: &LibJvm) -> Result<u64> {
        let bias = self.elf.load_bias(libjvm.map_start, libjvm.map_offset);
        bias.ok_or_else(|| Error::elf("libjvm.so is mapped outside its segments"))
    }

    /// Where a variable lies that is exported for tools.
    pub(crate) fn exported(&self, name: &str, bias: u64) -> Option<Addr> {
        Some(moved(self.exported.get(name)?.value, bias))
    }

    /// Where a private static lies in the file.
    pub(crate) fn private(&self, name: &str) -> Option<Vaddr> {
        Some(self.privates.get(name)?.value)
    }

    /// The same values, kept once where another JVM has them, too.
    pub(crate) fn share(&self, values: Values) -> Arc<Values> {
        let mut last = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*last {
            Some(last) if **last == values => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(values))),
        }
    }

    /// Says once what its layout lacks.
    pub(crate) fn tell_missing(&self, layout: &Layout) {
        if !self.is_told.swap(true, Ordering::Relaxed) {
            for line in layout.all_missing() {
                remark(|| format!("this libjvm.so of JDK {} has {line}", layout.major));
            }
        }
    }
}

fn moved(value: Vaddr, bias: u64) -> Addr {
    Addr(value.0.wrapping_add(bias))
}
