//! The Helm chart and the Kustomize directories of jvmprobed, rendered by Helm and Kustomize and checked by
//! published schemas, and the commands of their README.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use jiff::{ToSpan, Zoned};
use jvmprobe_tests::{
    manifests::{check, helm, kustomize},
    run_beside_others,
    tool::binary,
    windows::{folder, synthetic_window},
};
use jvmprobed::{config::Config, store::Store};
use serde_json::{Value, json};

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn deploy_path(path: &str) -> PathBuf {
    repository_root().join("tools/jvmprobed/deploy").join(path)
}

/// Renders the chart as a release `jvmprobed` with these values, and these arguments of Helm.
fn render(values: &str, args: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("values.yaml");
    fs::write(&file, values).unwrap();
    let chart = deploy_path("helm/jvmprobed");
    let paths = [&chart, &file].map(|path| path.to_str().unwrap());
    let template = ["template", "jvmprobed", paths[0], "-n", "jvmprobe", "-f", paths[1]];
    helm(&[&template[..], args].concat())
}

/// Returns the objects of this kind.
fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// Returns the configuration file in these objects.
fn configuration(objects: &[Value]) -> &str {
    let all = of_kind(objects, "ConfigMap");
    all.iter().find_map(|map| map["data"]["jvmprobed.toml"].as_str()).unwrap()
}

/// A set of values, and what the rendered objects must contain.
struct Case {
    name: &'static str,
    values: &'static str,
    args: &'static [&'static str],
    /// Kind, JSON pointer, and value; `Value::Null` for a field that must be absent.
    fields: Vec<(&'static str, &'static str, Value)>,
    /// Kinds without an object.
    absent: &'static [&'static str],
}

const OPERATOR: [&str; 4] =
    ["-a", "monitoring.coreos.com/v1/PodMonitor", "-a", "monitoring.coreos.com/v1/PrometheusRule"];

const EGRESS: &str = "networkPolicy:
  egress:
    - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: observability}}}]
      ports: [{port: 4317, protocol: TCP}]
";

