//! What is kept, for those who look back: while the daemon writes, merges and drops.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
};

use anyhow::{Context, Result};
use libjvmprobe::own::note;

use crate::{
    store::{
        file::{self, Stored},
        folder::Folder,
        name::{Level, Name},
    },
    window::Identity,
};

/// Windows are merged while they are read: then it begins again, so often.
const TRIES: usize = 5;

/// A directory that is read.
#[derive(Debug)]
pub struct Shelf(Folder);

/// Times that are kept, in nanoseconds since 1970.
pub type Span = (u64, u64);

impl Shelf {
    /// Opens it.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn open(path: &Path) -> Result<Self> {
        Folder::open_to_read(path).map(Self)
    }

    /// Reads the windows that are in part between two instants, in their order. Of one that cannot be
    /// read, a line says so; the others are there all the same.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn read(&self, from_ns: u64, until_ns: u64) -> Result<Vec<Stored>> {
        let mut tries = 0;
        loop {
            match self.try_read(from_ns, until_ns, tries < TRIES) {
                Ok(None) => tries += 1,
                Ok(Some(windows)) => return Ok(windows),
                Err(e) => return Err(e),
            }
        }
    }

    /// `None` where a window has gone meanwhile, and that matters.
    fn try_read(&self, from_ns: u64, until_ns: u64, again: bool) -> Result<Option<Vec<Stored>>> {
        let is_wanted = |name: &Name| name.begin_ns() < until_ns && name.end_ns() > from_ns;
        let (mut windows, mut broken) = (Vec::new(), Vec::new());
        for name in self.names()?.into_iter().filter(is_wanted) {
            match read(&self.0, name) {
                Ok(stored) => windows.push(stored),
                Err(e) if e.kind() == io::ErrorKind::NotFound && again => return Ok(None),
                Err(e) => broken.push((name, e)),
            }
        }
        for (name, error) in broken {
            let shown = self.0.path().display();
            note(&format!("{shown}/{name} cannot be read, and is left out: {error}"));
        }
        Ok(Some(windows))
    }

    /// All times that are kept, those between which nothing is missing put together. Windows that
    /// follow each other within a second have nothing between them.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn kept(&self) -> Result<Vec<Span>> {
        const GAP: u64 = 1_000_000_000;
        let mut spans: Vec<Span> = Vec::new();
        for name in self.names()? {
            match spans.last_mut() {
                Some((_, end)) if name.begin_ns() <= end.saturating_add(GAP) => {
                    *end = (*end).max(name.end_ns());
                }
                _ => spans.push((name.begin_ns(), name.end_ns())),
            }
        }
        Ok(spans)
    }

    /// Visits the windows in their order: when each begins and ends, about how many bytes it takes on the disk, and
    /// of which JVMs it is. One that cannot be read is left out.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn each_window(&self, mut visit: impl FnMut(u64, u64, u64, Vec<Identity>)) -> Result<()> {
        for name in self.names()? {
            let dir = name.to_string();
            if let Ok(jvms) = self.0.file(Some(&dir), file::LINES).and_then(file::read_jvms) {
                visit(name.begin_ns(), name.end_ns(), self.0.size(&dir), jvms);
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<Name>> {
        let mut tries = 0;
        loop {
            match names(&self.0) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => tries += 1,
                names => {
                    let shown = self.0.path().display();
                    return names.with_context(|| format!("cannot read {shown}"));
                }
            }
        }
    }
}

/// The windows that count, in their order: not those that a coarser one was made of.
///
/// # Errors
/// Those of the directory; [`io::ErrorKind::NotFound`] where a window went meanwhile.
pub fn names(folder: &Folder) -> io::Result<Vec<Name>> {
    let all = folder.names()?;
    let mut names: Vec<_> = all.iter().filter_map(|name| Name::parse(name)).collect();
    let replaced: HashSet<_> = replaced(folder, &names)?.into_values().flatten().collect();
    names.retain(|name| !replaced.contains(name));
    names.sort_unstable();
    Ok(names)
}

/// Returns which windows each coarser one was made of.
///
/// # Errors
/// As [`names`].
pub fn replaced(folder: &Folder, names: &[Name]) -> io::Result<HashMap<Name, Vec<Name>>> {
    let mut replaced = HashMap::new();
    for &name in names.iter().filter(|name| name.level > Level::Taken) {
        match folder.file(Some(&name.to_string()), file::LINES).and_then(file::read_head) {
            Ok(head) => {
                let of = head.of.iter().filter_map(|name| Name::parse(name)).collect();
                replaced.insert(name, of);
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(e),
            // One that is broken replaces nothing; who reads it says so.
            Err(_) => {}
        }
    }
    Ok(replaced)
}

/// Reads a window.
///
/// # Errors
/// Those of its files.
pub fn read(folder: &Folder, name: Name) -> io::Result<Stored> {
    let name = name.to_string();
    let lines = folder.file(Some(&name), file::LINES)?;
    let profiles = folder.file(Some(&name), file::PROFILES)?;
    file::read(profiles, lines)
}
