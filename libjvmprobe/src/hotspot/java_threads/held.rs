//! The monitors that a thread holds, by the frames that have entered them.
//!
//! Sources: hotspot/share/runtime/{vframe,basicLock,synchronizer}.{hpp,cpp}, oops/markWord.hpp;
//! `hotspot::processor`. An interpreted frame lists its monitors below its fixed part; for a compiled frame,
//! the debug information of its code contains their locations ([`MonitorLookup`]). A listed monitor is not
//! always held: the thread may wait to enter it, or may have released it in `Object.wait`. Whether the thread
//! holds the monitor is therefore read from the object's header, the object's monitor and the thread's lock
//! stack:
//!
//! | lowest bits of the header | meaning |
//! |---|---|
//! | 00 | stack lock: the header is the address of a BasicLock on the owner's stack; or lightweight lock: the object is in the owner's lock stack |
//! | 01 | not locked |
//! | 101 | biased (up to JDK 17): the upper bits are the JavaThread's address |
//! | 10 | inflated: the header is the address of the ObjectMonitor, or the JVM has a table of monitors (since JDK 24) |

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::{
    MonitorWords,
    owners::{ANONYMOUS, Holder},
    reader::{AT_ONCE, Reader},
};
use crate::{
    Addr, Error, Result,
    hotspot::{
        code::monitors::{MonitorLookup, OopLocation},
        layout::Item,
        loaded::at,
        pages::Pages,
    },
};

/// Maximum number of monitors of one interpreted frame, for plausibility.
const MAX_MONITORS: u64 = 1024;
/// Number of monitors of one thread after which no further frame is read. A thread whose recursion enters a monitor again in each frame is listed with
/// at most 1,024 frames.
const MAX_HELD: usize = 4096;
/// Maximum number of entries of the JVM's list of monitors that are read.
const MAX_LISTED: usize = 1 << 17;
/// Size of a BasicObjectLock in bytes: the lock, and the object.
const LOCK_BYTES: u64 = 16;
/// Bits of an object's header that show how the object is locked (`markWord::lock_mask_in_place`).
pub(super) const LOCK_BITS: u64 = 0b11;
const LOCKED: u64 = 0b00;
pub(super) const UNLOCKED: u64 = 0b01;
pub(super) const INFLATED: u64 = 0b10;
/// The lowest bits of a biased header (`biased_lock_pattern`), the mask of these bits, and the mask of all
/// bits of a biased header that are no part of the thread's address.
pub(super) const BIASED: u64 = 0b101;
pub(super) const BIASED_BITS: u64 = 0b111;
const NOT_THREAD: u64 = 0x3ff;

/// A frame of a thread that does not run, with the data by which the frame's monitors are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// A compiled frame, with the methods inlined there.
    Compiled {
        /// The address at which it continues.
        pc: Addr,
        /// Stack pointer.
        sp: Addr,
        /// Frame pointer register, in which compiled code may keep any value.
        fp: u64,
    },
    /// An interpreted frame, by its frame pointer.
    Interpreted(Addr),
    /// Any other frame.
    Other,
}

/// A monitor that a thread holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldMonitor {
    /// Index of the frame that has entered it, among the frames given.
    pub frame: usize,
    /// Depth of inlining: 0 if the innermost method of the frame has entered it, 1 if the caller of that method has, and so
    /// on.
    pub depth: usize,
    /// The object's address.
    pub object: Addr,
    /// Name of its class as in Java source.
    pub class: Arc<str>,
}

