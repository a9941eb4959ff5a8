//! Monitors that compiled frames have entered, as the debug information of their code records them.
//!
//! Sources: hotspot/share/code/{debugInfo,scopeDesc}.cpp, code/location.hpp. The debug information
//! contains the location of each object whose monitor a frame has entered: a slot of the frame, a register, or the
//! nmethod's list of constants.

use std::{collections::HashMap, sync::Arc};

use crate::{
    Addr, Result,
    hotspot::{
        code::{
            Inlining,
            cache::Blobs,
            heap::{Heap, heaps},
        },
        compressed::Stream,
        pages::Pages,
        processor::FRAME_POINTER,
        resolved::Layout,
    },
};

/// Maximum number of monitors of one frame with the methods inlined there, for plausibility.
pub(super) const MAX_MONITORS: usize = 1024;
/// Maximum number of monitors and lists of monitors in the cache. A further one first empties the cache.
const MAX_CACHED: usize = 1 << 20;

/// `LOCATION_CODE` and `CONSTANT_OOP_CODE` of debugInfo.cpp.
const LOCATION: u32 = 0;
const CONSTANT: u32 = 2;
/// `Location::oop` and `Location::narrowoop`.
const OOP: u32 = 2;
const NARROW_OOP: u32 = 9;
/// `Location::WHERE_MASK`: set for registers.
const IN_REGISTER: u32 = 1 << 4;
/// `Location::OFFSET_SHIFT`
const OFFSET_SHIFT: u32 = 5;

/// Location of a reference to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) enum OopLocation {
    /// At this distance in bytes above the frame's stack pointer.
    Slot(u64),
    /// As `Slot`, but the reference is compressed.
    NarrowSlot(u64),
    /// In the frame pointer.
    FramePointer,
    /// In the frame pointer, as a compressed reference.
    NarrowFramePointer,
    /// At this address.
    Constant(Addr),
}

/// An object whose monitor a frame has entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hotspot) struct FrameMonitor {
    pub(in crate::hotspot) object: OopLocation,
}

/// Decodes a list of at most `max` monitors, which begins with the monitor that was entered first. Leaves out monitors that
/// the compiler has eliminated. An object that the compiler has split into its fields (scalar replacement)
/// ends the list. The length of the description of such an object depends on its class, so the monitors after
/// it cannot be located.
pub(super) fn decode_monitors(
    stream: &mut Stream<'_>,
    oops: Addr,
    max: usize,
) -> Vec<FrameMonitor> {
    let mut found = Vec::new();
    let count = stream.unsigned().unwrap_or(0) as usize;
    for _ in 0..count.min(max) {
        let Some((object, is_eliminated)) = decode_monitor(stream, oops) else { break };
        if !is_eliminated {
            found.extend(object.map(|object| FrameMonitor { object }));
        }
    }
    found
}

/// Decodes a monitor. Returns the location of its object, if the kind of location is known, and whether the
/// compiler has eliminated the monitor. Returns `None` if the rest of the list cannot be decoded.
fn decode_monitor(stream: &mut Stream<'_>, oops: Addr) -> Option<(Option<OopLocation>, bool)> {
    let _basic_lock = stream.unsigned()?;
    let object = match stream.unsigned()? {
        LOCATION => location(stream.unsigned()?),
        CONSTANT => {
            // Number 0 is null, and 1 is the first constant.
            let index = u64::from(stream.unsigned()?).checked_sub(1);
            let address = index.and_then(|index| oops.checked_add(index * 8));
            address.map(OopLocation::Constant)
        }
        _ => return None,
    };
    Some((object, stream.byte()? != 0))
}

/// Decodes a `Location`.
fn location(word: u32) -> Option<OopLocation> {
    let (kind, number) = (word & 0xf, word >> OFFSET_SHIFT);
    match (word & IN_REGISTER != 0, kind) {
        (false, OOP) => Some(OopLocation::Slot(u64::from(number) * 4)),
        (false, NARROW_OOP) => Some(OopLocation::NarrowSlot(u64::from(number) * 4)),
        (true, OOP) if number == FRAME_POINTER => Some(OopLocation::FramePointer),
        (true, NARROW_OOP) if number == FRAME_POINTER => Some(OopLocation::NarrowFramePointer),
        _ => None,
    }
}

/// Monitors of a compiled frame, by its return address: one list for the method itself and one for each
/// method inlined there. The list of the innermost method comes first. Each list begins with the monitor that
/// was entered first.
pub(in crate::hotspot) type MonitorsAt = Arc<[Vec<FrameMonitor>]>;

