//! `javastack --core` reads from a core file what it reads from the JVM.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, File, OpenOptions, Permissions},
    mem,
    os::unix::{
        fs::{FileExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use jvmprobe_tests::{
    load::{Load, VIRTUAL},
    run_beside_others,
    runtimes::{Runtime, named, of_unstable},
    tool::{self, Output, assert_refused},
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, setrlimit};
use serde_json::Value;
use tempfile::TempDir;

/// The exit status for a deadlock.
const DEADLOCK: i32 = 3;

/// A core file of a JVM, in a folder of its own, and a dump of the running JVM. The dump was made just before
/// the core file was written.
struct Core {
    path: PathBuf,
    before: Value,
    folder: TempDir,
}

impl Core {
    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// Starts a program with the folder as its working directory, in which the kernel writes the core file.
fn start_program(runtime: &Runtime, flags: &str, program: &str, folder: &TempDir) -> Load {
    let mut command = runtime.command();
    command.args(flags.split_ascii_whitespace()).current_dir(folder.path());
    // These settings reduce the reserved address space of the JVM, because gdb writes reserved address space
    // into the core file as zeros.
    command.env("MALLOC_ARENA_MAX", "1").arg("-XX:ReservedCodeCacheSize=16m");
    let limit = Rlimit { current: None, maximum: None };
    // SAFETY: setrlimit(2) is async-signal-safe.
    unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Core, limit)?)) };
    Load::spawn_program(command, program, runtime.major).in_background()
}

fn start(runtime: &Runtime, flags: &str, folder: &TempDir) -> Load {
    let mut load = start_program(runtime, flags, "LockLoad", folder);
    load.ask("block");
    load
}

/// Starts virtual threads in each state.
fn start_virtual(runtime: &Runtime, flags: &str, folder: &TempDir) -> Load {
    let mut load = start_program(runtime, &format!("{VIRTUAL} {flags}"), "VirtualLoad", folder);
    load.ask("start");
    load
}

/// Returns a dump of a program whose main thread has finished its last answer and waits for a command. The dump equals
/// the one before it, so that no thread is still on the way to its state.
fn dump_of_idle(load: &Load) -> Value {
    let is_idle = |dump: &Value| {
        let threads = dump["threadContainers"][0]["threads"].as_array().unwrap();
        let main = threads.iter().find(|thread| thread["name"] == "main").unwrap();
        main["stack"][0].as_str().is_some_and(|frame| frame.contains("FileInputStream.readBytes"))
    };
    // A thread that waits for a processor may have no stack in a dump of the running JVM.
    let has_stacks = |output: &Output| {
        let dump = &output.json()[0]["threadDump"];
        let threads = dump["threadContainers"][0]["threads"].as_array().unwrap();
        let mut spinners = threads.iter().filter(|thread| thread["name"] == "spinner");
        spinners.all(|thread| thread["stack"][0].is_string())
    };
    let outputs = (0..100).map(|_| dump(&["-p", &load.pid().to_string()]));
    let mut dumps = outputs.filter(has_stacks).map(|output| json(&output)).filter(is_idle);
    let mut before = dumps.next().expect("the main thread reads a command");
    dumps
        .find(|dump| mem::replace(&mut before, dump.clone()) == *dump)
        .expect("all threads are idle")
}

/// Dumps a JVM and ends it by a signal. Returns the core file that the kernel writes. If the core_pattern of this
/// machine sends core files elsewhere, gdb writes the core file.
fn crash(mut load: Load, signal: Signal, folder: TempDir) -> Core {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.contains(['|', '/']) {
        return gcore(load, folder);
    }
    let before = dump_of_idle(&load);
    kill_process(Pid::from_raw(load.pid().cast_signed()).unwrap(), signal).unwrap();
    load.wait();
    let found = fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
    // The crash handler of the JVM writes hs_err_pidPID.log there, too.
    let mut cores = found.filter(|path| path.extension().is_none_or(|ending| ending != "log"));
    let path = cores.next().unwrap_or_else(|| panic!("no core file by core_pattern {pattern}"));
    Core { path, before, folder }
}

