//! One JVM and its properties: version, collector, gauge.

use std::{collections::HashMap, fmt::Display, ops::Range, sync::Arc};

use crate::{
    Addr, Error, Pid, Result,
    hotspot::{
        Collector,
        boot_classes::BootClasses,
        build::Build,
        classes::{self, ClassLayout},
        counters::Counters,
        flags::Flags,
        gauge::{Gauge, LastStop},
        heap,
        java_threads::{
            self, AwaitedReader, FrameState, HeldMonitor, JavaFrame, JavaThread, OwnedSynchronizers,
        },
        layout::Item,
        objects::{ClassCount, ClassField, Objects},
        pages::Pages,
        perfdata::PerfData,
        resolved::Layout,
        sizes::{ClassCounts, HeapCounters},
        threads::{self, ThreadArray, ThreadBytes, ThreadLayout},
    },
    names::clean,
    process::{LibJvm, Target, core_file::CoreFile, memory::Memory},
};

/// Plausibility limit for performance data in bytes; by default HotSpot uses 32 KiB.
const MAX_PERF_DATA: u64 = 4 << 20;
/// Plausibility limit for `-XX:ActiveProcessorCount`.
const MAX_PROCESSORS: u64 = 1 << 16;

/// A HotSpot JVM as read from its memory. Clones share the open memory and the layout.
#[derive(Clone, Debug)]
pub struct HotSpot {
    /// Name and version, for example `OpenJDK 64-Bit Server VM 17.0.9+9`.
    pub version: String,
    /// The JDK's feature release, for example 17. For JDK 8 it is 8, although the version of that VM begins with
    /// 25.
    pub major: u32,
    /// Vendor, if the performance data contain it.
    pub(crate) vendor: Option<String>,
    /// Its collector.
    pub collector: Collector,
    /// Addresses of the values that the kernel side reads at every event.
    pub gauge: Gauge,
    /// Whether the process has a JVM that runs or is starting up. A process may have libjvm.so mapped without
    /// a JVM.
    pub(crate) has_vm: bool,
    /// Whether everything that the gauge and the stack walker need is set up.
    pub is_set_up: bool,
    /// Whether it was started with `-XX:+DisableAttachMechanism`.
    pub(crate) attach_disabled: bool,
    /// The flag table. It is cached only while the JVM is starting up.
    flags: Option<Arc<Flags>>,
    pub(super) build: Arc<Build>,
    /// Load bias: added to addresses of the file.
    pub(super) bias: u64,
    /// Addresses of its class counters.
    pub(super) class_counts: ClassCounts,
    /// Addresses of the counters of its committed heap size.
    pub(super) heap_counters: HeapCounters,
    /// The maximum size of its heap (`-Xmx`), in bytes.
    pub(super) max_heap: Option<u64>,
    /// The value of `-XX:ActiveProcessorCount`, if it is set.
    pub(super) configured_processors: Option<u64>,
    /// Addresses of its collection counters.
    pub(super) counters: Option<Counters>,
    pub(super) pid: Pid,
    pub(crate) memory: Memory,
    pub(super) layout: Layout,
    pub(super) boot_classes: Arc<BootClasses>,
}

impl HotSpot {
    /// Reads a JVM's properties.
    ///
    /// # Errors
    /// [`Error::Layout`], [`Error::Memory`], [`Error::Permission`]. A JVM that has no performance data or
    /// no heap yet is not an error.
    pub fn read(target: &Target) -> Result<Self> {
        Self::read_from(target.pid(), Memory::open(target.pid())?, &target.libjvm)
    }

