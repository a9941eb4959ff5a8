//! Perf events: sampling on each processor, at a frequency or at each n-th occurrence, and watchpoints.
//!
//! Source: perf_event_open(2). To sample CPU time, hardware cycles are used if the machine counts them
//! (virtual machines often do not), else the kernel's timer.

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
};

use libbpf_rs::{Link, PerfEventOpts, ProgramMut};
use libbpf_sys::{PERF_FLAG_FD_CLOEXEC, PERF_TYPE_BREAKPOINT, perf_event_attr};

use crate::{Addr, Error, Pid, Result};

/// `HW_BREAKPOINT_W`, include/uapi/linux/hw_breakpoint.h.
const WRITES: u32 = 2;
const MAX_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// Event that CPU profiling samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Cycles in which the processor was not halted, counted by hardware.
    Cycles,
    /// The kernel's high-resolution timer on each processor.
    CpuClock,
}

impl Clock {
    /// Returns `perf`'s name of the event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }

    fn event(self) -> Event {
        match self {
            Self::Cycles => Event { kind: 0, config: 0 },
            Self::CpuClock => Event { kind: 1, config: 0 },
        }
    }
}

/// An event that the kernel or a processor counts: `PERF_TYPE_*` and its `config`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// `PERF_COUNT_*` of this kind, or a tracepoint's id.
    pub config: u64,
}

/// Rate at which an event is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// This many times per second, on each processor.
    Hertz(u64),
    /// At each n-th occurrence.
    Each(u64),
}

/// Attaches a program to samples of CPU time, `hertz` per second on each processor.
///
/// # Errors
/// [`Error::Kernel`] if the kernel's limit is lower, [`Error::Permission`],
/// [`Error::Io`] or [`Error::Bpf`].
pub(crate) fn attach_clock(
    program: &ProgramMut<'_>,
    hertz: u64,
    cookie: u64,
) -> Result<(Clock, Vec<Link>)> {
    let rate = Rate::Hertz(hertz);
    let cycles = Clock::Cycles;
    match open_all(cycles.event(), rate)? {
        Ok(events) => Ok((cycles, attach_all(program, events, cookie)?)),
        Err((_, error)) => {
            log::debug!("cannot count cycles, sampling by the CPU clock instead: {error}");
            let clock = Clock::CpuClock;
            let events = open_all(clock.event(), rate)?.map_err(|(cpu, e)| open_error(e, cpu))?;
            Ok((clock, attach_all(program, events, cookie)?))
        }
    }
}

/// Attaches a program to an event on each processor. `name` is for messages. `cookie` is passed to the program if the
/// kernel supports that.
///
/// # Errors
/// As `attach_clock`; [`Error::Kernel`] if the event cannot be counted on this machine.
pub fn attach(
    program: &ProgramMut<'_>,
    event: Event,
    name: &str,
    rate: Rate,
    cookie: u64,
) -> Result<Vec<Link>> {
    let events = open_all(event, rate)?.map_err(|(cpu, error)| match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => Error::Kernel {
            what: format!("count {name}"),
            hint: match event.kind {
                0 | 3 => "the machine has no such counter (virtual machines often have none)",
                _ => "it does not support this event",
            }
            .into(),
        },
        _ => open_error(error, cpu),
    })?;
    attach_all(program, events, cookie)
}

/// Attaches a program to a tracepoint. An event that is opened on one processor suffices: the program then
/// runs for hits on every processor.
///
/// # Errors
/// As [`attach`].
pub(crate) fn attach_once(
    program: &ProgramMut<'_>,
    tracepoint: Event,
    cookie: u64,
) -> Result<Link> {
    let cpu = online_cpus()?.into_iter().next().unwrap_or(0);
    let event = open(tracepoint, cpu, Rate::Each(1)).map_err(|error| open_error(error, cpu))?;
    let links = attach_all(program, vec![(cpu, event)], cookie)?;
    links.into_iter().next().ok_or_else(|| super::defect("attach to a tracepoint"))
}

/// An open event of a processor.
type Opened = (u32, OwnedFd);

/// Opens an event on all processors, or returns the processor on which that failed and the reason.
fn open_all(event: Event, rate: Rate) -> Result<Result<Vec<Opened>, (u32, io::Error)>> {
    if let Rate::Hertz(hertz) = rate {
        check_rate(hertz)?;
    }
    let open = |cpu| match open(event, cpu, rate) {
        Ok(fd) => Ok((cpu, fd)),
        Err(error) => Err((cpu, error)),
    };
    Ok(online_cpus()?.into_iter().map(open).collect())
}

fn attach_all(program: &ProgramMut<'_>, events: Vec<Opened>, cookie: u64) -> Result<Vec<Link>> {
    let attach = |(cpu, event): Opened| {
        attach_one(program, event, cookie).map_err(|source| Error::Bpf {
            what: format!("attach to an event on CPU {cpu}"),
            source,
        })
    };
    events.into_iter().map(attach).collect()
}

