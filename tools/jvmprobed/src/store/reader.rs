//! Read access to the store, while the daemon writes, merges and drops windows.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result};

use crate::{
    store::{
        file::{self, Stored},
        folder::Folder,
        name::{Level, Name},
    },
    window::Identity,
};

/// Maximum number of times that reading starts again because a window was merged or dropped meanwhile.
const MAX_TRIES: usize = 5;

/// A store that is open for reading.
#[derive(Debug)]
pub struct StoreReader(Folder);

/// Begin and end of a period that windows cover, in nanoseconds since 1970.
pub type Span = (u64, u64);

/// A window without its data.
#[derive(Debug)]
pub struct Listed {
    /// Begin and end.
    pub span: Span,
    /// Approximate size on disk, in bytes.
    pub bytes: u64,
    /// JVMs that have run in it.
    pub jvms: Vec<Arc<Identity>>,
}

/// Result of reading a window.
enum Found<T> {
    Window(T),
    /// A window was merged or dropped meanwhile.
    Changed,
}

impl StoreReader {
    /// Opens the store.
    ///
    /// # Errors
    /// A sentence that says what is wrong with the directory.
    pub fn open(path: &Path) -> Result<Self> {
        Folder::open_to_read(path).map(Self)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Reads the windows that overlap the given period, in order. A window that cannot be read is reported in
    /// the log and left out.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read(&self, from_ns: u64, until_ns: u64) -> Result<Vec<Stored>> {
        let is_wanted = |name: &Name| name.begin_ns() < until_ns && name.end_ns() > from_ns;
        self.collect(is_wanted, |name| read(&self.0, name))
    }

    /// Reads the windows that overlap the given period one after the other, so that only one of them is in memory, and calls
    /// `visit` with each and the part of the period that it may contribute. Errors are handled as in
    /// [`read`](Self::read).
    ///
    /// # Errors
    /// The directory cannot be read, or `visit` fails.
    pub fn visit(
        &self,
        (from_ns, until_ns): Span,
        mut visit: impl FnMut(Stored, Span) -> Result<()>,
    ) -> Result<()> {
        let (from_ns, mut last_ns) = (Cell::new(from_ns), from_ns);
        let is_wanted = |name: &Name| name.begin_ns() < until_ns && name.end_ns() > from_ns.get();
        let found = |found: Found<Stored>| match found {
            Found::Window(stored) => {
                last_ns = last_ns.max(stored.window.end_ns);
                visit(stored, (from_ns.get(), until_ns))
            }
            // The window was merged into a longer one, which also has data that was visited already.
            Found::Changed => {
                from_ns.set(last_ns);
                Ok(())
            }
        };
        self.read_each(is_wanted, |name| read(&self.0, name), found)
    }

    /// Lists all windows, with the same handling of errors as [`read`](Self::read). `share` returns the same
    /// shared identity each time for a JVM that is in several windows.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self, mut share: impl FnMut(Identity) -> Arc<Identity>) -> Result<Vec<Listed>> {
        self.collect(
            |_| true,
            |name| {
                let dir = name.to_string();
                let jvms = file::read_jvms(self.0.file(Some(&dir), file::LINES)?)?;
                Ok(Listed {
                    span: (name.begin_ns(), name.end_ns()),
                    bytes: self.0.size(&dir),
                    jvms: jvms.into_iter().map(&mut share).collect(),
                })
            },
        )
    }

    /// Reads the selected windows. If one of them disappears meanwhile, reads all of them again.
    fn collect<T>(
        &self,
        is_wanted: impl Fn(&Name) -> bool,
        read: impl FnMut(Name) -> io::Result<T>,
    ) -> Result<Vec<T>> {
        let mut windows = Vec::new();
        self.read_each(is_wanted, read, |found| {
            match found {
                Found::Window(window) => windows.push(window),
                Found::Changed => windows.clear(),
            }
            Ok(())
        })?;
        Ok(windows)
    }

    /// Reads the selected windows, and calls `found` with each. If one of them disappears meanwhile, calls `found` with
    /// [`Found::Changed`], and starts again with the windows that are selected then. Other errors are reported in the log.
    fn read_each<T>(
        &self,
        is_wanted: impl Fn(&Name) -> bool,
        mut read: impl FnMut(Name) -> io::Result<T>,
        mut found: impl FnMut(Found<T>) -> Result<()>,
    ) -> Result<()> {
        let (mut broken, mut tries) = (BTreeMap::new(), 0);
        'again: loop {
            for name in self.names()?.into_iter().filter(&is_wanted) {
                match read(name) {
                    Ok(window) => found(Found::Window(window))?,
                    Err(e) if is_gone(&self.0, name, &e) && tries < MAX_TRIES => {
                        tries += 1;
                        found(Found::Changed)?;
                        continue 'again;
                    }
                    Err(e) => _ = broken.insert(name, e),
                }
            }
            for (name, error) in broken {
                let shown = self.0.path().display();
                log::warn!("ignoring {shown}/{name}, which cannot be read: {error}");
            }
            return Ok(());
        }
    }

    /// Returns all periods that windows cover: see [`join_spans`].
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn covered_spans(&self) -> Result<Vec<Span>> {
        let names = self.names()?;
        Ok(join_spans(names.iter().map(|name| (name.begin_ns(), name.end_ns()))))
    }

    fn names(&self) -> Result<Vec<Name>> {
        let mut tries = 0;
        loop {
            match names(&self.0) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES => tries += 1,
                names => {
                    let shown = self.0.path().display();
                    return names.with_context(|| format!("cannot read {shown}"));
                }
            }
        }
    }
}

