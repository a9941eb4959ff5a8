//! Control groups: the container, pod or service that a process runs in, and its tenant.
//!
//! A process cannot choose its control group, but where a group is delegated to a user (`user@UID.service`, rootless
//! podman, LXC), this user makes groups below it with names of its choice. So a path is read from the outside inwards, and
//! names count up to the first folder that root does not own (`Folders`). Within this part, a pod or container counts more
//! than the service that contains it, and the outermost one counts.
//!
//! If the owner of a folder cannot be determined, because the cgroup file system of the host is not mounted here, the
//! outermost known name counts.
//!
//! Sources: cgroups(7); how container engines name control groups: Docker (`docker-ID.scope`,
//! `/docker/ID`), podman (`libpod-ID.scope/container`, `libpod-payload-ID`), CRI-O (`crio-ID.scope`),
//! containerd (`cri-containerd-ID.scope`, `SLICE:cri-containerd:ID`), nerdctl (`nerdctl-ID.scope`),
//! ECS (`/ecs/TASK/ID`), LXC (`lxc.payload.NAME`, `/lxc/NAME`); Kubernetes, pkg/kubelet/cm:
//! `kubepods/burstable/podUID`, `kubepods-burstable-podUID.slice` with underscores for dashes; systemd.slice(5).

use std::{
    collections::HashMap,
    fmt::{self, Display, Formatter},
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    Pid,
    names::clean,
    process::cgroup_folders::{Folders, Owner},
};

/// Maximum size of /proc/PID/cgroup that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Maximum length of a tenant's name in bytes. Longer paths are cut, and end with a hash of the path.
const MAX_TENANT: usize = 128;
/// Tenant of processes that belong to no other tenant: kernel threads and processes outside of services.
pub(crate) const HOST: &str = "host";
/// Service whose groups are containers, even if the owner of its folder is unknown.
const CONTAINERD: &str = "containerd";

/// Container, pod or service that a process runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Container ID of 64 hexadecimal digits; on Fargate, a task's 32 digits and a number.
    pub container: Option<String>,
    /// Container runtime: `docker`, `podman`, `cri-o`, `containerd`; `None` if the name of the control group
    /// does not contain it.
    pub runtime: Option<&'static str>,
    /// UID of its pod.
    pub pod: Option<String>,
    /// QoS class of its pod: `Guaranteed`, `Burstable` or `BestEffort`.
    pub qos: Option<&'static str>,
    /// Name of its systemd service without `.service`, unless it runs in a container.
    pub service: Option<String>,
    /// ID of the user whose slice (`user-UID.slice`) contains it.
    pub user: Option<u32>,
    /// Path of the control group as far as root owns it, if the path shows none of the above. Empty for the root group and
    /// the groups of systemd itself.
    pub path: String,
}

impl Container {
    /// Parses the content of /proc/PID/cgroup by names only.
    pub fn parse(cgroup: &str) -> Self {
        Self::parse_owned(cgroup, |_, _, _| Owner::Unknown)
    }

