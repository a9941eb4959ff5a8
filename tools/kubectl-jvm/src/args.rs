//! Command line arguments.

use std::num::NonZero;

use clap::{Parser, ValueEnum, builder::NonEmptyStringValueParser};

use crate::grammar::{ContainerName, Namespace, ObjectName};

/// Runs jvmprobe's tools on the JVMs of a Kubernetes pod, on the pod's node.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-jvm",
    bin_name = "kubectl jvm",
    version,
    override_usage = "kubectl jvm COMMAND POD [OPTIONS] [-- OPTIONS OF THE TOOL]",
    after_help = "Examples:
  kubectl jvm prof shop-7d9f -n prod -- -d 30 -o cpu.html
  kubectl jvm gc deploy/shop -n prod
  kubectl jvm stack -l app=shop -n prod -c app
  kubectl jvm show shop-7d9f -n prod -- --since 1h --gc"
)]
pub(crate) struct Args {
    /// Tool to run
    pub command: Tool,
    /// Pod, or TYPE/NAME of a workload: deploy, statefulset, daemonset, replicaset or job
    #[arg(value_name = "POD", value_parser = Object::parse, required_unless_present = "selector",
        conflicts_with = "selector")]
    pub object: Option<Object>,
    /// Namespace of the pod
    #[arg(short, long, value_parser = Namespace::parse)]
    pub namespace: Option<Namespace>,
    /// Labels of the pod, instead of its name; exactly one running pod must have them
    #[arg(short = 'l', long, value_parser = NonEmptyStringValueParser::new())]
    pub selector: Option<String>,
    /// Container with the JVM [default: the default-container annotation, or the only one]
    #[arg(short, long, value_name = "NAME", value_parser = ContainerName::parse)]
    pub container: Option<ContainerName>,
    /// Namespace of the daemon's pods and of the debug pod
    #[arg(long, value_name = "NAMESPACE", value_parser = Namespace::parse, default_value = "jvmprobe")]
    pub node_namespace: Namespace,
    /// jvmprobe image of the debug pod [default: $KUBECTL_JVM_IMAGE]
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub image: Option<String>,
    /// Create a debug pod even if the daemon runs on the node
    #[arg(long)]
    pub debug_pod: bool,
    /// Kubernetes ends the debug pod after this time
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    pub deadline: NonZero<u32>,
    /// As for other kubectl commands
    #[arg(long, value_name = "VALUE", value_parser = NonEmptyStringValueParser::new())]
    pub context: Option<String>,
    /// As for other kubectl commands
    #[arg(long, value_name = "VALUE", value_parser = NonEmptyStringValueParser::new())]
    pub kubeconfig: Option<String>,
    /// As for other kubectl commands
    #[arg(long = "as", value_name = "VALUE", value_parser = NonEmptyStringValueParser::new())]
    pub user: Option<String>,
    /// Options of the tool
    #[arg(last = true, hide = true)]
    pub tool_args: Vec<String>,
}

/// A tool, by the name of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// Profile CPU time and other events (javaprof)
    Prof,
    /// Show GC pauses (javagc)
    Gc,
    /// Show allocation by class (javaobjnew)
    Alloc,
    /// Show used classes (javaclass)
    Class,
    /// Dump threads (javastack)
    Stack,
    /// Show waits of threads (javawait)
    Wait,
    /// Show what the daemon has recorded (jvmprobed show)
    Show,
}

impl Tool {
    /// Returns the name of the program.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Self::Prof => "javaprof",
            Self::Gc => "javagc",
            Self::Alloc => "javaobjnew",
            Self::Class => "javaclass",
            Self::Stack => "javastack",
            Self::Wait => "javawait",
            Self::Show => "jvmprobed",
        }
    }
}

/// A kind of workload whose pods are selected by labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    ReplicaSet,
    Job,
}

impl Kind {
    /// Returns the name of the resource with its API group.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            Self::Deployment => "deployments.apps",
            Self::StatefulSet => "statefulsets.apps",
            Self::DaemonSet => "daemonsets.apps",
            Self::ReplicaSet => "replicasets.apps",
            Self::Job => "jobs.batch",
        }
    }
}

