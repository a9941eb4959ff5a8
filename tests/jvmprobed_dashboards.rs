//! The Grafana dashboards: each query, run by Prometheus on series of known values, and the links to profiles.
//! The series are jvmprobe's own metrics, those of OpenTelemetry's semantic conventions, or both.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    manifests::type_errors,
    prometheus::{Prometheus, get},
    run_beside_others,
    tool::binary,
    windows::{folder, synthetic_window},
};
use jvmprobed::{
    metrics::{
        Limits, SharedTotals,
        figures::{DaemonMetrics, Figures, Gauges, Processor, Stop, Waited},
        server::{self, Health},
    },
    net::Net,
    store::Store,
    window::Identity,
};
use libjvmprobe::bpf::cost::Cost;
use serde_json::Value;

const DASHBOARDS: [&str; 2] = ["jvmprobed.json", "jvmprobed-daemon.json"];

fn dashboard(file: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let path = folder.join("tools/jvmprobed/deploy/grafana").join(file);
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// The JVMs: name, PID and pod. A JVM outside of Kubernetes has no pod.
const JVMS: [(&str, u32, Option<&str>); 3] =
    [("shop", 1, Some("shop-1")), ("shop", 2, Some("shop-2")), ("batch", 3, None)];

/// Number of seconds that the series last.
const SECONDS: u64 = 600;
/// Seconds between two samples of a series.
const STEP: u64 = 15;
const NS: u64 = 1_000_000_000;

fn identity((name, pid, pod): (&str, u32, Option<&str>)) -> Arc<Identity> {
    let mut attributes = BTreeMap::from([("host.name".to_owned(), "node-1".to_owned())]);
    if let Some(pod) = pod {
        attributes.insert("k8s.namespace.name".into(), "prod".into());
        attributes.insert("k8s.pod.name".into(), pod.into());
    }
    Arc::new(Identity { pid, started_ns: 1, name: name.into(), attributes })
}

/// Figures of a JVM. With one more PID, all of them are higher.
fn figures(pid: u32) -> Figures {
    let n = u64::from(pid);
    let stop = Stop {
        op: "G1CollectForAllocation".into(),
        cause: Some("G1 Evacuation Pause".into()),
        stopped_ns: 20_000_000,
        ttsp_ns: Some(50_000),
        cpu_wait_ns: Some(500_000),
        collections: 1,
        heap_before: Some(n * 300),
        heap_after: Some(n * 100),
        ..Stop::default()
    };
    let other = Stop { op: "ThreadDump".into(), stopped_ns: n * NS, ..Stop::default() };
    Figures {
        stops: [vec![stop; 60], vec![other]].concat(),
        processor: Processor { java_ns: n * 6 * NS, gc_ns: n * 3 * NS, ..Processor::default() },
        allocated_bytes: n * 6000,
        waits: vec![Waited { kind: "monitor", times: n * 30, ns: n * 60 * NS }],
        cost: vec![("allocation", 5_000_000)],
        gauges: Gauges {
            code_cache_used: Some(n * 10),
            code_cache_size: Some(100),
            loaded_classes: Some(n * 1000),
            threads: Some(n * 10),
            cpu_ns: Some(n * 6 * NS),
            heap_committed: Some(n * 400),
            heap_max: Some(n * 500),
            values: None,
        },
    }
}

/// Returns totals with these JVMs and with values for all metrics of the daemon.
fn totals(net: &Net) -> SharedTotals {
    let totals = SharedTotals::new(Limits::default());
    let push = {
        let folder = tempfile::tempdir().unwrap();
        let to = format!("dir={}", folder.path().join("profiles").display());
        let options = jvmprobed::push::target::Options::new(to.parse().unwrap());
        jvmprobed::push::Push::start(net, &[options], folder.path(), Default::default()).unwrap()
    };
    let mut locked = totals.lock();
    locked.targets = push.ledgers();
    for jvm in JVMS {
        let identity = identity(jvm);
        locked.seen += 1;
        locked.admit(&identity);
        locked.add(&identity, &figures(jvm.1));
    }
    locked.add_probe_cost(
        "allocation",
        &Cost { pid: 1, hits: 1000, ns: 5_000_000, ..Cost::default() },
    );
    locked.own = DaemonMetrics { memory_bytes: 60 << 20, hertz: 19, ..DaemonMetrics::default() };
    locked.add_recorded("cpu", 1200);
    locked.add_lost("ring-buffer", 5);
    locked.add_abandoned("GraalVM native image");
    locked.windows = 40;
    drop(locked);
    totals
}

/// Serves the metrics of these totals on a free port.
fn serve(net: &Net, totals: &SharedTotals) -> SocketAddr {
    let port = server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, totals) = (port.local_addr().unwrap(), totals.clone());
    net.spawn(async move { server::serve(port, totals, Arc::<Health>::default()).await.unwrap() });
    address
}

