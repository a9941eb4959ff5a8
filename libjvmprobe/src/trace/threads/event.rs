//! Records of the kernel side: bpf/javastack.h.

use crate::{
    bpf::records::{copy, plain_structs, word},
    stack::raw::RawStack,
};

pub(super) use crate::trace::threads::skel::types::{running_thread, waiting_thread};

// `enum event_kind` of bpf/javastack.h.
const STACK: u64 = 1;
const RUNNING: u64 = 2;

plain_structs!(running_thread, waiting_thread);

/// A decoded record of the ring buffer.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A stack, preceded by the ID by which threads refer to it.
    Stack(u64, RawStack),
    /// A thread that was interrupted while it ran.
    Running(running_thread),
}

impl Event {
    /// Decodes a ring buffer record; `None` if its kind or size is invalid.
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            RUNNING => copy(record).map(Self::Running),
            _ => None,
        }
    }
}
