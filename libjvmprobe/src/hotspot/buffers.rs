//! Buffers outside of the heap: number, memory and capacity, as `BufferPoolMXBean` shows them.
//!
//! java.base keeps these numbers in static fields: java/nio/Bits.java for direct buffers,
//! sun/nio/ch/FileChannelImpl.java for mapped files. A class that is not loaded has counted nothing. JDK 8 is
//! not supported, because its vmStructs do not export the list of classes.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    Addr, Error, Result,
    hotspot::{
        HotSpot,
        fields::{FieldName, Fields},
        layout::Item,
        loaded::at,
        pages::Pages,
        references::References,
        resolved::Layout,
    },
    process::reader::within,
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

impl HotSpot {
    /// Returns the pools of direct buffers and of mapped files.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, or if the classes could not be found in time;
    /// [`crate::Error::Memory`] if the JVM has exited.
    pub fn buffer_pools(&self, max_time: Duration) -> Result<Vec<BufferPool>> {
        within(max_time, || self.read_buffer_pools(Instant::now() + max_time))
    }

    fn read_buffer_pools(&self, until: Instant) -> Result<Vec<BufferPool>> {
        let mut pages = Pages::scattered(&self.memory);
        let (found, is_complete) = self.boot_classes.find(&mut pages, &self.layout, until)?;
        if !is_complete {
            return Err(Error::layout("the list of classes could not be read in time"));
        }
        let reader = Reader {
            layout: &self.layout,
            fields: Fields::new(&self.layout)?,
            references: References::following(&self.memory, &self.layout)?,
            found,
        };
        let [count, used, capacity] = reader.direct(&mut pages)?;
        let direct = BufferPool { name: "direct", count, used, capacity };
        let [count, used, capacity] = reader.mapped(&mut pages)?;
        Ok(vec![direct, BufferPool { name: "mapped", count, used, capacity }])
    }
}

struct Reader<'a> {
    layout: &'a Layout,
    fields: Fields,
    references: References,
    found: HashMap<&'static str, Addr>,
}

impl Reader<'_> {
    /// Returns the mirror of a class, which contains its static fields.
    fn mirror(&self, pages: &mut Pages<'_>, klass: Addr) -> Result<Option<Addr>> {
        let mut word = pages.pointer(at(klass, self.layout.get(Item::Mirror)?)?)?;
        if !self.layout.is_jdk_8() && word != Addr(0) {
            word = pages.pointer(word)?;
        }
        self.references.read_root(pages, word)
    }

    fn direct(&self, pages: &mut Pages<'_>) -> Result<[u64; 3]> {
        let mut numbers = [0; 3];
        let Some(&bits) = self.found.get(BITS) else { return Ok(numbers) };
        let Some(mirror) = self.mirror(pages, bits)? else { return Ok(numbers) };
        let offsets = self.fields.static_offsets(pages, bits, OF_BITS)?;
        for (number, offset) in numbers.iter_mut().zip(offsets) {
            let Some(offset) = offset else { continue };
            // A null reference means that the class is loaded, but not initialized.
            let Some(atomic) = self.references.read_reference(pages, mirror, offset)? else {
                continue;
            };
            let klass = self.references.class_of(pages, atomic)?;
            if let [Some(value)] = self.fields.offsets(pages, klass, [VALUE])? {
                *number = pages.u64(at(atomic, value)?)?;
            }
        }
        Ok(numbers)
    }

    fn mapped(&self, pages: &mut Pages<'_>) -> Result<[u64; 3]> {
        let mut numbers = [0; 3];
        let Some(&klass) = MAPPED.iter().find_map(|name| self.found.get(name)) else {
            return Ok(numbers);
        };
        let Some(mirror) = self.mirror(pages, klass)? else { return Ok(numbers) };
        let [count, size, capacity] = self.fields.static_offsets(pages, klass, OF_MAPPED)?;
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