/// Returns jvmprobe's own metrics, as the daemon serves them.
fn own_metrics() -> String {
    let net = Net::start().unwrap();
    let address = serve(&net, &totals(&net));
    let accept = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let (status, body) = get(address, "/metrics", accept);
    assert_eq!(status, 200);
    let text = String::from_utf8(body).unwrap();
    let is_own = |line: &&str| {
        let name = line.trim_start_matches("# TYPE ");
        name.starts_with("jvmprobe") && !name.contains("_created")
    };
    text.lines().filter(is_own).map(|line| format!("{line}\n")).collect()
}

/// Returns the metrics of OpenTelemetry's semantic conventions, with the names that the rules for Prometheus
/// give them.
fn otel_metrics() -> String {
    let mut families = BTreeMap::<(&str, &str), String>::new();
    for (jvm, pid, _) in JVMS {
        let n = f64::from(pid);
        let mut add = |family, kind, suffix: &str, labels: &str, value: f64| {
            let text = families.entry((family, kind)).or_default();
            let comma = if labels.is_empty() { "" } else { "," };
            writeln!(
                text,
                "{family}{suffix}{{jvm=\"{jvm}\",pid=\"{pid}\"{comma}{labels}}} {value}"
            )
            .unwrap();
        };
        for (kind, pool, used, limit) in [
            ("heap", "G1 Eden Space", 150.0, None),
            ("heap", "G1 Old Gen", 100.0, Some(500.0)),
            ("non_heap", "CodeHeap 'profiled nmethods'", 6.0, Some(50.0)),
            ("non_heap", "CodeHeap 'non-profiled nmethods'", 6.0, Some(50.0)),
            ("non_heap", "Metaspace", 40.0, None),
        ] {
            let labels = format!("jvm_memory_type=\"{kind}\",jvm_memory_pool_name=\"{pool}\"");
            add("jvm_memory_used_bytes", "gauge", "", &labels, n * used);
            add("jvm_memory_committed_bytes", "gauge", "", &labels, n * used * 2.0);
            if let Some(limit) = limit {
                let limit = if kind == "heap" { n * limit } else { limit };
                add("jvm_memory_limit_bytes", "gauge", "", &labels, limit);
            }
            if kind == "heap" {
                add("jvm_memory_used_after_last_gc_bytes", "gauge", "", &labels, n * used / 2.0);
            }
        }
        for (gc, action, cause, count) in [
            ("Shenandoah Pauses", "end of GC pause", "Concurrent GC", 60.0),
            // A cycle runs beside the application, so its time must not count as stopped.
            ("Shenandoah Cycles", "end of GC cycle", "Concurrent GC", 600.0),
        ] {
            let labels =
                format!("jvm_gc_name=\"{gc}\",jvm_gc_action=\"{action}\",jvm_gc_cause=\"{cause}\"");
            for (bound, share) in
                [("0.01", 0.0), ("0.1", 1.0), ("1.0", 1.0), ("10.0", 1.0), ("+Inf", 1.0)]
            {
                let labels = format!("{labels},le=\"{bound}\"");
                add("jvm_gc_duration_seconds", "histogram", "_bucket", &labels, count * share);
            }
            add("jvm_gc_duration_seconds", "histogram", "_count", &labels, count);
            add("jvm_gc_duration_seconds", "histogram", "_sum", &labels, count * 0.02);
        }
        for (daemon, state, count) in
            [("true", "waiting", 5.0), ("true", "runnable", 2.0), ("false", "runnable", 1.0)]
        {
            let labels = format!("jvm_thread_daemon=\"{daemon}\",jvm_thread_state=\"{state}\"");
            add("jvm_thread_count", "gauge", "", &labels, n * count);
        }
        add("jvm_class_count", "gauge", "", "", n * 1001.0);
        add("jvm_cpu_time_seconds", "counter", "_total", "", n * 12.0);
        add("jvm_cpu_recent_utilization_ratio", "gauge", "", "", n / 10.0);
        add(
            "jvm_buffer_memory_used_bytes",
            "gauge",
            "",
            "jvm_buffer_pool_name=\"direct\"",
            n * 70.0,
        );
        add("jvm_system_cpu_load_1m", "gauge", "", "", 1.5);
        add("jvm_system_cpu_utilization_ratio", "gauge", "", "", 0.25);
        add("jvm_file_descriptor_count", "gauge", "", "", n * 100.0);
        add("jvm_file_descriptor_limit", "gauge", "", "", 1000.0);
    }
    let typed = |((family, kind), samples): ((&str, &str), String)| {
        format!("# TYPE {family} {kind}\n{samples}")
    };
    families.into_iter().map(typed).collect()
}

