//! Runs the kernel side's stack walker in this process: for threads that are asleep, in which no BPF program runs, and
//! for recordings.
//!
//! The sources are those that run in the kernel (`bpf/walk/`), compiled for user space by `walk/harness.c`. The
//! properties that the verifier has proved hold here as well: the code stays within the memory that it is given.
//!
//! `unsafe`: the calls into C, and the callbacks from C. The structures that are passed are mirrors of C's; a
//! test compares their sizes with those in C. C calls back only while a call into C lasts.

use std::{
    ffi::{c_int, c_void},
    slice,
};

use crate::{bpf::walker::MappingEntry, hotspot::walking::JvmLayout, unwind::Row};

/// Source of the walker's data.
pub trait Source {
    /// Reads memory of the process; returns `false` if it cannot be read.
    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool;
    /// Returns a mapping of the process; the first entry holds the number of mappings after it.
    fn mapping(&mut self, index: u32) -> Option<MappingEntry>;
    /// Returns a row of an unwind table.
    fn row(&mut self, table: u32, index: u32) -> Option<Row>;
    /// Returns the layout of the process's JVM.
    fn jvm(&self) -> JvmLayout;
}

/// `OTHER_REGISTERS` of bpf/walk/walk.h.
pub const OTHER_REGISTERS: usize = 6;

/// Registers from which a walk starts: `struct start` of walk/harness.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Address of the instruction.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub fp: u64,
    /// Other registers, in the order of `struct registers` of bpf/walk/arch_*.h; 0 for those that the processor's
    /// `struct registers` does not have.
    pub others: [u64; OTHER_REGISTERS],
}

impl Registers {
    /// Makes it from ip, sp and fp, and the other registers in the order of `struct registers`.
    pub fn new([ip, sp, fp]: [u64; 3], others: [u64; OTHER_REGISTERS]) -> Self {
        Self { ip, sp, fp, others }
    }
}

/// Registers of a frame: `struct frame_registers` of walk/harness.c.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRegisters {
    /// The address at which the frame continues.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub fp: u64,
}

/// `MAX_FRAMES` of bpf/walk/walk.h.
const MAX_FRAMES: usize = 1024;

/// `struct walked` of bpf/walk/walk.h.
#[repr(C)]
#[derive(Debug)]
pub struct Walked {
    target: u64,
    unloads: u64,
    end: u64,
    count: u64,
    frames: [u64; MAX_FRAMES],
}

/// `struct source` of walk/harness.c.
#[repr(C)]
#[derive(Debug)]
pub struct RawSource {
    context: *mut c_void,
    read: unsafe extern "C" fn(*mut c_void, *mut c_void, u32, u64) -> c_int,
    mapping: unsafe extern "C" fn(*mut c_void, u32, *mut MappingEntry) -> c_int,
    row: unsafe extern "C" fn(*mut c_void, u32, u32, *mut Row) -> c_int,
    jvm: *const JvmLayout,
}

/// `harness_walk` of walk/harness.c.
pub type WalkFunction =
    unsafe extern "C" fn(*const RawSource, u64, *const Registers, *mut Walked) -> u64;
unsafe extern "C" {
    fn harness_walk(
        source: *const RawSource,
        key: u64,
        start: *const Registers,
        walked: *mut Walked,
    ) -> u64;
    fn harness_trail(
        source: *const RawSource,
        start: *const Registers,
        trail: *mut FrameRegisters,
    ) -> u32;
    fn harness_blob(source: *const RawSource, addr: u64, found: *mut [u64; 8]);
    #[cfg(test)]
    fn harness_sizes(sizes: *mut [u64; 5]);
}

/// The walker that is linked into this library.
pub const LINKED: WalkFunction = harness_walk;

/// The `context` of [`RawSource`].
struct Context<'a>(&'a mut dyn Source);

