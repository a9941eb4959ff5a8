//! Loading and attaching BPF programs, and the events they send.
//!
//! | module | what it knows |
//! |---|---|
//! | [`preflight`] | whether rights and kernel suffice |
//! | [`probes`] | USDT probes and functions, one process or all |
//! | `detach` | detaching, without waiting |
//! | `uprobe` | a function's entry, attached again and again |
//! | [`session`] | one loaded object, with all that tracers have in common |
//! | `stream` | ring buffers as typed events |
//! | [`records`] | the bytes of events and counters |
//! | [`perf`] | sampling events, and processors at a frequency |
//! | [`kernel_types`] | where the kernel's structures have their fields |
//! | [`tracefs`] | the kernel's tracepoints by name |
//! | [`room`] | how large maps are, and when the kernel allocates them |
//! | [`trap`] | the time that a hit of a probe and an interrupt take |
//! | [`cost`] | what probes cost each JVM |
//! | [`stops`] | when a JVM stopped its application |
//! | `gauge` | the target's own counters, read with each event |
//! | [`walker`] | what the stack walker must be told |
//! | [`here`] | the stack walker, run in this process |
//! | `handover` | telling the stack walker, without waiting |
//! | [`clock`] | the kernel's clock and the wall's |

pub mod clock;
pub mod cost;
mod detach;
pub(crate) mod gauge;
mod handover;
pub mod here;
pub mod kernel_types;
pub mod perf;
pub mod preflight;
pub mod probes;
pub mod records;
pub mod room;
pub mod session;
#[cfg(test)]
mod stack_depth;
pub mod stops;
pub(crate) mod stream;
pub mod tracefs;
pub mod trap;
pub(crate) mod uprobe;
pub mod walker;

use std::{
    fs,
    io::{Write, stderr},
    sync::LazyLock,
};

use libbpf_rs::{ErrorKind, Object, PrintLevel, ProgramMut, ProgramType};
use libbpf_sys::{BPF_FUNC_get_attach_cookie, BPF_FUNC_task_pt_regs, bpf_func_id};

use crate::{Error, Pid, Result, names::clean};

/// Whether this process and the kernel number processes alike: outside the
/// initial PID namespace `bpf_get_current_pid_tgid()` gives other numbers.
pub(crate) fn sees_initial_pids() -> bool {
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]")
}

/// Whether a program learns from the kernel which of its attachments was hit (Linux 5.15; the
/// kernels of some vendors have it under an older number).
pub(crate) fn has_cookies() -> bool {
    static HAS: LazyLock<bool> =
        LazyLock::new(|| has_helper(ProgramType::Kprobe, BPF_FUNC_get_attach_cookie));
    *HAS
}

/// Whether a sampling program finds a thread's registers of user mode while it is in the
/// kernel (Linux 5.15, with BTF).
pub(crate) fn has_user_registers() -> bool {
    fs::exists("/sys/kernel/btf/vmlinux").is_ok_and(|exists| exists)
        && has_helper(ProgramType::PerfEvent, BPF_FUNC_task_pt_regs)
}

/// What cannot be asked is taken for granted: loading tells soon.
fn has_helper(program: ProgramType, helper: bpf_func_id) -> bool {
    program.is_helper_supported(helper).unwrap_or(true)
}

/// Whether one attachment to a file serves all processes that map it, and tells them apart
/// by numbers that we know.
pub(crate) fn reaches_everyone() -> bool {
    sees_initial_pids() && has_cookies()
}

/// The key of a process that is attached to alone: above all process numbers, or, where
/// there are no cookies, the number itself. See `target_key()` in bpf/jvm.bpf.h.
pub(crate) fn key_alone(pid: Pid) -> u64 {
    let above = if has_cookies() { 1 << 32 } else { 0 };
    above | u64::from(pid.0)
}

/// Routes libbpf's messages: to stderr when `verbose`, else nowhere, since our
/// own errors say what is wrong in words meant for users.
pub fn set_libbpf_output(verbose: bool) {
    fn print(_: PrintLevel, message: String) {
        for line in message.lines() {
            // That nobody reads it is no reason to fail, here least of all: C called us.
            let _ = writeln!(stderr(), "{}", clean::line(line));
        }
    }
    libbpf_rs::set_print(verbose.then_some((PrintLevel::Debug, print as fn(PrintLevel, String))));
}

/// A program of a loaded object, by its name.
///
/// # Errors
/// [`Error::Kernel`] where there is none.
pub(crate) fn program<'a>(object: &'a mut Object, name: &str) -> Result<ProgramMut<'a>> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| defect(&format!("find the BPF program {name}")))
}

/// What can only be wrong in our own object.
pub(crate) fn defect(what: &str) -> Error {
    let hint = "this is a defect of this tool: please report it".into();
    Error::Kernel { what: what.into(), hint }
}

/// Words a refusal to load BPF programs.
pub fn load_error(source: libbpf_rs::Error) -> Error {
    match source.kind() {
        ErrorKind::PermissionDenied => Error::Permission {
            what: "load BPF programs".into(),
            missing:
                "the kernel refuses (a user namespace, seccomp, SELinux or lockdown may be in \
                      the way; if -v shows its verifier's log, our program is wrong for it: \
                      please report that)"
                    .into(),
        },
        ErrorKind::Unsupported | ErrorKind::InvalidInput => Error::Kernel {
            what: format!("load our BPF programs ({source:#})"),
            hint: "it needs CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS; stacks need Linux 5.15 or \
                   later"
                .into(),
        },
        _ => Error::Bpf { what: "load BPF programs".into(), source },
    }
}