/// Dumps a JVM, writes its core file with gdb, and kills it.
fn gcore(mut load: Load, folder: TempDir) -> Core {
    let pid = load.pid().to_string();
    let before = dump_of_idle(&load);
    let prefix = folder.path().join("gcore");
    let output = Command::new("gcore").arg("-o").arg(&prefix).arg(&pid).output();
    let output = output.expect("gcore (tests/setup installs gdb)");
    assert!(output.status.success(), "{output:?}");
    load.kill();
    Core { path: folder.path().join(format!("gcore.{pid}")), before, folder }
}

fn crashed(runtime: &Runtime, flags: &str, signal: Signal) -> Core {
    let folder = tempfile::tempdir().unwrap();
    crash(start(runtime, flags, &folder), signal, folder)
}

fn dump(args: &[&str]) -> Output {
    tool::run("javastack", &[args, &["-j"]].concat())
}

/// Returns a dump in a form that can be compared. It lacks the data that a core file does not contain. It
/// also lacks the data that may change after the dump of the JVM, before its core file is written: the
/// innermost lines of the thread that runs, and the compiler threads.
fn json(output: &Output) -> Value {
    assert!(matches!(output.status.code(), Some(0 | DEADLOCK)), "{output:?}");
    let mut dump = output.json().remove(0)["threadDump"].take();
    dump["time"] = Value::Null;
    dump.as_object_mut().unwrap().remove("signal");
    for container in dump["threadContainers"].as_array_mut().unwrap() {
        container["threadCount"] = Value::Null;
        let threads = container["threads"].as_array_mut().unwrap();
        threads.retain(|thread| !thread["name"].as_str().unwrap().contains("CompilerThread"));
        for thread in threads {
            for field in ["cpu_ns", "blocking_call", "activity"] {
                thread[field] = Value::Null;
            }
            if thread["name"] == "spinner" && thread["virtual"] == true {
                // The compiler may have inlined the innermost methods into their callers.
                let stack = thread["stack"].as_array_mut().unwrap();
                stack.drain(..stack.len() - 3);
            } else if thread["name"] == "spinner" {
                let innermost = thread["stack"][0].as_str().unwrap();
                assert!(innermost.starts_with("LockLoad.act("), "{thread}");
                thread["stack"][0] = "LockLoad.act".into();
            }
        }
    }
    dump
}

/// Asserts that a core file has the same dump as the JVM had: threads, states, locks, owners, frames and deadlocks.
fn check(name: &str, core: &Core, more: &[&str]) {
    let output = dump(&[&["--core", core.path()], more].concat());
    assert_eq!(output.stderr, "", "{name}");
    assert_eq!(json(&output), core.before, "{name}");
    let has_deadlock = core.before["deadlocks"] != Value::Array(Vec::new());
    assert_eq!(output.status.code(), Some(if has_deadlock { DEADLOCK } else { 0 }), "{name}");
    let threads = core.before["threadContainers"][0]["threads"].as_array().unwrap();
    assert!(threads.len() > 12, "{name}: {threads:?}");
}

#[test]
fn core_file_of_each_jdk_has_the_dump_of_the_jvm() {
    run_beside_others();
    for name in ["zulu-8", "temurin-11", "temurin-17", "temurin-21", "temurin-25", "musl-17"] {
        check(name, &crashed(named(name), "", Signal::ABORT), &[]);
    }
    for runtime in ["sid-8", "sid-26", "sid-27", "sid-28"].into_iter().filter_map(of_unstable) {
        check(&runtime.name, &crashed(runtime, "", Signal::ABORT), &[]);
    }
}

#[test]
fn core_file_of_each_collector_has_the_dump_of_the_jvm() {
    run_beside_others();
    for flags in ["-XX:+UseSerialGC", "-XX:+UseShenandoahGC", "-XX:+UseZGC", "-Xint"] {
        check(flags, &crashed(named("temurin-21"), flags, Signal::ABORT), &[]);
    }
    let flags = "-XX:+UseZGC -XX:+ZGenerational";
    check(flags, &crashed(named("temurin-21"), flags, Signal::ABORT), &[]);
    let flags = "-XX:+UseCompactObjectHeaders";
    check(flags, &crashed(named("temurin-25"), flags, Signal::ABORT), &[]);
}

