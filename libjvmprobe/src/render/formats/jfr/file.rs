//! A recording in a file.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use super::recording::Recording;
use crate::{Error, Result};

/// A recording that is written to a file. A regular file without events is removed at the end.
#[derive(Debug)]
pub struct RecordingFile {
    path: PathBuf,
    to: Recording<BufWriter<File>>,
    is_regular: bool,
}

impl RecordingFile {
    /// Creates the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.map_err(|e| Error::io(format!("create {}", path.display()), e))?;
        let is_regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let to = Recording::new(BufWriter::new(file));
        Ok(Self { path: path.to_owned(), to, is_regular })
    }

    /// Adds events by calling `write`.
    ///
    /// # Errors
    /// [`Error::Io`] with the errors of `write`.
    pub fn add(
        &mut self,
        write: impl FnOnce(&mut Recording<BufWriter<File>>) -> io::Result<()>,
    ) -> Result<()> {
        write(&mut self.to).map_err(|e| failed(&self.path, e))
    }

    /// Writes the end of the file. Returns its path, or `None` if there were no events.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(self) -> Result<Option<PathBuf>> {
        let has_events = self.to.has_events();
        self.to.finish().map_err(|e| failed(&self.path, e))?;
        if !has_events && self.is_regular {
            let _ = fs::remove_file(&self.path);
        }
        Ok(has_events.then_some(self.path))
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::io(format!("write {}", path.display()), error)
}
