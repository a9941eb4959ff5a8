//! Recordings in files.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use super::recording::Recording;
use crate::{Error, Result, bpf::clock, hotspot::HotSpot, sys::output_file};

/// Recordings that are written to files. Each file gets all events. Regular files without events are removed at the end.
#[derive(Debug)]
pub struct RecordingFiles(Vec<RecordingFile>);

#[derive(Debug)]
struct RecordingFile {
    path: PathBuf,
    to: Recording<BufWriter<File>>,
    is_regular: bool,
}

impl RecordingFiles {
    /// Creates the files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let create = |path| RecordingFile::create(AsRef::as_ref(&path));
        Ok(Self(paths.into_iter().map(create).collect::<Result<_>>()?))
    }

    /// Creates the files for a trace that begins now.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<Self> {
        let (mut files, now_ns) = (Self::create(paths)?, clock::unix_ns(clock::monotonic_ns()));
        files.add(|to| to.host(now_ns))?;
        Ok(files)
    }

    /// Adds events by calling `write` for each file.
    ///
    /// # Errors
    /// [`Error::Io`] with the errors of `write`.
    pub fn add(
        &mut self,
        write: impl Fn(&mut Recording<BufWriter<File>>) -> io::Result<()>,
    ) -> Result<()> {
        self.0
            .iter_mut()
            .try_for_each(|file| write(&mut file.to).map_err(|e| failed(&file.path, e)))
    }

    /// Adds a JVM that is traced from now on.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add_jvm(&mut self, hotspot: &HotSpot) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let (jvm, now_ns) = (hotspot.description(), clock::unix_ns(clock::monotonic_ns()));
        self.add(|to| to.jvm(&jvm, now_ns))
    }

    /// Writes the ends of the files, and logs their paths. Returns whether there were events.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(&mut self) -> Result<bool> {
        let mut had_events = false;
        for file in self.0.drain(..) {
            had_events |= file.finish()?;
        }
        Ok(had_events)
    }
}

impl RecordingFile {
    fn create(path: &Path) -> Result<Self> {
        let file = output_file::create(path);
        let file = file.map_err(|e| Error::io(format!("create {}", path.display()), e))?;
        let is_regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let to = Recording::new(BufWriter::new(file));
        Ok(Self { path: path.to_owned(), to, is_regular })
    }

    fn finish(self) -> Result<bool> {
        let Self { path, to, is_regular } = self;
        let has_events = to.has_events();
        to.finish().map_err(|e| failed(&path, e))?;
        if has_events {
            log::info!("wrote {}", path.display());
        } else if is_regular {
            let _ = fs::remove_file(&path);
        }
        Ok(has_events)
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(format!("write {}", path.display()), error)
}
