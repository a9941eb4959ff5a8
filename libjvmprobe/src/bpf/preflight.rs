//! Checks the capabilities of this process and the features of the kernel before anything is attached.
//!
//! Sources: capabilities(7), perf_event_open(2), kernel_lockdown(7).

use std::path::Path;

use rustix::thread::CapabilitySet;

use crate::{Error, Result, bpf::inodes};

/// Oldest kernel that was tested. It has all required features: ring buffers and CAP_BPF (5.8), inner maps of any
/// length (5.10).
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// Oldest kernel on which stacks are walked. Walking needs global functions that take pointers to memory
/// (5.12). The 5.14 of RHEL 9 should be sufficient, but walking was tried on 5.15 and later only
/// (tests/FIGURES.md). Messages name 5.15, the first release that also has the helpers for registers of a task
/// and for attach cookies. These helpers are used if they exist.
const OLDEST_WALKER: (u32, u32) = (5, 14);

const UPROBE_PMU: &str = "/sys/bus/event_source/devices/uprobe/type";

/// Checks rights and kernel features for uprobe and USDT tracing.
///
/// # Errors
/// [`Error::Permission`] naming the missing capabilities, [`Error::Unsupported`] or [`Error::Kernel`].
pub fn check() -> Result<()> {
    let held = rustix::thread::capabilities(None);
    capabilities(held.map_or(CapabilitySet::empty(), |held| held.effective))?;
    kernel_release(&rustix::system::uname().release().to_string_lossy())?;
    uprobes(Path::new(UPROBE_PMU))?;
    inodes::prepare();
    Ok(())
}

fn capabilities(held: CapabilitySet) -> Result<()> {
    let admin = held.contains(CapabilitySet::SYS_ADMIN);
    let missing: Vec<_> = [
        ("CAP_BPF", admin || held.contains(CapabilitySet::BPF)),
        ("CAP_PERFMON", admin || held.contains(CapabilitySet::PERFMON)),
        ("CAP_SYS_PTRACE", held.contains(CapabilitySet::SYS_PTRACE)),
    ]
    .into_iter()
    .filter_map(|(name, held)| (!held).then_some(name))
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let verb = if missing.len() == 1 { "is" } else { "are" };
    Err(Error::Permission {
        what: "trace".into(),
        missing: format!("{} {verb} missing", missing.join(", ")),
    })
}

fn kernel_release(release: &str) -> Result<()> {
    match parse_release(release) {
        Some(version) if version < OLDEST_KERNEL => {
            let (major, minor) = OLDEST_KERNEL;
            Err(Error::Unsupported {
                what: format!(
                    "Linux {release} is too old: this tool needs Linux {major}.{minor} or later"
                ),
            })
        }
        // An unusual version string of a vendor is no reason to refuse.
        _ => Ok(()),
    }
}

/// Checks the kernel features that walking stacks needs in addition to those of [`check`].
///
/// # Errors
/// [`Error::Kernel`].
pub fn check_walker() -> Result<()> {
    walker_release(&rustix::system::uname().release().to_string_lossy())
}

fn walker_release(release: &str) -> Result<()> {
    match parse_release(release) {
        Some(version) if version < OLDEST_WALKER => Err(Error::Kernel {
            what: format!("walk stacks (it is Linux {release})"),
            hint: "Linux 5.15 or later is needed for stacks; javagc without --stacks and \
                   javaobjnew without -s and -o work on this kernel"
                .into(),
        }),
        _ => Ok(()),
    }
}

/// Returns major and minor version of the running kernel; `None` if its release string has another form.
pub(crate) fn kernel_version() -> Option<(u32, u32)> {
    parse_release(&rustix::system::uname().release().to_string_lossy())
}

fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn uprobes(pmu: &Path) -> Result<()> {
    if pmu.exists() {
        return Ok(());
    }
    Err(Error::Kernel {
        what: format!("attach uprobes ({} is missing)", pmu.display()),
        hint: "CONFIG_UPROBE_EVENTS=y and a mounted /sys are required".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_every_missing_capability() {
        let (admin, ptrace) = (CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_PTRACE);
        assert!(capabilities(admin | ptrace).is_ok());
        assert!(capabilities(CapabilitySet::BPF | CapabilitySet::PERFMON | ptrace).is_ok());
        let none = capabilities(CapabilitySet::empty()).unwrap_err().to_string();
        assert!(none.contains("CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE are missing"), "{none}");
        let one = capabilities(admin).unwrap_err().to_string();
        assert!(one.contains("CAP_SYS_PTRACE is missing"), "{one}");
    }

    #[test]
    fn only_kernels_older_than_the_minimum_are_rejected() {
        assert!(kernel_release("4.18.0-553.el8_10.x86_64").is_err());
        assert!(kernel_release("5.10.0-46-amd64").is_ok());
        assert!(walker_release("5.10.0-46-amd64").is_err());
        assert!(walker_release("5.14.0-503.el9.x86_64").is_ok());
        assert!(walker_release("strange").is_ok());
        assert!(kernel_release("6.1.0-18-amd64").is_ok());
        assert!(kernel_release("10.0").is_ok());
        assert!(kernel_release("strange").is_ok());
    }

    #[test]
    fn error_without_uprobes_names_the_kernel_option() {
        let error = uprobes(Path::new("/nonexistent/uprobe/type")).unwrap_err().to_string();
        assert!(error.contains("CONFIG_UPROBE_EVENTS"), "{error}");
    }
}
