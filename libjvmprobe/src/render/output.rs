//! Where results go: line by line, and quietly over when nobody reads them.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};

use crate::{Error, Result};

/// A results stream, flushed after each line so that `| grep` works.
pub struct Output {
    sink: BufWriter<Box<dyn Write>>,
    name: String,
    to_stdout: bool,
    /// The reader has gone: stop producing.
    closed: bool,
}

impl Output {
    /// Standard output, or a file that is created or truncated.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be created.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (sink, name): (Box<dyn Write>, _) = match path {
            None => (Box::new(io::stdout()), "standard output".to_owned()),
            Some(path) => {
                let what = format!("create {}", path.display());
                let file = File::create(path).map_err(|e| Error::io(what, e))?;
                (Box::new(file), path.display().to_string())
            }
        };
        Ok(Self { sink: BufWriter::new(sink), name, to_stdout: path.is_none(), closed: false })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// [`Error::Io`], for example on a full disk. A closed pipe is no error:
    /// see [`Output::is_closed`].
    pub fn line(&mut self, line: &str) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let written = self
            .sink
            .write_all(line.as_bytes())
            .and_then(|()| self.sink.write_all(b"\n"))
            .and_then(|()| self.sink.flush());
        match written {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|e| Error::io(format!("write to {}", self.name), e)),
        }
    }

    /// Whether the reader has closed the pipe, be it while nothing is written.
    pub fn is_closed(&self) -> bool {
        self.closed || self.to_stdout && has_no_reader()
    }
}

fn has_no_reader() -> bool {
    let stdout = io::stdout();
    // What poll() tells of a pipe without readers comes unasked.
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}