    /// Reads the properties of the JVM of a core file.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    pub(crate) fn of_core(core: &CoreFile) -> Result<Self> {
        Self::read_from(core.pid, core.memory.clone(), &core.libjvm)
    }

    fn read_from(pid: Pid, memory: Memory, libjvm: &LibJvm) -> Result<Self> {
        let build = Build::of(libjvm)?;
        let bias = build.bias(libjvm)?;
        let exported = |name: &str| build.exported(name, bias);
        let private = |name: &str| build.private(name);
        let share = |values| build.share(values);
        let layout = Layout::read(&memory, bias, exported, private, share)?;
        Ok(Self::new(pid, memory, layout, build, bias))
    }

    /// Creates an instance from a JVM's memory and its layout, and reads the JVM's properties.
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
        build.report_missing(&layout);
        let mut hotspot = Self {
            version: product(&info, &release),
            major: layout.major,
            vendor: None,
            collector: Collector::Unknown,
            gauge: Gauge::default(),
            has_vm: false,
            is_set_up: false,
            attach_disabled: false,
            flags: None,
            class_counts: ClassCounts::default(),
            heap_counters: HeapCounters::default(),
            max_heap: None,
            configured_processors: None,
            counters: None,
            build,
            bias,
            pid,
            memory,
            layout,
            boot_classes: Arc::default(),
        };
        hotspot.refresh();
        hotspot
    }

    /// Re-reads the properties of a JVM that was still starting up.
    pub fn refresh(&mut self) {
        let (memory, layout) = (&self.memory, &self.layout);
        let pid = self.pid;
        let unknown = |what: &str, why: &dyn Display| {
            log::debug!("process {pid}: {what}: {why}");
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
            reads_heap_at_gc_begin: collector == Collector::Cms && self.major == 8,
            ..Gauge::default()
        };
        // The terms of a sum, which is the used heap. The list is empty if the used heap cannot be determined;
        // `None` means that there is no heap yet.
        let used = heap::used(memory, layout, collector)
            .inspect_err(|why| unknown("used heap is unknown", why))
            .unwrap_or_else(|_| Some(Vec::new()));
        let has_heap = used.is_some();
        gauge.heap = used.unwrap_or_default();
        if let Some((base, data)) = &perf {
            gauge.used_at_gc_end = heap::used_at_gc_end(*base, data, collector);
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
        let processors =
            flags.as_ref().and_then(|flags| flags.flag_u64(memory, "ActiveProcessorCount"));
        // The default is -1.
        self.configured_processors =
            processors.filter(|count| (1..=MAX_PROCESSORS).contains(count));
        self.counters = perf.as_ref().map(|(base, data)| Counters::find(*base, data));
        // SafepointTracing (runtime/safepoint.cpp, JDK 14 and later) keeps the times of the last stop, which
        // the JVM prints with -Xlog:safepoint. They are private, so their addresses are known only if there
        // is a symbol table.
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
        gauge.op_shows_collection = is_z && gauge.last_stop.is_some();
        if perf.is_none() && matches!(collector, Collector::Serial | Collector::Parallel) {
            // With these collectors each collection takes a GC ID, and nothing else does.
            gauge.counters[0] = at(Item::NextGcId);
        }
        let perf_pending = perf.is_none() && flag("UsePerfData") == Some(true);
        self.vendor = perf
            .as_ref()
            .and_then(|(_, data)| data.string("java.property.java.vm.vendor"))
            .map(|vendor| clean::name(vendor).into_owned());
        // A JVM first parses its arguments, which select a collector. So a known collector shows that a JVM
        // exists.
        self.has_vm = collector != Collector::Unknown || has_heap;
        let has_heap = collector != Collector::Unknown && has_heap;
        // If the list of threads cannot be read, the other conditions decide.
        let has_threads = || threads::have_begun(memory, layout).unwrap_or(true);
        self.is_set_up = has_heap && !perf_pending && has_threads();
        self.collector = collector;
        self.attach_disabled = attach_disabled;
        // The table is cached until the JVM is set up, because the flags' values are re-read until then. The
        // addresses of the values are constant.
        self.flags = flags.filter(|_| self.has_vm && !self.is_set_up);
        self.gauge = gauge;
    }

    /// Returns the offsets that are needed to read the names and the layout helpers of classes.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(crate) fn class_layout(&self) -> Result<ClassLayout> {
        ClassLayout::read(&self.layout)
    }

    /// Returns the offsets in a CompileTask of its tier and, for an on-stack replacement, of its bytecode
    /// index.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(crate) fn compile_task(&self) -> Result<(u32, u32)> {
        let offset = |item| {
            let offset = self.layout.get(item)?;
            let implausible = |_| Error::layout(format!("implausible offset {offset} of {item:?}"));
            u32::try_from(offset).map_err(implausible)
        };
        Ok((offset(Item::TaskLevel)?, offset(Item::TaskOsrBci)?))
    }

    /// Returns how its objects refer to their classes.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(crate) fn class_field(&self) -> Result<ClassField> {
        ClassField::read(&self.memory, &self.layout, &Flags::read(&self.memory, &self.layout)?)
    }

    /// Returns the offsets of a thread's allocation counters.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub(crate) fn thread_layout(&self) -> Result<ThreadLayout> {
        ThreadLayout::read(&self.layout)
    }

    /// Returns the number of bytes that each Java thread has allocated so far. `last` is the array of threads of the last
    /// call.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub(crate) fn thread_bytes(&self, last: &mut ThreadArray) -> Result<Vec<ThreadBytes>> {
        threads::read(&self.memory, &self.layout, last)
    }

    /// Returns the innermost Java frame of a thread that has left Java code, for example for a system call; `None` if the
    /// thread runs Java code.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the thread has exited.
    pub(crate) fn last_java_frame(
        &self,
        pages: &mut Pages<'_>,
        thread: Addr,
    ) -> Result<Option<JavaFrame>> {
        java_threads::last_java_frame(pages, &self.layout, thread)
    }

    /// Returns the addresses of the stack of a Java thread.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the thread has exited.
    pub(crate) fn stack(&self, thread: Addr) -> Result<Range<Addr>> {
        java_threads::stack(&self.memory, &self.layout, thread)
    }

    /// Returns its Java threads, with their states and the objects that they wait for.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub fn java_threads(&self) -> Result<Vec<JavaThread>> {
        java_threads::read(&self.memory, &self.layout).map(java_threads::Found::counted)
    }

    /// Returns its Java threads like [`Self::java_threads`], but does not count those that are left out for lack of memory.
    /// For further reads of the same dump.
    ///
    /// # Errors
    /// The errors of [`Self::java_threads`].
    pub(crate) fn java_threads_uncounted(&self) -> Result<Vec<JavaThread>> {
        Ok(java_threads::read(&self.memory, &self.layout)?.threads)
    }

    /// Returns a reader of what the BPF side needs to read the objects that threads wait for.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub(crate) fn awaited_reader(&self) -> Result<AwaitedReader> {
        java_threads::awaited_reader(&self.memory, &self.layout)
    }

    /// Returns the monitors that threads hold. Each thread is given by the address of its JavaThread and its frames,
    /// innermost first, and must not run meanwhile.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub(crate) fn held_monitors(
        &self,
        stacks: &[(Addr, Vec<FrameState>)],
    ) -> Result<Vec<Vec<HeldMonitor>>> {
        java_threads::held(&self.memory, &self.layout, stacks)
    }

    /// Searches its heap for the ownable synchronizers that platform threads own. The search takes about half a second for
    /// each gigabyte in use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for ZGC and CMS, [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has
    /// exited.
    pub fn owned_synchronizers(&self) -> Result<OwnedSynchronizers> {
        java_threads::owned(&self.memory, &self.layout)
    }

    /// Returns a reader of objects in its heap.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field.
    pub fn objects(&self) -> Result<Objects> {
        Objects::new(&self.memory, &self.layout)
    }

    /// Counts the objects in a range of its heap by class.
    ///
    /// # Errors
    /// [`Error::Layout`] if the range does not consist of objects up to its exact end,
    /// [`Error::Memory`] if it is not mapped.
    pub(crate) fn count_objects<'a>(
        &self,
        objects: &'a mut Objects,
        start: Addr,
        size: u64,
    ) -> Result<impl Iterator<Item = (Addr, ClassCount)> + use<'a, '_>> {
        objects.count(&self.memory, start, size)
    }

    /// Returns the Symbol of a class's name.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no class at the address.
    pub(crate) fn class_symbol(&self, layout: &ClassLayout, klass: Addr) -> Result<Addr> {
        layout.name_of(&self.memory, klass)
    }

    /// Returns the bytes of a Symbol, truncated to the maximum that is read, and its full length.
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no Symbol at the address.
    pub fn symbol(&self, layout: &ClassLayout, symbol: Addr) -> Result<(Vec<u8>, u32)> {
        layout.symbol(&self.memory, symbol)
    }

    /// Returns the instance sizes of its classes, by the Symbols of the class names.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`].
    pub(crate) fn instance_sizes(&self) -> Result<HashMap<Addr, u64>> {
        classes::instance_sizes(&self.memory, &self.layout)
    }

    /// Reads a 32-bit number in its memory.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub(crate) fn u32_at(&self, addr: Addr) -> Result<u32> {
        self.memory.u32(addr)
    }

    /// Returns a flag's current value; `None` if this JVM has no such flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        Flags::read(&self.memory, &self.layout).ok()?.flag_bool(&self.memory, name)
    }
}

