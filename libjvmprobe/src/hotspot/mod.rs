//! HotSpot's own layout: what a JVM tells of itself in its memory, without being asked.
//!
//! | module | what it knows |
//! |---|---|
//! | `build` | what one libjvm.so tells, read once |
//! | [`vmstructs`] | the tables of fields and types that every libjvm.so exports |
//! | [`flags`] | the JVM's flags and their values |
//! | [`collector`] | which collector runs |
//! | [`gauge`] | where the numbers are that belong into every event |
//! | [`perfdata`] | its performance data (`hsperfdata`) |
//! | [`heap`] | where the used bytes of the heap are counted |
//! | [`code_cache`] | what is in the code cache: where, and which methods |
//! | `scopes` | what was inlined into a compiled method, with lines |
//! | [`methods`] | methods: names, parameters, lines |
//! | [`classes`] | classes: names |
//! | [`objects`] | objects in the heap, by class |
//! | [`threads`] | what threads have allocated |
//! | [`look`] | code by its addresses |
//! | `stubs` | names of stubs |
//! | [`compressed`] | its compressed integers |
//! | `pages` | the target's pages that were read, in bounds |
//! | [`walking`] | what the stack walker must know of it |
//!
//! [`HotSpot::read`] puts them together. Nothing is written to the target and
//! it is never stopped; a JVM that is just starting up tells less, and more later.

mod build;
pub mod classes;
pub mod code_cache;
pub mod collector;
pub mod compressed;
pub mod flags;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub mod gauge;
pub mod heap;
pub mod look;
pub mod methods;
pub mod objects;
pub(crate) mod pages;
pub mod perfdata;
mod scopes;
mod stubs;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code))]
#[allow(clippy::unwrap_used, reason = "for tests only")]
mod testing;
pub mod threads;
pub mod vmstructs;
pub mod walking;

pub use collector::Collector;

use std::{collections::HashMap, fmt::Display, sync::Arc};

use crate::{
    Addr, Error, Pid, Result, Vaddr,
    hotspot::{
        gauge::{Gauge, LastStop},
        perfdata::PerfData,
    },
    names::{clean, code::Code},
    own::remark,
    process::{Target, memory::Memory},
};
use build::Build;
use classes::ClassLayout;
use code_cache::Inlining;
use compressed::Encoding;
use flags::Flags;
use methods::Methods;
use objects::{ClassCount, Objects};
use threads::{ThreadBytes, ThreadLayout};
use vmstructs::VmStructs;

/// How the names of those private statics begin that we want, where there is a symbol
/// table.
const PRIVATES: [&str; 6] = [
    "_ZN16SafepointTracing",
    "_ZN12VM_Operation6_namesE",
    "_ZN4GCId8_next_idE",
    "_ZN12StubRoutines",
    "_ZN17ContinuationEntry",
    CURRENT_OPERATION,
];
/// The operation that the VM thread runs.
const CURRENT_OPERATION: &str = "_ZN8VMThread17_cur_vm_operationE";

/// The first JDK whose code cache we can read. What JDK 8 has there is of another shape, and
/// not all of it is in vmStructs; 9 and 10 were never tried.
pub const FIRST_READ: u32 = 9;

/// HotSpot's performance data take 32 KiB by default.
const MAX_PERF_DATA: u64 = 4 << 20;

/// What a JVM tells of itself.
#[derive(Debug)]
pub struct HotSpot {
    /// Name and version, for example `OpenJDK 64-Bit Server VM 17.0.9+9`.
    pub version: String,
    /// The number before the first dot.
    pub major: u32,
    /// Vendor, where performance data tell.
    pub vendor: Option<String>,
    /// Its collector.
    pub collector: Collector,
    /// Where it keeps the numbers that belong into every event.
    pub gauge: Gauge,
    /// Whether there is a JVM, or one that sets itself up just now: a process may have
    /// libjvm.so mapped and no JVM in it.
    pub has_begun: bool,
    /// Whether it has set up all that the gauge and the stack walker need.
    pub is_set_up: bool,
    /// Whether it was started with `-XX:+DisableAttachMechanism`.
    pub attach_disabled: bool,
    /// While it sets itself up.
    flags: Option<Flags>,
    build: Arc<Build>,
    /// What is to be added to addresses of the file.
    bias: u64,
    operation_names: Option<Addr>,
    /// Where it counts the classes that it unloaded.
    unloads: Option<Addr>,
    /// `StubRoutines::_cont_returnBarrier` and `ContinuationEntry::_return_pc`; private,
    /// so known only where there is a symbol table.
    continuations: Option<(Addr, Addr)>,
    /// Where it keeps the addresses of stubs, with their names.
    stubs: Vec<(Addr, Arc<str>)>,
    pid: Pid,
    pub(crate) memory: Memory,
    structs: VmStructs,
}

