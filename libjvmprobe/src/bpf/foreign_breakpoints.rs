//! Breakpoints of other tracers in the probes of a libjvm.so.
//!
//! If a tracer is killed together with its [keeper](super::keeper) while it detaches, for example by SIGKILL of the whole
//! control group, the kernel may leave breakpoints in processes that run. Then each hit traps until the process ends,
//! and nothing shows why the process is slower. So the daemon reports breakpoints that it finds when it starts: before it
//! attaches to a file, it compares the file's USDT probes in the memory of one process with those in the file.
//!
//! Files without USDT probes are not searched.

use std::{collections::HashSet, os::unix::fs::FileExt};

use crate::{
    Addr, Pid, Result,
    process::{FileId, Process, Target, memory::Memory},
};

/// Maximum number of files that are searched. A process may exec new programs with new files again and again.
const MAX_FILES: usize = 1000;
/// Maximum number of locations that are compared; HotSpot has about 570.
const MAX_LOCATIONS: usize = 4096;

/// Size of a breakpoint instruction in bytes.
#[cfg(target_arch = "x86_64")]
const SIZE: usize = 1;
#[cfg(not(target_arch = "x86_64"))]
const SIZE: usize = 4;

/// Returns whether an instruction is a breakpoint: `int3`.
#[cfg(target_arch = "x86_64")]
fn is_breakpoint(instruction: &[u8; SIZE]) -> bool {
    *instruction == [0xcc]
}

/// Returns whether an instruction is a breakpoint: `brk` with any number.
#[cfg(not(target_arch = "x86_64"))]
fn is_breakpoint(instruction: &[u8; SIZE]) -> bool {
    u32::from_le_bytes(*instruction) & 0xffe0_001f == 0xd420_0000
}

/// Search for breakpoints of other tracers, once per file, in processes that are older than this one.
#[derive(Debug)]
pub(crate) struct ForeignBreakpoints {
    /// Start time of this process, in clock ticks since boot.
    start_ticks: u64,
    searched: HashSet<FileId>,
}

impl ForeignBreakpoints {
    /// Begins the search. Returns `None` if this process's start time cannot be read.
    pub(crate) fn new() -> Option<Self> {
        let start_ticks = Process::open(Pid(std::process::id())).ok()?.start_ticks;
        Some(Self { start_ticks, searched: HashSet::new() })
    }

    /// Searches the libjvm.so of a process in its `memory`, and prints a warning if it contains breakpoints. Must be called
    /// before this process attaches to the file.
    pub(crate) fn search(&mut self, target: &Target, memory: &Memory) {
        let (pid, is_older) = (target.pid(), target.process.start_ticks < self.start_ticks);
        let is_full = self.searched.len() >= MAX_FILES;
        if !is_older || is_full || !self.searched.insert(target.libjvm.id) {
            return;
        }
        let path = target.libjvm.target_path.display();
        match count(target, memory) {
            Ok(0) => {}
            Ok(count) => log::warn!(
                "{path} of process {pid} contains breakpoints of another tracer ({count}); if that tracer was killed, \
                 they slow the JVM down until it ends"
            ),
            Err(error) => {
                log::debug!("process {pid}: cannot search {path} for breakpoints: {error}");
            }
        }
    }
}

/// Returns the number of USDT probes at which the memory of a process has a breakpoint and its libjvm.so has none.
fn count(target: &Target, memory: &Memory) -> Result<usize> {
    let (libjvm, elf) = (&target.libjvm, target.libjvm.elf()?);
    let probes = elf.stapsdt()?;
    let bias = elf.load_bias(libjvm.map_start, libjvm.map_offset).unwrap_or_default();
    let (mut addresses, mut in_file) = (Vec::new(), Vec::new());
    for probe in probes.iter().take(MAX_LOCATIONS) {
        let mut instruction = [0; SIZE];
        let Some(offset) = probe.offset else { continue };
        if elf.file().read_exact_at(&mut instruction, offset.0).is_ok() {
            addresses.push(Addr(probe.location.0.wrapping_add(bias)));
            in_file.push(instruction);
        }
    }
    let mut in_memory = vec![[0; SIZE]; addresses.len()];
    // A block that cannot be read stays zero, which is no breakpoint.
    memory.read_blocks(&addresses, SIZE, in_memory.as_flattened_mut())?;
    Ok(count_added(&in_file, &in_memory))
}

/// Returns the number of instructions that are breakpoints in memory, but not in the file.
fn count_added(in_file: &[[u8; SIZE]], in_memory: &[[u8; SIZE]]) -> usize {
    let pairs = in_file.iter().zip(in_memory);
    pairs.filter(|(file, memory)| is_breakpoint(memory) && !is_breakpoint(file)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_arch = "x86_64")]
    const CASES: [[u8; SIZE]; 3] = [[0x90], [0xcc], [0xe8]];
    /// `nop`, `brk #5` and `bl`.
    #[cfg(not(target_arch = "x86_64"))]
    const CASES: [[u8; SIZE]; 3] =
        [[0x1f, 0x20, 0x03, 0xd5], [0xa0, 0x00, 0x20, 0xd4], [0x00, 0x00, 0x00, 0x94]];

    #[test]
    fn only_breakpoints_that_the_file_lacks_are_counted() {
        let [nop, breakpoint, call] = CASES;
        let in_file = [nop, nop, breakpoint, nop, breakpoint];
        let in_memory = [nop, breakpoint, breakpoint, call, nop];
        assert_eq!(count_added(&in_file, &in_memory), 1);
        assert_eq!(count_added(&in_file, &in_file), 0);
    }
}