impl Reader {
    /// Returns the monitors that each thread holds. Those of the innermost frame come first. Among the monitors of one
    /// frame, the one that was entered last comes first.
    /// A thread is given by the address of its JavaThread and its frames, innermost first. Leaves out monitors that
    /// cannot be read, or whose object moves meanwhile.
    pub(super) fn held(
        &mut self,
        stacks: &[(Addr, Vec<FrameState>)],
        until: Instant,
    ) -> Vec<Vec<HeldMonitor>> {
        let memory = self.memory.clone();
        let mut pages = Pages::scattered(&memory);
        // If this fails, only the monitors of compiled frames are missing.
        let mut lookup = MonitorLookup::new(&mut pages, &self.layout).ok();
        let mut listed = None;
        let mut held = Vec::with_capacity(stacks.len());
        for some in stacks.chunks(AT_ONCE) {
            let found = pages.read_batched(some, |pages, (thread, frames)| {
                let lookup = lookup.as_mut();
                let found = self.held_by(pages, lookup, *thread, frames, &mut listed, until);
                found.unwrap_or_default()
            });
            held.extend(found);
        }
        held
    }

    fn held_by(
        &mut self,
        pages: &mut Pages<'_>,
        mut lookup: Option<&mut MonitorLookup<'_>>,
        thread: Addr,
        frames: &[FrameState],
        listed: &mut Option<HashMap<Addr, MonitorWords>>,
        until: Instant,
    ) -> Result<Vec<HeldMonitor>> {
        let mut holder = None;
        let mut held = Vec::new();
        for (frame, state) in frames.iter().enumerate() {
            if held.len() >= MAX_HELD || Instant::now() >= until {
                break;
            }
            for (depth, word) in self.entered(pages, lookup.as_deref_mut(), state) {
                let holder = match &holder {
                    Some(holder) => holder,
                    None => &*holder.insert(self.holder(pages, thread)?),
                };
                for object in self.references.lock_candidates(pages, word)? {
                    // If the monitor is not held, the thread waits for it or has released it in
                    // `Object.wait`, or the frame has changed.
                    let Ok(true) = self.is_held(pages, object, holder, listed) else { continue };
                    let class = self.class_of(pages, object)?;
                    held.push(HeldMonitor { frame, depth, object, class });
                }
            }
        }
        Ok(held)
    }

    /// Returns the objects whose monitors the methods of a frame have entered, each with its depth of inlining:
    /// [`HeldMonitor::depth`]. Leaves out those that cannot be read.
    fn entered(
        &self,
        pages: &mut Pages<'_>,
        lookup: Option<&mut MonitorLookup<'_>>,
        state: &FrameState,
    ) -> Vec<(usize, Addr)> {
        match *state {
            FrameState::Other => Vec::new(),
            FrameState::Interpreted(fp) => {
                let objects = self.interpreted_monitors(pages, fp).unwrap_or_default();
                objects.into_iter().map(|object| (0, object)).collect()
            }
            FrameState::Compiled { pc, sp, fp } => {
                let monitors = lookup.and_then(|lookup| lookup.at(pages, pc).ok());
                let mut found = Vec::new();
                for (depth, monitors) in monitors.iter().flat_map(|all| all.iter()).enumerate() {
                    for monitor in monitors.iter().rev() {
                        let object = self.located(pages, monitor.object, sp, fp);
                        found.extend(object.ok().flatten().map(|object| (depth, object)));
                    }
                }
                found
            }
        }
    }

    /// Returns the objects in the list of monitors of an interpreted frame, the latest first. One word of the frame
    /// points to the latest entry, by its address or, since JDK 22, by its distance from the frame pointer in words. The
    /// oldest entry ends at that word.
    fn interpreted_monitors(&self, pages: &mut Pages<'_>, fp: Addr) -> Result<Vec<Addr>> {
        let word = fp.0.checked_sub(8 * self.monitors_slot);
        let end =
            word.ok_or_else(|| Error::layout("implausible frame pointer of an interpreted frame"))?;
        let word = pages.u64(Addr(end))?;
        let is_distance = word.cast_signed() < 0;
        let begin = if is_distance { fp.0.wrapping_add(word.wrapping_mul(8)) } else { word };
        let bytes = end.checked_sub(begin).filter(|bytes| bytes / LOCK_BYTES <= MAX_MONITORS);
        let bytes = bytes
            .ok_or_else(|| Error::layout("implausible list of monitors of an interpreted frame"))?;
        let mut objects = Vec::new();
        for index in 0..bytes / LOCK_BYTES {
            // An entry without an object is free.
            let object = pages.pointer(Addr(begin + index * LOCK_BYTES + 8))?;
            objects.extend(Some(object).filter(|object| object.0 != 0));
        }
        Ok(objects)
    }