impl HotSpot {
    /// Reads what a JVM tells.
    ///
    /// # Errors
    /// [`Error::Layout`], [`Error::Memory`], [`Error::Permission`]; a JVM
    /// without performance data or heap yet is no error.
    pub fn read(target: &Target) -> Result<Self> {
        let memory = Memory::open(target.pid())?;
        let build = Build::of(&target.libjvm)?;
        let bias = build.bias(&target.libjvm)?;
        let exported = |name: &str| build.exported(name, bias);
        let structs = VmStructs::read(&memory, bias, exported, |tables| build.share(tables))?;
        let info = vm_string(&memory, &structs, "_s_internal_vm_info_string").unwrap_or_default();
        let release = vm_string(&memory, &structs, "_s_vm_release").unwrap_or_default();
        let at = |name: &str| build.private(name, bias);
        let continuations = at("_ZN12StubRoutines19_cont_returnBarrierE")
            .zip(at("_ZN17ContinuationEntry10_return_pcE"));
        let mut hotspot = Self {
            version: product(&info, &release),
            major: major(&release),
            vendor: None,
            collector: Collector::Unknown,
            gauge: Gauge::default(),
            has_begun: false,
            is_set_up: false,
            attach_disabled: false,
            operation_names: at("_ZN12VM_Operation6_namesE"),
            unloads: None,
            continuations,
            stubs: stubs::statics(&build.privates, bias),
            flags: None,
            build,
            bias,
            pid: target.pid(),
            memory,
            structs,
        };
        hotspot.look_again();
        Ok(hotspot)
    }

