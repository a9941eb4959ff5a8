//! Waits of threads, as `bpf/offcpu.bpf.h` records them: attaching its programs, its entries of threads, and threads
//! that sleep.

use std::{
    fs::File,
    io::{BufRead, BufReader},
};

use crate::{
    Error, Result,
    bpf::{
        self, kernel_types,
        records::{self, plain_structs},
        user_walker::OTHER_REGISTERS,
    },
};
use libbpf_rs::{Link, Object, btf::Btf};

/// Maximum number of threads whose waits are recorded; their map takes about 4 MB.
pub(crate) const MAX_THREADS: u32 = 1 << 15;

/// The iterator program of `bpf/asleep.bpf.h`.
pub(crate) const ITERATOR: &str = "asleep";

/// Programs that every kernel runs.
const PROGRAMS: [&str; 3] = ["on_switch", "on_waking", "on_exit"];

/// The scheduler's function in which the program runs that takes a thread's wait, on kernels without
/// [`Hook::Tracepoint`].
const FUNCTION: &str = "finish_task_switch";

/// How a BPF program is run in the context of a thread that was switched in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// The tracepoint `sched_exit_tp` (Linux 6.15).
    Tracepoint,
    /// The kernel function of this name: [`FUNCTION`], perhaps with a suffix of the compiler.
    Function(String),
}

impl Hook {
    /// Returns the hook of this kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`] if it has none, or no BTF.
    pub(crate) fn find() -> Result<Self> {
        // Fails with the reason if the kernel has no BTF.
        TaskFields::read()?;
        let types = Btf::from_vmlinux().ok();
        let has_tracepoint = types.is_some_and(|types| {
            types
                .type_by_name::<libbpf_rs::btf::types::Typedef<'_>>("btf_trace_sched_exit_tp")
                .is_some()
        });
        if has_tracepoint {
            return Ok(Self::Tracepoint);
        }
        let has_kprobes = std::fs::exists("/sys/bus/event_source/devices/kprobe").unwrap_or(false);
        let function =
            File::open("/proc/kallsyms").ok().and_then(|file| function(BufReader::new(file)));
        function.filter(|_| has_kprobes).map(Self::Function).ok_or_else(|| Error::Kernel {
            what: "record the waits of threads".into(),
            hint: "use Linux 6.15 or later, or a kernel with kprobes (CONFIG_KPROBES=y)".into(),
        })
    }

    fn program(&self) -> &'static str {
        match self {
            Self::Tracepoint => "switched_in",
            Self::Function(_) => "switched_in_before_6_15",
        }
    }

    /// Returns the names of the programs to load.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &'static str> {
        PROGRAMS.into_iter().chain([self.program()])
    }

    /// Attaches the programs. Nothing is recorded before `trace_began_ns` is set.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub(crate) fn attach(&self, object: &mut Object) -> Result<Vec<Link>> {
        let mut attach = |name: &str| {
            let program = bpf::program(object, name)?;
            let link = match self {
                Self::Function(function) if name == self.program() => {
                    program.attach_kprobe(false, function)
                }
                _ => program.attach(),
            };
            let what = || format!("attach to the scheduler's events ({name})");
            link.map_err(|source| Error::Bpf { what: what(), source })
        };
        self.programs().map(&mut attach).collect()
    }
}

/// Finds the function among the lines of /proc/kallsyms.
fn function(lines: impl BufRead) -> Option<String> {
    let mut names = lines.lines().map_while(std::result::Result::ok).filter_map(|line| {
        let name = line.split_ascii_whitespace().nth(2)?;
        let suffix = name.strip_prefix(FUNCTION)?;
        let is_whole =
            suffix.is_empty() || suffix.starts_with(".isra.") || suffix.starts_with(".llvm.");
        is_whole.then(|| name.to_owned())
    });
    names.next()
}

/// Offsets of fields of the kernel's `task_struct`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskFields {
    pub(crate) pid: u32,
    pub(crate) tgid: u32,
    pub(crate) state: u32,
    pub(crate) start_time: u32,
    pub(crate) comm: u32,
}

impl TaskFields {
    /// Reads them from the kernel's BTF.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub(crate) fn read() -> Result<Self> {
        let fields = ["pid", "tgid", "__state", "start_time", "comm"];
        let [pid, tgid, state, start_time, comm] = kernel_types::offsets("task_struct", fields)?;
        Ok(Self { pid, tgid, state, start_time, comm })
    }
}

/// A thread's entry: `struct thread` of `bpf/offcpu.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thread {
    pub(crate) since: u64,
    pub(crate) began: u64,
    pub(crate) woken: u64,
    pub(crate) on_ns: u64,
    pub(crate) short_ns: u64,
    pub(crate) shorts: u64,
    pub(crate) tgid: u32,
    pub(crate) tid: u32,
    pub(crate) state: u32,
    pub(crate) is_off_cpu: u8,
    pub(crate) is_unseen: u8,
    pub(crate) is_ending: u8,
    pub(crate) unused: u8,
    pub(crate) follows_until: u64,
    pub(crate) flags: u32,
    pub(crate) unused2: u32,
    pub(crate) comm: [u8; 16],
}

/// A thread that sleeps: `struct sleeper` of `bpf/offcpu.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sleeper {
    pub(crate) tgid: u32,
    pub(crate) tid: u32,
    pub(crate) since: u64,
    pub(crate) kernel: u64,
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
    pub(crate) others: [u64; OTHER_REGISTERS],
}

plain_structs!(Thread, Sleeper);

/// Returns the threads that sleep. Returns none if the kernel cannot list them ([`bpf::has_task_iterator`]).
///
/// # Errors
/// [`Error::Bpf`], [`Error::Io`].
pub(crate) fn sleepers(object: &mut Object) -> Result<Vec<Sleeper>> {
    match bpf::has_task_iterator() {
        true => records::tasks(&bpf::program(object, ITERATOR)?, MAX_THREADS.into()),
        false => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_is_found_with_the_suffixes_of_compilers() {
        let find = |name: &str| function(format!("0 T schedule\n0 t {name}\n").as_bytes());
        for name in
            ["finish_task_switch", "finish_task_switch.isra.0", "finish_task_switch.llvm.77"]
        {
            assert_eq!(find(name).as_deref(), Some(name));
        }
        assert_eq!(find("finish_task_switch_other"), None);
        assert_eq!(find("__pfx_finish_task_switch"), None);
    }

    #[test]
    fn struct_layouts_match_the_c_header() {
        use crate::trace::samples::event::{sleeper, thread};
        assert_eq!(size_of::<Thread>(), size_of::<thread>());
        assert_eq!(std::mem::offset_of!(Thread, comm), std::mem::offset_of!(thread, comm));
        assert_eq!(size_of::<Sleeper>(), size_of::<sleeper>());
        assert_eq!(std::mem::offset_of!(Sleeper, others), std::mem::offset_of!(sleeper, others));
    }
}
