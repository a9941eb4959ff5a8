//! Records jvmprobed's metrics of a healthy JVM and of one JVM with each kind of problem, for each collector.
//! Writes them as a promtool test of the alerts:
//! `tools/jvmprobed/deploy/prometheus/alerts_recorded_test.yml`.
//!
//! Takes 25 minutes: `cargo test -p jvmprobe-tests --test record_alerts -- --ignored --nocapture`.
#![allow(clippy::print_stdout, reason = "what is recorded is printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::TcpListener,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{load::Load, run_alone, runtimes::named, scrape, tool::Tool};

/// Name of a collector, a runtime that has it and its options.
const COLLECTORS: [(&str, &str, &str); 8] = [
    ("serial", "temurin-17", "-XX:+UseSerialGC"),
    ("parallel", "temurin-17", "-XX:+UseParallelGC -XX:-UseGCOverheadLimit"),
    ("cms", "temurin-11", "-XX:+UseConcMarkSweepGC"),
    ("g1", "temurin-21", "-XX:+UseG1GC"),
    ("shenandoah", "temurin-17", "-XX:+UseShenandoahGC"),
    ("zgc", "temurin-17", "-XX:+UseZGC"),
    ("generational-zgc", "temurin-21", "-XX:+UseZGC -XX:+ZGenerational"),
    (
        "generational-shenandoah",
        "temurin-25",
        "-XX:+UseShenandoahGC -XX:ShenandoahGCMode=generational",
    ),
];

/// A kind of JVM: its name, options, program, and the arguments after "go SECONDS".
struct Kind {
    name: &'static str,
    options: &'static str,
    program: &'static str,
    work: &'static str,
}

/// Kinds of JVMs. The arguments of FillLoad are the share of the heap that stays in use, the megabytes
/// allocated per second, and the seconds for which one thread delays each safepoint.
const KINDS: [Kind; 4] = [
    Kind { name: "healthy", options: "", program: "FillLoad", work: "0.3 20" },
    Kind { name: "full", options: "", program: "FillLoad", work: "0.97 4" },
    Kind {
        name: "held",
        options: "-XX:-UseCountedLoopSafepoints",
        program: "FillLoad",
        work: "0.3 4 1.6",
    },
    Kind {
        name: "code",
        options: "-XX:ReservedCodeCacheSize=8m -XX:-UseCodeCacheFlushing \
                  -XX:CompileThresholdScaling=0.05 -Xlog:disable -XX:+DisplayVMOutputToStderr",
        program: CODE_PROGRAM,
        work: "",
    },
];

/// Program with more compiled methods than fit into its code cache. It runs for at most 2 s per scrape.
const CODE_PROGRAM: &str = "ManyLoad";

/// Alerts, each with the kind of JVM for which it must fire, and the kinds for which it must not fire. For
/// the remaining kinds, it may fire, because a full heap makes some collectors stop the JVM for a long time.
const ALERTS: [(&str, &str, &str); 5] = [
    ("JvmHeapStaysFull", "full", "healthy|held|code"),
    ("JvmStandsStill", "held", "healthy|code"),
    ("JvmLongStop", "held", "healthy|code"),
    ("JvmSlowToSafepoint", "held", "healthy|code"),
    ("JvmCodeCacheFull", "code", "healthy|held|full"),
];

const SCRAPE: Duration = Duration::from_secs(30);
const SCRAPES: usize = 45;
/// Number of scrapes until code caches are full.
const SCRAPES_UNTIL_FULL: usize = 8;
/// Minute at which the alerts are compared.
const EVALUATION_MINUTE: usize = 20;

/// Metrics that the tested rules read.
const SERIES: [&str; 10] = [
    "jvmprobe_stopped_seconds_total",
    "jvmprobe_stop_duration_seconds_count",
    "jvmprobe_stop_duration_seconds_bucket",
    "jvmprobe_time_to_safepoint_seconds_sum",
    "jvmprobe_time_to_safepoint_seconds_count",
    "jvmprobe_heap_used_after_bytes",
    "jvmprobe_heap_max_bytes",
    "jvmprobe_collections_total",
    "jvmprobe_code_cache_used_bytes",
    "jvmprobe_code_cache_size_bytes",
];

/// Values of each series, one per scrape; `None` if it was absent.
type Recorded = BTreeMap<String, Vec<Option<f64>>>;

