//! Tests with hostile objects: whatever the cluster stores, each argument of kubectl matches its grammar, and no message
//! has a control character.

use proptest::{collection, prelude::*};
use serde_json::{Map, Value, json};

use crate::{
    args::Tool,
    clean,
    grammar::{ContainerName, Namespace, NodeName, ObjectName},
    objects::{self, Pod, PodList, Workload},
    requests,
    target::{self, Progress, Target},
};

const TOOLS: [Tool; 3] = [Tool::Gc, Tool::Prof, Tool::Show];

/// Returns hostile values for a field of any kind.
fn hostile_values() -> Vec<String> {
    let long = "a".repeat(1 << 20);
    let mut values: Vec<String> = [
        "",
        "\n",
        "\r",
        "\0",
        "app\nnode control-plane-0",
        "x\r\"spec\":\r",
        "\u{2028}x",
        "\u{85}",
        "\u{feff}",
        "\x1b[2J",
        "--flag",
        "--kubeconfig=/tmp/x",
        "-f",
        "-A",
        "../",
        "../../etc/passwd",
        "/",
        ";",
        "; rm -rf /",
        "$(id)",
        "`id`",
        "\"",
        "'",
        "x\"\nhostNetwork: true\ny: \"",
        "{privileged: true}",
        "hostPID: true",
        "a: b",
        "- a",
        "&a",
        "*a",
        "!!binary",
        "%s",
        "a,b",
        "a=b",
        "x)|.*",
        ".*",
        "^",
        "a|b",
        "containerd://a\nb",
        "containerd://../../x",
        "containerd://VICTIM0123456789",
        "\u{202e}",
        "A",
        " ",
        "a b",
        "a\tb",
    ]
    .map(str::to_owned)
    .to_vec();
    values.push(format!(
        "{long}
"
    ));
    values
}

/// Returns a pod with all fields that the plugin reads.
fn pod() -> Value {
    let status = |name: &str, digits: &str| {
        json!({
            "name": name,
            "containerID": format!("containerd://{}", digits.repeat(32)),
            "state": {"running": {"startedAt": "2026-11-26T12:00:00Z"}, "waiting": {"reason": "r", "message": "m"}},
            "lastState": {"terminated": {"containerID": format!("containerd://{}", "cd".repeat(32))}},
        })
    };
    json!({
        "kind": "Pod",
        "metadata": {
            "name": "shop",
            "uid": "0f3b1c5e-86a2-4b0f-9d3e-2b9a0c1d2e3f",
            "creationTimestamp": "2026-11-26T12:00:00Z",
            "annotations": {
                "kubectl.kubernetes.io/default-container": "app",
                "kubernetes.io/config.mirror": "d3b07384d113edec49eaa6238ad5ff00",
                "other": "x",
            },
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "app"}, {"name": "proxy"}]},
        "status": {
            "phase": "Running",
            "reason": "r",
            "message": "m",
            "containerStatuses": [status("app", "ab"), status("proxy", "ef")],
            "initContainerStatuses": [status("init", "01")],
        },
    })
}

/// Asserts that a text can be printed.
fn assert_printable(text: &str) {
    assert_eq!(clean::line(text), text);
    assert!(text.len() < 8192, "{} bytes", text.len());
}

fn has_only(text: &str, allowed: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || allowed.as_bytes().contains(&byte))
}

