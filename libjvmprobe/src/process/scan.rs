//! Scans /proc for JVMs, existing and new.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    Error, Pid,
    process::{Candidate, Target, cgroup, libjvm::JVM_NAMES, maps, reader},
    sys::{limited, thread_cpu_time, warn_once},
};

/// An undecided process is examined again after its age divided by this number: a launcher maps libjvm.so only some
/// milliseconds after its start, an old process hardly ever.
const AGE_DIVISOR: u32 = 8;
/// Maximum time until an undecided process is examined again.
const MAX_INTERVAL: Duration = Duration::from_secs(600);
/// The same for a process whose mapping of libjvm.so may have been missed.
const MAX_INTERVAL_AFTER_LOSS: Duration = Duration::from_secs(8);
/// Number of examinations of a process, caused by its own mappings, that are not delayed, and the delay of the next one,
/// which doubles each time up to the maximum.
const FREE_EXAMINATIONS: u32 = 4;
const MIN_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(64);

/// Age from which on a process that was never examined counts as limited whenever a scan ends before its turn.
const LATE: Duration = Duration::from_secs(10);
/// Maximum time that opening one process may take.
const MAX_OPENING: Duration = Duration::from_secs(2);

/// Finds JVMs, and returns each one once.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    seen: HashMap<Pid, Seen>,
    /// Processes that look like JVMs but cannot be traced, with the reason.
    refused: Vec<(Pid, Error)>,
    /// Time of the last loss of mapping events.
    lost_at: Option<Instant>,
    /// CPU time that limited scans have spent on each tenant, halved with each scan. The tenant with the least is
    /// examined first.
    spent: HashMap<Arc<str>, Duration>,
    /// PID at which the next limited scan begins.
    resume_at: Pid,
}

/// A process that was seen.
#[derive(Debug)]
struct Seen {
    since: Instant,
    /// Time of the last examination.
    examined: Option<Instant>,
    /// Number of examinations without a final result.
    examinations: u32,
    is_decided: bool,
    tenant: Option<Arc<str>>,
}

impl Seen {
    fn new(now: Instant) -> Self {
        Self { since: now, examined: None, examinations: 0, is_decided: false, tenant: None }
    }

    /// Returns whether a scan examines the process.
    fn is_due(&self, lost_at: Option<Instant>, now: Instant) -> bool {
        let Some(examined) = self.examined else { return !self.is_decided };
        let may_have_missed = lost_at.is_some_and(|at| at >= examined);
        let max = if may_have_missed { MAX_INTERVAL_AFTER_LOSS } else { MAX_INTERVAL };
        let age = now.saturating_duration_since(self.since);
        !self.is_decided && now.saturating_duration_since(examined) >= (age / AGE_DIVISOR).min(max)
    }
}

impl Scanner {
    /// Makes a scanner that has not seen any process.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Opens and returns the JVMs that no earlier call has returned. A JVM that cannot be opened is
    /// [refused](Self::take_refused) if [`is_final`] is true for the error; else the next call tries it
    /// again.
    pub(crate) fn scan(&mut self) -> Vec<Target> {
        self.open_where(|_| true)
    }

    /// Like [`scan`](Self::scan), but only examines processes that `is_wanted` selects.
    pub(crate) fn open_where(&mut self, is_wanted: impl Fn(Pid) -> bool) -> Vec<Target> {
        let mut targets = Vec::new();
        for candidate in self.scan_where(None, is_wanted) {
            match reader::within(MAX_OPENING, || candidate.open()) {
                Ok(target) => targets.push(target),
                Err(error) if is_final(&error) => self.refused.push((candidate.process.pid, error)),
                Err(_) => self.forget(candidate.process.pid),
            }
        }
        targets
    }

