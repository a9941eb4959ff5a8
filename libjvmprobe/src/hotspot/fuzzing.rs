//! A fake JVM for the fuzzers: a file in memory represents a process's memory. For each
//! input, this memory has the same tables at the same addresses, with the fuzzer's bytes in place of one
//! part.

use std::{
    collections::HashMap,
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    Addr, Pid, Vaddr,
    elf::ElfFile,
    hotspot::{
        HotSpot, boot_classes,
        buffers::BufferReader,
        build::Build,
        classes::{ClassLayout, instance_sizes, java_name},
        code::{
            Inlining,
            cache::{self, Blobs},
            fill,
            heap::heaps,
            monitors::MonitorLookup,
        },
        collector::Collector,
        compressed::Encoding,
        flags::Flags,
        heap,
        instance::perf_data,
        java_threads::{self, FrameState, reader::Reader},
        loaded::{self, Loaded, Source},
        memory_pools,
        methods::{self, Methods},
        native_locks,
        objects::Objects,
        pages::Pages,
        resolved::Layout,
        testing::{CODE_FIELDS, Image, symbol, u32s, words},
        threads::{self, ThreadLayout},
        virtual_threads, walking,
    },
    process::memory::Memory,
};

/// Address at which the fake memory begins.
const BASE: u64 = 0x10_0000;

/// The fake JVM before a fuzzer has changed it.
pub(crate) struct Fake {
    bytes: Vec<u8>,
    symbols: HashMap<&'static str, Addr>,
    layout: Layout,
    /// Address of the code of its only compiled method, and address of this method's Method.
    code: Addr,
    method: Addr,
    parts: [Range<usize>; 5],
}

/// The part of the memory that a fuzzer replaces: one of several consecutive parts, or all of it.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Classes, methods, their constants and lines.
    Methods,
    /// Heaps, the segment map, a block with a method in it.
    CodeCache,
    /// Debug information: scopes, PcDescs, pointers to methods.
    Scopes,
    /// A range of the Java heap.
    Heap,
    /// The complete memory, including threads, flags and vmStructs.
    All,
}

impl Fake {
    pub(crate) fn get() -> &'static Self {
        static FAKE: OnceLock<Fake> = OnceLock::new();
        FAKE.get_or_init(fake)
    }

    /// Returns a seed for a fuzzer: the unchanged part.
    pub(crate) fn part(&self, part: Part) -> &[u8] {
        &self.bytes[self.parts[part as usize].clone()]
    }

    /// Returns the memory with the fuzzer's bytes in place of a part of it. Bytes beyond the part's length
    /// overwrite the following parts.
    fn memory(&self, part: Part, given: &[u8]) -> Memory {
        thread_local! {
            static FILE: File = memfd_create("fake", MemfdFlags::CLOEXEC).unwrap().into();
        }
        let begin = self.parts[part as usize].start;
        let mut bytes = self.bytes.clone();
        let len = given.len().min(bytes.len() - begin);
        bytes[begin..begin + len].copy_from_slice(&given[..len]);
        FILE.with(|file| {
            file.write_all_at(&bytes, BASE).unwrap();
            Memory::of_file(file.try_clone().unwrap())
        })
    }
}

/// All private statics have the same address, at the beginning of the fake memory.
fn private(_: &str) -> Option<Vaddr> {
    Some(Vaddr(BASE))
}