    /// Reads again what a JVM tells that was still setting itself up.
    pub fn look_again(&mut self) {
        let (memory, structs) = (&self.memory, &self.structs);
        let pid = self.pid;
        let unknown = |what: &str, why: &dyn Display| {
            remark(|| format!("process {pid}: {what}: {why}"));
        };
        let flags = self.flags.take().or_else(|| {
            let read = Flags::read(memory, structs);
            read.inspect_err(|e| unknown("its flags, and so its collector, are unknown", e)).ok()
        });
        let collector = flags.as_ref().map(|f| Collector::from_flags(memory, f, self.major));
        let collector = collector.unwrap_or_default();
        let flag = |name| flags.as_ref().and_then(|flags| flags.flag_bool(memory, name));
        let attach_disabled = flag("DisableAttachMechanism").unwrap_or(false);
        let perf = perf_data(memory, structs)
            .inspect_err(|e| unknown("causes and counts of collections are unknown", e))
            .unwrap_or_default();
        let at = |name: &str| self.build.private(name, self.bias);
        let mut gauge = Gauge {
            operation: at(CURRENT_OPERATION),
            waits: collector == Collector::Cms && self.major == 8,
            ..Gauge::default()
        };
        // No terms where it cannot be known.
        let used = heap::used(memory, structs, collector, self.major, at)
            .inspect_err(|why| unknown("used heap is unknown", why))
            .unwrap_or_else(|_| Some(Vec::new()));
        let has_heap = used.is_some();
        gauge.heap = used.unwrap_or_default();
        if let Some((base, data)) = &perf {
            gauge.settled = heap::settled(*base, data, collector);
            let at = |name: &str| base.checked_add(data.offset(name)? as u64);
            gauge.cause = at("sun.gc.cause");
            gauge.last_cause = at("sun.gc.lastCause");
            for (i, counter) in gauge.counters.iter_mut().enumerate() {
                *counter = at(&format!("sun.gc.collector.{i}.invocations"));
            }
        }
        let unloads = perf.as_ref().and_then(|(base, data)| {
            base.checked_add(data.offset("java.cls.unloadedClasses")? as u64)
        });
        let at = |name: &str| self.build.private(name, self.bias);
        // SafepointTracing (runtime/safepoint.cpp, JDK 14 and later) keeps what its
        // log line is made of; private, so named only where there is a symbol table.
        let last_stop = || {
            Some(LastStop {
                begin: at("_ZN16SafepointTracing29_last_safepoint_begin_time_nsE")?,
                sync: at("_ZN16SafepointTracing28_last_safepoint_sync_time_nsE")?,
                end: at("_ZN16SafepointTracing27_last_safepoint_end_time_nsE")?,
                op_type: at("_ZN16SafepointTracing13_current_typeE")?,
            })
        };
        gauge.last_stop = last_stop().filter(|_| self.operation_names.is_some());
        if perf.is_none() && matches!(collector, Collector::Serial | Collector::Parallel) {
            // Here each collection takes a number, and nothing else does.
            gauge.counters[0] = at("_ZN4GCId8_next_idE");
        }
        let perf_pending = perf.is_none() && flag("UsePerfData") == Some(true);
        self.vendor = perf
            .as_ref()
            .and_then(|(_, data)| data.string("java.property.java.vm.vendor"))
            .map(|vendor| clean::name(vendor).into_owned());
        // Its arguments are the first that a JVM looks at, and choose a collector.
        self.has_begun = collector != Collector::Unknown || has_heap;
        let has_heap = collector != Collector::Unknown && has_heap;
        // Where it is unknown how to find that out, the heap must do.
        let has_threads = || threads::have_begun(memory, structs).unwrap_or(true);
        self.is_set_up = has_heap && !perf_pending && has_threads();
        self.collector = collector;
        self.attach_disabled = attach_disabled;
        // Where they are does not change; what they are is asked for until it is set up.
        self.flags = flags.filter(|_| self.has_begun && !self.is_set_up);
        self.gauge = gauge;
        self.unloads = unloads;
    }

    /// All compiled code that it has now: methods, the interpreter, stubs; with what was
    /// inlined where that is wanted. Read from its memory; it is not asked and not
    /// stopped.
    ///
    /// # Errors
    /// [`Error::Unsupported`] of JDKs before [`FIRST_READ`], [`Error::Layout`] naming what is
    /// missing, [`Error::Memory`] when it is gone.
    pub fn code(&self, inlining: Inlining<'_>) -> Result<Vec<(Addr, u64, Code)>> {
        self.check_is_read("methods of {JDK} cannot be named from its memory")?;
        let mut code = code_cache::read(&self.memory, &self.structs, self.major, inlining)?;
        self.name_stubs(&mut code);
        Ok(code)
    }

    /// Whether its code cache is of a shape that we know; `what` is lost otherwise.
    fn check_is_read(&self, what: &str) -> Result<()> {
        // Of a version that is not told the fields decide.
        if self.major == 0 || self.major >= FIRST_READ {
            return Ok(());
        }
        let what = what.replace("{JDK}", &format!("JDK {}", self.major));
        Err(Error::Unsupported { what: format!("{what} yet; from JDK 11 on they can") })
    }

    /// How many classes it has unloaded; `None` where it does not count.
    pub fn classes_unloaded(&self) -> Option<u64> {
        self.memory.u64(self.unloads?).ok()
    }

    /// A reader of its methods.
    pub(crate) fn methods(&self) -> Result<Methods> {
        Methods::new(&self.structs, Encoding::of_jdk(self.major))
    }