    /// Returns the JVMs that no earlier call has returned, among processes that `is_wanted` selects. If `limit` is given,
    /// the scan takes about this CPU time, which is shared fairly among tenants, and later scans go on with the rest.
    pub(crate) fn scan_where(
        &mut self,
        limit: Option<Duration>,
        is_wanted: impl Fn(Pid) -> bool,
    ) -> Vec<Candidate> {
        let begin = thread_cpu_time();
        let used = || thread_cpu_time().saturating_sub(begin);
        let present = processes();
        self.seen.retain(|pid, _| present.binary_search(pid).is_ok());
        let mut due = self.due(&present, is_wanted, || limit.is_some_and(|max| used() > max / 2));
        self.spent.retain(|tenant, spent| {
            *spent /= 2;
            due.contains_key(tenant)
        });
        let spent = |tenant: &Arc<str>| self.spent.get(tenant).copied().unwrap_or_default();
        let mut order: BTreeSet<_> =
            due.keys().map(|tenant| (spent(tenant), Arc::clone(tenant))).collect();
        let mut found = Vec::new();
        while let Some((mut spent, tenant)) = order.pop_first() {
            let before = used();
            if limit.is_some_and(|max| before > max) {
                break;
            }
            let Some(pid) = due.get_mut(&tenant).and_then(Vec::pop) else { continue };
            found.extend(self.examine_again(pid));
            spent += used().saturating_sub(before);
            self.spent.insert(Arc::clone(&tenant), spent);
            order.insert((spent, tenant));
        }
        for (tenant, left) in due {
            let is_overdue = |pid: &&Pid| {
                let seen = self.seen.get(pid).filter(|seen| seen.examined.is_none());
                seen.is_some_and(|seen| seen.since.elapsed() >= LATE)
            };
            limited::add("discovery", &tenant, left.iter().filter(is_overdue).count() as u64);
        }
        found
    }

    /// Returns the processes that are due, by tenant, those that were examined least recently last. If `is_over`, leaves
    /// the others to the next scan.
    fn due(
        &mut self,
        present: &[Pid],
        is_wanted: impl Fn(Pid) -> bool,
        is_over: impl Fn() -> bool,
    ) -> HashMap<Arc<str>, Vec<Pid>> {
        let mut due: HashMap<Arc<str>, Vec<_>> = HashMap::new();
        let now = Instant::now();
        let middle = present.partition_point(|pid| *pid < self.resume_at);
        self.resume_at = Pid(0);
        let (before, from) = present.split_at(middle);
        for &pid in from.iter().chain(before) {
            let seen = self.seen.entry(pid).or_insert_with(|| Seen::new(now));
            if !seen.is_due(self.lost_at, now) || !is_wanted(pid) {
                continue;
            }
            if seen.tenant.is_none() && is_over() {
                self.resume_at = pid;
                break;
            }
            let tenant = seen.tenant.get_or_insert_with(|| cgroup::tenant_of(pid));
            due.entry(Arc::clone(tenant)).or_default().push((seen.examined, pid));
        }
        let sort = |mut pids: Vec<(Option<Instant>, Pid)>| {
            pids.sort_unstable_by(|a, b| b.cmp(a));
            pids.into_iter().map(|(_, pid)| pid).collect()
        };
        due.into_iter().map(|(tenant, pids)| (tenant, sort(pids))).collect()
    }

    /// Notes that mapping events were lost: any process may have become a JVM since it was last examined.
    pub(crate) fn note_loss(&mut self) {
        self.lost_at = Some(Instant::now());
    }

    /// Examines a process during a scan. In its first examination, it is examined even if it maps no JVM's library, to
    /// detect native images. Later, only a process that maps a JVM's library can have become a JVM.
    fn examine_again(&mut self, pid: Pid) -> Option<Candidate> {
        let seen = self.seen.get_mut(&pid)?;
        let is_first = seen.examined.is_none();
        seen.examined = Some(Instant::now());
        if is_first || maps_jvm(pid) { self.examine(pid) } else { None }
    }

