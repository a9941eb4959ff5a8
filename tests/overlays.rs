//! Containers of one image run one libjvm.so, which each sees on an overlay of its own.
#![allow(clippy::print_stdout, reason = "figures are printed")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use jvmprobe_tests::{
    allocated,
    bpf::count_maps,
    folded,
    load::Load,
    run_alone, run_beside_others,
    runtimes::{Runtime, named},
    tool::{Tool, binary},
};
use serde_json::Value;

/// Returns a runtime that its process sees on an overlay, which is unmounted with the process.
fn on_an_overlay(runtime: &Runtime, folder: &Path) -> Runtime {
    layered(runtime, &folder.join("java-on-an-overlay"), "", home(runtime).to_str().unwrap())
}

fn home(runtime: &Runtime) -> &Path {
    runtime.java.parent().unwrap().parent().unwrap()
}

/// Writes a script that runs `java` of an overlay of these layers, after the command `mount`.
fn layered(runtime: &Runtime, java: &Path, mount: &str, layers: &str) -> Runtime {
    let script = format!(
        "#!/bin/sh\n\
         exec unshare --mount sh -ec 'mount -t tmpfs upper /mnt; mkdir /mnt/u /mnt/w /mnt/m /mnt/i\n\
         {mount}\n\
         mount -t overlay image -o lowerdir={layers},upperdir=/mnt/u,workdir=/mnt/w /mnt/m\n\
         exec /mnt/m/bin/java \"$@\"' sh \"$@\"\n",
    );
    std::fs::write(java, script).unwrap();
    std::fs::set_permissions(java, PermissionsExt::from_mode(0o755)).unwrap();
    Runtime { java: java.to_owned(), ..runtime.clone() }
}

/// Returns two runtimes whose libjvm.so is in copies of one disk image. Each process mounts its copy itself, as Apptainer
/// does. The two files have the same inode number, generation, size and time, but they are different inodes.
fn in_copies_of_an_image(runtime: &Runtime, folder: &Path) -> [Runtime; 2] {
    let content = folder.join("content");
    std::fs::create_dir_all(content.join("lib/server")).unwrap();
    std::fs::copy(runtime.libjvm(), content.join("lib/server/libjvm.so")).unwrap();
    let images = ["image-a", "image-b"].map(|name| folder.join(name));
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-d"]).arg(content).arg(&images[0]).arg("64M").stdout(Stdio::null());
    assert!(mkfs.status().expect("run mkfs.ext4").success());
    std::fs::copy(&images[0], &images[1]).unwrap();
    images.map(|image| {
        let mount = format!("mount -o loop,ro {} /mnt/i", image.display());
        let layers = format!("/mnt/i:{}", home(runtime).display());
        layered(runtime, &image.with_extension("java"), &mount, &layers)
    })
}

fn records_of<'a>(records: &'a [Value], pid: u32, kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|r| r["pid"] == pid && r["type"] == kind).collect()
}

/// Probes are attached to the file of the lower layer, once for all containers that use it, and for a JVM outside of
/// containers that runs it directly.
#[test]
fn events_in_containers_of_one_image_are_counted_once() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let contained = on_an_overlay(named("temurin-21"), folder.path());
    check_events_are_counted_once(&[&contained, named("temurin-21"), &contained]);
}

