//! Names of functions in files that a target controls, read by a confined child process.
//!
//! | module | contents |
//! |---|---|
//! | `child` | the child's side: symbol tables and demangling |
//! | `debug_info` | DWARF, in the child |
//! | `protocol` | messages between parent and child |
//!
//! The child ([`crate::sys::confined`]) receives descriptors of files and returns names. A file that stalls
//! the child, or ends it twice in a row, is skipped from then on. If a tenant has more than three such files,
//! the child reads no new file for this tenant during a pause of one second, which doubles with each further
//! failure. Other tenants are served by a new child.

mod child;
mod debug_info;
mod protocol;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs::{File, Metadata},
    io,
    os::{fd::AsFd, unix::fs::MetadataExt},
    time::{Duration, Instant},
};

pub(crate) use protocol::{Found, Symbol};

use crate::{
    FileOffset,
    stack::symbolizer::{
        child::Child,
        protocol::{Answer, Files, Request},
    },
    sys::confined::{self, Confined, Failure},
};

/// Maximum time for an answer. Reading the largest symbol table takes a third of a second. Debug information, which is
/// read only from files of root, takes up to ten seconds.
const DEADLINE: Duration = Duration::from_secs(5);
const DEBUG_INFO_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum number of files remembered because they ended or stalled a child.
const MAX_SKIPPED: usize = 1024;
/// Maximum number of tenants whose failures are remembered.
const MAX_TENANTS: usize = 1024;
/// Number of failures of a tenant that cause no pause, because a few broken libraries are not an attack.
const MAX_FREE_FAILURES: u32 = 3;
/// First pause of a tenant that has more than `MAX_FREE_FAILURES` failures, and maximum pause. A tenant's
/// failures are forgotten `MAX_PAUSE` after the end of its last pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// Number of children that may be started in immediate succession, and the interval after which one more may be
/// started.
const MAX_STARTS: u32 = 10;
const START_INTERVAL: Duration = Duration::from_secs(5);

/// In a process started as the confined child, serves requests and exits. In other processes, permits this
/// program to start children. A program that does not call this gets no names of native frames, and no
/// message about that. Must be called first in main(), as [`crate::cli::run`] does.
pub fn enter() {
    confined::enter(|| {
        let mut child = Child::default();
        Box::new(move |request, files| child.answer(request, files))
    });
}

/// Identity of a file and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId {
    dev: u64,
    ino: u64,
    size: u64,
    modified: (i64, i64),
}

impl From<&Metadata> for FileId {
    fn from(meta: &Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        Self { dev: meta.dev(), ino: meta.ino(), size: meta.len(), modified }
    }
}

/// A file with its companions, ready to be sent to the child.
#[derive(Debug)]
pub(super) struct Bundle {
    key: u64,
    ids: Vec<FileId>,
    files: Vec<File>,
    present: Files,
    /// Whether the file is skipped: a child has rejected it, or it has ended or stalled a child.
    is_refused: bool,
}

/// Separate files with the symbols and the debug information of a file.
#[derive(Debug, Default)]
pub(super) struct DebugFiles {
    /// Symbols that the file lacks.
    pub(super) separate_symbols: Option<File>,
    /// Debug information that the file lacks.
    pub(super) debug: Option<File>,
    /// Debug information that the file shares with others.
    pub(super) common: Option<File>,
    /// Whether to read debug information.
    pub(super) debug_info: bool,
}

impl Bundle {
    /// Makes a bundle with a key that no other bundle has.
    pub(super) fn new(key: u64, file: File, companions: DebugFiles) -> Self {
        let DebugFiles { separate_symbols, debug, common, debug_info } = companions;
        let present = Files {
            separate_symbols: separate_symbols.is_some(),
            debug: debug.is_some(),
            common: common.is_some(),
            debug_info,
        };
        let files: Vec<_> =
            [Some(file), separate_symbols, debug, common].into_iter().flatten().collect();
        let ids = files.iter().filter_map(|file| file.metadata().ok());
        let ids = ids.map(|meta| FileId::from(&meta)).collect();
        Self { key, ids, files, present, is_refused: false }
    }

    /// Returns its key.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Returns the file itself.
    pub(super) fn file(&self) -> Option<&File> {
        self.files.first()
    }

    fn deadline(&self) -> Duration {
        if self.present.debug_info { DEBUG_INFO_DEADLINE } else { DEADLINE }
    }
}

/// Failure count of a tenant.
#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// End of the last pause.
    until: Instant,
}

impl Failures {
    /// Counts one more failure.
    fn add(last: Option<Self>, now: Instant) -> Self {
        let recent = last.filter(|last| now < last.until + MAX_PAUSE);
        let count = recent.map_or(0, |last| last.count).saturating_add(1);
        let doublings = count.checked_sub(MAX_FREE_FAILURES + 1);
        let pause = doublings
            .map_or(Duration::ZERO, |n| FIRST_PAUSE.saturating_mul(1 << n.min(20)).min(MAX_PAUSE));
        Self { count, until: now + pause }
    }
}