    /// Examines one process that is likely to be a JVM. Returns it if it is a JVM that no earlier call has
    /// returned.
    pub(crate) fn examine(&mut self, pid: Pid) -> Option<Candidate> {
        let now = Instant::now();
        let seen = self.seen.entry(pid).or_insert_with(|| Seen::new(now));
        if seen.is_decided {
            return None;
        }
        seen.examined = Some(now);
        match reader::within(MAX_OPENING, || Candidate::find(pid)) {
            Ok(candidate) => {
                seen.is_decided = true;
                Some(candidate)
            }
            Err(error) => {
                seen.examinations = seen.examinations.saturating_add(1);
                let is_unreadable = is_jvm_without_first_thread(&error);
                if is_unreadable {
                    limited::add("unreadable", &cgroup::tenant_of(pid), 1);
                    let why = "the first thread of this JVM has ended, although other threads run, so it \
                               cannot be traced";
                    warn_once(&format!("ignoring process {pid}"), why);
                }
                if is_unreadable || is_final(&error) {
                    if let Error::TooManyMappings { .. } = error {
                        log::warn!("ignoring a process: {error}");
                    }
                    seen.is_decided = true;
                    self.refused.push((pid, error));
                }
                None
            }
        }
    }

    /// Returns the time to wait before a process that has mapped something like libjvm.so is examined: none at first, and
    /// longer each time that it was no JVM.
    pub(crate) fn backoff(&self, pid: Pid) -> Duration {
        let examinations = self.seen.get(&pid).map_or(0, |seen| seen.examinations);
        match examinations.checked_sub(FREE_EXAMINATIONS) {
            None => Duration::ZERO,
            Some(doublings) => MIN_BACKOFF
                .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
                .min(MAX_BACKOFF),
        }
    }

    /// Returns whether the result for a process is final.
    pub(crate) fn is_decided(&self, pid: Pid) -> bool {
        self.seen.get(&pid).is_some_and(|seen| seen.is_decided)
    }

    /// Forgets the result for a PID, so that later scans examine the process with this PID as if it were new.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.seen.remove(&pid);
    }

    /// Returns the processes that were found since the last call and cannot be traced.
    pub(crate) fn take_refused(&mut self) -> Vec<(Pid, Error)> {
        std::mem::take(&mut self.refused)
    }
}

/// Returns whether an error means that a process is a JVM that cannot be traced. After any other error, a
/// later attempt may succeed.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        // A kernel thread, another program, or a process that has ended meanwhile.
        Error::NotAJvm { .. }
        | Error::NoSuchProcess { .. }
        | Error::Zombie { .. }
        | Error::FirstThreadEnded { .. }
        | Error::ThreadId { .. } => false,
        // Its memory or files answer too slowly, or its tenant's share of memory is used up at this time.
        Error::Io { source, .. } => {
            !matches!(source.kind(), io::ErrorKind::TimedOut | io::ErrorKind::OutOfMemory)
        }
        _ => true,
    }
}

/// Returns whether an error is about a JVM whose first thread has ended while others run.
fn is_jvm_without_first_thread(error: &Error) -> bool {
    let Error::FirstThreadEnded { pid, running } = *error else { return false };
    maps::any_line_of_thread_contains(pid, running, &JVM_NAMES).unwrap_or_default()
}

/// Returns whether a process may have mapped a JVM's library. This is cheaper than [`Candidate::find`].
fn maps_jvm(pid: Pid) -> bool {
    maps::any_line_contains(pid, &JVM_NAMES).unwrap_or_default()
}

