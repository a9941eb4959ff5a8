//! A live JVM as the walker's source, by what the tools themselves know of it: its code cache's
//! layout, its mappings and their unwind tables.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    io,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use jvmprobe_tests::load::Load;
use libjvmprobe::{
    Pid,
    bpf::walker::MappingEntry,
    elf::{ElfFile, Segments},
    hotspot::{HotSpot, walking::JvmLayout},
    process::{
        Target,
        code::{CodeMaps, FileCache, Mapping},
    },
    stack::{namer::StackNamer, native::Files, raw::RawStack},
    unwind::{Row, UnwindTable},
};
use walk_harness::{
    harness::{self, Blob, Source, Stack, Start},
    recording::{LINE, Recording, WHOLE},
};

const PAGE: u64 = 4096;
type Page = Box<[u8; PAGE as usize]>;

/// A JVM.
pub struct Live {
    pub pid: u32,
    memory: File,
    hotspot: HotSpot,
    jvm: JvmLayout,
    names: StackNamer,
    files: Files,
    maps: CodeMaps,
    cache: FileCache,
    mappings: Vec<MappingEntry>,
    /// By the number of a file's descriptor.
    tables: HashMap<i32, Option<(usize, u64, Segments)>>,
    rows: Vec<Vec<Row>>,
    /// Memory that was read since the thread has moved.
    pages: RefCell<HashMap<u64, Option<Page>>>,
    /// What the walker reads goes here while there is one.
    trace: Option<Recording>,
}

impl Live {
    pub fn new(load: &Load) -> Result<Self, Box<dyn std::error::Error>> {
        let pid = load.pid();
        let target = Target::open(Pid(pid))?;
        let hotspot = HotSpot::read(&target)?;
        let mut files = Files::default();
        let mut live = Self {
            pid,
            memory: File::open(format!("/proc/{pid}/mem"))?,
            jvm: hotspot.walking()?,
            names: StackNamer::alone(Pid(pid), &hotspot, &mut files, false)?,
            hotspot,
            files,
            maps: CodeMaps::default(),
            cache: FileCache::default(),
            mappings: Vec::new(),
            tables: HashMap::new(),
            rows: Vec::new(),
            pages: RefCell::default(),
            trace: None,
        };
        live.refresh()?;
        Ok(live)
    }

    /// Looks at what is mapped.
    pub fn refresh(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        self.maps.refresh(Pid(self.pid), &self.cache)?;
        let mut entries = vec![MappingEntry::default()];
        for mapping in self.maps.iter() {
            let Some(file) = &mapping.file else { continue };
            let rows = &mut self.rows;
            let table = self.tables.entry(file.as_raw_fd()).or_insert_with(|| {
                let elf = ElfFile::open(file.reopen().ok()?).ok()?;
                let table = UnwindTable::read(&elf).ok()?;
                rows.push(table.rows().to_vec());
                (!table.rows().is_empty())
                    .then(|| (rows.len() - 1, table.base().0, elf.into_segments()))
            });
            let Some((number, base, segments)) = table else { continue };
            let Some(bias) = segments.load_bias(mapping.start, mapping.offset) else { continue };
            entries.push(MappingEntry {
                start: mapping.start.0,
                end: mapping.end.0,
                bias: bias.wrapping_add(*base),
                table: *number as u32,
                rows: rows[*number].len() as u32,
            });
        }
        entries[0].start = entries.len() as u64 - 1;
        self.mappings = entries;
        Ok(())
    }

    pub fn walk(&mut self, start: &Start) -> Stack {
        harness::walk(self, start)
    }

    pub fn trail(&mut self, start: &Start) -> Vec<u64> {
        harness::trail(self, start)
    }

    pub fn blob(&mut self, addr: u64) -> Blob {
        harness::blob(self, addr)
    }

    /// What every method calls that is about to be entered in a loop, by on-stack replacement;
    /// what is called when interpreted frames have been made of compiled ones; and what marks the
    /// frames of which they will be.
    pub fn turning_points(&self) -> Vec<u64> {
        const FUNCTIONS: [&str; 4] = [
            "_ZN13SharedRuntime19OSR_migration_beginE",
            "_ZN14Deoptimization13unpack_framesE",
            // Of JDK 17, and since.
            "_ZN14Deoptimization22deoptimize_all_markedE",
            "_ZN19DeoptimizationScope17deoptimize_markedE",
        ];
        let is_jvm = |mapping: &&Mapping| mapping.module.to_string() == "libjvm.so";
        let found = self.maps.iter().find(is_jvm).and_then(|mapping| {
            let elf = ElfFile::open(mapping.file.as_ref()?.reopen().ok()?).ok()?;
            let symbols = elf.symbols().ok()?;
            let bias = elf.into_segments().load_bias(mapping.start, mapping.offset)?;
            let of = |name| Some(symbols.find_prefix(name)?.value.0.wrapping_add(bias));
            Some(FUNCTIONS.into_iter().filter_map(of).collect())
        });
        found.unwrap_or_default()
    }

