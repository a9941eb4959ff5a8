//! The target's own counters, read by the kernel side with each event.
//!
//! A BPF program that runs in the context of a target's thread can read the target's memory at the instant of
//! a probe hit, without a race, without stopping the target and without an additional trap. User space
//! determines the addresses of the counters once and describes them in a [`Gauge`].

use crate::{
    Addr,
    hotspot::{gauge::Gauge, heap::Term},
};

/// `GAUGE_TERMS`, `GAUGE_COUNTERS` and `GAUGE_SPACES` of bpf/gauge.h.
const TERMS: usize = 8;
const COUNTERS: usize = 4;
const SPACES: usize = 8;
/// Number of 64-bit words in `struct gauge_term` and in `struct gauge`.
const TERM_WORDS: usize = 5;
const WORDS: usize = TERMS * TERM_WORDS + COUNTERS + SPACES + 10;

impl Gauge {
    /// Returns the gauge encoded as `struct gauge` of bpf/gauge.h.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // If there are too many terms, encodes none, because an incomplete sum would be wrong.
        let terms: &[Term] = if self.heap.len() <= TERMS { &self.heap } else { &[] };
        let used_at_gc_end: &[Addr] =
            if self.used_at_gc_end.len() <= SPACES { &self.used_at_gc_end } else { &[] };
        let mut words = Vec::with_capacity(WORDS);
        let stop = self.last_stop.map(|s| [s.end, s.begin, s.sync, s.op_type].map(|addr| addr.0));
        let [end, rest @ ..] = stop.unwrap_or_default();
        words.push(terms.len() as u64);
        words.extend(self.counters.iter().copied().map(addr_word));
        words.extend([self.cause, self.last_cause].map(addr_word));
        words.push(end);
        for i in 0..TERMS {
            words.extend(terms.get(i).map_or([0; TERM_WORDS], term_words));
        }
        words.extend(rest);
        words.push(addr_word(self.operation));
        words.extend((0..SPACES).map(|i| addr_word(used_at_gc_end.get(i).copied())));
        words.extend([self.reads_heap_at_gc_begin, self.op_shows_collection].map(u64::from));
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

fn addr_word(addr: Option<Addr>) -> u64 {
    addr.map_or(0, |a| a.0)
}

/// Returns a term encoded as `struct gauge_term`, with its `enum term_kind`.
fn term_words(term: &Term) -> [u64; TERM_WORDS] {
    match *term {
        Term::Direct { addr } => [addr.0, 0, 0, 0, 0],
        Term::Span { holder, end_offset, start_offset, none } => {
            [holder.0, end_offset, start_offset, 2, addr_word(none)]
        }
        Term::FreeWords { addr } => [addr.0, 0, 0, 3, 0],
        Term::FreeLists { first, stride } => [first.0, stride, 0, 4, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_with_too_many_terms_encodes_as_zeros() {
        let term = Term::Direct { addr: Addr(1) };
        let gauge = Gauge { heap: vec![term; TERMS + 1], ..Default::default() };
        let bytes = gauge.to_bytes();
        assert_eq!(bytes.len(), WORDS * 8);
        assert!(bytes.iter().all(|&b| b == 0));
    }

    #[test]
    fn too_many_spaces_encode_as_zeros() {
        let used_at_gc_end = vec![Addr(1); SPACES + 1];
        let gauge = Gauge { used_at_gc_end, ..Default::default() };
        assert!(gauge.to_bytes().iter().all(|&b| b == 0));
    }
}