fn cases() -> Vec<Case> {
    const SCRAPE: &str = "/spec/template/metadata/annotations/prometheus.io~1scrape";
    const CONTAINER: &str = "/spec/template/spec/containers/0";
    let container = |rest: &str| -> &'static str { format!("{CONTAINER}{rest}").leak() };
    vec![
        Case {
            name: "defaults",
            values: "",
            args: &[],
            fields: vec![
                ("DaemonSet", SCRAPE, json!("true")),
                ("DaemonSet", "/spec/template/spec/serviceAccountName", json!("jvmprobed")),
                ("DaemonSet", container("/image"), json!("registry.example/jvmprobe:0.2.0")),
                ("ServiceAccount", "/automountServiceAccountToken", json!(false)),
                ("NetworkPolicy", "/spec/egress/1", Value::Null),
            ],
            absent: &["PodMonitor", "PrometheusRule"],
        },
        Case {
            name: "a cluster with the Prometheus Operator",
            values: "podMonitor: {labels: {release: x}, interval: 1m, scrapeProtocols: [PrometheusProto]}",
            args: &OPERATOR,
            fields: vec![
                ("DaemonSet", SCRAPE, Value::Null),
                ("PodMonitor", "/metadata/labels/release", json!("x")),
                ("PodMonitor", "/spec/podMetricsEndpoints/0/port", json!("metrics")),
                ("PodMonitor", "/spec/podMetricsEndpoints/0/interval", json!("1m")),
                ("PodMonitor", "/spec/scrapeProtocols/0", json!("PrometheusProto")),
                ("PrometheusRule", "/spec/groups/1/name", json!("jvmprobed")),
            ],
            absent: &[],
        },
        Case {
            name: "PodMonitor and PrometheusRule off",
            values: "{podMonitor: {enabled: false}, alerts: {prometheusRule: {enabled: false}}}",
            args: &OPERATOR,
            fields: vec![("DaemonSet", SCRAPE, json!("true"))],
            absent: &["PodMonitor", "PrometheusRule"],
        },
        Case {
            name: "push to OTLP",
            values: const_format(
                "config: {push: [{to: 'otlp=grpc://otel-collector.observability:4317'}]}\n",
                EGRESS,
            ),
            args: &[],
            fields: vec![
                ("NetworkPolicy", "/spec/egress/0/ports/0/port", json!(4317)),
                ("NetworkPolicy", "/spec/egress/1/ports/0/port", json!(53)),
            ],
            absent: &[],
        },
        Case {
            name: "push to Pyroscope with a token, without NetworkPolicy",
            values: "
config:
  push:
    - to: pyroscope=https://pyroscope.example:4040
      bearer-token-file: /etc/jvmprobe-secrets/token
      headers: {x-tenant: '7'}
      timeout: 10s
      queue-size: 256M
extraVolumes: [{name: secrets, secret: {secretName: jvmprobed-push}}]
extraVolumeMounts: [{name: secrets, mountPath: /etc/jvmprobe-secrets, readOnly: true}]
networkPolicy: {enabled: false}
",
            args: &[],
            fields: vec![
                ("DaemonSet", container("/volumeMounts/4/name"), json!("secrets")),
                ("DaemonSet", "/spec/template/spec/volumes/4/secret/secretName", json!("jvmprobed-push")),
            ],
            absent: &["NetworkPolicy"],
        },
        Case {
            name: "metrics with TLS and passwords",
            values: "
metrics: {webConfigSecret: jvmprobed-web}
podMonitor:
  scheme: https
  tlsConfig: {ca: {secret: {name: jvmprobed-ca, key: ca.crt}}, serverName: jvmprobed}
  basicAuth: {username: {name: scraper, key: user}, password: {name: scraper, key: password}}
",
            args: &OPERATOR,
            fields: vec![
                ("DaemonSet", container("/args/3"), json!("--web-config=/etc/jvmprobe-web/web.yml")),
                ("DaemonSet", container("/volumeMounts/4/mountPath"), json!("/etc/jvmprobe-web")),
                ("DaemonSet", "/spec/template/spec/volumes/4/secret/secretName", json!("jvmprobed-web")),
                ("PodMonitor", "/spec/podMetricsEndpoints/0/scheme", json!("https")),
                ("PodMonitor", "/spec/podMetricsEndpoints/0/basicAuth/username/key", json!("user")),
            ],
            absent: &[],
        },
        Case {
            name: "each setting of the configuration file",
            values: "
config:
  log: text
  attributes: [team]
  store: {keep: 48h, keep-size: 4G, mode: '0750'}
  take: {frequency: 49, off-cpu: true, waits: 1ms, allocation: false, window: 30s, thread-dumps: 60s, max-memory: 200M, max-cpu: 2}
  rule:
    - {action: rename, when: {service.name: '^com\\.example\\.(\\w+)$'}, to: shop-$1}
    - {action: drop, when: {team: ^x$}}
",
            args: &[],
            fields: vec![],
            absent: &[],
        },
        Case {
            name: "further arguments and settings of the pod",
            values: "
image: {repository: r.example/j, digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}
imagePullSecrets: [{name: registry}]
fullnameOverride: probe
extraArgs: [--off-cpu, --max-cpu=2.5]
extraEnv: [{name: HTTPS_PROXY, value: 'http://proxy.example:3128'}]
serviceAccount: {create: false, name: other}
priorityClass: {create: false, name: system-node-critical}
podAnnotations: {a: b}
podLabels: {c: d}
nodeSelector: {kubernetes.io/os: linux}
tolerations: []
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: x, operator: Exists}]}]}}}
maxUnavailable: 1
resources: {limits: {memory: 500Mi}}
store: {hostPath: '/srv/{jvm, probe}'}
dashboards: {namespace: grafana, annotations: {grafana_folder: JVMs}}
",
            args: &[],
            fields: vec![
                ("DaemonSet", "/metadata/name", json!("probe")),
                ("DaemonSet", container("/args/4"), json!("--max-cpu=2.5")),
                ("DaemonSet", container("/env/1/name"), json!("HTTPS_PROXY")),
                ("DaemonSet", "/spec/template/spec/priorityClassName", json!("system-node-critical")),
                ("DaemonSet", "/spec/template/spec/serviceAccountName", json!("other")),
                ("DaemonSet", "/spec/template/spec/volumes/0/hostPath/path", json!("/srv/{jvm, probe}")),
                ("DaemonSet", "/spec/template/spec/tolerations", Value::Null),
                ("DaemonSet", "/spec/updateStrategy/rollingUpdate/maxUnavailable", json!(1)),
                ("DaemonSet", "/spec/template/metadata/labels/c", json!("d")),
                ("ConfigMap", "/metadata/namespace", json!("grafana")),
                ("ConfigMap", "/metadata/annotations/grafana_folder", json!("JVMs")),
            ],
            absent: &["ServiceAccount", "PriorityClass"],
        },
        Case {
            name: "nothing optional",
            values: "
service: {enabled: false}
networkPolicy: {enabled: false}
dashboards: {enabled: false}
alerts: {configMap: {enabled: false}}
priorityClass: {create: false}
",
            args: &[],
            fields: vec![("DaemonSet", "/spec/template/spec/priorityClassName", Value::Null)],
            absent: &["Service", "NetworkPolicy", "PriorityClass"],
        },
    ]
}

