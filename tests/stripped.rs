//! Builds whose symbols are in a separate package.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use jvmprobe_tests::{
    allocated,
    fake::build_library,
    load::Load,
    proc::breakpoints,
    run_alone, run_beside_others,
    runtimes::{self, Runtime, named},
    scrape::{after_windows, sum, until_windows},
    tool::{self, Tool, assert_refused, binary},
};

/// Runs javaobjnew with another folder mounted at /usr/lib/debug.
fn with_debug_files(debug: &Path, pid: &str) -> std::process::Output {
    let script = "mount --bind \"$1\" /usr/lib/debug && exec \"$2\" -p \"$3\" -d 2";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(debug);
    command.arg(binary("javaobjnew")).arg(pid).output().expect("run unshare")
}

/// Returns the debug file below a folder like /usr/lib/debug.
fn debug_file(debug: &Path) -> PathBuf {
    let only = |folder: &Path| {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.flatten().next().expect("something in it").path()
    };
    only(&only(&debug.join(".build-id")))
}

/// Asserts that javaobjnew can trace a JVM of a stripped build, and that javaprof names the build's
/// functions correctly.
fn assert_names_functions(load: &mut Load, options: &[&str]) {
    let pid = load.pid().to_string();
    let tool = Tool::start("javaobjnew", &[&["-p", &pid], options].concat());
    load.run(1.5);
    let output = tool.interrupt();
    assert!(output.status.success() && output.stdout.contains("byte[]"), "{}", output.stderr);
    let named = profile(load, options);
    let unknown = named.iter().filter(|name| is_unknown(name)).count();
    assert!(unknown * 200 <= named.len(), "{unknown} of {}: {named:?}", named.len());
    // The names agree with the symbols of the unstripped build, as binutils demangle them.
    let symbols = symbols_of(&runtimes::named("temurin-25").libjvm());
    let of_jvm = |name: &&String| {
        name.contains("::") && !name.contains('/') && !name.starts_with("StubRoutines::")
    };
    let of_jvm: Vec<_> = named.iter().filter(of_jvm).collect();
    let wrong: Vec<_> = of_jvm.iter().filter(|name| !symbols.contains(name.as_str())).collect();
    assert!(of_jvm.len() > 20, "{named:?}");
    // Some names differ: those of functions in other libraries, and those on which demanglers
    // disagree.
    assert!(wrong.len() * 10 <= of_jvm.len(), "{wrong:?} of {of_jvm:?}");
    // These two are in every profile; the other functions vary from run to run.
    for expected in ["VMThread::run", "SerialHeap::"] {
        let is_there = named.iter().any(|name| name.contains(expected));
        assert!(is_there, "{expected}: {named:?}");
    }
}

/// Returns the names of all frames in a profile of a load.
fn profile(load: &mut Load, options: &[&str]) -> BTreeSet<String> {
    let pid = load.pid().to_string();
    let tool = Tool::start("javaprof", &[&["-p", &pid, "-F", "499", "-f"], options].concat());
    load.run(2.0);
    let output = tool.interrupt();
    assert!(output.status.success(), "{}", output.stderr);
    let stacks = output.stdout.lines().filter_map(|line| line.rsplit_once(' '));
    stacks.flat_map(|(stack, _)| stack.split(';')).map(str::to_owned).collect()
}

fn is_unknown(name: &str) -> bool {
    name.starts_with("[unknown libjvm.so+")
}

/// Returns the names of a file's functions, without parameters and return types.
fn symbols_of(file: &Path) -> BTreeSet<String> {
    let nm = Command::new("nm").args(["--demangle", "--defined-only"]).arg(file).output();
    let nm = String::from_utf8(nm.expect("run nm").stdout).expect("UTF-8");
    let names = nm.lines().filter_map(|line| line.splitn(3, ' ').nth(2));
    names.map(|name| without_signature(name).to_owned()).collect()
}

/// Returns `f<(E)1>` of `void f<(E)1>(int)`. Template arguments may contain parentheses and spaces,
/// and the demangled name of a function template includes its return type.
fn without_signature(demangled: &str) -> &str {
    let (mut depth, mut start, mut end) = (0, 0, demangled.len());
    for (i, c) in demangled.char_indices() {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            ' ' if depth == 0 => start = i + 1,
            '(' if depth == 0 => {
                end = i;
                break;
            }
            _ => {}
        }
    }
    &demangled[start..end]
}

