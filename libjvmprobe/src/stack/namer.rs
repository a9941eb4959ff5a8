//! Names stacks one by one as they arrive, while their code still exists.
//!
//! This suits stacks that are sent once and soon after they were walked: code is not freed while it is on a
//! thread's stack, and is rarely freed shortly afterwards. The kernel side treats stacks that differ in a
//! compile id as different stacks, so the names given to a stack remain valid.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    Addr, Pid, Result,
    bpf::walker::Walker,
    hotspot::{HotSpot, walking::JvmLayout},
    process::code::{CodeMaps, RereadLimit},
    stack::{
        CodeLocation, Frame, Kind, Stack,
        java_frames::{JavaFrames, LocationNames},
        name::NativeNames,
        native::{Files, Symbols},
        raw::RawStack,
        thread_entry::cut_beyond_entry,
    },
};

/// Names the stacks of one JVM.
#[derive(Debug)]
pub struct StackNamer {
    /// Key of the process in BPF maps.
    key: u64,
    /// The process whose mappings are read again; `None` if they do not change.
    pid: Option<Pid>,
    java_frames: JavaFrames,
    maps: CodeMaps,
    symbols: Symbols,
    native: NativeNames,
    /// Time at which the mappings are read again even if no unknown address occurs.
    next_reread: Instant,
    reread_limit: RereadLimit,
    /// Version of the mappings that the stack walker has.
    walker_version: Option<u64>,
}

/// Interval between reads of the mappings. If a library is replaced by another one at the same addresses, the old
/// library's names may be used for this long.
const REREAD_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum size in bytes of the cached names of a JVM's Java frames.
const MAX_NAMES_SIZE: usize = 16 << 20;
/// Maximum time between two re-reads because of unmapped addresses. A stack is named only once, so a frame in a library
/// that was loaded meanwhile remains without a name.
const MAX_REREAD_INTERVAL: Duration = Duration::from_millis(200);

impl StackNamer {
    /// Makes the namer of a JVM that has finished starting, and configures the stack walker for it. With `signatures`,
    /// method names include the parameters.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] that names the missing structure; in that case, the JVM's stacks can be
    /// walked by frame pointers only.
    pub fn new(
        key: u64,
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        signatures: bool,
        walker: &mut Walker,
    ) -> Result<Self> {
        let mut namer = Self::without_walker(pid, hotspot, files, signatures)?;
        namer.set_walker(key, &hotspot.walking()?, walker)?;
        Ok(namer)
    }

    /// Makes the namer of a JVM whose stacks are not walked by [`Walker`].
    ///
    /// # Errors
    /// [`crate::Error::Layout`] that names the missing structure.
    pub fn without_walker(
        pid: Pid,
        hotspot: &HotSpot,
        files: &mut Files,
        signatures: bool,
    ) -> Result<Self> {
        /// Number of passes in which the files of a large JVM can be opened.
        const PASSES: usize = 3;
        let mut maps = CodeMaps::default();
        for _ in 0..PASSES {
            if let Err(error) = maps.refresh(pid, &files.mapped) {
                // The process has ended meanwhile, so there will be no stacks either.
                log::debug!("cannot read the mappings of process {pid}: {error}");
                break;
            }
            if !maps.is_incomplete() {
                break;
            }
        }
        Self::of_maps(Some(pid), hotspot, maps, files.symbols(pid), signatures)
    }

    /// Makes the namer of a core file's JVM, whose code mappings are `maps`. With `signatures`, method names include
    /// the parameters.
    ///
    /// # Errors
    /// [`crate::Error::Layout`] that names the missing structure.
    pub fn of_core(hotspot: &HotSpot, maps: &CodeMaps, signatures: bool) -> Result<Self> {
        Self::of_maps(None, hotspot, maps.clone(), Symbols::of_core(), signatures)
    }

    fn of_maps(
        pid: Option<Pid>,
        hotspot: &HotSpot,
        maps: CodeMaps,
        symbols: Symbols,
        signatures: bool,
    ) -> Result<Self> {
        Ok(Self {
            key: 0,
            pid,
            java_frames: JavaFrames::new(hotspot, true, signatures)?,
            native: NativeNames::new(maps.clone(), symbols.clone()),
            symbols,
            maps,
            next_reread: Instant::now() + REREAD_INTERVAL,
            reread_limit: RereadLimit::new(MAX_REREAD_INTERVAL),
            walker_version: None,
        })
    }

