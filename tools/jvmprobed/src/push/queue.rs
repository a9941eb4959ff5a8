//! Disk queue of requests that wait to be sent to a target: a directory with one file per entry, bounded in size.
//!
//! An entry is complete or absent, because it is written to a temporary file, synchronized and renamed. A
//! file begins with a line of JSON that describes the entry and has a checksum. The request follows, in the
//! form in which it is sent. Entries are numbered. The oldest is sent first, and dropped first when there is
//! no space. Entries that cannot be written are held in up to 4 MB of memory, so that pushing continues
//! while the disk is full.

use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use flate2::Crc;
use rustix::{
    fs::{CWD, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, openat},
    process::geteuid,
};
use serde::{Deserialize, Serialize};

use crate::push::ledger::{Ledger, reason};

/// Version of the file format. Files of another version are not read.
const VERSION: u32 = 1;
/// Maximum length of a request, in bytes. No request of jvmprobed is that long.
const MAX_ENTRY: u64 = 64 << 20;
/// Maximum length of the first line, in bytes.
const MAX_HEADER: u64 = 64 << 10;
/// Maximum number of parts of a request, so that their numbers of samples fit into the first line.
pub const MAX_PARTS: usize = 1000;
/// Number of times that a target may fail on an entry while it accepts others, before the entry counts as refused.
const MAX_FAILURES: u32 = 3;
/// Maximum size of the entries that are held in memory because they could not be written, in bytes.
const MAX_MEMORY: u64 = 4 << 20;
/// File name extension of an entry.
const EXTENSION: &str = ".entry";

/// Description of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Kind of the request.
    pub kind: Kind,
    /// File name, for targets that are directories; else empty.
    #[serde(default)]
    pub name: String,
    /// Number of profiles in the request.
    pub profiles: u64,
    /// Number of samples in these profiles.
    pub samples: u64,
    /// End of the window that the request contains; for metrics, their time. In nanoseconds since 1970.
    pub time_ns: u64,
    /// Numbers of samples of the parts that the request can be split into, in order. There are at most
    /// [`MAX_PARTS`] parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
}

impl Header {
    /// Returns the header of a smaller request that consists of some parts of this one. `parts` has the
    /// number of samples of each of them, and `profiles` is the number of profiles in all of them.
    pub fn part(&self, parts: &[u64], profiles: u64) -> Self {
        let samples = parts.iter().copied().fold(0, u64::saturating_add);
        Self { samples, profiles, parts: parts.to_vec(), ..self.clone() }
    }
}

/// Parts of a request: the description of each, and its message.
pub type Parts = Vec<(Header, Vec<u8>)>;

/// Kind of the request in an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Profiles.
    #[default]
    Profiles,
    /// Metrics.
    Metrics,
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Line {
    version: u32,
    crc: u32,
    length: u64,
    #[serde(flatten)]
    header: Header,
}

/// An entry to be sent, with its request.
#[derive(Debug)]
pub struct Entry {
    /// Number of the entry.
    pub number: u64,
    /// Description of the entry.
    pub header: Header,
    /// The request.
    pub body: Vec<u8>,
}

#[derive(Debug)]
struct QueuedEntry {
    number: u64,
    header: Header,
    size: u64,
    /// The request; `None` if it is on disk.
    body: Option<Vec<u8>>,
    /// Number of times that the target has failed on the entry, and number of requests that the target had
    /// accepted before the first failure.
    failures: Option<(u32, u64)>,
}

/// Queue of entries of one target.
#[derive(Debug)]
pub struct Queue {
    folder: PathBuf,
    /// Lock file, locked while this process uses the queue.
    _lock: File,
    entries: VecDeque<QueuedEntry>,
    /// Number of the entry that is being sent. It is not dropped when space runs out.
    sending: Option<u64>,
    next: u64,
    max: u64,
    ledger: Arc<Ledger>,
    /// Whether the last entry could be written. A warning is logged when that changes to false.
    last_write_succeeded: bool,
}