/// The JVM handles SIGSEGV: it writes a log and aborts.
#[test]
fn core_file_after_the_crash_handler_has_the_dump_of_the_jvm() {
    run_beside_others();
    let core = crashed(named("temurin-25"), "", Signal::SEGV);
    check("SIGSEGV", &core, &[]);
    let output = dump(&["--core", core.path()]);
    let signal = &output.json()[0]["threadDump"]["signal"];
    // The handler calls abort(3) in the thread that received the signal.
    assert_eq!(signal["number"], 6, "{signal}");
    let text = tool::run("javastack", &["--core", core.path()]).stdout;
    let nid = format!("nid={:#x}", signal["nid"].as_u64().unwrap());
    let first = text.lines().next().unwrap();
    assert!(first.contains(" was ended by SIGABRT in ") && first.ends_with(&nid), "{first}");
}

#[test]
fn core_file_of_gdb_has_the_dump_of_the_jvm() {
    run_beside_others();
    for name in ["zulu-8", "temurin-21"] {
        let folder = tempfile::tempdir().unwrap();
        let load = start(named(name), "", &folder);
        // Clears bit 2, so that the core file lacks private file-backed memory. JDK 8 never sets this bit;
        // JDK 21 has set it.
        fs::write(format!("/proc/{}/coredump_filter", load.pid()), "0x33").unwrap();
        check(name, &gcore(load, folder), &[]);
    }
}

#[test]
fn core_file_has_the_synchronizers_that_threads_own() {
    run_beside_others();
    for flags in ["", "-XX:+UseParallelGC"] {
        let folder = tempfile::tempdir().unwrap();
        let mut load = start(named("temurin-17"), flags, &folder);
        load.ask("take 40");
        load.ask("collect");
        load.ask("release");
        let lists = |text: &str| -> Vec<String> {
            let threads = text.split("\n\"").skip(1).filter_map(|thread| {
                let (_, list) = thread.split_once("   Locked ownable synchronizers:\n")?;
                let lines = list.lines().take_while(|line| line.starts_with("\t- "));
                Some(
                    [&[thread.split_once("\" ")?.0], &*lines.collect::<Vec<_>>()]
                        .concat()
                        .join("\n"),
                )
            });
            threads.filter(|thread| !thread.contains("CompilerThread")).collect()
        };
        let before = tool::run("javastack", &["-p", &load.pid().to_string(), "-l"]).stdout;
        let core = crash(load, Signal::ABORT, folder);
        let after = tool::run("javastack", &["--core", core.path(), "-l"]);
        assert_eq!(after.stderr, "", "{flags}");
        // Two threads have kept half of their synchronizers, and "holder" has one of this class.
        let listed = lists(&before).join("\n");
        let kept = listed.matches("ReentrantReadWriteLock$NonfairSync)").count();
        assert_eq!(kept, 2 * 10 + 1, "{flags}: {before}");
        assert_eq!(lists(&after.stdout), lists(&before), "{flags}");
    }
}

#[test]
fn deadlock_in_a_core_file_is_found() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let mut load = start(named("temurin-21"), "", &folder);
    load.ask("deadlock 2");
    load.ask("deadlock 3");
    let core = crash(load, Signal::ABORT, folder);
    assert_eq!(core.before["deadlocks"].as_array().unwrap().len(), 2);
    check("deadlock", &core, &[]);
    let output = tool::run("javastack", &["--core", core.path()]);
    assert_eq!(output.status.code(), Some(DEADLOCK), "{output:?}");
    assert!(output.stdout.contains("Full thread dump OpenJDK"), "{}", output.stdout);
    assert!(output.stdout.ends_with("Found 2 deadlocks.\n"), "{}", output.stdout);
    for absent in ["cpu=", "elapsed=", "os_prio="] {
        assert!(!output.stdout.contains(absent), "{absent}: {}", output.stdout);
    }
}

