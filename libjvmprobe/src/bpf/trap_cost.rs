//! Measures the time that a thread loses to one probe hit and to one sampling interrupt on this machine. Both depend on
//! the processor and on the hypervisor.
//!
//! The probe is a uprobe with an empty program on a function of this process, and the function is called with
//! and without the probe. The interrupt is that of a sampling event on the measuring thread. That thread does
//! nothing but read the clock, so the longest steps between two readings show the duration of the interrupts.
//!
//! The measurement takes about 10 ms of CPU time, once.
//!
//! `unsafe`: one function is written in assembly; it uses only its own stack frame and restores the
//! registers. One function of libbpf reads two instructions that live until it returns.

use std::{
    fs::File,
    hint::black_box,
    io,
    os::fd::{FromRawFd, OwnedFd},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use libbpf_sys::{BPF_PROG_TYPE_KPROBE, bpf_insn, perf_event_attr};
use procfs::process::Process;

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{
        perf::{EventScope, open_event},
        uprobe::Uprobe,
    },
};

/// Typical values, used if a measurement fails.
const TYPICAL: TrapCosts = TrapCosts { probe_ns: 1500.0, interrupt_ns: 5000.0 };
/// Number of calls with and without the probe. The median is used, because some calls are interrupted.
const CALLS: usize = 64;
/// Number of bytes read between two calls, which evicts the kernel's data from the first-level caches. In a
/// real program, the hits are so far apart that this data is evicted, too.
const EVICTION_BYTES: usize = 512 << 10;
const CACHE_LINE: usize = 64;
/// Period of the sampling event, and total time of sampling.
const PERIOD: Duration = Duration::from_micros(100);
const SAMPLING_TIME: Duration = Duration::from_millis(5);
/// Minimum duration of a step that counts as interrupted; shorter steps are those of the undisturbed loop.
const MIN_STEP: Duration = Duration::from_nanos(700);

/// Time that a thread loses to one event, apart from the run time of our program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrapCosts {
    /// A hit of a probe, in nanoseconds.
    pub probe_ns: f64,
    /// An interrupt that samples a processor, in nanoseconds.
    pub interrupt_ns: f64,
}

/// Returns the costs on this machine. The first call measures them, and waits about 100 ms for the kernel to detach
/// the probe.
pub fn trap_costs() -> TrapCosts {
    static TRAP_COSTS: OnceLock<TrapCosts> = OnceLock::new();
    *TRAP_COSTS.get_or_init(|| {
        let or_typical = |measured: Result<f64>, typical: f64| match measured {
            Ok(ns) => ns,
            Err(error) => {
                log::debug!(
                    "cannot measure the cost of a probe hit or of a sampling interrupt, using a typical \
                     value: {error}"
                );
                typical
            }
        };
        TrapCosts {
            probe_ns: or_typical(measure_probe(), TYPICAL.probe_ns),
            interrupt_ns: or_typical(measure_interrupt(), TYPICAL.interrupt_ns),
        }
    })
}

/// A function with the usual prologue of functions of libjvm.so.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probed() {
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "pop rbp", "ret")
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
extern "C" fn probed() {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!",
        "mov x29, sp",
        "ldp x29, x30, [sp], #16",
        "ret"
    )
}

fn measure_probe() -> Result<f64> {
    let failed = |e| Error::io("find the tool's own code", io::Error::other(e));
    let address = probed as *const () as u64;
    let maps = Process::myself().and_then(|own| own.maps()).map_err(failed)?;
    let map = maps.iter().find(|map| (map.address.0..map.address.1).contains(&address));
    let map = map.ok_or_else(|| super::defect("find the tool's own code"))?;
    let offset = FileOffset(address - map.address.0 + map.offset);
    let file = File::open("/proc/self/exe").map_err(|e| Error::io("open /proc/self/exe", e))?;
    let mut uprobe = Uprobe::new(Arc::new(file), offset, empty_program()?)?;
    let without = median_call();
    uprobe.attach_to(Some(Pid(std::process::id())))?;
    let with = median_call();
    drop(uprobe);
    Ok((with - without).max(0.0))
}

/// Returns the median duration of a call in nanoseconds.
fn median_call() -> f64 {
    let buffer = vec![1_u8; EVICTION_BYTES];
    let mut calls: Vec<_> = (0..CALLS)
        .map(|_| {
            black_box(buffer.iter().step_by(CACHE_LINE).map(|&byte| u64::from(byte)).sum::<u64>());
            let begin = Instant::now();
            black_box(probed as extern "C" fn())();
            begin.elapsed()
        })
        .collect();
    calls.sort_unstable();
    calls[CALLS / 2].as_nanos() as f64
}

/// Loads a program that returns 0.
fn empty_program() -> Result<OwnedFd> {
    // include/uapi/linux/bpf.h: BPF_ALU64 | BPF_MOV | BPF_K, and BPF_JMP | BPF_EXIT.
    let instructions = [0xb7, 0x95].map(|code| bpf_insn { code, ..Default::default() });
    // SAFETY: name, licence and instructions live until the call returns, and the count is that of the
    // instructions. The call returns a new file descriptor or less than zero.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            BPF_PROG_TYPE_KPROBE,
            c"nothing".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(Error::io("load a BPF program", io::Error::from_raw_os_error(-fd)));
    }
    // SAFETY: a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn measure_interrupt() -> Result<f64> {
    // PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK: include/uapi/linux/perf_event.h.
    let mut attr = perf_event_attr { type_: 1, config: 0, ..Default::default() };
    attr.__bindgen_anon_1.sample_period = PERIOD.as_nanos() as u64;
    // PID 0 means the calling thread.
    let event = open_event(&mut attr, EventScope::Thread(Pid(0)));
    let event = event.map_err(|e| Error::io("sample the tool's own thread", e))?;
    let begin = Instant::now();
    let (mut last, mut steps) = (begin, Vec::with_capacity(256));
    while last - begin < SAMPLING_TIME && steps.len() < steps.capacity() {
        let now = Instant::now();
        let step = now - last;
        if step >= MIN_STEP {
            steps.push(step);
        }
        last = now;
    }
    drop(event);
    steps.sort_unstable();
    let expected = SAMPLING_TIME.div_duration_f64(PERIOD) / 4.0;
    match steps.get(steps.len() / 2) {
        Some(median) if steps.len() as f64 >= expected => Ok(median.as_nanos() as f64),
        _ => Err(Error::io(
            "sample the tool's own thread",
            io::Error::other("too few sampling interrupts were observed"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_trap_costs_are_plausible_and_cached() {
        let begin = Instant::now();
        let trap_costs = trap_costs();
        println!("{trap_costs:?}, measured within {:?}", begin.elapsed());
        assert!((50.0..100_000.0).contains(&trap_costs.probe_ns), "{trap_costs:?}");
        assert!((200.0..1e6).contains(&trap_costs.interrupt_ns), "{trap_costs:?}");
        assert_eq!(trap_costs, super::trap_costs());
    }
}
