//! Containers of one image run one libjvm.so, which each sees on an overlay of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{os::unix::fs::PermissionsExt, path::Path};

use jvmprobe_tests::{
    allocated,
    load::Load,
    need_root,
    runtimes::{Runtime, named},
    tool::Tool,
};
use serde_json::Value;

/// A runtime that a process sees on an overlay, which goes with it.
fn on_an_overlay(runtime: &Runtime, folder: &Path) -> Runtime {
    let home = runtime.java.parent().unwrap().parent().unwrap();
    let java = folder.join("java-on-an-overlay");
    let script = format!(
        "#!/bin/sh\n\
         exec unshare --mount sh -c 'mount -t tmpfs upper /mnt && mkdir /mnt/u /mnt/w /mnt/m &&\n\
         mount -t overlay image -o lowerdir={},upperdir=/mnt/u,workdir=/mnt/w /mnt/m &&\n\
         exec /mnt/m/bin/java \"$@\"' sh \"$@\"\n",
        home.display()
    );
    std::fs::write(&java, script).unwrap();
    std::fs::set_permissions(&java, PermissionsExt::from_mode(0o755)).unwrap();
    Runtime { java, ..runtime.clone() }
}

fn of<'a>(records: &'a [Value], pid: u32, kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|r| r["pid"] == pid && r["type"] == kind).collect()
}

/// What is attached to is the file below: once, however many see it.
#[test]
fn what_containers_of_one_image_do_is_counted_once() {
    need_root();
    let folder = tempfile::tempdir().unwrap();
    let runtime = on_an_overlay(named("temurin-21"), folder.path());
    let flags = "-XX:+UseSerialGC -Xmx64m";
    let mut loads = [(); 3].map(|()| Load::start_program(&runtime, flags, "AllocLoad"));
    loads.iter_mut().for_each(|load| drop(load.ask("go 1 50 2")));
    let allocations = Tool::start("javaobjnew", &["-a", "-j"]);
    let pauses = Tool::start("javagc", &["-a", "-j"]);
    let logged = |load: &Load| {
        let is_pause = |line: &&str| line.contains(" Pause ") && line.ends_with("ms");
        load.log().lines().filter(is_pause).count()
    };
    let before = loads.each_ref().map(logged);
    let truths = loads.each_mut().map(|load| allocated::parse(&load.ask("go 2 100 2")));
    let after = loads.each_ref().map(logged);
    let [allocations, pauses] = [allocations, pauses].map(|tool| tool.interrupt().json());
    for (i, load) in loads.iter().enumerate() {
        let told = of(&allocations, load.pid(), "summary");
        let off = told[0]["bytes"].as_f64().unwrap() / truths[i].total as f64 - 1.0;
        assert!(off.abs() <= 0.05, "{off}: {told:?}");
        assert!(after[i] > before[i], "{after:?}");
        assert_eq!(of(&pauses, load.pid(), "pause").len(), after[i] - before[i]);
    }
}