/// Joins two texts that live as long as the program.
fn const_format(first: &str, second: &str) -> &'static str {
    format!("{first}{second}").leak()
}

/// Runs jvmprobed with the arguments of the DaemonSet, and with a directory that it must refuse after it has
/// accepted the arguments and the configuration file.
fn check_arguments(objects: &[Value], name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jvmprobed.toml");
    fs::write(&file, configuration(objects)).unwrap();
    let args =
        of_kind(objects, "DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
            .as_array()
            .unwrap();
    let args = args.iter().map(|arg| match arg.as_str().unwrap() {
        "--config=/etc/jvmprobe/jvmprobed.toml" => format!("--config={}", file.display()),
        // Any free port, because another test may use the usual one.
        "--listen=0.0.0.0:9464" => "--listen=127.0.0.1:0".to_owned(),
        "--health-listen=0.0.0.0:9465" => "--health-listen=127.0.0.1:0".to_owned(),
        other => other.to_owned(),
    });
    let args: Vec<_> = args.filter(|arg| !arg.starts_with("--web-config")).collect();
    let mut daemon = Command::new(binary("jvmprobed"));
    let output = daemon.args(args).args(["--dir", "/dev/null/x"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("/dev/null/x"), "{name}: {text}");
}

#[test]
fn rendered_charts_match_the_schemas() {
    run_beside_others();
    let cases = cases();
    let rendered: Vec<_> = cases
        .iter()
        .map(|case| render(case.values, case.args).unwrap_or_else(|e| panic!("{}: {e}", case.name)))
        .collect();
    let texts: Vec<_> = rendered.iter().map(String::as_str).collect();
    let (all, errors) = check("1.37", &texts);
    assert!(errors.is_empty(), "{errors:#?}");
    for (case, objects) in cases.iter().zip(&all) {
        for (kind, pointer, expected) in &case.fields {
            let all = of_kind(objects, kind);
            assert!(!all.is_empty(), "{}: {kind}", case.name);
            let mut values = all.iter().map(|object| object.pointer(pointer));
            let fits = if expected.is_null() {
                values.all(|value| value.is_none())
            } else {
                values.any(|value| value == Some(expected))
            };
            assert!(fits, "{}: {kind} {pointer} is not {expected}: {all:#?}", case.name);
        }
        for kind in case.absent {
            assert!(of_kind(objects, kind).is_empty(), "{}: {kind}", case.name);
        }
        Config::parse(configuration(objects)).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        check_arguments(objects, case.name);
    }
    let config = |name: &str| {
        let at = cases.iter().position(|case| case.name == name).unwrap();
        Config::parse(configuration(&all[at])).unwrap()
    };
    let every = config("each setting of the configuration file");
    assert_eq!(every.take.frequency, Some(49));
    assert_eq!(every.take.waits, Some(Duration::from_millis(1)));
    assert_eq!((every.take.max_cpu, every.take.allocation), (Some(2.0), Some(false)));
    assert_eq!((every.store.mode, every.rules.len()), (Some(0o750), 2));
    let push = &config("push to Pyroscope with a token, without NetworkPolicy").targets[0];
    assert_eq!((push.timeout, push.queue_size), (Duration::from_secs(10), 256 << 20));

    // The checks can fail: a field with a wrong name, one with a wrong type, and a duration without a unit.
    let at = cases.iter().position(|case| case.name.contains("Operator")).unwrap();
    for (text, wrong) in [
        ("hostPID: true", "hostPid: true"),
        ("containerPort: 9464", "containerPort: x"),
        ("jobLabel:", "joblabel:"),
        ("interval: \"1m\"", "interval: soon"),
    ] {
        let (_, errors) = check("1.37", &[&rendered[at].replace(text, wrong)]);
        assert!(!errors.is_empty(), "{wrong} is accepted");
    }
}

/// A text is a text, whatever YAML would make of it without quotes.
#[test]
fn values_and_names_cannot_become_other_fields() {
    run_beside_others();
    for hostile in
        ["x\nhostNetwork: true\r- {a: b}\u{85}c: d\u{2028}e: f # g", "true", "1e3", "{a: b}"]
    {
        // Helm's toYaml does not escape this character, and YAML reads it as a blank.
        let in_map = hostile.replace('\u{85}', " ");
        let values = json!({
            "config": {"push": [{"to": format!("dir=/{}", hostile.replace(['\n', '\r'], ""))}]},
            "serviceAccount": {"create": false, "name": hostile},
            "priorityClass": {"create": false, "name": hostile},
            "dashboards": {"namespace": hostile},
            "image": {"repository": hostile},
            "extraArgs": [format!("-{hostile}")],
            "metrics": {"webConfigSecret": hostile},
            "podLabels": {"a": in_map},
            "podAnnotations": {"a": in_map},
            "nodeSelector": {"a": in_map},
        });
        // Helm reads values as YAML, which would end lines at these characters.
        let values = values.to_string().replace('\u{85}', "\\u0085").replace('\u{2028}', "\\u2028");
        let text = render(&values, &[]).unwrap();
        let (all, errors) = check("1.37", &[&text]);
        assert!(errors.is_empty(), "{errors:#?}");
        let pod = &of_kind(&all[0], "DaemonSet")[0]["spec"]["template"];
        for pointer in [
            "/spec/serviceAccountName",
            "/spec/priorityClassName",
            "/spec/volumes/4/secret/secretName",
        ] {
            assert_eq!(pod.pointer(pointer), Some(&json!(hostile)), "{pointer}: {pod:#}");
        }
        for pointer in ["/spec/nodeSelector/a", "/metadata/labels/a", "/metadata/annotations/a"] {
            assert_eq!(pod.pointer(pointer), Some(&json!(in_map)), "{pointer}: {pod:#}");
        }
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["image"], format!("{hostile}:0.2.0"));
        assert_eq!(container["args"][4], format!("-{hostile}"));
        assert!(pod["spec"]["hostNetwork"].is_null(), "{pod:#}");
        let maps = of_kind(&all[0], "ConfigMap");
        assert!(maps.iter().any(|map| map["metadata"]["namespace"] == hostile));
        let map = maps.iter().find(|map| map["data"]["jvmprobed.toml"].is_string()).unwrap();
        assert_eq!(map["data"].as_object().unwrap().len(), 1, "{map:#}");
        Config::parse(configuration(&all[0])).unwrap();
    }
    // Helm accepts names of releases and namespaces that are numbers for YAML.
    let chart = deploy_path("helm/jvmprobed");
    let text = helm(&["template", "123", chart.to_str().unwrap(), "-n", "456"]).unwrap();
    let (all, errors) = check("1.37", &[&text]);
    assert!(errors.is_empty(), "{errors:#?}");
    let metadata = &of_kind(&all[0], "DaemonSet")[0]["metadata"];
    assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], "123");
    assert_eq!(metadata["namespace"], "456");
}

