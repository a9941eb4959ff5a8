//! The attacks. To add one, add an entry to [`ATTACKS`] and, if it needs one, a command to `attack.c` or `Attack.java`.

use std::path::Path;

use crate::attacker::{Attacker, Fixtures, JAVA, has_user_namespaces};

/// IDs of a pod and a container that a user claims by the name of a control group.
pub const FALSE_POD: &str = "0f3b1c5e_86a2_4b0f_9d3e_2b9a0c1d2e3f";
pub const FALSE_CONTAINER: &str =
    "fedcba987654fedcba987654fedcba987654fedcba987654fedcba9876543210";

/// One attack.
pub struct Attack {
    /// Name, of which the attacker's tenant is made.
    pub name: &'static str,
    /// What the attacker must lose, because it exceeds a limit within seconds: the label `reason` of
    /// `jvmprobed_limited_total`.
    pub reason: Option<&'static str>,
    /// Duration in seconds if it runs alone.
    pub seconds: f64,
    /// Starts it. Returns an error with the reason if this machine does not have what it needs.
    pub start: fn(&mut Attacker<'_>) -> Result<(), &'static str>,
}

/// Makes an entry of [`ATTACKS`] for an attack that works on all machines.
macro_rules! attack {
    ($name:literal, $reason:expr, $seconds:literal, |$attacker:ident| $start:expr) => {
        Attack {
            name: $name,
            reason: $reason,
            seconds: $seconds,
            start: |$attacker| {
                $start;
                Ok(())
            },
        }
    };
}

/// All attacks.
#[rustfmt::skip] // One line for each is easier to read.
pub const ATTACKS: &[Attack] = &[
    // Sizes at the limits.
    attack!("sparse-symbols", None, 6.0, |a| sparse_symbols(a)),
    attack!("debug-file", None, 5.0, |a| a.run(&["./attack", "fakes", "fake/libjvm.so", "2", "80", "4"])),
    attack!("unwind-rows", Some("unwind"), 6.0, |a| unwind_rows(a)),
    attack!("threads", Some("threads"), 20.0, |a| a.java(&["-Xss160k"], &["lock", "11000"])),
    attack!("code-files", Some("files"), 5.0, |a| a.java_with_agent("files /tmp 64000")),
    attack!("mappings", Some("mappings"), 4.0, |a| a.run(&["./attack", "fakes", "fake/libjvm.so", "1", "10000", "0"])),
    attack!("mappings-of-jvm", Some("mappings"), 4.0, |a| a.java_with_agent("fake /mnt/jre/lib/server/libjvm.so 10000 0")),
    attack!("mappings-in-all", Some("mappings"), 4.0, |a| mappings_in_all(a)),
    attack!("long-paths", None, 4.0, |a| a.run(&["./attackers", "maps", "/tmp"])),
    attack!("sparse-memory", Some("page-tables"), 8.0, |a| a.java_with_agent("sparse 20000")),
    attack!("waits", Some("waits"), 12.0, |a| a.java(&[], &["waits", "300"])),
    attack!("class-names", None, 4.0, |a| a.java(&["-Xmx256m"], &["classes", "2000"])),
    attack!("arguments", None, 4.0, |a| arguments(a)),
    attack!("perf-map-and-thread-names", None, 4.0, |a| { a.java_with_agent("perf-map 64"); a.java_with_agent("names 200") }),
    // Numbers of processes, and their rates.
    attack!("mmap-flood", None, 4.0, |a| a.run(&["./attack", "flood", "2000"])),
    attack!("fake-jvms", None, 4.0, |a| a.run(&["./attack", "fakes", "fake/libjvm.so", "510", "1", "0"])),
    attack!("short-jvms", None, 4.0, |a| { in_loop(a, "Attack exit 500"); in_loop(a, "-version") }),
    attack!("forks", None, 4.0, |a| a.run(&["./attackers", "forks", "200"])),
    // Control groups.
    attack!("own-groups", None, 4.0, |a| own_groups(a)),
    attack!("group-churn", None, 4.0, |a| { let group = a.delegate_group(); a.run(&["./attack", "groups", &group]) }),
    // The network.
    attack!("requests", None, 4.0, |a| requests(a)),
    // File systems.
    Attack { name: "overlay-on-fuse", reason: None, seconds: 4.0, start: overlay_on_fuse },
];

/// Three JVMs, because several threads of the daemon read symbols at the same time.
fn sparse_symbols(attacker: &mut Attacker<'_>) {
    for number in 0..3 {
        attacker.set_libjvm(&format!("sparse{number}.so"));
        attacker.java(&[], &["burn"]);
    }
}

/// Processes that are no JVMs map a libjvm.so 1.2 million times together, and a JVM runs it.
fn mappings_in_all(attacker: &mut Attacker<'_>) {
    attacker.set_libjvm("copy.so");
    attacker.run(&["./attack", "fakes", "/mnt/jre/lib/server/libjvm.so", "20", "60000", "0"]);
    attacker.java(&[], &["burn"]);
}

fn unwind_rows(attacker: &mut Attacker<'_>) {
    let preload = format!("LD_PRELOAD={}", Fixtures::row_libraries());
    attacker.run(&["env", &preload, JAVA, "-XX:+UseSerialGC", "-Xmx64m", "Attack", "burn"]);
}

/// Long arguments, a class path of large jars, and false claims in the environment and in a process context.
fn arguments(attacker: &mut Attacker<'_>) {
    let path = format!("CLASSPATH=.{}", ":./big.jar".repeat(5000));
    let claims: String = (0..4000).map(|n| format!("service.claim{n}=%1b%5b{n},")).collect();
    let claims = format!("OTEL_RESOURCE_ATTRIBUTES={claims}k8s.pod.uid={FALSE_POD}");
    let words = ["env", &path, &claims, "LD_PRELOAD=./context.so", "CONTEXT=context"];
    let argument = "x".repeat(100_000);
    let java = [JAVA, "-Xmx64m", "-XX:+UseSerialGC", "Attack", "burn", "1", &argument];
    attacker.run(&[&words[..], &java].concat());
}

/// Starts JVMs with these arguments, one after the other.
fn in_loop(attacker: &mut Attacker<'_>, words: &str) {
    let java = format!("{JAVA} -XX:+UseSerialGC -Xmx32m -XX:TieredStopAtLevel=1 {words}");
    let script = format!("echo ready; while :; do {java} >/dev/null 2>&1; done");
    attacker.run(&["sh", "-c", &script]);
}

/// The owner of a group creates sixty with twelve processes each, and one that is named like the group of a container.
fn own_groups(attacker: &mut Attacker<'_>) {
    let group = attacker.delegate_group();
    let pod =
        format!("kubepods-burstable-pod{FALSE_POD}.slice/cri-containerd-{FALSE_CONTAINER}.scope");
    let script = format!(
        "for i in $(seq 60); do
            ./attack place {group}/app.slice/t$i.service ./attack fakes fake/libjvm.so 12 1 0 >/dev/null &
        done
        ./attack place {group}/app.slice/{pod} {JAVA} -XX:+UseSerialGC -Xmx64m Attack burn &
        wait"
    );
    attacker.run(&["sh", "-c", &script]);
}

/// Connections with half a request each, and wrong passwords from many connections.
fn requests(attacker: &mut Attacker<'_>) {
    let port = attacker.port.to_string();
    for command in ["requests", "passwords"] {
        attacker.run(&["./attack", command, &port]);
    }
}

/// A process maps a libjvm.so of an overlay, whose lower layer is on a FUSE server that does not answer.
fn overlay_on_fuse(attacker: &mut Attacker<'_>) -> Result<(), &'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Err("there is no /dev/fuse");
    }
    if !has_user_namespaces() {
        return Err("users may not create user namespaces");
    }
    let script = "
        mount -t tmpfs none /tmp
        mkdir /tmp/fuse /tmp/lower /tmp/merged
        ./fuse /tmp/fuse fake/libjvm.so >/tmp/output &
        server=$!
        until grep -q mounted /tmp/output; do sleep 0.05; done
        mount -t overlay -o lowerdir=/tmp/fuse:/tmp/lower none /tmp/merged
        ./attack fakes /tmp/merged/libjvm.so 1 1 0 >/tmp/output &
        until grep -q ready /tmp/output; do sleep 0.05; done
        sleep 0.5
        kill -USR1 $server
        echo ready
        wait";
    attacker.run(&["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]);
    Ok(())
}