impl Queue {
    /// Opens the queue in a directory, which is created if it is missing. Entries that an earlier process has
    /// left there are sent, too.
    ///
    /// # Errors
    /// The directory cannot be created or read, belongs to another user or can be written by others, or is in use.
    pub fn open(folder: &Path, max: u64, ledger: Arc<Ledger>) -> Result<Self> {
        let at = || format!("cannot keep a queue in {}", folder.display());
        private_folder(folder).with_context(at)?;
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(no_follow())
            .open(folder.join("lock"))
            .with_context(at)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            bail!("{}: another jvmprobed uses it", at());
        }
        let mut queue = Self {
            folder: folder.to_owned(),
            _lock: lock,
            entries: VecDeque::new(),
            sending: None,
            next: 0,
            max,
            ledger,
            last_write_succeeded: true,
        };
        queue.find_entries().with_context(at)?;
        queue.drop_excess();
        queue.update_ledger();
        Ok(queue)
    }

    /// Adds an entry. If the queue becomes too large, drops and counts the oldest entries.
    pub fn push(&mut self, header: Header, body: Vec<u8>) {
        self.ledger.add_accepted(header.samples);
        self.add(header, body);
        self.drop_excess();
        self.update_ledger();
    }

    fn add(&mut self, header: Header, body: Vec<u8>) {
        let number = self.next;
        self.next += 1;
        let (size, body) = match self.write(number, &header, &body) {
            Ok(size) => {
                self.last_write_succeeded = true;
                (size, None)
            }
            Err(error) => {
                if std::mem::replace(&mut self.last_write_succeeded, false) {
                    let folder = self.folder.display();
                    log::warn!(
                        "{}: cannot write to {folder}: {error}; queueing in memory, at most {} MB",
                        self.ledger.name(),
                        MAX_MEMORY >> 20
                    );
                }
                (body.len() as u64, Some(body))
            }
        };
        self.entries.push_back(QueuedEntry { number, header, size, body, failures: None });
    }

    /// Replaces an entry with its parts, which go to the end of the queue. Returns whether the entry was split.
    pub fn split(
        &mut self,
        number: u64,
        split: impl FnOnce(&Header, &[u8]) -> Option<Parts>,
    ) -> bool {
        let Some(entry) = self.entries.iter().find(|entry| entry.number == number) else {
            return false;
        };
        let body = match &entry.body {
            Some(body) => Ok(body.clone()),
            None => read(&self.path(number)).map(|(_, body)| body),
        };
        let parts = body.ok().and_then(|body| split(&entry.header, &body));
        // The parts must have exactly the samples of the entry, so that none is counted twice or is missing.
        let sum = |parts: &Parts| parts.iter().map(|(header, _)| header.samples).sum::<u64>();
        let samples = entry.header.samples;
        let Some(parts) = parts.filter(|parts| sum(parts) == samples) else { return false };
        // If the process ends between the next two steps, the target gets some samples twice.
        parts.into_iter().for_each(|(header, body)| self.add(header, body));
        self.remove_finished(number);
        self.drop_excess();
        self.update_ledger();
        true
    }

    /// Records that the target has failed on an entry, and moves the entry behind the others. Returns the
    /// entry's new number if the target has failed on it at least `MAX_FAILURES` times and has accepted other
    /// requests since the first failure. `accepted` is the number of requests that the target has accepted so far.
    pub fn mark_failed(&mut self, mut number: u64, accepted: u64) -> Option<u64> {
        self.sending = None;
        let at = self.entries.iter().position(|entry| entry.number == number)?;
        let (times, before) = self.entries[at].failures.unwrap_or((0, accepted));
        self.entries[at].failures = Some((times + 1, before));
        let (from, to) = (self.path(number), self.path(self.next));
        let is_on_disk = self.entries[at].body.is_none();
        if at + 1 < self.entries.len() && (!is_on_disk || fs::rename(from, to).is_ok()) {
            let moved = self.entries.remove(at);
            number = self.next;
            self.entries.extend(moved.map(|entry| QueuedEntry { number, ..entry }));
            self.next += 1;
        }
        self.drop_excess();
        self.update_ledger();
        (times + 1 >= MAX_FAILURES && accepted > before).then_some(number)
    }

    /// Returns the oldest entry, which stays in the queue until [`Self::remove_finished`].
    pub fn oldest(&mut self) -> Option<Entry> {
        loop {
            let first = self.entries.front()?;
            let (number, header) = (first.number, first.header.clone());
            let body = match &first.body {
                Some(body) => Ok(body.clone()),
                None => read(&self.path(number)).map(|(_, body)| body),
            };
            match body {
                Ok(body) => {
                    self.sending = Some(number);
                    return Some(Entry { number, header, body });
                }
                Err(_) => self.remove(0, Some(reason::DAMAGED)),
            }
        }
    }

    /// Removes an entry that was sent or will never be sent. The caller has counted its samples.
    pub fn remove_finished(&mut self, number: u64) {
        self.sending = None;
        if let Some(at) = self.entries.iter().position(|entry| entry.number == number) {
            self.remove(at, None);
        }
    }

    /// Keeps the entry that was being sent for another attempt.
    pub fn retry_later(&mut self) {
        self.sending = None;
        self.drop_excess();
        self.update_ledger();
    }

    /// Returns whether no entry waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Drops the entries that are only in memory, because the process ends.
    pub fn end(&mut self) {
        while let Some(at) = self.entries.iter().position(|entry| entry.body.is_some()) {
            self.remove(at, Some(reason::ENDED));
        }
    }

    /// Removes an entry, and counts it as dropped if there is a reason.
    fn remove(&mut self, at: usize, why: Option<&'static str>) {
        let Some(entry) = self.entries.remove(at) else { return };
        if entry.body.is_none() {
            // If the file cannot be removed, the entry is sent again after a restart.
            let _ = fs::remove_file(self.path(entry.number));
        }
        if let Some(why) = why {
            self.ledger.add_dropped(why, entry.header.samples);
        }
        self.update_ledger();
    }

    fn drop_excess(&mut self) {
        let sum = |queue: &Self, in_memory: bool| -> u64 {
            let counted = queue.entries.iter().filter(|e| e.body.is_some() || !in_memory);
            counted.map(|entry| entry.size).sum()
        };
        let oldest = |queue: &Self, in_memory: bool| {
            queue.entries.iter().position(|entry| {
                Some(entry.number) != queue.sending && (entry.body.is_some() || !in_memory)
            })
        };
        for (in_memory, max, why) in
            [(true, MAX_MEMORY, reason::DISK), (false, self.max, reason::FULL)]
        {
            while sum(self, in_memory) > max {
                let Some(at) = oldest(self, in_memory) else { break };
                self.remove(at, Some(why));
            }
        }
    }

    fn update_ledger(&self) {
        let samples = self.entries.iter().map(|entry| entry.header.samples).sum();
        let bytes = self.entries.iter().map(|entry| entry.size).sum();
        let oldest = self.entries.iter().map(|entry| entry.header.time_ns).min();
        self.ledger.set_waiting(samples, bytes, oldest);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}{EXTENSION}"))
    }

    /// Writes an entry, and returns its size in bytes.
    fn write(&self, number: u64, header: &Header, body: &[u8]) -> io::Result<u64> {
        let mut crc = Crc::new();
        crc.update(body);
        let length = body.len() as u64;
        let header = header.clone();
        let mut line =
            serde_json::to_vec(&Line { version: VERSION, crc: crc.sum(), length, header })?;
        line.push(b'\n');
        let path = self.path(number);
        let temporary = path.with_extension("tmp");
        write_file(&self.folder, (&temporary, &path), 0o600, &[&line, body])?;
        Ok(line.len() as u64 + length)
    }

    fn find_entries(&mut self) -> io::Result<()> {
        let mut names: Vec<OsString> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            let Some(text) = name.to_str() else { continue };
            if text.ends_with(".tmp") {
                let _ = fs::remove_file(self.folder.join(text));
            }
            let number = text.strip_suffix(EXTENSION).filter(|digits| digits.len() == 16);
            let Some(number) = number.and_then(|digits| u64::from_str_radix(digits, 16).ok())
            else {
                continue;
            };
            self.next = self.next.max(number.saturating_add(1));
            match read_header(&self.path(number)) {
                Ok((line, _, size)) => {
                    self.ledger.add_accepted(line.header.samples);
                    let (header, body, failures) = (line.header, None, None);
                    self.entries.push_back(QueuedEntry { number, header, size, body, failures });
                }
                Err(_) => {
                    // The number of samples in it is unknown, so none are counted.
                    let _ = fs::remove_file(self.path(number));
                }
            }
        }
        Ok(())
    }
}

