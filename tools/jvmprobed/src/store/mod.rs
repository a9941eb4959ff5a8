//! Store of windows on disk, from which `jvmprobed show` and `list` read.
//!
//! | module | content |
//! |---|---|
//! | [`folder`] | the directory: ownership, lock, and atomic creation and removal of entries |
//! | [`name`] | names of windows |
//! | [`file`](mod@file) | a window as files |
//! | [`profiles`] | the file of a window's profiles |
//! | [`merge`](mod@merge) | merges windows into a coarser one |
//! | [`keep`] | decides which windows are merged and dropped, by age and size |
//! | [`reader`] | reading, while the daemon writes |

pub mod file;
pub mod folder;
pub mod keep;
pub mod merge;
pub mod name;
pub mod profiles;
pub mod reader;

use std::{collections::HashMap, io, path::Path, time::Duration};

use anyhow::Result;
use libjvmprobe::render::units;
use rustix::io::Errno;

pub use crate::store::file::Stored;
use crate::{
    stops::Lost,
    store::{
        folder::Folder,
        keep::{AgeClock, Bounds, Entry, Now, Step},
        merge::Parts,
        name::{Level, Name},
    },
    thread_dump,
    window::Window,
};

/// Counts of windows that were written, lost and kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of windows that were written.
    pub written: u64,
    /// Number of windows that could not be written, or were removed because they could not be read.
    pub lost: u64,
    /// Disk space that the kept windows take, in bytes.
    pub bytes: u64,
    /// Number of windows that are kept.
    pub windows: u64,
}

/// Directory of windows, opened by the daemon that writes to it.
#[derive(Debug)]
pub struct Store {
    folder: Folder,
    bounds: Bounds,
    entries: Vec<Entry>,
    /// Names of the windows that each merged window was made of. No new window may get such a name, because
    /// readers would regard it as replaced.
    replaced: HashMap<Name, Vec<Name>>,
    clock: AgeClock,
    /// Number of stacks, thread dumps and attributes that each tenant lost because it exceeded its share, since
    /// [`Store::take_limited`] was last called.
    limited: Lost,
    counts: Counts,
    /// Whether an error was logged since the last window that could be written.
    has_warned: bool,
}

impl Store {
    /// Opens the store, and creates its directory if it is missing. Windows are kept no longer than `age` and
    /// take at most `size` bytes.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the directory.
    pub fn open(path: &Path, age: Duration, size: u64) -> Result<Self> {
        Self::open_with_mode(path, age, size, folder::DEFAULT_MODE)
    }

    /// Opens the store with this mode of the directory, which may allow others to read it: see [`folder::parse_mode`].
    pub fn open_with_mode(path: &Path, age: Duration, size: u64, mode: u32) -> Result<Self> {
        let folder = Folder::open_to_write(path, mode)?;
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let mut store = Self {
            folder,
            bounds: Bounds { age_ns, size },
            entries: Vec::new(),
            replaced: HashMap::new(),
            clock: AgeClock::default(),
            limited: Lost::new(),
            counts: Counts::default(),
            has_warned: false,
        };
        store.list_windows();
        Ok(store)
    }

    /// Lists the windows in the directory. If an earlier process merged windows into another one and ended
    /// before it removed them, removes them now.
    fn list_windows(&mut self) {
        let names = self.folder.names().unwrap_or_default();
        let names: Vec<_> = names.iter().filter_map(|name| Name::parse(name)).collect();
        self.replaced = reader::replaced(&self.folder, &names).unwrap_or_default();
        for name in names {
            if self.is_replaced(name) {
                self.remove(name);
            } else {
                let bytes = self.folder.size(&name.to_string());
                self.entries.push(Entry { name, bytes });
            }
        }
        self.entries.sort_unstable_by_key(|entry| entry.name);
        self.clock = AgeClock::start(&self.entries);
    }

    fn is_replaced(&self, name: Name) -> bool {
        self.replaced.values().any(|names| names.contains(&name))
    }

    /// Writes a window, and merges or drops older ones. A window that cannot be written is counted as lost.
    /// The first error is logged. Further errors are logged only after another window was written
    /// successfully.
    pub fn put(&mut self, window: Window) -> Window {
        let covered_ns = window.end_ns.saturating_sub(window.begin_ns);
        let mut stored = Stored { window, covered_ns, of: Vec::new() };
        self.add_limited(merge::bound(&mut stored.window.jvms, merge::MAX_UNMERGED));
        let max = merge::MAX_UNMERGED_DUMPS;
        self.add_limited(thread_dump::bound(&mut stored.window.jvms, max));
        let max = merge::MAX_IDENTITIES;
        self.add_limited(merge::bound_identities(&mut stored.window.jvms, max));
        match self.write(Level::Unmerged, &stored) {
            Ok(_) => {
                self.counts.written += 1;
                if std::mem::take(&mut self.has_warned) {
                    log::info!("{}: storing windows again", self.folder.path().display());
                }
            }
            Err(e) => {
                self.counts.lost += 1;
                self.warn(&e);
            }
        }
        let (begin_ns, end_ns) = (stored.window.begin_ns, stored.window.end_ns);
        let age_ns = self.clock.window(begin_ns, end_ns);
        self.merge_and_drop(Now { wall_ns: end_ns, age_ns });
        stored.window
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        let bytes = self.entries.iter().map(|entry| entry.bytes).sum();
        Counts { bytes, windows: self.entries.len() as u64, ..self.counts }
    }