fn attach_one(program: &ProgramMut<'_>, event: OwnedFd, cookie: u64) -> libbpf_rs::Result<Link> {
    let fd = event.as_raw_fd();
    let link = match super::has_cookies() {
        true => {
            let opts = PerfEventOpts { cookie, ..Default::default() };
            program.attach_perf_event_with_opts(fd, opts)
        }
        false => program.attach_perf_event(fd),
    }?;
    // From here on, the link owns the descriptor and closes it.
    let _ = event.into_raw_fd();
    Ok(link)
}

fn check_rate(hertz: u64) -> Result<()> {
    let limit = fs::read_to_string(MAX_RATE).ok().and_then(|text| text.trim().parse().ok());
    match limit {
        Some(limit) if hertz > limit => Err(Error::Kernel {
            what: format!("sample {hertz} times per second"),
            hint: format!("its limit is {limit} ({MAX_RATE}); use a lower -F"),
        }),
        _ => Ok(()),
    }
}

fn open_error(error: io::Error, cpu: u32) -> Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Error::Permission {
            what: "sample CPUs".into(),
            missing: "CAP_PERFMON is missing, or perf_event_open is forbidden here (seccomp)"
                .into(),
        };
    }
    Error::io(format!("open an event on CPU {cpu}"), error)
}

fn open(event: Event, cpu: u32, rate: Rate) -> io::Result<OwnedFd> {
    let mut attr =
        perf_event_attr { type_: event.kind, config: event.config, ..Default::default() };
    match rate {
        Rate::Hertz(hertz) => {
            attr.__bindgen_anon_1.sample_freq = hertz;
            attr.set_freq(1);
        }
        Rate::Each(period) => attr.__bindgen_anon_1.sample_period = period,
    }
    open_event(&mut attr, EventScope::Processor(cpu))
}

/// Attaches a program to a watchpoint: it runs each time `thread` has written one of the eight bytes at
/// `address`, which must be a multiple of eight. The number of watchpoints of a thread is limited by the
/// processor's debug registers, four on x86.
///
/// # Errors
/// [`Error::Permission`], [`Error::Io`] or [`Error::Bpf`].
pub(crate) fn attach_watchpoint(
    program: &ProgramMut<'_>,
    thread: Pid,
    address: Addr,
    cookie: u64,
) -> Result<Link> {
    let mut attr =
        perf_event_attr { type_: PERF_TYPE_BREAKPOINT, bp_type: WRITES, ..Default::default() };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.__bindgen_anon_3.bp_addr = address.0;
    attr.__bindgen_anon_4.bp_len = 8;
    attr.set_exclude_kernel(1);
    let event = open_event(&mut attr, EventScope::Thread(thread)).map_err(|error| {
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Error::Permission {
                what: format!("set a watchpoint on thread {thread}"),
                missing: "CAP_PERFMON is missing, or perf_event_open is forbidden here (seccomp)"
                    .into(),
            };
        }
        Error::io(format!("set a watchpoint on thread {thread}"), error)
    })?;
    let _guard = super::detach::begin_attaching();
    attach_one(program, event, cookie).map_err(|source| Error::Bpf {
        what: format!("set a watchpoint on thread {thread}"),
        source,
    })
}

/// Processor or thread that an event is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EventScope {
    /// One processor, whichever process runs there.
    Processor(u32),
    /// One thread, on whichever processor it runs.
    Thread(Pid),
}

/// Opens an event.
pub(crate) fn open_event(attr: &mut perf_event_attr, scope: EventScope) -> io::Result<OwnedFd> {
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    let (all, no_group) = (-1, -1);
    let number = |number: u32| i32::try_from(number).map_err(io::Error::other);
    let (thread, cpu) = match scope {
        EventScope::Processor(cpu) => (all, number(cpu)?),
        EventScope::Thread(thread) => (number(thread.0)?, all),
    };
    // SAFETY: `attr.size` is the size of `attr`, and `attr` is valid until the call returns. The result is a
    // new file descriptor or -1.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            thread,
            cpu,
            no_group,
            u64::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor, which has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the processors that are online.
///
/// # Errors
/// [`Error::Io`] if /sys cannot be read.
pub(crate) fn online_cpus() -> Result<Vec<u32>> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(|e| Error::io(format!("read {path}"), e))?;
    Ok(parse_cpu_list(&text))
}

/// Parses a list of processors, for example `0-3,8`; keeps at most 65,536.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    let max = 65_536;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_list_ranges_are_expanded() {
        assert_eq!(parse_cpu_list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(parse_cpu_list("0"), [0]);
        assert!(parse_cpu_list("").is_empty());
        assert_eq!(parse_cpu_list("0-4294967295").len(), 65_536);
    }

    #[test]
    fn a_rate_beyond_the_kernels_limit_is_refused() {
        let error = check_rate(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("lower -F"), "{error}");
    }
}