    /// Where classes and their names are.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub fn class_layout(&self) -> Result<ClassLayout> {
        ClassLayout::read(&self.structs)
    }

    /// Where threads keep what they have allocated.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub fn thread_layout(&self) -> Result<ThreadLayout> {
        ThreadLayout::read(&self.structs)
    }

    /// What each Java thread has allocated so far.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing, [`Error::Memory`] when it is gone.
    pub fn thread_bytes(&self) -> Result<Vec<ThreadBytes>> {
        threads::read(&self.memory, &self.structs, &self.thread_layout()?)
    }

    /// A reader of objects in its heap.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub fn objects(&self) -> Result<Objects> {
        Objects::new(&self.memory, &self.structs)
    }

    /// Counts the objects of a piece of its heap by class.
    ///
    /// # Errors
    /// As [`Objects::count`].
    pub fn count_objects<'a>(
        &self,
        objects: &'a mut Objects,
        start: Addr,
        size: u64,
    ) -> Result<impl Iterator<Item = (Addr, ClassCount)> + use<'a, '_>> {
        objects.count(&self.memory, start, size)
    }

    /// The Symbol of a class's name.
    ///
    /// # Errors
    /// As [`ClassLayout::name_of`].
    pub fn class_symbol(&self, layout: &ClassLayout, klass: Addr) -> Result<Addr> {
        layout.name_of(&self.memory, klass)
    }

    /// The bytes of a Symbol, up to [`classes::MAX_NAME`], and its whole length.
    ///
    /// # Errors
    /// As [`ClassLayout::symbol`].
    pub fn symbol(&self, layout: &ClassLayout, symbol: Addr) -> Result<(Vec<u8>, u32)> {
        layout.symbol(&self.memory, symbol)
    }

    /// The sizes of the objects of its classes by the Symbols of their names.
    ///
    /// # Errors
    /// As [`classes::instance_sizes`].
    pub fn instance_sizes(&self) -> Result<HashMap<Addr, u64>> {
        classes::instance_sizes(&self.memory, &self.structs)
    }

    /// Where it counts its collections, in 32 bits.
    ///
    /// # Errors
    /// [`Error::Layout`] where the heap is not set up yet.
    pub fn collections_at(&self) -> Result<Addr> {
        let heap = self.memory.pointer(self.structs.static_field("Universe", "_collectedHeap")?)?;
        let offset = self.structs.field("CollectedHeap", "_total_collections")?;
        let at = heap.checked_add(offset).filter(|_| heap != Addr(0));
        at.ok_or_else(|| Error::layout("the heap is not set up yet"))
    }

    /// A number of 32 bits in its memory.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn u32_at(&self, addr: Addr) -> Result<u32> {
        self.memory.u32(addr)
    }

    /// Objects larger than this are humongous; `None` where there are none. Only G1 has
    /// them: more than half of a heap region (`G1CollectedHeap::humongous_threshold_for`).
    pub fn humongous_bytes(&self) -> Option<u64> {
        if self.collector != Collector::G1 {
            return None;
        }
        // Renamed in JDK 23 or so.
        let grain = self
            .structs
            .static_field("G1HeapRegion", "GrainBytes")
            .or_else(|_| self.structs.static_field("HeapRegion", "GrainBytes"));
        let bytes = self.memory.u64(grain.ok()?).ok()?;
        (bytes > 0).then_some(bytes / 2)
    }

    /// A flag's value now; `None` where this JVM has no such flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        Flags::read(&self.memory, &self.structs).ok()?.flag_bool(&self.memory, name)
    }

    /// Its own counters of collections before and after an operation: how many were done,
    /// and whether one of them was full.
    pub fn collections(
        &self,
        op: Option<&str>,
        before: &[u64; 4],
        after: &[u64; 4],
    ) -> Option<(u64, bool)> {
        // Counters of 32 bits wrap.
        let done = |i: usize| u64::from((after[i] as u32).wrapping_sub(before[i] as u32));
        // Young and old collector; a third one counts G1's remark and cleanup.
        let (young, full) = (done(0), done(1));
        match self.collector {
            Collector::Serial | Collector::Parallel | Collector::G1 => {
                Some((young + full, full > 0))
            }
            Collector::Cms if !is_cms_marking(op) => Some((young + full, full > 0)),
            _ => None,
        }
    }

    /// Whether an operation with so many collections allocated after the last of them what
    /// had not fitted before, so that the heap at its end is not that after the collection.
    pub fn settles(&self, op: Option<&str>, collections: u64) -> bool {
        heap::settles(self.collector)
            && match self.collector {
                Collector::Cms => !is_cms_marking(op),
                _ => collections > 0,
            }
    }

    /// Whether only the collector's own tracer tells of the heap after such a collection: its
    /// counters are missing, or not known yet.
    pub fn settles_unseen(&self) -> bool {
        let may_settle = heap::settles(self.collector) || self.collector == Collector::Unknown;
        may_settle && self.gauge.settled.is_empty()
    }

    /// The name of a VM operation by its number, as the JVM's log has it.
    pub fn operation_named(&self, op_type: u64) -> Option<String> {
        // There are about a hundred; `const char* VM_Operation::_names[]`.
        let offset = op_type.checked_mul(8).filter(|&offset| offset < 8 * 1024)?;
        let name = self.memory.pointer(self.operation_names?.checked_add(offset)?).ok()?;
        let name = self.memory.c_string(name, 64).ok().filter(|name| !name.is_empty())?;
        Some(clean::name(&name).into_owned())
    }

    /// The VM operation whose C++ vtable is at an address of the target, for
    /// example `G1CollectForAllocation`.
    pub fn operation_of(&self, vtable: u64) -> Option<String> {
        // An object points behind its class's vtable symbol `_ZTV...`: two words,
        // offset-to-top and type information, come first (Itanium C++ ABI, 2.5.2).
        let symbol = Vaddr(vtable.wrapping_sub(self.bias).wrapping_sub(16));
        let symbol = self.build.elf.symbols().ok()?.at(symbol, "_ZTV")?;
        let class =
            symbol.name.strip_prefix("_ZTV")?.trim_start_matches(|c: char| c.is_ascii_digit());
        Some(clean::name(class.strip_prefix("VM_").unwrap_or(class)).into_owned())
    }
}

