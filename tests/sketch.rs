//! The example tool in ARCHITECTURE.md works: it reports every class that the JVM's own log names,
//! in order, with the stack that loaded it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use jvmprobe_tests::{load::Load, run_beside_others, runtimes::named, tool::Tool};

#[test]
fn classload_shows_every_class_in_the_jvm_log() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("classes.log");
    let flags = format!("-Xlog:class+load:file={}:none", log.display());
    let mut load = Load::start_program(named("temurin-21"), &flags, "ChurnLoad");
    let pid = load.pid().to_string();
    let tool = Tool::start("classload", &["-p", &pid, "-j"]);
    load.run(1.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{output:?}");
    load.quit();
    let churn = |class: &str| class.starts_with("Churn") && class != "ChurnLoad";
    let log = std::fs::read_to_string(&log).unwrap();
    let logged = log.lines().map(|line| line.split(' ').next().unwrap());
    let logged: Vec<_> = logged.filter(|class| churn(class)).collect();
    let records = output.json();
    let name = |record: &serde_json::Value| record["class"].as_str().unwrap().to_owned();
    let shown: Vec<_> = records.iter().map(name).filter(|class| churn(class)).collect();
    assert!(shown.len() > 10, "{shown:?}");
    assert_eq!(shown, logged);
    for record in records.iter().filter(|record| churn(&name(record))) {
        let stack: Vec<_> = record["stack"].as_array().unwrap().iter().collect();
        let has = |method: &str| stack.iter().any(|frame| frame["method"] == method);
        assert!(has("Copy.make") && has("ChurnLoad.main"), "{record}");
        assert_eq!(record["thread"], "java", "the main thread: {record}");
    }
}
