//! What the Java frames of a JVM's stacks are, found out as soon as they are seen.
//!
//! Compiled code is freed and reused, and so are methods whose classes are unloaded. The
//! walker sends with each frame what tells one from the next: with code the compile id,
//! with a stack of interpreted methods how many classes the JVM had unloaded, which it
//! counts before it frees anything (`ClassLoadingService::notify_class_unloaded`,
//! hotspot/share/services/classLoadingService.cpp): a generation. A name is taken only if
//! it was the method's in the stack's generation, or before it and after. JVMs without
//! performance data do not count: there a generation lasts a second.
//!
//! Each place is read once, a moment after it is first sampled; what is gone by then may
//! still be known to a [`crate::stack::code_log::CodeLog`].

use std::{collections::HashMap, sync::Arc, time::Instant};

use crate::{
    Addr, Result,
    hotspot::{
        HotSpot,
        methods::{MethodInfo, MethodReader},
    },
    names::code::SourceFrame,
    stack::{
        Frame, Kind,
        name::frames_of,
        raw::{Place, PlaceId, RawFrame, RawStack, Stack},
    },
};

/// More places than any program has that is worth profiling.
const MAX_PLACES: usize = 1_000_000;
/// More methods than any program has.
const MAX_METHODS: usize = 1_000_000;
/// There is no code.
const UNKNOWN: Place = Place::Code(Addr(0));

/// An interpreted method, and when it was there.
#[derive(Debug)]
struct Known {
    info: Arc<MethodInfo>,
    /// The generations in which it was first and last read.
    since: u64,
    checked: u64,
    places: HashMap<Option<u16>, PlaceId>,
}

impl Known {
    /// Whether it was there in a generation.
    fn holds(&self, generation: u64) -> bool {
        (self.since..=self.checked).contains(&generation)
    }
}

/// What a place is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Named {
    /// Innermost first.
    frames: Arc<[Frame]>,
    /// Whether there are no more.
    is_sure: bool,
}

/// The Java frames of one JVM that were seen.
#[derive(Debug)]
pub struct Places {
    methods: MethodReader,
    signatures: bool,
    /// Whether compiled code is named here, too.
    compiled: bool,
    /// By address and compile id; `None` for what was gone already.
    code: HashMap<(Addr, u16), Option<PlaceId>>,
    /// By Method.
    interpreted: HashMap<Addr, Known>,
    /// Unloaded classes, when they were last counted: what `methods` is true of.
    generation: u64,
    begin: Instant,
    places: Vec<Named>,
    ids: HashMap<Named, PlaceId>,
}