    /// Parses the content of /proc/PID/cgroup. `owner` returns the owner of a folder, by the controllers and the path of a
    /// line, and the number of the folder in this path.
    fn parse_owned(cgroup: &str, owner: impl Fn(&str, &str, usize) -> Owner) -> Self {
        // Version 1 has a line for each controller, version 2 has one line; a process may have both.
        let lines = cgroup.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            Some((controllers, path))
        });
        let parsed = lines.map(|(controllers, path)| {
            // systemd and container engines put each process into a group of these two hierarchies. Groups of a single
            // controller are made for limits.
            let is_main = matches!(controllers, "" | "name=systemd");
            (is_main, Self::of_path(path, |part| owner(controllers, path, part)))
        });
        let best = parsed.max_by_key(|(is_main, group)| {
            // If several paths contain the same kinds of data, `max_by_key` returns the last of them. The
            // line of version 2, if any, is the last.
            let has = (group.container.is_some(), group.pod.is_some(), group.user.is_some());
            (has, group.service.is_some(), *is_main, !group.path.is_empty())
        });
        best.map(|(_, group)| group).unwrap_or_default()
    }

    /// Returns the tenant that the process belongs to: `pod/UID`, `container/ID`, `user/UID`, `unit/NAME`, `cgroup/PATH`,
    /// or `host`. The tenant is derived from the control group, which a process cannot choose.
    pub fn tenant(&self) -> Arc<str> {
        match self {
            Self { pod: Some(pod), .. } => format!("pod/{pod}").into(),
            Self { container: Some(container), .. } => format!("container/{container}").into(),
            Self { user: Some(uid), .. } => format!("user/{uid}").into(),
            Self { service: Some(service), .. } => format!("unit/{service}.service").into(),
            Self { path, .. } if !path.is_empty() => cut(&format!("cgroup/{path}")).into(),
            _ => HOST.into(),
        }
    }

    /// Parses the path of a control group. `owner` returns the owner of the folder with this number in the path.
    fn of_path(path: &str, owner: impl Fn(usize) -> Owner) -> Self {
        let mut result = Self::default();
        let mut before = "";
        let mut trusted = Vec::new();
        for (number, folder) in path.split('/').skip(1).enumerate() {
            let owner = if folder == ".." { Owner::Root } else { owner(number) };
            // A group that was removed contains no process, so nothing below it counts.
            if owner == Owner::None {
                break;
            }
            if folder != ".." {
                trusted.push(folder);
            }
            let is_in_pod = result.pod.is_some();
            for part in folder.split(':') {
                result.add(part, before, &trusted);
                before = part;
            }
            if result.container.is_some() || is_machine(&trusted) {
                break;
            }
            let is_engine = result.service.as_deref() == Some(CONTAINERD);
            let is_known = result.user.is_some() || (result.service.is_some() && !is_engine);
            match owner {
                // The parent folder's owner, root, has named this one, but its own owner names what it contains.
                Owner::Other => break,
                Owner::Unknown if is_known || is_in_pod => break,
                Owner::Unknown | Owner::Root | Owner::None => {}
            }
        }
        if result.container.is_some() || result.pod.is_some() {
            (result.service, result.user) = (None, None);
        } else if result.user.is_none() && result.service.is_none() && !is_of_systemd(&trusted) {
            result.path = clean::line(&trusted.join("/")).into_owned();
        }
        result
    }

    /// Adds what a part of the path shows. `trusted` are the folders up to this one.
    fn add(&mut self, part: &str, before: &str, trusted: &[&str]) {
        if let Some((runtime, id)) = container(part, before) {
            (self.container, self.runtime) = (Some(id.to_owned()), runtime);
        } else if self.pod.is_some() {
            // A pod within a pod does not count.
        } else if let Some((uid, qos)) = pod(part) {
            self.pod = Some(uid);
            // Each class but Guaranteed has a folder of its own, between the root `kubepods` and the pod.
            // A cgroup namespace may hide that folder, so a pod counts as Guaranteed only if it is
            // visibly in the root.
            let is_in_root = part.contains("kubepods-pod") || before.ends_with("kubepods");
            self.qos = qos.or_else(|| class(before)).or(is_in_root.then_some("Guaranteed"));
        } else if let ([.., "user.slice", slice], None) = (trusted, &self.service) {
            self.user = slice
                .strip_prefix("user-")
                .and_then(|slice| slice.strip_suffix(".slice")?.parse().ok());
        } else if let (None, Some(service)) = (&self.service, part.strip_suffix(".service")) {
            self.service = Some(clean::line(service).into_owned());
        }
    }
}

/// Returns whether these folders are those of systemd itself, in which processes run only briefly or by exception.
fn is_of_systemd(folders: &[&str]) -> bool {
    matches!(folders, [] | [""] | ["init.scope"] | ["system.slice"])
}

/// Returns whether these folders are those of a container or virtual machine that runs a complete system.
fn is_machine(folders: &[&str]) -> bool {
    match folders {
        [.., "machine.slice", scope] => scope.ends_with(".scope"),
        [.., "lxc", _] => true,
        [.., name] => name.starts_with("lxc.payload."),
        [] => false,
    }
}

/// Cuts a tenant's name to [`MAX_TENANT`] bytes. A hash keeps different names different.
fn cut(name: &str) -> String {
    if name.len() <= MAX_TENANT {
        return name.to_owned();
    }
    // The hash is the same in each run.
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    let end = (0..=MAX_TENANT - 17).rev().find(|&end| name.is_char_boundary(end));
    format!("{}~{:016x}", &name[..end.unwrap_or(0)], hasher.finish())
}

