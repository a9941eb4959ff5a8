//! List of the running JVMs, so that the user can choose one. It does not need `jps`, which the host may
//! lack.

use std::fmt::{self, Display, Formatter};

use regex::Regex;

use crate::{
    Error, Pid, Result,
    hotspot::{Collector, HotSpot},
    jvms::user_name,
    names::clean,
    process::{Target, cgroup, launcher, scan::Scanner},
    render::columns::fit,
};

/// A JVM that could be traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    /// Its PID.
    pub(crate) pid: Pid,
    /// User name, or UID if the host's /etc/passwd has no name for it.
    pub(crate) user: String,
    /// JVM version, for example `17.0.15`; empty if unknown.
    pub(crate) version: String,
    /// Name of its collector.
    pub(crate) collector: &'static str,
    /// Main class, jar or module; the command name if the arguments do not contain one.
    pub(crate) main: String,
    /// Service or container that it runs in; empty if none.
    pub(crate) container: String,
}

impl Running {
    fn new(target: &Target) -> Self {
        let pid = target.pid();
        let hotspot = HotSpot::read(target).ok();
        let uid = target.process.uid;
        Self {
            pid,
            user: user_name(uid).unwrap_or_else(|| uid.to_string()),
            version: hotspot
                .as_ref()
                .map(|h| version_number(&h.version).into())
                .unwrap_or_default(),
            collector: hotspot.map_or(Collector::Unknown, |h| h.collector).name(),
            main: launcher::main_of(&target.process),
            container: clean::name(&cgroup::of(pid).to_string()).into_owned(),
        }
    }

    /// Returns whether `name` matches its main class, jar, service or container.
    pub(crate) fn matches(&self, name: &Regex) -> bool {
        name.is_match(&self.main) || name.is_match(&self.container)
    }
}

/// One line of the list, below [`HEADER`].
impl Display for Running {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { pid: Pid(pid), user, version, collector, main, container } = self;
        let (user, version) = (fit(user, 12), fit(version, 12));
        let main = fit(main, 48);
        write!(f, "{pid:>7} {user:<12} {version:<12} {collector:<10} {main:<48} {container}")
    }
}

/// Column headings of the list.
pub(crate) const HEADER: &str = "    PID USER         VERSION      COLLECTOR  MAIN                                             \
                        SERVICE OR CONTAINER";

/// Returns all JVMs that run now and could be traced, in the order of their PIDs.
pub(crate) fn all() -> Vec<Running> {
    Scanner::new().scan().iter().map(Running::new).collect()
}

/// Returns the JVMs that run in a container, given by its ID or the first digits of the ID. If `wanted` is not empty,
/// returns these processes, all of which must be JVMs in the container.
///
/// # Errors
/// [`Error::NoJvmInContainer`] or [`Error::NotInContainer`].
pub(crate) fn in_container(id: &str, wanted: &[Pid]) -> Result<Vec<Pid>> {
    let runs_there = |pid| cgroup::of(pid).container.is_some_and(|full| full.starts_with(id));
    // Processes of other containers are not opened.
    let targets = Scanner::new().open_where(runs_there);
    let found: Vec<_> = targets.iter().map(Target::pid).collect();
    if found.is_empty() {
        return Err(Error::NoJvmInContainer { container: id.to_owned() });
    }
    match wanted.iter().find(|pid| !found.contains(pid)) {
        Some(&pid) => Err(Error::NotInContainer { pid, container: id.to_owned(), jvms: found }),
        None if wanted.is_empty() => Ok(found),
        None => Ok(wanted.to_vec()),
    }
}

/// Returns the version number without the build number: `17.0.15` for `OpenJDK 64-Bit Server VM 17.0.15+6`.
fn version_number(version: &str) -> &str {
    let last = version.rsplit(' ').next().unwrap_or_default();
    last.split(['+', '-']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_number_is_extracted() {
        assert_eq!(version_number("OpenJDK 64-Bit Server VM 17.0.15+6"), "17.0.15");
        assert_eq!(version_number(""), "");
    }

    #[test]
    fn columns_align_with_the_header() {
        let jvm = Running { pid: Pid(77), main: "Main".into(), ..Default::default() };
        let line = jvm.to_string();
        assert_eq!(HEADER.find("MAIN"), line.find("Main"), "{line}");
        assert!(jvm.matches(&Regex::new("^Ma").unwrap()));
    }
}
