//! Marks of what each thread reads, for a program that is restarted after it was killed.
//!
//! A file or JVM may still make this process exceed its memory limit in a way that nobody has foreseen. The kernel then
//! kills the process without a message, and its successor would read the same file again. So the program can keep marks
//! that survive its end: it implements [`Marks`]. Tools, which are not restarted, keep none.

use std::{
    cell::Cell,
    fmt,
    marker::PhantomData,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use crate::{Error, Result};

/// Version of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileVersion {
    /// Device number.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time in nanoseconds since 1970, modulo 2^64.
    pub mtime_ns: i64,
}

/// Something that is about to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Tenant of the process.
    pub tenant: Arc<str>,
    /// Path of the file as the process sees it, for messages.
    pub path: PathBuf,
    /// The file.
    pub file: FileVersion,
    /// PID of the process, and its start time in clock ticks since boot.
    pub process: (u32, u64),
}

/// Storage of marks.
pub trait Marks: fmt::Debug + Send + Sync {
    /// Stores a mark. Returns its number, or `None` if there is no space for it. May wait until something else that is
    /// suspicious has been read.
    ///
    /// # Errors
    /// The reason, if this must not be read.
    fn begin(&self, reading: &Reading) -> Result<Option<usize>, String>;

    /// Removes a mark.
    fn end(&self, mark: usize);
}

static MARKS: OnceLock<Box<dyn Marks>> = OnceLock::new();

thread_local! {
    /// Whether this thread has a mark.
    static IS_MARKED: Cell<bool> = const { Cell::new(false) };
}

/// Sets the storage of marks. Only the first call has an effect.
pub fn set_marks(marks: Box<dyn Marks>) {
    // Fails if it is set already.
    let _ = MARKS.set(marks);
}

/// A mark of this thread. Removed when dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Number of the mark; `None` if none was stored.
    number: Option<usize>,
    /// Whether the thread had no mark before.
    is_first: bool,
    /// The mark belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let (Some(marks), Some(number)) = (MARKS.get(), self.number) {
            marks.end(number);
        }
        if self.is_first {
            IS_MARKED.set(false);
        }
    }
}

/// Marks what this thread reads until the result is dropped. Does nothing if the thread has a mark, or if the program
/// keeps no marks.
///
/// # Errors
/// [`Error::Unsupported`] if the program has been killed while it read the same.
pub(crate) fn mark(reading: impl FnOnce() -> Option<Reading>) -> Result<Mark> {
    let is_first = !IS_MARKED.get();
    let mut mark = Mark { number: None, is_first, _thread: PhantomData };
    if let Some(marks) = MARKS.get().filter(|_| is_first)
        && let Some(reading) = reading()
    {
        IS_MARKED.set(true);
        let number = marks.begin(&reading);
        mark.number = number.map_err(|what| Error::Unsupported { what })?;
    }
    Ok(mark)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Refuses process 2.
    #[derive(Debug)]
    struct Logged;

    impl Marks for Logged {
        fn begin(&self, reading: &Reading) -> Result<Option<usize>, String> {
            let pid = reading.process.0;
            LOG.lock().unwrap().push(format!("begin {pid}"));
            if pid == 2 { Err("refused".into()) } else { Ok(Some(pid as usize)) }
        }

        fn end(&self, mark: usize) {
            LOG.lock().unwrap().push(format!("end {mark}"));
        }
    }

    #[test]
    fn outermost_mark_of_a_thread_is_stored_and_removed() {
        let reading = |pid| Reading {
            tenant: "t".into(),
            path: "/x".into(),
            file: FileVersion::default(),
            process: (pid, 0),
        };
        set_marks(Box::new(Logged));
        let outer = mark(|| Some(reading(1))).unwrap();
        drop(mark(|| Some(reading(2))).unwrap());
        drop(outer);
        assert!(mark(|| None).is_ok());
        assert_eq!(mark(|| Some(reading(2))).unwrap_err().to_string(), "refused");
        drop(mark(|| Some(reading(3))).unwrap());
        // Other tests of this process may read, too.
        let log = LOG.lock().unwrap();
        let own = ["begin 1", "end 1", "begin 2", "begin 3", "end 3"];
        let seen: Vec<_> = log.iter().filter(|line| own.contains(&&***line)).collect();
        assert_eq!(seen, own.iter().collect::<Vec<_>>());
    }
}
