//! A fake HotSpot for tests: its tables are written into this process's memory and read through
//! `/proc/self/mem` like those of any target.

use std::{collections::HashMap, sync::Arc};

use crate::{Addr, Pid, Result, Vaddr, hotspot::resolved::Layout, process::memory::Memory};
#[cfg(test)]
use crate::{
    elf::testing::Library,
    hotspot::{HotSpot, build::Build},
};

/// A growing memory image of 64-bit words at a fixed address.
pub(super) struct Image {
    words: Vec<u64>,
    /// The address of the first word.
    base: u64,
    used: usize,
    symbols: HashMap<&'static str, Addr>,
    fields: Vec<[u64; 6]>,
    types: Vec<[u64; 3]>,
}

impl Image {
    pub(super) fn new() -> Self {
        let words = vec![0; 4096];
        Self {
            base: words.as_ptr() as u64,
            words,
            used: 0,
            symbols: HashMap::new(),
            fields: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Creates an image whose addresses begin at `base`, independent of its real address.
    #[cfg(feature = "fuzzing")]
    pub(super) fn based_at(base: u64) -> Self {
        Self { base, ..Self::new() }
    }

    /// Returns the address after the last stored word.
    pub(super) fn end(&self) -> Addr {
        Addr(self.base + self.used as u64 * 8)
    }

    /// Returns the stored bytes, and the addresses of the variables that libjvm.so exports.
    #[cfg(feature = "fuzzing")]
    pub(super) fn into_parts(self) -> (Vec<u8>, HashMap<&'static str, Addr>) {
        let bytes = self.words.iter().take(self.used).flat_map(|word| word.to_ne_bytes());
        (bytes.collect(), self.symbols)
    }

    /// Stores words and returns their address.
    pub(super) fn put(&mut self, words: &[u64]) -> Addr {
        let at = self.base + self.used as u64 * 8;
        self.words[self.used..self.used + words.len()].copy_from_slice(words);
        self.used += words.len();
        Addr(at)
    }

    /// Stores a NUL-terminated string and returns its address.
    pub(super) fn text(&mut self, text: &str) -> Addr {
        self.put(&words(&[text.as_bytes(), &[0]].concat()))
    }

    pub(super) fn field(&mut self, class: &str, name: &str, offset: u64) {
        let names = [self.text(class).0, self.text(name).0];
        self.fields.push([names[0], names[1], 0, 0, offset, 0]);
    }

    pub(super) fn static_field(&mut self, class: &str, name: &str, addr: Addr) {
        let names = [self.text(class).0, self.text(name).0];
        self.fields.push([names[0], names[1], 0, 1, 0, addr.0]);
    }

    pub(super) fn class(&mut self, name: &str, size: u64) {
        let name = self.text(name).0;
        self.types.push([name, 0, size]);
    }

    /// Adds a table of `count` flags. Each flag has three words: address of its value, address of its name, its type.
    pub(super) fn flags(&mut self, table: Addr, count: u64) {
        let (table, count) = (self.put(&[table.0]), self.put(&[count]));
        self.static_field("JVMFlag", "flags", table);
        self.static_field("JVMFlag", "numFlags", count);
        self.field("JVMFlag", "_addr", 0);
        self.field("JVMFlag", "_name", 8);
        self.field("JVMFlag", "_type", 16);
        self.class("JVMFlag", 24);
    }

    /// Returns the address of a variable that libjvm.so exports.
    pub(super) fn symbol(&self, name: &str) -> Option<Addr> {
        self.symbols.get(name).copied()
    }

    /// Writes the tables of vmStructs and their exported variables.
    pub(super) fn finish(&mut self) {
        let fields: Vec<u64> = self.fields.concat();
        let types: Vec<u64> = self.types.concat();
        self.table("gHotSpotVMStructs", "gHotSpotVMStructEntryArrayStride", &fields, 6);
        self.table("gHotSpotVMTypes", "gHotSpotVMTypeEntryArrayStride", &types, 3);
        for (name, value) in [
            ("gHotSpotVMStructEntryTypeNameOffset", 0),
            ("gHotSpotVMStructEntryFieldNameOffset", 8),
            ("gHotSpotVMStructEntryIsStaticOffset", 24),
            ("gHotSpotVMStructEntryOffsetOffset", 32),
            ("gHotSpotVMStructEntryAddressOffset", 40),
            ("gHotSpotVMTypeEntryTypeNameOffset", 0),
            ("gHotSpotVMTypeEntrySizeOffset", 16),
        ] {
            let addr = self.put(&[value]);
            self.symbols.insert(name, addr);
        }
    }

    fn table(&mut self, array: &'static str, stride: &'static str, entries: &[u64], words: u64) {
        let at = self.put(entries);
        self.put(&vec![0; words as usize]);
        let array_at = self.put(&[at.0]);
        let stride_at = self.put(&[words * 8]);
        self.symbols.insert(array, array_at);
        self.symbols.insert(stride, stride_at);
    }

    /// Overwrites an exported variable.
    pub(super) fn set(&mut self, symbol: &str, value: u64) {
        self.overwrite(self.symbols[symbol], value);
    }

    /// Overwrites the word at an address.
    pub(super) fn overwrite(&mut self, addr: Addr, value: u64) {
        let at = addr.0 - self.base;
        self.words[at as usize / 8] = value;
    }

    /// Overwrites a word by index, modulo the number of stored words.
    pub(super) fn damage(&mut self, index: usize, value: u64) {
        let used = self.used;
        self.words[index % used] = value;
    }

    pub(super) fn read(&self) -> Result<Layout> {
        self.read_at(0)
    }

    /// Reads the layout as that of a library with a load bias.
    pub(super) fn read_at(&self, bias: u64) -> Result<Layout> {
        let no_private = |_: &str| None::<Vaddr>;
        Layout::read(&own_memory(), bias, |name| self.symbol(name), no_private, Arc::new)
    }
}

/// Returns bytes as words, padded with zero bytes.
pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.as_chunks().0.iter().copied().map(u64::from_ne_bytes).collect()
}

/// Returns the word of two 32-bit numbers.
pub(super) fn u32s(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Stores a Symbol: its length in two bytes, four unused bytes, and its text.
pub(super) fn symbol(image: &mut Image, text: &str) -> Addr {
    let length = (text.len() as u16).to_ne_bytes();
    image.put(&words(&[&length[..], &[0; 4], text.as_bytes()].concat()))
}

/// Layout helper of `char[]` with a header of 24 bytes.
#[cfg(test)]
pub(super) const CHARACTERS: u64 = 0xc018_0501;

/// Adds a class with fields (name, signature, offset, access flags) in the form of JDK 8 to 20. Words of a class:
/// superclass, name, layout helper, constant pool, fields, number of fields, next class, handle of the mirror.
#[cfg(test)]
pub(super) fn java_class(
    image: &mut Image,
    name: &str,
    parent: Addr,
    fields: &[(&str, &str, u16, u16)],
) -> Addr {
    let name = symbol(image, name);
    let mut pool = vec![1 + 2 * fields.len() as u64, 0];
    let mut shorts = Vec::new();
    for (index, (name, signature, offset, access)) in fields.iter().enumerate() {
        pool.extend([symbol(image, name).0, symbol(image, signature).0]);
        let index = index as u16 * 2;
        shorts.extend([*access, index + 1, index + 2, 0, offset << 2 | 1, 0]);
    }
    let pool = image.put(&pool);
    let mut array = (shorts.len() as u32).to_ne_bytes().to_vec();
    array.extend(shorts.into_iter().flat_map(u16::to_ne_bytes));
    let array = image.put(&words(&array));
    image.put(&[parent.0, name.0, 128, pool.0, array.0, fields.len() as u64, 0, 0])
}

/// Adds the list of Java threads, the flag of the collector, and the fields of classes and threads.
#[cfg(test)]
pub(super) fn java_threads(image: &mut Image, threads: &[Addr]) {
    let addresses: Vec<_> = threads.iter().map(|thread| thread.0).collect();
    let array = image.put(&addresses);
    let list = image.put(&[threads.len() as u64, array.0]);
    let list = image.put(&[list.0]);
    image.static_field("ThreadsSMRSupport", "_java_thread_list", list);
    let flag = image.text("UseG1GC");
    let on = image.put(&[1]);
    let flags = image.put(&[on.0, flag.0, 0]);
    image.flags(flags, 1);
    for (class, field, offset) in THREAD_FIELDS {
        image.field(class, field, offset);
    }
    image.class("ConstantPool", 8);
}

/// Offsets of the fields of a fake JVM's classes and threads: class, field, offset.
#[cfg(test)]
const THREAD_FIELDS: [(&str, &str, u64); 22] = [
    ("ThreadsList", "_length", 0),
    ("ThreadsList", "_threads", 8),
    ("Klass", "_super", 0),
    ("Klass", "_name", 8),
    ("Klass", "_layout_helper", 16),
    ("InstanceKlass", "_constants", 24),
    ("InstanceKlass", "_fields", 32),
    ("InstanceKlass", "_java_fields_count", 40),
    ("ConstantPool", "_length", 0),
    ("Array<int>", "_length", 0),
    ("Array<u2>", "_data", 4),
    ("Symbol", "_length", 0),
    ("Symbol", "_body", 6),
    ("JavaThread", "_osthread", 0),
    ("OSThread", "_thread_id", 0),
    ("JavaThread", "_threadObj", 8),
    ("JavaThread", "_current_pending_monitor", 24),
    ("JavaThread", "_current_waiting_monitor", 32),
    ("JavaThread", "_stack_base", 40),
    ("JavaThread", "_stack_size", 48),
    ("ObjectMonitor", "_object", 0),
    ("ObjectMonitor", "_owner", 8),
];

/// A fake JVM with one flag, which selects its collector, and with a heap that can be set up later.
#[cfg(test)]
pub(crate) struct FakeJvm {
    image: Image,
    /// Address of its pointer to its heap.
    heap: Addr,
}

#[cfg(test)]
impl FakeJvm {
    /// Creates a JVM that was started with a flag and is starting up.
    pub(crate) fn new(flag: &str) -> Self {
        let mut image = Image::new();
        let on = image.put(&[1]);
        let name = image.text(flag);
        let table = image.put(&[on.0, name.0, 0]);
        let heap = image.put(&[0]);
        image.flags(table, 1);
        image.static_field("Universe", "_collectedHeap", heap);
        image.finish();
        Self { image, heap }
    }

    /// Sets up its heap.
    pub(crate) fn set_up(&mut self) {
        self.image.overwrite(self.heap, 8);
    }

    /// Reads its current properties. Each call reads them anew.
    pub(crate) fn hotspot(&self) -> HotSpot {
        let elf = Library::build(".data\n", &[]).elf();
        let build = Arc::new(Build::read(elf).unwrap());
        let layout = self.image.read().unwrap();
        HotSpot::new(Pid(std::process::id()), own_memory(), layout, build, 0)
    }
}

pub(super) fn own_memory() -> Memory {
    Memory::open(Pid(std::process::id())).unwrap()
}

/// Offsets of the fields of a fake JVM's code cache and methods: class, field, offset.
pub(crate) const CODE_FIELDS: [(&str, &str, u64); 32] = [
    ("CodeHeap", "_memory", 0),
    ("CodeHeap", "_segmap", 16),
    ("CodeHeap", "_log2_segment_size", 24),
    ("VirtualSpace", "_low", 0),
    ("VirtualSpace", "_high", 8),
    ("VirtualSpace", "_low_boundary", 0),
    ("VirtualSpace", "_high_boundary", 8),
    ("GrowableArrayBase", "_len", 0),
    ("HeapBlock::Header", "_length", 0),
    ("HeapBlock::Header", "_used", 8),
    ("CodeBlob", "_name", 0),
    ("CodeBlob", "_size", 8),
    ("CodeBlob", "_data_offset", 12),
    ("CodeBlob", "_code_begin", 16),
    ("CompiledMethod", "_method", 24),
    ("CompiledMethod", "_scopes_data_begin", 32),
    ("nmethod", "_scopes_pcs_offset", 48),
    ("nmethod", "_dependencies_offset", 52),
    ("nmethod", "_metadata_offset", 40),
    ("nmethod", "_compile_id", 56),
    ("PcDesc", "_pc_offset", 0),
    ("PcDesc", "_scope_decode_offset", 4),
    ("Method", "_constMethod", 0),
    ("ConstMethod", "_constants", 0),
    ("ConstMethod", "_flags", 8),
    ("ConstMethod", "_code_size", 10),
    ("ConstMethod", "_name_index", 12),
    ("ConstMethod", "_signature_index", 14),
    ("ConstantPool", "_pool_holder", 0),
    ("Klass", "_name", 0),
    ("Symbol", "_length", 0),
    ("Symbol", "_body", 6),
];
