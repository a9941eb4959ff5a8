//! Records of the kernel side: bpf/javawait.h.

use crate::{
    bpf::records::{copy, plain_structs, word},
    stack::raw::RawStack,
};

#[cfg(test)]
use crate::trace::waits::skel::types::awaited;
pub(super) use crate::trace::waits::skel::types::{
    class_place, left_out, thread_event, traced_jvm, wait_event, wait_limits, waker,
};

// `enum event_kind` of bpf/javawait.h.
const STACK: u64 = 1;
const WAIT: u64 = 2;
const THREAD: u64 = 3;

/// `WAIT_*` of bpf/javawait.h.
pub(super) const UNSEEN: u32 = 1;
pub(super) const THROTTLED: u32 = 2;
pub(super) const WOKEN_THROTTLED: u32 = 4;

plain_structs!(wait_event, traced_jvm, thread_event, wait_limits, left_out);

/// A decoded record of the ring buffer.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A stack, preceded by the ID by which waits refer to it.
    Stack(u64, RawStack),
    /// A wait that has ended.
    Wait(Box<wait_event>),
    /// A thread that was seen for the first time.
    Thread(thread_event),
}

impl Event {
    /// Decodes a ring buffer record; `None` if its kind or size is invalid.
    pub(super) fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            WAIT => copy(record).map(|event| Self::Wait(Box::new(event))),
            THREAD => copy(record).map(Self::Thread),
            _ => None,
        }
    }

    /// Returns the key of its JVM; 0 for a kernel stack.
    pub(super) fn target(&self) -> u64 {
        match self {
            Self::Stack(_, stack) => stack.target,
            Self::Wait(event) => event.target,
            Self::Thread(event) => event.target,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn struct_layouts_match_the_c_header() {
        assert_eq!(size_of::<traced_jvm>(), 2 * 8 + 10 * 4 + 8 + 4 * 4 + 8);
        assert_eq!(size_of::<awaited>(), 3 * 8);
        assert_eq!(size_of::<waker>(), 5 * 8 + 4 * 4 + 16);
        assert_eq!(size_of::<wait_event>(), 16 * 8 + 3 * 24 + 72 + 16 + 4 * 4 + 16);
        assert_eq!(size_of::<thread_event>(), 3 * 8);
        assert_eq!(size_of::<wait_limits>(), 8);
        assert_eq!(size_of::<left_out>(), 3 * 8 + 16 * 16);
    }

    proptest! {
        #[test]
        fn hostile_records_do_not_panic(mut record in prop::collection::vec(any::<u8>(), 0..600)) {
            for kind in [STACK, WAIT, THREAD, 9] {
                if let Some(head) = record.get_mut(..8) {
                    head.copy_from_slice(&u64::to_ne_bytes(kind));
                }
                let _ = Event::decode(&record);
            }
        }
    }
}
