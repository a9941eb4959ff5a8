//! Writes all records to a file in JDK Flight Recorder's format, independently of the options that select what is printed.

use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

use libjvmprobe::{
    Error, Result, bpf::clock, render::formats::jfr::recording, trace::pauses::record::Record,
};

/// A recording in a file.
pub struct Recording {
    path: PathBuf,
    to: recording::Recording<BufWriter<File>>,
}

impl Recording {
    /// Creates the file.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path);
        let file = file.map_err(|e| Error::io(format!("create {}", path.display()), e))?;
        let mut to = recording::Recording::new(BufWriter::new(file));
        let begin_ns = clock::unix_ns(clock::monotonic_ns());
        to.host(begin_ns).map_err(|e| failed(path, e))?;
        Ok(Self { path: path.to_owned(), to })
    }

    /// Adds the events of a record.
    pub fn record(&mut self, record: &Record) -> Result<()> {
        let begin_ns = match record {
            Record::Pause(stop) | Record::Safepoint(stop) => stop.ts_ns,
            Record::Cycle(cycle) => cycle.ts_ns,
            Record::Summary(summary) => summary.ts_ns,
            Record::Lost(_) | Record::Limited(_) => return Ok(()),
        };
        let added = self.to.pause(record, clock::unix_ns(begin_ns));
        added.map_err(|e| failed(&self.path, e))
    }

    /// Writes the end of the file, and returns its path.
    pub fn finish(self) -> Result<PathBuf> {
        self.to.finish().map_err(|e| failed(&self.path, e))?;
        Ok(self.path)
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("write {}", path.display()), error)
}
