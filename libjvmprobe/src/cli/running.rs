//! List of the running JVMs, so that the user can choose one. It does not need `jps`, which the host may
//! lack.
//!
//! Source: proc(5) (`cmdline`, `cgroup`).

use std::{
    fmt::{self, Display, Formatter},
    fs::File,
    io::Read,
};

use regex::Regex;

use crate::{
    Error, Pid, Result,
    hotspot::{Collector, HotSpot},
    names::clean,
    process::{Target, cgroup::Container, launcher, reader::ProcFile, scan::Scanner},
    render::columns::fit,
};

/// Maximum number of bytes read from /proc/PID/cgroup and from /etc/passwd.
const MAX_TEXT: u64 = 1 << 20;

/// A JVM that could be traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    /// Its PID.
    pub(crate) pid: Pid,
    /// User name, or UID if /etc/passwd has no name for it.
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
    fn new(target: &Target, users: &str) -> Self {
        let pid = target.pid();
        let hotspot = HotSpot::read(target).ok();
        let uid = target.process.uid;
        Self {
            pid,
            user: user(users, uid).map_or_else(|| uid.to_string(), Into::into),
            version: hotspot
                .as_ref()
                .map(|h| version_number(&h.version).into())
                .unwrap_or_default(),
            collector: hotspot.map_or(Collector::Unknown, |h| h.collector).name(),
            main: launcher::main_of(&target.process),
            container: clean::name(&container_of(pid).to_string()).into_owned(),
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
    let mut users = String::new();
    // Without that file, users are shown as numbers.
    let _ = File::open("/etc/passwd").and_then(|f| f.take(MAX_TEXT).read_to_string(&mut users));
    Scanner::new().scan().iter().map(|target| Running::new(target, &users)).collect()
}

/// Returns the JVMs that run in a container, given by its ID or the first digits of the ID. If `wanted` is not empty,
/// returns these processes, all of which must be JVMs in the container.
///
/// # Errors
/// [`Error::NoJvmInContainer`] or [`Error::NotInContainer`].
pub(crate) fn in_container(id: &str, wanted: &[Pid]) -> Result<Vec<Pid>> {
    let runs_there = |pid| container_of(pid).container.is_some_and(|full| full.starts_with(id));
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

/// Returns the container that a process runs in. A control group that cannot be read counts as none.
fn container_of(pid: Pid) -> Container {
    let mut bytes = Vec::new();
    let file = ProcFile::open(pid, "cgroup");
    let _ = file.and_then(|file| file.take(MAX_TEXT).read_to_end(&mut bytes));
    Container::parse(&String::from_utf8_lossy(&bytes))
}

/// Returns the version number without the build number: `17.0.15` for `OpenJDK 64-Bit Server VM 17.0.15+6`.
fn version_number(version: &str) -> &str {
    let last = version.rsplit(' ').next().unwrap_or_default();
    last.split(['+', '-']).next().unwrap_or_default()
}

/// Returns the name of a UID, from the lines of passwd(5).
fn user(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_name_and_version_number_are_extracted() {
        let passwd = "root:x:0:0::/:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nodd\n";
        assert_eq!((user(passwd, 1000), user(passwd, 7)), (Some("ada"), None));
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