/// # Safety
/// Must be called by C only, with the context that C was given and a buffer of `size` bytes.
unsafe extern "C" fn read(context: *mut c_void, to: *mut c_void, size: u32, addr: u64) -> c_int {
    // SAFETY: the context is borrowed for as long as the call into C lasts.
    let context = unsafe { &mut *context.cast::<Context<'_>>() };
    // SAFETY: a buffer of C's with this size, which is not used elsewhere meanwhile.
    let to = unsafe { slice::from_raw_parts_mut(to.cast::<u8>(), size as usize) };
    // An address near the end of the address space must not wrap around.
    let fits = addr.checked_add(size.into()).is_some();
    (!(fits && context.0.read(addr, to))).into()
}

/// # Safety
/// As for [`read`].
unsafe extern "C" fn mapping(context: *mut c_void, index: u32, to: *mut MappingEntry) -> c_int {
    // SAFETY: the context is borrowed for as long as the call into C lasts.
    let context = unsafe { &mut *context.cast::<Context<'_>>() };
    let Some(found) = context.0.mapping(index) else { return 1 };
    // SAFETY: a variable of C's with the same layout.
    unsafe { to.write(found) };
    0
}

/// # Safety
/// As for [`read`].
unsafe extern "C" fn row(context: *mut c_void, table: u32, index: u32, to: *mut Row) -> c_int {
    // SAFETY: the context is borrowed for as long as the call into C lasts.
    let context = unsafe { &mut *context.cast::<Context<'_>>() };
    let Some(found) = context.0.row(table, index) else { return 1 };
    // SAFETY: a variable of C's with the same layout.
    unsafe { to.write(found) };
    0
}

/// A stack, as the walker returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Frames, innermost first, encoded as in `struct walked`.
    pub frames: Vec<u64>,
    /// Reason why the walk ended, and number of frames before the first guess, as in `struct walked`.
    pub end: u64,
    /// Number of classes that the JVM had unloaded.
    pub unloads: u64,
}

/// A code blob of the code cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blob {
    /// Start of its code.
    pub begin: u64,
    /// End of its code.
    pub end: u64,
    /// `enum blob_kind`; 0 if there is no blob.
    pub kind: u64,
    /// Address of its name.
    pub name: u64,
    /// A method's verified entry.
    pub entry: u64,
    /// Entry for on-stack replacement; 0 if there is none.
    pub osr_entry: u64,
    /// Deoptimisation handler.
    pub deopt_handler: u64,
    /// Address of its compile id or, if it has none, of its name pointer.
    pub identity_at: u64,
}

fn with<T>(source: &mut dyn Source, call: impl FnOnce(&RawSource) -> T) -> T {
    let jvm = source.jvm();
    let mut context = Context(source);
    call(&RawSource { context: (&raw mut context).cast(), read, mapping, row, jvm: &raw const jvm })
}

/// Walks a stack of the process that has this key, by calling `function`, a build of `harness_walk`. Returns
/// the id that the kernel side would give the stack, and the stack.
///
/// # Safety
/// `function` must be `harness_walk`, compiled from the sources that this library was built with.
pub unsafe fn walk_by(
    function: WalkFunction,
    source: &mut dyn Source,
    key: u64,
    start: &Registers,
) -> (u64, Stack) {
    let mut walked =
        Box::new(Walked { target: 0, unloads: 0, end: 0, count: 0, frames: [0; MAX_FRAMES] });
    // SAFETY: structures of the sizes that C expects, which live until the call returns.
    let number = with(source, |source| unsafe { function(source, key, start, &raw mut *walked) });
    let count = usize::try_from(walked.count).unwrap_or(0).min(MAX_FRAMES);
    let frames = walked.frames[..count].to_vec();
    (number, Stack { frames, end: walked.end, unloads: walked.unloads })
}

/// Walks a stack of the process that has this key. Returns the id that the kernel side would give the stack, and the
/// stack.
pub fn walk(source: &mut dyn Source, key: u64, start: &Registers) -> (u64, Stack) {
    // SAFETY: LINKED is `harness_walk`, built with this library.
    unsafe { walk_by(LINKED, source, key, start) }
}

/// Returns the registers of each frame of a stack, innermost first. There are as many as [`walk`] returns frames.
pub fn trail(source: &mut dyn Source, start: &Registers) -> Vec<FrameRegisters> {
    let mut trail = vec![FrameRegisters::default(); MAX_FRAMES];
    // SAFETY: C fills no more than MAX_FRAMES of it.
    let count = with(source, |source| unsafe { harness_trail(source, start, trail.as_mut_ptr()) });
    // Returns a copy, because the buffer has space for many more frames than most stacks have.
    trail[..MAX_FRAMES.min(count as usize)].to_vec()
}

/// Returns the blob of the code cache that contains an address.
pub fn blob(source: &mut dyn Source, addr: u64) -> Blob {
    let mut found = [0; 8];
    // SAFETY: C fills an array of this size.
    with(source, |source| unsafe { harness_blob(source, addr, &mut found) });
    let [begin, end, kind, name, entry, osr_entry, deopt_handler, identity_at] = found;
    Blob { begin, end, kind, name, entry, osr_entry, deopt_handler, identity_at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn struct_sizes_match_the_c_structs() {
        let mut sizes = [0; 5];
        // SAFETY: it fills an array of this size.
        unsafe { harness_sizes(&mut sizes) };
        let ours = [
            size_of::<RawSource>(),
            size_of::<Registers>(),
            size_of::<Walked>(),
            size_of::<MappingEntry>(),
            size_of::<JvmLayout>(),
        ];
        assert_eq!(sizes.map(|size| size as usize), ours);
    }
}