/// Builds a JVM with the structure of JDK 17.
fn fake() -> Fake {
    let mut fake = Image::based_at(BASE);
    let image = &mut fake;
    let mut parts = vec![image.end()];

    // Methods `A.b(int)` and `a.Inner.c(String, long[])`, each with lines, of classes in one loader.
    let (mut methods, mut of_loader) = (Vec::new(), Vec::new());
    let mut next_class = 0;
    for (class, name, descriptor) in
        [("A", "b", "(I)V"), ("a/Inner", "c", "(Ljava/lang/String;[J)V")]
    {
        let class_name = symbol(image, class);
        // Words of a class: name, layout helper, next class, loader, mirror, methods, constants, state,
        // thread; the others are zero.
        let class = image.put(&[class_name.0, 33, next_class, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        next_class = class.0;
        let (name, descriptor) = (symbol(image, name), symbol(image, descriptor));
        let file = symbol(image, "A.java");
        // Words of a ConstantPool: class, index of the source file and length, then entries 0 to 3.
        let pool = image.put(&[class.0, u32s(3, 4), 0, name.0, descriptor.0, file.0]);
        // Words of a ConstMethod: pool, then flags, code size and indexes of name and descriptor, then its
        // own size. The bytecodes follow the ConstMethod.
        let indexes = u64::from(1_u16) | 8 << 16 | 1 << 32 | 2 << 48;
        let const_method = image.put(&[pool.0, indexes, 8]);
        image.put(&words(&[0xff, 0, 20, 3 << 3 | 2, 5 << 3 | 1, 0]));
        // Seven counted calls; no code, no profile.
        let counters = image.put(&[7 << 1]);
        let method = image.put(&[const_method.0, 0, counters.0, 0, 0, 1, 0]);
        let list = image.put(&[1, method.0]);
        image.overwrite(Addr(class.0 + 40), list.0);
        image.overwrite(Addr(class.0 + 48), pool.0);
        methods.push(method);
        of_loader.push(class);
    }
    let loader = image.put(&[0, next_class, 0, 0, 0, 0, 0, 0]);
    for class in of_loader {
        image.overwrite(Addr(class.0 + 24), loader.0);
    }
    let method = methods[0];
    parts.push(image.end());

    // A block of 16 segments of 16 bytes: header, blob of ten words, code; then a stub.
    let (nmethod, stub) = (image.text("nmethod"), image.text("StubRoutines (1)"));
    let block = image.put(&[16, 1]);
    let code = Addr(block.0 + 96);
    let blob = Addr(block.0 + 16);
    // Words of the blob: name, sizes, code, method. The words of its debug information are set below.
    image.put(&[nmethod.0, u32s(240, 240), code.0, method.0, 0, 0, 0, u32s(7, 0), 0, 0]);
    image.put(&words(&[0x90, 0xe8, 1, 2, 3, 4, 0x41, 0x85, 2, 0xc3]));
    image.put(&[0x9090_9090_9090_9090; 18]);
    let stub_block = image.put(&[4, 1]);
    image.put(&[stub.0, u32s(48, 48), stub_block.0 + 48, 0, 0, 0]);
    let segmap =
        image.put(&[0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0xffff_ffff_0302_0100, u64::MAX]);
    let code_heap = image.put(&[block.0, block.0 + 512, segmap.0, u32s(4, 0)]);
    let elements = image.put(&[code_heap.0]);
    let array = image.put(&[u32s(1, 1), elements.0]);
    parts.push(image.end());

    // Scopes (sender, method, bci), PcDescs (pc, scope), pointers to methods.
    let scopes = image.put(&words(&[0, 0, 1, 4, 1, 2, 3, 0]));
    let descs = [(u32::MAX, 0), (8, 1), (20, 4), (40, 1), (1000, 0)];
    let descs: Vec<u64> = descs.into_iter().flat_map(|(pc, scope)| [u32s(pc, scope), 0]).collect();
    let pcs = image.put(&descs);
    let metadata = image.put(&[methods[0].0, methods[1].0]);
    parts.push(image.end());
    let [pcs_at, metadata_at] = [pcs, metadata].map(|addr| (addr.0 - blob.0) as u32);
    for (word, value) in
        [scopes.0, u32s(metadata_at, 0), u32s(pcs_at, metadata_at)].into_iter().enumerate()
    {
        image.overwrite(Addr(blob.0 + 32 + word as u64 * 8), value);
    }

    // Two plain objects, an array of five ints, a Class of six words.
    let classes = [(33, "a/B"), (0xc018_0a02, "[I"), (112, "java/lang/Class")].map(
        |(helper, name): (u64, &str)| {
            let name = symbol(image, name);
            image.put(&[name.0, helper, 0]).0
        },
    );
    let java_heap = image.end();
    image.put(&[1, classes[0], 0, 0, 1, classes[0], 0, 0]);
    image.put(&[1, classes[1], 5, 0, 0, 0, 1, classes[2], 0, 6, 0, 0]);
    parts.push(image.end());
    let java_heap = (java_heap.0 - BASE) as usize..(parts[4].0 - BASE) as usize;

    tables(image, loader, array, block);
    let (mut bytes, symbols) = fake.into_parts();
    // Memory consists of complete pages.
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    let begin = |n: usize| (parts[n].0 - BASE) as usize;
    let ranges =
        [begin(0)..begin(1), begin(1)..begin(2), begin(2)..begin(3), java_heap, 0..bytes.len()];
    let mut fake = Fake { bytes, symbols, layout: Layout::default(), code, method, parts: ranges };
    let lookup = |name: &str| fake.symbols.get(name).copied();
    let memory = fake.memory(Part::All, &[]);
    fake.layout = Layout::read(&memory, 0, lookup, private, Arc::new).unwrap().of_jdk(17);
    fake
}

/// Adds threads, flags, and the vmStructs entries of everything.
fn tables(image: &mut Image, loader: Addr, array: Addr, interpreter: Addr) {
    // The thread's Java object overlaps its JavaThread.
    let thread = image.end();
    let handle = Addr(thread.0 + 48);
    image.put(&[0, 1000, 64, 8, handle.0, thread.0, thread.0, thread.0]);
    let list = image.put(&[thread.0]);
    let list = image.put(&[1, list.0]);
    let on = image.put(&[1, 8]);
    let flags: Vec<u64> = [("UseG1GC", 0, on.0), ("ObjectAlignmentInBytes", 4, on.0 + 8)]
        .into_iter()
        .flat_map(|(name, kind, at)| [at, image.text(name).0, kind])
        .collect();
    let flags = image.put(&flags);
    let queue = image.put(&[interpreter.0, 0x200]);
    let perf =
        image.put(&[u64::from_ne_bytes([0xca, 0xfe, 0xc0, 0xc0, 1, 2, 0, 1]), 0, 0, u32s(32, 0)]);
    // The fields of all objects that describe a heap lie in this range, and they point to its beginning.
    let heap = image.end();
    image.put(&[heap.0; 16]);
    let statics = [
        ("CodeCache", "_heaps", array.0),
        ("AbstractInterpreter", "_code", queue.0),
        ("ClassLoaderDataGraph", "_head", loader.0),
        ("ThreadsSMRSupport", "_java_thread_list", list.0),
        ("JVMFlag", "flags", flags.0),
        ("JVMFlag", "numFlags", 2),
        ("java_lang_Class", "_oop_size_offset", 24),
        ("Universe", "_collectedHeap", heap.0),
        ("PerfMemory", "_start", perf.0),
        ("PerfMemory", "_capacity", 32),
        ("ZNUMA", "_count", 1),
    ];
    for (class, name, value) in statics {
        let at = image.put(&[value]);
        image.static_field(class, name, at);
    }
    let fields = [
        ("CodeBlob", "_frame_size", 64),
        ("CodeBlob", "_frame_complete_offset", 68),
        ("nmethod", "_exception_offset", 44),
        ("CompiledMethod", "_deopt_handler_begin", 60),
        ("nmethod", "_verified_entry_point", 16),
        ("nmethod", "_osr_entry_point", 16),
        ("nmethod", "_orig_pc_offset", 64),
        ("ConstantPool", "_source_file_name_index", 8),
        ("Klass", "_layout_helper", 8),
        ("Klass", "_next_link", 16),
        ("Klass", "_class_loader_data", 24),
        ("Klass", "_java_mirror", 32),
        ("InstanceKlass", "_methods", 40),
        ("InstanceKlass", "_constants", 48),
        ("InstanceKlass", "_init_state", 56),
        ("InstanceKlass", "_init_thread", 64),
        ("Klass", "_vtable_len", 72),
        ("InstanceKlass", "_itable_len", 76),
        ("InstanceKlass", "_annotations", 80),
        ("InstanceKlass", "_array_klasses", 88),
        ("ConstantPool", "_length", 12),
        ("ConstantPool", "_tags", 16),
        ("Array<u1>", "_data", 4),
        ("Array<int>", "_length", 0),
        ("Array<Method*>", "_data", 8),
        ("ClassLoaderData", "_has_class_mirror_holder", 16),
        ("Method", "_method_data", 8),
        ("Method", "_method_counters", 16),
        ("Method", "_code", 24),
        ("Method", "_access_flags", 40),
        ("Method", "_flags", 44),
        ("Method", "_intrinsic_id", 46),
        ("MethodCounters", "_invocation_counter", 0),
        ("MethodData", "_tenure_traps", 24),
        ("ConstMethod", "_constMethod_size", 16),
        ("ClassLoaderData", "_next", 0),
        ("ClassLoaderData", "_klasses", 8),
        ("StubQueue", "_stub_buffer", 0),
        ("StubQueue", "_buffer_limit", 8),
        ("Thread", "_allocated_bytes", 8),
        ("Thread", "_tlab", 16),
        ("ThreadLocalAllocBuffer", "_start", 0),
        ("ThreadLocalAllocBuffer", "_top", 8),
        ("ThreadLocalAllocBuffer", "_desired_size", 24),
        ("JavaThread", "_threadObj", 32),
        ("JavaThread", "_osthread", 40),
        ("OSThread", "_thread_id", 8),
        ("JavaThread", "_current_pending_monitor", 48),
        ("JavaThread", "_current_waiting_monitor", 56),
        ("JavaThread", "_stack_base", 16),
        ("JavaThread", "_stack_size", 24),
        ("ObjectMonitor", "_object", 32),
        ("ObjectMonitor", "_owner", 8),
        ("Klass", "_super", 16),
        ("InstanceKlass", "_fields", 40),
        ("InstanceKlass", "_java_fields_count", 56),
        ("Array<u2>", "_data", 4),
        ("ThreadsList", "_length", 0),
        ("ThreadsList", "_threads", 8),
        ("JVMFlag", "_addr", 0),
        ("JVMFlag", "_name", 8),
        ("JVMFlag", "_type", 16),
        // Heaps of the collectors, all with the same offsets.
        ("GenCollectedHeap", "_young_gen", 0),
        ("GenCollectedHeap", "_old_gen", 8),
        ("DefNewGeneration", "_eden_space", 16),
        ("DefNewGeneration", "_from_space", 24),
        ("TenuredGeneration", "_the_space", 32),
        ("ContiguousSpace", "_top", 40),
        ("ContiguousSpace", "_bottom", 48),
        ("ContiguousSpace", "_end", 56),
        ("ConcurrentMarkSweepGeneration", "_cmsSpace", 64),
        ("CompactibleFreeListSpace", "_dictionary", 72),
        ("CompactibleFreeListSpace", "_smallLinearAllocBlock", 80),
        ("CompactibleFreeListSpace", "_indexedFreeList[0]", 0),
        ("AFLBinaryTreeDictionary", "_total_size", 8),
        ("LinearAllocBlock", "_word_size", 16),
        ("AdaptiveFreeList<FreeChunk>", "_count", 24),
        ("Space", "_bottom", 48),
        ("Space", "_end", 56),
        ("ParallelScavengeHeap", "_young_gen", 0),
        ("ParallelScavengeHeap", "_old_gen", 8),
        ("PSYoungGen", "_eden_space", 16),
        ("PSYoungGen", "_from_space", 24),
        ("PSYoungGen", "_to_space", 32),
        ("PSYoungGen", "_max_gen_size", 40),
        ("PSOldGen", "_object_space", 32),
        ("MutableSpace", "_top", 40),
        ("MutableSpace", "_bottom", 48),
        ("MutableSpace", "_end", 56),
        ("G1CollectedHeap", "_summary_bytes_used", 96),
        ("G1CollectedHeap", "_g1mm", 0),
        ("G1MonitoringSupport", "_eden_space_used", 8),
        ("G1MonitoringSupport", "_eden_space_committed", 16),
        ("G1MonitoringSupport", "_survivor_space_used", 24),
        ("G1MonitoringSupport", "_survivor_space_committed", 32),
        ("G1MonitoringSupport", "_old_gen_used", 40),
        ("G1MonitoringSupport", "_old_gen_committed", 48),
        ("HeapRegion", "_top", 40),
        ("HeapRegion", "_bottom", 48),
        ("ZCollectedHeap", "_heap", 0),
        ("ZHeap", "_page_allocator", 8),
        ("ZPageAllocator", "_partitions", 16),
        ("ZPerNUMAZPartition", "_addr", 24),
        ("ZPartition", "_used", 32),
        ("ShenandoahHeap", "_used", 40),
        ("EpsilonHeap", "_space", 48),
        ("CollectedHeap", "_total_collections", 56),
        ("CollectedHeap", "_reserved", 64),
        ("MemRegion", "_start", 0),
        ("MemRegion", "_word_size", 8),
    ];
    for (class, field, offset) in CODE_FIELDS.into_iter().chain(fields) {
        image.field(class, field, offset);
    }
    let types = [
        ("HeapBlock", 16),
        ("HeapBlock::Header", 16),
        ("GrowableArrayBase", 8),
        ("PcDesc", 16),
        ("ConstMethod", 24),
        ("ConstantPool", 16),
        ("JVMFlag", 24),
        ("InstanceKlass", 96),
        ("ClassLoaderData", 64),
        ("Method", 56),
        ("MethodData", 64),
        ("AdaptiveFreeList<FreeChunk>", 40),
    ];
    for (class, size) in types {
        image.class(class, size);
    }
    image.finish();
}

/// Reads everything that the library can read with a JVM's tables.
pub(crate) fn everything(given: &[u8]) {
    let fake = Fake::get();
    let memory = fake.memory(Part::All, given);
    let lookup = |name: &str| fake.symbols.get(name).copied();
    let Ok(layout) = Layout::read(&memory, 0, lookup, private, Arc::new) else { return };
    let layout = layout.of_jdk(17);
    if let Ok(flags) = Flags::read(&memory, &layout) {
        for name in ["UseG1GC", "ObjectAlignmentInBytes"] {
            let _ = (flags.flag_bool(&memory, name), flags.flag_u64(&memory, name));
            let _ = flags.flag_string(&memory, name);
        }
        let _ = Collector::from_flags(&memory, &flags, 17);
    }
    for collector in [
        Collector::Serial,
        Collector::Parallel,
        Collector::Cms,
        Collector::G1,
        Collector::Z,
        Collector::GenerationalZ,
        Collector::Shenandoah,
        Collector::Epsilon,
    ] {
        let _ = heap::used(&memory, &layout, collector);
        let _ = memory_pools::fuzz(&mut Pages::scattered(&memory), &layout, collector);
    }
    if let Ok(Some((base, data))) = perf_data(&memory, &layout) {
        let _ = heap::used_at_gc_end(base, &data, Collector::Serial);
    }
    let _ = ThreadLayout::read(&layout);
    let _ = threads::read(&memory, &layout, &mut threads::ThreadArray::default());
    let _ = threads::have_begun(&memory, &layout);
    let until = Instant::now() + Duration::from_secs(1);
    let _ = Reader::new(&memory, &layout).and_then(|mut reader| reader.names(until, |_| true));
    let _ = java_threads::read(&memory, &layout);
    let frames =
        (0..64).map(|word| FrameState::Interpreted(Addr(fake.code.0 + 8 * word))).collect();
    let _ = java_threads::held(&memory, &layout, &[(fake.code, frames)]);
    let _ = java_threads::owned(&memory, &layout);
    if let Ok(mut reader) = java_threads::awaited_reader(&memory, &layout) {
        let _ = (reader.fields(), reader.threads(), reader.pools());
    }
    let _ = native_locks::read(&memory, Addr(BASE));
    let classes = Arc::new(boot_classes::BootClasses::default());
    let _ = BufferReader::new(&memory, &layout, &classes)
        .and_then(|mut reader| reader.read(Duration::from_secs(1)));
    let max = virtual_threads::MAX_VIRTUAL_THREADS;
    let _ = virtual_threads::read(&memory, &layout.of_jdk(21), &classes, max);
    let _ = instance_sizes(&memory, &layout);
    for major in [8, 17] {
        if let Ok(found) = walking::layout(&memory, &layout.of_jdk(major)) {
            assert!(found.blob_bytes <= walking::MAX_BLOB_BYTES);
        }
    }
    read_code(&memory, &layout, fake.code);
    read_heap(&memory, &layout);
    look_up(memory, layout);
}

/// Looks up code and methods by their addresses, as a profile does.
fn look_up(memory: Memory, layout: Layout) {
    static BUILD: OnceLock<Arc<Build>> = OnceLock::new();
    let build = BUILD.get_or_init(|| {
        // Any file will do, because the fake JVM has no symbols.
        let elf = ElfFile::open(File::open("/proc/self/exe").unwrap()).unwrap();
        Arc::new(Build::read(elf).unwrap())
    });
    let fake = Fake::get();
    let major = layout.major;
    let mut hotspot = HotSpot::new(Pid(1), memory, layout, Arc::clone(build), 0);
    hotspot.layout.major = major;
    let addrs: Vec<_> = (0..32).map(|word| Addr(fake.code.0 + 4 * word)).collect();
    if let Ok(mut lookup) = hotspot.lookup() {
        let _ = lookup.read_origins(&hotspot);
        let _ = lookup.look_up(&hotspot, &addrs, &[fake.method, Addr(BASE)], 0);
    }
}

/// Reads all code, and the code at an address.
pub(crate) fn code(part: Part, given: &[u8]) {
    let fake = Fake::get();
    read_code(&fake.memory(part, given), &fake.layout, fake.code);
}

fn read_code(memory: &Memory, layout: &Layout, code: Addr) {
    let addrs = [code, Addr(code.0 + 20), Addr(code.0 + 60)];
    for major in [8, 17] {
        let _ = fill::read(memory, &layout.of_jdk(major));
    }
    for (major, inlining) in [(17, Inlining::Everywhere), (21, Inlining::At(&addrs))] {
        let layout = layout.of_jdk(major);
        let _ = cache::read(memory, &layout, inlining);
        let pages = &mut Pages::sequential(memory);
        let (Ok(heaps), Ok(mut blobs), Ok(mut methods)) =
            (heaps(pages, &layout), Blobs::new(&layout, inlining), Methods::new(&layout))
        else {
            continue;
        };
        let found = pages.read_batched(&addrs, |pages, &addr| blobs.find(pages, &heaps, addr));
        let found: Vec<_> = found.into_iter().flatten().flatten().collect();
        for blob in &found {
            let _ = memory.words(&blobs.marks(blob));
        }
        pages.read_batched(&found, |pages, &blob| blobs.code(pages, &mut methods, blob).is_some());
        if let Ok(mut monitors) = MonitorLookup::new(pages, &layout) {
            // A debug record is found only by its exact address.
            for pc in (code.0..code.0 + 256).map(Addr) {
                let _ = monitors.at(pages, pc);
            }
        }
    }
}

/// Reads methods at three addresses. Only the first address has a method.
pub(crate) fn methods(given: &[u8]) {
    let fake = Fake::get();
    let memory = fake.memory(Part::Methods, given);
    for major in [17, 21] {
        let mut pages = Pages::scattered(&memory);
        let layout = fake.layout.of_jdk(major);
        let mut methods = Methods::new(&layout).unwrap();
        let _ = methods.read_origins(&layout);
        for at in [fake.method, Addr(fake.method.0 + 8), Addr(BASE)] {
            if let Some(info) = methods.get(&mut pages, at) {
                let _ = (info.line(-1), info.line(0), info.line(i32::MAX));
            }
        }
    }
}

/// Reads the loaded classes with their methods.
pub(crate) fn loaded(given: &[u8]) {
    let fake = Fake::get();
    let memory = fake.memory(Part::Methods, given);
    for major in [11, 17, 25] {
        let layout = fake.layout.of_jdk(major);
        let _ = loaded::count(&memory, &layout, None);
        let (inlined, unloads) = (vec![fake.method], Some(Addr(BASE)));
        let source = Source { memory: &memory, layout: &layout, inlined, unloads, pid: Pid(1) };
        let _ = source.read(Loaded::default(), |loaded, class| {
            // Each class has a loader, and no more methods than fit into this small memory.
            assert!(class.loader < loaded.loaders.len());
            assert!(class.methods.len() < fake.bytes.len());
            Ok(())
        });
    }
}

/// Decodes the line table of a method.
pub(crate) fn lines(given: &[u8]) {
    for major in [8, 25] {
        let _ = methods::line_table(given, Encoding::of_jdk(major));
    }
}

/// Counts the objects of a range of the heap.
pub(crate) fn objects(given: &[u8]) {
    let fake = Fake::get();
    read_heap(&fake.memory(Part::Heap, given), &fake.layout);
}

fn read_heap(memory: &Memory, layout: &Layout) {
    let range = &Fake::get().parts[Part::Heap as usize];
    let (start, size) = (Addr(BASE + range.start as u64), range.len() as u64);
    if let Ok(mut objects) = Objects::new(memory, layout) {
        for size in [size, size - 32, u64::MAX] {
            let _ = objects.count(memory, start, size).map(Iterator::count);
        }
    }
    if let Ok(classes) = ClassLayout::read(layout)
        && let Ok(name) = classes.name_of(memory, Addr(start.0 - 8))
        && let Ok((name, len)) = classes.symbol(memory, name)
    {
        let _ = java_name(&name, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_memory_is_read() {
        let fake = Fake::get();
        everything(fake.part(Part::All));
        let memory = fake.memory(Part::All, &[]);
        let (classes, layout) = (Arc::default(), &fake.layout);
        assert!(BufferReader::new(&memory, layout, &classes).is_ok());
        assert!(java_threads::awaited_reader(&memory, layout).unwrap().pools().is_ok());
        let pages = &mut Pages::scattered(&memory);
        for collector in [Collector::Serial, Collector::Parallel, Collector::Cms, Collector::G1] {
            let layout = &layout.of_jdk(if collector == Collector::Cms { 8 } else { 17 });
            let found = memory_pools::fuzz(pages, layout, collector).len();
            assert!(found >= 3, "{collector:?}: {found}");
        }
    }
}
