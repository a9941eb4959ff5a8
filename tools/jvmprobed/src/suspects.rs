//! Files and JVMs at which the daemon was killed, remembered in the store's directory.
//!
//! While a thread reads a process, a slot of the file [`MARKS`] contains what it reads: one write into the page cache,
//! which survives the daemon, but not a crash of the machine. If the daemon is killed (by the kernel because of its memory
//! limit, for example), the next daemon finds the marks. Several threads read at the same time, and a kill may have other
//! causes, so one mark proves nothing. Therefore:
//!
//! 1. What was read at a kill becomes a *suspect* for `MEMORY`: it is still read, but only one suspect at a time.
//! 2. If the daemon is killed while it reads a suspect, the suspect is *blamed*, because it was the only suspect that was
//!    being read. If it is the same process, it is skipped. After a third kill, other processes of the same tenant that
//!    have the same file are skipped, too. A changed file is another file.
//!
//! A suspect is identified by its tenant, too. Other tenants that have the same file are therefore not affected.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Read},
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use libjvmprobe::sys::reading_marks::{FileVersion, Marks, Reading, set_marks};
use serde::{Deserialize, Serialize};

/// Name of the file with marks.
pub const MARKS: &str = "reading";
/// Name of the file with suspects.
pub const SUSPECTS: &str = "suspects";
/// Time for which a suspect is remembered after the last kill.
const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of suspects. The oldest are dropped.
const MAX_SUSPECTS: usize = 256;
/// Maximum size of the file with suspects, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Number of slots: one for each thread that may read at the same time.
const SLOTS: usize = 64;
/// Size of a slot in bytes. It contains one [`Suspect`] as JSON, followed by zeros.
const SLOT: usize = 4096;
/// Maximum number of characters of a tenant's name and of a path in a mark.
const MAX_TEXT: usize = 256;
/// Maximum time to wait until another suspect has been read.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Number of kills after which the same process is skipped, and after which all processes of the tenant with the same file
/// are.
const BLAMED: u32 = 2;
const FILE_BLAMED: u32 = 3;

/// A process that was read when the daemon was killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    tenant: String,
    path: String,
    dev: u64,
    ino: u64,
    size: u64,
    mtime_ns: i64,
    pid: u32,
    start_ticks: u64,
    /// Number of kills.
    #[serde(default)]
    kills: u32,
    /// Time of the last kill, in seconds since 1970.
    #[serde(default)]
    last: u64,
}

impl Suspect {
    fn new(reading: &Reading) -> Self {
        let Reading { tenant, path, file, process } = reading;
        let FileVersion { dev, ino, size, mtime_ns } = *file;
        let text = |text: &str| text.chars().take(MAX_TEXT).collect();
        let (tenant, path) = (text(tenant), text(&path.to_string_lossy()));
        let (pid, start_ticks) = *process;
        Self { tenant, path, dev, ino, size, mtime_ns, pid, start_ticks, kills: 0, last: 0 }
    }

    /// Returns whether both have the same tenant and the same file.
    fn has_file_of(&self, other: &Self) -> bool {
        let key = |one: &Self| (one.dev, one.ino, one.size, one.mtime_ns);
        key(self) == key(other) && self.tenant == other.tenant
    }

    /// Returns whether both are the same process with the same file.
    fn is_process_of(&self, other: &Self) -> bool {
        self.has_file_of(other) && (self.pid, self.start_ticks) == (other.pid, other.start_ticks)
    }

    /// Returns what it is, for a message.
    fn describe(&self) -> String {
        let Self { pid, tenant, path, .. } = self;
        format!("process {pid} of {} ({})", tenant.escape_debug(), path.escape_debug())
    }
}

/// Evidence against something that is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    None,
    Suspect,
    Blamed,
}

fn verdict(suspects: &[Suspect], one: &Suspect) -> Verdict {
    let of_file = || suspects.iter().filter(|suspect| suspect.has_file_of(one));
    let kills: u32 = of_file().map(|suspect| suspect.kills).fold(0, u32::saturating_add);
    let is_same = of_file().any(|suspect| suspect.is_process_of(one) && suspect.kills >= BLAMED);
    match kills {
        0 => Verdict::None,
        _ if is_same || kills >= FILE_BLAMED => Verdict::Blamed,
        _ => Verdict::Suspect,
    }
}

/// Adds the marks that a killed daemon has left to the suspects, and drops those that are too old or too many.
fn add_marks(suspects: &mut Vec<Suspect>, marks: Vec<Suspect>, now: u64) {
    for mark in marks {
        match suspects.iter_mut().find(|suspect| suspect.is_process_of(&mark)) {
            Some(suspect) => (suspect.kills, suspect.last) = (suspect.kills.saturating_add(1), now),
            None => suspects.push(Suspect { kills: 1, last: now, ..mark }),
        }
    }
    // A time in the future is wrong, because the clock was set back.
    suspects
        .retain(|suspect| now.checked_sub(suspect.last).is_some_and(|age| age < MEMORY.as_secs()));
    suspects.sort_by_key(|suspect| std::cmp::Reverse(suspect.last));
    suspects.truncate(MAX_SUSPECTS);
}

