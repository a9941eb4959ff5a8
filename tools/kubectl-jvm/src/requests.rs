//! Arguments of kubectl. A value of the cluster gets into an argument only from a type of [`crate::grammar`], and as a
//! part of `--flag=value`, behind `--`, or as the name of a pod, which does not begin with a dash.

use serde_json::{Value, json};

use crate::{
    args::Tool,
    grammar::{Namespace, NodeName, ObjectName},
};

/// Container of the daemon and of the debug pod.
const CONTAINER: &str = "jvmprobed";

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn in_namespace(mut args: Vec<String>, namespace: Option<&Namespace>) -> Vec<String> {
    args.extend(namespace.map(|namespace| format!("--namespace={namespace}")));
    args
}

/// Reads a pod or a workload.
pub(crate) fn get(resource: &str, name: &ObjectName, namespace: Option<&Namespace>) -> Vec<String> {
    let mut args = in_namespace(strings(&["get", "--output=json"]), namespace);
    args.extend(["--".into(), resource.into(), name.to_string()]);
    args
}

/// Lists pods. The selector is the user's, or that of a workload.
pub(crate) fn list(selector: &str, namespace: Option<&Namespace>) -> Vec<String> {
    let selector = format!("--selector={selector}");
    in_namespace(strings(&["get", "pods", "--output=json", &selector]), namespace)
}

/// Lists the pods of the daemon on a node.
pub(crate) fn list_daemon(node: &NodeName, namespace: &Namespace) -> Vec<String> {
    let mut args = list("app.kubernetes.io/name=jvmprobed", Some(namespace));
    args.push(format!("--field-selector=spec.nodeName={node},status.phase=Running"));
    args
}

/// Creates the object on standard input.
pub(crate) fn create(namespace: &Namespace) -> Vec<String> {
    in_namespace(strings(&["create", "--validate=false", "--filename=-"]), Some(namespace))
}

/// Deletes a pod without waiting for its end.
pub(crate) fn delete(pod: &ObjectName, namespace: &Namespace) -> Vec<String> {
    let options = ["delete", "--ignore-not-found", "--wait=false", "--grace-period=1"];
    let mut args = in_namespace(strings(&options), Some(namespace));
    args.extend(["--".into(), "pod".into(), pod.to_string()]);
    args
}

/// Runs a tool in a pod. With a mark, the tool's files follow a line with the mark on standard error.
pub(crate) fn exec(
    pod: &ObjectName,
    namespace: &Namespace,
    mark: Option<&str>,
    tool: Tool,
    tool_args: &[String],
) -> Vec<String> {
    let container = format!("--container={CONTAINER}");
    let mut args = in_namespace(strings(&["exec", "--stdin", &container]), Some(namespace));
    args.extend([pod.to_string(), "--".into()]);
    args.extend(strings(&["/usr/sbin/jvmprobed", "remote"]));
    args.extend(mark.into_iter().flat_map(|mark| strings(&["--files", mark])));
    args.extend(strings(&["--", tool.program()]));
    args.extend_from_slice(tool_args);
    args
}

/// Asks whether the user has a right. The resource may have a subresource: `pods/exec`.
pub(crate) fn can_i(verb: &str, resource: &str, namespace: &Namespace) -> Vec<String> {
    let mut args = strings(&["auth", "can-i"]);
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    if !subresource.is_empty() {
        args.push(format!("--subresource={subresource}"));
    }
    let mut args = in_namespace(args, Some(namespace));
    args.extend(strings(&["--", verb, resource]));
    args
}

/// Prints the namespace of the current context.
pub(crate) fn current_namespace() -> Vec<String> {
    strings(&["config", "view", "--minify", "--output=jsonpath={..namespace}"])
}

/// Returns the manifest of the debug pod: the security context of jvmprobed's pods, and a deadline.
pub(crate) fn debug_pod(name: &ObjectName, node: &NodeName, image: &str, deadline: u32) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name.to_string(),
            "labels": {"app.kubernetes.io/name": "kubectl-jvm"},
        },
        "spec": {
            "nodeName": node.to_string(),
            // Makes the JVMs of all pods on the node visible.
            "hostPID": true,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": CONTAINER,
                "image": image,
                "command": ["/usr/sbin/jvmprobed", "remote", "--idle"],
                "resources": {
                    "requests": {"cpu": "20m", "memory": "100Mi"},
                    "limits": {"memory": "512Mi"},
                },
                "securityContext": {
                    "privileged": false,
                    "runAsUser": 0,
                    "readOnlyRootFilesystem": true,
                    // Kubernetes always allows this for containers with SYS_ADMIN.
                    "allowPrivilegeEscalation": true,
                    "capabilities": {
                        "drop": ["ALL"],
                        "add": [
                            "BPF", "PERFMON", "SYS_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE",
                            "SYSLOG", "SYS_NICE", "SYS_RESOURCE",
                        ],
                    },
                    "seccompProfile": {"type": "RuntimeDefault"},
                    // The runtime's AppArmor profile allows reading the memory of the runtime's own containers only.
                    "appArmorProfile": {"type": "Unconfined"},
                },
            }],
        },
    })
}