fn vm_string(memory: &Memory, layout: &Layout, item: Item) -> Result<String> {
    let text = memory.pointer(layout.address(item)?)?;
    memory.c_string(text, 512)
}

/// Returns the JDK's feature release: 17 for `17.0.9+9`, and 8 for `25.352-b08`, because JDK 8 numbers its VM
/// 25.
fn major(release: &str) -> u32 {
    let number = release.split(|c: char| !c.is_ascii_digit()).next();
    match number.and_then(|n| n.parse().ok()).unwrap_or(0) {
        25 if release.contains("-b") => 8,
        other => other,
    }
}

/// Reduces `OpenJDK 64-Bit Server VM (17.0.9+9) for linux-amd64 JRE ...` to the part
/// that identifies the build.
fn product(info: &str, release: &str) -> String {
    let name = info.split(" (").next().unwrap_or_default();
    let text = format!("{name} {release}");
    clean::name(text.trim()).into_owned()
}

/// Returns the performance data and their address; `None` if there are none, or they are incomplete.
pub(super) fn perf_data(memory: &Memory, layout: &Layout) -> Result<Option<(Addr, PerfData)>> {
    let start = memory.pointer(layout.address(Item::PerfStart)?)?;
    let capacity = memory.u64(layout.address(Item::PerfCapacity)?)?;
    if start == Addr(0) {
        return Ok(None);
    }
    if capacity > MAX_PERF_DATA {
        return Err(Error::PerfData { what: "the buffer exceeds 4 MiB".into() });
    }
    let bytes = memory.read(start, capacity as usize)?;
    let data = PerfData::parse(&bytes)?;
    // The JVM adds entries while it starts; `sun.gc.lastCause` is among the last.
    Ok(data.offset("sun.gc.lastCause").is_some().then_some((start, data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_is_parsed_from_the_vm_version() {
        assert_eq!(major("17.0.9+9"), 17);
        assert_eq!(major("25.352-b08"), 8);
        assert_eq!(major("25.0.2+10-LTS"), 25);
        assert_eq!(major(""), 0);
    }

    #[test]
    fn product_combines_vm_name_and_version() {
        let info = "OpenJDK 64-Bit Server VM (17.0.9+9) for linux-amd64 JRE (17.0.9+9), built on";
        assert_eq!(product(info, "17.0.9+9"), "OpenJDK 64-Bit Server VM 17.0.9+9");
        assert_eq!(product("", ""), "");
    }
}
