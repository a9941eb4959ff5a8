//! Chooses the container that is traced: from the objects of the cluster, the node and the arguments of the tool.

use anyhow::{Result, anyhow, bail};

use crate::{
    args::Tool,
    clean::quote,
    grammar::{ContainerId, ContainerName, NodeName, ObjectName, Uid},
    objects::{ContainerStatus, Pod},
};

/// Maximum number of names in a message.
const MAX_LISTED: usize = 10;

/// Where the tool runs, and its first arguments.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub node: NodeName,
    pub tool_args: Vec<String>,
}

impl Target {
    /// Chooses the container `chosen` of a pod, or its only one.
    ///
    /// # Errors
    /// If the choice is ambiguous, if the container does not run, or if a value does not match its grammar.
    pub(crate) fn new(pod: &Pod, tool: Tool, chosen: Option<&ContainerName>) -> Result<Self> {
        let name = ObjectName::new("metadata.name", &pod.metadata.name)?;
        let Some(node) = &pod.spec.node_name else {
            bail!("pod {name} has not been assigned to a node yet")
        };
        let node = NodeName::new("spec.nodeName", node)?;
        let filter = if tool != Tool::Show {
            let (_, status) = container(pod, &name, chosen)?;
            let id = status
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
                .then(|| status.id());
            let Some(id) = id.transpose()?.flatten() else {
                bail!(
                    "container {} of pod {name} is not running",
                    ContainerName::new("name", &status.name)?
                );
            };
            return Ok(Self { node, tool_args: vec!["--container".into(), id.to_string()] });
        } else if chosen.is_some() {
            let (container, status) = container(pod, &name, chosen)?;
            let ids = [status.id()?, status.previous_id()?];
            let ids: Vec<_> = ids.into_iter().flatten().map(|id| id.to_string()).collect();
            if ids.is_empty() {
                bail!("container {container} of pod {name} has not been started yet");
            }
            format!("container.id=^({})$", ids.join("|"))
        } else {
            // The kubelet knows a static pod by a UID of its own.
            let mirror = pod.metadata.annotations.as_ref().and_then(|all| all.mirror.as_deref());
            let uid = match mirror {
                Some(uid) => Uid::new("the annotation kubernetes.io/config.mirror", uid),
                None => Uid::new("metadata.uid", &pod.metadata.uid),
            };
            format!("k8s.pod.uid=^{}$", uid?)
        };
        Ok(Self { node, tool_args: ["show", "--jvm", &filter].map(Into::into).to_vec() })
    }
}

/// Returns the chosen container, that of the annotation, or the only one.
fn container<'a>(
    pod: &'a Pod,
    pod_name: &ObjectName,
    chosen: Option<&ContainerName>,
) -> Result<(ContainerName, &'a ContainerStatus)> {
    let of_spec = pod.spec.containers.as_deref().unwrap_or_default();
    let names =
        of_spec.iter().map(|container| ContainerName::new("spec.containers.name", &container.name));
    let names = names.collect::<Result<Vec<_>>>()?;
    let annotations = pod.metadata.annotations.as_ref();
    let default = annotations.and_then(|annotations| annotations.default_container.as_deref());
    let name = match (chosen, default, &names[..]) {
        (Some(name), ..) => name.clone(),
        (_, Some(name), _) => {
            let field = "the annotation kubectl.kubernetes.io/default-container";
            ContainerName::new(field, name)
                .map_err(|error| anyhow!("{error}; choose a container with -c"))?
        }
        (_, _, [only]) => only.clone(),
        _ => bail!("pod {pod_name} has several containers: {}; choose one with -c", list(&names)),
    };
    let statuses = [&pod.status.container_statuses, &pod.status.init_container_statuses];
    let mut statuses = statuses.into_iter().flatten().flatten();
    match statuses.find(|status| status.name == name.to_string()) {
        Some(status) => Ok((name, status)),
        None if names.contains(&name) => bail!("container {name} of pod {pod_name} is not running"),
        None => bail!("pod {pod_name} has no container {name}; it has: {}", list(&names)),
    }
}