/// Returns series that end at a time with the values of an exposition: counters grow evenly from zero, and
/// gauges are constant. Each series gets the labels that Prometheus adds.
fn series(exposition: &str, labels: &str, end: u64) -> String {
    let (mut samples, mut grows) = (String::new(), false);
    for line in exposition.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            grows = !family.ends_with("gauge");
            samples += line;
            samples.push('\n');
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, own) = series.split_once('{').map_or((series, ""), |(name, own)| (name, own));
        let own = own.trim_end_matches('}');
        let comma = if own.is_empty() { "" } else { "," };
        let value: f64 = value.parse().unwrap();
        for at in (0..=SECONDS).step_by(STEP as usize) {
            let share = if grows { at as f64 / SECONDS as f64 } else { 1.0 };
            let (value, time) = (value * share, end - SECONDS + at);
            writeln!(samples, "{name}{{{labels}{comma}{own}}} {value} {time}").unwrap();
        }
    }
    samples
}

/// The metrics that Prometheus has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Own,
    Otel,
    Both,
}

/// Returns a Prometheus with a set of metrics from these clusters. Without a cluster, the label is missing.
fn prometheus(set: Set, clusters: &[&str], end: u64) -> Prometheus {
    let own = own_metrics();
    let is_identity =
        |line: &&str| line.contains("jvmprobe_jvm_info") || line.contains("jvmprobed_");
    let exposition = match set {
        Set::Own => own,
        // Metrics of the daemon and the identity of the JVMs belong to no set.
        Set::Otel => {
            let identity = own.lines().filter(is_identity).map(|line| format!("{line}\n"));
            identity.collect::<String>() + &otel_metrics()
        }
        Set::Both => own + &otel_metrics(),
    };
    let labels = "instance=\"node-1\",job=\"jvmprobed\"";
    let labels = clusters.iter().map(|cluster| match *cluster {
        "" => labels.to_owned(),
        cluster => format!("cluster=\"{cluster}\",{labels}"),
    });
    let samples: String = labels.map(|labels| series(&exposition, &labels, end)).collect();
    Prometheus::with_samples(&(samples + "# EOF\n"))
}

/// Replaces the variables of a query as Grafana does. Variables that are not given select everything.
fn interpolate(query: &str, variables: &[(&str, &str)]) -> String {
    let mut query = query.replace("$__rate_interval", "1m");
    for (name, value) in variables {
        query = query.replace(&format!("\"${name}\""), &format!("\"{value}\""));
    }
    for name in ["cluster", "namespace", "pod", "jvm", "instance"] {
        query = query.replace(&format!("\"${name}\""), "\".*\"");
    }
    assert!(!query.contains('$'), "{query}");
    query
}

/// Results of a panel's queries.
fn results(
    prometheus: &Prometheus,
    panel: &Value,
    variables: &[(&str, &str)],
    end: u64,
) -> Vec<Vec<(Value, f64)>> {
    let targets = panel["targets"].as_array().into_iter().flatten();
    let query =
        |target: &Value| prometheus.query_at(&interpolate(text(target, "expr"), variables), end);
    targets.map(query).collect()
}

