//! Events and counters of the kernel side.
//!
//! The layouts come from the BPF object's BTF: the skeleton generator turns the structs of `bpf/javaobjnew.h`
//! into these types.

use crate::{
    bpf::{
        records::{copy, plain_structs, text, word},
        stops::Stop,
    },
    stack::raw::RawStack,
};

pub(crate) use crate::trace::allocations::skel::types::{
    class_id, duty_cycle, duty_cycles, large_event, layout, name_event, old_thread, sampling_state,
    slot_bytes, span_event, tally, tally_key, thread_key, thread_state, tlab_event,
};

// `enum event_kind` of bpf/javaobjnew.h.
const NAME: u64 = 1;
const LARGE: u64 = 2;
const TLAB: u64 = 3;
const STACK: u64 = 4;
const STOP: u64 = 5;
const SPAN: u64 = 6;
/// Number that represents all stacks for which there was no free entry: `STACK_OTHER` of bpf/walk/walk.h.
pub(crate) const STACK_OTHER: u64 = 2;
/// Weight of a hit that represents only itself: `ONE` of bpf/allocation_sampling.bpf.h.
pub(crate) const ONE: u64 = 256;
/// `on_until_ns` of a probe that is always attached: `ALWAYS_ON` of bpf/javaobjnew.h.
pub(crate) const ALWAYS_ON: u64 = u64::MAX;
/// Offset of the class name in a name event.
const TEXT: usize = std::mem::offset_of!(name_event, text);

plain_structs! {
    class_id, duty_cycles, sampling_state, slot_bytes, layout, large_event, name_event, old_thread,
    span_event, tally, tally_key, thread_key, thread_state, tlab_event
}

/// A class, identified by the Symbol of its name. The length and the last bytes of the name distinguish this
/// Symbol from a later one at the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClassId {
    /// Address of the Symbol.
    pub(crate) symbol: u64,
    /// The last bytes of the name, at most eight.
    pub(crate) tail: u64,
    /// Length of the name in bytes.
    pub(crate) len: u32,
}

impl ClassId {
    /// Returns whether `text` can be the name of this class or the beginning of that name. `len` is the
    /// length of the complete name to which `text` belongs. `text` may be another name, because the class may
    /// have been unloaded, and the memory of its Symbol reused, before the name was read. If the kernel could
    /// not read the last bytes, `tail` is zero and only the length is compared.
    pub(crate) fn may_be(&self, text: &[u8], len: u32) -> bool {
        let mut tail = [0; 8];
        let last = &text[text.len().saturating_sub(tail.len())..];
        tail[..last.len()].copy_from_slice(last);
        let has_end = text.len() == self.len as usize && self.tail != 0;
        len == self.len && (!has_end || u64::from_ne_bytes(tail) == self.tail)
    }
}

impl From<&class_id> for ClassId {
    fn from(id: &class_id) -> Self {
        Self { symbol: id.symbol, tail: id.tail, len: id.len }
    }
}

/// A decoded event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Names of a class and a thread, sent when the kernel side creates a counter for them.
    Name(Name),
    /// A large object was allocated.
    Large(large_event),
    /// A thread has filled a TLAB that was chosen to be read. Behind its first object, `size` bytes contain objects.
    Tlab(tlab_event),
    /// A new stack, preceded by the number by which later events refer to it.
    Stack(u64, RawStack),
    /// A stack in a trace context.
    Span(span_event),
    /// The application was stopped.
    Stop(Stop),
}

/// Names of a class and a thread, read when the kernel side creates a counter for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The key of the JVM.
    pub(crate) target: u64,
    /// The class.
    pub(crate) class: ClassId,
    /// Bytes of the class's Symbol, cut at the maximum length that is sent; empty if the kernel could not read
    /// them.
    pub(crate) text: Vec<u8>,
    /// Thread ID; 0 if threads are not counted separately.
    pub(crate) tid: u32,
    /// The thread's name.
    pub(crate) comm: String,
}