/// Probes are attached to each copy of the file.
#[test]
fn events_in_copies_of_one_image_are_counted_once() {
    run_beside_others();
    if !Path::new("/dev/loop-control").exists() {
        println!("SKIPPED: no loop devices");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let copies = in_copies_of_an_image(named("temurin-21"), folder.path());
    check_events_are_counted_once(&copies.each_ref());
}

/// Compares allocated bytes and pauses of JVMs with their own counters and logs.
fn check_events_are_counted_once(runtimes: &[&Runtime]) {
    let flags = "-XX:+UseSerialGC -Xmx64m";
    let start = |runtime: &&Runtime| Load::start_program(runtime, flags, "AllocLoad");
    let mut loads: Vec<_> = runtimes.iter().map(start).collect();
    loads.iter_mut().for_each(|load| drop(load.ask("go 1 50 2")));
    let allocations = Tool::start("javaobjnew", &["-a", "-j"]);
    let pauses = Tool::start("javagc", &["-a", "-j"]);
    let logged = |load: &Load| {
        let is_pause = |line: &&str| line.contains(" Pause ") && line.ends_with("ms");
        load.log().lines().filter(is_pause).count()
    };
    let before: Vec<_> = loads.iter().map(logged).collect();
    let ask = |load: &mut Load| allocated::parse(&load.ask("go 2 100 2"));
    let truths: Vec<_> = loads.iter_mut().map(ask).collect();
    let after: Vec<_> = loads.iter().map(logged).collect();
    let [allocations, pauses] = [allocations, pauses].map(|tool| tool.interrupt().json());
    for (i, load) in loads.iter().enumerate() {
        let told = records_of(&allocations, load.pid(), "summary");
        let off = told[0]["bytes"].as_f64().unwrap() / truths[i].total as f64 - 1.0;
        assert!(off.abs() <= 0.05, "{i}: {off}: {told:?}");
        assert!(after[i] > before[i], "{after:?}");
        assert_eq!(records_of(&pauses, load.pid(), "pause").len(), after[i] - before[i], "{i}");
    }
}

/// Stacks are complete in each of many containers of one image, and the data of a file is stored
/// once.
#[test]
fn containers_of_one_image_share_unwind_tables_and_symbols() {
    run_alone();
    compare_with_one_container(20);
}

#[test]
#[ignore = "long: make test-all"]
fn fifty_containers_of_one_image_share_unwind_tables_and_symbols() {
    run_alone();
    compare_with_one_container(50);
}

/// Profiles one container and then `count` containers, and compares BPF maps and memory.
fn compare_with_one_container(count: usize) {
    binary("javaprof");
    let (one, maps_of_one) = profile_of_containers(1);
    let (many, maps) = profile_of_containers(count);
    println!("1 container: {one} kB, {maps_of_one} maps; {count}: {many} kB, {maps} maps");
    // At most three maps are expected per process: one for its mappings, and perhaps some for a
    // file of its own. A JVM maps about 15 files, whose maps are shared.
    assert!(maps < maps_of_one + 3 * count, "{maps} maps, {maps_of_one} beside one container");
    let allowed = one * 12 / 10 + 300 * (count as u64 - 1);
    assert!(many <= allowed, "{many} kB beside {count} containers, {one} kB beside one");
}

/// Profiles `count` JVMs, each with its libraries on an overlay of its own, and checks their stacks. Returns the
/// tool's own memory in the end, in kB, and how many BPF maps it has made.
fn profile_of_containers(count: usize) -> (u64, usize) {
    let folder = tempfile::tempdir().unwrap();
    let runtime = on_an_overlay(named("temurin-21"), folder.path());
    let flags = "-XX:+UseSerialGC -Xmx32m -Xss512k -XX:TieredStopAtLevel=1";
    let mut loads: Vec<_> =
        (0..count).map(|_| Load::start_program(&runtime, flags, "CpuLoad")).collect();
    let file = folder.path().join("stacks.folded").display().to_string();
    let before = count_maps();
    let pids: Vec<_> = loads.iter().map(|load| load.pid().to_string()).collect();
    let named = pids.iter().flat_map(|pid| ["-p", pid]);
    let options = ["-F", "499", "-j", "-o", &file].into_iter().chain(named);
    let profile = Tool::start("javaprof", &options.collect::<Vec<_>>());
    loads.iter_mut().for_each(|load| load.go(3.0));
    loads.iter_mut().for_each(|load| drop(load.done()));
    let (memory, maps) = (memory_of(profile.pid()), count_maps().saturating_sub(before));
    let records = profile.interrupt().json();
    let summary = records.last().unwrap();
    let share = summary["complete"].as_f64().unwrap();
    assert!(share > 0.99, "{count} containers: {share} of the stacks are complete: {summary}");
    let stacks = std::fs::read_to_string(file).unwrap();
    let lines = folded::parse(&stacks);
    let native =
        lines.iter().filter(|line| line.has("JavaThread::run") || line.has("start_thread"));
    assert!(native.count() > 0, "no native frames have names");
    (memory, maps)
}

/// Returns the private memory of a process, in kB.
fn memory_of(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
