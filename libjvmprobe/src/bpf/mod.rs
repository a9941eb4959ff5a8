//! Loads and attaches BPF programs, and reads the events that they send.
//!
//! | module | contents |
//! |---|---|
//! | [`preflight`] | checks of capabilities and kernel features |
//! | [`probes`] | attachments to USDT probes and functions, in one process or in all |
//! | `foreign_breakpoints` | breakpoints that other tracers have left in JVMs |
//! | `detach` | detaching in a background thread |
//! | `inodes` | the inode to which the kernel attaches the probes of a file |
//! | `keeper` | a child process that detaches, so that the death of this process interrupts nothing |
//! | `uprobe` | a probe on a function's entry that is attached and detached repeatedly |
//! | [`session`] | a loaded BPF object: the parts that all tracers have in common |
//! | `stream` | ring buffers as queues of typed events |
//! | [`records`] | decoding of events and map entries |
//! | [`perf`] | perf events: sampling at a frequency or a period, and watchpoints |
//! | [`kernel_types`] | offsets of fields in the kernel's structures, from BTF |
//! | [`tracefs`] | the kernel's tracepoints by name |
//! | [`sparse_map`] | sizes of hash maps, and when the kernel allocates their entries |
//! | [`trap_cost`] | measured cost of one probe hit and of one sampling interrupt |
//! | [`cost`] | cost of the probes to each JVM |
//! | `offcpu` | waits of threads: the scheduler's events |
//! | `spans` | trace contexts that threads publish |
//! | [`stops`] | stops of a JVM's application threads |
//! | [`walker`] | data for the kernel side's stack walker: JVM layouts, mappings, unwind tables |
//! | `table_memory` | memory and reading time of unwind tables, by tenant |
//! | `walk_tables` | the same data for walks in this process |
//! | [`user_walker`] | the stack walker, run in this process |
//! | `map_writer` | background thread that updates the stack walker's maps |
//! | [`clock`] | conversion between the kernel's clock and wall-clock time |

pub mod clock;
pub mod cost;
mod detach;
pub(crate) mod foreign_breakpoints;
pub(crate) mod inodes;
mod keeper;
pub mod kernel_types;
mod map_writer;
pub(crate) mod offcpu;
pub mod perf;
pub mod preflight;
pub mod probes;
pub mod records;
pub mod session;
pub(crate) mod spans;
pub mod sparse_map;
#[cfg(test)]
mod stack_depth;
pub mod stops;
pub(crate) mod stream;
mod table_memory;
pub mod tracefs;
pub mod trap_cost;
pub(crate) mod uprobe;
pub mod user_walker;
mod walk_tables;
pub mod walker;

pub use keeper::start_keeper;

use std::{
    fs,
    io::{Write, stderr},
    sync::LazyLock,
};

use libbpf_rs::{ErrorKind, Object, PrintLevel, ProgramMut, ProgramType};
use libbpf_sys::{BPF_FUNC_get_attach_cookie, BPF_FUNC_task_pt_regs, bpf_func_id};

use crate::{Error, Pid, Result, names::clean};

/// Returns whether this process is in the initial PID namespace. In any other one,
/// `bpf_get_current_pid_tgid()` returns numbers that this process does not know.
pub(crate) fn sees_initial_pids() -> bool {
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]")
}

/// Returns whether a BPF program can get the attach cookie, which identifies the attachment that was hit (Linux 5.15;
/// some vendors backported it to kernels with an older version number).
pub(crate) fn has_cookies() -> bool {
    static HAS: LazyLock<bool> =
        LazyLock::new(|| has_helper(ProgramType::Kprobe, BPF_FUNC_get_attach_cookie));
    *HAS
}

/// Returns whether a sampling program can read a thread's user-mode registers while the thread is in the kernel
/// (Linux 5.15, with BTF).
pub(crate) fn has_user_registers() -> bool {
    fs::exists("/sys/kernel/btf/vmlinux").is_ok_and(|exists| exists)
        && has_helper(ProgramType::PerfEvent, BPF_FUNC_task_pt_regs)
}

/// Returns whether a BPF iterator can report the registers of threads that do not run, with PIDs that this process sees.
pub(crate) fn has_task_iterator() -> bool {
    has_user_registers() && sees_initial_pids()
}

/// Returns whether the kernel has a helper. If the check fails, returns `true`, because loading will then
/// report the error.
fn has_helper(program: ProgramType, helper: bpf_func_id) -> bool {
    program.is_helper_supported(helper).unwrap_or(true)
}

/// Returns whether one attachment to a file can serve all processes that map it. This requires attach
/// cookies, and the PIDs that BPF programs get must be those that this process sees.
pub(crate) fn can_share_attachments() -> bool {
    sees_initial_pids() && has_cookies()
}

/// Returns the key of a process that is attached to separately: its PID with bit 32 set, which differs from the keys of
/// processes that share an attachment, because those keys are plain PIDs. If the kernel has no attach cookies, the key
/// is the plain PID here, too. See `target_key()` in bpf/jvm.bpf.h.
pub(crate) fn key_of_single(pid: Pid) -> u64 {
    let above = if has_cookies() { 1 << 32 } else { 0 };
    above | u64::from(pid.0)
}

/// Prints libbpf's messages to stderr if `verbose`. Otherwise suppresses them, because this library's errors
/// explain the cause to the user.
pub fn set_libbpf_output(verbose: bool) {
    fn print(_: PrintLevel, message: String) {
        for line in message.lines() {
            // A failure to print is ignored, because the caller is C code, which cannot handle it.
            let _ = writeln!(stderr(), "{}", clean::line(line));
        }
    }
    libbpf_rs::set_print(verbose.then_some((PrintLevel::Debug, print as fn(PrintLevel, String))));
}

/// Returns a program of a loaded object by its name.
///
/// # Errors
/// [`Error::Defect`] if there is none.
pub(crate) fn program<'a>(object: &'a mut Object, name: &str) -> Result<ProgramMut<'a>> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| defect(&format!("find the BPF program {name}")))
}

/// Returns the error for a failure that only a defect of this tool can cause.
pub(crate) fn defect(what: &str) -> Error {
    Error::Defect { what: what.into() }
}

/// Converts libbpf's error when the kernel refuses to load BPF programs.
pub fn load_error(source: libbpf_rs::Error) -> Error {
    match source.kind() {
        ErrorKind::PermissionDenied => Error::Permission {
            what: "load BPF programs".into(),
            missing:
                "the kernel rejected them (possible causes: a user namespace, seccomp, SELinux or \
                 lockdown; if -v shows a log of the BPF verifier, please report it as a bug)"
                    .into(),
        },
        ErrorKind::Unsupported | ErrorKind::InvalidInput => Error::Kernel {
            what: format!("load the BPF programs ({source:#})"),
            hint: "CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS are required; stacks need Linux 5.15 \
                   or later"
                .into(),
        },
        _ => Error::Bpf { what: "load BPF programs".into(), source },
    }
}
