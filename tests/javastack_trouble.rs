//! javastack dumps JVMs in containers and JVMs in trouble.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use jvmprobe_tests::{
    container::Container,
    load::Load,
    run_beside_others,
    runtimes::named,
    tool::{self, Output},
};
use serde_json::Value;

fn dump(pid: u32, more: &[&str]) -> Output {
    let pid = pid.to_string();
    tool::run("javastack", &[&["-p", &pid], more].concat())
}

/// Returns the threads of a JSON dump by their names.
fn dumped(output: &Output) -> BTreeMap<String, Value> {
    let dump = &output.json()[0]["threadDump"];
    let threads = dump["threadContainers"][0]["threads"].as_array().unwrap();
    let named = |thread: &Value| (thread["name"].as_str().unwrap().to_owned(), thread.clone());
    threads.iter().map(named).collect()
}

/// Checks the threads that `LockLoad` starts for the command `block`.
fn check_blocked(threads: &BTreeMap<String, Value>) {
    let frame = |name: &str, at: usize| threads[name]["stack"][at].as_str().unwrap_or_default();
    for name in ["enterer", "enterer-2"] {
        assert_eq!(threads[name]["state"], "BLOCKED (on object monitor)", "{:?}", threads[name]);
        assert_eq!(threads[name]["blocked_on"]["owner"], "\"holder\"");
        assert!(frame(name, 0).starts_with("LockLoad.act("), "{:?}", threads[name]);
    }
    assert_eq!(threads["locker"]["blocked_on"]["owner"], "\"holder\"");
    assert_eq!(threads["holder"]["state"], "TIMED_WAITING (sleeping)");
    let held = |name: &str| -> usize {
        let at_depths = threads[name]["monitorsOwned"].as_array().unwrap().iter();
        let locks = at_depths.flat_map(|at| at["locks"].as_array().unwrap());
        // A monitor that a thread has entered twice is listed twice, unless the compiler has removed the inner entry.
        locks.map(Value::to_string).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(held("holder"), 1, "{:?}", threads["holder"]);
    assert_eq!(held("compiled-holder"), 3, "{:?}", threads["compiled-holder"]);
    assert!(frame("spinner", 0).starts_with("LockLoad.act("), "{:?}", threads["spinner"]);
}

/// The thread IDs in the JVM's data are those of the container's PID namespace. The native thread IDs that are printed
/// are these, too, as in jstack's output in the container.
#[test]
fn jvm_in_a_container_is_dumped_like_one_outside() {
    run_beside_others();
    for name in ["temurin-11", "temurin-25"] {
        let mut container = Container::start(named(name), &["-XX:+UseG1GC"], "LockLoad");
        container.ask("block");
        let output = dump(container.pid(), &["-j"]);
        assert!(output.status.success(), "{name}: {output:?}");
        let threads = dumped(&output);
        check_blocked(&threads);
        // The JVM has process ID 1 in its container.
        let nid = threads["holder"]["nid"].as_u64().unwrap();
        let own = format!("/proc/{}/root/proc/1/task/{nid}/comm", container.pid());
        assert_eq!(std::fs::read_to_string(own).unwrap().trim(), "holder", "{name}");
        let text = dump(container.pid(), &["-m"]);
        assert!(text.stdout.contains("JavaThread::thread_main_inner"), "{name}: {text:?}");
    }
}

#[test]
fn jvm_without_metaspace_is_dumped() {
    run_beside_others();
    for name in ["zulu-8", "temurin-17", "temurin-25"] {
        let flags = "-XX:MaxMetaspaceSize=16m";
        let mut load = Load::start_program(named(name), flags, "LockLoad").in_background();
        load.ask("block");
        load.ask("metaspace");
        let output = dump(load.pid(), &["-j"]);
        assert!(output.status.success(), "{name}: {output:?}");
        check_blocked(&dumped(&output));
        load.kill();
    }
}