impl ContainerStatus {
    fn id(&self) -> Result<Option<ContainerId>> {
        parse_id("containerID", self.container_id.as_deref())
    }

    /// Returns the ID that the container had before its last restart.
    fn previous_id(&self) -> Result<Option<ContainerId>> {
        let terminated = self.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        parse_id(
            "lastState.terminated.containerID",
            terminated.and_then(|it| it.container_id.as_deref()),
        )
    }
}

/// Checks the ID in a status of a container. Kubernetes uses an empty text for none.
fn parse_id(field: &str, id: Option<&str>) -> Result<Option<ContainerId>> {
    let id = id.filter(|id| !id.is_empty());
    id.map(|id| ContainerId::after_runtime(&format!("status.containerStatuses.{field}"), id))
        .transpose()
}

/// Chooses one of several pods: with `is_any`, the running one that was created first, or else the only running one.
/// Also returns the number of the running ones.
///
/// # Errors
/// If there is none, or not exactly one.
pub(crate) fn choose(pods: Vec<Pod>, whose: &str, is_any: bool) -> Result<(Pod, usize)> {
    let is_running = |pod: &Pod| {
        pod.status.phase.as_deref() == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let mut running: Vec<_> = pods.into_iter().filter(is_running).collect();
    let count = running.len();
    if count > 1 && !is_any {
        let names = running.iter().take(MAX_LISTED + 1);
        let names = names.map(|pod| ObjectName::new("metadata.name", &pod.metadata.name));
        let names = names.collect::<Result<Vec<_>>>()?;
        bail!("{count} running pods have {whose}: {}; name one of them", list(&names));
    }
    // The times have the same length and zone, so their order is that of the texts.
    let first = (0..count).min_by_key(|at| &running[*at].metadata.creation_timestamp);
    match first {
        Some(at) => Ok((running.swap_remove(at), count)),
        None => bail!("no running pod has {whose}"),
    }
}

fn list(names: &[impl ToString]) -> String {
    let mut texts: Vec<_> = names.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    if names.len() > MAX_LISTED {
        texts.push("...".into());
    }
    texts.join(", ")
}

/// Returns the name of a pod of the daemon that runs on a node.
///
/// # Errors
/// If the pod's name does not match its grammar.
pub(crate) fn daemon_on(node: &NodeName, pods: &[Pod]) -> Result<Option<ObjectName>> {
    let is_there = |pod: &&Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.spec.node_name.as_deref() == Some(&node.to_string())
    };
    pods.iter()
        .find(is_there)
        .map(|pod| ObjectName::new("metadata.name", &pod.metadata.name))
        .transpose()
}

/// What a pod that was created does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Runs,
    /// It waits, for this reason. The text is not escaped.
    Waits(String),
    /// It cannot run, for this reason. The text is not escaped.
    Failed(String),
}

/// Returns the progress of a pod that was created.
pub(crate) fn progress(pod: &Pod) -> Progress {
    const FAILURES: [&str; 6] = [
        "ErrImage",
        "ImagePull",
        "InvalidImage",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    ];
    let status = &pod.status;
    let phase = status.phase.as_deref().unwrap_or_default();
    if phase == "Running" {
        return Progress::Runs;
    }
    let statuses = status.container_statuses.iter().flatten();
    let waiting: Vec<_> =
        statuses.filter_map(|status| status.state.as_ref()?.waiting.as_ref()).collect();
    let mut texts = vec![phase.to_owned()];
    texts.extend([&status.reason, &status.message].into_iter().flatten().map(|text| quote(text)));
    for waiting in &waiting {
        texts.extend(
            [&waiting.reason, &waiting.message].into_iter().flatten().map(|text| quote(text)),
        );
    }
    let has_failed = ["Failed", "Succeeded"].contains(&phase)
        || waiting
            .iter()
            .filter_map(|waiting| waiting.reason.as_deref())
            .any(|reason| FAILURES.iter().any(|failure| reason.contains(failure)));
    let text = texts.join(" ");
    if has_failed { Progress::Failed(text) } else { Progress::Waits(text) }
}