    /// Where code begins that makes interpreted frames of compiled ones, and, apart, where methods
    /// are entered in a loop.
    pub fn rare(&mut self) -> (Vec<u64>, Vec<u64>) {
        const DEOPT: u64 = 5;
        // So much of a heap is looked at: it is filled from its beginning.
        const FIRST: u64 = 4 << 20;
        let (mut making, mut loops) = (Vec::new(), Vec::new());
        for heap in self.jvm.heaps.into_iter().take(self.jvm.heap_count as usize) {
            let mut at = heap.low;
            while at < heap.high.min(heap.low + FIRST) {
                let blob = self.blob(at);
                at += 1 << heap.segment_log;
                if blob.kind == 0 || blob.begin < at - (1 << heap.segment_log) - 4096 {
                    continue;
                }
                if blob.kind == DEOPT && !making.contains(&blob.begin) {
                    making.push(blob.begin);
                } else if blob.kind == 1
                    && blob.osr_entry > blob.begin
                    && blob.osr_entry < blob.end
                    && !loops.contains(&blob.osr_entry)
                {
                    loops.push(blob.osr_entry);
                }
            }
        }
        (making, loops)
    }

    /// Whether a method will return to this address and find itself deoptimised.
    pub fn is_handler(&mut self, addr: u64) -> bool {
        const METHOD: u64 = 1;
        const HANDLER_BYTES: u64 = 32;
        let blob = self.blob(addr);
        blob.kind == METHOD && addr.wrapping_sub(blob.deopt_handler) < HANDLER_BYTES
    }

    pub fn is_interpreter(&self, addr: u64) -> bool {
        (self.jvm.interpreter_low..self.jvm.interpreter_high).contains(&addr)
    }

    pub fn is_code(&self, addr: u64) -> bool {
        let heaps = self.jvm.heaps.iter().take(self.jvm.heap_count as usize);
        heaps.into_iter().any(|heap| (heap.low..heap.high).contains(&addr))
    }

    /// The name of the file that is mapped there.
    pub fn module(&self, addr: u64) -> String {
        let found = self.maps.find(libjvmprobe::Addr(addr));
        found.map_or("?".into(), |mapping| mapping.module.to_string())
    }

    /// The names of a stack, outermost first.
    pub fn names(&mut self, stack: &Stack) -> Vec<String> {
        let head = [1, stack.unloads, stack.end, stack.frames.len() as u64];
        let words = head.iter().chain(&stack.frames);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let Some(raw) = RawStack::decode(&bytes) else { return Vec::new() };
        let frames = self.names.name_alone(&self.hotspot, &mut self.files, &raw);
        frames.iter().map(libjvmprobe::stack::Frame::folded).collect()
    }

    /// The thread has moved: its memory is another one.
    pub fn moved(&self) {
        self.pages.borrow_mut().clear();
    }

    /// Reads memory, by way of the pages that were read since the thread has moved.
    fn fill(&self, addr: u64, to: &mut [u8]) -> bool {
        // Above that is the kernel, and file positions are signed.
        if addr >> 47 != 0 {
            return false;
        }
        let mut pages = self.pages.borrow_mut();
        let mut at = addr;
        let mut left = to;
        while !left.is_empty() {
            let start = at & !(PAGE - 1);
            let page = pages.entry(start).or_insert_with(|| {
                let mut page: Page = Box::new([0; PAGE as usize]);
                self.memory.read_exact_at(&mut *page, start).ok()?;
                Some(page)
            });
            let Some(page) = page else { return false };
            let from = &page[(at - start) as usize..];
            let size = from.len().min(left.len());
            let (now, later) = left.split_at_mut(size);
            now.copy_from_slice(&from[..size]);
            left = later;
            at += size as u64;
        }
        true
    }

    pub fn bytes<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(addr, &mut bytes).then_some(bytes)
    }

    pub fn word(&self, addr: u64) -> u64 {
        self.bytes(addr).map_or(0, u64::from_ne_bytes)
    }

    /// Walks once more, and records what is read on the way.
    pub fn record(&mut self, start: &Start) -> io::Result<Recording> {
        self.trace = Some(Recording { start: *start, jvm: self.jvm, ..Recording::default() });
        let stack = self.walk(start);
        let traced = self.trace.take();
        let mut recording = traced.ok_or_else(|| io::Error::other("nothing was traced"))?;
        recording.stack = stack;
        Ok(recording)
    }
}

impl Source for Live {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        // The stack is read word by word then: only what is looked at gets recorded.
        if to.len() > WHOLE || !self.fill(addr, to) {
            return false;
        }
        if let Some(trace) = &mut self.trace {
            let first = addr & !(LINE as u64 - 1);
            // A line more: a later walker may read a little further.
            for at in (first..addr + (to.len() + LINE) as u64).step_by(LINE) {
                let mut line = [0; LINE];
                let start = at & !(PAGE - 1);
                // It has just been read.
                let pages = self.pages.borrow();
                if let Some(Some(page)) = pages.get(&start) {
                    line.copy_from_slice(&page[(at - start) as usize..][..LINE]);
                    trace.lines.insert(at, line);
                }
            }
        }
        true
    }

    fn mapping(&mut self, index: u32) -> Option<MappingEntry> {
        let found = self.mappings.get(index as usize).copied()?;
        if let Some(trace) = &mut self.trace {
            trace.mappings.insert(index, found);
        }
        Some(found)
    }

    fn row(&mut self, table: u32, index: u32) -> Option<Row> {
        let found = self.rows.get(table as usize)?.get(index as usize).copied()?;
        if let Some(trace) = &mut self.trace {
            trace.rows.insert((table, index), found);
        }
        Some(found)
    }

    fn jvm(&self) -> JvmLayout {
        self.jvm
    }
}
