//! jvmprobed under the limits of its systemd unit, beside processes that a tenant of the host starts to harm it or a
//! neighbour. The attackers have the means of an ordinary container: a user without rights, a control group and a mount
//! namespace. Some own their control group, as users do whose sessions systemd starts.
//!
//! Each trial starts the attackers, then a well-behaved JVM (the neighbour), and then the daemon. It asserts that
//! - the daemon survives within its memory limit, answers requests, accepts the right password, and ends in time;
//! - the neighbour has all its CPU samples, its allocation and its metrics;
//! - metrics and messages name the attacker's tenant, if the daemon had to drop some of its data.
//!
//! | module | what it does |
//! |---|---|
//! | [`attacks`] | the table of attacks |
//! | [`attacker`] | the container of an attacker, and the files that it uses |
//! | [`elf`] | libraries with excessive tables |
//! | [`daemon`] | the daemon, and what it recorded of the neighbour |
//!
//! `JVMPROBE_ATTACKS=NAME,NAME` selects attacks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "measurements, for people to read")]

mod attacker;
mod attacks;
mod daemon;
mod elf;

use std::{
    any::Any,
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{
    allocated, attack,
    cgroup::{Cgroup, Limits},
    load::Load,
    proc::cpu_seconds,
    run_alone,
    runtimes::named,
    scrape::{completed_windows, sum},
};

use attacker::{Attacker, Fixtures};
use attacks::{ATTACKS, Attack, FALSE_CONTAINER, FALSE_POD};
use daemon::{Daemon, HERTZ, Recorded};

/// CPU limit of an attacker that attacks alone, and of each of many, in percent of one processor.
const ALONE: u64 = 80;
const AMONG_OTHERS: u64 = 20;
/// CPU limit of the neighbour.
const NEIGHBOUR: u64 = 50;
/// Time in which the daemon attaches to the neighbour. Without optimization, it takes several seconds to read the symbols.
const ATTACH_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 8 } else { 1 });
/// Time that a trial may take longer than its attack: starting and stopping everything on a slow machine.
const MAX_OVERHEAD: Duration = Duration::from_secs(240);
/// Maximum time that the daemon takes to end after SIGTERM.
const MAX_STOP: Duration = Duration::from_secs(5);
/// Time in which metrics of a new JVM must appear.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Minimum share of the neighbour's CPU time and allocation that is recorded: in a trial of seconds, which has few
/// samples, and in a trial of minutes.
const MIN_SHARE_OF_SECONDS: f64 = 0.8;
const MIN_SHARE_OF_MINUTES: f64 = 0.9;

/// What a trial has shown.
struct Outcome {
    recorded: Recorded,
    /// CPU seconds that the neighbour has used, and bytes that it has allocated.
    used: (f64, f64),
    /// Names of the neighbour's metrics.
    families: BTreeSet<String>,
    /// Names of the metrics of a JVM that started during the attack.
    late_families: BTreeSet<String>,
    metrics: String,
    /// Attackers that ended before they were killed.
    ended: Vec<String>,
}

/// Returns the names of the metrics that have a series of this process.
fn families_of(metrics: &str, pid: u32) -> BTreeSet<String> {
    let label = format!("pid=\"{pid}\"");
    let of_process = metrics.lines().filter(|line| line.contains(&label));
    let names = of_process.filter_map(|line| Some(line.split_once('{')?.0.to_owned()));
    // They exist only if a wait was long enough.
    names.filter(|name| !name.starts_with("jvmprobe_wait")).collect()
}

/// Starts a JVM that allocates and computes.
fn neighbour(group: &Cgroup) -> Load {
    let runtime = named("temurin-21");
    let mut command = runtime.command();
    command.args(["-XX:+UseSerialGC", "-Xmx64m"]);
    group.enter(&mut command);
    Load::spawn_program(command, "AllocLoad", runtime.major)
}

