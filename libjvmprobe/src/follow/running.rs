//! The JVMs that run now, told so that a person can choose: on a host in trouble, there is no
//! `jps`.
//!
//! Sources: proc(5) (`cmdline`, `cgroup`); the launcher's options, java.base/share/native/libjli;
//! how systemd, Docker, podman, containerd and CRI-O name control groups.

use std::{
    fmt::{self, Display, Formatter},
    fs::File,
    io::Read,
};

use regex::Regex;

use crate::{
    Pid,
    hotspot::{Collector, HotSpot},
    names::clean,
    process::{Target, scan::Scanner},
    render::columns::fit,
};

/// Of a command line, so much is read: class paths are long, and the main class is behind them.
const MAX_COMMAND_LINE: u64 = 1 << 20;
/// Of /proc/PID/cgroup and /etc/passwd.
const MAX_TEXT: u64 = 1 << 20;

/// A JVM that could be traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Running {
    /// Its number.
    pub(crate) pid: Pid,
    /// Whose it is: a name, or a number where /etc/passwd has none.
    pub(crate) user: String,
    /// Its version, for example `17.0.15`; empty where it is not known.
    pub(crate) version: String,
    /// Its collector.
    pub(crate) collector: &'static str,
    /// Its main class, jar or module; where its arguments do not tell, its command.
    pub(crate) main: String,
    /// The service or container that it is in; empty where there is none.
    pub(crate) place: String,
}

impl Running {
    fn new(target: &Target, users: &str) -> Self {
        let pid = target.pid();
        let read = |name: &str, most: u64| {
            let mut bytes = Vec::new();
            let file = File::open(format!("/proc/{pid}/{name}"));
            // What cannot be read is not told.
            let _ = file.and_then(|file| file.take(most).read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let hotspot = HotSpot::read(target).ok();
        let command_line = read("cmdline", MAX_COMMAND_LINE);
        let main = main_of(command_line.split('\0').skip(1)).map(str::to_owned);
        let main = main.unwrap_or_else(|| target.process.comm.clone());
        let uid = target.process.uid;
        Self {
            pid,
            user: user(users, uid).map_or_else(|| uid.to_string(), Into::into),
            version: hotspot.as_ref().map(|h| number(&h.version).into()).unwrap_or_default(),
            collector: hotspot.map_or(Collector::Unknown, |h| h.collector).name(),
            main: clean::name(&main).into_owned(),
            place: clean::name(&place_of(&read("cgroup", MAX_TEXT))).into_owned(),
        }
    }

    /// Whether its main class, jar, service or container is meant.
    pub(crate) fn matches(&self, name: &Regex) -> bool {
        name.is_match(&self.main) || name.is_match(&self.place)
    }
}

/// A line of the list; [`HEAD`] stands above.
impl Display for Running {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { pid: Pid(pid), user, version, collector, main, place } = self;
        let (user, version) = (fit(user, 12), fit(version, 12));
        let main = fit(main, 48);
        write!(f, "{pid:>7} {user:<12} {version:<12} {collector:<10} {main:<48} {place}")
    }
}

/// What the columns of the list are.
pub(crate) const HEAD: &str = "    PID USER         VERSION      COLLECTOR  MAIN                                             \
                        SERVICE OR CONTAINER";

/// All JVMs that run now and could be traced, by their numbers.
pub(crate) fn all() -> Vec<Running> {
    let mut users = String::new();
    // Without it, users are numbers.
    let _ = File::open("/etc/passwd").and_then(|f| f.take(MAX_TEXT).read_to_string(&mut users));
    Scanner::new().scan().iter().map(|target| Running::new(target, &users)).collect()
}

/// The last word of `OpenJDK 64-Bit Server VM 17.0.15+6`, without its build.
fn number(version: &str) -> &str {
    let last = version.rsplit(' ').next().unwrap_or_default();
    last.split(['+', '-']).next().unwrap_or_default()
}

/// The user of a number, from the lines of passwd(5).
fn user(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

/// What a JVM runs, from the arguments behind its name: the first that is no option and no
/// option's value, or what `-jar` or `-m` name.
fn main_of<'a>(arguments: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Options whose value is an argument of its own.
    const WITH_VALUE: [&str; 12] = [
        "-cp",
        "-classpath",
        "--class-path",
        "-p",
        "--module-path",
        "--upgrade-module-path",
        "--add-modules",
        "--limit-modules",
        "--add-reads",
        "--add-exports",
        "--add-opens",
        "--source",
    ];
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument {
            "-jar" | "-m" | "--module" => return arguments.next(),
            _ if WITH_VALUE.contains(&argument) => _ = arguments.next(),
            // Options, and files of options.
            _ if argument.starts_with(['-', '@']) || argument.is_empty() => {}
            main => return Some(main),
        }
    }
    None
}