fn panel<'a>(dashboard: &'a Value, title: &str) -> &'a Value {
    panels(dashboard).find(|panel| panel["title"] == title).unwrap_or_else(|| panic!("{title}"))
}

/// Returns the time at which the queries run.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / STEP * STEP
}

const SETS: [Set; 3] = [Set::Own, Set::Otel, Set::Both];

/// Values of the JVM with PID 2: panel, number of the query, and the value with each set.
const VALUES: [(&str, usize, [Option<f64>; 3]); 15] = [
    // 60 collections of 20 ms, and another stop of two seconds.
    ("Share of time stopped", 0, [Some(3.2 / 600.0), Some(1.2 / 600.0), Some(3.2 / 600.0)]),
    ("Garbage collections per second", 0, [Some(0.1), Some(0.1), Some(0.1)]),
    ("Time to safepoint, mean", 0, [Some(0.00005), None, Some(0.00005)]),
    ("Wait for a CPU within collections", 0, [Some(0.03 / 600.0), None, Some(0.03 / 600.0)]),
    ("Heap", 0, [None, Some(500.0), Some(500.0)]),
    ("Heap", 1, [Some(200.0), Some(250.0), Some(200.0)]),
    ("Heap", 2, [Some(800.0), Some(1000.0), Some(800.0)]),
    ("Heap", 3, [Some(1000.0), Some(1000.0), Some(1000.0)]),
    ("Allocation by Java code", 0, [Some(20.0), None, Some(20.0)]),
    ("Code cache in use", 0, [Some(0.2), Some(0.24), Some(0.2)]),
    ("Loaded classes", 0, [Some(2000.0), Some(2002.0), Some(2002.0)]),
    ("CPUs in use, by JVM", 0, [Some(0.02), Some(0.04), Some(0.04)]),
    ("Threads", 0, [Some(20.0), Some(16.0), Some(16.0)]),
    ("Open files", 0, [None, Some(0.2), Some(0.2)]),
    ("Share of the available CPUs in use", 0, [None, Some(0.2), Some(0.2)]),
];

/// Sums over all JVMs: panel, label with its value, and the value with each set.
const SUMS: [(&str, &str, &str, [Option<f64>; 3]); 5] = [
    ("Memory by pool", "jvm_memory_pool_name", "Metaspace", [None, Some(240.0), Some(240.0)]),
    ("CPUs in use, by kind of code", "kind", "java", [Some(0.06), None, Some(0.06)]),
    ("Threads by state", "jvm_thread_state", "runnable", [None, Some(18.0), Some(18.0)]),
    ("Waiting threads, by kind", "kind", "monitor", [Some(0.6), None, Some(0.6)]),
    ("Length of waits, mean by kind", "kind", "monitor", [Some(2.0), None, Some(2.0)]),
];

fn assert_near(found: Option<f64>, expected: Option<f64>, what: &str) {
    let near = match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() <= 1e-6 * expected.abs(),
        (found, expected) => found == expected,
    };
    assert!(near, "{what}: {found:?}, not {expected:?}");
}

/// Returns whether a panel's description says that it has no data with this set.
fn is_empty_by_description(panel: &Value, set: Set) -> bool {
    let description = text(panel, "description");
    match set {
        Set::Own => description.ends_with("Only with OpenTelemetry's metrics."),
        Set::Otel => description.ends_with("Only with jvmprobe's own metrics."),
        Set::Both => false,
    }
}