/// A child, and the keys of the files sent to it.
#[derive(Debug)]
struct Running {
    process: Confined,
    open: HashSet<u64>,
}

/// The parent's side: starts children and sends requests. Belongs to one thread.
#[derive(Debug)]
pub(super) struct Symbolizer {
    child: Option<Running>,
    skipped: VecDeque<Vec<FileId>>,
    tenants: HashMap<u64, Failures>,
    /// Number of children that may be started now, and the time at which it was last updated.
    starts: u32,
    starts_updated: Instant,
    has_warned: bool,
}

impl Default for Symbolizer {
    fn default() -> Self {
        Self {
            child: None,
            skipped: VecDeque::new(),
            tenants: HashMap::new(),
            starts: MAX_STARTS,
            starts_updated: Instant::now(),
            has_warned: false,
        }
    }
}

impl Symbolizer {
    /// Returns the symbols at an offset of a file; `None` if the file cannot be read now. `tenant` is held responsible
    /// if the file ends or stalls the child.
    pub(super) fn find(
        &mut self,
        bundle: &mut Bundle,
        offset: FileOffset,
        tenant: u64,
    ) -> Option<Found> {
        let now = Instant::now();
        if bundle.is_refused || self.skipped.contains(&bundle.ids) {
            bundle.is_refused = true;
            return None;
        }
        let is_known = |child: &Running| child.open.contains(&bundle.key);
        let is_new = !self.child.as_ref().is_some_and(is_known);
        if is_new && self.tenants.get(&tenant).is_some_and(|failed| now < failed.until) {
            return None;
        }
        let mut has_ended = false;
        loop {
            let child = self.running(now)?;
            let failure = match look_up(child, bundle, offset) {
                Ok(found) => return found,
                Err(Failure::Unsent(error)) => {
                    log::debug!("cannot look up symbols of {}: {error}", path(bundle));
                    return None;
                }
                // Something other than this file may have ended the child, so the file is tried once more,
                // with a new child.
                Err(Failure::Ended(_)) if !has_ended => {
                    self.child = None;
                    has_ended = true;
                    continue;
                }
                Err(Failure::Ended(Some(status))) => format!("crashed ({status})"),
                Err(Failure::Ended(None)) => "crashed".to_owned(),
                Err(Failure::TimedOut) => "timed out".to_owned(),
            };
            self.child = None;
            let path = path(bundle);
            log::warn!("skipping the symbols of {path}: the symbol reader {failure}");
            self.blame(bundle, tenant);
            return None;
        }
    }

    /// Makes the child close a file that is no longer needed.
    pub(super) fn close(&mut self, key: u64) {
        let Some(child) = &mut self.child else { return };
        if !child.open.remove(&key) {
            return;
        }
        let request = Request::Close { key }.encode();
        if child.process.ask(&request, &[], DEADLINE).is_err() {
            self.child = None;
        }
    }

    /// Ends the child if it has no open file, because even an idle child uses memory.
    pub(super) fn stop_if_idle(&mut self) {
        if self.child.as_ref().is_some_and(|child| child.open.is_empty()) {
            self.child = None;
        }
    }

    /// Returns the child, and starts it if necessary.
    fn running(&mut self, now: Instant) -> Option<&mut Running> {
        // If the child has ended between two requests, no file is to blame.
        if self.child.as_ref().is_some_and(|child| !child.process.is_idle()) {
            self.child = None;
        }
        if self.child.is_none() {
            self.child = self.start(now);
        }
        self.child.as_mut()
    }

    fn start(&mut self, now: Instant) -> Option<Running> {
        while self.starts < MAX_STARTS && self.starts_updated + START_INTERVAL <= now {
            self.starts += 1;
            self.starts_updated += START_INTERVAL;
        }
        if self.starts == MAX_STARTS {
            self.starts_updated = now;
        }
        self.starts = self.starts.checked_sub(1)?;
        match Confined::start() {
            Ok(process) => Some(Running { process, open: HashSet::new() }),
            // This program does not call `enter`, so it must not start children.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    log::warn!(
                        "cannot start the symbol reader: {error}; native functions have no names \
                         until it starts"
                    );
                }
                None
            }
        }
    }

    /// Marks a file that ended or stalled a child, and counts the failure for the tenant.
    fn blame(&mut self, bundle: &mut Bundle, tenant: u64) {
        bundle.is_refused = true;
        if self.skipped.len() >= MAX_SKIPPED {
            self.skipped.pop_front();
        }
        self.skipped.push_back(bundle.ids.clone());
        let now = Instant::now();
        if self.tenants.len() >= MAX_TENANTS {
            self.tenants.retain(|_, failed| now < failed.until);
        }
        if self.tenants.len() < MAX_TENANTS || self.tenants.contains_key(&tenant) {
            let failures = Failures::add(self.tenants.get(&tenant).copied(), now);
            self.tenants.insert(tenant, failures);
        }
    }
}

