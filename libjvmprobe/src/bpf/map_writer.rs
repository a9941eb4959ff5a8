//! Background thread that updates the stack walker's maps.
//!
//! When an inner map is inserted into or removed from an outer one, the kernel waits until all programs that may
//! still use the previous inner map have ended. This takes about 10 ms, or up to 100 ms on a busy machine. If
//! the thread that reads events did this for a hundred JVMs, the events would wait too long.

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    sync::mpsc::{Sender, channel},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    Error, Result,
    sys::{Worker, privileges::MAPS},
};

/// The outer maps.
#[derive(Debug)]
pub(super) struct Outer {
    pub(crate) jvms: MapHandle,
    pub(crate) mappings: MapHandle,
    pub(crate) tables: MapHandle,
}

/// A job of the thread; jobs are done in the order in which they are sent.
#[derive(Debug)]
pub(super) enum Job {
    /// Inserts new tables by index, and the mappings of a process; then, if it is a new JVM, its layout.
    Insert { tables: Vec<(u32, MapHandle)>, key: u64, mappings: MapHandle, jvm: Option<Vec<u8>> },
    /// Removes the data of a process.
    Remove { key: u64 },
    /// Sends a message when all previous jobs are done.
    Notify(Sender<()>),
    /// Removes tables that are not used any more.
    Free { tables: Vec<u32> },
}

/// The thread that updates the maps.
#[derive(Debug)]
pub(super) struct MapWriter {
    /// Held until the first job has succeeded. That job runs synchronously, so that the caller gets the error if the
    /// kernel rejects it.
    outer: Option<Outer>,
    worker: Option<Worker<Job>>,
}

impl MapWriter {
    /// Creates a writer; its thread starts after the first job.
    pub(crate) fn new(outer: Outer) -> Self {
        Self { outer: Some(outer), worker: None }
    }

    /// Does the first job synchronously, and sends later ones to the thread.
    ///
    /// # Errors
    /// [`Error::Bpf`] if the kernel rejects the first job. Later ones can fail only for lack of memory, which is
    /// logged.
    pub(crate) fn send(&mut self, job: Job) -> Result<()> {
        if let Some(outer) = self.outer.take() {
            if let Err(error) = outer.do_job(&job) {
                self.outer = Some(outer);
                return Err(error);
            }
            let work = move || {
                move |job: Job| {
                    if let Err(error) = outer.do_job(&job) {
                        log::warn!(
                            "falling back to frame pointers for the stacks of a process: {error}"
                        );
                    }
                }
            };
            self.worker = Some(Worker::start("map-writer", MAPS, work)?);
            return Ok(());
        }
        let is_sent = self.worker.as_ref().is_some_and(|worker| worker.send(job));
        let ended = || {
            Error::io(
                "pass a job to the worker thread that updates the stack walker's maps",
                io::Error::other("the worker thread has ended"),
            )
        };
        if is_sent { Ok(()) } else { Err(ended()) }
    }

    /// Waits until all jobs so far are done.
    pub(crate) fn wait(&self) {
        let (done, is_done) = channel();
        if self.worker.as_ref().is_some_and(|worker| worker.send(Job::Notify(done))) {
            // An error means that the thread has ended; then there is nothing to wait for.
            let _ = is_done.recv();
        }
    }
}

impl Outer {
    fn do_job(&self, job: &Job) -> Result<()> {
        match job {
            Job::Insert { tables, key, mappings, jvm } => {
                let key = key.to_ne_bytes();
                self.insert_tables(tables)?;
                put(&self.mappings, &key, mappings)?;
                let insert = |jvm: &Vec<u8>| self.jvms.update(&key, jvm, MapFlags::ANY);
                jvm.as_ref().map_or(Ok(()), insert).map_err(|source| Error::Bpf {
                    what: "register a JVM with the stack walker".into(),
                    source,
                })
            }
            // Failures are ignored, because absent entries are the goal.
            Job::Remove { key } => {
                let _ = self.jvms.delete(&key.to_ne_bytes());
                let _ = self.mappings.delete(&key.to_ne_bytes());
                Ok(())
            }
            Job::Notify(done) => {
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

    /// Inserts all tables with one system call if possible, because the kernel waits once per call.
    fn insert_tables(&self, filled: &[(u32, MapHandle)]) -> Result<()> {
        let keys: Vec<u8> = filled.iter().flat_map(|(number, _)| number.to_ne_bytes()).collect();
        let fd = |inner: &MapHandle| inner.as_fd().as_raw_fd().to_ne_bytes();
        let fds: Vec<u8> = filled.iter().flat_map(|(_, inner)| fd(inner)).collect();
        let count = u32::try_from(filled.len()).unwrap_or(0);
        let any = MapFlags::ANY;
        if count == 0 || self.tables.update_batch(&keys, &fds, count, any, any).is_ok() {
            return Ok(());
        }
        // Before Linux 5.19, the kernel has no batch update of such maps.
        filled
            .iter()
            .try_for_each(|(number, inner)| put(&self.tables, &number.to_ne_bytes(), inner))
    }
}

fn put(outer: &MapHandle, key: &[u8], inner: &MapHandle) -> Result<()> {
    let fd = inner.as_fd().as_raw_fd();
    outer.update(key, &fd.to_ne_bytes(), MapFlags::ANY).map_err(|source| Error::Bpf {
        what: "insert an inner map into a map of the stack walker".into(),
        source,
    })
}
