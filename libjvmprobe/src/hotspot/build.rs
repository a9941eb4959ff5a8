//! Facts about one libjvm.so.
//!
//! They are read once for all JVMs that run the file, unless its symbols come from the root of a process. Two JVMs
//! share layout values only if their values are equal. A JVM that reports wrong values therefore affects only its
//! own results.

use std::{
    any::Any,
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
    process::{FileId, LibJvm},
    sys::budget::Reservation,
};

/// Maximum number of builds cached. A further build first empties the cache.
const MAX_BUILDS: usize = 64;
/// Prefix of the variables that libjvm.so exports for external tools.
const EXPORTED: &str = "gHotSpotVM";

/// One libjvm.so.
#[derive(Debug)]
pub(super) struct Build {
    /// Keeps the file open, so that its inode number is not reused.
    pub(crate) elf: ElfFile,
    exported: HashMap<String, Symbol>,
    /// The private statics that [`TABLE`] names; empty if the file has no symbol table.
    privates: HashMap<String, Symbol>,
    /// The variables that hold stubs' entry points: address of each variable in the file, and its stub's
    /// name.
    pub(crate) stubs: Vec<(Vaddr, Arc<str>)>,
    /// Layout values of the JVM that was read last.
    values: Mutex<Option<Arc<Values>>>,
    /// Whether the items that this build lacks were printed.
    is_reported: AtomicBool,
    _reserved: Reservation,
}

impl Build {
    /// Returns the build of a JVM's libjvm.so.
    ///
    /// # Errors
    /// [`Error::Elf`], [`Error::Io`]; of the kind `OutOfMemory` if the tenant's share of memory is used up.
    pub(crate) fn of(libjvm: &LibJvm) -> Result<Arc<Self>> {
        if libjvm.has_untrusted_symbols {
            // Other processes may run the same file, and these symbols are valid for this process only.
            if let Some(build) = libjvm.facts.get().cloned().and_then(|facts| facts.downcast().ok())
            {
                return Ok(build);
            }
            let build = Arc::new(Self::read(libjvm.elf()?)?);
            // If another thread has read it in the meantime, both results are equal.
            let _ = libjvm.facts.set(Arc::clone(&build) as Arc<dyn Any + Send + Sync>);
            return Ok(build);
        }
        static BUILDS: OnceLock<Mutex<HashMap<FileId, Arc<Build>>>> = OnceLock::new();
        let builds = BUILDS.get_or_init(Mutex::default);
        // The map is consistent even after a panic in another thread, because an insertion is one step.
        let mut builds = builds.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A container may have replaced the file since.
        let is_same = |build: &Self| libjvm.is_same(build.elf.file());
        if let Some(build) = builds.get(&libjvm.id).filter(|build| is_same(build)) {
            return Ok(Arc::clone(build));
        }
        let build = Arc::new(Self::read(libjvm.elf()?)?);
        if !is_same(&build) {
            return Ok(build);
        }
        if builds.len() >= MAX_BUILDS {
            builds.clear();
        }
        builds.insert(libjvm.id, Arc::clone(&build));
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
        let symbols = exported.iter().chain(&privates);
        let symbols: usize =
            symbols.map(|(name, _)| size_of::<(String, Symbol)>() + 2 * name.len()).sum();
        let stub_names: usize =
            stubs.iter().map(|(_, name)| size_of::<(Vaddr, Arc<str>)>() + name.len()).sum();
        let reserved = elf.reserve(symbols + stub_names)?;
        let (values, is_reported) = Default::default();
        Ok(Self { elf, exported, privates, stubs, values, is_reported, _reserved: reserved })
    }

    /// Returns the load bias in a JVM, to be added to addresses of the file.
    ///
    /// # Errors
    /// [`Error::Elf`] if the mapping contradicts the file's segments.
    pub(crate) fn bias(&self, libjvm: &LibJvm) -> Result<u64> {
        let bias = self.elf.load_bias(libjvm.map_start, libjvm.map_offset);
        bias.ok_or_else(|| {
            Error::elf("the mapping of libjvm.so matches none of the file's segments")
        })
    }

    /// Returns the address in the target of a variable exported for tools.
    pub(crate) fn exported(&self, name: &str, bias: u64) -> Option<Addr> {
        Some(relocated(self.exported.get(name)?.value, bias))
    }

    /// Returns the address in the file of a private static.
    pub(crate) fn private(&self, name: &str) -> Option<Vaddr> {
        Some(self.privates.get(name)?.value)
    }

    /// Returns a shared copy of a JVM's values. If the JVM that was read last has equal values, both JVMs use
    /// the same copy.
    pub(crate) fn share(&self, values: Values) -> Arc<Values> {
        let mut last = self.values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*last {
            Some(last) if **last == values => Arc::clone(last),
            _ => Arc::clone(last.insert(Arc::new(values))),
        }
    }

    /// Prints once which items this build lacks.
    pub(crate) fn report_missing(&self, layout: &Layout) {
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            for line in layout.all_missing() {
                log::debug!("this libjvm.so of JDK {} has {line}", layout.major);
            }
        }
    }
}

fn relocated(value: Vaddr, bias: u64) -> Addr {
    Addr(value.0.wrapping_add(bias))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::testing::Library;

    #[test]
    fn build_with_symbols_from_the_root_of_a_process_is_not_shared() {
        let library = Library::build(".data\n", &[]);
        let mut libjvm = LibJvm::of_file(&library.path()).unwrap();
        let shared = Build::of(&libjvm).unwrap();
        assert!(Arc::ptr_eq(&shared, &Build::of(&libjvm).unwrap()));
        libjvm.has_untrusted_symbols = true;
        let of_process = Build::of(&libjvm).unwrap();
        assert!(!Arc::ptr_eq(&shared, &of_process));
        // It is read once for all tracers that follow the process.
        assert!(Arc::ptr_eq(&of_process, &Build::of(&libjvm).unwrap()));
    }
}