/// CMS's initial mark and final remark are stops that collect nothing; the old collector
/// counts them.
fn is_cms_marking(op: Option<&str>) -> bool {
    op.is_some_and(|op| op.starts_with("CMS_"))
}

fn vm_string(memory: &Memory, structs: &VmStructs, field: &str) -> Result<String> {
    let text = memory.pointer(structs.static_field("Abstract_VM_Version", field)?)?;
    memory.c_string(text, 512)
}

/// The leading number of `17.0.9+9` or `25.352-b08` (JDK 8 numbers its VM 25).
fn major(release: &str) -> u32 {
    let number = release.split(|c: char| !c.is_ascii_digit()).next();
    match number.and_then(|n| n.parse().ok()).unwrap_or(0) {
        25 if release.contains("-b") => 8,
        other => other,
    }
}

/// `OpenJDK 64-Bit Server VM (17.0.9+9) for linux-amd64 JRE ...` to the part
/// that says which build it is.
fn product(info: &str, release: &str) -> String {
    let name = info.split(" (").next().unwrap_or_default();
    let text = format!("{name} {release}");
    clean::name(text.trim()).into_owned()
}

/// The performance data and where they begin; `None` where there are none, or not all yet.
fn perf_data(memory: &Memory, structs: &VmStructs) -> Result<Option<(Addr, PerfData)>> {
    let start = memory.pointer(structs.static_field("PerfMemory", "_start")?)?;
    let capacity = memory.u64(structs.static_field("PerfMemory", "_capacity")?)?;
    if start == Addr(0) {
        return Ok(None);
    }
    if capacity > MAX_PERF_DATA {
        return Err(Error::PerfData { what: "they would take more than 4 MiB".into() });
    }
    let bytes = memory.read(start, capacity as usize)?;
    let data = PerfData::parse(&bytes)?;
    // Entries are added while the JVM starts; these are among the last.
    Ok(data.offset("sun.gc.lastCause").is_some().then_some((start, data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        assert_eq!(major("17.0.9+9"), 17);
        assert_eq!(major("25.352-b08"), 8);
        assert_eq!(major("25.0.2+10-LTS"), 25);
        assert_eq!(major(""), 0);
    }

    #[test]
    fn the_product_is_one_line() {
        let info = "OpenJDK 64-Bit Server VM (17.0.9+9) for linux-amd64 JRE (17.0.9+9), built on";
        assert_eq!(product(info, "17.0.9+9"), "OpenJDK 64-Bit Server VM 17.0.9+9");
        assert_eq!(product("", ""), "");
    }
}
