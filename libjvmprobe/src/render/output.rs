//! Stream of results: flushed after each line or batch of lines, and silently closed when its reader has gone.

use std::{
    cell::RefCell,
    io::{self, BufWriter, Write},
    path::Path,
    rc::Rc,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};

use serde::Serialize;

use crate::{Error, Result, names::clean, sys::output_file};

/// Stream of results, flushed after each line, except in a batch, so that `| grep` works.
pub struct Output {
    sink: BufWriter<Box<dyn Write>>,
    name: String,
    to_stdout: bool,
    /// Whether the reader has gone; further output is dropped.
    closed: bool,
    /// Whether lines are not flushed, because the end of the batch flushes them.
    in_batch: bool,
}

impl Output {
    /// Opens standard output, or a file that is created or truncated.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be created.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let (sink, name): (Box<dyn Write>, _) = match path {
            None => (Box::new(io::stdout()), "standard output".to_owned()),
            Some(path) => {
                let what = format!("create {}", path.display());
                let file = output_file::create(path).map_err(|e| Error::io(what, e))?;
                (Box::new(file), path.display().to_string())
            }
        };
        Ok(Self::new(sink, name, path.is_none()))
    }

    /// Returns the text that `print` writes to the stream.
    ///
    /// # Errors
    /// The errors of `print`.
    pub fn collect(print: impl FnOnce(&mut Self) -> Result<()>) -> Result<String> {
        let buffer = Buffer::default();
        let mut output = Self::new(Box::new(buffer.clone()), "a buffer".to_owned(), false);
        output.batch(print)?;
        Ok(String::from_utf8_lossy(&buffer.0.take()).into_owned())
    }

    fn new(sink: Box<dyn Write>, name: String, to_stdout: bool) -> Self {
        Self { sink: BufWriter::new(sink), name, to_stdout, closed: false, in_batch: false }
    }

    /// Calls `print`, and flushes the lines that it writes together.
    ///
    /// # Errors
    /// The errors of `print` and of [`Output::line`].
    pub fn batch(&mut self, print: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.in_batch = true;
        let printed = print(self);
        self.in_batch = false;
        printed.and(self.write_with(|sink| sink.flush()))
    }

    /// Writes a line, without trailing spaces and with control characters escaped, except tabs at its beginning.
    ///
    /// # Errors
    /// [`Error::Io`], for example on a full disk. A closed pipe is not an error: see [`Output::is_closed`].
    pub fn line(&mut self, text: &str) -> Result<()> {
        let rest = text.trim_start_matches('\t');
        let (tabs, _) = text.split_at(text.len() - rest.len());
        self.write(&format!("{tabs}{}", clean::line(rest.trim_end())))
    }

    /// Writes several lines, such as a table, without the padding of the last column.
    ///
    /// # Errors
    /// Returns the errors of [`Output::line`].
    pub fn lines(&mut self, text: &str) -> Result<()> {
        text.split('\n').try_for_each(|line| self.line(line))
    }

    /// Writes a record as a line of JSON.
    ///
    /// # Errors
    /// Returns the errors of [`Output::line`].
    pub fn json(&mut self, record: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string(record);
        let json = json.map_err(|e| Error::io(format!("write to {}", self.name), e.into()))?;
        self.write(&clean::json(&json))
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let is_flushed = !self.in_batch;
        self.write_with(|sink| {
            writeln!(sink, "{line}")?;
            if is_flushed { sink.flush() } else { Ok(()) }
        })
    }

    fn write_with(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Box<dyn Write>>) -> io::Result<()>,
    ) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        match write(&mut self.sink) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.map_err(|e| Error::io(format!("write to {}", self.name), e)),
        }
    }

    /// Returns whether the reader has closed the pipe, even if nothing was written since.
    pub fn is_closed(&self) -> bool {
        self.closed || self.to_stdout && has_no_reader()
    }
}

/// Stream to memory.
#[derive(Clone, Default)]
struct Buffer(Rc<RefCell<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn has_no_reader() -> bool {
    let stdout = io::stdout();
    // poll() reports POLLERR for a pipe without readers even if no events are requested.
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_blanks_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = Output::open(Some(&path)).unwrap();
        out.line("").unwrap();
        out.lines("a  \n  b \n\nc").unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "\na\n  b\n\nc\n");
    }

    #[test]
    fn control_characters_are_escaped_within_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut out = Output::open(Some(&path)).unwrap();
        out.line("a\n\x1b[31mb").unwrap();
        out.json(&"\u{202e}\u{7f}").unwrap();
        out.line("\tat\ta").unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, "a\\x0a\\x1b[31mb\n\"\\u202e\\u007f\"\n\tat\\x09a\n");
    }

    #[test]
    fn collected_text_is_unchanged_when_it_is_written_again() {
        let print = |text: &str| Output::collect(|out| out.lines(text)).unwrap();
        let text = print("a\u{1b}b\n\tat c");
        assert_eq!(text, "a\\x1bb\n\tat c\n");
        assert_eq!(print(text.trim_end()), text);
    }
}
