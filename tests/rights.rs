//! Privileges and limits with which tools are started, privileges that they drop, and privileges of
//! a command that they start.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, process::Command};

use jvmprobe_tests::{
    load::Load,
    run_beside_others,
    runtimes::named,
    tool::{self, Output, Tool, assert_refused, assert_traced, binary},
};

/// The minimum capabilities of each tool, as in its man page.
const NEEDED: [(&str, &[&str]); 3] = [
    ("javagc", &["bpf", "perfmon", "sys_ptrace"]),
    ("javaobjnew", &["sys_admin", "sys_ptrace"]),
    ("javaprof", &["bpf", "perfmon", "sys_ptrace"]),
];
/// Additional capabilities that a user other than root needs for JVMs and files of other users.
const NOT_ROOT: [&str; 2] = ["dac_read_search", "checkpoint_restore"];

fn list(caps: &[&str]) -> String {
    caps.iter().fold("-all".into(), |list, cap| format!("{list},+{cap}"))
}

/// Returns a command for a tool as root with only these capabilities.
fn with_capabilities(tool: &str, caps: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let caps = list(caps);
    command.args([&format!("--bounding-set={caps}"), &format!("--inh-caps={caps}")]);
    command.arg(binary(tool)).args(args);
    command
}

/// Returns a command for a tool as a non-root user with these capabilities.
fn as_nobody(tool: &str, caps: &[&str], args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"]);
    let caps = list(caps);
    command.args([&format!("--inh-caps={caps}"), &format!("--ambient-caps={caps}")]);
    command.args([&format!("--bounding-set={caps}")]);
    command.arg(binary(tool)).args(args);
    command
}

fn load() -> Load {
    run_beside_others();
    let mut load = Load::start_program(named("temurin-17"), "-XX:+UseG1GC", "GcLoad");
    load.run(0.5);
    load
}

#[test]
fn each_missing_capability_is_named_in_the_error() {
    run_beside_others();
    let load = load();
    let pid = load.pid().to_string();
    for (tool, needed) in NEEDED {
        for missing in needed {
            let others: Vec<_> = needed.iter().copied().filter(|cap| cap != missing).collect();
            let output = tool::run_command(with_capabilities(tool, &others, &["-p", &pid]));
            let name = format!("CAP_{}", missing.to_uppercase());
            // `NEEDED` does not list CAP_BPF for javaobjnew, because CAP_SYS_ADMIN includes it. Without
            // CAP_SYS_ADMIN, CAP_BPF is therefore missing, too, and the message names CAP_BPF.
            let name = if name == "CAP_SYS_ADMIN" { "CAP_BPF".into() } else { name };
            assert_refused(&output, 1, &[&name, "missing"]);
        }
    }
    // javaobjnew attaches to functions instead of USDT probes. CAP_BPF and CAP_PERFMON are not
    // sufficient for that.
    let some = ["bpf", "perfmon", "sys_ptrace"];
    let output = tool::run_command(with_capabilities("javaobjnew", &some, &["-p", &pid]));
    assert_refused(&output, 1, &["CAP_SYS_ADMIN"]);
}

#[test]
fn documented_capabilities_are_sufficient() {
    run_beside_others();
    let mut load = load();
    let pid = load.pid().to_string();
    for (tool, needed) in NEEDED {
        let trace = Tool::spawn(with_capabilities(tool, needed, &["-p", &pid]));
        // GcLoad spends most of its time in collections, so a hundred samples may contain none of
        // its Java code.
        let seconds = if tool == "javaprof" { 4.0 } else { 0.5 };
        load.run(seconds);
        assert_traced(tool, &trace.interrupt());
        let caps = [needed, &NOT_ROOT].concat();
        let trace = Tool::spawn(as_nobody(tool, &caps, &["-p", &pid]));
        load.run(seconds);
        assert_traced(tool, &trace.interrupt());
    }
}

/// A single read of a JVM requires only the right to read its memory.
#[test]
fn javaclass_needs_only_cap_sys_ptrace() {
    let load = load();
    let pid = load.pid().to_string();
    let one = with_capabilities("javaclass", &["sys_ptrace"], &["-p", &pid, "-q"]);
    let output = tool::run_command(one);
    assert!(output.status.success() && output.stdout.contains("classes in"), "{output:?}");
    let output = tool::run_command(with_capabilities("javaclass", &[], &["-p", &pid, "-q"]));
    assert_refused(&output, 1, &["CAP_SYS_PTRACE", "missing"]);
    let watches = with_capabilities("javaclass", &["sys_ptrace"], &["-p", &pid, "-w"]);
    assert_refused(&tool::run_command(watches), 1, &["missing"]);
}

/// Returns a field of /proc/PID/status.
fn status(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    u64::from_str_radix(value.trim_start_matches(':').trim(), 16).unwrap()
}