/// Creates a directory that only its owner may read, or makes an existing one private. Symbolic links are refused.
pub fn private_folder(folder: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, folder, flags, Mode::empty());
    let is_ours = |stat: &Stat| stat.st_uid == geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    let found = opened.and_then(|fd| Ok((fstat(&fd)?, fd)));
    let Some((stat, fd)) = found.ok().filter(|(stat, _)| is_ours(stat)) else {
        bail!("it is not a directory that only this user can write to");
    };
    if stat.st_mode & 0o7777 != 0o700 {
        fchmod(&fd, Mode::from_raw_mode(0o700))?;
    }
    Ok(())
}

/// Writes a new file with this content in a folder: writes to `temporary`, and renames it to `path` when the content is
/// on disk.
pub(super) fn write_file(
    folder: &Path,
    (temporary, path): (&Path, &Path),
    mode: u32,
    parts: &[&[u8]],
) -> io::Result<()> {
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .custom_flags(no_follow())
            .open(temporary)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(temporary, path)?;
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        // The failed step decides which of the two files exists.
        let _ = (fs::remove_file(temporary), fs::remove_file(path));
    }
    written
}

fn no_follow() -> i32 {
    (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed()
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the first line of an entry. Returns it, a reader of the rest, and the size of the file.
fn read_header(path: &Path) -> io::Result<(Line, BufReader<File>, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(no_follow()).open(path)?;
    let size = file.metadata()?.len();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    reader.by_ref().take(MAX_HEADER).read_until(b'\n', &mut text)?;
    let line: Line = serde_json::from_slice(&text)?;
    let expected_size = line.length.checked_add(text.len() as u64);
    if line.version != VERSION || line.length > MAX_ENTRY || expected_size != Some(size) {
        return Err(invalid("the queue entry has another version or a wrong length"));
    }
    Ok((line, reader, size))
}

fn read(path: &Path) -> io::Result<(Header, Vec<u8>)> {
    let (line, reader, _) = read_header(path)?;
    let mut body = Vec::new();
    reader.take(line.length).read_to_end(&mut body)?;
    let mut crc = Crc::new();
    crc.update(&body);
    match body.len() as u64 == line.length && crc.sum() == line.crc {
        true => Ok((line.header, body)),
        false => Err(invalid("damaged")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path, max: u64) -> (Queue, Arc<Ledger>) {
        let ledger = Arc::new(Ledger::new("test"));
        (Queue::open(folder, max, ledger.clone()).unwrap(), ledger)
    }

    fn header(samples: u64) -> Header {
        Header { samples, profiles: 1, time_ns: 5, ..Header::default() }
    }

    #[test]
    fn entries_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(folder.path(), 1 << 20);
        for samples in 1..=3 {
            queue.push(header(samples), vec![samples as u8; 100]);
        }
        let first = queue.oldest().unwrap();
        queue.remove_finished(first.number);
        drop(queue);
        let (mut queue, ledger) = open(folder.path(), 1 << 20);
        assert_eq!((ledger.read().accepted_samples, ledger.read().waiting_samples), (5, 5));
        queue.push(header(4), vec![4; 100]);
        for samples in 2..=4 {
            let entry = queue.oldest().unwrap();
            assert_eq!((entry.header, entry.body), (header(samples), vec![samples as u8; 100]));
            queue.remove_finished(entry.number);
        }
        assert!(queue.oldest().is_none() && queue.is_empty());
    }

    #[test]
    fn full_queue_drops_the_oldest_entry_that_is_not_being_sent() {
        let folder = tempfile::tempdir().unwrap();
        let (mut queue, ledger) = open(folder.path(), 1000);
        queue.push(header(1), vec![0; 300]);
        let sent = queue.oldest().unwrap();
        queue.push(header(10), vec![0; 300]);
        queue.push(header(100), vec![0; 300]);
        assert_eq!(ledger.read().dropped[reason::FULL], 10);
        queue.remove_finished(sent.number);
        assert_eq!(queue.oldest().unwrap().header.samples, 100);
    }

    #[test]
    fn damaged_entries_are_dropped_and_intact_ones_remain() {
        let folder = tempfile::tempdir().unwrap();
        let (mut queue, _) = open(folder.path(), 1 << 20);
        for samples in 1..=4 {
            queue.push(header(samples), vec![7; 100]);
        }
        drop(queue);
        let path = |number: u64| folder.path().join(format!("{number:016x}.entry"));
        let mut bytes = fs::read(path(0)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path(0), bytes).unwrap();
        fs::write(path(1), b"{\"version\":99}\n").unwrap();
        fs::write(path(2), b"").unwrap();
        fs::write(folder.path().join("0000000000000009.tmp"), b"half").unwrap();
        let (mut queue, ledger) = open(folder.path(), 1 << 20);
        assert_eq!(queue.oldest().unwrap().header.samples, 4);
        assert_eq!(ledger.read().dropped[reason::DAMAGED], 1);
        assert!(!folder.path().join("0000000000000009.tmp").exists());
    }

    #[test]
    fn split_replaces_an_entry_with_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let (mut queue, ledger) = open(folder.path(), 1 << 20);
        let whole = Header { samples: 7, profiles: 2, parts: vec![3, 4], ..header(0) };
        queue.push(whole.clone(), b"ab".to_vec());
        queue.push(header(10), b"other".to_vec());
        let number = queue.oldest().unwrap().number;
        // The parts must have all samples of the entry.
        assert!(!queue.split(number, |_, _| None));
        assert!(
            !queue.split(number, |header, body| Some(vec![(header.part(&[3], 1), body.into())]))
        );
        let parts = |header: &Header, body: &[u8]| {
            let part = |at: usize| (header.part(&header.parts[at..=at], 1), body[at..=at].to_vec());
            Some(vec![part(0), part(1)])
        };
        assert!(queue.split(number, parts));
        assert_eq!((ledger.read().accepted_samples, ledger.read().waiting_samples), (17, 17));
        drop(queue);
        let (mut queue, _) = open(folder.path(), 1 << 20);
        let mut left = Vec::new();
        while let Some(entry) = queue.oldest() {
            left.push((entry.header.samples, entry.header.parts, entry.body));
            queue.remove_finished(entry.number);
        }
        let expected: [(u64, Vec<u64>, &[u8]); 3] =
            [(10, vec![], b"other"), (3, vec![3], b"a"), (4, vec![4], b"b")];
        assert_eq!(left, expected.map(|(samples, parts, body)| (samples, parts, body.to_vec())));
    }

    #[test]
    fn locked_or_unsafe_folders_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let _queue = open(folder.path(), 1000);
        let ledger = Arc::new(Ledger::new("test"));
        let error = Queue::open(folder.path(), 1000, ledger.clone()).unwrap_err();
        assert!(error.to_string().contains("another jvmprobed uses it"), "{error}");
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Queue::open(&open, 1000, ledger.clone()).is_err());
        // An existing directory becomes private, and a symbolic link to it is refused.
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        let mode = || std::os::unix::fs::MetadataExt::mode(&fs::metadata(&open).unwrap()) & 0o7777;
        assert!(Queue::open(&link, 1000, ledger.clone()).is_err());
        assert_eq!(mode(), 0o755);
        drop(Queue::open(&open, 1000, ledger).unwrap());
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn unwritable_entries_stay_in_memory_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("queue");
        let (mut queue, ledger) = open(&inside, 1 << 30);
        // Root can write to any directory, but not to one that was removed.
        fs::remove_dir_all(&inside).unwrap();
        for _ in 0..5 {
            queue.push(header(1), vec![0; 1 << 20]);
        }
        assert_eq!(ledger.read().dropped[reason::DISK], 1);
        assert_eq!(ledger.read().waiting_samples, 4);
        assert_eq!(queue.oldest().unwrap().body.len(), 1 << 20);
        queue.retry_later();
        queue.end();
        let counts = ledger.read();
        assert_eq!((counts.dropped[reason::ENDED], counts.waiting_samples), (4, 0));
    }
}