/// Groups that were parsed lately, by the content of /proc/PID/cgroup.
#[derive(Default)]
struct Cache(HashMap<String, (Instant, Arc<Group>)>);

/// A parsed group and its tenant.
struct Group {
    container: Container,
    tenant: Arc<str>,
}

impl Cache {
    /// Time after which the owners of folders are read again.
    const MAX_AGE: Duration = Duration::from_secs(10);
    const MAX_ENTRIES: usize = 1024;
    /// Maximum length of a text that is cached, in bytes. Usual ones have less than 1 kB.
    const MAX_TEXT: usize = 4 << 10;

    fn get(&self, text: &str, now: Instant) -> Option<Arc<Group>> {
        let (at, group) = self.0.get(text)?;
        (now.saturating_duration_since(*at) < Self::MAX_AGE).then(|| Arc::clone(group))
    }

    fn put(&mut self, text: String, group: &Arc<Group>, now: Instant) {
        if self.0.len() >= Self::MAX_ENTRIES {
            self.0.retain(|_, (at, _)| now.saturating_duration_since(*at) < Self::MAX_AGE);
        }
        if self.0.len() >= Self::MAX_ENTRIES {
            self.0.clear();
        }
        if text.len() <= Self::MAX_TEXT {
            self.0.insert(text, (now, Arc::clone(group)));
        }
    }
}

fn group_of(pid: Pid) -> Arc<Group> {
    static FOLDERS: OnceLock<Folders> = OnceLock::new();
    static CACHE: OnceLock<Mutex<Cache>> = OnceLock::new();
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cgroup")) {
        // If only a part can be read, that part is parsed.
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let cache = || CACHE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if let Some(group) = cache().get(&text, now) {
        return group;
    }
    let folders = FOLDERS.get_or_init(Folders::of_this_process);
    let container = Container::parse_owned(&text, |controllers, path, number| {
        folders.owner(controllers, path, number)
    });
    let group = Arc::new(Group { tenant: container.tenant(), container });
    cache().put(text, &group, now);
    group
}

/// Returns the container, pod or service that a process runs in. A control group that cannot be read counts as none.
pub(crate) fn of(pid: Pid) -> Container {
    group_of(pid).container.clone()
}

/// Returns the tenant of a process: see [`Container::tenant`]. A process that has ended belongs to `host`.
pub fn tenant_of(pid: Pid) -> Arc<str> {
    Arc::clone(&group_of(pid).tenant)
}

/// Text for a table column: `podman 0123456789ab`, `shop`, or nothing.
impl Display for Container {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        /// Number of digits shown of a container ID, as in docker's output.
        const SHOWN_ID_DIGITS: usize = 12;
        match (&self.container, &self.service) {
            (Some(id), _) => {
                let runtime = self.runtime.map(|runtime| format!("{runtime} ")).unwrap_or_default();
                write!(f, "{runtime}{}", id.get(..SHOWN_ID_DIGITS).unwrap_or(id))
            }
            (None, Some(service)) => f.write_str(service),
            (None, None) => Ok(()),
        }
    }
}

/// Returns a container's runtime and ID, from a component of a path and the component before it.
fn container<'a>(part: &'a str, before: &str) -> Option<(Option<&'static str>, &'a str)> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let (engine, id) =
        if is_task(name) { ("", name) } else { name.rsplit_once('-').unwrap_or(("", name)) };
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_id && !is_task(id) {
        return None;
    }
    let runtime = match if engine.is_empty() { before } else { engine } {
        "docker" => Some("docker"),
        "libpod" | "libpod-payload" => Some("podman"),
        "crio" => Some("cri-o"),
        "cri-containerd" | "containerd" | "nerdctl" => Some("containerd"),
        // conmon monitors a container from outside.
        engine if engine.ends_with("conmon") => return None,
        _ => None,
    };
    Some((runtime, id))
}