#[test]
fn each_query_returns_the_values_of_each_set_of_metrics() {
    run_beside_others();
    let end = now();
    for (number, set) in SETS.into_iter().enumerate() {
        let prometheus = prometheus(set, &[""], end);
        for file in DASHBOARDS {
            let dashboard = dashboard(file);
            for panel in panels(&dashboard).filter(|panel| panel["targets"].is_array()) {
                let (title, all) = (text(panel, "title"), results(&prometheus, panel, &[], end));
                let is_empty = all.iter().all(Vec::is_empty);
                assert_eq!(is_empty, is_empty_by_description(panel, set), "{title}: {set:?}");
                // A link needs the name of the JVM.
                if panel["fieldConfig"]["defaults"]["links"].is_array() {
                    let mut labels = all.iter().flatten().map(|(labels, _)| labels);
                    assert!(labels.all(|labels| labels["jvm"].is_string()), "{title}");
                }
                // Labels in the legend that no series has would be a mistake.
                for (target, values) in panel["targets"].as_array().unwrap().iter().zip(&all) {
                    assert!(values.len() <= 9, "{title}: {values:?}");
                    assert!(target["legendFormat"].is_string(), "{title}");
                }
            }
        }
        let dashboard = dashboard("jvmprobed.json");
        let all = |title: &str| results(&prometheus, panel(&dashboard, title), &[], end);
        for (title, query, expected) in VALUES {
            let found = &all(title)[query];
            let is_one = |labels: &Value| {
                labels["pid"] == "2" && labels["jvm_gc_name"] != "Shenandoah Cycles"
            };
            let of_two: Vec<_> = found.iter().filter(|(labels, _)| is_one(labels)).collect();
            assert!(of_two.len() <= 1, "{title}: {of_two:?}");
            let value = of_two.first().map(|(labels, value)| {
                assert_eq!(labels["k8s_pod_name"], "shop-2", "{title}");
                *value
            });
            assert_near(value, expected[number], &format!("{title} {query} with {set:?}"));
        }
        for (title, label, wanted, expected) in SUMS {
            let found = all(title).remove(0);
            let found = found.iter().find(|(labels, _)| labels[label] == wanted);
            let value = found.map(|(_, value)| *value);
            assert_near(value, expected[number], &format!("{title} with {set:?}"));
        }
        // One of 61 stops takes two seconds, and the others take 20 ms.
        let percentile = all("Length of stops, 99th percentile").remove(0);
        let (_, percentile) = percentile.iter().find(|(labels, _)| labels["pid"] == "2").unwrap();
        let range = if set == Set::Otel { 0.01..=0.1 } else { 0.01..=3.0 };
        assert!(range.contains(percentile), "{set:?}: {percentile}");
        // Times by cause: the panel has the same sum as the one by JVM.
        let sum = |title: &str| all(title)[0].iter().map(|(_, value)| value).sum::<f64>();
        let by_cause = sum("Share of time stopped, by operation and cause");
        assert_near(Some(by_cause), Some(sum("Share of time stopped")), "sum by cause");
    }
}

/// Returns the values of a variable's drop-down list.
fn options(
    prometheus: &Prometheus,
    dashboard: &Value,
    name: &str,
    variables: &[(&str, &str)],
) -> Vec<String> {
    let variables_of_dashboard = dashboard["templating"]["list"].as_array().unwrap();
    let variable = variables_of_dashboard.iter().find(|variable| variable["name"] == name).unwrap();
    let query = text(&variable["query"], "query");
    let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
    let (selector, label) = inner.unwrap().rsplit_once(", ").unwrap();
    prometheus.label_values(&interpolate(selector, variables), label)
}