impl Places {
    /// For a JVM. Compiled code, too, or interpreted methods only; with their parameters
    /// if wanted.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub fn new(hotspot: &HotSpot, compiled: bool, signatures: bool) -> Result<Self> {
        Ok(Self {
            methods: hotspot.methods()?,
            signatures,
            compiled,
            code: HashMap::new(),
            interpreted: HashMap::new(),
            generation: 0,
            begin: Instant::now(),
            places: Vec::new(),
            ids: HashMap::new(),
        })
    }

    /// About how many bytes it takes.
    pub fn size(&self) -> usize {
        /// What stands in a table, and what it refers to.
        const CODE: usize = 48;
        const PLACE: usize = 300;
        const METHOD: usize = 500;
        self.code.len() * CODE + self.places.len() * PLACE + self.interpreted.len() * METHOD
    }

    /// What is known of a place: frames, innermost first, more than one where code was
    /// inlined.
    pub(crate) fn frames(&self, id: PlaceId) -> &[Frame] {
        self.places.get(id as usize).map_or(&[], |named| &named.frames)
    }

    /// Whether these are all frames of a place: between two calls of a compiled method it may
    /// be that something more was inlined.
    pub(crate) fn is_sure(&self, id: PlaceId) -> bool {
        self.places.get(id as usize).is_none_or(|named| named.is_sure)
    }

    /// Names the Java frames of a stack. Of what cannot be named any more, compiled code
    /// stays an address, and interpreted methods become code at address 0.
    pub fn resolve(&mut self, hotspot: &HotSpot, raw: &RawStack) -> Stack {
        if self.compiled {
            self.look(hotspot, raw);
        }
        let is_interpreted = |frame: &RawFrame| matches!(frame, RawFrame::Interpreted { .. });
        let generation = match raw.frames.iter().any(is_interpreted) {
            true => self.read(hotspot, raw),
            false => 0,
        };
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

    /// Looks at the compiled code of a stack that is new.
    fn look(&mut self, hotspot: &HotSpot, raw: &RawStack) {
        if self.code.len() >= MAX_PLACES {
            self.code.clear();
        }
        let place = |(i, frame): (usize, &RawFrame)| match *frame {
            RawFrame::Code { addr, compile_id } => Some((inside(i, addr), compile_id)),
            RawFrame::Interpreted { .. } => None,
        };
        let all = raw.frames.iter().enumerate().filter_map(place);
        let mut new: Vec<_> = all.filter(|place| !self.code.contains_key(place)).collect();
        if new.is_empty() {
            return;
        }
        new.sort_unstable();
        new.dedup();
        let mut addrs: Vec<_> = new.iter().map(|&(addr, _)| addr).collect();
        addrs.dedup();
        // Gone: then nothing is found.
        let found = hotspot.look(&addrs).unwrap_or_default();
        for (addr, compile_id) in new {
            let behind = found.partition_point(|found| found.start <= addr);
            let there = behind.checked_sub(1).and_then(|at| found.get(at));
            let there = there.filter(|f| addr < f.end && f.compile_id as u16 == compile_id);
            let id = there.and_then(|found| {
                let mut frames = Vec::new();
                let is_sure = frames_of(&found.code, addr, self.signatures, &mut frames);
                self.intern(frames, is_sure)
            });
            self.code.insert((addr, compile_id), id);
        }
    }

    /// Gets to know the interpreted methods of a stack. Returns the generation that the
    /// stack belongs to.
    fn read(&mut self, hotspot: &HotSpot, raw: &RawStack) -> u64 {
        let counted = hotspot.classes_unloaded();
        let now = counted.unwrap_or_else(|| self.begin.elapsed().as_secs());
        let of_stack = if counted.is_some() { raw.unloads } else { now };
        if now != self.generation {
            self.methods.forget();
            self.generation = now;
        }
        if self.interpreted.len() >= MAX_METHODS {
            self.interpreted.clear();
        }
        let is_known = |known: &Known| known.holds(of_stack) || known.checked == now;
        let unknown = raw.frames.iter().filter_map(|frame| match *frame {
            RawFrame::Interpreted { method, .. } => {
                (!self.interpreted.get(&method).is_some_and(is_known)).then_some(method)
            }
            RawFrame::Code { .. } => None,
        });
        let read = self.methods.read(hotspot, unknown);
        // Classes go one after the other while the application runs, with some collectors.
        // What is as it was before they went has not gone; of what is new, nothing is sure.
        let is_sure = read.is_empty() || counted.is_none() || hotspot.classes_unloaded() == counted;
        if !is_sure {
            self.methods.forget();
        }
        for (method, info) in read {
            match self.interpreted.get_mut(&method) {
                Some(known) if known.info == info => known.checked = now,
                _ if !is_sure => {}
                _ => {
                    let places = HashMap::new();
                    let known = Known { info, since: now, checked: now, places };
                    self.interpreted.insert(method, known);
                }
            }
        }
        of_stack
    }

    /// A place in an interpreted method.
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
        let id = self.intern(vec![frame], true)?;
        self.interpreted.get_mut(&method)?.places.insert(bci, id);
        Some(id)
    }

    fn intern(&mut self, frames: Vec<Frame>, is_sure: bool) -> Option<PlaceId> {
        let named = Named { frames: frames.into(), is_sure };
        if let Some(&id) = self.ids.get(&named) {
            return Some(id);
        }
        let id = PlaceId::try_from(self.places.len()).ok()?;
        if self.places.len() >= MAX_PLACES {
            return None;
        }
        self.places.push(named.clone());
        self.ids.insert(named, id);
        Some(id)
    }
}

/// An address that lies in the instruction that a frame is at: see [`Stack::lookups`].
fn inside(i: usize, addr: Addr) -> Addr {
    Addr(addr.0.saturating_sub(u64::from(i > 0)))
}

/// A stack of which no frame is named.
pub fn plain(raw: &RawStack) -> Stack {
    let place = |frame: &RawFrame| match *frame {
        RawFrame::Code { addr, .. } => Place::Code(addr),
        RawFrame::Interpreted { .. } => UNKNOWN,
    };
    Stack { places: raw.frames.iter().map(place).collect() }
}