/// Virtual threads: numbers, states, stacks, locks, owners, carriers and containers.
#[test]
fn core_file_has_the_virtual_threads_of_the_jvm() {
    run_beside_others();
    let mut all = vec![
        (named("temurin-21"), ""),
        (named("temurin-25"), ""),
        (named("temurin-21"), "-XX:+UseZGC -XX:+ZGenerational"),
        (named("temurin-25"), "-XX:+UseZGC"),
        (named("temurin-25"), "-XX:+UseShenandoahGC -Xint"),
        (named("temurin-25"), "-XX:+UseCompactObjectHeaders -XX:+UseSerialGC"),
    ];
    all.extend(["sid-27", "sid-28"].into_iter().filter_map(of_unstable).map(|jdk| (jdk, "")));
    for (runtime, flags) in all {
        let name = format!("{} {flags}", runtime.name);
        let folder = tempfile::tempdir().unwrap();
        let core = crash(start_virtual(runtime, flags, &folder), Signal::ABORT, folder);
        let containers = core.before["threadContainers"].as_array().unwrap().iter();
        let threads = containers.flat_map(|container| container["threads"].as_array().unwrap());
        let found = threads.filter(|thread| thread["virtual"] == true).count();
        assert!(found >= 14, "{name}: {found} virtual threads");
        check(&name, &core, &[]);
    }
}

#[test]
fn deadlocks_with_virtual_threads_in_a_core_file_are_found() {
    run_beside_others();
    for runtime in [named("temurin-21"), named("temurin-25")] {
        let folder = tempfile::tempdir().unwrap();
        let mut load = start_virtual(runtime, "", &folder);
        for kinds in ["vpv reentrant", "vvpp both", "pp monitors", "vv monitors"] {
            load.ask(&format!("deadlock {kinds}"));
        }
        // gdb stops the JVM, which continues afterwards.
        let core = gcore(load, folder);
        let members = |cycle: &Value| cycle.as_array().unwrap().len();
        let mut sizes: Vec<_> =
            core.before["deadlocks"].as_array().unwrap().iter().map(members).collect();
        sizes.sort_unstable();
        assert_eq!(sizes, [2, 2, 3, 4], "{}: {}", runtime.name, core.before["deadlocks"]);
        check(&runtime.name, &core, &[]);
        let text = tool::run("javastack", &["--core", core.path(), "-q"]);
        assert_eq!(text.status.code(), Some(DEADLOCK), "{text:?}");
        assert!(text.stdout.ends_with("Found 4 deadlocks.\n"), "{}", text.stdout);
    }
}

#[test]
fn mixed_dump_of_a_core_file_has_native_frames() {
    run_beside_others();
    let core = crashed(named("temurin-17"), "", Signal::ABORT);
    let text = tool::run("javastack", &["--core", core.path(), "-m"]).stdout;
    let parker = text.split("\n\n").find(|thread| thread.starts_with("\"parker\"")).unwrap();
    for frame in ["Unsafe_Park", "LockSupport.park", "LockLoad.act", "thread_native_entry"] {
        assert!(parker.contains(frame), "{frame}: {parker}");
    }
    assert!(text.contains("VMThread::run"), "{text}");
}

/// Replaces a text in the notes of a core file by another one of the same length.
fn replace_in_notes(core: &Core, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let file = OpenOptions::new().read(true).write(true).open(&core.path).unwrap();
    let mut notes = vec![0; 1 << 20];
    let len = file.read_at(&mut notes, 0).unwrap();
    let (mut replaced, mut at) = (0, 0);
    while let Some(found) = notes[at..len].windows(from.len()).position(|w| w == from.as_bytes()) {
        file.write_all_at(to.as_bytes(), (at + found) as u64).unwrap();
        (replaced, at) = (replaced + 1, at + found + from.len());
    }
    assert!(replaced > 0, "no {from} in the notes");
}

/// Root reads a core file of another user as this user.
#[test]
fn core_file_makes_root_read_only_what_its_owner_may_read() {
    run_beside_others();
    // All users can read this JDK.
    let runtime = named("debian-17");
    let core = crashed(runtime, "", Signal::ABORT);
    let copy = core.folder.path().join("libjvm.so");
    fs::copy(runtime.libjvm(), &copy).unwrap();
    let only_owner = Permissions::from_mode(0o600);
    fs::set_permissions(&copy, only_owner.clone()).unwrap();
    let copied = ["--exe", copy.to_str().unwrap()];
    check("root", &core, &copied);
    fs::set_permissions(&core.path, only_owner).unwrap();
    // No account has this user ID.
    chown(&core.path, Some(3_999_999), Some(3_999_999)).unwrap();
    check("another user", &core, &[]);
    let output = tool::run("javastack", &[&["--core", core.path()][..], &copied].concat());
    assert_refused(&output, 1, &["--exe: cannot open ", "Permission denied"]);
}