/// Kubernetes before 1.30 has an annotation instead of the field appArmorProfile.
#[test]
fn chart_uses_the_annotation_of_apparmor_before_kubernetes_1_30() {
    run_beside_others();
    for (version, old) in [("1.25", true), ("1.29", true), ("1.30", false)] {
        let text = render("", &["--kube-version", &format!("{version}.0")]).unwrap();
        let (all, errors) = check(version, &[&text]);
        assert!(errors.is_empty(), "{version}: {errors:#?}");
        let pod = &of_kind(&all[0], "DaemonSet")[0]["spec"]["template"];
        let annotation = "container.apparmor.security.beta.kubernetes.io/jvmprobed";
        assert_eq!(pod["metadata"]["annotations"][annotation] == "unconfined", old);
        let field = &pod["spec"]["containers"][0]["securityContext"]["appArmorProfile"]["type"];
        assert_eq!(field == "Unconfined", !old);
    }
    let error = render("", &["--kube-version", "1.24.0"]).unwrap_err();
    assert!(error.contains(">=1.25.0"), "{error}");
}

#[test]
fn wrong_values_are_rejected() {
    run_beside_others();
    for (values, message) in [
        ("networkpolicy: {enabled: false}", "'networkpolicy' not allowed"),
        ("config: {take: {wait: 1ms}}", "'/config/take': additional properties 'wait' not allowed"),
        (
            "config: {take: {frequency: 5000}}",
            "'/config/take/frequency': maximum: got 5,000, want 999",
        ),
        ("config: {take: {waits: 5}}", "'/config/take/waits': got number, want string"),
        ("config: {store: {dir: /x}}", "'/config/store': additional properties 'dir' not allowed"),
        (
            "config: {push: [{to: kafka=x}]}",
            "'/config/push/0/to': 'kafka=x' does not match pattern",
        ),
        ("config: {push: [{too: x}]}", "missing property 'to'"),
        ("image: {pullPolicy: Sometimes}", "'/image/pullPolicy': value must be one of 'Always'"),
        ("podMonitor: {enabled: maybe}", "'/podMonitor/enabled': value must be one of true, false"),
        ("podMonitor: {interval: 30}", "'/podMonitor/interval': got number, want string"),
        ("store: {hostPath: var}", "'/store/hostPath': 'var' does not match pattern"),
        // Errors that depend on several values come from the chart.
        (
            "config: {push: [{to: 'otlp=http://x:4318'}]}",
            "config.push has otlp=http://x:4318, but the NetworkPolicy allows no connection to it",
        ),
        (
            "extraArgs: [--listen=none]",
            "extraArgs has --listen=none, but the chart sets this option",
        ),
        ("serviceAccount: {create: false}", "serviceAccount.name is required"),
        (
            "{metrics: {webConfigSecret: x}, podMonitor: {enabled: true}}",
            "podMonitor has neither scheme https nor basicAuth",
        ),
    ] {
        let error = render(values, &[]).unwrap_err();
        assert!(error.contains(message), "{values}: {error}");
    }
    // Files stay in the pod, so they need no connection.
    render("config: {push: [{to: 'dir=/var/lib/jvmprobe/pprof'}]}", &[]).unwrap();
}

