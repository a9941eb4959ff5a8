//! Names of a JVM's Java frames, resolved as soon as a stack is received.
//!
//! Compiled code is freed and its memory reused, and so are methods whose classes are unloaded. Therefore the
//! walker sends data that distinguishes old from new: for compiled code, its compile id; for a stack with
//! interpreted methods, its generation, which is the number of classes that the JVM had unloaded at that
//! time. HotSpot increments that number before it frees anything
//! (`ClassLoadingService::notify_class_unloaded`, hotspot/share/services/classLoadingService.cpp). A method's
//! name is used only if it was read in the stack's generation, or with the same result before and after it.
//! JVMs without performance data do not count unloaded classes; for these, a generation lasts one second.
//!
//! Each code location is read once, shortly after it was first sampled. Code that has been freed by then may still be
//! known to a `crate::stack::code_log::CodeLog`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        code::{Lookup, Seen},
        methods::MethodInfo,
    },
    names::code::SourceFrame,
    stack::{
        Frame, Kind,
        name::frames_of,
        raw::{Place, PlaceId, RawFrame, RawStack, Stack},
    },
};

/// Maximum number of code locations; no program that is worth profiling has more.
const MAX_PLACES: usize = 1_000_000;
/// Maximum number of methods; no program has more.
const MAX_METHODS: usize = 1_000_000;
/// Placeholder for an unknown frame: address 0, where there is no code.
const UNKNOWN: Place = Place::Code(Addr(0));

/// An interpreted method, and the generations in which it is known to exist.
#[derive(Debug)]
struct CachedMethod {
    info: Arc<MethodInfo>,
    /// Generations in which it was first and last read.
    since: u64,
    checked: u64,
    places: HashMap<Option<u16>, PlaceId>,
}

impl CachedMethod {
    /// Returns whether the method existed in a generation.
    fn holds(&self, generation: u64) -> bool {
        (self.since..=self.checked).contains(&generation)
    }
}

/// Frames of a code location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Named {
    /// Frames, innermost first.
    frames: Arc<[Frame]>,
    /// Whether no inlined frame is missing.
    is_sure: bool,
}

/// Names of the code locations seen since [`Places::take_names`] was last called.
#[derive(Debug, Default)]
pub(crate) struct PlaceNames {
    all: Vec<Named>,
    ids: HashMap<Named, PlaceId>,
}

impl PlaceNames {
    /// Returns the frames of a code location, innermost first: more than one if methods are inlined there.
    pub(crate) fn frames(&self, id: PlaceId) -> &[Frame] {
        self.all.get(id as usize).map_or(&[], |named| &named.frames)
    }

    /// Returns whether these are all frames of a code location. HotSpot records inlined methods only for
    /// calls and other instructions that can stop or fail. Code between these may belong to further inlined
    /// methods.
    pub(crate) fn is_sure(&self, id: PlaceId) -> bool {
        self.all.get(id as usize).is_none_or(|named| named.is_sure)
    }

    fn intern(&mut self, frames: Vec<Frame>, is_sure: bool) -> Option<PlaceId> {
        let named = Named { frames: frames.into(), is_sure };
        if let Some(&id) = self.ids.get(&named) {
            return Some(id);
        }
        let id = PlaceId::try_from(self.all.len()).ok()?;
        if self.all.len() >= MAX_PLACES {
            return None;
        }
        self.all.push(named.clone());
        self.ids.insert(named, id);
        Some(id)
    }
}

/// Java code locations of one JVM, with their names.
#[derive(Debug)]
pub(crate) struct Places {
    lookup: Lookup,
    signatures: bool,
    /// Whether compiled code is named here, not only interpreted methods.
    compiled: bool,
    /// Compiled code by address and compile id; `None` if it had been freed already.
    code: HashMap<(Addr, u16), Option<PlaceId>>,
    /// Interpreted methods by the address of their `Method`.
    interpreted: HashMap<Addr, CachedMethod>,
    begin: Instant,
    names: PlaceNames,
}

impl Places {
    /// Makes an empty table for a JVM. With `compiled`, it names compiled code and interpreted methods,
    /// otherwise only interpreted methods. With `signatures`, names include the parameters.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] that names the missing structure.
    pub fn new(hotspot: &HotSpot, compiled: bool, signatures: bool) -> Result<Self> {
        Ok(Self {
            lookup: hotspot.lookup()?,
            signatures,
            compiled,
            code: HashMap::new(),
            interpreted: HashMap::new(),
            begin: Instant::now(),
            names: PlaceNames::default(),
        })
    }

    /// Returns its approximate size in bytes.
    pub fn size(&self) -> usize {
        /// Bytes of a table entry and of the data that it refers to.
        const CODE: usize = 48;
        const PLACE: usize = 300;
        const METHOD: usize = 500;
        let known = self.code.len() * CODE + self.names.all.len() * PLACE;
        known + self.interpreted.len() * METHOD + self.lookup.size()
    }

    /// Returns the names resolved so far.
    pub(crate) fn names(&self) -> &PlaceNames {
        &self.names
    }

    /// Removes and returns all names. Code locations seen later are read again.
    pub(crate) fn take_names(&mut self) -> PlaceNames {
        self.code.clear();
        self.interpreted.clear();
        std::mem::take(&mut self.names)
    }