/// Marks of this daemon, and suspects of earlier ones.
#[derive(Debug)]
struct Suspects {
    file: File,
    suspects: Vec<Suspect>,
    state: Mutex<State>,
    /// Signaled when a suspect has been read.
    read: Condvar,
}

#[derive(Debug)]
struct State {
    is_used: [bool; SLOTS],
    /// Slot of the suspect that is being read.
    suspect: Option<usize>,
}

impl Suspects {
    /// Reads the marks of the previous daemon, and logs a line for each.
    fn open(dir: &Path) -> io::Result<Self> {
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            // O_NOFOLLOW
            options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
            options
        };
        let file = options().open(dir.join(MARKS))?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        let mut text = String::new();
        let known = options().open(dir.join(SUSPECTS))?;
        // Text that is not UTF-8 leaves the string empty.
        let _ = known.take(MAX_FILE).read_to_string(&mut text);
        let mut suspects: Vec<Suspect> = serde_json::from_str(&text).unwrap_or_default();
        let marks = marks_in(&file);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        add_marks(&mut suspects, marks.clone(), now.map_or(0, |now| now.as_secs()));
        for mark in &marks {
            let next = match verdict(&suspects, mark) {
                Verdict::Blamed => "skipping it for 24 h",
                _ => "reading it again, but not together with other suspects",
            };
            log::warn!("an earlier jvmprobed was killed while it read {}; {next}", mark.describe());
        }
        if !marks.is_empty() {
            write(&dir.join(SUSPECTS), &serde_json::to_vec(&suspects)?)?;
        }
        file.set_len(0)?;
        let state = Mutex::new(State { is_used: [false; SLOTS], suspect: None });
        Ok(Self { file, suspects, state, read: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the lock is released, even if another thread panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_slot(&self, slot: usize, content: &[u8]) {
        let mut bytes = [0; SLOT];
        let written = bytes.get_mut(..content.len()).map(|to| to.copy_from_slice(content));
        // Without a mark, nothing is blamed for a kill. The disk may be full.
        let _ = written.map(|()| self.file.write_all_at(&bytes, (slot * SLOT) as u64));
    }
}

impl Marks for Suspects {
    fn begin(&self, reading: &Reading) -> Result<Option<usize>, String> {
        let one = Suspect::new(reading);
        let verdict = verdict(&self.suspects, &one);
        if verdict == Verdict::Blamed {
            let what = one.describe();
            return Err(format!(
                "jvmprobed was killed several times while it read {what}; skipping it"
            ));
        }
        let mut state = self.lock();
        if verdict == Verdict::Suspect {
            let is_taken = |state: &mut State| state.suspect.is_some();
            let waited = self.read.wait_timeout_while(state, MAX_WAIT, is_taken);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let Some(slot) = state.is_used.iter().position(|is_used| !is_used) else { return Ok(None) };
        state.is_used[slot] = true;
        if verdict == Verdict::Suspect {
            state.suspect.get_or_insert(slot);
        }
        drop(state);
        self.write_slot(slot, &serde_json::to_vec(&one).unwrap_or_default());
        Ok(Some(slot))
    }

    fn end(&self, mark: usize) {
        self.write_slot(mark, &[]);
        let mut state = self.lock();
        state.is_used[mark] = false;
        if state.suspect.take_if(|slot| *slot == mark).is_some() {
            self.read.notify_one();
        }
    }
}

/// Returns the marks in a file. Slots with anything else are ignored.
fn marks_in(file: &File) -> Vec<Suspect> {
    let slot = |slot: usize| {
        let mut bytes = [0; SLOT];
        file.read_exact_at(&mut bytes, (slot * SLOT) as u64).ok()?;
        let text = bytes.split(|&byte| byte == 0).next()?;
        serde_json::from_slice(text).ok()
    };
    (0..SLOTS).filter_map(slot).collect()
}

/// Replaces a file.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all_at(content, 0)?;
    fs::rename(new, path)
}

/// Marks of this daemon. When dropped, the daemon ends without having been killed, so the marks are removed.
#[derive(Debug)]
pub struct Session(PathBuf);

impl Drop for Session {
    fn drop(&mut self) {
        // Threads that still read may write further marks: to the file that no longer has a name.
        let _ = fs::remove_file(self.0.join(MARKS));
    }
}

/// Starts to mark what the daemon reads, in the store's directory, which the caller has locked. Without write access, a
/// kill has no consequences.
pub fn begin(dir: &Path) -> Session {
    match Suspects::open(dir) {
        Ok(suspects) => set_marks(Box::new(Shared(Arc::new(suspects)))),
        Err(error) => log::debug!("{}: cannot mark what is read: {error}", dir.display()),
    }
    Session(dir.into())
}

/// Marks that tests can share.
#[derive(Debug)]
struct Shared(Arc<Suspects>);

impl Marks for Shared {
    fn begin(&self, reading: &Reading) -> Result<Option<usize>, String> {
        self.0.begin(reading)
    }

    fn end(&self, mark: usize) {
        self.0.end(mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(tenant: &str, pid: u32, mtime_ns: i64) -> Reading {
        let file = FileVersion { dev: 1, ino: 2, size: 3, mtime_ns };
        Reading { tenant: tenant.into(), path: "/x".into(), file, process: (pid, 7) }
    }

    #[test]
    fn marks_of_a_killed_daemon_lead_to_a_skip_at_the_second_kill() {
        let dir = tempfile::tempdir().unwrap();
        let (guilty, other) = (reading("guilty", 1, 0), reading("other", 2, 0));
        let open = || Suspects::open(dir.path()).unwrap();
        let of = |daemon: &Suspects, reading: &Reading| {
            verdict(&daemon.suspects, &Suspect::new(reading))
        };
        // Both are read when the daemon is killed for the first time, without an end of the marks.
        let first = open();
        assert_eq!(of(&first, &guilty), Verdict::None);
        assert!([&guilty, &other].iter().all(|one| first.begin(one).is_ok()));
        // The next one reads them alone.
        let second = open();
        assert!([&guilty, &other].iter().all(|one| of(&second, one) == Verdict::Suspect));
        let mark = second.begin(&other).unwrap().unwrap();
        assert_eq!(second.lock().suspect, Some(mark));
        second.end(mark);
        assert_eq!(second.lock().suspect, None);
        second.begin(&guilty).unwrap();
        let third = open();
        assert_eq!((of(&third, &guilty), of(&third, &other)), (Verdict::Blamed, Verdict::Suspect));
        let why = third.begin(&guilty).unwrap_err();
        assert!(why.contains("process 1 of guilty (/x)"), "{why}");
        assert!(third.begin(&other).is_ok_and(|mark| mark.is_some()));
        // A new process of the tenant gets one more attempt; another tenant or file is not affected.
        let new = reading("guilty", 3, 0);
        assert_eq!(of(&third, &new), Verdict::Suspect);
        assert_eq!(of(&third, &reading("guilty", 3, 1)), Verdict::None);
        assert_eq!(of(&third, &reading("third", 1, 0)), Verdict::None);
        third.begin(&new).unwrap();
        assert_eq!(of(&open(), &reading("guilty", 4, 0)), Verdict::Blamed);
        assert_eq!(of(&open(), &reading("guilty", 4, 0)), Verdict::Blamed);
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!([mode(MARKS) & 0o777, mode(SUSPECTS) & 0o777], [0o600; 2]);
    }

    #[test]
    fn daemon_that_ends_normally_leaves_no_suspects() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Suspects::open(dir.path()).unwrap();
        let mark = daemon.begin(&reading("t", 1, 0)).unwrap().unwrap();
        daemon.end(mark);
        assert!(marks_in(&daemon.file).is_empty());
        // A thread still reads when the daemon ends.
        daemon.begin(&reading("t", 1, 0)).unwrap();
        drop(Session(dir.path().into()));
        assert!(Suspects::open(dir.path()).unwrap().suspects.is_empty());
    }

    #[test]
    fn suspects_are_forgotten_after_a_day_and_their_number_is_limited() {
        let mark = |pid| Suspect::new(&reading("t", pid, 0));
        let mut suspects = Vec::new();
        add_marks(&mut suspects, vec![mark(1)], 1_000_000);
        add_marks(&mut suspects, vec![mark(2)], 1_000_000 + MEMORY.as_secs() - 1);
        assert_eq!(suspects.len(), 2);
        add_marks(&mut suspects, Vec::new(), 1_000_000 + MEMORY.as_secs());
        assert_eq!(suspects.iter().map(|suspect| suspect.pid).collect::<Vec<_>>(), [2]);
        add_marks(&mut suspects, (10..1000).map(mark).collect(), 1_000_000 + MEMORY.as_secs());
        assert_eq!(suspects.len(), MAX_SUSPECTS);
        // The clock was set back.
        add_marks(&mut suspects, Vec::new(), 5);
        assert!(suspects.is_empty());
    }

    #[test]
    fn damaged_files_and_long_names_are_tolerated() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(SUSPECTS), b"{\xff").unwrap();
        fs::write(dir.path().join(MARKS), vec![b'['; 3 * SLOT]).unwrap();
        let daemon = Suspects::open(dir.path()).unwrap();
        assert!(daemon.suspects.is_empty());
        let long =
            Reading { path: "\u{1}".repeat(5000).into(), ..reading(&"\"".repeat(5000), 1, 0) };
        for _ in 0..SLOTS {
            assert!(daemon.begin(&long).unwrap().is_some());
        }
        assert_eq!(daemon.begin(&long).unwrap(), None);
        assert_eq!(marks_in(&daemon.file).len(), SLOTS);
    }
}
