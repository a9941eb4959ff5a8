//! What the Java frames of a JVM's stacks are, found out as soon as they are seen.
//!
//! Compiled code is freed and reused, and so are methods whose classes are unloaded. The
//! walker sends with each frame what tells one from the next: with code the compile id,
//! with a stack of interpreted methods how many classes the JVM had unloaded, which it
//! counts before it frees anything (`ClassLoadingService::notify_class_unloaded`,
//! hotspot/share/services/classLoadingService.cpp). A name is taken only while this still
//! holds. JVMs without performance data do not count: there the names of interpreted
//! methods are read again every second.
//!
//! Each place is read once, a moment after it is first sampled; what is gone by then may
//! still be known to a [`crate::stack::code::CodeLog`].

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{HotSpot, methods::Methods, pages::Pages};
use crate::{
    Addr, Result,
    stack::{
        Frame, Kind,
        code::SourceFrame,
        name::frames_of,
        walk::{Place, PlaceId, RawFrame, RawStack, Stack},
    },
};

/// More places than any program has that is worth profiling.
const MAX_PLACES: usize = 1_000_000;
/// How long names are believed where unloaded classes are not counted.
const MAX_AGE: Duration = Duration::from_secs(1);
/// There is no code.
const UNKNOWN: Place = Place::Code(Addr(0));

/// The Java frames of one JVM that were seen.
#[derive(Debug)]
pub struct Places {
    methods: Methods,
    signatures: bool,
    /// Whether compiled code is named here, too.
    compiled: bool,
    /// By address and compile id; `None` for what was gone already.
    code: HashMap<(Addr, u16), Option<PlaceId>>,
    /// By Method and bytecode index.
    interpreted: HashMap<(Addr, Option<u16>), PlaceId>,
    /// What `interpreted` is true of: unloaded classes, and when they were looked at.
    generation: u64,
    since: Instant,
    /// Innermost first.
    places: Vec<Arc<[Frame]>>,
    ids: HashMap<Arc<[Frame]>, PlaceId>,
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
            since: Instant::now(),
            places: Vec::new(),
            ids: HashMap::new(),
        })
    }

    /// What is known of a place: frames, innermost first, more than one where code was
    /// inlined.
    pub fn frames(&self, id: PlaceId) -> &[Frame] {
        self.places.get(id as usize).map_or(&[], |frames| frames)
    }

    /// Names the Java frames of a stack. Of what cannot be named any more, compiled code
    /// stays an address, and interpreted methods become code at address 0.
    pub fn resolve(&mut self, hotspot: &HotSpot, raw: &RawStack) -> Stack {
        if self.compiled {
            self.look(hotspot, raw);
        }
        let is_interpreted = |frame: &RawFrame| matches!(frame, RawFrame::Interpreted { .. });
        let is_current = raw.frames.iter().any(is_interpreted) && self.read(hotspot, raw);
        let place = |(i, frame): (usize, &RawFrame)| match *frame {
            RawFrame::Code { addr, compile_id } => {
                match self.code.get(&(inside(i, addr), compile_id)) {
                    Some(Some(id)) => Place::Named(*id),
                    _ => Place::Code(addr),
                }
            }
            RawFrame::Interpreted { method, bci } if is_current => {
                self.interpreted.get(&(method, bci)).map_or(UNKNOWN, |&id| Place::Named(id))
            }
            RawFrame::Interpreted { .. } => UNKNOWN,
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
                frames_of(&found.code, addr, self.signatures, &mut frames);
                self.intern(frames)
            });
            self.code.insert((addr, compile_id), id);
        }
    }

    /// Reads the interpreted methods of a stack that are new. Whether all that is known of
    /// interpreted methods is true of this stack.
    fn read(&mut self, hotspot: &HotSpot, raw: &RawStack) -> bool {
        let counted = hotspot.classes_unloaded();
        let now = counted.unwrap_or(0);
        let is_old = counted.is_none() && self.since.elapsed() > MAX_AGE;
        if now != self.generation || is_old || self.interpreted.len() >= MAX_PLACES {
            self.forget(now);
        }
        if raw.unloads != now {
            return false;
        }
        let mut pages = Pages::many(&hotspot.memory);
        let mut has_read = false;
        for frame in &raw.frames {
            let RawFrame::Interpreted { method, bci } = *frame else { continue };
            if self.interpreted.contains_key(&(method, bci)) {
                continue;
            }
            has_read = true;
            let Some(info) = self.methods.get(&mut pages, method) else { continue };
            let frame = SourceFrame {
                name: info.name.clone(),
                signature: info.signature.clone(),
                file: info.file.clone(),
                line: bci.map_or(0, |bci| info.line(bci.into())),
            };
            let frame = Frame::of_source(&frame, Kind::Interpreted, self.signatures);
            if let Some(id) = self.intern(vec![frame]) {
                self.interpreted.insert((method, bci), id);
            }
        }
        if has_read && hotspot.classes_unloaded().unwrap_or(0) != now {
            // What was read may have been gone already.
            self.forget(now);
            return false;
        }
        true
    }

    fn forget(&mut self, generation: u64) {
        self.interpreted.clear();
        self.methods.forget();
        self.generation = generation;
        self.since = Instant::now();
    }

    fn intern(&mut self, frames: Vec<Frame>) -> Option<PlaceId> {
        let frames: Arc<[Frame]> = frames.into();
        if let Some(&id) = self.ids.get(&frames) {
            return Some(id);
        }
        let id = PlaceId::try_from(self.places.len()).ok()?;
        if self.places.len() >= MAX_PLACES {
            return None;
        }
        self.places.push(Arc::clone(&frames));
        self.ids.insert(frames, id);
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
