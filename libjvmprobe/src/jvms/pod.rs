//! Pod of a JVM, from the names of directories and links that the kubelet creates on its node. This needs no right to
//! the Kubernetes API.
//!
//! Sources: Kubernetes, pkg/kubelet/kuberuntime/helpers.go (`BuildPodLogsDirectory`: pods/NAMESPACE_NAME_UID, with a
//! folder for each container) and legacy.go (`logSymlink`: containers/NAME_NAMESPACE_CONTAINER-ID.log);
//! k8s.io/apimachinery/pkg/util/rand (characters of generated names); pkg/controller/controller_utils.go
//! (`ComputeHash`); pkg/controller/cronjob/utils.go (`getJobName`).

use std::path::Path;

use crate::process::{root::Root, service::Attributes};

/// Folder of the kubelet's folders `pods` and `containers`. Containers cannot write there.
pub(super) const LOGS: &str = "/var/log";
/// Maximum number of entries of a folder. A node has at most some hundred pods.
const MAX_ENTRIES: u64 = 10_000;

/// Returns the attributes of a pod, and of one of its containers by the container's ID; `None` if the folder `logs` of
/// this file system does not contain the pod. Attributes that cannot be determined are left out.
pub(super) fn attributes(
    root: &Root,
    logs: &Path,
    uid: &str,
    container_id: Option<&str>,
) -> Option<Attributes> {
    let pods = logs.join("pods");
    let Pod { folder, namespace, name } = Pod::find(subfolders(root, &pods), uid)?;
    let containers = subfolders(root, &pods.join(folder));
    // The link exists as soon as the container has started. A pod has more folders than containers if it had
    // containers for its initialization.
    let links = logs.join("containers");
    let links = links.to_str().and_then(|links| root.folder(links).ok());
    let has_link = |container: &&String| {
        let id = container_id.unwrap_or_default();
        let link = format!("{name}_{namespace}_{container}-{id}.log");
        links.as_ref().is_some_and(|links| links.metadata(&link).is_ok())
    };
    let container = containers.iter().find(has_link).or(match &containers[..] {
        [only] => Some(only),
        _ => None,
    });
    let mut attributes = Attributes::new();
    let mut add = |key: &str, value: &str| attributes.insert(key.into(), value.into());
    if let Some(container) = container {
        add("k8s.container.name", container);
    }
    for (key, value) in owners(&name) {
        add(key, value);
    }
    add("k8s.namespace.name", &namespace);
    add("k8s.pod.name", &name);
    Some(attributes)
}

/// A pod with its folder in the folder `pods`.
struct Pod {
    folder: String,
    namespace: String,
    name: String,
}

impl Pod {
    /// Finds a pod by the UID in the name of its folder.
    fn find(folders: Vec<String>, uid: &str) -> Option<Self> {
        folders.into_iter().find_map(|folder| {
            // Neither a namespace nor the name of a pod contains an underscore.
            let (rest, of) = folder.rsplit_once('_')?;
            let (namespace, name) = rest.split_once('_').filter(|_| of == uid)?;
            let [namespace, name] = [namespace, name].map(str::to_owned);
            Some(Self { folder, namespace, name })
        })
    }
}

fn subfolders(root: &Root, folder: &Path) -> Vec<String> {
    let entries = root.entries(folder, MAX_ENTRIES).unwrap_or_default();
    entries.into_iter().filter(|entry| entry.is_folder).map(|entry| entry.name).collect()
}

