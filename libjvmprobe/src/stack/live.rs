//! Stacks named as they come, while their code is still there.
//!
//! Right for stacks that are told once and soon: what is on a stack is not freed while it
//! runs, and a moment later it is seldom gone. The kernel side knows code of different
//! compile ids as different stacks, so that a name holds for as long as its stack is known.

use std::sync::Arc;

use super::{
    Frame, Kind, Place,
    entry::cut_behind_entry,
    maps::{CodeMaps, FileCache},
    name::{Name, NativeNames},
    native::Symbols,
    walk::RawStack,
};
use crate::{
    Addr, Pid, Result,
    hotspot::{HotSpot, places::Places},
};

/// Names for the stacks of one JVM.
#[derive(Debug)]
pub struct LiveNames {
    pid: Pid,
    places: Places,
    maps: CodeMaps,
    symbols: Symbols,
    native: NativeNames,
}

impl LiveNames {
    /// For a JVM that has set itself up; methods with their parameters if wanted.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub fn new(
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut FileCache,
        signatures: bool,
    ) -> Result<Self> {
        let mut maps = CodeMaps::default();
        // Gone in the meantime: then there are no stacks either.
        let _ = maps.refresh(pid, files);
        let symbols = files.symbols();
        Ok(Self {
            pid,
            places: Places::new(hotspot, true, signatures)?,
            native: NativeNames::new(maps.clone(), symbols.clone()),
            symbols,
            maps,
        })
    }

    /// What the process had mapped when it was last looked at.
    pub fn maps(&self) -> &CodeMaps {
        &self.maps
    }

    /// Names a stack, outermost frame first. What lies behind the entry of its thread is
    /// left out.
    pub fn name(&mut self, hotspot: &HotSpot, files: &mut FileCache, raw: &RawStack) -> Vec<Frame> {
        let stack = self.places.resolve(hotspot, raw);
        let is_unmapped = |addr: Addr| addr.0 > 0 && self.maps.find(addr).is_none();
        if stack.addresses().any(is_unmapped) && self.refresh(files) {
            self.native = NativeNames::new(self.maps.clone(), self.symbols.clone());
        }
        let mut frames = Vec::new();
        for place in stack.lookups() {
            match place {
                Place::Code(addr) => self.name_code(addr, &mut frames),
                Place::Named(id) => frames.extend_from_slice(self.places.frames(id)),
            }
        }
        cut_behind_entry(&mut frames, usize::MAX);
        frames.reverse();
        frames
    }

    /// Looks at the mappings again; whether there are new ones.
    fn refresh(&mut self, files: &mut FileCache) -> bool {
        let before = self.maps.iter().count();
        self.maps.refresh(self.pid, files).is_ok() && self.maps.iter().count() != before
    }

    fn name_code(&mut self, addr: Addr, frames: &mut Vec<Frame>) {
        if !self.native.name(addr, 0, frames) {
            frames.push(Frame::new(Kind::Unknown, Arc::from("[unknown]")));
        }
    }
}