/// Makes the child look up an offset, and open the file first if necessary.
fn look_up(
    child: &mut Running,
    bundle: &mut Bundle,
    offset: FileOffset,
) -> Result<Option<Found>, Failure> {
    let (key, deadline) = (bundle.key, bundle.deadline());
    // A second attempt is needed if the child has closed the file to save memory.
    for _ in 0..2 {
        if !child.open.contains(&key) {
            let files: Vec<_> = bundle.files.iter().map(AsFd::as_fd).collect();
            let request = Request::Open { key, files: bundle.present }.encode();
            match Answer::decode(&child.process.ask(&request, &files, deadline)?) {
                Some(Answer::Done) => _ = child.open.insert(key),
                Some(Answer::Refused) => {
                    bundle.is_refused = true;
                    return Ok(None);
                }
                _ => return Err(Failure::Ended(None)),
            }
        }
        let request = Request::Find { key, offset }.encode();
        match Answer::decode(&child.process.ask(&request, &[], deadline)?) {
            Some(Answer::Found(found)) if found.contains(offset) => return Ok(Some(found)),
            Some(Answer::NotOpen) => _ = child.open.remove(&key),
            _ => return Err(Failure::Ended(None)),
        }
    }
    Ok(None)
}

/// Returns the path of a file, for messages.
fn path(bundle: &Bundle) -> String {
    let fd = bundle.files.first().map(std::os::fd::AsRawFd::as_raw_fd).unwrap_or(-1);
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    path.map_or_else(|_| "a file".to_owned(), |path| path.display().to_string())
}

/// Entry point for the fuzzer: opens a file and looks up offsets as the child does, in this process.
#[cfg(feature = "fuzzing")]
pub(super) fn fuzz(file: File) {
    let mut child = Child::default();
    let files = Files { debug_info: true, ..Files::default() };
    child.answer(&Request::Open { key: 0, files }.encode(), vec![file.into()]);
    for offset in [0, 0x40, 0x1000, 0x1040] {
        let request = Request::Find { key: 0, offset: FileOffset(offset) };
        let answer = child.answer(&request.encode(), Vec::new());
        assert!(Answer::decode(&answer).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(key: u64) -> Bundle {
        Bundle::new(key, tempfile::tempfile().unwrap(), DebugFiles::default())
    }

    #[test]
    fn skip_list_of_crashing_files_is_bounded() {
        let mut symbolizer = Symbolizer::default();
        for i in 0..MAX_SKIPPED as u64 + 10 {
            let mut file = bundle(i);
            symbolizer.blame(&mut file, 7);
            assert!(file.is_refused && symbolizer.skipped.contains(&file.ids));
        }
        assert_eq!((symbolizer.skipped.len(), symbolizer.tenants.len()), (MAX_SKIPPED, 1));
        for tenant in 0..2 * MAX_TENANTS as u64 {
            symbolizer.blame(&mut bundle(0), tenant);
        }
        assert!(symbolizer.tenants.len() <= MAX_TENANTS);
    }

    #[test]
    fn tenant_pause_doubles_after_its_free_failures() {
        let now = Instant::now();
        let mut failures = None;
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let failed = Failures::add(failures, now);
            pauses.push((failed.until - now).as_secs());
            failures = Some(failed);
        }
        assert_eq!(pauses[..8], [0, 0, 0, 1, 2, 4, 8, 16]);
        assert_eq!(pauses[19], MAX_PAUSE.as_secs());
        let later = now + 3 * MAX_PAUSE;
        assert_eq!(Failures::add(failures, later).until, later);
    }

    #[test]
    fn children_are_started_at_a_bounded_rate() {
        let (mut symbolizer, now) = (Symbolizer::default(), Instant::now());
        // This test program does not call `enter`, so each attempt fails, and counts as a start.
        for _ in 0..2 * MAX_STARTS {
            assert!(symbolizer.start(now).is_none());
        }
        assert_eq!(symbolizer.starts, 0);
        assert!(symbolizer.start(now + START_INTERVAL - Duration::from_millis(1)).is_none());
        assert_eq!(symbolizer.starts, 0);
        assert!(symbolizer.start(now + 3 * START_INTERVAL).is_none());
        assert_eq!(symbolizer.starts, 2);
        assert!(!symbolizer.has_warned, "this program has not asked for children");
    }
}
