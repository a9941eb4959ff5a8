//! The target's own counters, read by the kernel side with each event.
//!
//! A BPF program that runs in the target's context can read its memory at the
//! very instant of a probe: no race, no stop, no extra trap. User space finds
//! out once where the numbers are, and describes that in a [`Gauge`].

use crate::{Addr, hotspot::heap::Term};

/// `GAUGE_TERMS` and `GAUGE_COUNTERS` of bpf/gauge.h.
const TERMS: usize = 8;
const COUNTERS: usize = 4;

/// Where a JVM keeps the numbers that belong into every event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Summands of the used heap, at most eight; none where it is unknown.
    pub heap: Vec<Term>,
    /// The numbers of collections done, by collector: young, old. Of counters
    /// with 64 bits the low half is read.
    pub counters: [Option<Addr>; COUNTERS],
    /// The string `sun.gc.cause`.
    pub cause: Option<Addr>,
    /// The string `sun.gc.lastCause`.
    pub last_cause: Option<Addr>,
    /// What the JVM keeps of its last stop.
    pub last_stop: Option<LastStop>,
}

/// Where a JVM keeps the times of its last stop, 64-bit numbers of nanoseconds on
/// `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastStop {
    /// The threads are asked to stop.
    pub begin: Addr,
    /// All have stopped.
    pub sync: Addr,
    /// All run again.
    pub end: Addr,
    /// The operation's number, 32 bits.
    pub op_type: Addr,
}

impl Gauge {
    /// The bytes of `struct gauge` in bpf/gauge.h.
    pub fn to_bytes(&self) -> Vec<u8> {
        // A sum with a summand missing would be a wrong number: rather none.
        let terms: &[Term] = if self.heap.len() <= TERMS { &self.heap } else { &[] };
        let mut words = Vec::with_capacity(TERMS * 4 + COUNTERS + 7);
        for i in 0..TERMS {
            words.extend(terms.get(i).map_or([0; 4], term_words));
        }
        words.extend(self.counters.iter().copied().map(addr_word));
        words.extend([self.cause, self.last_cause].map(addr_word));
        let stop = self.last_stop.map(|s| [s.begin, s.sync, s.end, s.op_type].map(|addr| addr.0));
        words.extend(stop.unwrap_or_default());
        words.push(terms.len() as u64);
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

fn addr_word(addr: Option<Addr>) -> u64 {
    addr.map_or(0, |a| a.0)
}

/// `struct gauge_term`, `enum term_kind`.
fn term_words(term: &Term) -> [u64; 4] {
    match *term {
        Term::Direct { addr } => [addr.0, 0, 0, 0],
        Term::Indirect { holder, offset } => [holder.0, offset, 0, 1],
        Term::Span { holder, end_offset, start_offset } => [holder.0, end_offset, start_offset, 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_of_too_many_terms_is_unknown() {
        let term = Term::Direct { addr: Addr(1) };
        let gauge = Gauge { heap: vec![term; TERMS + 1], ..Default::default() };
        let bytes = gauge.to_bytes();
        assert_eq!(bytes.len(), (TERMS * 4 + COUNTERS + 7) * 8);
        assert!(bytes.iter().all(|&b| b == 0));
    }
}
