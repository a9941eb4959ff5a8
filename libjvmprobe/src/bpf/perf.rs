//! Sampling events: one a processor, at a frequency.
//!
//! Source: perf_event_open(2). Hardware cycles where the machine counts them (in
//! virtual machines it often does not), else the processor's clock.

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
};

use libbpf_rs::{Link, ProgramMut};
use libbpf_sys::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};

use crate::{Error, Result, own::remark};

const MAX_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

/// What makes a processor take a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Cycles that it worked, counted by hardware.
    Cycles,
    /// Time that went by on it.
    CpuClock,
}

impl Clock {
    /// `perf`'s name of the event.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }

    /// `PERF_TYPE_*` and `PERF_COUNT_*`.
    fn event(self) -> (u32, u64) {
        match self {
            Self::Cycles => (0, 0),
            Self::CpuClock => (1, 0),
        }
    }
}

/// Attaches a program to `hertz` samples a second of each processor.
///
/// # Errors
/// [`Error::Kernel`] where the kernel's limit is lower, [`Error::Permission`],
/// [`Error::Io`] or [`Error::Bpf`].
pub fn attach(program: &ProgramMut<'_>, hertz: u64) -> Result<(Clock, Vec<Link>)> {
    check_rate(hertz)?;
    let cpus = online_cpus()?;
    let mut clock = Clock::Cycles;
    let mut links = Vec::new();
    for cpu in cpus {
        let event = match open(clock, cpu, hertz) {
            Err(error) if clock == Clock::Cycles && links.is_empty() => {
                remark(|| format!("cycles cannot be counted, so the clock is used: {error}"));
                clock = Clock::CpuClock;
                open(clock, cpu, hertz)
            }
            other => other,
        };
        let event = event.map_err(|e| open_error(e, cpu))?;
        let link = program
            .attach_perf_event(event.as_raw_fd())
            .map_err(|source| Error::Bpf { what: format!("sample processor {cpu}"), source })?;
        // From here on it is the link's, which closes it.
        let _ = event.into_raw_fd();
        links.push(link);
    }
    Ok((clock, links))
}

fn check_rate(hertz: u64) -> Result<()> {
    let limit = fs::read_to_string(MAX_RATE).ok().and_then(|text| text.trim().parse().ok());
    match limit {
        Some(limit) if hertz > limit => Err(Error::Kernel {
            what: format!("sample {hertz} times a second"),
            hint: format!("its limit is {limit} ({MAX_RATE}); use a lower -F"),
        }),
        _ => Ok(()),
    }
}

fn open_error(error: io::Error, cpu: u32) -> Error {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Error::Permission {
            what: "sample processors".into(),
            missing: "CAP_PERFMON is missing, or perf_event_open is forbidden here (seccomp)"
                .into(),
        };
    }
    Error::io(format!("sample processor {cpu}"), error)
}

fn open(clock: Clock, cpu: u32, hertz: u64) -> io::Result<OwnedFd> {
    let (type_, config) = clock.event();
    let mut attr = perf_event_attr { type_, config, ..Default::default() };
    attr.__bindgen_anon_1.sample_freq = hertz;
    attr.set_freq(1);
    open_event(&mut attr, cpu)
}

/// Opens an event of one processor, whichever process runs there.
pub(crate) fn open_event(attr: &mut perf_event_attr, cpu: u32) -> io::Result<OwnedFd> {
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    let (every_process, no_group) = (-1, -1);
    // SAFETY: the kernel reads `attr.size` bytes of `attr`, which lives that long,
    // and returns a new file descriptor or -1.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            every_process,
            cpu,
            no_group,
            u64::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a descriptor that nobody else knows of.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The processors that are switched on.
///
/// # Errors
/// [`Error::Io`] where /sys does not tell.
pub fn online_cpus() -> Result<Vec<u32>> {
    let path = "/sys/devices/system/cpu/online";
    let text = fs::read_to_string(path).map_err(|e| Error::io(format!("read {path}"), e))?;
    Ok(parse_cpu_list(&text))
}

/// Parses `0-3,8`.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    let most = 65_536;
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists_of_processors() {
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