/// The schema of the values allows exactly the keys that the daemon accepts in its configuration file, except
/// those that the chart sets.
#[test]
fn value_schema_has_the_keys_of_the_configuration_file() {
    run_beside_others();
    let schema = fs::read_to_string(deploy_path("helm/jvmprobed/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    for (section, pointer, set_by_chart) in [
        ("", "", &["metrics"][..]),
        ("[store]\n", "/store", &["dir"]),
        ("[take]\n", "/take", &[]),
        ("[metrics]\n", "/metrics", &["listen", "health-listen", "web-config"]),
        ("[[push]]\nto = \"dir=/x\"\n", "/push/items", &[]),
        ("[[rule]]\naction = \"drop\"\n", "/rule/items", &[]),
    ] {
        // The error lists the accepted keys: unknown field `unknown`, expected one of `a`, `b`.
        let error = Config::parse(&format!("{section}unknown = 1\n")).unwrap_err().to_string();
        let (_, listed) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
        let accepted: BTreeSet<_> = listed.split('`').skip(1).step_by(2).collect();
        let properties = pointer.replacen('/', "/properties/", 1);
        let properties = schema.pointer(&format!("/properties/config{properties}/properties"));
        let keys = properties.into_iter().flat_map(|keys| keys.as_object().unwrap().keys());
        let mut keys: BTreeSet<_> = keys.map(String::as_str).collect();
        keys.extend(set_by_chart);
        assert_eq!(keys, accepted, "values.schema.json differs from jvmprobed.toml in {section:?}");
    }
    // Each value has a default and a comment in values.yaml.
    let values = fs::read_to_string(deploy_path("helm/jvmprobed/values.yaml")).unwrap();
    let top: BTreeSet<_> = values
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_alphabetic()))
        .map(|line| line.split(':').next().unwrap())
        .collect();
    let mut allowed: BTreeSet<_> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    assert!(allowed.remove("global"));
    assert_eq!(top, allowed);
}

