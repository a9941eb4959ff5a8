//! Metrics of jvmprobed as scrapers receive them, checked with Prometheus itself and its tools.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

use jvmprobe_tests::{
    prometheus::{Prometheus, get, promtool},
    run_beside_others,
};
use jvmprobed::{
    metrics::{
        Limits, Sets, SharedTotals,
        figures::{DaemonMetrics, Figures, Gauges, Processor, Stop, Waited},
        semconv::{
            collections::Collection,
            values::{Host, Values},
        },
        server::{self, Health},
        table,
    },
    net::Net,
    window::Identity,
};
use libjvmprobe::{
    bpf::cost::Cost,
    hotspot::{buffers::BufferPool, java_threads::ThreadState, memory_pools::MemoryPool},
};
use serde_json::Value;

/// Durations of the stops in the counters, in milliseconds.
const STOPS_MS: [u64; 6] = [1, 2, 4, 8, 40, 400];

/// Returns values for all metrics of the semantic conventions.
fn values() -> Values {
    let pool = MemoryPool {
        name: "G1 Old Gen".into(),
        is_heap: true,
        used: 60 << 20,
        committed: 80 << 20,
        initial: Some(70 << 20),
        limit: Some(512 << 20),
        used_after_gc: Some(50 << 20),
    };
    Values {
        pools: vec![pool],
        threads: [((true, ThreadState::Waiting), 12)].into(),
        classes: Some((9500, 500)),
        processors: Some(4),
        cpu_utilization: Some(0.25),
        buffers: vec![BufferPool { name: "direct", count: 3, used: 4096, capacity: 5000 }],
        descriptors: (Some(55), Some(1024)),
        host: Host { load_1m: Some(1.5), cpu_utilization: Some(0.5) },
    }
}

fn filled_counters() -> SharedTotals {
    let totals = SharedTotals::new(Limits::default());
    let identity = |pid: u32| {
        let attributes = BTreeMap::from([
            ("process.runtime.version".into(), "21.0.5+11".into()),
            ("k8s.pod.uid".into(), format!("uid-{pid}")),
        ]);
        Arc::new(Identity { pid, started_ns: 1, name: format!("shop \"{pid}\""), attributes })
    };
    let stop = |ms: u64| Stop {
        times: 1,
        op: "G1CollectForAllocation".into(),
        cause: Some("G1 Evacuation Pause".into()),
        stopped_ns: ms * 1_000_000,
        ttsp_ns: Some(50_000),
        cpu_wait_ns: Some(500_000),
        collections: 1,
        collection: Some(Collection {
            collector: "G1".into(),
            is_cycle: false,
            is_full: false,
            count: 1,
            duration_ns: ms * 900_000,
        }),
        heap_before: Some(300 << 20),
        heap_after: Some(100 << 20),
    };
    let mut locked = totals.lock();
    for pid in 1..=3 {
        let identity = identity(pid);
        locked.seen += 1;
        locked.admit(&identity);
        let mut stops: Vec<_> = STOPS_MS.into_iter().map(stop).collect();
        stops.push(Stop {
            op: "ThreadDump".into(),
            times: 1,
            stopped_ns: 500_000,
            ..Stop::default()
        });
        let processor =
            Processor { java_ns: 3_000_000_000, gc_ns: 500_000_000, ..Processor::default() };
        let gauges = Gauges {
            code_cache_used: Some(5 << 20),
            code_cache_size: Some(240 << 20),
            loaded_classes: Some(9000),
            threads: Some(42),
            cpu_ns: Some(7_250_000_000),
            heap_committed: Some(400 << 20),
            heap_max: Some(512 << 20),
            values: Some(values().into()),
        };
        let cost = vec![("allocation", 5_000_000), ("samples", 1_000_000)];
        let waits = vec![
            Waited { kind: "monitor", times: 3, ns: 4_000_000_000 },
            Waited { kind: "socket read", times: 1, ns: 500_000_000 },
        ];
        let allocated_bytes = 1 << 30;
        locked.add(&identity, &Figures { stops, processor, allocated_bytes, waits, cost, gauges });
        locked.add_probe_cost(
            "allocation",
            &Cost { pid, hits: 1000, ns: 5_000_000, ..Cost::default() },
        );
    }
    locked.own = DaemonMetrics { memory_bytes: 60 << 20, hertz: 19, ..DaemonMetrics::default() };
    locked.add_recorded("cpu", 1234);
    locked.add_lost("ring-buffer", 5);
    locked.add_abandoned("GraalVM native image");
    locked.last_reports = vec![("samples", 1_700_000_000_000_000_000)];
    locked.windows = 7;
    drop(locked);
    totals
}