    /// Returns the number of stacks, thread dumps and attributes that each tenant has lost since the last call because it
    /// exceeded its share.
    pub fn take_limited(&mut self) -> Lost {
        std::mem::take(&mut self.limited)
    }

    fn add_limited(&mut self, limited: Lost) {
        for (tenant, lost) in limited {
            let sum = self.limited.entry(tenant).or_default();
            *sum = sum.saturating_add(lost);
        }
    }

    /// Sets new bounds, which apply from now on.
    pub fn set_bounds(&mut self, age: Duration, size: u64) {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        self.bounds = Bounds { age_ns, size };
    }

    fn warn(&mut self, error: &io::Error) {
        if std::mem::replace(&mut self.has_warned, true) {
            return;
        }
        let shown = self.folder.path().display();
        let why = match Errno::from_io_error(error) {
            Some(Errno::NOSPC | Errno::DQUOT) => "the disk is full".into(),
            Some(Errno::ROFS) => "the file system is read-only".into(),
            _ => error.to_string(),
        };
        log::warn!("{shown}: stopped storing windows: {why}; sampling and pushing continue");
    }

    fn write(&mut self, level: Level, stored: &Stored) -> io::Result<Name> {
        /// Maximum number of further names to try if another file has the name.
        const MAX_TRIES: usize = 16;
        let mut name = Name::new(level, stored.window.begin_ns, stored.window.end_ns);
        let mut tries = 0;
        let text = loop {
            // If the clock was set back, two windows may have the same begin and end.
            while self.entries.iter().any(|entry| entry.name == name) || self.is_replaced(name) {
                name = name.next();
            }
            let text = name.to_string();
            match file::write(stored, |files| self.folder.put(&text, files)) {
                Err(e) if Errno::from_io_error(&e) == Some(Errno::EXIST) && tries < MAX_TRIES => {
                    (name, tries) = (name.next(), tries + 1);
                    continue;
                }
                written => written?,
            }
            break text;
        };
        let bytes = self.folder.size(&text);
        let at = self.entries.partition_point(|entry| entry.name < name);
        self.entries.insert(at, Entry { name, bytes });
        Ok(name)
    }

    /// Merges and drops windows that are due. Usually few are due at a time.
    fn merge_and_drop(&mut self, now: Now) {
        /// Maximum number of steps per call. Each merge takes time, and the next window must not be late.
        const MAX_STEPS: usize = 8;
        for _ in 0..MAX_STEPS {
            match keep::next(&self.entries, self.bounds, now) {
                None => break,
                Some(Step::Drop(name)) => {
                    if !self.remove(name) {
                        break;
                    }
                }
                Some(Step::Merge(names, level, slot_ns)) => {
                    if let Err(e) = self.merge(&names, level, slot_ns) {
                        self.warn(&e);
                        // If the windows take too much space and cannot be merged, the first one is dropped.
                        let is_too_much = self.counts().bytes > self.bounds.size;
                        if !is_too_much || !names.first().is_some_and(|&name| self.remove(name)) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn merge(&mut self, names: &[Name], level: Level, slot_ns: u64) -> io::Result<()> {
        let mut parts = Parts::new(slot_ns);
        for &name in names {
            match reader::read(&self.folder, name) {
                Ok(stored) => parts.add(stored),
                // A damaged window would block merging forever, so it is removed. Other errors may be temporary.
                Err(e) if is_broken(&e) => {
                    let shown = self.folder.path().display();
                    log::warn!("removing {shown}/{name}, which cannot be read: {e}");
                    self.counts.lost += 1;
                    self.remove(name);
                }
                Err(e) => return Err(e),
            }
        }
        let of: Vec<_> = names.iter().map(Name::to_string).collect();
        let (mut merged, limited) = parts.merge();
        self.add_limited(limited);
        if merged.window.end_ns == 0 {
            return Ok(());
        }
        merged.of = of;
        let name = self.write(level, &merged)?;
        self.replaced.insert(name, names.to_vec());
        names.iter().for_each(|&name| _ = self.remove(name));
        Ok(())
    }

    fn remove(&mut self, name: Name) -> bool {
        let removed = self.folder.remove(&name.to_string());
        let is_gone = match &removed {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        if is_gone {
            self.entries.retain(|entry| entry.name != name);
            self.replaced.remove(&name);
        } else if let Err(e) = removed {
            self.warn(&e);
        }
        is_gone
    }
}

/// Returns whether a window is damaged, so that reading it again cannot succeed.
fn is_broken(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotADirectory, NotFound, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | NotADirectory | NotFound | UnexpectedEof)
        || Errno::from_io_error(error) == Some(Errno::LOOP)
}

/// Formats the number and size of the kept windows for messages.
pub fn describe(counts: Counts) -> String {
    format!("{}, {}", units::count(counts.windows, "window"), units::bytes(counts.bytes))
}