/// Removes what Helm or Kustomize adds to each object.
fn strip(value: &mut Value) {
    const ADDED: [&str; 5] = [
        "helm.sh/chart",
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/version",
        "app.kubernetes.io/instance",
        "checksum/config",
    ];
    match value {
        Value::Object(fields) => {
            ADDED.iter().for_each(|name| _ = fields.remove(*name));
            fields.values_mut().for_each(strip);
            fields.retain(|name, value| name != "annotations" || value != &json!({}));
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Returns the objects by kind and name, without what Helm or Kustomize adds.
fn comparable(mut objects: Vec<Value>) -> BTreeMap<String, Value> {
    // Kustomize adds a hash to the name of the ConfigMap, and the two configuration files differ in spaces
    // and comments.
    let parsed = format!("{:?}", Config::parse(configuration(&objects)).unwrap());
    let map = objects.iter_mut().find(|object| object["data"]["jvmprobed.toml"].is_string());
    let map = map.unwrap();
    map["data"]["jvmprobed.toml"] = parsed.into();
    let hashed = map["metadata"]["name"].clone();
    let text = serde_json::to_string(&objects).unwrap();
    let text = text.replace(&hashed.to_string(), "\"jvmprobed\"");
    let objects: Vec<Value> = serde_json::from_str(&text).unwrap();
    let key = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let objects = objects.into_iter().filter(|object| object["kind"] != "Namespace");
    objects
        .map(|mut object| {
            strip(&mut object);
            (key(&object), object)
        })
        .collect()
}

/// The chart and the Kustomize directories are two descriptions of the same objects.
#[test]
fn chart_and_kustomization_render_the_same_objects() {
    run_beside_others();
    let push = "config: {push: [{to: 'otlp=grpc://otel-collector.observability:4317'}]}\n";
    let values = format!("{push}{EGRESS}");
    for (directory, args) in
        [("kubernetes", &[][..]), ("prometheus-operator", &["--set", "podMonitor.enabled=true"])]
    {
        let charted = render(&values, args).unwrap();
        let kustomized = kustomize(&deploy_path(directory)).unwrap();
        let (mut all, errors) = check("1.37", &[&kustomized, &charted]);
        assert!(errors.is_empty(), "{errors:#?}");
        assert_eq!(of_kind(&all[0], "Namespace").len(), 1);
        let charted = comparable(all.remove(1));
        let kustomized = comparable(all.remove(0));
        assert!(kustomized.keys().eq(charted.keys()), "{kustomized:#?} {charted:#?}");
        for (name, object) in &kustomized {
            assert_eq!(object, &charted[name], "{name}");
        }
        let dashboards = &kustomized["\"ConfigMap\" \"jvmprobed-dashboards\""];
        assert_eq!(dashboards["data"].as_object().unwrap().len(), 2);
        assert_eq!(dashboards["metadata"]["labels"]["grafana_dashboard"], "1");
    }
}

/// Versions of the chart and of the image are those of the program.
#[test]
fn chart_and_kustomization_have_the_version_of_the_program() {
    run_beside_others();
    let version = env!("CARGO_PKG_VERSION");
    let chart = fs::read_to_string(deploy_path("helm/jvmprobed/Chart.yaml")).unwrap();
    let base = fs::read_to_string(deploy_path("kubernetes/kustomization.yaml")).unwrap();
    for (text, line) in [(&chart, "version"), (&chart, "appVersion"), (&base, "newTag")] {
        let line = format!("{line}: {version}");
        assert!(text.lines().any(|l| l.trim() == line), "{line}: {text}");
    }
    let readme = fs::read_to_string(deploy_path("README.md")).unwrap();
    for part in [format!("/jvmprobe:{version}"), format!("/jvmprobe_{version}-")] {
        assert!(readme.contains(&part), "{part}: {readme}");
    }
}

#[test]
fn helm_lints_and_packages_the_chart_and_prints_notes() {
    run_beside_others();
    let chart = deploy_path("helm/jvmprobed");
    let chart = chart.to_str().unwrap();
    let text = helm(&["lint", "--strict", chart]).unwrap();
    assert!(text.contains("0 chart(s) failed"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    helm(&["package", chart, "-d", folder.path().to_str().unwrap()]).unwrap();
    let package = format!("jvmprobed-{}.tgz", env!("CARGO_PKG_VERSION"));
    let package = folder.path().join(package);
    // The package contains everything that the chart needs.
    let packaged =
        helm(&["template", "jvmprobed", package.to_str().unwrap(), "-n", "jvmprobe"]).unwrap();
    assert_eq!(packaged, render("", &[]).unwrap());
    let notes = |args: &[&str]| {
        let install = ["install", "jvmprobed", chart, "-n", "apm", "--dry-run=client"];
        helm(&[&install[..], args].concat()).unwrap().split_once("NOTES:").unwrap().1.to_owned()
    };
    let text = notes(&[]);
    assert!(text.contains("kubectl -n apm rollout status daemonset/jvmprobed"), "{text}");
    assert!(text.contains("set config.push") && text.contains("prometheus.io/scrape"), "{text}");
    let text = notes(&["--set", "podMonitor.enabled=true"]);
    assert!(text.contains("the PodMonitor jvmprobed"), "{text}");
}

/// How a command of the README is run here.
enum Run {
    /// By Helm, as `template` instead of `install`.
    Helm,
    /// By Kustomize, without applying the result.
    Kustomize,
    /// The manifest is checked by the schemas.
    Manifest,
    /// By the program, on a store with data of the given time.
    Show,
    /// With `make --dry-run`, which fails if the target does not exist. `make test-all` runs the target.
    Make,
    /// Not here: it needs a cluster or a registry, or it is a part of `make test-all`.
    Elsewhere,
}

fn runs() -> Vec<(&'static str, Run)> {
    vec![
        ("make ", Run::Make),
        ("podman push ", Run::Elsewhere),
        ("kubectl apply -f ", Run::Manifest),
        ("kubectl apply -k ", Run::Kustomize),
        ("helm install ", Run::Helm),
        ("sudo apt install ", Run::Elsewhere),
        ("sudo systemctl enable ", Run::Elsewhere),
        ("curl -s http://127.0.0.1:9464/metrics", Run::Elsewhere),
        ("POD=$(kubectl ", Run::Elsewhere),
        ("sudo jvmprobed show", Run::Show),
        ("kubectl -n jvmprobe exec $POD -- jvmprobed show", Run::Show),
    ]
}

#[test]
fn commands_of_the_readme_run() {
    run_beside_others();
    let readme = fs::read_to_string(deploy_path("README.md")).unwrap();
    assert!(readme.lines().count() <= 40);
    let commands: Vec<_> = readme.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    // Windows from 03:10 to 03:15 of the last time that it was 03:12, in the local time zone.
    let now = Zoned::now();
    let today = now.with().hour(3).minute(10).second(0).subsec_nanosecond(0).build().unwrap();
    let begin = if today.checked_add(5.minutes()).unwrap() < now {
        today
    } else {
        today.checked_sub(1.day()).unwrap()
    };
    let dir = folder();
    let mut store = Store::open(dir.path(), Duration::from_secs(48 * 3600), 1 << 30).unwrap();
    let begin = u64::try_from(begin.timestamp().as_second()).unwrap();
    (0..20).for_each(|at| _ = store.put(synthetic_window(begin, at)));
    drop(store);

    let runs = runs();
    let mut unused: BTreeSet<_> = runs.iter().map(|(prefix, _)| *prefix).collect();
    for command in commands {
        let (prefix, run) = runs
            .iter()
            .find(|(prefix, _)| command.starts_with(prefix))
            .unwrap_or_else(|| panic!("no test runs `{command}`"));
        unused.remove(prefix);
        let rest = &command[prefix.len()..];
        let words: Vec<_> = rest.split_whitespace().collect();
        let path = |word: &str| repository_root().join(word);
        match run {
            Run::Helm => {
                let chart = path(words[1]);
                let args = [&["template", words[0], chart.to_str().unwrap()], &words[2..]].concat();
                let text = helm(&args).unwrap_or_else(|e| panic!("{command}: {e}"));
                assert!(text.contains("image: \"REGISTRY/jvmprobe:"), "{text}");
            }
            Run::Kustomize => {
                let text = kustomize(&path(words[0])).unwrap_or_else(|e| panic!("{command}: {e}"));
                assert!(text.contains("kind: DaemonSet"), "{text}");
            }
            Run::Manifest => {
                let text = fs::read_to_string(path(words[0])).unwrap();
                let (all, errors) = check("1.37", &[&text]);
                assert!(errors.is_empty() && !all[0].is_empty(), "{command}: {errors:?}");
            }
            Run::Show => {
                let mut show = Command::new(binary("jvmprobed"));
                let output = show.arg("show").arg("--dir").arg(dir.path()).args(words).output();
                let output = output.unwrap();
                assert!(output.status.success(), "{command}: {output:?}");
                let text = String::from_utf8(output.stdout).unwrap();
                let expected = if rest.contains("--gc") { "G1" } else { "shop.Main.run" };
                assert!(text.contains(expected), "{command}: {text}");
            }
            Run::Make => {
                let mut make = Command::new("make");
                let output = make.arg("-C").arg(repository_root()).arg("-n").args(words).output();
                assert!(output.unwrap().status.success(), "{command}");
            }
            Run::Elsewhere => {}
        }
    }
    assert!(unused.is_empty(), "the README has no such command: {unused:?}");
}
