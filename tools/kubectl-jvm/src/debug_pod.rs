//! The debug pod: created on a node without the daemon, and deleted at the end.

use std::{
    fs::File,
    io::{self, Read},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    args::Args,
    clean::{self, say},
    grammar::{NodeName, ObjectName},
    kubectl::{Interrupted, Kubectl},
    objects, requests,
    target::{Progress, progress},
};

/// Maximum time for the pod to start.
const MAX_SECONDS: u32 = 120;

/// Returns random hexadecimal digits, two for each byte.
///
/// # Errors
/// If the system has no source of random bytes.
pub(crate) fn random_digits<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    let read =
        |bytes: &mut [u8]| -> io::Result<()> { File::open("/dev/urandom")?.read_exact(bytes) };
    read(&mut bytes).context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Creates a debug pod, calls `run` with its name when it runs, and deletes it.
///
/// # Errors
/// If the pod does not run; the error of `run`; [`Interrupted`].
pub(crate) fn with_pod<T>(
    kubectl: &Kubectl,
    args: &Args,
    node: &NodeName,
    image: &str,
    run: impl FnOnce(&ObjectName) -> Result<T>,
) -> Result<T> {
    let name = ObjectName::new(
        "the name of the debug pod",
        &format!("kubectl-jvm-{}", random_digits::<5>()?),
    )?;
    create(kubectl, args, node, image, &name)?;
    let result = wait_until_running(kubectl, args, node, &name).and_then(|()| run(&name));
    delete(kubectl, args, &name);
    result
}

fn create(
    kubectl: &Kubectl,
    args: &Args,
    node: &NodeName,
    image: &str,
    name: &ObjectName,
) -> Result<()> {
    let namespace = &args.node_namespace;
    let manifest = requests::debug_pod(name, node, image, args.deadline.get());
    let answer = kubectl.complete(&requests::create(namespace), manifest.to_string().as_bytes())?;
    if answer.is_interrupted {
        // The request could not be interrupted, because a pod whose creation is still under way cannot be deleted.
        if answer.is_success {
            delete(kubectl, args, name);
        }
        bail!(Interrupted);
    }
    if answer.is_success {
        return Ok(());
    }
    clean::print(&answer.stderr);
    if answer.stderr.contains("violates PodSecurity") {
        bail!(
            "namespace {namespace} forbids pods that see the node's processes; label it \
             pod-security.kubernetes.io/enforce=privileged, or name another namespace with --node-namespace"
        );
    }
    kubectl.explain(
        ("create", "pods"),
        namespace,
        "name another namespace with --node-namespace",
    )?;
    bail!("cannot create a debug pod on node {node}")
}

fn wait_until_running(
    kubectl: &Kubectl,
    args: &Args,
    node: &NodeName,
    name: &ObjectName,
) -> Result<()> {
    let namespace = &args.node_namespace;
    for second in 0.. {
        let json = kubectl.get(
            &requests::get("pod", name, Some(namespace)),
            ("get", "pods"),
            Some(namespace),
            "",
        )?;
        match progress(&objects::parse(&json)?) {
            Progress::Runs => break,
            Progress::Failed(state) => bail!("the debug pod cannot start on node {node}: {state}"),
            Progress::Waits(state) if second >= MAX_SECONDS => {
                bail!("the debug pod has not started within two minutes on node {node}: {state}")
            }
            Progress::Waits(_) => kubectl.sleep(Duration::from_secs(1))?,
        }
    }
    Ok(())
}

/// Deletes the pod. Failures are only reported, because the tool's result matters more.
fn delete(kubectl: &Kubectl, args: &Args, name: &ObjectName) {
    let namespace = &args.node_namespace;
    match kubectl.complete(&requests::delete(name, namespace), b"") {
        Ok(answer) if answer.is_success => return,
        Ok(answer) => clean::print(&answer.stderr),
        Err(error) => say(&format!("{error:#}")),
    }
    if let Err(error) = kubectl.explain(("delete", "pods"), namespace, "") {
        say(&format!("{error:#}"));
    }
    say(&format!(
        "pod {name} is left in namespace {namespace}; it ends within {} seconds; delete it",
        args.deadline
    ));
}