/// Asserts that each argument is one of the plugin's, or has a value of the right form. This check shares no code with
/// the program.
fn assert_arguments(args: &[String]) {
    const OWN: [&str; 22] = [
        "get",
        "pod",
        "pods",
        "delete",
        "exec",
        "create",
        "deployments.apps",
        "--",
        "--output=json",
        "--stdin",
        "--container=jvmprobed",
        "--validate=false",
        "--filename=-",
        "--ignore-not-found",
        "--wait=false",
        "--grace-period=1",
        "--selector=app.kubernetes.io/name=jvmprobed",
        "--container",
        "--jvm",
        "/usr/sbin/jvmprobed",
        "remote",
        "--files",
    ];
    for arg in args {
        let is_name =
            |text: &str| has_only(text, "-.") && !text.starts_with('-') && text.len() <= 253;
        let has =
            |prefix: &str, fits: &dyn Fn(&str) -> bool| arg.strip_prefix(prefix).is_some_and(fits);
        let is_own = OWN.contains(&arg.as_str())
            || is_name(arg)
            || has("--namespace=", &is_name)
            || has("--selector=", &|rest| has_only(rest, "-_./=,() !"))
            || has("--field-selector=spec.nodeName=", &|rest| {
                rest.strip_suffix(",status.phase=Running").is_some_and(is_name)
            })
            || has("container.id=^(", &|rest| {
                rest.strip_suffix(")$").is_some_and(|ids| has_only(ids, "|"))
            })
            || has("k8s.pod.uid=^", &|rest| {
                rest.strip_suffix('$').is_some_and(|uid| has_only(uid, "-"))
            });
        assert!(is_own, "{arg:?} in {args:?}");
    }
}

/// Makes all requests that depend on a pod, and the manifest. Returns the message if the pod is refused.
fn check(json: &[u8], tool: Tool, chosen: Option<&str>) -> Result<Target, String> {
    let namespace = Namespace::parse("jvmprobe").unwrap();
    let chosen = chosen.map(|name| ContainerName::parse(name).unwrap());
    let result = (|| {
        let pod: Pod = objects::parse(json)?;
        if let Progress::Waits(text) | Progress::Failed(text) = target::progress(&pod) {
            // The program prints the text escaped.
            assert!(
                !text.contains('\n') || pod.status.phase.is_some_and(|phase| phase.contains('\n'))
            );
        }
        let target = Target::new(&objects::parse(json)?, tool, chosen.as_ref())?;
        let node_pod = ObjectName::parse("jvmprobed-x1").unwrap();
        assert_arguments(&requests::list_daemon(&target.node, &namespace));
        assert_arguments(&requests::exec(
            &node_pod,
            &namespace,
            Some("mark"),
            tool,
            &target.tool_args,
        ));
        let manifest = requests::debug_pod(&node_pod, &target.node, "image", 60);
        assert!(has_only(manifest["spec"]["nodeName"].as_str().unwrap(), "-."), "{manifest}");
        let node = NodeName::parse("node-1").unwrap();
        let mut own = requests::debug_pod(&node_pod, &node, "image", 60);
        own["spec"]["nodeName"] = manifest["spec"]["nodeName"].clone();
        assert_eq!(manifest, own);
        Ok::<_, anyhow::Error>(target)
    })();
    let text = |error: anyhow::Error| {
        let text = clean::line(&format!("{error:#}").chars().take(4000).collect::<String>());
        assert_printable(&text);
        text
    };
    // The same pod in the answers to lists.
    let list = [&b"{\"items\":["[..], json, b"]}"].concat();
    if let Ok(list) = objects::parse::<PodList>(&list) {
        if let Ok(Some(name)) = target::daemon_on(&NodeName::parse("node-1").unwrap(), &list.items)
        {
            assert_arguments(&requests::exec(&name, &namespace, None, tool, &[]));
            assert_arguments(&requests::delete(&name, &namespace));
        }
        if let Err(error) = target::choose(list.items, "these labels", false) {
            text(error);
        }
    }
    if let Ok(Ok(selector)) = objects::parse(json).map(|workload: Workload| workload.selector()) {
        assert_arguments(&requests::list(&selector, Some(&namespace)));
    }
    result.map_err(text)
}

/// Calls `visit` with the path of each string and of each key.
fn strings(value: &Value, path: &str, visit: &mut impl FnMut(&str)) {
    match value {
        Value::String(_) => visit(path),
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, item)| strings(item, &format!("{path}/{at}"), visit));
        }
        Value::Object(fields) => fields.iter().for_each(|(key, field)| {
            strings(field, &format!("{path}/{}", key.replace('/', "~1")), visit);
        }),
        _ => {}
    }
}