/// Serves the metrics of these counters on a free port.
fn serve(net: &Net, totals: &SharedTotals, ready: &Arc<Health>) -> SocketAddr {
    let port = server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = port.local_addr().unwrap();
    let (totals, ready) = (totals.clone(), ready.clone());
    net.spawn(async move { server::serve(port, totals, ready).await.unwrap() });
    address
}

#[test]
fn prometheus_returns_the_published_values() {
    run_beside_others();
    let (net, totals) = (Net::start().unwrap(), filled_counters());
    let address = serve(&net, &totals, &Arc::default());
    for native in [true, false] {
        let features: &[&str] = if native { &["--enable-feature=native-histograms"] } else { &[] };
        let prometheus = Prometheus::scraping(address, features);
        let near = |query: &str, value: f64| {
            let got = prometheus.one(query);
            assert!((got - value).abs() < 1e-9 * value.max(1.0), "{query}: {got}, not {value}");
        };
        let ms: u64 = STOPS_MS.iter().sum();
        near("sum(jvmprobe_stopped_seconds_total)", 3.0 * (ms as f64 / 1000.0 + 0.0005));
        near(
            r#"jvmprobe_stopped_seconds_total{jvm="shop \"2\"",pid="2",cause="G1 Evacuation Pause"}"#,
            ms as f64 / 1000.0,
        );
        near("sum(jvmprobe_collections_total)", 18.0);
        near(r#"sum(jvmprobe_waits_total{kind="monitor"})"#, 9.0);
        near(r#"sum(jvmprobe_waited_seconds_total{kind="monitor"})"#, 12.0);
        near(r#"jvmprobe_waited_seconds_total{kind="socket read",pid="1"}"#, 0.5);
        near("sum(jvmprobe_gc_cpu_wait_seconds_total)", 0.009);
        near("sum(jvmprobe_allocated_bytes_total)", 3.0 * f64::from(1 << 30));
        near("max(jvmprobe_heap_used_before_bytes)", f64::from(300 << 20));
        near("min(jvmprobe_heap_used_after_bytes)", f64::from(100 << 20));
        near(r#"sum(jvmprobe_processor_seconds_total{kind="java"})"#, 9.0);
        near("avg(jvmprobe_code_cache_used_bytes / jvmprobe_code_cache_size_bytes)", 5.0 / 240.0);
        near("sum(jvmprobe_loaded_classes)", 27_000.0);
        near("max(jvmprobe_threads)", 42.0);
        near("sum(jvmprobe_cpu_seconds_total)", 3.0 * 7.25);
        near("sum(jvmprobe_heap_committed_bytes)", 3.0 * f64::from(400 << 20));
        near("sum(jvmprobe_heap_max_bytes)", 3.0 * f64::from(512 << 20));
        let pool = r#"{jvm_memory_type="heap",jvm_memory_pool_name="G1 Old Gen"}"#;
        for (name, megabytes) in [
            ("used", 60),
            ("committed", 80),
            ("init", 70),
            ("limit", 512),
            ("used_after_last_gc", 50),
        ] {
            near(&format!("avg(jvm_memory_{name}_bytes{pool})"), f64::from(megabytes << 20));
        }
        near(r#"sum(jvm_thread_count{jvm_thread_daemon="true",jvm_thread_state="waiting"})"#, 36.0);
        near("max(jvm_class_loaded_total)", 9500.0);
        near("max(jvm_class_unloaded_total)", 500.0);
        near("max(jvm_class_count)", 9000.0);
        near("max(jvm_cpu_time_seconds_total)", 7.25);
        near("max(jvm_cpu_count)", 4.0);
        near("max(jvm_cpu_recent_utilization_ratio)", 0.25);
        near(r#"max(jvm_buffer_memory_used_bytes{jvm_buffer_pool_name="direct"})"#, 4096.0);
        near("max(jvm_buffer_memory_limit_bytes)", 5000.0);
        near("max(jvm_buffer_count)", 3.0);
        near("max(jvm_system_cpu_load_1m)", 1.5);
        near("max(jvm_system_cpu_utilization_ratio)", 0.5);
        near("max(jvm_file_descriptor_count)", 55.0);
        near("max(jvm_file_descriptor_limit)", 1024.0);
        near("jvmprobed_memory_bytes", f64::from(60 << 20));
        near(r#"jvmprobed_samples_total{of="cpu"}"#, 1234.0);
        near(r#"jvmprobed_lost_total{reason="ring-buffer"}"#, 5.0);
        near(r#"jvmprobed_jvms_given_up_total{reason="GraalVM native image"}"#, 1.0);
        near("jvmprobed_jvms_seen_total", 3.0);
        near("jvmprobed_jvms", 3.0);
        let joined = "jvmprobe_threads * on(jvm, pid) group_left(k8s_pod_uid) jvmprobe_jvm_info";
        let joined = prometheus.query(joined);
        assert!(joined.iter().any(|(labels, _)| labels["k8s_pod_uid"] == "uid-3"), "{joined:?}");

        // Prometheus must report 4 ms as the median of 1, 2, 4, 8, 40 and 400 ms. A native bucket is 9 %
        // wide, so the result is accepted within 10 %.
        if native {
            let collections =
                r#"jvmprobe_stop_duration_seconds{op="G1CollectForAllocation",pid="1"}"#;
            near(&format!("histogram_count({collections})"), 6.0);
            near(&format!("histogram_sum({collections})"), ms as f64 / 1000.0);
            let median = prometheus.one(&format!("histogram_quantile(0.5, {collections})"));
            assert!((0.0036..=0.0044).contains(&median), "{median}");
            near("sum(histogram_count(jvmprobe_time_to_safepoint_seconds))", 18.0);
            let minor = r#"jvm_gc_duration_seconds{jvm_gc_name="G1 Young Generation",jvm_gc_action="end of minor GC",jvm_gc_cause="G1 Evacuation Pause",pid="1"}"#;
            near(&format!("histogram_count({minor})"), 6.0);
            near(&format!("histogram_sum({minor})"), 0.9 * ms as f64 / 1000.0);
        } else {
            let of = r#"op="G1CollectForAllocation",pid="1""#;
            near(&format!("jvmprobe_stop_duration_seconds_count{{{of}}}"), 6.0);
            for (bound, count) in [("0.001", 1.0), ("0.0025", 2.0), ("0.05", 5.0), ("+Inf", 6.0)] {
                let bucket =
                    format!("jvmprobe_stop_duration_seconds_bucket{{{of},le=\"{bound}\"}}");
                near(&bucket, count);
            }
        }
    }
}

#[test]
fn promtool_accepts_metrics_and_alert_rules() {
    run_beside_others();
    let (net, totals) = (Net::start().unwrap(), filled_counters());
    let address = serve(&net, &totals, &Arc::default());
    // As curl requests it.
    let (status, text) = get(address, "/metrics", "Accept: */*\r\n");
    assert_eq!(status, 200);
    let (good, said) = promtool(&["check", "metrics"], &text);
    // The conventions prescribe names that end in `_count`, which the check allows for histograms only.
    let is_other = |line: &&str| !line.contains("should not have \"_count\" suffix");
    assert_eq!(said.lines().filter(is_other).count(), 0, "{said}");
    assert!(said.lines().all(|line| line.starts_with("jvm_")) && !good, "{said}");
    let (good, said) = promtool(&["check", "metrics"], exported(Sets::Jvmprobe).as_bytes());
    assert!(good && said.is_empty(), "{said}");
    let (good, _) = promtool(&["check", "metrics"], b"# TYPE a counter\na 1\n");
    assert!(!good, "promtool accepts anything");

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tools/jvmprobed");
    let alerts = folder.join("deploy/prometheus/alerts.yml");
    let (good, said) = promtool(&["check", "rules", alerts.to_str().unwrap()], b"");
    assert!(good && said.contains("SUCCESS"), "{said}");
    for tests in ["alerts_test.yml", "alerts_recorded_test.yml"] {
        let tests = folder.join("deploy/prometheus").join(tests);
        let (good, said) = promtool(&["test", "rules", tests.to_str().unwrap()], b"");
        assert!(good && said.contains("SUCCESS"), "{said}");
    }
}

/// Returns our metrics' names in a query.
fn metric_names(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("jvmprobe_") || word.starts_with("jvmprobed_");
    words.filter(ours).map(str::to_owned).collect()
}

/// A dashboard or an alert that uses a metric that does not exist shows nothing, without an error.
#[test]
fn dashboard_and_alerts_use_existing_metrics() {
    run_beside_others();
    let (net, totals) = (Net::start().unwrap(), filled_counters());
    let push = {
        let folder = tempfile::tempdir().unwrap();
        let to = format!("dir={}", folder.path().join("profiles").display());
        let options = jvmprobed::push::target::Options::new(to.parse().unwrap());
        jvmprobed::push::Push::start(&net, &[options], folder.path(), Default::default()).unwrap()
    };
    totals.lock().targets = push.ledgers();
    let address = serve(&net, &totals, &Arc::default());
    let (_, text) = get(address, "/metrics", "Accept: text/plain\r\n");
    let text = String::from_utf8(text).unwrap();
    // A native histogram has only the plain name; classic buckets have suffixes.
    let is_there = |name: &String| {
        text.lines().any(|line| {
            let rest = line.strip_prefix(&**name);
            rest.is_some_and(|rest| !rest.starts_with('_') || rest.starts_with("_count"))
        })
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tools/jvmprobed");
    let mut asked = Vec::new();
    for file in ["jvmprobed.json", "jvmprobed-daemon.json"] {
        let dashboard = fs::read_to_string(folder.join("deploy/grafana").join(file)).unwrap();
        let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        assert!(panels.len() > 8);
        for panel in panels {
            for target in panel["targets"].as_array().into_iter().flatten() {
                asked.extend(metric_names(target["expr"].as_str().unwrap()));
            }
        }
    }
    let alerts = fs::read_to_string(folder.join("deploy/prometheus/alerts.yml")).unwrap();
    asked.extend(alerts.lines().filter(|line| line.contains("expr:")).flat_map(metric_names));
    assert!(asked.len() > 20, "{asked:?}");
    // No request was made yet, so there is no outcome to count.
    let later = |name: &String| name == "jvmprobed_push_requests_total";
    let missing: Vec<_> = asked.iter().filter(|name| !later(name) && !is_there(name)).collect();
    assert!(missing.is_empty(), "{missing:?}\n{text}");
}

/// Returns the metrics that a scraper gets if these sets are exported.
fn exported(sets: Sets) -> String {
    let (net, totals) = (Net::start().unwrap(), filled_counters());
    totals.lock().sets = sets;
    let (_, text) = get(serve(&net, &totals, &Arc::default()), "/metrics", "");
    String::from_utf8(text).unwrap()
}

#[test]
fn each_set_of_metrics_can_be_selected() {
    run_beside_others();
    let has = |text: &str, prefix: &str| text.lines().any(|line| line.starts_with(prefix));
    for (sets, own, conventional) in
        [(Sets::All, true, true), (Sets::Jvmprobe, true, false), (Sets::Otel, false, true)]
    {
        let text = exported(sets);
        assert_eq!(has(&text, "jvmprobe_heap_used_after_bytes{"), own, "{sets:?}");
        assert_eq!(has(&text, "jvm_"), conventional, "{sets:?}");
        assert!(has(&text, "jvmprobe_jvm_info{") && has(&text, "jvmprobed_memory_bytes "));
        // Each metric of the conventions has a value in the counters of this test.
        for metric in table::ALL.iter().filter(|metric| conventional && metric.otlp.is_some()) {
            assert!(has(&text, metric.name), "{}", metric.name);
        }
    }
}

#[test]
fn server_reports_health_and_survives_bad_requests() {
    run_beside_others();
    let (net, totals) = (Net::start().unwrap(), filled_counters());
    let ready = Arc::new(Health::default());
    let address = serve(&net, &totals, &ready);
    assert_eq!(get(address, "/-/healthy", "").0, 200);
    assert_eq!(get(address, "/-/ready", "").0, 503);
    ready.set_ready(true);
    assert_eq!(get(address, "/-/ready", "").0, 200);
    assert_eq!(get(address, "/", "").0, 404);
    let (_, zipped) = get(address, "/metrics", "Accept-Encoding: gzip\r\n");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&zipped[..]).read_to_string(&mut text).unwrap();
    assert!(text.starts_with("# HELP "), "{text}");
    let (_, open_metrics) = get(address, "/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(open_metrics.ends_with(b"# EOF\n"));

    // Idle connections do not block other clients.
    let silent: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(get(address, "/metrics", "").0, 200);
    drop(silent);
    // Bytes that are not HTTP, and a request head without an end.
    for bytes in [&b"\x16\x03\x01\0\0"[..], &[b'x'; 100_000]] {
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(get(address, "/metrics", "").0, 200);

    let error = server::bind(address).unwrap_err().to_string();
    assert!(error.contains("is in use") && error.contains("--listen"), "{error}");
    assert_eq!(error.lines().count(), 1);
    let error = server::bind("192.0.2.1:9464".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("not an address of this host"), "{error}");
}

#[test]
fn metrics_are_limited_to_five_hundred_jvms() {
    run_beside_others();
    let totals = SharedTotals::new(Limits::default());
    for pid in 1..=2000 {
        let identity =
            Arc::new(Identity { pid, name: format!("jvm-{pid}"), ..Identity::default() });
        totals.lock().admit(&identity);
        for op in 0..50 {
            let op = format!("Operation{op}").into();
            let stop = Stop { op, stopped_ns: 1, collections: 1, ..Stop::default() };
            totals.lock().add(&identity, &Figures { stops: vec![stop], ..Figures::default() });
        }
    }
    let net = Net::start().unwrap();
    let address = serve(&net, &totals, &Arc::default());
    let (_, text) = get(address, "/metrics", "Accept: text/plain\r\n");
    let text = String::from_utf8(text).unwrap();
    let series =
        |name: &str| text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
    assert_eq!(series("jvmprobe_allocated_bytes_total"), 501);
    assert_eq!(series("jvmprobe_collections_total"), 501 * 17);
    let sum: f64 = text
        .lines()
        .filter(|line| line.starts_with("jvmprobe_collections_total{"))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert_eq!(sum, 100_000.0);
}