#[test]
fn variables_select_clusters_namespaces_pods_and_jvms() {
    run_beside_others();
    let end = now();
    let [jvms, daemon] = DASHBOARDS.map(dashboard);
    let count = |prometheus: &Prometheus, variables: &[(&str, &str)]| {
        let found = results(prometheus, panel(&jvms, "CPUs in use, by JVM"), variables, end);
        found[0].len()
    };

    // Without the label cluster, the list of clusters is empty, and nothing else changes.
    let one = prometheus(Set::Otel, &[""], end);
    assert!(options(&one, &jvms, "cluster", &[]).is_empty());
    assert_eq!(options(&one, &jvms, "namespace", &[]), ["prod"]);
    assert_eq!(options(&one, &jvms, "pod", &[]), ["shop-1", "shop-2"]);
    assert_eq!(options(&one, &jvms, "jvm", &[]), ["batch", "shop"]);
    assert_eq!(options(&one, &jvms, "jvm", &[("pod", "shop-1")]), ["shop"]);
    assert_eq!(options(&one, &daemon, "instance", &[]), ["node-1"]);
    assert_eq!(count(&one, &[]), 3);
    // Grafana uses an empty text if a list is empty and nothing is selected.
    assert_eq!(count(&one, &[("cluster", "")]), 3);

    let two = prometheus(Set::Both, &["east", "west"], end);
    assert_eq!(options(&two, &jvms, "cluster", &[]), ["east", "west"]);
    assert_eq!(options(&two, &daemon, "cluster", &[]), ["east", "west"]);
    assert_eq!(options(&two, &jvms, "pod", &[("cluster", "east")]), ["shop-1", "shop-2"]);
    for (variables, expected) in [
        (&[][..], 6),
        (&[("cluster", "east")], 3),
        (&[("namespace", "prod")], 4),
        (&[("pod", "shop-1")], 2),
        (&[("jvm", "batch")], 2),
        (&[("cluster", "east"), ("namespace", "prod"), ("pod", "shop-2"), ("jvm", "shop")], 1),
        (&[("pod", "shop-1"), ("jvm", "batch")], 0),
    ] {
        assert_eq!(count(&two, variables), expected, "{variables:?}");
        // No panel shows a JVM that is not selected.
        for panel in panels(&jvms).filter(|panel| panel["targets"].is_array()) {
            for (labels, _) in results(&two, panel, variables, end).iter().flatten() {
                for (variable, label) in
                    [("cluster", "cluster"), ("pod", "k8s_pod_name"), ("jvm", "jvm")]
                {
                    let wanted = variables.iter().find(|(name, _)| *name == variable);
                    let is_one = wanted.is_none_or(|(_, wanted)| labels[label] == *wanted);
                    assert!(is_one || labels[label].is_null(), "{}: {labels}", panel["title"]);
                }
            }
        }
    }
}

/// Prometheus stores native histograms without classic series if it scrapes protocol buffers.
#[test]
fn panels_of_histograms_work_with_native_histograms() {
    run_beside_others();
    let (net, dashboard) = (Net::start().unwrap(), dashboard("jvmprobed.json"));
    let totals = totals(&net);
    let address = serve(&net, &totals);
    let prometheus = Prometheus::scraping(address, &["--enable-feature=native-histograms"]);
    assert!(prometheus.query("jvmprobe_stop_duration_seconds_bucket").is_empty());
    // Each panel needs an increase between two scrapes.
    for _ in 0..30 {
        for jvm in JVMS {
            totals.lock().add(&identity(jvm), &figures(jvm.1));
        }
        thread::sleep(Duration::from_millis(200));
    }
    for (title, low, high) in [
        ("Length of stops, 99th percentile", 0.018, 3.5),
        ("Time to safepoint, mean", 0.000_049, 0.000_051),
    ] {
        let query = text(&panel(&dashboard, title)["targets"][0], "expr");
        let found = prometheus.query(&interpolate(query, &[]));
        assert_eq!(found.len(), 3, "{title}: {found:?}");
        assert!(found.iter().all(|(_, value)| (low..=high).contains(value)), "{title}: {found:?}");
    }
}

/// Returns the command in the text panel, as Grafana shows it for a time range and a selection of JVMs.
fn command(from: u64, to: u64, jvms: &str) -> String {
    let dashboard = dashboard("jvmprobed.json");
    let panel = panels(&dashboard).find(|panel| panel["type"] == "text").unwrap();
    let content = text(&panel["options"], "content");
    let line = content.lines().find(|line| line.starts_with("jvmprobed show ")).unwrap();
    let iso = |seconds: u64| {
        let at = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
        at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
    };
    line.replace("${__from:date:iso}", &iso(from))
        .replace("${__to:date:iso}", &iso(to))
        .replace("${jvm:regex}", jvms)
}

