//! Loading and attaching BPF programs, and the events they send.
//!
//! | module | what it knows |
//! |---|---|
//! | [`preflight`] | whether rights and kernel suffice |
//! | [`attach`](mod@attach) | USDT probes and functions, one process or all |
//! | [`stream`] | ring buffers as typed events |
//! | [`gauge`] | the target's own counters, read with each event |
//! | [`clock`] | the kernel's clock and the wall's |

pub mod attach;
pub mod clock;
pub mod gauge;
pub mod preflight;
pub mod stream;

use std::fs;

use libbpf_rs::PrintLevel;

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