    /// Reads the reference at a location of a compiled frame; `None` for null.
    fn located(
        &self,
        pages: &mut Pages<'_>,
        location: OopLocation,
        sp: Addr,
        fp: u64,
    ) -> Result<Option<Addr>> {
        let full = |word: u64| (word != 0).then_some(Addr(word));
        Ok(match location {
            OopLocation::Slot(offset) => full(pages.u64(at(sp, offset)?)?),
            OopLocation::Constant(address) => full(pages.u64(address)?),
            OopLocation::FramePointer => full(fp),
            OopLocation::NarrowSlot(offset) => {
                self.references.decompressed(pages.u32(at(sp, offset)?)?)
            }
            OopLocation::NarrowFramePointer => self.references.decompressed(fp as u32),
        })
    }

    /// Returns whether a thread holds the monitor of an object.
    fn is_held(
        &self,
        pages: &mut Pages<'_>,
        object: Addr,
        holder: &Holder,
        listed: &mut Option<HashMap<Addr, MonitorWords>>,
    ) -> Result<bool> {
        let header = pages.u64(object)?;
        Ok(match header & LOCK_BITS {
            LOCKED => holder.locks.contains(&object) || holder.stack.contains(&header),
            // An object that is biased towards the thread is locked if a frame of the thread lists its monitor.
            UNLOCKED => header & BIASED_BITS == BIASED && header & !NOT_THREAD == holder.thread.0,
            INFLATED => {
                let words = self.monitor_words(pages, Addr(header & !LOCK_BITS));
                match words.ok().flatten().filter(|words| words.object == object) {
                    Some(words) => holder.owns(&words),
                    None if !self.has_owner_numbers => false,
                    None => {
                        let listed = match listed {
                            Some(listed) => listed,
                            None => listed.insert(self.monitors_in_use(pages)?),
                        };
                        listed.get(&object).is_some_and(|words| holder.owns(words))
                    }
                }
            }
            _ => false,
        })
    }

    /// Returns the monitors of the JVM by their objects, at most [`MAX_LISTED`]. The JVM adds monitors only
    /// at the head of the list, so a list that grows while it is read still has an end.
    fn monitors_in_use(&self, pages: &mut Pages<'_>) -> Result<HashMap<Addr, MonitorWords>> {
        let list = self.layout.address(Item::MonitorsInUse)?;
        let next = self.layout.get(Item::NextMonitor)?;
        let mut found = HashMap::new();
        let mut monitor = pages.pointer(at(list, self.layout.get(Item::MonitorListHead)?)?)?;
        while monitor != Addr(0) && found.len() < MAX_LISTED {
            if let Some(words) = self.monitor_words(pages, monitor)? {
                found.insert(words.object, words);
            }
            monitor = pages.pointer(at(monitor, next)?)?;
        }
        Ok(found)
    }
}

impl Holder {
    /// Returns whether the thread owns a monitor; `false` also if that is not certain.
    fn owns(&self, words: &MonitorWords) -> bool {
        match (words.owner, words.locker) {
            (0, _) => false,
            (ANONYMOUS, 0) => self.locks.contains(&words.object),
            (ANONYMOUS, locker) => self.stack.contains(&locker),
            (owner, _) => match self.owner_id {
                Some(id) => owner == id,
                None => owner == self.thread.0 || self.stack.contains(&owner),
            },
        }
    }
}