#[test]
fn command_in_the_dashboard_shows_the_selected_time_and_jvms() {
    run_beside_others();
    let dir = folder();
    let mut store = Store::open(dir.path(), Duration::from_secs(48 * 3600), 1 << 30).unwrap();
    let begin = now() - 3600;
    (0..40).for_each(|at| _ = store.put(synthetic_window(begin, at)));
    drop(store);
    let path = binary("jvmprobed");
    let run = |command: &str| {
        let command = format!("{command} --dir '{}'", dir.path().display());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &command]).env("PATH", path.parent().unwrap());
        let output = shell.output().unwrap();
        let both = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(both).unwrap())
    };
    // All JVMs; one JVM, whose name Grafana escapes for a regular expression; and two JVMs.
    for (jvms, expected) in
        [(".*", ["shop", "batch"]), ("shop", ["shop", ""]), ("(shop|batch)", ["shop", "batch"])]
    {
        let (good, shown) = run(&command(begin, begin + 600, jvms));
        assert!(good && shown.contains("shop.Main.run"), "{jvms}: {shown}");
        assert!(expected.iter().all(|name| shown.contains(name)), "{jvms}: {shown}");
    }
    let (good, shown) = run(&command(begin - 3600, begin - 3000, ".*"));
    assert!(!good || !shown.contains("shop.Main.run"), "{shown}");
    let (_, shown) = run(&command(begin, begin + 600, r"my\.shop\/1"));
    assert!(!shown.contains("regular expression") && !shown.contains("error:"), "{shown}");

    // The drop-down list has no name that could end the argument or the code block.
    let dashboard = dashboard("jvmprobed.json");
    let list = dashboard["templating"]["list"].as_array().unwrap();
    let jvm = list.iter().find(|variable| variable["name"] == "jvm").unwrap();
    assert_eq!(jvm["regex"], "/^[^'`]+$/");
    assert!(command(0, 0, "x").ends_with("--jvm '^(x)$'"));
}

#[test]
fn links_lead_to_the_profile_of_the_same_time() {
    run_beside_others();
    let dashboard = dashboard("jvmprobed.json");
    let mut links = Vec::new();
    for panel in panels(&dashboard) {
        let defaults = panel["fieldConfig"]["defaults"]["links"].as_array();
        links.extend(defaults.into_iter().flatten());
        for rule in panel["fieldConfig"]["overrides"].as_array().into_iter().flatten() {
            let properties = rule["properties"].as_array().unwrap().iter();
            links.extend(properties.flat_map(|property| property["value"].as_array().unwrap()));
        }
    }
    let mut types = BTreeSet::new();
    for link in &links {
        let (path, query) = text(link, "url").split_once('?').unwrap();
        assert_eq!(path, "/a/grafana-pyroscope-app/explore");
        let query: BTreeMap<_, _> =
            query.split('&').map(|pair| pair.split_once('=').unwrap()).collect();
        assert_eq!((query["from"], query["to"]), ("${__from}", "${__to}"));
        assert_eq!(query["var-dataSource"], "${pyroscope}");
        let service = query["var-serviceName"];
        // The name of a JVM may contain any character.
        assert!(service.ends_with(".jvm:percentencode}"), "{service}");
        types.insert(query["var-profileMetricId"]);
    }
    assert!(links.len() > 4);
    // The types of jvmprobed's profiles of CPU time and of allocation; see push/pyroscope.rs.
    let expected =
        ["memory:alloc_space:bytes:space:bytes", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"];
    assert!(types.into_iter().eq(expected));
}

/// Grafana publishes the types of a dashboard.
#[test]
fn dashboards_have_the_types_that_grafana_publishes() {
    run_beside_others();
    let program = |[first, second]: [&str; 2]| {
        format!(
            "import type {{ Dashboard }} from \"@grafana/schema\";\n\
             export const first: Dashboard = {first};\nexport const second: Dashboard = {second};\n"
        )
    };
    let texts = DASHBOARDS.map(|file| dashboard(file).to_string());
    let texts = texts.each_ref().map(String::as_str);
    let errors = type_errors(&program(texts));
    assert!(errors.is_empty(), "{errors:#?}");
    let wrong = texts.map(|text| text.replace("\"gridPos\"", "\"gridpos\""));
    assert!(!type_errors(&program(wrong.each_ref().map(String::as_str))).is_empty());
}

/// Grafana shows a panel with the ID of another one, or in the place of another one, wrongly.
#[test]
fn panels_have_distinct_ids_and_do_not_overlap() {
    run_beside_others();
    for file in DASHBOARDS {
        let dashboard = dashboard(file);
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in panels(&dashboard) {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{file}: {}", panel["title"]);
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{file}: {}", panel["title"]);
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(cells.insert((x, y)), "{file}: {}", panel["title"]);
                }
            }
        }
    }
}
