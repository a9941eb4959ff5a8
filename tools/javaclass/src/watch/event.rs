//! Events that the kernel side sends.
//!
//! The layouts come from the BPF object's own type information: the skeleton generator turns the
//! structs of `bpf/javaclass.h` into these types.

use libjvmprobe::{
    bpf::records::{copy, text, word},
    hotspot::classes::java_name,
    stack::raw::RawStack,
};
use plain::Plain;

use crate::skel::types::class_event;

// `enum event_kind` of bpf/javaclass.h.
const CLASS: u64 = 1;
const STACK: u64 = 2;

// SAFETY: a generated #[repr(C)] struct of integers and byte arrays only, for which any bit
// pattern is a value.
unsafe impl Plain for class_event {}

/// Kind of an event of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was loaded.
    Loaded,
    /// It was unloaded.
    Unloaded,
    /// It was initialised.
    Initialized,
    /// Its initialiser threw.
    Failed,
}

/// An event of a class.
#[derive(Clone, Debug)]
pub struct ClassEvent {
    /// Key of the JVM.
    pub target: u64,
    /// Timestamp on `CLOCK_MONOTONIC`, in nanoseconds.
    pub ts_ns: u64,
    /// Duration of the initialisation, in nanoseconds.
    pub duration_ns: u64,
    /// ID of the stack that caused the event; 0 if there is none.
    pub stack: u64,
    /// HotSpot's identifier of the loader; 0 for the boot loader.
    pub loader: u64,
    /// ID of the thread.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// Kind of the event.
    pub kind: EventKind,
    /// The class.
    pub class: String,
    /// Whether the class was loaded from a CDS archive.
    pub is_archived: bool,
}

/// An event of the ring buffer.
pub enum Event {
    /// A class was loaded, unloaded or initialised.
    Class(Box<ClassEvent>),
    /// A new stack, and its ID.
    Stack(u64, RawStack),
}

impl Event {
    /// Decodes a record of the ring buffer; `None` for invalid records.
    pub fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            CLASS => class(record).map(Box::new).map(Self::Class),
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            _ => None,
        }
    }

    /// Returns the key of the JVM.
    pub fn target(&self) -> u64 {
        match self {
            Self::Class(event) => event.target,
            Self::Stack(_, stack) => stack.target,
        }
    }
}

fn class(record: &[u8]) -> Option<ClassEvent> {
    let event: class_event = copy(record)?;
    let kind = match event.change {
        1 => EventKind::Loaded,
        2 => EventKind::Unloaded,
        3 => EventKind::Initialized,
        4 => EventKind::Failed,
        _ => return None,
    };
    let max_length = event.name.len().saturating_sub(1);
    let length = (event.length as usize).min(max_length);
    let name: Vec<_> = event.name.iter().take(length).map(|&c| c as u8).collect();
    Some(ClassEvent {
        target: event.target,
        ts_ns: event.ts_ns,
        duration_ns: event.duration_ns,
        stack: event.stack,
        loader: event.loader,
        tid: event.tid,
        thread: text(&event.comm),
        kind,
        class: java_name(&name, event.length),
        is_archived: event.shared != 0,
    })
}