/// The core file contains paths that do not exist on this machine, as if the JVM had run on another machine.
#[test]
fn libjvm_at_another_path_is_specified_by_exe() {
    run_beside_others();
    let home = |runtime: &Runtime| {
        let home = runtime.java.parent().and_then(Path::parent).unwrap();
        home.to_str().unwrap().to_owned()
    };
    for name in ["zulu-8", "temurin-21", "debian-17"] {
        let runtime = named(name);
        let core = crashed(runtime, "", Signal::ABORT);
        let real = fs::canonicalize(&runtime.java).unwrap();
        // Renames the folder of all JDKs in the core file. The new name has the same length.
        let folder = Path::new(real.to_str().unwrap()).ancestors().nth(3).unwrap();
        let folder = format!("{}/", folder.to_str().unwrap());
        let other = format!("/{}/", "x".repeat(folder.len() - 2));
        replace_in_notes(&core, &folder, &other);
        let output = tool::run("javastack", &["--core", core.path()]);
        assert_refused(&output, 1, &["libjvm.so, which cannot be opened here", "--exe", &other]);
        check(name, &core, &["--exe", &home(runtime)]);
        check(name, &core, &["--exe", runtime.java.to_str().unwrap()]);
        let wrong = named("temurin-25").libjvm();
        let wrong = wrong.to_str().unwrap();
        let output = tool::run("javastack", &["--core", core.path(), "--exe", wrong]);
        assert_refused(&output, 1, &["the JVM ran ", " is another build", "--exe"]);
        // Now libjvm.so is the only library of the JDK that is found, so the native frames of the other
        // libraries cannot be walked. The dump shows the same Java frames anyway.
        replace_in_notes(&core, "/lib/", "/none");
        let copy = core.folder.path().join("copy-of-libjvm.so");
        fs::copy(runtime.libjvm(), &copy).unwrap();
        check(name, &core, &["--exe", copy.to_str().unwrap()]);
    }
}

/// Returns the names of the threads of a dump, except those of compiler threads.
fn names(dump: &Value, is_virtual: bool) -> Vec<String> {
    let containers = dump["threadContainers"].as_array().unwrap().iter();
    let threads = containers.flat_map(|container| container["threads"].as_array().unwrap());
    let threads = threads.filter(|thread| (thread["virtual"] == true) == is_virtual);
    let names = threads.map(|thread| thread["name"].as_str().unwrap().to_owned());
    names.filter(|name| !name.contains("CompilerThread")).collect()
}

#[test]
fn truncated_core_files_have_a_dump_or_an_error() {
    run_beside_others();
    for (name, is_virtual) in [("zulu-8", false), ("temurin-25", false), ("temurin-21", true)] {
        let folder = tempfile::tempdir().unwrap();
        let load = match is_virtual {
            true => start_virtual(named(name), "", &folder),
            false => start(named(name), "", &folder),
        };
        let core = crash(load, Signal::ABORT, folder);
        let file = OpenOptions::new().write(true).open(&core.path).unwrap();
        let size = file.metadata().unwrap().len();
        let shares = [999, 995, 990, 980, 950, 900, 800, 600, 400, 200, 100, 10, 1];
        let lengths = shares.map(|share| size / 1000 * share).into_iter();
        let small = [100_000, 50_000, 20_000, 5_000, 1000, 64, 63, 10, 0];
        let (mut complete, mut found) = (0, 0);
        for length in lengths.chain(small).filter(|&length| length < size) {
            file.set_len(length).unwrap();
            let output = dump(&["--core", core.path()]);
            if output.status.success() {
                complete += 1;
                // Stacks may be incomplete, because code is missing. Names may be missing, too, also those of
                // compiler threads.
                let now = output.json().remove(0)["threadDump"].take();
                let platform = (names(&now, false).len(), names(&core.before, false).len());
                assert!(platform.0 >= platform.1, "{name} {length}: {now}");
                let (now, before) = (names(&now, true), names(&core.before, true));
                found += now.len();
                assert!(now.iter().all(|thread| before.contains(thread)), "{name} {now:?}");
                if now.len() < before.len() {
                    let is_said = output.stderr.contains("virtual threads");
                    assert!(is_said && output.stderr.contains("truncated"), "{output:?}");
                }
            } else {
                let word = if length < 64 { "not a core file" } else { "truncated" };
                assert_refused(&output, 1, &[word]);
            }
        }
        println!(
            "{name}: {complete} of {} truncated core files have a dump, with {found} virtual threads",
            shares.len()
        );
    }
}

