//! Names of a JVM's Java frames, resolved as soon as a stack is received.
//!
//! HotSpot frees compiled code, and the methods of unloaded classes, and reuses their memory. Therefore the
//! walker sends data that distinguishes old from new: for compiled code, its compile id; for a stack with
//! interpreted methods, its generation, which is the number of classes that the JVM had unloaded at that
//! time. HotSpot increments that number before it frees anything
//! (`ClassLoadingService::notify_class_unloaded`, hotspot/share/services/classLoadingService.cpp). A method's
//! name is used only if it was read in the stack's generation, or if it was read both before and after that
//! generation with the same result. JVMs without performance data do not count unloaded classes; for these, a
//! generation lasts one second.
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
        code::{Lookup, LookupResult},
        methods::MethodInfo,
    },
    names::code::SourceFrame,
    stack::{
        Frame, Kind,
        name::frames_of,
        raw::{CodeLocation, LocationId, RawFrame, RawStack, Stack, short_compile_id},
    },
};

/// Maximum number of code locations; no program that is worth profiling has more.
const MAX_LOCATIONS: usize = 1_000_000;
/// Maximum number of methods; no program has more.
const MAX_METHODS: usize = 1_000_000;
/// Placeholder for an unknown frame: address 0, where there is no code.
const UNKNOWN: CodeLocation = CodeLocation::Code(Addr(0));

/// An interpreted method, and the generations in which it is known to exist.
#[derive(Debug)]
struct CachedMethod {
    info: Arc<MethodInfo>,
    /// Generations in which it was first and last read.
    since: u64,
    checked: u64,
    locations: HashMap<Option<u16>, LocationId>,
}

impl CachedMethod {
    /// Returns whether the method existed in a generation.
    fn exists_in(&self, generation: u64) -> bool {
        (self.since..=self.checked).contains(&generation)
    }
}

/// Frames of a code location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NamedLocation {
    /// Frames, innermost first.
    frames: Arc<[Frame]>,
    /// Whether no inlined frame is missing.
    is_sure: bool,
}

/// Names of the code locations seen since [`JavaFrames::take_names`] was last called.
#[derive(Debug, Default)]
pub(crate) struct LocationNames {
    all: Vec<NamedLocation>,
    ids: HashMap<NamedLocation, LocationId>,
    /// Size of the frames in bytes.
    frames_size: usize,
}

impl LocationNames {
    /// Returns the frames of a code location, innermost first: more than one if methods are inlined there.
    pub(crate) fn frames(&self, id: LocationId) -> &[Frame] {
        self.all.get(id as usize).map_or(&[], |named| &named.frames)
    }

    /// Returns whether [`Self::frames`] returns all frames of a code location. HotSpot records inlined
    /// methods only for calls, safepoint polls and instructions that can cause an exception. Code between
    /// these instructions may belong to further inlined methods.
    pub(crate) fn is_sure(&self, id: LocationId) -> bool {
        self.all.get(id as usize).is_none_or(|named| named.is_sure)
    }

    fn intern(&mut self, frames: Vec<Frame>, is_sure: bool) -> Option<LocationId> {
        let named = NamedLocation { frames: frames.into(), is_sure };
        if let Some(&id) = self.ids.get(&named) {
            return Some(id);
        }
        let id = LocationId::try_from(self.all.len()).ok()?;
        if self.all.len() >= MAX_LOCATIONS {
            return None;
        }
        self.frames_size += Frame::sum_of_sizes(&named.frames);
        self.all.push(named.clone());
        self.ids.insert(named, id);
        Some(id)
    }
}

/// Java code locations of one JVM, with their names.
#[derive(Debug)]
pub(crate) struct JavaFrames {
    lookup: Lookup,
    signatures: bool,
    /// Whether compiled code is named here, not only interpreted methods.
    compiled: bool,
    /// Compiled code by address and compile id; `None` if it had been freed already.
    code: HashMap<(Addr, u16), Option<LocationId>>,
    /// Interpreted methods by the address of their `Method`.
    interpreted: HashMap<Addr, CachedMethod>,
    /// Size of the names and lines of the interpreted methods in bytes.
    interpreted_size: usize,
    begin: Instant,
    names: LocationNames,
}

