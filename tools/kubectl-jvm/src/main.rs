//! Plugin of kubectl that runs jvmprobe's tools on the JVMs of a pod. kubectl-jvm(8) describes it.
//!
//! The tool runs on the pod's node: in the pod of the daemon jvmprobed or, if there is none, in a debug pod that the
//! plugin creates and deletes. `jvmprobed remote` runs it there. Values of the cluster are checked by their grammar
//! before they are used ([`grammar`]).

mod archive;
mod args;
mod clean;
mod debug_pod;
mod grammar;
mod kubectl;
mod objects;
mod requests;
mod session;
mod target;

#[cfg(test)]
mod hostile;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::{
    archive::Names,
    args::{Args, Object, Tool},
    clean::say,
    kubectl::{Interrupted, Kubectl},
    objects::{Pod, PodList, Workload},
    target::Target,
};

/// Exit status for a wrong command line.
const USAGE: u8 = 2;
/// Exit status after a signal.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let names = match Names::new(args::output_names(&args.tool_args)) {
        Ok(names) => names,
        Err(error) => {
            say(&format!("{error:#}; see kubectl jvm --help"));
            return ExitCode::from(USAGE);
        }
    };
    match run(&args, &names) {
        Ok(code) => ExitCode::from(code),
        Err(error) if error.is::<Interrupted>() => ExitCode::from(INTERRUPTED),
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, names: &Names) -> Result<u8> {
    let kubectl = Kubectl::new(args)?;
    let pod = find_pod(&kubectl, args)?;
    let Target { node, mut tool_args } = Target::new(&pod, args.command, args.container.as_ref())?;
    tool_args.extend_from_slice(&args.tool_args);
    let namespace = &args.node_namespace;
    let run = |pod: &_| {
        say(&format!("running {} in pod {pod} on node {node}", args.command.program()));
        session::run(&kubectl, args, pod, args.command, &tool_args, names)
    };
    if !args.debug_pod {
        let request = requests::list_daemon(&node, namespace);
        let remedy = "name the namespace of jvmprobed with --node-namespace";
        let pods = kubectl.get(&request, ("list", "pods"), Some(namespace), remedy)?;
        let pods: PodList = objects::parse(&pods)?;
        if let Some(pod) = target::daemon_on(&node, &pods.items)? {
            return run(&pod);
        }
    }
    let none = format!("no pod of jvmprobed runs on node {node} in namespace {namespace}");
    if args.command == Tool::Show {
        bail!(
            "{none}; show needs its recorded data; if it runs elsewhere, name its namespace with --node-namespace"
        );
    }
    let from_environment =
        || std::env::var("KUBECTL_JVM_IMAGE").ok().filter(|image| !image.is_empty());
    let Some(image) = args.image.clone().or_else(from_environment) else {
        bail!(
            "{none}; name its namespace with --node-namespace, or a jvmprobe image for a debug pod with --image"
        );
    };
    debug_pod::with_pod(&kubectl, args, &node, &image, run)
}

/// Reads the pod that the user has named.
fn find_pod(kubectl: &Kubectl, args: &Args) -> Result<Pod> {
    const REMEDY: &str = "name another namespace with -n";
    let namespace = args.namespace.as_ref();
    let list = |selector: &str| -> Result<Vec<Pod>> {
        let pods = kubectl.get(
            &requests::list(selector, namespace),
            ("list", "pods"),
            namespace,
            REMEDY,
        )?;
        Ok(objects::parse::<PodList>(&pods)?.items)
    };
    match (&args.object, &args.selector) {
        (Some(Object::Pod(name)), _) => {
            let pod = kubectl.get(
                &requests::get("pod", name, namespace),
                ("get", "pods"),
                namespace,
                REMEDY,
            )?;
            objects::parse(&pod)
        }
        (Some(Object::Workload(kind, name)), _) => {
            let resource = kind.resource();
            let request = requests::get(resource, name, namespace);
            let workload = kubectl.get(&request, ("get", resource), namespace, REMEDY)?;
            let workload: Workload = objects::parse(&workload)?;
            let selector =
                workload.selector().with_context(|| format!("cannot find the pods of {name}"))?;
            let (pod, count) =
                target::choose(list(&selector)?, &format!("the labels of {name}"), true)?;
            if count > 1 {
                say(&format!(
                    "{name} has {count} running pods; using the oldest one, {}",
                    pod.metadata.name
                ));
            }
            Ok(pod)
        }
        (None, Some(selector)) => Ok(target::choose(list(selector)?, "these labels", false)?.0),
        (None, None) => bail!("no pod was specified"),
    }
}