/// Moves the memory segment that contains an address behind the end of the core file, so that it is missing as in a
/// truncated file.
fn hide_segment(core: &Core, address: u64) {
    let file = OpenOptions::new().read(true).write(true).open(&core.path).unwrap();
    let word = |at: u64| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    };
    // The fields e_phoff and e_phnum, and p_type, p_offset, p_vaddr and p_memsz of each program header: elf(5).
    let (first, count) = (word(32), word(56) & 0xffff);
    let headers = (0..count).map(|index| first + index * 56);
    let is_it = |&at: &u64| {
        let (start, size) = (word(at + 16), word(at + 40));
        word(at) & 0xffff_ffff == 1 && (start..start + size).contains(&address)
    };
    let header = headers.into_iter().find(is_it).unwrap();
    file.write_all_at(&(1_u64 << 40).to_le_bytes(), header + 8).unwrap();
}

#[test]
fn core_file_without_a_part_of_the_heap_has_a_dump_and_a_warning() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let load = start_virtual(named("temurin-25"), "-XX:+UseSerialGC", &folder);
    let core = crash(load, Signal::ABORT, folder);
    let object = |thread: &Value| {
        let object = thread["blocked_on"]["object"].as_str()?.strip_prefix("0x")?;
        u64::from_str_radix(object, 16).ok()
    };
    let threads = core.before["threadContainers"][0]["threads"].as_array().unwrap();
    hide_segment(&core, threads.iter().find_map(object).unwrap());
    let output = dump(&["--core", core.path()]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.contains("virtual threads"), "{}", output.stderr);
    assert!(output.stderr.contains("truncated"), "{}", output.stderr);
    let now = output.json().remove(0)["threadDump"].take();
    // The compiler threads have no names now.
    assert!(names(&now, false).len() >= names(&core.before, false).len());
    println!("{}", output.stderr);
}

#[test]
fn unprivileged_user_reads_a_core_file() {
    run_beside_others();
    let core = crashed(named("debian-17"), "", Signal::ABORT);
    for (path, mode) in [(core.folder.path(), 0o755), (core.path.as_path(), 0o644)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let tool = core.folder.path().join("javastack");
    fs::copy(tool::binary("javastack"), &tool).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]);
    command.arg(&tool).args(["--core", core.path(), "-j"]);
    let output = tool::run_command(command);
    assert_eq!(output.stderr, "");
    assert_eq!(json(&output), core.before);
}

#[test]
fn errors_say_why_a_core_file_is_rejected() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let refuse = |path: &Path, words: &[&str]| {
        let output = tool::run("javastack", &["--core", path.to_str().unwrap()]);
        assert_refused(&output, 1, words);
    };
    refuse(&folder.path().join("missing"), &["cannot open the core file", "No such file"]);
    refuse(Path::new("/dev/zero"), &["not a regular file"]);
    refuse(Path::new("/proc/self/exe"), &["not a core file, but another kind of ELF file"]);
    let text = folder.path().join("text");
    fs::write(&text, "x".repeat(100)).unwrap();
    refuse(&text, &["not a core file: it is not an ELF file"]);
    let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = sleep.id().to_string();
    let written = Command::new("gcore").arg("-o").arg(&text).arg(&pid).output().unwrap();
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    assert!(written.status.success(), "{written:?}");
    let core = folder.path().join(format!("text.{pid}"));
    refuse(&core, &["(sleep) was not a JVM", "libjvm.so"]);
    File::options().write(true).open(&core).unwrap().write_all_at(&[183], 18).unwrap();
    refuse(&core, &["core file of a process for aarch64"]);
    for conflicting in [&["-p", "1"][..], &["-a"], &["--name", "x"], &["5"], &["-d", "5"]] {
        let args = [&["--core", core.to_str().unwrap()], conflicting].concat();
        assert_refused(&tool::run("javastack", &args), 2, &["--core", "cannot be used with"]);
    }
    assert_refused(&tool::run("javastack", &["--exe", "/"]), 2, &["--core"]);
}