/// Watches daemon and neighbour for some seconds beside attackers that run already. Then waits until the neighbour has the
/// expected metrics, but at most for [`MAX_WAIT`].
fn observe(
    attackers: &mut [Attacker<'_>],
    ports: (u16, u16),
    seconds: f64,
    has_late: bool,
    expected: &BTreeSet<String>,
) -> Outcome {
    let limits = Limits { cpu_percent: Some(NEIGHBOUR), ..Limits::default() };
    let group = Cgroup::new("neighbour", limits).unwrap();
    let mut load = neighbour(&group);
    let mut daemon = Daemon::start(ports);
    // The daemon may find the neighbour some seconds after thousands of other processes.
    let started = Instant::now();
    while families_of(&daemon.metrics(), load.pid()).is_empty() && started.elapsed() < MAX_WAIT {
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(ATTACH_TIME);
    // A window that is completed later contains data of the neighbour.
    let windows = completed_windows(&daemon.metrics());
    let before = cpu_seconds(load.pid());
    load.send(&format!("go {seconds} work 2"));
    let (begin, mut late) = (Instant::now(), None);
    while begin.elapsed().as_secs_f64() < seconds {
        daemon.check_health();
        if has_late && late.is_none() && begin.elapsed().as_secs_f64() > seconds / 2.0 {
            let mut load = neighbour(&group);
            load.send(&format!("go {} work 2", seconds / 2.0));
            late = Some(load);
        }
        thread::sleep(Duration::from_millis(250));
    }
    let bytes = allocated::parse(&load.done()).total as f64;
    let used = (cpu_seconds(load.pid()) - before, bytes);
    let mut metrics = daemon.metrics();
    let pids = [Some(load.pid()), late.as_ref().map(Load::pid)];
    let has_all = |metrics: &str| {
        pids.iter().flatten().all(|&pid| expected.is_subset(&families_of(metrics, pid)))
    };
    let waiting = Instant::now();
    while completed_windows(&metrics) <= windows || !has_all(&metrics) {
        if waiting.elapsed() > MAX_WAIT {
            break;
        }
        thread::sleep(Duration::from_millis(200));
        daemon.check_health();
        metrics = daemon.metrics();
    }
    let [families, late_families] =
        pids.map(|pid| pid.map(|pid| families_of(&metrics, pid)).unwrap_or_default());
    let ended = attackers.iter_mut().filter_map(Attacker::ended).collect();
    let recorded = daemon.stop(load.pid(), || {
        attackers.iter().for_each(|attacker| attacker.group().kill_processes())
    });
    Outcome { recorded, used, families, late_families, metrics, ended }
}

/// Runs attacks beside the daemon. Returns what has happened, and the tenants of the attackers with the data that each of
/// them must lose. Attacks that are impossible on this machine are skipped.
fn trial(
    attacks: &[&Attack],
    seconds: f64,
    fixtures: &Fixtures,
    expected: &BTreeSet<String>,
) -> (Outcome, Vec<(String, Option<&'static str>)>) {
    let ports = (daemon::free_port(), daemon::free_port());
    let is_long = attacks.len() > 1;
    let cpu_percent = if is_long { AMONG_OTHERS } else { ALONE };
    let (mut attackers, mut losing) = (Vec::new(), Vec::new());
    for attack in attacks {
        let mut attacker = Attacker::new(attack.name, cpu_percent, ports.0, fixtures);
        if let Err(reason) = (attack.start)(&mut attacker) {
            println!("NOT TESTED: {}: {reason}", attack.name);
            continue;
        }
        losing.push((attacker.tenant(), attack.reason));
        attackers.push(attacker);
    }
    let others = is_long.then(attack::Attack::start);
    // If the daemon or a tool waits for a blocked file system, it waits until the attackers end.
    let groups: Vec<_> = attackers.iter().map(Attacker::group).collect();
    let limit = Duration::from_secs_f64(seconds) + MAX_OVERHEAD;
    let outcome = thread::scope(|scope| {
        let (finish, finished) = mpsc::channel::<()>();
        let watchdog = scope.spawn(move || {
            let is_late = finished.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            groups.iter().filter(|_| is_late).for_each(|group| group.kill_processes());
            is_late
        });
        let outcome = observe(&mut attackers, ports, seconds, is_long, expected);
        drop(finish);
        assert!(!watchdog.join().unwrap(), "the trial took longer than {limit:?}");
        outcome
    });
    drop(others);
    (outcome, losing)
}

/// Checks an outcome against that of a trial without attackers. Returns one line for each violated property.
fn violations(
    outcome: &Outcome,
    quiet: &Outcome,
    losing: &[(String, Option<&str>)],
    min_share: f64,
) -> Vec<String> {
    let Outcome { recorded, used, families, late_families, metrics, ended } = outcome;
    let share = |recorded: f64, used: f64| recorded / used.max(f64::MIN_POSITIVE);
    let shares = [share(recorded.samples / HERTZ, used.0), share(recorded.bytes, used.1)];
    let saving = |metrics: &str| sum(metrics, "jvmprobed_saving", &[]);
    let reasons = |tenant: &str| {
        let lines = metrics.lines().filter(|line| line.starts_with("jvmprobed_limited_total{"));
        let of_tenant = lines.filter(|line| line.contains(&format!("{tenant}\"")));
        let reason =
            |line: &str| Some(line.split_once("reason=\"")?.1.split_once('"')?.0.to_owned());
        of_tenant.filter_map(reason).collect::<Vec<_>>()
    };
    println!(
        "    peak {} MB, daemon used {:.0} ms of CPU time per second, health within {:.2?}, ended after {:.2?}, {:.0} % of \
         samples, {:.0} % of allocation, saving {}",
        recorded.peak_memory >> 20,
        sum(metrics, "jvmprobed_processor_seconds_total", &[]) / recorded.age.as_secs_f64() * 1e3,
        recorded.slowest_health,
        recorded.stop_time,
        shares[0] * 100.0,
        shares[1] * 100.0,
        saving(metrics),
    );
    let mut violated = Vec::new();
    let mut check = |is_met: bool, text: String| violated.extend((!is_met).then_some(text));
    check(ended.is_empty(), format!("attackers ended early: {ended:?}"));
    check(
        recorded.oom_kills == 0,
        format!("{} processes were killed for memory", recorded.oom_kills),
    );
    check(
        recorded.stop_time < MAX_STOP,
        format!("the daemon ended {:?} after SIGTERM", recorded.stop_time),
    );
    check(recorded.is_success, format!("the daemon failed: {}", recorded.stderr));
    check(
        shares[0] >= min_share,
        format!("{:.3} of the neighbour's CPU time is recorded", shares[0]),
    );
    check(
        shares[1] >= min_share,
        format!("{:.3} of the neighbour's allocation is recorded", shares[1]),
    );
    let missing: Vec<_> = quiet.families.difference(families).collect();
    check(missing.is_empty(), format!("the neighbour lacks {missing:?}"));
    if !late_families.is_empty() || min_share == MIN_SHARE_OF_MINUTES {
        let missing: Vec<_> = quiet.families.difference(late_families).collect();
        check(missing.is_empty(), format!("the JVM that started late lacks {missing:?}"));
    }
    let (now, then) = (saving(metrics), saving(&quiet.metrics));
    check(now <= then, format!("the daemon saves resources: step {now}, without attackers {then}"));
    for id in [FALSE_CONTAINER, &FALSE_POD.replace('_', "-")] {
        check(!metrics.contains(id), format!("the metrics contain the claimed ID {id}"));
    }
    for (tenant, reason) in losing {
        let found = reasons(tenant);
        println!("    {tenant} lost {found:?}, expected {reason:?}");
        check(
            reason.is_none_or(|reason| found.iter().any(|found| found == reason)),
            format!("no metric says that {tenant} lost {reason:?}"),
        );
        let is_said = recorded.stderr.contains(tenant);
        check(found.is_empty() || is_said, format!("no message says that {tenant} lost {found:?}"));
    }
    violated
}

/// Returns the attacks that `JVMPROBE_ATTACKS` selects.
fn selected() -> Vec<&'static Attack> {
    let names = std::env::var("JVMPROBE_ATTACKS").unwrap_or_default();
    let is_selected =
        |attack: &&Attack| names.is_empty() || names.split(',').any(|name| name == attack.name);
    ATTACKS.iter().filter(is_selected).collect()
}

/// Makes fixtures, and runs a trial without attackers. Returns `None` if control groups cannot be limited here.
fn prepare() -> Option<(Fixtures, Outcome)> {
    run_alone();
    if let Err(error) = Cgroup::new("daemon", Limits::of_unit()) {
        println!("NOT TESTED: no control group with {:?}: {error}", Limits::of_unit());
        return None;
    }
    let fixtures = Fixtures::build();
    let (quiet, _) = trial(&[], 4.0, &fixtures, &BTreeSet::new());
    let violated = violations(&quiet, &quiet, &[], MIN_SHARE_OF_SECONDS);
    assert!(violated.is_empty(), "without attackers: {violated:?}");
    assert!(quiet.families.len() > 20, "{:?}", quiet.families);
    Some((fixtures, quiet))
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default()
}

#[test]
fn no_attack_harms_the_daemon_or_a_neighbour() {
    let Some((fixtures, quiet)) = prepare() else { return };
    let mut failed = Vec::new();
    for attack in selected() {
        println!("{}:", attack.name);
        let trial = AssertUnwindSafe(|| {
            let (outcome, losing) = trial(&[attack], attack.seconds, &fixtures, &quiet.families);
            violations(&outcome, &quiet, &losing, MIN_SHARE_OF_SECONDS)
        });
        let violated = catch_unwind(trial).unwrap_or_else(|panic| vec![message(&*panic)]);
        failed.extend(violated.into_iter().map(|text| format!("{}: {text}", attack.name)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
#[ignore = "long: make test-all"]
fn all_attacks_at_once_harm_neither_the_daemon_nor_a_neighbour() {
    let Some((fixtures, quiet)) = prepare() else { return };
    let (outcome, losing) = trial(&selected(), 300.0, &fixtures, &quiet.families);
    println!("{}", outcome.recorded.stderr);
    let violated = violations(&outcome, &quiet, &losing, MIN_SHARE_OF_MINUTES);
    assert!(violated.is_empty(), "{}", violated.join("\n"));
}