#[test]
fn tools_drop_unneeded_capabilities_after_start() {
    let load = load();
    let pid = load.pid().to_string();
    let (module, admin, ptrace, bpf) = (1 << 16, 1 << 21, 1 << 19, 1 << 39);
    for (tool, _) in NEEDED {
        for (args, keeps_admin) in [(&["-p", &pid][..], false), (&["-a"], true)] {
            let trace = Tool::start(tool, args);
            // The tool drops its capabilities slightly after it has printed that it traces.
            std::thread::sleep(std::time::Duration::from_millis(200));
            for set in ["CapPrm", "CapEff"] {
                let held = status(trace.pid(), set);
                assert_eq!(held & (ptrace | bpf), ptrace | bpf, "{tool}: {set} {held:x}");
                assert_eq!(held & module, 0, "{tool}: {set} {held:x}");
                assert_eq!(held & admin != 0, keeps_admin, "{tool} {args:?}: {set} {held:x}");
            }
            assert_eq!(status(trace.pid(), "NoNewPrivs"), 1, "{tool}");
            assert!(trace.interrupt().status.success(), "{tool} {args:?}");
        }
    }
}

fn command(options: &[&str], script: &str) -> Output {
    run_beside_others();
    let args = [options, &["-d", "5", "-q", "--", "sh", "-c", script]].concat();
    tool::run("javaprof", &args)
}

#[test]
fn user_option_sets_the_user_of_the_command() {
    run_beside_others();
    let script = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep CapEff /proc/self/status";
    let nobody = Command::new("getent").args(["passwd", "nobody"]).output().unwrap().stdout;
    let nobody = String::from_utf8(nobody).unwrap();
    let fields: Vec<_> = nobody.trim().split(':').collect();
    let groups = Command::new("id").args(["-G", "nobody"]).output().unwrap().stdout;
    let output = command(&["--user", "nobody"], script);
    assert!(output.status.success(), "{output:?}");
    let said: Vec<_> = output.stdout.lines().collect();
    assert_eq!(said[..2], fields[2..4]);
    assert_eq!(said[2], String::from_utf8(groups).unwrap().trim());
    assert_eq!(said[3], format!("{} nobody nobody", fields[5]));
    assert!(said[4].ends_with(" 0000000000000000") || said[4].ends_with("\t0000000000000000"));
    // A user ID that does not exist.
    let output = command(&["--user", "54321"], "id -u; id -g; id -G");
    assert_eq!(output.stdout, "54321\n54321\n54321\n", "{output:?}");
    assert_refused(&command(&["--user", "no-such-user"], "true"), 1, &["no user no-such-user"]);
    assert_refused(&tool::run("javaprof", &["-a", "--user", "nobody"]), 2, &["--user"]);
}

#[test]
fn sudo_without_user_option_warns_about_a_root_command() {
    run_beside_others();
    let run = |user: &str, options: &[&str]| {
        let mut command = Command::new(binary("javaprof"));
        command.env("SUDO_USER", user).args(options).args(["-d", "5", "-q", "--", "true"]);
        tool::run_command(command).stderr
    };
    assert!(
        run("alice", &[]).contains("the command runs as root; use --user alice to run it as alice")
    );
    assert!(!run("alice", &["--user", "nobody"]).contains("as root"));
    assert!(!run("root", &[]).contains("as root"));
}

#[test]
fn command_keeps_its_original_capabilities_and_limits() {
    run_beside_others();
    let script = "grep -E 'Cap(Prm|Bnd)|NoNewPrivs' /proc/self/status; ulimit -Sn; ulimit -Hn";
    let bare = Command::new("prlimit").args(["--nofile=64:4096", "sh", "-c", script]).output();
    let mut command = Command::new("prlimit");
    command.arg("--nofile=64:4096").arg(binary("javaprof"));
    command.args(["-d", "5", "-q", "--", "sh", "-c", script]);
    let output = tool::run_command(command);
    assert_eq!(output.stdout, String::from_utf8(bare.unwrap().stdout).unwrap(), "{output:?}");
}

#[test]
fn descriptor_exhaustion_is_reported_at_most_once() {
    run_beside_others();
    let mut load = load();
    let pid = load.pid().to_string();
    let limited = |limits: &str| {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={limits}")).arg(binary("javaprof"));
        command.args(["-p", &pid, "-d", "1"]);
        command
    };
    load.go(30.0);
    // The tool raises the soft limit. With `-f`, it prints all stacks. A summary might contain no Java
    // method, because the collector may use most of the CPU time.
    let mut raised = limited("40:4096");
    raised.args(["-f"]);
    let output = tool::run_command(raised);
    assert!(output.status.success() && output.stderr.lines().count() == 1, "{output:?}");
    assert!(output.stdout.contains("GcLoad."), "{output:?}");
    // Depending on the limit, the tool continues or fails. In both cases, it reports the reason if
    // names are missing.
    for limit in [30, 36, 42, 48, 54, 60, 66] {
        let output = tool::run_command(limited(&format!("{limit}:{limit}")));
        let noted = output.stderr.matches("too many open files: names").count();
        let failed = output.stderr.matches("Too many open files").count();
        assert!(noted <= 1, "{limit}: {output:?}");
        assert!(output.status.success() || noted + failed > 0, "{limit}: {output:?}");
        assert!(!output.stdout.contains("[unknown]") || noted == 1, "{limit}: {output:?}");
    }
}
