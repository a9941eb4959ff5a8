//! Loading and attaching BPF programs, and the events they send.
//!
//! | module | what it knows |
//! |---|---|
//! | [`preflight`] | whether rights and kernel suffice |
//! | [`attach`](mod@attach) | USDT probes and functions, one process or all |
//! | [`stream`] | ring buffers as typed events |
//! | [`records`] | the bytes of events and counters |
//! | [`perf`] | sampling processors at a frequency |
//! | [`gauge`] | the target's own counters, read with each event |
//! | [`walker`] | what the stack walker must be told |
//! | [`clock`] | the kernel's clock and the wall's |

pub mod attach;
pub mod clock;
pub mod gauge;
pub mod perf;
pub mod preflight;
pub mod records;
pub mod stream;
pub mod walker;

use std::fs;

use libbpf_rs::{ErrorKind, Object, PrintLevel, ProgramMut};

use crate::{Error, Result};

/// Whether this process and the kernel number processes alike: outside the
/// initial PID namespace `bpf_get_current_pid_tgid()` gives other numbers.
pub fn sees_initial_pids() -> bool {
    // PROC_PID_INIT_INO, include/linux/proc_ns.h.
    fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]")
}

/// Routes libbpf's messages: to stderr when `verbose`, else nowhere, since our
/// own errors say what is wrong in words meant for users.
pub fn set_libbpf_output(verbose: bool) {
    fn print(_: PrintLevel, message: String) {
        eprint!("{message}");
    }
    libbpf_rs::set_print(verbose.then_some((PrintLevel::Debug, print as fn(PrintLevel, String))));
}

/// A program of a loaded object, by its name.
///
/// # Errors
/// [`Error::Kernel`] where there is none.
pub fn program<'a>(object: &'a mut Object, name: &str) -> Result<ProgramMut<'a>> {
    object.progs_mut().find(|program| program.name() == name).ok_or_else(|| Error::Kernel {
        what: format!("find the BPF program {name}"),
        hint: "this is a defect of this tool: please report it".into(),
    })
}

/// Words a refusal to load BPF programs.
pub fn load_error(source: libbpf_rs::Error) -> Error {
    match source.kind() {
        ErrorKind::PermissionDenied => Error::Permission {
            what: "load BPF programs".into(),
            missing: "the kernel refuses (a user namespace, seccomp or lockdown may be in the way)"
                .into(),
        },
        ErrorKind::Unsupported | ErrorKind::InvalidInput => Error::Kernel {
            what: format!("load our BPF programs ({source:#})"),
            hint: "it needs CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS, Linux 5.15 or later".into(),
        },
        _ => Error::Bpf { what: "load BPF programs".into(), source },
    }
}