    /// Makes Java frames have their origins, if they can be read.
    pub(crate) fn with_origins(mut self, hotspot: &HotSpot) -> Self {
        if let Err(error) = self.java_frames.read_origins(hotspot) {
            log::debug!("frames have no modules: {error}");
        }
        self
    }

    /// Passes the mappings of the process to the stack walker if they have changed.
    fn update_walker(&mut self, walker: &mut Walker) -> Result<()> {
        let version = self.maps.version();
        if self.walker_version != Some(version) || walker.is_incomplete(self.key) {
            walker.set_mappings(self.key, &self.maps)?;
            self.walker_version = Some(version);
        }
        Ok(())
    }

    /// Reads the mappings of the process again. Returns whether they have changed.
    pub(crate) fn refresh_mappings(&mut self, files: &mut Files) -> bool {
        let Some(pid) = self.pid else { return false };
        let before = self.maps.version();
        if let Err(error) = self.maps.refresh(pid, &files.mapped) {
            log::debug!("cannot update the mappings of process {pid}: {error}");
        }
        self.next_reread = Instant::now() + REREAD_INTERVAL;
        let has_changed = self.maps.version() != before;
        if has_changed {
            self.native = NativeNames::new(self.maps.clone(), self.symbols.clone());
        }
        has_changed
    }

    /// Returns the mappings of the process.
    pub(crate) fn mappings(&self) -> &CodeMaps {
        &self.maps
    }

    /// Configures a stack walker for the JVM, or passes it the mappings of the process if they have changed since the last
    /// call.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub(crate) fn set_walker(
        &mut self,
        key: u64,
        layout: &JvmLayout,
        walker: &mut Walker,
    ) -> Result<()> {
        if self.walker_version.is_none() {
            self.key = key;
            walker.add_jvm(key, layout);
        }
        self.update_walker(walker)
    }

    /// Names a stack, outermost frame first. Frames beyond the entry function of its thread are left out. Files that
    /// were mapped since the last call are passed to the walker.
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
        let named = self.name_without_walker(hotspot, files, raw);
        self.update_walker(walker)?;
        Ok(named.frames)
    }

    /// Names a stack like [`name`](Self::name), but does not update a walker.
    pub fn name_without_walker(
        &mut self,
        hotspot: &HotSpot,
        files: &mut Files,
        raw: &RawStack,
    ) -> NamedStack {
        // The result does not refer to these names, so they can be dropped and read again at any time.
        if self.java_frames.size() > MAX_NAMES_SIZE {
            self.java_frames.take_names();
        }
        let stack = self.java_frames.resolve(hotspot, raw);
        let is_unmapped = |maps: &CodeMaps| stack.addresses().any(|addr| maps.lacks(addr));
        let now = Instant::now();
        let is_due =
            now >= self.next_reread || self.maps.is_incomplete() || is_unmapped(&self.maps);
        if is_due && self.reread_limit.allows(now) {
            self.refresh_mappings(files);
            let end = Instant::now();
            self.reread_limit.add(end, end - now, is_unmapped(&self.maps));
        }
        let native = &mut self.native;
        name_stack(&stack, None, Some(self.java_frames.names()), |addr, frames| {
            native.name(addr, frames)
        })
    }
}

/// Namers of the stacks of all JVMs of a tracer, and the files that these JVMs have mapped.
#[derive(Debug, Default)]
pub struct Namers {
    files: Files,
    /// Namers by the JVM's key, and whether the JVM had finished starting when the namer was made.
    namers: HashMap<u64, (StackNamer, bool)>,
}

impl Namers {
    /// Makes the namer of a JVM, and configures the stack walker for it. To be called each time the JVM was read, because
    /// the addresses of its code are complete only when it has finished starting. If that fails, prints a message.
    pub fn add(&mut self, key: u64, pid: Pid, hotspot: &HotSpot, walker: &mut Walker) {
        if self.namers.get(&key).is_some_and(|(_, is_final)| *is_final) {
            return;
        }
        match StackNamer::new(key, pid, hotspot, &mut self.files, false, walker) {
            Ok(namer) => _ = self.namers.insert(key, (namer, hotspot.is_set_up)),
            Err(error) if !hotspot.is_set_up => {
                log::debug!("not showing stacks of process {pid} yet: {error}");
            }
            Err(error) => log::warn!("not showing stacks of process {pid}: {error}"),
        }
    }