    /// Names the Java frames of a stack. If a name is no longer available, compiled code stays an address, and
    /// interpreted methods become code at address 0.
    pub fn resolve(&mut self, hotspot: &HotSpot, raw: &RawStack) -> Stack {
        self.prefetch_java_frames(hotspot, [raw]);
        let generation = self.generation(hotspot, raw);
        let place = |(i, frame): (usize, &RawFrame)| match *frame {
            RawFrame::Code { addr, compile_id } => {
                match self.code.get(&(inside(i, addr), compile_id)) {
                    Some(Some(id)) => Place::Named(*id),
                    _ => Place::Code(addr),
                }
            }
            RawFrame::Interpreted { method, bci } => {
                self.interpreted(method, bci, generation).map_or(UNKNOWN, Place::Named)
            }
        };
        Stack { places: raw.frames.iter().enumerate().map(place).collect() }
    }

    /// Reads the Java frames of several stacks together, because each request to the JVM's memory takes tens of
    /// microseconds.
    pub(crate) fn prefetch_java_frames<'a>(
        &mut self,
        hotspot: &HotSpot,
        stacks: impl IntoIterator<Item = &'a RawStack>,
    ) {
        if self.code.len() >= MAX_PLACES {
            self.code.clear();
        }
        if self.interpreted.len() >= MAX_METHODS {
            self.interpreted.clear();
        }
        let (mut code, mut methods) = (BTreeSet::new(), BTreeSet::new());
        for raw in stacks {
            let generation = self.generation(hotspot, raw);
            for (i, frame) in raw.frames.iter().enumerate() {
                match *frame {
                    RawFrame::Code { addr, compile_id } => {
                        let place = (inside(i, addr), compile_id);
                        if self.compiled && !self.code.contains_key(&place) {
                            code.insert(place);
                        }
                    }
                    RawFrame::Interpreted { method, .. } => {
                        let known = self.interpreted.get(&method);
                        if !known.is_some_and(|known| known.holds(generation)) {
                            methods.insert(method);
                        }
                    }
                }
            }
        }
        if code.is_empty() && methods.is_empty() {
            return;
        }
        let mut addrs: Vec<_> = code.iter().map(|&(addr, _)| addr).collect();
        addrs.dedup();
        let methods: Vec<_> = methods.into_iter().collect();
        // Empty if the JVM has ended.
        let seen = self.lookup.look_up(hotspot, &addrs, &methods).unwrap_or_default();
        self.take(code, seen);
    }

    /// Stores the names that were read.
    fn take(&mut self, code: BTreeSet<(Addr, u16)>, seen: Seen) {
        for (addr, compile_id) in code {
            let behind = seen.code.partition_point(|found| found.start <= addr);
            let there = behind.checked_sub(1).and_then(|at| seen.code.get(at));
            let there = there.filter(|f| addr < f.end && f.compile_id as u16 == compile_id);
            let id = there.and_then(|found| {
                let mut frames = Vec::new();
                let is_sure = frames_of(&found.code, addr, self.signatures, &mut frames);
                self.names.intern(frames, is_sure)
            });
            self.code.insert((addr, compile_id), id);
        }
        let now = seen.unloaded.unwrap_or_else(|| self.seconds());
        for (method, info) in seen.methods {
            match self.interpreted.get_mut(&method) {
                // Other classes may have been unloaded since, but this one was not.
                Some(known) if known.info == info => known.checked = now,
                _ => {
                    let places = HashMap::new();
                    let known = CachedMethod { info, since: now, checked: now, places };
                    self.interpreted.insert(method, known);
                }
            }
        }
    }

    /// Returns the generation of a stack.
    fn generation(&self, hotspot: &HotSpot, raw: &RawStack) -> u64 {
        if hotspot.counts_unloaded_classes() { raw.unloads } else { self.seconds() }
    }

    fn seconds(&self) -> u64 {
        self.begin.elapsed().as_secs()
    }

    /// Returns the code location of a bytecode index in an interpreted method.
    fn interpreted(&mut self, method: Addr, bci: Option<u16>, generation: u64) -> Option<PlaceId> {
        let known = self.interpreted.get(&method).filter(|known| known.holds(generation))?;
        if let Some(&id) = known.places.get(&bci) {
            return Some(id);
        }
        let frame = SourceFrame {
            name: known.info.name.clone(),
            signature: known.info.signature.clone(),
            file: known.info.file.clone(),
            line: bci.map_or(0, |bci| known.info.line(bci.into())),
        };
        let frame = Frame::of_source(&frame, Kind::Interpreted, self.signatures);
        let id = self.names.intern(vec![frame], true)?;
        self.interpreted.get_mut(&method)?.places.insert(bci, id);
        Some(id)
    }
}

/// Returns an address within the instruction of frame `i`: see [`Stack::lookups`].
fn inside(i: usize, addr: Addr) -> Addr {
    Addr(addr.0.saturating_sub(u64::from(i > 0)))
}

/// Returns a stack without named frames.
pub fn plain(raw: &RawStack) -> Stack {
    let place = |frame: &RawFrame| match *frame {
        RawFrame::Code { addr, .. } => Place::Code(addr),
        RawFrame::Interpreted { .. } => UNKNOWN,
    };
    Stack { places: raw.frames.iter().map(place).collect() }
}
