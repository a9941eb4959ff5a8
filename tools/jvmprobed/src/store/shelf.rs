//! What is kept, for those who look back: while the daemon writes, merges and drops.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::Path,
    sync::Arc,
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

/// A window, without what was taken in it.
#[derive(Debug)]
pub struct Listed {
    /// When it begins and ends.
    pub span: Span,
    /// About how many bytes it takes on the disk.
    pub bytes: u64,
    /// The JVMs that have run in it.
    pub jvms: Vec<Arc<Identity>>,
}

impl Shelf {
    /// Opens it.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn open(path: &Path) -> Result<Self> {
        Folder::open_to_read(path).map(Self)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Reads the windows that are in part between two instants, in their order. Of one that cannot be
    /// read, a line says so; the others are there all the same.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn read(&self, from_ns: u64, until_ns: u64) -> Result<Vec<Stored>> {
        let is_wanted = |name: &Name| name.begin_ns() < until_ns && name.end_ns() > from_ns;
        self.read_each(is_wanted, |name| read(&self.0, name))
    }

    /// Lists all windows, as [`read`](Self::read) does. `share` gives each JVM that was in several of them once.
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn list(&self, mut share: impl FnMut(Identity) -> Arc<Identity>) -> Result<Vec<Listed>> {
        self.read_each(
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

    /// Reads the windows that are wanted; all of them again where one has gone meanwhile.
    fn read_each<T>(
        &self,
        is_wanted: impl Fn(&Name) -> bool,
        mut read: impl FnMut(Name) -> io::Result<T>,
    ) -> Result<Vec<T>> {
        let mut tries = 0;
        'again: loop {
            let (mut windows, mut broken) = (Vec::new(), Vec::new());
            for name in self.names()?.into_iter().filter(&is_wanted) {
                match read(name) {
                    Ok(window) => windows.push(window),
                    Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES => {
                        tries += 1;
                        continue 'again;
                    }
                    Err(e) => broken.push((name, e)),
                }
            }
            for (name, error) in broken {
                let shown = self.0.path().display();
                note(&format!("{shown}/{name} cannot be read, and is left out: {error}"));
            }
            return Ok(windows);
        }
    }

    /// All times that are kept: see [`put_together`].
    ///
    /// # Errors
    /// Where the directory cannot be read.
    pub fn kept(&self) -> Result<Vec<Span>> {
        let names = self.names()?;
        Ok(put_together(names.iter().map(|name| (name.begin_ns(), name.end_ns()))))
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

/// Makes one of times in their order between which nothing is missing. Windows that follow each other within a second
/// have nothing between them.
pub fn put_together(all: impl Iterator<Item = Span>) -> Vec<Span> {
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
