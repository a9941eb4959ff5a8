//! Control groups: the container, pod or service that a process runs in.
//!
//! Sources: cgroups(7); how container engines name control groups: Docker (`docker-ID.scope`,
//! `/docker/ID`), podman (`libpod-ID.scope/container`, `libpod-payload-ID`), CRI-O (`crio-ID.scope`),
//! containerd (`cri-containerd-ID.scope`, `SLICE:cri-containerd:ID`), nerdctl (`nerdctl-ID.scope`),
//! ECS (`/ecs/TASK/ID`); Kubernetes, pkg/kubelet/cm: `kubepods/burstable/podUID`,
//! `kubepods-burstable-podUID.slice` with underscores for dashes.

use std::{
    fmt::{self, Display, Formatter},
    fs::File,
    io::Read,
    sync::Arc,
};

use crate::Pid;

/// Maximum size of /proc/PID/cgroup that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;

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
}

impl Container {
    /// Parses the content of /proc/PID/cgroup. If containers are nested, returns the innermost one.
    pub fn parse(cgroup: &str) -> Self {
        // Version 1 has a line for each controller, version 2 has one line; a process may have both.
        let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let containers = paths.map(Self::of_path);
        let best = containers.max_by_key(|container| {
            // If several paths contain the same kinds of data, `max_by_key` returns the last of them. The
            // line of version 2, if any, is the last.
            (container.container.is_some(), container.pod.is_some(), container.service.is_some())
        });
        best.unwrap_or_default()
    }

    /// Returns the tenant that the process belongs to: `pod/UID`, `container/ID`, `unit/NAME`, or `host`. The
    /// tenant is derived from the control group, because a process cannot choose its control group.
    pub fn tenant(&self) -> Arc<str> {
        match (&self.pod, &self.container, &self.service) {
            (Some(pod), ..) => format!("pod/{pod}").into(),
            (_, Some(container), _) => format!("container/{container}").into(),
            (_, _, Some(service)) => format!("unit/{service}.service").into(),
            _ => "host".into(),
        }
    }

    fn of_path(path: &str) -> Self {
        let mut result = Self::default();
        let mut before = "";
        for part in path.split(['/', ':']) {
            if let Some((runtime, id)) = container(part, before) {
                (result.container, result.runtime) = (Some(id.to_owned()), runtime);
            } else if let Some((uid, qos)) = pod(part) {
                result.pod = Some(uid);
                // Each class but Guaranteed has a folder of its own, between the root `kubepods` and the pod.
                // A cgroup namespace may hide that folder, so a pod counts as Guaranteed only if it is
                // visibly in the root.
                let is_in_root = part.contains("kubepods-pod") || before.ends_with("kubepods");
                result.qos = qos.or_else(|| class(before)).or(is_in_root.then_some("Guaranteed"));
            } else if let Some(service) = part.strip_suffix(".service") {
                result.service = Some(service.to_owned());
            }
            before = part;
        }
        if result.container.is_some() {
            result.service = None;
        }
        result
    }
}

/// Returns the container, pod or service that a process runs in. A control group that cannot be read counts as none.
pub(crate) fn of(pid: Pid) -> Container {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cgroup")) {
        // If only a part can be read, that part is parsed.
        let _ = file.take(MAX_BYTES).read_to_end(&mut bytes);
    }
    Container::parse(&String::from_utf8_lossy(&bytes))
}

/// Returns the tenant of a process: see [`Container::tenant`]. A process that has ended belongs to `host`.
pub(crate) fn tenant_of(pid: Pid) -> Arc<str> {
    of(pid).tenant()
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

    /// Returns the parsed fields: container, runtime, pod, QoS class and service.
    fn parsed_fields(cgroup: &str) -> [String; 5] {
        let container = Container::parse(cgroup);
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
            (format!("1:name=systemd:/docker/{}/docker/{id}", id.replace('0', "f")), "docker"),
            (format!("0::/machine.slice/libpod-{id}.scope/container"), "podman"),
            (
                format!("0::/user.slice/user-1.slice/user@1.service/user.slice/libpod-{id}.scope"),
                "podman",
            ),
            (format!("0::/system.slice/shop.service/libpod-payload-{id}"), "podman"),
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
            // In kind (Kubernetes in Docker), the node is a container itself.
            (
                format!(
                    "0::/docker/{}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
                      kubelet-kubepods-burstable-pod{low}.slice/cri-containerd-{id}.scope",
                    id.replace('f', "0")
                ),
                "containerd",
                "Burstable",
            ),
            (
                format!(
                    "3:memory:/docker/{}/kubelet/kubepods/besteffort/pod{UID}/{id}",
                    id.replace('f', "0")
                ),
                "",
                "BestEffort",
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
            ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/shop.service", "shop"),
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
            assert_eq!(Container::parse(&cgroup), Container::default());
        }
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
