//! Interpreted frames, named as soon as they are seen.
//!
//! The walker sends the address of a Method and a bytecode index. Methods go when their
//! classes are unloaded, and their memory may come to be another Method; the JVM counts
//! the classes that it unloads, before it frees anything
//! (`ClassLoadingService::notify_class_unloaded`, hotspot/share/services/). So a name is
//! taken only while this count is the one that came with the stack. JVMs without
//! performance data do not count: their names are read again every second.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::{HotSpot, methods::Methods, pages::Pages};
use crate::{
    Addr, Result,
    stack::{
        code::SourceFrame,
        walk::{Place, RawFrame, RawStack, SourceId, Stack},
    },
};

/// More places in interpreted methods than any program has that is worth profiling.
const MAX_PLACES: usize = 1_000_000;
/// How long names are believed where unloaded classes are not counted.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The interpreted frames of one JVM that were seen.
#[derive(Debug)]
pub struct Interpreted {
    methods: Methods,
    known: HashMap<(Addr, Option<u16>), SourceId>,
    /// What `known` is true of: unloaded classes, and when they were looked at.
    generation: u64,
    since: Instant,
    frames: Vec<SourceFrame>,
    ids: HashMap<SourceFrame, SourceId>,
}

impl Interpreted {
    /// For a JVM.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub fn new(hotspot: &HotSpot) -> Result<Self> {
        Ok(Self {
            methods: hotspot.methods()?,
            known: HashMap::new(),
            generation: 0,
            since: Instant::now(),
            frames: Vec::new(),
            ids: HashMap::new(),
        })
    }

    /// What was seen; a [`SourceId`] is an index into it.
    pub fn into_frames(self) -> Vec<SourceFrame> {
        self.frames
    }

    /// What was seen under a number.
    pub fn frame(&self, id: SourceId) -> Option<&SourceFrame> {
        self.frames.get(id as usize)
    }

    /// Names the interpreted frames of a stack. What cannot be named any more is
    /// [`Place::Code`] at address 0.
    pub fn resolve(&mut self, hotspot: &HotSpot, raw: &RawStack) -> Stack {
        let is_interpreted = |frame: &RawFrame| matches!(frame, RawFrame::Interpreted { .. });
        if !raw.frames.iter().any(is_interpreted) {
            return plain(raw);
        }
        let counted = hotspot.classes_unloaded();
        let now = counted.unwrap_or(0);
        let is_old = counted.is_none() && self.since.elapsed() > MAX_AGE;
        if now != self.generation || is_old {
            self.forget(now);
        }
        let is_current = raw.unloads == now;
        let mut has_read = false;
        let mut pages = Pages::many(&hotspot.memory);
        let place = |frame: &RawFrame| match *frame {
            RawFrame::Code(addr) => Place::Code(addr),
            RawFrame::Interpreted { .. } if !is_current => UNKNOWN,
            RawFrame::Interpreted { method, bci } => match self.known.get(&(method, bci)) {
                Some(&id) => Place::Interpreted(id),
                None => {
                    let found = self.read(&mut pages, method, bci);
                    has_read = true;
                    found.map_or(UNKNOWN, Place::Interpreted)
                }
            },
        };
        let mut places: Vec<_> = raw.frames.iter().map(place).collect();
        if has_read && hotspot.classes_unloaded().unwrap_or(0) != now {
            // What was read may have been gone already.
            self.forget(now);
            for place in &mut places {
                if matches!(place, Place::Interpreted(_)) {
                    *place = UNKNOWN;
                }
            }
        }
        Stack { places }
    }

    fn forget(&mut self, generation: u64) {
        self.known.clear();
        self.methods.forget();
        self.generation = generation;
        self.since = Instant::now();
    }

    fn read(&mut self, pages: &mut Pages<'_>, method: Addr, bci: Option<u16>) -> Option<SourceId> {
        let info = self.methods.get(pages, method)?;
        let frame = SourceFrame {
            name: info.name.clone(),
            signature: info.signature.clone(),
            file: info.file.clone(),
            line: bci.map_or(0, |bci| info.line(bci.into())),
        };
        let id = match self.ids.get(&frame) {
            Some(&id) => id,
            None if self.frames.len() >= MAX_PLACES => return None,
            None => {
                let id = SourceId::try_from(self.frames.len()).ok()?;
                self.frames.push(frame.clone());
                self.ids.insert(frame, id);
                id
            }
        };
        self.known.insert((method, bci), id);
        Some(id)
    }
}

/// There is no code.
const UNKNOWN: Place = Place::Code(Addr(0));

/// A stack without names for interpreted frames.
pub fn plain(raw: &RawStack) -> Stack {
    let place = |frame: &RawFrame| match *frame {
        RawFrame::Code(addr) => Place::Code(addr),
        RawFrame::Interpreted { .. } => UNKNOWN,
    };
    Stack { places: raw.frames.iter().map(place).collect() }
}
