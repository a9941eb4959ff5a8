//! Handing tables over to the stack walker, in a thread of its own.
//!
//! When an inner map is put into an outer one or taken out, the kernel waits until all
//! programs have ended that may still use the one before: some ten milliseconds, on a busy
//! machine a tenth of a second. With a hundred JVMs that is too long to let events wait.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    Error, Result,
    own::{note, privileges},
};

/// The outer maps.
#[derive(Debug)]
pub(super) struct Outer {
    pub(crate) jvms: MapHandle,
    pub(crate) mappings: MapHandle,
    pub(crate) tables: MapHandle,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub(super) enum Job {
    /// Tells tables that are new, by their numbers, and what a process has mapped; then, if
    /// it is a new JVM, how to walk its code.
    Tell { tables: Vec<(u32, MapHandle)>, key: u64, mappings: MapHandle, jvm: Option<Vec<u8>> },
    /// Forgets a process.
    Forget { key: u64 },
    /// Says when all before is done.
    Say(Sender<()>),
    /// Frees tables that nobody uses any more.
    Free { tables: Vec<u32> },
}

/// The thread, and the way to it.
#[derive(Debug)]
pub(super) struct Clerk {
    /// Until the first table was taken, which shows that the kernel takes them: then a
    /// failure can still be told where it matters.
    outer: Option<Outer>,
    jobs: Option<Sender<Job>>,
}

impl Clerk {
    /// Gets ready; nothing runs before there is something to do.
    pub(crate) fn employ(outer: Outer) -> Self {
        Self { outer: Some(outer), jobs: None }
    }

    /// Does the first job at once, and has later ones done.
    ///
    /// # Errors
    /// [`Error::Bpf`] where the kernel does not take the first one. Later ones fail for
    /// lack of memory only, and this is noted.
    pub(crate) fn hand_over(&mut self, job: Job) -> Result<()> {
        if let Some(outer) = self.outer.take() {
            if let Err(error) = outer.do_job(&job) {
                self.outer = Some(outer);
                return Err(error);
            }
            let (jobs, todo) = channel();
            // It ends with the tool: what is still to be done then is of no use.
            let work = move || {
                privileges::keep(privileges::MAPS);
                work(&outer, &todo);
            };
            let thread = thread::Builder::new().name("handover".into()).spawn(work);
            thread.map_err(|e| Error::io("start a thread", e))?;
            self.jobs = Some(jobs);
            return Ok(());
        }
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        let ended =
            || Error::io("hand a table over", std::io::Error::other("its thread has ended"));
        if sent { Ok(()) } else { Err(ended()) }
    }

    /// Waits until all is done that was handed over.
    pub(crate) fn settle(&self) {
        let (say, done) = channel();
        if self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job::Say(say)).is_ok()) {
            // An error says that the thread has ended: then nothing is to be waited for.
            let _ = done.recv();
        }
    }
}

fn work(outer: &Outer, todo: &Receiver<Job>) {
    for job in todo {
        if let Err(error) = outer.do_job(&job) {
            note(&format!("stacks of a process are walked by frame pointers: {error}"));
        }
    }
}

impl Outer {
    fn do_job(&self, job: &Job) -> Result<()> {
        match job {
            Job::Tell { tables, key, mappings, jvm } => {
                let key = key.to_ne_bytes();
                self.tell_tables(tables)?;
                put(&self.mappings, &key, mappings)?;
                let tell = |jvm: &Vec<u8>| self.jvms.update(&key, jvm, MapFlags::ANY);
                jvm.as_ref().map_or(Ok(()), tell).map_err(|source| Error::Bpf {
                    what: "tell the stack walker of a JVM".into(),
                    source,
                })
            }
            // Absent entries are what is wanted.
            Job::Forget { key } => {
                let _ = self.jvms.delete(&key.to_ne_bytes());
                let _ = self.mappings.delete(&key.to_ne_bytes());
                Ok(())
            }
            Job::Say(done) => {
                let _ = done.send(());
                Ok(())
            }
            Job::Free { tables } => {
                for number in tables {
                    let _ = self.tables.delete(&number.to_ne_bytes());
                }
                Ok(())
            }
        }
    }

    /// All at once, for the kernel waits after each system call.
    fn tell_tables(&self, filled: &[(u32, MapHandle)]) -> Result<()> {
        let keys: Vec<u8> = filled.iter().flat_map(|(number, _)| number.to_ne_bytes()).collect();
        let fd = |inner: &MapHandle| inner.as_fd().as_raw_fd().to_ne_bytes();
        let fds: Vec<u8> = filled.iter().flat_map(|(_, inner)| fd(inner)).collect();
        let count = u32::try_from(filled.len()).unwrap_or(0);
        let any = MapFlags::ANY;
        if count == 0 || self.tables.update_batch(&keys, &fds, count, any, any).is_ok() {
            return Ok(());
        }
        // Before Linux 5.19 it takes them one by one.
        filled
            .iter()
            .try_for_each(|(number, inner)| put(&self.tables, &number.to_ne_bytes(), inner))
    }
}

fn put(outer: &MapHandle, key: &[u8], inner: &MapHandle) -> Result<()> {
    let fd = inner.as_fd().as_raw_fd();
    outer
        .update(key, &fd.to_ne_bytes(), MapFlags::ANY)
        .map_err(|source| Error::Bpf { what: "hand a table to the stack walker".into(), source })
}