/// Joins sorted periods that have no gap between them. Periods less than a second apart count as contiguous.
pub fn join_spans(all: impl Iterator<Item = Span>) -> Vec<Span> {
    const GAP: u64 = 1_000_000_000;
    let mut spans: Vec<Span> = Vec::new();
    for (begin, until) in all {
        match spans.last_mut() {
            Some((_, end)) if begin <= end.saturating_add(GAP) => *end = (*end).max(until),
            _ => spans.push((begin, until)),
        }
    }
    spans
}

/// Returns the names of the valid windows, sorted. Windows that were merged into a coarser one are left out.
///
/// # Errors
/// Errors of the directory; [`io::ErrorKind::NotFound`] if a window was removed meanwhile.
pub fn names(folder: &Folder) -> io::Result<Vec<Name>> {
    let all = folder.names()?;
    let mut names: Vec<_> = all.iter().filter_map(|name| Name::parse(name)).collect();
    let replaced: HashSet<_> = replaced(folder, &names)?.into_values().flatten().collect();
    names.retain(|name| !replaced.contains(name));
    names.sort_unstable();
    Ok(names)
}

/// Returns the names of the windows that each coarser window was made of.
///
/// # Errors
/// Errors of the directory; [`io::ErrorKind::NotFound`] if a window was removed meanwhile.
pub fn replaced(folder: &Folder, names: &[Name]) -> io::Result<HashMap<Name, Vec<Name>>> {
    let mut replaced = HashMap::new();
    for &name in names.iter().filter(|name| name.level > Level::Unmerged) {
        match folder.file(Some(&name.to_string()), file::LINES).and_then(file::read_header) {
            Ok(header) => {
                let of = header.of.iter().filter_map(|name| Name::parse(name)).collect();
                replaced.insert(name, of);
            }
            Err(e) if is_gone(folder, name, &e) => return Err(e),
            // A damaged window replaces no other window. The error is reported when the damaged window is
            // read.
            Err(_) => {}
        }
    }
    Ok(replaced)
}

/// Returns whether a window could not be read because it was removed meanwhile. A window whose files are missing, but
/// not its directory, is damaged.
fn is_gone(folder: &Folder, name: Name, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && !folder.has_dir(&name.to_string())
}

/// Reads a window.
///
/// # Errors
/// Errors of its files.
pub fn read(folder: &Folder, name: Name) -> io::Result<Stored> {
    let name = name.to_string();
    let lines = folder.file(Some(&name), file::LINES)?;
    let profiles = folder.file(Some(&name), file::PROFILES)?;
    file::read(profiles, lines)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::{
        store::{Store, folder::DEFAULT_MODE},
        window::Window,
    };

    #[test]
    fn window_without_its_lines_is_ignored_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open_to_write(dir.path(), DEFAULT_MODE).unwrap();
        let put = |level, begin_ns, end_ns, of: &[Name]| {
            let window = Window { begin_ns, end_ns, ..Window::default() };
            let of = of.iter().map(Name::to_string).collect();
            let name = Name::new(level, begin_ns, end_ns);
            let stored = Stored { window, covered_ns: 1, of };
            file::write(&stored, |files| folder.put(&name.to_string(), files)).unwrap();
            name
        };
        // A crash left a window that was merged into another one.
        let part = put(Level::Unmerged, 1_000_000, 2_000_000, &[]);
        put(Level::Minutes, 1_000_000, 3_000_000, &[part]);
        let damaged = put(Level::Minutes, 5_000_000, 6_000_000, &[]);
        fs::remove_file(dir.path().join(damaged.to_string()).join(file::LINES)).unwrap();
        drop(folder);
        let begins = || -> Vec<_> {
            let windows = StoreReader::open(dir.path()).unwrap().read(0, u64::MAX).unwrap();
            windows.iter().map(|stored| (stored.window.begin_ns, stored.window.end_ns)).collect()
        };
        assert_eq!(begins(), [(1_000_000, 3_000_000)]);
        drop(Store::open(dir.path(), Duration::from_secs(1), 1 << 30).unwrap());
        assert!(!dir.path().join(part.to_string()).exists());
        assert_eq!(begins(), [(1_000_000, 3_000_000)]);
    }
}
