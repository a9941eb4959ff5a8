//! Stacks named as they come, while their code is still there.
//!
//! Right for stacks that are told once and soon: what is on a stack is not freed while it
//! runs, and a moment later it is seldom gone. The kernel side knows code of different
//! compile ids as different stacks, so that a name holds for as long as its stack is known.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    own::remark,
    process::code::CodeMaps,
    stack::{
        Frame, Kind, Place,
        java_frames::Places,
        name::{Name, NativeNames},
        native::{Files, Symbols},
        raw::RawStack,
        thread_entry::cut_behind_entry,
    },
};

/// Names for the stacks of one JVM.
#[derive(Debug)]
pub struct LiveNames {
    pid: Pid,
    places: Places,
    signatures: bool,
    maps: CodeMaps,
    symbols: Symbols,
    native: NativeNames,
    /// When its mappings are looked at again, whatever stacks come.
    next_look: Instant,
    /// Which of its mappings the stack walker knows.
    told: Option<u64>,
}

/// A library that replaces another may lie at the same addresses: for so long, the old one's
/// name may be given to it.
const LOOK: Duration = Duration::from_secs(2);

/// So much is kept of what the Java frames of a JVM are.
const MAX_PLACES_SIZE: usize = 16 << 20;

impl LiveNames {
    /// For a JVM that has set itself up; methods with their parameters if wanted.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub fn new(pid: Pid, hotspot: &HotSpot, files: &mut Files, signatures: bool) -> Result<Self> {
        let mut maps = CodeMaps::default();
        if let Err(error) = maps.refresh(pid, &mut files.mapped) {
            // Gone in the meantime: then there are no stacks either.
            remark(|| format!("what process {pid} has mapped is unknown: {error}"));
        }
        let symbols = files.symbols(pid);
        Ok(Self {
            pid,
            places: Places::new(hotspot, true, signatures)?,
            signatures,
            native: NativeNames::new(maps.clone(), symbols.clone()),
            symbols,
            maps,
            next_look: Instant::now() + LOOK,
            told: None,
        })
    }

    /// Tells the stack walker what the process has mapped, if that is new.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub fn tell(&mut self, key: u64, walker: &mut Walker) -> Result<()> {
        let version = self.maps.version();
        if self.told != Some(version) {
            walker.set_mappings(key, &self.maps)?;
            self.told = Some(version);
        }
        Ok(())
    }

    /// Names a stack, outermost frame first. What lies behind the entry of its thread is
    /// left out.
    pub fn name(&mut self, hotspot: &HotSpot, files: &mut Files, raw: &RawStack) -> Vec<Frame> {
        // What is named here is handed out at once: it can be learnt anew at any time.
        if self.places.size() > MAX_PLACES_SIZE
            && let Ok(places) = Places::new(hotspot, true, self.signatures)
        {
            self.places = places;
        }
        let stack = self.places.resolve(hotspot, raw);
        let is_unmapped = |addr: Addr| addr.0 > 0 && self.maps.find(addr).is_none();
        let is_due = Instant::now() >= self.next_look;
        if (is_due || stack.addresses().any(is_unmapped)) && self.refresh(files) {
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

    /// Looks at the mappings again; whether they have changed.
    fn refresh(&mut self, files: &mut Files) -> bool {
        let before = self.maps.version();
        if let Err(error) = self.maps.refresh(self.pid, &mut files.mapped) {
            let pid = self.pid;
            remark(|| format!("what process {pid} has mapped by now is unknown: {error}"));
        }
        self.next_look = Instant::now() + LOOK;
        self.maps.version() != before
    }

    fn name_code(&mut self, addr: Addr, frames: &mut Vec<Frame>) {
        if !self.native.name(addr, 0, frames) {
            frames.push(Frame::new(Kind::Unknown, Arc::from("[unknown]")));
        }
    }
}