impl JavaFrames {
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
            interpreted_size: 0,
            begin: Instant::now(),
            names: LocationNames::default(),
        })
    }

    /// Makes frames have their origins, except those that are named already.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] that names the missing structure.
    pub(crate) fn read_origins(&mut self, hotspot: &HotSpot) -> Result<()> {
        self.lookup.read_origins(hotspot)
    }

    /// Returns its approximate size in bytes.
    pub fn size(&self) -> usize {
        /// Bytes of a table entry, without frames, names and lines.
        const CODE: usize = 48;
        const LOCATION: usize = 100;
        const METHOD: usize = 300;
        let locations = self.names.all.len() * LOCATION + self.names.frames_size;
        let methods = self.interpreted.len() * METHOD + self.interpreted_size;
        self.code.len() * CODE + locations + methods + self.lookup.size()
    }

    /// Returns the names resolved so far.
    pub(crate) fn names(&self) -> &LocationNames {
        &self.names
    }

    /// Removes and returns all names. Code locations seen later are read again.
    pub(crate) fn take_names(&mut self) -> LocationNames {
        self.code.clear();
        self.forget_interpreted();
        std::mem::take(&mut self.names)
    }

    /// Names the Java frames of a stack. If a name is no longer available, compiled code stays an address, and
    /// interpreted methods become code at address 0.
    pub fn resolve(&mut self, hotspot: &HotSpot, raw: &RawStack) -> Stack {
        self.prefetch_java_frames(hotspot, [raw]);
        let generation = self.generation(hotspot, raw);
        let location = |(i, frame): (usize, &RawFrame)| match *frame {
            RawFrame::Code { addr, compile_id } => {
                match self.code.get(&(lookup_address(i, addr), compile_id)) {
                    Some(Some(id)) => CodeLocation::Named(*id),
                    _ => CodeLocation::Code(addr),
                }
            }
            RawFrame::Interpreted { method, bci } => {
                self.interpreted(method, bci, generation).map_or(UNKNOWN, CodeLocation::Named)
            }
        };
        Stack { frames: raw.frames.iter().enumerate().map(location).collect() }
    }

    /// Reads the Java frames of several stacks together, because each request to the JVM's memory takes tens of
    /// microseconds.
    pub(crate) fn prefetch_java_frames<'a>(
        &mut self,
        hotspot: &HotSpot,
        stacks: impl IntoIterator<Item = &'a RawStack>,
    ) {
        if self.code.len() >= MAX_LOCATIONS {
            self.code.clear();
        }
        if self.interpreted.len() >= MAX_METHODS {
            self.forget_interpreted();
        }
        let (mut code, mut methods) = (BTreeSet::new(), BTreeSet::new());
        let mut oldest = u64::MAX;
        for raw in stacks {
            let generation = self.generation(hotspot, raw);
            let before = code.len() + methods.len();
            for (i, frame) in raw.frames.iter().enumerate() {
                match *frame {
                    RawFrame::Code { addr, compile_id } => {
                        let key = (lookup_address(i, addr), compile_id);
                        if self.compiled && !self.code.contains_key(&key) {
                            code.insert(key);
                        }
                    }
                    RawFrame::Interpreted { method, .. } => {
                        let known = self.interpreted.get(&method);
                        if !known.is_some_and(|known| known.exists_in(generation)) {
                            methods.insert(method);
                        }
                    }
                }
            }
            if code.len() + methods.len() > before {
                oldest = oldest.min(raw.unloads);
            }
        }
        if code.is_empty() && methods.is_empty() {
            return;
        }
        let mut addrs: Vec<_> = code.iter().map(|&(addr, _)| addr).collect();
        addrs.dedup();
        let methods: Vec<_> = methods.into_iter().collect();
        // Empty if the JVM has ended.
        let seen = self.lookup.look_up(hotspot, &addrs, &methods, oldest).unwrap_or_default();
        self.store(code, seen);
    }

    fn forget_interpreted(&mut self) {
        self.interpreted.clear();
        self.interpreted_size = 0;
    }

    /// Stores the names that were read.
    fn store(&mut self, code: BTreeSet<(Addr, u16)>, seen: LookupResult) {
        for (addr, compile_id) in code {
            let end = seen.code.partition_point(|found| found.start <= addr);
            let there = end.checked_sub(1).and_then(|at| seen.code.get(at));
            let there =
                there.filter(|f| addr < f.end && short_compile_id(f.compile_id) == compile_id);
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
                // Other classes may have been unloaded since the method was last read, but not the method's
                // class.
                Some(known) if known.info == info => known.checked = now,
                _ => {
                    let locations = HashMap::new();
                    self.interpreted_size += info.size();
                    let known = CachedMethod { info, since: now, checked: now, locations };
                    let old = self.interpreted.insert(method, known);
                    self.interpreted_size -= old.map_or(0, |old| old.info.size());
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
    fn interpreted(
        &mut self,
        method: Addr,
        bci: Option<u16>,
        generation: u64,
    ) -> Option<LocationId> {
        let known = self.interpreted.get(&method).filter(|known| known.exists_in(generation))?;
        if let Some(&id) = known.locations.get(&bci) {
            return Some(id);
        }
        let frame = SourceFrame {
            name: known.info.name.clone(),
            signature: known.info.signature.clone(),
            file: known.info.file.clone(),
            line: bci.map_or(0, |bci| known.info.line(bci.into())),
            origin: known.info.origin.clone(),
        };
        let frame = Frame::of_source(&frame, Kind::Interpreted, self.signatures);
        let id = self.names.intern(vec![frame], true)?;
        self.interpreted.get_mut(&method)?.locations.insert(bci, id);
        Some(id)
    }
}

/// Returns an address within the instruction of frame `i`: see [`Stack::lookups`].
fn lookup_address(i: usize, addr: Addr) -> Addr {
    Addr(addr.0.saturating_sub(u64::from(i > 0)))
}

/// Returns a stack without named frames.
pub fn without_names(raw: &RawStack) -> Stack {
    let location = |frame: &RawFrame| match *frame {
        RawFrame::Code { addr, .. } => CodeLocation::Code(addr),
        RawFrame::Interpreted { .. } => UNKNOWN,
    };
    Stack { frames: raw.frames.iter().map(location).collect() }
}