/// Returns whether this is a container ID of Fargate: a task's 32 hexadecimal digits, and a number.
fn is_task(id: &str) -> bool {
    id.split_once('-').is_some_and(|(task, number)| {
        task.len() == 32
            && task.bytes().all(|byte| byte.is_ascii_hexdigit())
            && (1..=20).contains(&number.len())
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Returns a pod's UID, and its QoS class if the component contains it.
fn pod(part: &str) -> Option<(String, Option<&'static str>)> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let (head, uid) = match name.rsplit_once("-pod") {
        Some(parts) => parts,
        None => ("", name.strip_prefix("pod")?),
    };
    // UIDs of static pods are hashes without dashes.
    let is_uid = matches!(uid.len(), 32 | 36)
        && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'));
    is_uid.then(|| (uid.replace('_', "-"), class(head)))
}

/// Returns the QoS class that `name` contains. `name` is that of a pod's slice without the pod's UID, or that
/// of the folder that contains the pod.
fn class(name: &str) -> Option<&'static str> {
    match name.rsplit('-').next() {
        Some("burstable") => Some("Burstable"),
        Some("besteffort") => Some("BestEffort"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f";

    /// Returns the parsed fields: container, runtime, pod, QoS class and service. They are the same if root owns all
    /// folders and if the owner is unknown.
    fn parsed_fields(cgroup: &str) -> [String; 5] {
        let container = Container::parse(cgroup);
        assert_eq!(container, Container::parse_owned(cgroup, |_, _, _| Owner::Root), "{cgroup}");
        fields(&container)
    }

    fn fields(container: &Container) -> [String; 5] {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        [
            text(container.container.as_deref()),
            text(container.runtime),
            text(container.pod.as_deref()),
            text(container.qos),
            text(container.service.as_deref()),
        ]
    }

    #[test]
    fn path_yields_container_id_and_runtime() {
        let id = &"0123456789ab".repeat(6)[..64];
        for (cgroup, runtime) in [
            (format!("0::/system.slice/docker-{id}.scope\n"), "docker"),
            (format!("12:pids:/docker/{id}\n1:name=systemd:/docker/{id}\n0::/\n"), "docker"),
            (format!("0::/../docker-{id}.scope"), "docker"),
            (format!("1:name=systemd:/docker/{id}/docker/{}", id.replace('0', "f")), "docker"),
            (format!("0::/machine.slice/libpod-{id}.scope/container"), "podman"),
            (format!("4:memory:/libpod_parent/libpod-{id}"), "podman"),
            (format!("0::/system.slice/nerdctl-{id}.scope"), "containerd"),
            (format!("0::/system.slice/crio-{id}.scope/container"), "cri-o"),
            (format!("0::/default/{id}"), ""),
            (format!("9:cpu:/ecs/shop/0123456789abcdef0123456789abcdef/{id}"), ""),
        ] {
            assert_eq!(parsed_fields(&cgroup), [id, runtime, "", "", ""], "{cgroup}");
        }
        let task = "0123456789abcdef0123456789abcdef-1234567890";
        assert_eq!(parsed_fields(&format!("9:cpu:/ecs/x/{task}")), [task, "", "", "", ""]);
    }

    #[test]
    fn kubernetes_path_yields_pod_and_qos_class() {
        let id = &"fedcba987654".repeat(6)[..64];
        let low = UID.replace('-', "_");
        for (cgroup, runtime, class) in [
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{low}.slice/\
                      cri-containerd-{id}.scope"
                ),
                "containerd",
                "Burstable",
            ),
            (
                format!(
                    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{low}.slice/\
                      crio-{id}.scope"
                ),
                "cri-o",
                "BestEffort",
            ),
            (
                format!("0::/kubepods.slice/kubepods-pod{low}.slice/docker-{id}.scope"),
                "docker",
                "Guaranteed",
            ),
            (format!("11:cpu:/kubepods/burstable/pod{UID}/{id}\n0::/"), "", "Burstable"),
            (format!("11:cpu:/kubepods/besteffort/pod{UID}/{id}"), "", "BestEffort"),
            (format!("11:cpu:/kubepods/pod{UID}/{id}"), "", "Guaranteed"),
            // As seen from within a cgroup namespace.
            (format!("0::/../../pod{UID}/{id}"), "", ""),
            (format!("0::/../pod{UID}/{id}"), "", ""),
            (format!("0::/../../burstable/pod{UID}/{id}"), "", "Burstable"),
            (
                format!("0::/../../kubepods-pod{low}.slice/cri-containerd-{id}.scope"),
                "containerd",
                "Guaranteed",
            ),
            (
                format!(
                    "11:cpu:/system.slice/containerd.service/kubepods-burstable-pod{low}.slice:\
                      cri-containerd:{id}"
                ),
                "containerd",
                "Burstable",
            ),
        ] {
            assert_eq!(parsed_fields(&cgroup), [id, runtime, UID, class, ""], "{cgroup}");
        }
        let hash = "0123456789abcdef0123456789abcdef";
        let of_static = format!("0::/kubepods/burstable/pod{hash}/{id}");
        assert_eq!(parsed_fields(&of_static), [id, "", hash, "Burstable", ""]);
    }

    #[test]
    fn systemd_service_is_parsed_outside_containers() {
        for (cgroup, service) in [
            ("0::/system.slice/shop.service", "shop"),
            ("0::/system.slice/system-shop.slice/shop@1.service", "shop@1"),
            (
                "1:name=systemd:/system.slice/shop.service\n0::/system.slice/shop.service/worker",
                "shop",
            ),
            ("0::/machine.slice/systemd-nspawn@web.service/payload", "systemd-nspawn@web"),
            ("0::/user.slice/user-0.slice/session-1.scope", ""),
            ("0::/", ""),
            ("", ""),
            ("odd", ""),
        ] {
            assert_eq!(parsed_fields(cgroup), ["", "", "", "", service], "{cgroup}");
        }
    }

    #[test]
    fn conmon_scope_is_not_a_container() {
        let id = "0123456789abcdef".repeat(4);
        for engine in ["libpod-conmon", "crio-conmon"] {
            let cgroup = format!("0::/machine.slice/{engine}-{id}.scope");
            let parsed = Container::parse(&cgroup);
            assert_eq!(parsed, Container { path: parsed.path.clone(), ..Container::default() });
            assert!(parsed.path.starts_with("machine.slice/"), "{parsed:?}");
        }
    }

    /// Returns a group of which root owns the first folders, up to the one named `delegated`.
    fn delegated(path: &str, delegated: &str) -> Container {
        let number = path.split('/').skip(1).position(|name| name == delegated).unwrap();
        Container::parse_owned(&format!("0::{path}\n"), |_, _, at| {
            if at < number { Owner::Root } else { Owner::Other }
        })
    }

    #[test]
    fn names_below_a_delegated_group_do_not_count() {
        let (id, low) = ("0123456789abcdef".repeat(4), UID.replace('-', "_"));
        let spoofed = format!("kubepods-burstable-pod{low}.slice/cri-containerd-{id}.scope");
        for own in [&*spoofed, "app.slice/t1.service", "app.slice/t2.service", ""] {
            let path = format!("/user.slice/user-1000.slice/user@1000.service/{own}");
            let group = delegated(&path, "user@1000.service");
            assert_eq!(fields(&group), ["", "", "", "", "user@1000"]);
            assert_eq!(&*group.tenant(), "user/1000");
            // The same without an owner.
            assert_eq!(&*Container::parse(&format!("0::/../..{path}")).tenant(), "user/1000");
            let group = delegated(&format!("/user@1000.service/{own}"), "user@1000.service");
            assert_eq!(&*group.tenant(), "unit/user@1000.service");
            let group = delegated(&format!("/lxc.payload.web/{own}"), "lxc.payload.web");
            assert_eq!(
                (&*group.tenant(), fields(&group)),
                ("cgroup/lxc.payload.web", Default::default())
            );
        }
        let session = "0::/user.slice/user-1000.slice/session-3.scope";
        assert_eq!(&*Container::parse(session).tenant(), "user/1000");
        // An engine gives the folder of a container to the user that is root in the container.
        let path = format!("/machine.slice/libpod-{id}.scope/{spoofed}");
        let group = delegated(&path, &format!("libpod-{id}.scope"));
        assert_eq!(fields(&group), [&*id, "podman", "", "", ""]);
    }

    #[test]
    fn container_in_a_service_of_root_counts_more_than_the_service() {
        let id = "0123456789abcdef".repeat(4);
        let cgroup = format!("0::/system.slice/shop.service/libpod-payload-{id}");
        let container = Container::parse_owned(&cgroup, |_, _, _| Owner::Root);
        assert_eq!(fields(&container), [&*id, "podman", "", "", ""]);
        // If the owner is unknown, the service may belong to a user.
        assert_eq!(&*Container::parse(&cgroup).tenant(), "unit/shop.service");
    }

    #[test]
    fn node_of_kind_is_one_tenant_of_its_host() {
        let (id, low) = ("0123456789abcdef".repeat(4), UID.replace('-', "_"));
        for rest in [
            format!(
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{low}.slice/\
                 cri-containerd-{}.scope",
                id.replace('0', "f")
            ),
            format!("kubelet/kubepods/besteffort/pod{UID}/{}", id.replace('0', "f")),
        ] {
            let cgroup = format!("0::/docker/{id}/{rest}");
            assert_eq!(parsed_fields(&cgroup), [&*id, "docker", "", "", ""]);
            // Within the node, its control group is the root.
            assert_eq!(parsed_fields(&format!("0::/{rest}"))[2], UID);
        }
    }

    #[test]
    fn group_without_a_known_name_is_a_tenant_by_its_path() {
        let long = format!("/slurm/{}", "a/".repeat(100));
        let cut = format!("{:016x}", {
            let mut hasher = DefaultHasher::new();
            format!("cgroup{long}").hash(&mut hasher);
            hasher.finish()
        });
        for (path, tenant) in [
            ("/", "host"),
            ("/../../..", "host"),
            ("/init.scope", "host"),
            ("/../system.slice", "host"),
            ("/machine.slice/machine-web.scope/x", "cgroup/machine.slice/machine-web.scope"),
            ("/lxc/web/system.slice/a.service", "cgroup/lxc/web"),
            ("/slurm/uid_5/job_7", "cgroup/slurm/uid_5/job_7"),
            ("/a\u{202e}", "cgroup/a\\u{202e}"),
            (&*long, &*format!("cgroup/slurm/{}~{cut}", "a/".repeat(49))),
        ] {
            let tenant_of = |owner| Container::parse_owned(&format!("0::{path}"), |_, _, _| owner);
            assert_eq!(&*tenant_of(Owner::Root).tenant(), tenant);
            assert_eq!(&*tenant_of(Owner::Unknown).tenant(), tenant);
        }
        // A group of a single controller limits processes of the host.
        assert_eq!(&*Container::parse("4:memory:/limits/a\n0::/\n").tenant(), "host");
        assert!(Container::parse(&format!("0::{long}")).tenant().len() <= MAX_TENANT);
    }

    #[test]
    fn parsed_groups_are_cached_for_some_seconds() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        let group = Arc::new(Group {
            container: Container::default(),
            tenant: Arc::from("unit/a.service"),
        });
        for number in 0..3 * Cache::MAX_ENTRIES {
            cache.put(number.to_string(), &group, now);
            assert!(cache.0.len() <= Cache::MAX_ENTRIES);
        }
        let last = (3 * Cache::MAX_ENTRIES - 1).to_string();
        assert!(cache.get(&last, now).is_some());
        assert!(cache.get(&last, now + Cache::MAX_AGE).is_none());
        assert_eq!(&*tenant_of(Pid(std::process::id())), &*of(Pid(std::process::id())).tenant());
    }

    #[test]
    fn display_shows_short_container_id_or_service() {
        let id = "0123456789abcdef".repeat(4);
        let shown = |cgroup: &str| Container::parse(cgroup).to_string();
        assert_eq!(shown(&format!("0::/docker-{id}.scope")), "docker 0123456789ab");
        assert_eq!(shown(&format!("0::/x/{id}")), "0123456789ab");
        assert_eq!(shown("0::/system.slice/shop.service"), "shop");
        assert_eq!(shown("0::/"), "");
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "([0-9a-f]{31,33}|[0-9a-f]{64}|pod|-|_|/|:|docker|\\.slice|\\.scope|ä|\n){0,20}") {
            let _ = Container::parse(&text).to_string();
        }
    }
}
