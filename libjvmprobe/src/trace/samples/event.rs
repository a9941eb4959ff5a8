//! Records and map entries of the kernel side.
//!
//! Their layouts come from the BPF object's own type information (BTF): the skeleton generator translates the structs
//! of `bpf/javaprof.h` into these types.

use crate::{
    Addr,
    bpf::{
        records::{copy, plain_structs, text, word},
        stops::Stop,
    },
    names::{
        code::{Code, CodeKind},
        java::java_parameters,
    },
    stack::raw::RawStack,
};

pub(crate) use crate::trace::samples::skel::types::{
    class_place, code_event, java_layout, limits, sample_count, sample_key, target, thin, thin_key,
};
#[cfg(test)]
pub(crate) use crate::trace::samples::skel::types::{sleeper, span_source, thread};

// `enum event_kind` of bpf/javaprof.h.
const STACK: u64 = 1;
const CODE: u64 = 2;
const LABEL: u64 = 3;
const STOP: u64 = 4;

plain_structs!(code_event, sample_key, sample_count, thin_key, thin, java_layout, target, limits);

/// A decoded record of the ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A stack, preceded by the number by which samples refer to it.
    Stack(u64, RawStack),
    /// A load or unload in a JVM's code cache.
    Code(CodeEvent),
    /// The text of a label.
    Label(Label),
    /// A stop of the application.
    Stop(Stop),
}

/// A load or unload of compiled code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeEvent {
    /// Key of the JVM: its PID.
    pub(crate) target: u64,
    /// Number of the epoch that begins with this change. Each load or unload begins a new epoch of the code cache.
    pub(crate) epoch: u64,
    /// Address and size in bytes of the loaded code; `None` for an unload.
    pub(crate) range: Option<(Addr, u64)>,
    /// The method or stub.
    pub(crate) code: Code,
}

/// Text of a label, which a sample carries beside its stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// Key of the JVM: its PID.
    pub(crate) target: u64,
    /// The number by which samples refer to the label.
    pub(crate) label: u64,
    /// The text as the JVM stores it.
    pub(crate) text: Vec<u8>,
}

impl Event {
    /// Decodes a ring buffer record; `None` if its kind or size is invalid.
    pub(crate) fn decode(record: &[u8]) -> Option<Self> {
        match word(record, 0)? {
            STACK => RawStack::decode_event(record).map(|(id, stack)| Self::Stack(id, stack)),
            CODE => {
                let event: code_event = copy(record)?;
                Some(Self::Code(CodeEvent {
                    target: event.target,
                    epoch: event.epoch,
                    range: (event.size > 0).then_some((Addr(event.addr), event.size)),
                    code: method(&event),
                }))
            }
            LABEL => {
                let (target, label) = (word(record, 8)?, word(record, 16)?);
                let size = usize::try_from(word(record, 24)?).ok()?;
                let text = record.get(32..)?.get(..size)?.to_vec();
                Some(Self::Label(Label { target, label, text }))
            }
            STOP => Stop::decode(record).map(Self::Stop),
            _ => None,
        }
    }
}

fn method(event: &code_event) -> Code {
    let class = text(&event.klass).replace('/', ".");
    let (method, signature) = (text(&event.method), text(&event.signature));
    if class.is_empty() {
        return Code::new(CodeKind::Stub, &method);
    }
    let parameters = java_parameters(&signature).unwrap_or(signature);
    Code::method(&format!("{class}.{method}"), Some(&parameters))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        bpf::walker::{MappingEntry, layout_offsets},
        hotspot::walking::JvmLayout,
        stack::raw::RawFrame,
        trace::samples::skel::types::{jvm, label_event, mapping, stop_event, unwind_row},
        unwind::Row,
    };

    #[test]
    fn struct_layouts_match_the_c_header() {
        assert_eq!(size_of::<code_event>(), 5 * 8 + 3 * 256);
        assert_eq!(size_of::<sample_key>(), 4 * 8 + 3 * 8 + 6 * 4 + 16);
        assert_eq!(offset_of!(sample_key, comm), 80);
        assert_eq!(size_of::<java_layout>(), 8 * 4 + 8 + 2 * 4);
        assert_eq!(offset_of!(label_event, text), 32);
        assert_eq!(size_of::<stop_event>(), 5 * 8 + 64);
        assert_eq!(size_of::<thread>(), 6 * 8 + 3 * 4 + 4 + 8 + 2 * 4 + 16);
    }

    /// Compares the library's mirrors of bpf/walk/walk.h with the types compiled from that header.
    #[test]
    fn walker_struct_layouts_match_the_c_header() {
        let ours = [
            size_of::<jvm>(),
            offset_of!(jvm, interpreter_low),
            offset_of!(jvm, unloads_at),
            offset_of!(jvm, heap_count),
            offset_of!(jvm, compile_id),
        ];
        assert_eq!(layout_offsets(), ours);
        assert_eq!(align_of::<jvm>(), align_of::<JvmLayout>());
        assert_eq!(size_of::<mapping>(), size_of::<MappingEntry>());
        assert_eq!(offset_of!(mapping, table), offset_of!(MappingEntry, table));
        assert_eq!(size_of::<unwind_row>(), size_of::<Row>());
        assert_eq!(offset_of!(unwind_row, fp), offset_of!(Row, fp));
    }

    #[test]
    fn stack_record_decodes_and_truncated_record_is_rejected() {
        let words = [STACK, 9, 42, 0, 1, 2, 0x10, 0x20].map(u64::to_ne_bytes).concat();
        let frames =
            [0x10, 0x20].map(|addr| RawFrame::Code { addr: Addr(addr), compile_id: 0 }).to_vec();
        let stack = RawStack { target: 42, unloads: 0, frames };
        assert_eq!(Event::decode(&words), Some(Event::Stack(9, stack)));
        assert_eq!(Event::decode(&words[..words.len() - 8]), None);
    }

    proptest! {
        #[test]
        fn hostile_records_do_not_panic(mut record in prop::collection::vec(any::<u8>(), 0..900)) {
            let _ = Event::decode(&record);
            for kind in [STACK, CODE, LABEL, STOP] {
                if let Some(head) = record.get_mut(..8) {
                    head.copy_from_slice(&kind.to_ne_bytes());
                }
                let _ = Event::decode(&record);
            }
        }
    }
}