/// Looks up monitors by return address, and caches them. A cached entry is valid as long as the return
/// address is on a thread's stack, because the JVM keeps the code until then.
pub(in crate::hotspot) struct MonitorLookup<'a> {
    heaps: Vec<Heap>,
    blobs: Blobs<'a>,
    known: HashMap<Addr, MonitorsAt>,
    /// Number of monitors and lists of monitors in `known`.
    size: usize,
}

impl MonitorLookup<'_> {
    /// Makes a lookup with an empty cache.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming the missing field, [`crate::Error::Memory`] if the JVM has exited.
    pub(in crate::hotspot) fn new(pages: &mut Pages<'_>, layout: &Layout) -> Result<Self> {
        let mut heaps = heaps(pages, layout)?;
        heaps.iter_mut().for_each(|heap| heap.high = heap.reserved_high);
        let blobs = Blobs::new(layout, Inlining::Nowhere)?;
        Ok(Self { heaps, blobs, known: HashMap::new(), size: 0 })
    }

    /// Returns the monitors of a compiled frame that has this return address.
    ///
    /// # Errors
    /// [`crate::Error::Layout`], [`crate::Error::Memory`] if they cannot be read.
    pub(in crate::hotspot) fn at(&mut self, pages: &mut Pages<'_>, pc: Addr) -> Result<MonitorsAt> {
        if let Some(known) = self.known.get(&pc) {
            return Ok(Arc::clone(known));
        }
        let found = match self.blobs.find(pages, &self.heaps, pc)? {
            Some(blob) => self.blobs.monitors(pages, blob, pc)?,
            None => Vec::new(),
        };
        let found: MonitorsAt = found.into();
        let size = 1 + found.iter().map(|monitors| 1 + monitors.len()).sum::<usize>();
        if self.size + size > MAX_CACHED {
            self.known.clear();
            self.size = 0;
        }
        self.size += size;
        self.known.insert(pc, Arc::clone(&found));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hotspot::compressed::Encoding;

    fn decode(bytes: &[u8]) -> Vec<OopLocation> {
        let mut stream = Stream::new(bytes, Encoding::of_jdk(17));
        let monitors = decode_monitors(&mut stream, Addr(0x1000), MAX_MONITORS);
        monitors.into_iter().map(|monitor| monitor.object).collect()
    }

    #[test]
    fn locations_of_objects_are_decoded_without_eliminated_monitors() {
        let slot = |kind: u8| 6 << OFFSET_SHIFT | kind;
        let [oop, narrow] =
            [slot(2), slot(9)].map(|byte| [vec![0, 0], bytes(byte.into())].concat());
        let register =
            [vec![0, 0], bytes(FRAME_POINTER << OFFSET_SHIFT | IN_REGISTER | OOP)].concat();
        let monitors = [oop.clone(), vec![0], narrow, vec![0], register, vec![0]].concat();
        let more = [vec![5], monitors, vec![0, 2, 3, 0], oop, vec![1]].concat();
        let expected = [
            OopLocation::Slot(24),
            OopLocation::NarrowSlot(24),
            OopLocation::FramePointer,
            OopLocation::Constant(Addr(0x1010)),
        ];
        assert_eq!(decode(&more), expected);
    }

    /// Encodes a number as at most two bytes.
    fn bytes(number: u32) -> Vec<u8> {
        match number {
            0..192 => vec![number as u8],
            _ => {
                let low = 192 + (number - 192) % 64;
                vec![low as u8, ((number - low) / 64) as u8]
            }
        }
    }

    #[test]
    fn list_is_cut_at_the_maximum() {
        let monitor = [vec![0, 0], bytes(6 << OFFSET_SHIFT | OOP), vec![0]].concat();
        let list = [vec![3], monitor.repeat(3)].concat();
        let count = |max| {
            let mut stream = Stream::new(&list, Encoding::of_jdk(17));
            decode_monitors(&mut stream, Addr(0x1000), max).len()
        };
        assert_eq!([0, 2, 9].map(count), [0, 2, 3]);
    }

    #[test]
    fn scalar_replaced_object_ends_the_list() {
        assert_eq!(decode(&[2, 0, 5, 1, 1]), []);
    }

    proptest! {
        #[test]
        fn hostile_debug_information_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..99)) {
            decode(&bytes);
        }
    }
}
