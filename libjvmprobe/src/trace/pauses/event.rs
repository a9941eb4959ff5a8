//! Events of the kernel side.
//!
//! The layouts come from the BPF object's BTF: the skeleton generator turns the structs of `bpf/javagc.h` into
//! these types.

use crate::{
    bpf::records::{copy, plain_structs, text, word},
    stack::raw::RawStack,
};

pub(crate) use crate::trace::pauses::skel::types::{
    budget, counters_event, gauge, limited_stops, operation, pool_event, request_event,
    state_event, stop_event,
};

// `enum event_kind` and `UNKNOWN` of bpf/javagc.h and bpf/gauge.h.
const STOP: u64 = 1;
const POOL: u64 = 2;
const CYCLE: u64 = 3;
const REQUEST: u64 = 4;
const STACK: u64 = 5;
const COUNTED: u64 = 6;
const UNKNOWN: u64 = u64::MAX;

plain_structs!(stop_event, pool_event, state_event, request_event, counters_event, budget, gauge);

/// A decoded event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A stop has ended.
    Stop(Box<stop_event>),
    /// A memory pool before or after a collection.
    Pool(Box<pool_event>),
    /// A concurrent cycle begins or ends.
    Cycle(Box<state_event>),
    /// A thread requests a collection.
    Request(request_event),
    /// A new stack, with the number by which other events refer to it.
    Stack(u64, RawStack),
    /// A stop has ended, in a JVM whose own counters are read.
    Counted(Box<counters_event>),
}

impl Event {
    /// Decodes a ring buffer record; returns `None` for an unknown kind or a wrong size.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            STOP => copy(record).map(|e| Self::Stop(Box::new(e))),
            POOL => copy(record).map(|e| Self::Pool(Box::new(e))),
            CYCLE => copy(record).map(|e| Self::Cycle(Box::new(e))),
            REQUEST => copy(record).map(Self::Request),
            COUNTED => copy(record).map(|e| Self::Counted(Box::new(e))),
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            _ => None,
        }
    }

    /// The key of the JVM that the event came from.
    pub(crate) fn target(&self) -> u64 {
        match self {
            Self::Stop(e) => e.target,
            Self::Pool(e) => e.at.target,
            Self::Cycle(e) => e.target,
            Self::Request(e) => e.target,
            Self::Stack(_, stack) => stack.target,
            Self::Counted(e) => e.target,
        }
    }
}

/// Returns a value from the kernel side, or `None` if it is `UNKNOWN`.
pub(crate) fn known(value: u64) -> Option<u64> {
    (value != UNKNOWN).then_some(value)
}

/// Returns the cause of a collection. HotSpot keeps it in `cause` during the collection, and then moves it to
/// `lastCause`.
pub(crate) fn cause<T: Copy + Into<i64>>(cause: &[T], last_cause: &[T]) -> Option<String> {
    [text(cause), text(last_cause)].into_iter().find(|c| !c.is_empty() && c != "No GC")
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;
    use crate::hotspot::counters::NUMBERS;

    /// The C side's `OP_LEN`, `CAUSE_LEN` and `POOL_LEN`.
    const LEN: usize = 64;

    #[test]
    fn struct_layouts_match_the_c_header() {
        assert_eq!(size_of::<operation>(), 8 + LEN);
        assert_eq!(size_of::<gauge>(), (1 + 4 + 3 + 8 * 5 + 4 + 8 + 2) * 8);
        assert_eq!(size_of::<request_event>(), 5 * 8 + 16);
        assert_eq!(size_of::<counters_event>(), (3 + NUMBERS) * 8 + 2 * LEN);
        assert_eq!(offset_of!(stop_event, before), 11 * 8);
        assert_eq!(offset_of!(stop_event, gc_pairs), 21 * 8);
        assert_eq!(offset_of!(stop_event, op), 28 * 8);
        assert_eq!(size_of::<stop_event>(), 28 * 8 + 3 * (8 + LEN) + 2 * LEN);
        assert_eq!(size_of::<state_event>(), 6 * 8 + 2 * LEN);
        assert_eq!(offset_of!(pool_event, manager), size_of::<state_event>() + 4 * 8);
        assert_eq!(size_of::<pool_event>(), size_of::<state_event>() + 4 * 8 + 2 * LEN);
    }

    #[test]
    fn hostile_records_are_dropped() {
        assert!(Event::decode(&[]).is_none());
        assert!(Event::decode(&[1, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert!(Event::decode(&[9; 4096]).is_none());
    }

    #[test]
    fn last_cause_is_used_if_there_is_no_current_cause() {
        assert_eq!(cause(b"System.gc()", b"No GC").as_deref(), Some("System.gc()"));
        assert_eq!(cause(b"No GC", b"System.gc()").as_deref(), Some("System.gc()"));
        assert_eq!(cause(b"", b""), None);
    }
}
