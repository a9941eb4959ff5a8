//! Stacks named as they come, while their code is still there.
//!
//! Right for stacks that are told once and soon: what is on a stack is not freed while it
//! runs, and a moment later it is seldom gone. The kernel side knows code of different
//! compile ids as different stacks, so that a name holds for as long as its stack is known.

use std::time::{Duration, Instant};

use crate::{
    Addr, Pid, Result,
    bpf::walker::Walker,
    hotspot::HotSpot,
    own::remark,
    process::code::CodeMaps,
    stack::{
        Frame, Kind, Place, Stack,
        java_frames::{PlaceNames, Places},
        name::{Name, NativeNames},
        native::{Files, Symbols},
        raw::RawStack,
        thread_entry::cut_behind_entry,
    },
};

/// Names for the stacks of one JVM.
#[derive(Debug)]
pub struct StackNamer {
    /// What the kernel side knows it by.
    key: u64,
    pid: Pid,
    places: Places,
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

impl StackNamer {
    /// For a JVM that has set itself up, which the stack walker is told of; methods with their
    /// parameters if wanted.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing: then its stacks can be walked by frame
    /// pointers only.
    pub fn new(
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        signatures: bool,
        walker: &mut Walker,
    ) -> Result<Self> {
        let mut namer = Self { key, ..Self::alone(pid, hotspot, files, signatures)? };
        walker.add_jvm(key, &hotspot.walking()?);
        namer.tell(walker)?;
        Ok(namer)
    }

    /// The same for stacks that are walked otherwise.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] naming what is missing.
    pub fn alone(pid: Pid, hotspot: &HotSpot, files: &mut Files, signatures: bool) -> Result<Self> {
        let mut maps = CodeMaps::default();
        if let Err(error) = maps.refresh(pid, &files.mapped) {
            // Gone in the meantime: then there are no stacks either.
            remark(|| format!("what process {pid} has mapped is unknown: {error}"));
        }
        let symbols = files.symbols(pid);
        Ok(Self {
            key: 0,
            pid,
            places: Places::new(hotspot, true, signatures)?,
            native: NativeNames::new(maps.clone(), symbols),
            symbols,
            maps,
            next_look: Instant::now() + LOOK,
            told: None,
        })
    }

    /// Tells the stack walker what the process has mapped, if that is new.
    fn tell(&mut self, walker: &mut Walker) -> Result<()> {
        let version = self.maps.version();
        if self.told != Some(version) {
            walker.set_mappings(self.key, &self.maps)?;
            self.told = Some(version);
        }
        Ok(())
    }

    /// Names a stack, outermost frame first. What lies behind the entry of its thread is
    /// left out. The walker learns of files that were mapped since.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub fn name(
        &mut self,
        hotspot: &HotSpot,
        files: &mut Files,
        walker: &mut Walker,
        raw: &RawStack,
    ) -> Result<Vec<Frame>> {
        let frames = self.name_alone(hotspot, files, raw);
        self.tell(walker)?;
        Ok(frames)
    }

    /// The same, and no walker learns anything.
    pub fn name_alone(
        &mut self,
        hotspot: &HotSpot,
        files: &mut Files,
        raw: &RawStack,
    ) -> Vec<Frame> {
        // What is named here is handed out at once: it can be learnt anew at any time.
        if self.places.size() > MAX_PLACES_SIZE {
            self.places.take_names();
        }
        let stack = self.places.resolve(hotspot, raw);
        let is_unmapped = |addr: Addr| addr.0 > 0 && self.maps.find(addr).is_none();
        let is_due = Instant::now() >= self.next_look;
        if (is_due || stack.addresses().any(is_unmapped)) && self.refresh(files) {
            self.native = NativeNames::new(self.maps.clone(), self.symbols);
        }
        let native = &mut self.native;
        let named = name_stack(&stack, None, Some(self.places.names()), |addr, frames| {
            native.name(addr, 0, frames)
        });
        named.frames
    }

    /// Looks at the mappings again; whether they have changed.
    fn refresh(&mut self, files: &mut Files) -> bool {
        let before = self.maps.version();
        if let Err(error) = self.maps.refresh(self.pid, &files.mapped) {
            let pid = self.pid;
            remark(|| format!("what process {pid} has mapped by now is unknown: {error}"));
        }
        self.next_look = Instant::now() + LOOK;
        self.maps.version() != before
    }
}

/// A stack with names.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedStack {
    /// The frames, outermost first; what lies behind the entry of the thread is left out.
    pub frames: Vec<Frame>,
    /// Whether it goes back to where its thread began, and each step was known.
    pub complete: bool,
    /// Whether methods that were inlined may be missing.
    pub unsure: bool,
}

/// Names a stack. The steps from the frame `known` on were guesses, if there is one. `code`
/// appends what is at an address, and says whether it knows.
pub(crate) fn name_stack(
    stack: &Stack,
    known: Option<usize>,
    java: Option<&PlaceNames>,
    mut code: impl FnMut(Addr, &mut Vec<Frame>) -> bool,
) -> NamedStack {
    let mut named = NamedStack::default();
    let frames = &mut named.frames;
    // The same in frames with names, of which one place may have several.
    let mut known_frames = usize::MAX;
    for (i, place) in stack.lookups().enumerate() {
        if known == Some(i) {
            known_frames = frames.len();
        }
        match place {
            Place::Code(addr) => {
                if !code(addr, frames) {
                    frames.push(Frame::new(Kind::Unknown, "[unknown]"));
                }
            }
            Place::Named(id) => {
                if let Some(java) = java {
                    frames.extend_from_slice(java.frames(id));
                    named.unsure |= !java.is_sure(id);
                }
            }
        }
    }
    named.complete = cut_behind_entry(frames, known_frames);
    frames.reverse();
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::{java_frames, raw::RawFrame};

    fn stack(addrs: &[u64]) -> Stack {
        let frame = |&addr: &u64| RawFrame::Code { addr: Addr(addr), compile_id: 0 };
        java_frames::plain(&RawStack {
            target: 1,
            unloads: 0,
            frames: addrs.iter().map(frame).collect(),
        })
    }

    /// The first frame is where it is, each other one behind a call.
    fn names(addr: Addr, frames: &mut Vec<Frame>) -> bool {
        let name = match addr.0 {
            0x10 => "leaf",
            0x1f | 0x20 => "caller",
            0x2f | 0x30 => "start_thread",
            _ => return false,
        };
        frames.push(Frame::new(Kind::Native, name));
        true
    }

    fn named(addrs: &[u64], known: Option<usize>) -> (Vec<String>, bool) {
        let named = name_stack(&stack(addrs), known, None, names);
        (named.frames.iter().map(|frame| frame.name.to_string()).collect(), named.complete)
    }

    #[test]
    fn a_stack_is_whole_where_each_step_to_the_entry_was_known() {
        let all = ["start_thread", "caller", "leaf"].map(String::from).to_vec();
        assert_eq!(named(&[0x10, 0x20, 0x30], None), (all.clone(), true));
        assert_eq!(named(&[0x10, 0x20, 0x30, 0x99], None), (all.clone(), true), "cut behind");
        assert_eq!(named(&[0x10, 0x20, 0x30], Some(2)), (all, false), "a guess led there");
        assert!(!named(&[0x10, 0x20], None).1);
    }

    #[test]
    fn what_nobody_knows_is_unknown() {
        assert_eq!(named(&[0x99], None).0, ["[unknown]"]);
    }
}