#[test]
fn symbols_come_from_the_file_given_by_option() {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    let file = debug_file(&debug);
    let file = file.to_str().expect("UTF-8");
    let mut load = Load::start(&runtime, "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    let run = |file: &str| tool::run("javaobjnew", &["-p", &pid, "--symbols-from", file]);
    // A debug file of another build, one without symbols, and one that is not an ELF file.
    let other = build_library(folder.path());
    let other = run(other.to_str().expect("UTF-8"));
    let lines: Vec<_> = other.stderr.lines().collect();
    assert_eq!((other.status.code(), lines.len()), (Some(1), 2), "{}", other.stderr);
    assert!(
        lines[0].contains("ignoring --symbols-from") && lines[0].contains("build ID"),
        "{lines:?}"
    );
    assert!(lines[1].contains("it is stripped"), "{lines:?}");
    let libjvm = runtime.libjvm();
    let stripped = run(libjvm.to_str().expect("UTF-8"));
    assert_refused(&stripped, 1, &["--symbols-from", "it has no symbol table"]);
    assert_refused(&run("/proc/self/status"), 1, &["--symbols-from", "malformed ELF"]);
    assert_names_functions(&mut load, &["--symbols-from", file]);
}

#[test]
fn compressed_symbol_section_is_read() {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    let run = |command: &mut Command| {
        assert!(command.status().expect("tests/setup installs it").success(), "{command:?}");
    };
    let packed = folder.path().join("packed");
    let symbols = named("temurin-25").libjvm();
    run(Command::new("objcopy").args(["--strip-debug"]).args([&symbols, &packed]));
    run(Command::new("xz").arg("-1").arg(&packed));
    let section = format!(".gnu_debugdata={}.xz", packed.display());
    run(Command::new("objcopy").args(["--add-section", &section]).arg(runtime.libjvm()));
    let mut load = Load::start(&runtime, "-XX:+UseSerialGC");
    assert_names_functions(&mut load, &[]);
}

/// Returns a runtime whose processes run in a mount namespace with another folder at
/// /usr/lib/debug.
fn containerized(runtime: Runtime, folder: &Path, debug: &Path) -> Runtime {
    let script = folder.join("java-in-a-namespace");
    let text = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /usr/lib/debug && exec {} \"$@\"' \
         sh \"$@\"\n",
        debug.display(),
        runtime.java.display()
    );
    std::fs::write(&script, text).expect("write a script");
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).expect("chmod");
    Runtime { java: script, ..runtime }
}

/// Changes a debug file so that a function that G1 rarely calls has the address of a function that
/// programs call all the time.
fn swap_symbols(file: &Path) {
    const RARE: &str = "_ZN16G1ConcurrentMark20concurrent_cycle_endEb";
    const FREQUENT: &str = "_ZN2os13javaTimeNanosEv";
    let mut objcopy = Command::new("objcopy");
    objcopy.arg(format!("--redefine-sym={RARE}=unused"));
    objcopy.arg(format!("--redefine-sym={FREQUENT}={RARE}")).arg(file);
    assert!(objcopy.status().expect("run objcopy").success(), "{objcopy:?}");
}

/// Containers of one image share its files, but each has its own debug files.
#[test]
fn debug_file_of_a_container_adds_no_probes_elsewhere() {
    run_alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    swap_symbols(&debug_file(&debug));
    let attacker =
        Load::start(&containerized(runtime.clone(), folder.path(), &debug), "-XX:+UseG1GC");
    let mut neighbour = Load::start(&runtime, "-XX:+UseG1GC");
    let tool = Tool::start("javagc", &["-a", "-v", "-j"]);
    neighbour.run(1.0);
    let [theirs, its] = [attacker.pid(), neighbour.pid()].map(|pid| {
        let hooked = breakpoints(pid, &runtime);
        assert!(hooked > 0, "javagc has no probes in process {pid}");
        hooked
    });
    let output = tool.interrupt();
    // Only the attacker has a probe at the frequent function.
    assert!(its < theirs, "{its} in the neighbour, {theirs} in the attacker: {}", output.stderr);
    let pauses = output.json().iter().filter(|r| r["pid"] == neighbour.pid()).count();
    assert!(pauses > 0, "{}", output.stderr);
    neighbour.quit();
    attacker.quit();
}

#[test]
fn debug_files_of_a_container_are_found() {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    let containerized = containerized(runtime, folder.path(), &debug);
    let mut load = Load::start(&containerized, "-XX:+UseSerialGC");
    assert_names_functions(&mut load, &[]);
}

/// If the debug file comes from a container, the probes are attached to that container's process
/// only, not to the file.
#[test]
fn daemon_records_allocation_with_container_debug_files() {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    let containerized = containerized(runtime, folder.path(), &debug);
    let mut load = Load::start_program(&containerized, "-XX:+UseSerialGC", "AllocLoad");
    let listen = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let listen = listen.expect("a free port").to_string();
    let store = folder.path().join("store").display().to_string();
    let args = ["--config", "/dev/null", "--window", "5s", "--listen", &listen, "--dir", &store];
    let daemon = Tool::start("jvmprobed", &args);
    until_windows(&listen, 1.0);
    let truth = allocated::parse(&load.ask("go 5 200 2")).total;
    let metrics = after_windows(&listen, 2);
    daemon.interrupt();
    let pid = format!("pid=\"{}\"", load.pid());
    let published = sum(&metrics, "jvmprobe_allocated_bytes_total", &[&pid]);
    let off = published / truth as f64 - 1.0;
    // The program allocates a little more than it counts.
    assert!((-0.01..0.05).contains(&off), "{published} of {truth}");
    load.quit();
}

#[test]
fn symbols_are_found_by_the_build_id() {
    run_beside_others();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let debug = folder.path().join("debug");
    let runtime = named("temurin-25").stripped(folder.path(), &debug);
    let mut load = Load::start(&runtime, "-XX:+UseSerialGC");
    let pid = load.pid().to_string();
    assert_refused(&tool::run("javaobjnew", &["-p", &pid]), 1, &["it is stripped"]);
    assert!(profile(&mut load, &[]).iter().any(|name| is_unknown(name)));
    load.go(4.0);
    let output = with_debug_files(&debug, &pid);
    load.done();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("byte[]"), "{output:?}");
    // A debug file of another build does not count.
    let file = debug_file(&debug);
    std::fs::copy(named("temurin-21").libjvm(), &file).expect("copy");
    let output = with_debug_files(&debug, &pid);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("it is stripped"), "{output:?}");
}