    /// Returns whether the stacks of a JVM can be named.
    pub(crate) fn contains(&self, key: u64) -> bool {
        self.namers.contains_key(&key)
    }

    /// Returns the mappings of a JVM; `None` if its stacks cannot be named.
    pub(crate) fn mappings(&self, key: u64) -> Option<&CodeMaps> {
        self.namers.get(&key).map(|(namer, _)| namer.mappings())
    }

    /// Names a stack like [`StackNamer::name`]; `None` if the stacks of its JVM cannot be named.
    ///
    /// # Errors
    /// [`crate::Error::Bpf`].
    pub fn name(
        &mut self,
        hotspot: &HotSpot,
        walker: &mut Walker,
        raw: &RawStack,
    ) -> Result<Option<Vec<Frame>>> {
        let namer = self.namers.get_mut(&raw.target);
        namer.map(|(namer, _)| namer.name(hotspot, &mut self.files, walker, raw)).transpose()
    }

    /// Names a stack like [`StackNamer::name_without_walker`]; `None` if the stacks of its JVM cannot be named.
    pub(crate) fn name_without_walker(
        &mut self,
        hotspot: &HotSpot,
        raw: &RawStack,
    ) -> Option<NamedStack> {
        let (namer, _) = self.namers.get_mut(&raw.target)?;
        Some(namer.name_without_walker(hotspot, &mut self.files, raw))
    }

    /// Removes the namer of a JVM that is not followed any more.
    pub fn forget(&mut self, key: u64) {
        self.namers.remove(&key);
    }

    /// Releases files that no JVM has mapped for a while. To be called at intervals.
    pub fn release_unused(&mut self, walker: Option<&mut Walker>) {
        self.files.release_unused(walker);
    }
}

/// A stack with names.
#[derive(Clone, Debug, Default)]
pub struct NamedStack {
    /// Frames, outermost first, without those beyond the entry function of the thread.
    pub frames: Vec<Frame>,
    /// For each frame of the stack that was named, innermost first: the number of named frames inside of it.
    pub begins: Vec<usize>,
    /// Whether the walk reached the entry function of the thread without a guess.
    pub complete: bool,
    /// Whether inlined methods may be missing.
    pub unsure: bool,
}

/// Names a stack. `known` is the number of frames before the first step of the walk that was a guess; `None`
/// if no step was a guess. `code` appends the frames at an address; it returns `false` if it has no frame for
/// the address.
pub(crate) fn name_stack(
    stack: &Stack,
    known: Option<usize>,
    java: Option<&LocationNames>,
    mut code: impl FnMut(Addr, &mut Vec<Frame>) -> bool,
) -> NamedStack {
    let mut named = NamedStack::default();
    let frames = &mut named.frames;
    // `known`, converted to a number of named frames: one code location may have several named frames.
    let mut known_frames = usize::MAX;
    for (i, location) in stack.lookups().enumerate() {
        if known == Some(i) {
            known_frames = frames.len();
        }
        named.begins.push(frames.len());
        match location {
            CodeLocation::Code(addr) => {
                if !code(addr, frames) {
                    frames.push(Frame::new(Kind::Unknown, "[unknown]"));
                }
            }
            CodeLocation::Named(id) => {
                if let Some(java) = java {
                    frames.extend_from_slice(java.frames(id));
                    named.unsure |= !java.is_sure(id);
                }
            }
        }
    }
    named.complete = cut_beyond_entry(frames, known_frames);
    frames.reverse();
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_reached_by_a_guess_does_not_complete_the_stack() {
        let frames = [0x10, 0x21, 0x31, 0x41].map(|addr| CodeLocation::Code(Addr(addr)));
        let stack = Stack { frames: frames.to_vec() };
        // A function is inlined at the first address.
        let code = |addr: Addr, frames: &mut Vec<Frame>| {
            let names: &[&str] = match addr.0 {
                0x10 => &["inlined", "leaf"],
                0x30 => &["start_thread"],
                _ => &[],
            };
            frames.extend(names.iter().map(|&name| Frame::new(Kind::Native, name)));
            !names.is_empty()
        };
        for (known, is_complete) in [(None, true), (Some(3), true), (Some(2), false)] {
            let named = name_stack(&stack, known, None, code);
            let names: Vec<_> = named.frames.iter().map(|frame| &*frame.name).collect();
            assert_eq!(names, ["start_thread", "[unknown]", "leaf", "inlined"]);
            assert_eq!(named.complete, is_complete, "{known:?}");
        }
    }
}