/// The service or container that a process is in, from its control groups. The deepest that is
/// known is told: a container in a pod's slice, a service in a user's.
fn place_of(cgroup: &str) -> String {
    // A container's id, of which docker shows as much.
    const SHOWN: usize = 12;
    let id = |part: &str| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let (engine, id) = part.rsplit_once('-').unwrap_or(("", part));
        let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
        let engine = match engine {
            "libpod" => "podman ",
            "docker" => "docker ",
            "crio" => "cri-o ",
            "cri-containerd" => "containerd ",
            _ => "",
        };
        is_id.then(|| format!("{engine}{}", &id[..SHOWN]))
    };
    let service = |part: &str| part.strip_suffix(".service").map(str::to_owned);
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let parts: Vec<_> = paths.flat_map(|path| path.rsplit('/')).collect();
    let found = parts.iter().find_map(|part| id(part));
    found.or_else(|| parts.iter().find_map(|part| service(part))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_jvm_runs_is_told_by_its_arguments() {
        for (arguments, main) in [
            (&["-Xmx1g", "-cp", "a:b", "com.example.Main", "-x"][..], Some("com.example.Main")),
            (&["-Dx=y", "-jar", "/srv/shop.jar", "serve"], Some("/srv/shop.jar")),
            (&["@options", "-m", "app/app.Main"], Some("app/app.Main")),
            (&["--add-opens", "java.base/java.lang=ALL-UNNAMED", "Main"], Some("Main")),
            (&["-version"], None),
            (&[], None),
        ] {
            assert_eq!(main_of(arguments.iter().copied()), main, "{arguments:?}");
        }
    }

    #[test]
    fn control_groups_name_services_and_containers() {
        let id = "0123456789ab".repeat(5) + "cdef";
        for (cgroup, place) in [
            ("0::/system.slice/shop.service\n".to_owned(), "shop"),
            (format!("0::/system.slice/docker-{id}.scope"), "docker 0123456789ab"),
            (format!("1:cpu:/docker/{id}\n0::/"), "0123456789ab"),
            (
                format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"),
                "containerd 0123456789ab",
            ),
            (
                format!("0::/user.slice/user-0.slice/user@0.service/libpod-{id}.scope/container"),
                "podman 0123456789ab",
            ),
            ("0::/user.slice/session-1.scope".into(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(place_of(&cgroup), place, "{cgroup}");
        }
    }

    #[test]
    fn users_and_versions_are_short() {
        let passwd = "root:x:0:0::/:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\nodd\n";
        assert_eq!((user(passwd, 1000), user(passwd, 7)), (Some("ada"), None));
        assert_eq!(number("OpenJDK 64-Bit Server VM 17.0.15+6"), "17.0.15");
        assert_eq!(number(""), "");
    }

    #[test]
    fn lines_stand_under_their_heads() {
        let jvm = Running { pid: Pid(77), main: "Main".into(), ..Default::default() };
        let line = jvm.to_string();
        assert_eq!(HEAD.find("MAIN"), line.find("Main"), "{line}");
        assert!(jvm.matches(&Regex::new("^Ma").unwrap()));
    }
}
