//! The target's own counters, read by the kernel side with each event.
//!
//! A BPF program that runs in the context of a target's thread can read the target's memory at the instant of
//! a probe hit, without a race, without stopping the target and without an additional trap. User space
//! determines the addresses of the counters once and describes them in a [`Gauge`].

use crate::{
    Addr,
    hotspot::{gauge::Gauge, heap::Term},
    trace::pauses::{event::gauge, skel::types::gauge_term},
};

/// Returns the kernel side's form of a gauge.
pub(super) fn kernel_gauge(from: &Gauge) -> gauge {
    let mut to = gauge {
        counters: from.counters.map(address),
        cause: address(from.cause),
        last_cause: address(from.last_cause),
        operation: address(from.operation),
        waits: from.reads_heap_at_gc_begin.into(),
        op_shows_collection: from.op_shows_collection.into(),
        ..Default::default()
    };
    if let Some(stop) = from.last_stop {
        (to.stop_begin, to.stop_sync) = (stop.begin.0, stop.sync.0);
        (to.stop_end, to.stop_op_type) = (stop.end.0, stop.op_type.0);
    }
    // If there are too many terms, none is used, because an incomplete sum would be wrong.
    if from.heap.len() <= to.terms.len() {
        to.terms_used = from.heap.len() as u64;
        to.terms.iter_mut().zip(&from.heap).for_each(|(to, from)| *to = kernel_term(from));
    }
    if from.used_at_gc_end.len() <= to.used_at_gc_end.len() {
        to.used_at_gc_end.iter_mut().zip(&from.used_at_gc_end).for_each(|(to, from)| *to = from.0);
    }
    to
}

fn address(addr: Option<Addr>) -> u64 {
    addr.map_or(0, |addr| addr.0)
}

/// Returns the kernel side's form of a term, with its `enum term_kind` of bpf/gauge.h.
fn kernel_term(term: &Term) -> gauge_term {
    let direct = |addr: Addr| gauge_term { addr: addr.0, ..Default::default() };
    match *term {
        Term::Direct { addr } => direct(addr),
        Term::Span { holder, end_offset, start_offset, none } => gauge_term {
            addr: holder.0,
            plus: end_offset,
            minus: start_offset,
            kind: 2,
            none: address(none),
        },
        Term::FreeWords { addr } => gauge_term { kind: 3, ..direct(addr) },
        Term::FreeLists { first, stride } => gauge_term { plus: stride, kind: 4, ..direct(first) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::records::bytes;

    #[test]
    fn too_many_terms_or_spaces_become_zeros() {
        let heap = vec![Term::Direct { addr: Addr(1) }; gauge::default().terms.len() + 1];
        let used_at_gc_end = vec![Addr(1); gauge::default().used_at_gc_end.len() + 1];
        let gauge = kernel_gauge(&Gauge { heap, used_at_gc_end, ..Default::default() });
        assert!(bytes(&gauge).iter().all(|&b| b == 0));
    }
}
