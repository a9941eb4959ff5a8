//! Data with which the BPF side reads what a thread waited for (`bpf/javawait.bpf.c`): the offsets of the fields, the
//! JavaThread of each thread, and the names of the classes of awaited objects.

use std::{collections::HashMap, sync::Arc};

use super::{reader::AT_ONCE, reader::Reader};
use crate::{
    Addr, Error, Result,
    hotspot::{loaded::at, objects::ClassField, pages::Pages, references::Form, threads},
    process::memory::Memory,
};

/// Offsets of the fields that say what a thread waits for, in bytes; 0 for a field that the JVM does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitFields {
    /// In a JavaThread: the monitor that it enters.
    pub(crate) pending_monitor: u64,
    /// In a JavaThread: the monitor on which it has called `Object.wait`.
    pub(crate) waiting_monitor: u64,
    /// In a JavaThread: its `java.lang.Thread`.
    pub(crate) thread_object: u64,
    /// In a JavaThread: the virtual thread that is mounted on it.
    pub(crate) virtual_thread: u64,
    /// In an ObjectMonitor: its object.
    pub(crate) monitor_object: u64,
    /// In a `java.lang.Thread`: the object for which it is parked.
    pub(crate) park_blocker: u64,
    /// In a `java.lang.Thread`: its number.
    pub(crate) number: u64,
    /// Form of the references in objects.
    pub(crate) form: Form,
    /// Form of the references from objects to their classes.
    pub(crate) class: ClassField,
    /// Whether the JVM's own fields refer to objects by handles.
    pub(crate) has_handles: bool,
}

/// Class of an awaited object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AwaitedClass {
    /// Its name as in Java source.
    pub(crate) name: Arc<str>,
    /// Whether it is a subclass of `AbstractOwnableSynchronizer`.
    pub(crate) is_synchronizer: bool,
}

/// Reads what the BPF side needs, and names what it has read.
#[derive(Debug)]
pub(crate) struct AwaitedReader(pub(super) Reader);

impl AwaitedReader {
    pub(in crate::hotspot) fn new(reader: Reader) -> Self {
        Self(reader)
    }

    pub(super) fn memory(&self) -> Memory {
        self.0.memory.clone()
    }

    /// Returns the offsets of the fields.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub(crate) fn fields(&mut self) -> Result<WaitFields> {
        let memory = self.memory();
        let mut pages = Pages::scattered(&memory);
        let offsets = self.0.offsets;
        let mut fields = None;
        for thread in threads::addresses(&memory, &self.0.layout)? {
            let object = self.0.root(&mut pages, at(thread, offsets.object)?).ok().flatten();
            let Some(object) = object else { continue };
            if let Ok((found, _)) = self.0.thread_fields(&mut pages, object) {
                fields = Some(found);
                break;
            }
        }
        let fields = fields.ok_or_else(|| Error::layout("no java.lang.Thread could be read"))?;
        let class = self.0.references.class_field();
        Ok(WaitFields {
            pending_monitor: offsets.pending,
            waiting_monitor: offsets.waiting,
            thread_object: offsets.object,
            virtual_thread: offsets.virtual_thread.unwrap_or(0),
            monitor_object: offsets.monitor_object,
            park_blocker: fields.park_blocker.unwrap_or(0),
            number: fields.number,
            form: self.0.references.form(),
            class,
            has_handles: self.0.has_handles,
        })
    }

    /// Returns the addresses of the JavaThreads by thread ID, in the JVM's PID namespace. Threads that have not started are
    /// missing.
    ///
    /// # Errors
    /// [`Error::Layout`] naming the missing field, [`Error::Memory`] if the JVM has exited.
    pub(crate) fn threads(&mut self) -> Result<HashMap<u32, Addr>> {
        let memory = self.memory();
        let mut pages = Pages::scattered(&memory);
        let mut found = HashMap::new();
        for some in threads::addresses(&memory, &self.0.layout)?.chunks(AT_ONCE) {
            let tids = pages.read_batched(some, |pages, &thread| self.0.tid(pages, thread));
            let known = some.iter().zip(tids);
            found.extend(known.filter_map(|(&thread, tid)| Some((tid.ok()??, thread))));
        }
        Ok(found)
    }

    /// Clears the cached classes, because a class's address may be reused.
    pub(crate) fn forget_classes(&mut self) {
        self.0.forget_classes();
    }

    /// Returns the class at an address that the BPF side has read from an object; `None` if there is none, because the
    /// object was moved meanwhile.
    pub(crate) fn class(&mut self, klass: Addr) -> Option<AwaitedClass> {
        let memory = self.memory();
        let mut pages = Pages::scattered(&memory);
        let class = self.0.class(&mut pages, klass).ok()?;
        Some(AwaitedClass { name: class.name, is_synchronizer: class.synchronizer.is_some() })
    }
}