/// Returns the controllers that have created a pod, as attributes, if the pod's name shows them.
///
/// A Deployment's pod is named DEPLOYMENT-HASH-SUFFIX, where DEPLOYMENT-HASH is the ReplicaSet. A CronJob's pod is named
/// CRONJOB-MINUTES-SUFFIX, where CRONJOB-MINUTES is the Job. HASH and SUFFIX consist of few characters, so other names
/// hardly ever look like these. Names of other pods do not show which kind of controller has created them.
fn owners(pod: &str) -> Vec<(&'static str, &str)> {
    /// Length of a generated suffix.
    const SUFFIX: usize = 5;
    /// Characters of a generated suffix: consonants and digits that are not mistaken for each other.
    const SAFE: &str = "bcdfghjklmnpqrstvwxz2456789";
    /// Characters that encode the ten digits of a hash.
    const DIGITS: &str = "456789bcdf";
    /// Nearly all hashes, which are decimal numbers of 32 bits, have these lengths.
    const HASH: std::ops::RangeInclusive<usize> = 8..=10;
    let consists_of = |text: &str, set: &str| text.chars().all(|c| set.contains(c));
    let parts = pod
        .rsplit_once('-')
        .filter(|(_, suffix)| suffix.len() == SUFFIX && consists_of(suffix, SAFE))
        .and_then(|(owner, _)| Some((owner, owner.rsplit_once('-')?)));
    match parts {
        Some((owner, (base, hash))) if HASH.contains(&hash.len()) && consists_of(hash, DIGITS) => {
            vec![("k8s.deployment.name", base), ("k8s.replicaset.name", owner)]
        }
        // Minutes since 1970 have eight digits until the year 2160, the first of which is a 2 or more.
        Some((owner, (base, minutes)))
            if minutes.len() == 8
                && minutes.starts_with(['2', '3'])
                && consists_of(minutes, "0123456789") =>
        {
            vec![("k8s.cronjob.name", base), ("k8s.job.name", owner)]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;
    use crate::{Pid, process::Process};

    const UID: &str = "0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f";

    fn joined(attributes: &Attributes) -> String {
        let pairs = attributes.iter().map(|(key, value)| format!("{key}={value}"));
        pairs.collect::<Vec<_>>().join(" ").replace("k8s.", "")
    }

    #[test]
    fn pod_and_container_are_read_from_the_kubelet_directories() {
        let logs = tempfile::tempdir().unwrap();
        let root = Root::open(&Process::open(Pid(std::process::id())).unwrap()).unwrap();
        let of = |uid: &str, id: Option<&str>| {
            attributes(&root, logs.path(), uid, id).map_or(String::new(), |all| joined(&all))
        };
        assert_eq!(of(UID, None), "");
        let add = |folder: &str| fs::create_dir_all(logs.path().join(folder)).unwrap();
        add("pods/kube-system_dns_1234/dns");
        add("pods/x");
        add(&format!("pods/prod_shop-0_{UID}"));
        let pod = "namespace.name=prod pod.name=shop-0";
        assert_eq!(of(UID, Some("ab12")), pod);
        add(&format!("pods/prod_shop-0_{UID}/app"));
        assert_eq!(of(UID, Some("ab12")), format!("container.name=app {pod}"));
        // With several containers, only the link shows which container has this ID.
        add(&format!("pods/prod_shop-0_{UID}/sidecar"));
        assert_eq!(of(UID, Some("ab12")), pod);
        add("containers");
        let link = logs.path().join("containers/shop-0_prod_sidecar-ab12.log");
        std::os::unix::fs::symlink("/nowhere", link).unwrap();
        assert_eq!(of(UID, Some("ab12")), format!("container.name=sidecar {pod}"));
        assert_eq!(of(UID, Some("cd34")), pod);
        assert_eq!(of(UID, None), pod);
        assert_eq!(of("1234", None), "container.name=dns namespace.name=kube-system pod.name=dns");
        assert_eq!(of("shop-0", None), "");
    }

    #[test]
    fn generated_names_show_deployment_or_cronjob() {
        for (pod, expected) in [
            ("shop-5d78c9869d-x7k2p", "deployment.name=shop replicaset.name=shop-5d78c9869d"),
            ("a-b-66b6c48dd5-bcdfg", "deployment.name=a-b replicaset.name=a-b-66b6c48dd5"),
            ("report-29912345-kx9zq", "cronjob.name=report job.name=report-29912345"),
            // A DaemonSet, a Job or another controller.
            ("agent-x7k2p", ""),
            ("agent-of-teams-x7k2p", ""),
            // A StatefulSet, or a pod with this name.
            ("shop-0", ""),
            // The suffix has characters that are never generated.
            ("shop-5d78c9869d-aeiou", ""),
            ("shop-5d78c9869d", ""),
            // The hash has a character that encodes no digit, or the wrong length.
            ("shop-5d78c9869x-x7k2p", ""),
            ("shop-5d78c98-x7k2p", ""),
            ("report-20261126x-x7k2p", ""),
            ("report-10000000-x7k2p", ""),
            ("x7k2p", ""),
            ("-x7k2p", ""),
            ("", ""),
        ] {
            let owners = owners(pod).into_iter();
            let owners = owners.map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert_eq!(joined(&owners.collect()), expected, "{pod}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_pod_names_do_not_panic(name in "([a-z0-9]{0,11}|-|ä|_){0,6}") {
            let _ = owners(&name);
        }
    }
}