#[test]
#[ignore = "records for 25 minutes: by hand"]
fn write_promtool_test_from_real_jvms() {
    run_alone();
    let mut loads = Vec::new();
    for (collector, runtime, collection) in COLLECTORS {
        for kind in &KINDS {
            let name = format!("{collector}-{}", kind.name);
            let options = format!("{collection} -Xmx100m -Djvmprobe.name={name} {}", kind.options);
            let mut load = Load::start_program(named(runtime), &options, kind.program);
            if kind.program != CODE_PROGRAM {
                let seconds = (SCRAPE * (SCRAPES as u32 + 3)).as_secs();
                load.send(&format!("go {seconds} {}", kind.work));
            }
            // Delays the next load, so that not all loads compute at the same time.
            thread::sleep(Duration::from_millis(500));
            loads.push((name, load));
        }
    }
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let daemon =
        Tool::start("jvmprobed", &["--config", "/dev/null", "--listen", &address, "--dir", &store]);

    let mut recorded = Recorded::new();
    let begin = Instant::now();
    for i in 0..SCRAPES {
        for (_, load) in loads.iter_mut().filter(|(name, _)| name.ends_with("-code")) {
            load.run(if i < SCRAPES_UNTIL_FULL { 2.0 } else { 0.5 });
        }
        thread::sleep((SCRAPE * (i as u32 + 1)).saturating_sub(begin.elapsed()));
        add_scrape(&mut recorded, &scrape::get(&address), i, &loads);
        println!("{i} of {SCRAPES}: {} series", recorded.len());
    }
    drop(daemon);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let file = folder.join("tools/jvmprobed/deploy/prometheus/alerts_recorded_test.yml");
    std::fs::write(file, promtool_test(&recorded)).unwrap();
}

/// Records the loads' series of a scrape, with the load's name in place of its identity.
fn add_scrape(recorded: &mut Recorded, metrics: &str, scrape: usize, loads: &[(String, Load)]) {
    for line in metrics.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let Some((name, labels)) = series.split_once('{') else { continue };
        let of = |(_, load): &&(String, Load)| labels.contains(&format!("pid=\"{}\"", load.pid()));
        let Some((load, _)) = loads.iter().find(of).filter(|_| SERIES.contains(&name)) else {
            continue;
        };
        // The rules read one bucket of a histogram only.
        if name.ends_with("_bucket") && !labels.contains("le=\"1.0\"") {
            continue;
        }
        let kept = |label: &&str| ["op", "cause", "le"].contains(&label.split('=').next().unwrap());
        let labels = labels.trim_end_matches('}').split(',').filter(kept);
        let mut series = format!("{name}{{instance=\"n\",jvm=\"{load}\",pid=\"1\"");
        for label in labels {
            write!(series, ",{label}").unwrap();
        }
        series.push('}');
        let values = recorded.entry(series).or_insert_with(|| vec![None; SCRAPES]);
        let value: f64 = value.parse().unwrap();
        values[scrape] = Some(values[scrape].unwrap_or(0.0) + value);
    }
}

fn promtool_test(recorded: &Recorded) -> String {
    let mut text = String::from(
        "# Metrics of real JVMs, recorded by tests/record_alerts.rs: promtool test rules alerts_recorded_test.yml\n\
         rule_files: [alerts.yml]\n\
         evaluation_interval: 30s\n\
         tests:\n\
         \x20 - interval: 30s\n\
         \x20   input_series:\n",
    );
    for (series, values) in recorded {
        writeln!(text, "      - series: '{series}'\n        values: {:?}", promtool_values(values))
            .unwrap();
    }
    text.push_str("    promql_expr_test:\n");
    for (alert, sick, others) in ALERTS {
        let firing = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"");
        let expected: Vec<_> = COLLECTORS
            .map(|(name, ..)| format!("{{labels: '{{jvm=\"{name}-{sick}\"}}', value: 1}}"))
            .into();
        writeln!(
            text,
            "      - expr: 'count by (jvm) ({firing},jvm=~\".*-{sick}\"}}) > bool 0'\n        eval_time: {EVALUATION_MINUTE}m\n        \
             exp_samples: [{}]\n      \
             - expr: '{firing},jvm=~\".*-({others})\"}}'\n        eval_time: {EVALUATION_MINUTE}m\n        exp_samples: []",
            expected.join(", ")
        )
        .unwrap();
    }
    text
}

/// Formats values as promtool reads them: equal consecutive values as one with a repeat count.
fn promtool_values(values: &[Option<f64>]) -> String {
    let promtool_values = values.chunk_by(PartialEq::eq).map(|equal| {
        let value = equal[0].map_or("_".into(), |value| value.to_string());
        if equal.len() == 1 { value } else { format!("{value}x{}", equal.len() - 1) }
    });
    promtool_values.collect::<Vec<_>>().join(" ")
}