#[test]
fn intact_pod_gives_the_expected_arguments() {
    let json = pod().to_string();
    let target = check(json.as_bytes(), Tool::Gc, None).unwrap();
    assert_eq!(target.node.to_string(), "node-1");
    assert_eq!(target.tool_args, ["--container", &"ab".repeat(32)]);
    let target = check(json.as_bytes(), Tool::Gc, Some("init")).unwrap();
    assert_eq!(target.tool_args, ["--container", &"01".repeat(32)]);
    let target = check(json.as_bytes(), Tool::Show, None).unwrap();
    assert_eq!(
        target.tool_args,
        ["show", "--jvm", "k8s.pod.uid=^d3b07384d113edec49eaa6238ad5ff00$"]
    );
    let target = check(json.as_bytes(), Tool::Show, Some("proxy")).unwrap();
    let ids = format!("container.id=^({}|{})$", "ef".repeat(32), "cd".repeat(32));
    assert_eq!(target.tool_args, ["show", "--jvm", &ids]);
}

/// An annotation that ended the line, and thus forged the line with the node; with it, the node's name in the manifest
/// forged the container.
#[test]
fn annotations_cannot_forge_fields() {
    let spec = json!({"nodeName": "control-plane-0", "containers": [{"securityContext": {"privileged": true}}]});
    let forged =
        format!("app\nnode x\"\r\"spec\":\r#{}\u{feff}\r_{spec}\r\"status\":\r#", "n".repeat(200));
    let to_other_node = "zz\nnode victim-node\ncontainer zz 1 containerd://0123456789abcdef";
    for value in [&forged, to_other_node] {
        let mut pod = pod();
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] = json!(value);
        let error = check(pod.to_string().as_bytes(), Tool::Gc, None).unwrap_err();
        assert!(
            error.starts_with("the annotation kubectl.kubernetes.io/default-container is \""),
            "{error}"
        );
        assert!(
            error.contains("\\x0anode ") && error.ends_with("choose a container with -c"),
            "{error}"
        );
        // The user's choice wins.
        let target = check(pod.to_string().as_bytes(), Tool::Gc, Some("app")).unwrap();
        assert_eq!(target.node.to_string(), "node-1");
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!(value);
        let error = check(pod.to_string().as_bytes(), Tool::Show, None).unwrap_err();
        assert!(error.starts_with("the annotation kubernetes.io/config.mirror is \""), "{error}");
    }
}

#[test]
fn hostile_value_in_any_field_is_refused_or_has_no_effect() {
    let mut paths = Vec::new();
    strings(&pod(), "", &mut |path| paths.push(path.to_owned()));
    assert!(paths.len() > 25, "{paths:?}");
    let (mut refused, mut without_effect) = (0, 0);
    for path in &paths {
        for value in hostile_values() {
            let mut pod = pod();
            *pod.pointer_mut(path).unwrap() = json!(value);
            let json = pod.to_string();
            for tool in TOOLS {
                for chosen in [None, Some("proxy")] {
                    match check(json.as_bytes(), tool, chosen) {
                        Ok(_) => without_effect += 1,
                        Err(_) => refused += 1,
                    }
                }
            }
        }
    }
    assert!(refused > 1000 && without_effect > 1000, "{refused} {without_effect}");
}

#[test]
fn answers_of_another_form_are_errors() {
    let nested = "[".repeat(100_000);
    for json in
        ["", "null", "1", "{", "[]", "{\"metadata\":[]}", "{\"spec\":{\"nodeName\":7}}", &nested]
    {
        let error = check(json.as_bytes(), Tool::Gc, None).unwrap_err();
        assert!(!error.is_empty());
    }
    let long = json!({"spec": {"containers": "\x1b\n".repeat(1 << 20)}}).to_string();
    check(long.as_bytes(), Tool::Gc, None).unwrap_err();
}

