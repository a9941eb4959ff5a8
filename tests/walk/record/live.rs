//! A live JVM as the walker's source of data. The code cache's layout, the mappings and their
//! unwind tables are read by the tools' own code.

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
    harness::{self, Blob, Processor, Registers, Source, Stack},
    recording::{LINE, MAX_DIRECT_READ, Recording},
};

const PAGE: u64 = 4096;
type Page = Box<[u8; PAGE as usize]>;

/// A live JVM that the walker reads.
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
    /// Unwind table of each mapped file, by file descriptor.
    tables: HashMap<i32, Option<(usize, u64, Segments)>>,
    rows: Vec<Vec<Row>>,
    /// Pages read since the thread moved last.
    pages: RefCell<HashMap<u64, Option<Page>>>,
    /// Recording of everything that the walker reads, while one is being made.
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
            names: StackNamer::without_walker(Pid(pid), &hotspot, &mut files, false)?,
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

    /// Re-reads the mappings and their unwind tables.
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

    pub fn walk(&mut self, start: &Registers) -> Stack {
        harness::walk(Processor::OWN, self, start)
    }

    pub fn trail(&mut self, start: &Registers) -> Vec<u64> {
        harness::trail(self, start).iter().map(|frame| frame.ip).collect()
    }

    pub fn blob(&mut self, addr: u64) -> Blob {
        harness::blob(self, addr)
    }

    /// Returns the addresses of JVM functions that are called close to rarely executed code: before
    /// a method is entered by on-stack replacement, after interpreted frames have been created from
    /// compiled ones, and when frames are marked for deoptimisation.
    pub fn turning_points(&self) -> Vec<u64> {
        const FUNCTIONS: [&str; 4] = [
            "_ZN13SharedRuntime19OSR_migration_beginE",
            "_ZN14Deoptimization13unpack_framesE",
            // JDK 17 has the first of these two, later JDKs have the second.
            "_ZN14Deoptimization22deoptimize_all_markedE",
            "_ZN19DeoptimizationScope17deoptimize_markedE",
        ];
        let is_jvm = |mapping: &&Mapping| mapping.module.to_string() == "libjvm.so";
        let found = self.maps.iter().find(is_jvm).and_then(|mapping| {
            let elf = ElfFile::open(mapping.file.as_ref()?.reopen().ok()?).ok()?;
            // Debian's libjvm.so has its symbols in a file of another package.
            let elf = elf.with_installed_symbols();
            let symbols = elf.symbols().ok()?;
            let of = |name| Some(symbols.find_prefix(name)?.value.0);
            let values: Vec<_> = FUNCTIONS.into_iter().filter_map(of).collect();
            let bias = elf.into_segments().load_bias(mapping.start, mapping.offset)?;
            Some(values.into_iter().map(|value| value.wrapping_add(bias)).collect())
        });
        found.unwrap_or_default()
    }

    /// Returns the beginnings of the code that turns compiled frames into interpreted ones, and,
    /// separately, the methods' entries for on-stack replacement.
    pub fn rare_code(&mut self) -> (Vec<u64>, Vec<u64>) {
        const DEOPT: u64 = 5;
        // Number of bytes searched in a heap, which is filled from its beginning.
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

    /// Whether this is a return address in a deoptimisation handler. If so, the method that
    /// contains the handler has been deoptimised.
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

    /// Returns the name of the file that is mapped at this address.
    pub fn module(&self, addr: u64) -> String {
        let found = self.maps.find(libjvmprobe::Addr(addr));
        found.map_or("?".into(), |mapping| mapping.module.to_string())
    }

    /// Returns the names of a stack's frames, outermost first.
    pub fn names(&mut self, stack: &Stack) -> Vec<String> {
        let head = [1, stack.unloads, stack.end, stack.frames.len() as u64];
        let words = head.iter().chain(&stack.frames);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_ne_bytes()).collect();
        let Some(raw) = RawStack::decode(&bytes) else { return Vec::new() };
        let named = self.names.name_without_walker(&self.hotspot, &mut self.files, &raw);
        named.frames.iter().map(libjvmprobe::stack::Frame::folded).collect()
    }

    /// Discards the cached pages, because the thread has moved and memory may have changed.
    pub fn discard_pages(&self) {
        self.pages.borrow_mut().clear();
    }

    /// Reads memory through the pages cached since the thread moved.
    fn fill(&self, addr: u64, to: &mut [u8]) -> bool {
        // Higher addresses belong to the kernel, and many of them would be negative as file
        // positions.
        if addr >> 48 != 0 {
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

    /// Walks again and records what the walker reads.
    pub fn record(&mut self, start: &Registers) -> io::Result<Recording> {
        self.trace = Some(Recording {
            processor: Processor::OWN,
            start: *start,
            jvm: self.jvm,
            ..Recording::default()
        });
        let stack = self.walk(start);
        let traced = self.trace.take();
        let mut recording = traced.ok_or_else(|| io::Error::other("nothing was traced"))?;
        recording.stack = stack;
        Ok(recording)
    }
}

impl Source for Live {
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        // A long read is a read-ahead of the stack. It fails here, so that the walker reads the
        // stack word by word and only the words that it needs are recorded.
        if to.len() > MAX_DIRECT_READ || !self.fill(addr, to) {
            return false;
        }
        if let Some(trace) = &mut self.trace {
            let first = addr & !(LINE as u64 - 1);
            // One line more, because a later version of the walker may read a little further.
            for at in (first..addr + (to.len() + LINE) as u64).step_by(LINE) {
                let mut line = [0; LINE];
                let start = at & !(PAGE - 1);
                // The pages of this read are cached now. The additional line may be on a page that
                // is not cached; it is then not recorded.
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
