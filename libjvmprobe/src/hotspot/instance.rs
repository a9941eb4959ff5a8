//! One JVM: what it tells of itself.

use std::{collections::HashMap, fmt::Display, sync::Arc};

use crate::{
    Addr, Error, Pid, Result,
    hotspot::{
        Collector,
        build::Build,
        classes::{self, ClassLayout},
        counters::Counters,
        flags::Flags,
        gauge::{Gauge, LastStop},
        heap,
        holds::{ClassCounts, HeapCounters},
        layout::Item,
        objects::{ClassCount, ClassField, Objects},
        perfdata::PerfData,
        resolved::Layout,
        threads::{self, ThreadBytes, ThreadLayout},
    },
    names::clean,
    own::remark,
    process::{Target, memory::Memory},
};

/// HotSpot's performance data take 32 KiB by default.
const MAX_PERF_DATA: u64 = 4 << 20;

/// A HotSpot JVM as read from its memory. Clones share the open memory and the layout.
#[derive(Clone, Debug)]
pub struct HotSpot {
    /// Name and version, for example `OpenJDK 64-Bit Server VM 17.0.9+9`.
    pub version: String,
    /// The number before the first dot.
    pub major: u32,
    /// Vendor, where performance data tell.
    pub(crate) vendor: Option<String>,
    /// Its collector.
    pub collector: Collector,
    /// Where it keeps the numbers that belong into every event.
    pub gauge: Gauge,
    /// Whether there is a JVM, or one that sets itself up just now: a process may have
    /// libjvm.so mapped and no JVM in it.
    pub(crate) has_begun: bool,
    /// Whether it has set up all that the gauge and the stack walker need.
    pub is_set_up: bool,
    /// Whether it was started with `-XX:+DisableAttachMechanism`.
    pub(crate) attach_disabled: bool,
    /// While it sets itself up.
    flags: Option<Arc<Flags>>,
    pub(super) build: Arc<Build>,
    /// What is to be added to addresses of the file.
    pub(super) bias: u64,
    /// Where it counts its classes.
    pub(super) class_counts: ClassCounts,
    /// Where it keeps the committed size of its heap.
    pub(super) heap_counters: HeapCounters,
    /// The maximum size of its heap (`-Xmx`), in bytes.
    pub(super) max_heap: Option<u64>,
    /// Where it counts its collections.
    pub(super) counters: Option<Counters>,
    pub(super) pid: Pid,
    pub(super) memory: Memory,
    pub(super) layout: Layout,
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
        let private = |name: &str| build.private(name);
        let share = |values| build.share(values);
        let layout = Layout::read(&memory, bias, exported, private, share)?;
        Ok(Self::new(target.pid(), memory, layout, build, bias))
    }

    /// What there is to read in a memory by a layout.
    pub(super) fn new(
        pid: Pid,
        memory: Memory,
        mut layout: Layout,
        build: Arc<Build>,
        bias: u64,
    ) -> Self {
        let info = vm_string(&memory, &layout, Item::VmInfo).unwrap_or_default();
        let release = vm_string(&memory, &layout, Item::VmRelease).unwrap_or_default();
        layout.major = major(&release);
        build.tell_missing(&layout);
        let mut hotspot = Self {
            version: product(&info, &release),
            major: layout.major,
            vendor: None,
            collector: Collector::Unknown,
            gauge: Gauge::default(),
            has_begun: false,
            is_set_up: false,
            attach_disabled: false,
            flags: None,
            class_counts: ClassCounts::default(),
            heap_counters: HeapCounters::default(),
            max_heap: None,
            counters: None,
            build,
            bias,
            pid,
            memory,
            layout,
        };
        hotspot.look_again();
        hotspot
    }

    /// Reads again what a JVM tells that was still setting itself up.
    pub fn look_again(&mut self) {
        let (memory, layout) = (&self.memory, &self.layout);
        let pid = self.pid;
        let unknown = |what: &str, why: &dyn Display| {
            remark(|| format!("process {pid}: {what}: {why}"));
        };
        let flags = self.flags.take().or_else(|| {
            let read = Flags::read(memory, layout);
            read.inspect_err(|e| unknown("its flags, and so its collector, are unknown", e))
                .ok()
                .map(Arc::new)
        });
        let collector = flags.as_ref().map(|f| Collector::from_flags(memory, f, self.major));
        let collector = collector.unwrap_or_default();
        let flag = |name| flags.as_ref().and_then(|flags| flags.flag_bool(memory, name));
        let attach_disabled = flag("DisableAttachMechanism").unwrap_or(false);
        let perf = perf_data(memory, layout)
            .inspect_err(|e| unknown("causes and counts of collections are unknown", e))
            .unwrap_or_default();
        let at = |item| layout.try_address(item);
        let mut gauge = Gauge {
            operation: at(Item::CurrentOperation),
            waits: collector == Collector::Cms && self.major == 8,
            ..Gauge::default()
        };
        // No terms where it cannot be known.
        let used = heap::used(memory, layout, collector)
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
        let counts = perf.as_ref().map(|(base, data)| ClassCounts::of(*base, data));
        self.class_counts = counts.unwrap_or_default();
        let sizes = perf.as_ref().map(|(base, data)| HeapCounters::of(*base, data));
        self.heap_counters = sizes.unwrap_or_default();
        let max = flags.as_ref().and_then(|flags| flags.flag_u64(memory, "MaxHeapSize"));
        self.max_heap = max.filter(|&max| max > 0);
        self.counters = perf.as_ref().map(|(base, data)| Counters::find(*base, data));
        // SafepointTracing (runtime/safepoint.cpp, JDK 14 and later) keeps what its
        // log line is made of; private, so named only where there is a symbol table.
        let last_stop = || {
            Some(LastStop {
                begin: at(Item::LastStopBegin)?,
                sync: at(Item::LastStopSync)?,
                end: at(Item::LastStopEnd)?,
                op_type: at(Item::LastStopType)?,
            })
        };
        gauge.last_stop = last_stop().filter(|_| layout.has(Item::OperationNames));
        let is_z = matches!(collector, Collector::Z | Collector::GenerationalZ);
        gauge.op_tells = is_z && gauge.last_stop.is_some();
        if perf.is_none() && matches!(collector, Collector::Serial | Collector::Parallel) {
            // Here each collection takes a number, and nothing else does.
            gauge.counters[0] = at(Item::NextGcId);
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
        let has_threads = || threads::have_begun(memory, layout).unwrap_or(true);
        self.is_set_up = has_heap && !perf_pending && has_threads();
        self.collector = collector;
        self.attach_disabled = attach_disabled;
        // Where they are does not change; what they are is asked for until it is set up.
        self.flags = flags.filter(|_| self.has_begun && !self.is_set_up);
        self.gauge = gauge;
    }

    /// Where classes and their names are.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub(crate) fn class_layout(&self) -> Result<ClassLayout> {
        ClassLayout::read(&self.layout)
    }

    /// Where the task of a compiler has its tier and, of one that is entered in a loop, the
    /// bytecode index.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub(crate) fn compile_task(&self) -> Result<(u32, u32)> {
        let offset = |item| {
            let offset = self.layout.get(item)?;
            let implausible = |_| Error::layout(format!("{item:?} at {offset}: implausible"));
            u32::try_from(offset).map_err(implausible)
        };
        Ok((offset(Item::TaskLevel)?, offset(Item::TaskOsrBci)?))
    }

    /// How its objects name their classes.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub(crate) fn class_field(&self) -> Result<ClassField> {
        ClassField::read(&self.memory, &self.layout, &Flags::read(&self.memory, &self.layout)?)
    }

    /// Where threads keep what they have allocated.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub(crate) fn thread_layout(&self) -> Result<ThreadLayout> {
        ThreadLayout::read(&self.layout)
    }

    /// What each Java thread has allocated so far.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing, [`Error::Memory`] when it is gone.
    pub(crate) fn thread_bytes(&self) -> Result<Vec<ThreadBytes>> {
        threads::read(&self.memory, &self.layout)
    }

    /// A reader of objects in its heap.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing.
    pub fn objects(&self) -> Result<Objects> {
        Objects::new(&self.memory, &self.layout)
    }

    /// Counts the objects of a piece of its heap by class.
    ///
    /// # Errors
    /// [`Error::Layout`] where what lies there are not just objects up to the very end,
    /// [`Error::Memory`] where nothing lies there.
    pub(crate) fn count_objects<'a>(
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
    /// [`Error::Memory`] where there is no class.
    pub(crate) fn class_symbol(&self, layout: &ClassLayout, klass: Addr) -> Result<Addr> {
        layout.name_of(&self.memory, klass)
    }

    /// The bytes of a Symbol, as many as are read of a name, and its whole length.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is none.
    pub fn symbol(&self, layout: &ClassLayout, symbol: Addr) -> Result<(Vec<u8>, u32)> {
        layout.symbol(&self.memory, symbol)
    }

    /// The sizes of the objects of its classes by the Symbols of their names.
    ///
    /// # Errors
    /// [`Error::Layout`] naming what is missing, [`Error::Memory`].
    pub(crate) fn instance_sizes(&self) -> Result<HashMap<Addr, u64>> {
        classes::instance_sizes(&self.memory, &self.layout)
    }

    /// A number of 32 bits in its memory.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn u32_at(&self, addr: Addr) -> Result<u32> {
        self.memory.u32(addr)
    }

    /// A flag's value now; `None` where this JVM has no such flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        Flags::read(&self.memory, &self.layout).ok()?.flag_bool(&self.memory, name)
    }
}

fn vm_string(memory: &Memory, layout: &Layout, item: Item) -> Result<String> {
    let text = memory.pointer(layout.address(item)?)?;
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
pub(super) fn perf_data(memory: &Memory, layout: &Layout) -> Result<Option<(Addr, PerfData)>> {
    let start = memory.pointer(layout.address(Item::PerfStart)?)?;
    let capacity = memory.u64(layout.address(Item::PerfCapacity)?)?;
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