#[test]
fn choice_among_pods_is_unambiguous() {
    let named = |name: &str, time: &str| {
        let mut pod = pod();
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["creationTimestamp"] = json!(time);
        pod
    };
    let mut pods =
        vec![named("b", "2026-02-01T00:00:00Z"), named("a", "2026-01-01T00:00:00Z"), pod(), pod()];
    pods[2]["status"]["phase"] = json!("Pending");
    pods[3]["metadata"]["deletionTimestamp"] = json!("2026-03-01T00:00:00Z");
    let list = |pods: &[Value]| {
        objects::parse::<PodList>(json!({"items": pods}).to_string().as_bytes()).unwrap().items
    };
    let (chosen, count) = target::choose(list(&pods), "them", true).unwrap();
    assert_eq!((chosen.metadata.name.as_str(), count), ("a", 2));
    let error = target::choose(list(&pods), "these labels", false).unwrap_err().to_string();
    assert_eq!(error, "2 running pods have these labels: b, a; name one of them");
    assert_eq!(target::choose(list(&pods[1..]), "x", false).unwrap().0.metadata.name, "a");
    let error = target::choose(list(&pods[2..]), "these labels", true).unwrap_err().to_string();
    assert_eq!(error, "no running pod has these labels");
    let many: Vec<_> = (0..5000).map(|_| named("a\n", "x")).collect();
    assert_printable(&target::choose(list(&many), "these labels", false).unwrap_err().to_string());
}

/// Returns a strategy for texts: hostile ones, and ones that are valid for some field.
fn texts() -> impl Strategy<Value = String> {
    let short = hostile_values().into_iter().filter(|value| value.len() < 1000).collect::<Vec<_>>();
    let valid = ["app", "node-1", "Running", "In", "Exists"].map(str::to_owned).to_vec();
    prop_oneof![
        any::<String>(),
        prop::sample::select(short),
        prop::sample::select(valid),
        "[a-z0-9./:=-]{0,80}",
        "containerd://[0-9a-f]{12,64}",
    ]
}

/// Returns a strategy for JSON whose keys are those that the plugin reads, or others.
fn documents() -> impl Strategy<Value = Value> {
    const KEYS: [&str; 26] = [
        "metadata",
        "spec",
        "status",
        "items",
        "name",
        "uid",
        "annotations",
        "nodeName",
        "containers",
        "phase",
        "reason",
        "message",
        "containerStatuses",
        "initContainerStatuses",
        "containerID",
        "state",
        "lastState",
        "running",
        "waiting",
        "terminated",
        "selector",
        "matchLabels",
        "matchExpressions",
        "operator",
        "key",
        "values",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        texts().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 8, |inner| {
        let key = prop_oneof![4 => prop::sample::select(KEYS.to_vec()).prop_map(str::to_owned), 1 => texts()];
        prop_oneof![
            collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            collection::vec((key, inner), 0..8).prop_map(|fields| Value::from(Map::from_iter(fields))),
        ]
    })
}

/// Returns a strategy for pods in which some strings and some subtrees are others.
fn changed_pods() -> impl Strategy<Value = Value> {
    let change = (
        any::<prop::sample::Index>(),
        prop_oneof![3 => texts().prop_map(Value::from), 1 => documents()],
    );
    collection::vec(change, 0..6).prop_map(|changes| {
        let mut pod = pod();
        for (at, value) in changes {
            let mut paths = Vec::new();
            strings(&pod, "", &mut |path| paths.push(path.to_owned()));
            if let Some(slot) =
                paths.get(at.index(paths.len().max(1))).and_then(|path| pod.pointer_mut(path))
            {
                *slot = value;
            }
        }
        pod
    })
}

proptest! {
    #[test]
    fn any_document_gives_checked_arguments_or_an_error(
        json in prop_oneof![documents(), changed_pods()],
        tool in prop::sample::select(TOOLS.to_vec()),
        chosen in prop::sample::select(vec![None, Some("app"), Some("proxy")]),
    ) {
        let _ = check(json.to_string().as_bytes(), tool, chosen);
    }

    #[test]
    fn any_bytes_give_checked_arguments_or_an_error(bytes in collection::vec(any::<u8>(), 0..300)) {
        let _ = check(&bytes, Tool::Gc, None);
    }
}