/// Returns all PIDs in /proc, sorted.
fn processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid))
        .collect();
    pids.sort_unstable();
    pids
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn sleepers(count: usize) -> Vec<Child> {
        let start = |_| Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        (0..count).map(start).collect()
    }

    fn end(children: Vec<Child>) {
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn seen(age: u64, since_examined: u64, now: Instant) -> Seen {
        let before = |seconds| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        Seen { examined: Some(before(since_examined)), ..Seen::new(before(age)) }
    }

    #[test]
    fn old_process_is_examined_rarely_and_sooner_after_a_loss() {
        let now = Instant::now();
        assert!(Seen::new(now).is_due(None, now));
        assert!(seen(16, 2, now).is_due(None, now) && !seen(16, 1, now).is_due(None, now));
        let old = seen(100_000, 9, now);
        assert!(!old.is_due(None, now) && old.is_due(Some(now), now));
        // A loss before the examination does not matter.
        assert!(!old.is_due(now.checked_sub(Duration::from_secs(10)), now));
        assert!(!seen(100_000, 7, now).is_due(Some(now), now));
        assert!(!Seen { is_decided: true, ..old }.is_due(Some(now), now));
    }

    #[test]
    fn limited_scans_share_their_time_among_tenants_and_go_on_where_they_ended() {
        let (many, few) = (sleepers(40), sleepers(1));
        let pid = |child: &Child| Pid(child.id());
        let all: Vec<_> = many.iter().chain(&few).map(pid).collect();
        let mut scanner = Scanner::new();
        let now = Instant::now();
        for (index, pid) in all.iter().enumerate() {
            let tenant = if index < many.len() { "many" } else { "few" };
            scanner.seen.insert(*pid, Seen { tenant: Some(tenant.into()), ..Seen::new(now) });
        }
        let wanted = |pid: Pid| all.contains(&pid);
        let examined = |scanner: &Scanner, pids: &[Child]| {
            pids.iter().filter(|child| scanner.seen[&pid(child)].examined.is_some()).count()
        };
        // The list of processes alone takes longer than this, so nothing is examined.
        scanner.scan_where(Some(Duration::ZERO), wanted);
        assert_eq!((examined(&scanner, &many), examined(&scanner, &few)), (0, 0));
        let mut scans = 0;
        let begin = thread_cpu_time();
        processes();
        let limit = (thread_cpu_time() - begin) * 2 + Duration::from_millis(2);
        while examined(&scanner, &many) < many.len() {
            scanner.scan_where(Some(limit), wanted);
            scans += 1;
            // After any examination, the tenant with one process has had its turn among the first two.
            assert!(examined(&scanner, &many) < 2 || examined(&scanner, &few) == 1);
            assert!(scans < 1000);
        }
        end(many);
        end(few);
    }

    #[test]
    fn jvm_whose_first_thread_has_ended_is_reported_once_and_other_programs_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for (name, is_jvm) in [("libjvm.so", true), ("libother.so", false)] {
            let path = folder.path().join(name);
            fs::write(&path, [0; 4096]).unwrap();
            let script = "
import ctypes, mmap, sys, threading, time
f = open(sys.argv[1], 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
ctypes.CDLL(None).syscall(60 if sys.argv[2] == 'x86_64' else 93, 0)";
            let mut child = Command::new("python3");
            child.args(["-c", script]).arg(&path).arg(std::env::consts::ARCH);
            let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
            let pid = Pid(child.id());
            let begin = Instant::now();
            let has_ended = || matches!(Candidate::find(pid), Err(Error::FirstThreadEnded { .. }));
            while !has_ended() && begin.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut scanner = Scanner::new();
            let refused: Vec<_> = (0..2)
                .flat_map(|_| {
                    scanner.examine(pid);
                    scanner.take_refused()
                })
                .collect();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(refused.len(), usize::from(is_jvm), "{refused:?}");
            if let Some((_, error)) = refused.first() {
                assert!(error.to_string().contains("other threads run"), "{error}");
            }
        }
    }

    #[test]
    fn process_that_is_never_a_jvm_is_examined_ever_less_often() {
        let child = sleepers(1);
        let (mut scanner, pid) = (Scanner::new(), Pid(child[0].id()));
        let mut backoffs = Vec::new();
        for _ in 0..40 {
            assert!(scanner.examine(pid).is_none());
            backoffs.push(scanner.backoff(pid));
        }
        end(child);
        assert_eq!(backoffs[..3], [Duration::ZERO; 3]);
        assert_eq!(backoffs[3..5], [MIN_BACKOFF, 2 * MIN_BACKOFF]);
        assert_eq!(backoffs[39], MAX_BACKOFF);
    }
}