impl Event {
    /// Decodes a ring buffer record; returns `None` for an unknown kind or a wrong size.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            NAME => {
                let size = word(record, TEXT - 8)?;
                let bytes = record.get(TEXT..)?.get(..usize::try_from(size).ok()?)?;
                // The kernel side sends only a part of the text array; the struct contains the whole array.
                let mut padded = record.to_vec();
                padded.resize(size_of::<name_event>(), 0);
                let event: name_event = copy(&padded)?;
                Some(Self::Name(Name {
                    target: event.target,
                    class: (&event.class).into(),
                    text: bytes.to_vec(),
                    // The thread ID has 32 bits.
                    tid: event.tid as u32,
                    comm: text(&event.comm),
                }))
            }
            LARGE => copy(record).map(Self::Large),
            TLAB => copy(record).map(Self::Tlab),
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            SPAN => copy(record).map(Self::Span),
            STOP => Stop::decode(record).map(Self::Stop),
            _ => None,
        }
    }

    /// The key of the JVM that the event came from.
    pub(crate) fn target(&self) -> u64 {
        match self {
            Self::Name(name) => name.target,
            Self::Large(large) => large.target,
            Self::Tlab(tlab) => tlab.target,
            Self::Stack(_, stack) => stack.target,
            Self::Span(span) => span.target,
            Self::Stop(stop) => stop.target,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::allocations::skel::types::stop_event;

    #[test]
    fn struct_layouts_match_the_c_header() {
        assert_eq!(size_of::<class_id>(), 3 * 8);
        assert_eq!(size_of::<layout>(), 10 * 8);
        assert_eq!(size_of::<tally_key>(), 6 * 8);
        assert_eq!(size_of::<tally>(), 10 * 8);
        assert_eq!(size_of::<slot_bytes>(), 2 * 8);
        assert_eq!(size_of::<sampling_state>(), 7 * 8);
        assert_eq!(size_of::<stop_event>(), 5 * 8 + 64);
        assert_eq!(size_of::<thread_key>(), 2 * 8);
        assert_eq!(size_of::<thread_state>(), 10 * 8);
        assert_eq!(size_of::<old_thread>(), 2 * 8);
        assert_eq!(size_of::<large_event>(), 3 * 8 + 3 * 8 + 2 * 8 + 8 + 16);
        assert_eq!(size_of::<tlab_event>(), 6 * 8);
        assert_eq!(size_of::<duty_cycles>(), 5 * 8);
        assert_eq!(size_of::<span_event>(), 7 * 8);
        assert_eq!(TEXT, 9 * 8);
        assert_eq!(size_of::<name_event>(), 9 * 8 + 1024);
    }

    #[test]
    fn name_record_decodes_and_truncated_record_is_rejected() {
        let comm = u64::from_ne_bytes(*b"worker\0\0");
        let words = [NAME, 7, 0x1000, 0x6261, 2, 5, comm, 0, 2];
        let mut record = words.map(u64::to_ne_bytes).concat();
        record.extend(b"ab");
        let class = ClassId { symbol: 0x1000, tail: 0x6261, len: 2 };
        let (text, comm) = (b"ab".to_vec(), "worker".into());
        let name = Name { target: 7, class, text, tid: 5, comm };
        let Some(Event::Name(found)) = Event::decode(&record) else { panic!("no name") };
        assert_eq!(found, name);
        assert!(Event::decode(&record[..73]).is_none());
    }

    #[test]
    fn stack_record_decodes_with_its_id() {
        let words = [STACK, 9, 42, 0, 1, 1, 0x10].map(u64::to_ne_bytes).concat();
        let Some(Event::Stack(9, stack)) = Event::decode(&words) else {
            panic!("no stack");
        };
        assert_eq!((stack.target, stack.frames.len()), (42, 1));
        assert!(Event::decode(&words[..words.len() - 8]).is_none());
    }

    #[test]
    fn span_record_decodes() {
        let record = [SPAN, 7, 11, 9, 1, 2, 3].map(u64::to_ne_bytes).concat();
        let Some(Event::Span(found)) = Event::decode(&record) else { panic!("no span") };
        assert_eq!((found.target, found.number, found.stack), (7, 11, 9));
        assert_eq!((found.span.trace, found.span.span), ([1, 2], 3));
        assert!(Event::decode(&record[..48]).is_none());
    }

    proptest! {
        #[test]
        fn hostile_records_do_not_panic(mut record in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Event::decode(&record);
            for kind in [NAME, LARGE, TLAB, STACK, STOP, SPAN] {
                if let Some(head) = record.get_mut(..8) {
                    head.copy_from_slice(&kind.to_ne_bytes());
                }
                let _ = Event::decode(&record);
            }
        }
    }
}
