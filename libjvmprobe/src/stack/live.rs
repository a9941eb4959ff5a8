//! Stacks named as they come, while their code is still there.
//!
//! Right for stacks that are told once and soon: what is on a stack is not freed while it
//! runs, and a moment later it is seldom gone. The kernel side knows code of different
//! compile ids as different stacks, so that a name holds for as long as its stack is known.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Frame, Kind, Place,
    code::Code,
    entry::cut_behind_entry,
    maps::{CodeMaps, FileCache},
    name::{Name, NativeNames, frames_of, interpreted_frame},
    native::Symbols,
    walk::RawStack,
};
use crate::{
    Addr, Pid, Result,
    hotspot::{HotSpot, interpreted::Interpreted, sampled::Sampled},
};

/// Names for the stacks of one JVM.
#[derive(Debug)]
pub struct LiveNames {
    pid: Pid,
    interpreted: Interpreted,
    sampled: Sampled,
    code: BTreeMap<Addr, (Addr, Code)>,
    maps: CodeMaps,
    native: NativeNames,
    signatures: bool,
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
        Ok(Self {
            pid,
            interpreted: Interpreted::new(hotspot)?,
            sampled: Sampled::default(),
            code: BTreeMap::new(),
            native: NativeNames::new(maps.clone(), Symbols::of_process(pid)),
            maps,
            signatures,
        })
    }

    /// What the process had mapped when it was last looked at.
    pub fn maps(&self) -> &CodeMaps {
        &self.maps
    }

    /// Names a stack, outermost frame first. What lies behind the entry of its thread is
    /// left out.
    pub fn name(&mut self, hotspot: &HotSpot, files: &mut FileCache, raw: &RawStack) -> Vec<Frame> {
        let stack = self.interpreted.resolve(hotspot, raw);
        let mut addrs: Vec<_> = stack.addresses().collect();
        addrs.sort_unstable();
        addrs.dedup();
        if addrs.iter().any(|&addr| self.maps.find(addr).is_none()) && self.refresh(files) {
            self.native = NativeNames::new(self.maps.clone(), Symbols::of_process(self.pid));
        }
        // Gone in the meantime: what is known must do.
        for (start, size, code) in hotspot.look(&mut self.sampled, &addrs).unwrap_or_default() {
            self.learn(start, Addr(start.0.saturating_add(size)), code);
        }
        let mut frames = Vec::new();
        for place in stack.lookups() {
            match place {
                Place::Code(addr) => self.name_code(addr, &mut frames),
                Place::Interpreted(id) => {
                    let frame = self.interpreted.frame(id);
                    frames.extend(frame.map(|f| interpreted_frame(f, self.signatures)));
                }
            }
        }
        cut_behind_entry(&mut frames);
        frames.reverse();
        frames
    }

    /// Looks at the mappings again; whether there are new ones.
    fn refresh(&mut self, files: &mut FileCache) -> bool {
        let before = self.maps.iter().count();
        self.maps.refresh(self.pid, files).is_ok() && self.maps.iter().count() != before
    }

    fn learn(&mut self, start: Addr, end: Addr, code: Code) {
        if let Some((known_end, known)) = self.code.get_mut(&start)
            && *known_end == end
            && known.name == code.name
        {
            known.add_inlined(&code);
            return;
        }
        let before = self.code.range(..end).rev();
        let gone = before.take_while(|(_, (end, _))| *end > start);
        for at in gone.map(|(&at, _)| at).collect::<Vec<_>>() {
            self.code.remove(&at);
        }
        self.code.insert(start, (end, code));
    }

    fn name_code(&mut self, addr: Addr, frames: &mut Vec<Frame>) {
        match self.code.range(..=addr).next_back() {
            Some((_, (end, code))) if addr < *end => {
                frames_of(code, addr, self.signatures, frames);
            }
            _ if self.native.name(addr, 0, frames) => {}
            _ => frames.push(Frame::new(Kind::Unknown, Arc::from("[unknown]"))),
        }
    }
}