/// A pod or a workload, as for other kubectl commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Pod(ObjectName),
    Workload(Kind, ObjectName),
}

impl Object {
    /// Parses `NAME` or `TYPE/NAME`.
    fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        let name = ObjectName::parse(name)?;
        let kind = match kind {
            "pod" | "pods" | "po" => return Ok(Self::Pod(name)),
            "deployment" | "deployments" | "deploy" | "deployment.apps" | "deployments.apps" => {
                Kind::Deployment
            }
            "statefulset" | "statefulsets" | "sts" | "statefulset.apps" | "statefulsets.apps" => {
                Kind::StatefulSet
            }
            "daemonset" | "daemonsets" | "ds" | "daemonset.apps" | "daemonsets.apps" => {
                Kind::DaemonSet
            }
            "replicaset" | "replicasets" | "rs" | "replicaset.apps" | "replicasets.apps" => {
                Kind::ReplicaSet
            }
            "job" | "jobs" | "job.batch" | "jobs.batch" => Kind::Job,
            _ => return Err(
                "expected pod, deploy, statefulset, daemonset, replicaset or job before the slash"
                    .into(),
            ),
        };
        Ok(Self::Workload(kind, name))
    }
}

/// Returns the names of the files that the tool writes.
pub(crate) fn output_names(tool_args: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let mut args = tool_args.iter();
    while let Some(arg) = args.next() {
        let long =
            ["--output=", "--vex=", "-o="].iter().find_map(|option| arg.strip_prefix(option));
        // -o after other one-letter options: -so FILE.
        let is_last_letter = arg.starts_with('-') && !arg.starts_with("--") && arg.ends_with('o');
        if let Some(name) = long {
            names.push(name.to_owned());
        } else if ["--output", "--vex"].contains(&arg.as_str()) || is_last_letter {
            names.extend(args.next().cloned());
        } else if let Some(name) = arg.strip_prefix("-o") {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, error::ErrorKind};

    use super::*;

    fn parse(args: &str) -> Result<Args, ErrorKind> {
        let args = args.split_whitespace();
        Args::try_parse_from(["kubectl-jvm"].into_iter().chain(args)).map_err(|error| error.kind())
    }

    #[test]
    fn arguments_are_checked() {
        Args::command().debug_assert();
        let args = parse("-n prod gc pod/shop --debug-pod --deadline=90 -- -d 1").unwrap();
        assert_eq!((args.command, args.deadline.get(), args.debug_pod), (Tool::Gc, 90, true));
        assert_eq!(args.object, Some(Object::Pod(ObjectName::parse("shop").unwrap())));
        assert_eq!(args.tool_args, ["-d", "1"]);
        let args = parse("stack deploy/shop").unwrap();
        assert!(matches!(args.object, Some(Object::Workload(Kind::Deployment, _))));
        assert_eq!(parse("gc -l app=shop").unwrap().selector.as_deref(), Some("app=shop"));
        for (wrong, kind) in [
            ("gc", ErrorKind::MissingRequiredArgument),
            ("gcc shop", ErrorKind::InvalidValue),
            ("gc shop -d 1", ErrorKind::UnknownArgument),
            ("gc shop other", ErrorKind::UnknownArgument),
            ("gc shop -l a=b", ErrorKind::ArgumentConflict),
            ("gc node/shop", ErrorKind::ValueValidation),
            ("gc ../shop", ErrorKind::ValueValidation),
            ("gc shop -n a/b", ErrorKind::ValueValidation),
            ("gc shop --deadline 0", ErrorKind::ValueValidation),
            ("gc shop --context=", ErrorKind::InvalidValue),
        ] {
            assert_eq!(parse(wrong).unwrap_err(), kind, "{wrong}");
        }
    }

    #[test]
    fn output_files_are_found() {
        let args = "-d 1 -o a --output b --output=c -od -o=e -so f --vex g --vex=h -o".split(' ');
        let args: Vec<_> = args.map(str::to_owned).collect();
        assert_eq!(output_names(&args), ["a", "b", "c", "d", "e", "f", "g", "h"]);
    }
}
