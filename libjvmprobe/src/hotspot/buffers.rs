//! Buffers outside of the heap: number, memory and capacity, as `BufferPoolMXBean` shows them.
//!
//! java.base keeps these numbers in static fields: java/nio/Bits.java for direct buffers,
//! sun/nio/ch/FileChannelImpl.java for mapped files. A class that is not loaded has counted nothing. JDK 8 is
//! not supported, because its vmStructs do not export the list of classes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Error, Result,
    hotspot::{
        HotSpot,
        boot_classes::BootClasses,
        fields::{FieldName, Fields},
        layout::Item,
        loaded::at,
        pages::Pages,
        references::References,
        resolved::Layout,
    },
    process::{memory::Memory, reader::within},
};

const BITS: &str = "java/nio/Bits";
/// The class with the counters of mapped files: the first one since JDK 14, the second one before. Since JDK 14, the second
/// class has no counters.
const MAPPED: [&str; 2] =
    ["sun/nio/ch/FileChannelImpl$DefaultUnmapper", "sun/nio/ch/FileChannelImpl$Unmapper"];

/// The classes that are searched for.
pub(super) const WANTED: &[&str] = &[BITS, MAPPED[0], MAPPED[1]];

const ATOMIC: &str = "Ljava/util/concurrent/atomic/AtomicLong;";
/// Fields of `Bits`: count, reserved memory, total capacity.
const OF_BITS: [FieldName; 3] =
    [("COUNT", ATOMIC), ("RESERVED_MEMORY", ATOMIC), ("TOTAL_CAPACITY", ATOMIC)];
/// Fields of the classes of mapped files: count, total size, total capacity.
const OF_MAPPED: [FieldName; 3] = [("count", "I"), ("totalSize", "J"), ("totalCapacity", "J")];
const VALUE: FieldName = ("value", "J");

/// Buffers of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPool {
    /// `direct` or `mapped`.
    pub name: &'static str,
    /// Number of buffers.
    pub count: u64,
    /// Their memory, in bytes.
    pub used: u64,
    /// Their total capacity, in bytes.
    pub capacity: u64,
}

/// Reads the pools of one JVM. It caches offsets, so it should be kept.
#[derive(Debug)]
pub struct BufferReader {
    memory: Memory,
    layout: Layout,
    boot_classes: Arc<BootClasses>,
    fields: Fields,
    references: References,
    /// Pages that the last reading needed.
    needed: Vec<Addr>,
    /// Offsets of [`OF_BITS`] in the mirror, once the class was found.
    of_bits: Option<[Option<u64>; 3]>,
    /// Offset of the number in an `AtomicLong`.
    value: Option<u64>,
    /// Offsets of [`OF_MAPPED`] in the mirror, once the class was found.
    of_mapped: Option<[Option<u64>; 3]>,
}

impl HotSpot {
    /// Returns a reader of the pools of buffers.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field; [`crate::Error::Memory`] if the JVM has exited.
    pub fn buffer_reader(&self) -> Result<BufferReader> {
        BufferReader::new(&self.memory, &self.layout, &self.boot_classes)
    }
}

impl BufferReader {
    pub(super) fn new(
        memory: &Memory,
        layout: &Layout,
        boot_classes: &Arc<BootClasses>,
    ) -> Result<Self> {
        Ok(Self {
            memory: memory.clone(),
            layout: layout.clone(),
            boot_classes: Arc::clone(boot_classes),
            fields: Fields::new(layout)?,
            references: References::new(memory, layout)?,
            needed: Vec::new(),
            of_bits: None,
            value: None,
            of_mapped: None,
        })
    }

    /// Returns the pools of direct buffers and of mapped files.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] if the classes could not be found in time or a value is implausible;
    /// [`crate::Error::Memory`] if the JVM has exited.
    pub fn read(&mut self, max_time: Duration) -> Result<Vec<BufferPool>> {
        within(max_time, || {
            let memory = self.memory.clone();
            let mut pages = Pages::scattered(&memory);
            let until = Instant::now() + max_time;
            let mut needed = std::mem::take(&mut self.needed);
            let pools = pages.read_repeatedly(&mut needed, |pages| self.read_with(pages, until));
            self.needed = needed;
            pools
        })
    }

    fn read_with(&mut self, pages: &mut Pages<'_>, until: Instant) -> Result<Vec<BufferPool>> {
        let (found, is_complete) = self.boot_classes.find(pages, &self.layout, until)?;
        if !is_complete {
            return Err(Error::layout("the list of classes could not be read in time"));
        }
        let [count, used, capacity] = self.direct(pages, &found)?;
        let direct = BufferPool { name: "direct", count, used, capacity };
        let [count, used, capacity] = self.mapped(pages, &found)?;
        Ok(vec![direct, BufferPool { name: "mapped", count, used, capacity }])
    }

    /// Returns the mirror of a class, which contains its static fields.
    fn mirror(&self, pages: &mut Pages<'_>, klass: Addr) -> Result<Option<Addr>> {
        let mut word = pages.pointer(at(klass, self.layout.get(Item::Mirror)?)?)?;
        if !self.layout.is_jdk_8() && word != Addr(0) {
            word = pages.pointer(word)?;
        }
        self.references.read_root(pages, word)
    }

    fn direct(
        &mut self,
        pages: &mut Pages<'_>,
        found: &HashMap<&'static str, Addr>,
    ) -> Result<[u64; 3]> {
        let mut numbers = [0; 3];
        let Some(&bits) = found.get(BITS) else { return Ok(numbers) };
        let Some(mirror) = self.mirror(pages, bits)? else { return Ok(numbers) };
        let offsets = match self.of_bits {
            Some(offsets) => offsets,
            None => *self.of_bits.insert(self.fields.static_offsets(pages, bits, OF_BITS)?),
        };
        for (number, offset) in numbers.iter_mut().zip(offsets) {
            let Some(offset) = offset else { continue };
            // A null reference means that the class is loaded, but not initialized.
            let Some(atomic) = self.references.read_reference(pages, mirror, offset)? else {
                continue;
            };
            if self.value.is_none() {
                let klass = self.references.class_of(pages, atomic)?;
                [self.value] = self.fields.offsets(pages, klass, [VALUE])?;
            }
            if let Some(value) = self.value {
                *number = pages.u64(at(atomic, value)?)?;
            }
        }
        Ok(numbers)
    }

    fn mapped(
        &mut self,
        pages: &mut Pages<'_>,
        found: &HashMap<&'static str, Addr>,
    ) -> Result<[u64; 3]> {
        let mut numbers = [0; 3];
        let Some(&klass) = MAPPED.iter().find_map(|name| found.get(name)) else {
            return Ok(numbers);
        };
        let Some(mirror) = self.mirror(pages, klass)? else { return Ok(numbers) };
        let [count, size, capacity] = match self.of_mapped {
            Some(offsets) => offsets,
            None => *self.of_mapped.insert(self.fields.static_offsets(pages, klass, OF_MAPPED)?),
        };
        if let Some(count) = count {
            numbers[0] = pages.u32(at(mirror, count)?)?.into();
        }
        for (number, offset) in numbers.iter_mut().skip(1).zip([size, capacity]) {
            if let Some(offset) = offset {
                *number = pages.u64(at(mirror, offset)?)?;
            }
        }
        Ok(numbers)
    }
}
