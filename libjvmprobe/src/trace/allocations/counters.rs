//! The BPF object: loads it as the options require, and reads its counters.

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    Addr, Error, Result,
    bpf::{
        self, preflight,
        records::{bytes, clear, copy, entries, take_entries},
        session,
        spans::{self, SpanSources},
        sparse_map::{self, SparseMap},
        stops, walker,
    },
    hotspot::threads::ThreadBytes,
    sys::Pace,
    trace::allocations::{
        Options,
        event::{
            Event, layout, old_thread, sampling_state, slot_bytes, tally, tally_key, thread_key,
            thread_state,
        },
        probes,
        skel::{JavaobjnewSkel, JavaobjnewSkelBuilder},
    },
};

/// The loaded programs, their maps and their events.
pub(crate) type Session = session::Session<JavaobjnewSkel<'static>, Event>;

/// Suffix of the names of programs that walk stacks.
const WALKS: &str = "_stacks";
/// Counters by class and thread. 7 MB if preallocated.
const TALLIES: SparseMap =
    SparseMap { name: "tallies", on_demand_capacity: 1 << 17, preallocated_capacity: 1 << 15 };
/// Counters by class, thread and stack. 13 MB if preallocated.
const MANY_TALLIES: SparseMap =
    SparseMap { name: "tallies", on_demand_capacity: 1 << 18, preallocated_capacity: 1 << 16 };
/// Counters by time slot, which user space removes once per second. 10 MB if preallocated.
const BYTES_BY_SLOT: SparseMap = SparseMap {
    name: "bytes_by_slot",
    on_demand_capacity: 1 << 17,
    preallocated_capacity: 1 << 16,
};
/// Numbers of stacks in trace contexts. 0.6 MB if preallocated.
const KNOWN_SPANS: SparseMap =
    SparseMap { name: "known_spans", on_demand_capacity: 1 << 14, preallocated_capacity: 1 << 13 };
/// Maps by thread and by stack (7 MB in total if preallocated), and by JVM (1 MB).
const SPARSE_MAPS: [SparseMap; 7] = [
    SparseMap { name: "threads", on_demand_capacity: 1 << 16, preallocated_capacity: 1 << 15 },
    SparseMap { name: "old_threads", on_demand_capacity: 1 << 16, preallocated_capacity: 1 << 14 },
    SparseMap { name: "known_stacks", on_demand_capacity: 1 << 16, preallocated_capacity: 1 << 15 },
    SparseMap { name: "layouts", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    SparseMap { name: "overflow", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    SparseMap {
        name: "sampling_states",
        on_demand_capacity: 1 << 12,
        preallocated_capacity: 1 << 12,
    },
    SparseMap { name: "duties", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
];
/// Maps with entries that belong to a JVM.
const BY_JVM: [&str; 12] = [
    "layouts",
    "overflow",
    "sampling_states",
    "duties",
    "tallies",
    "bytes_by_slot",
    "threads",
    "old_threads",
    "known_stacks",
    "known_spans",
    spans::MAP,
    stops::MAP,
];
/// Maximum number of stacks that each JVM should send per window of 2^29 ns (0.54 s), if stacks are limited.
const MAX_STACKS_PER_WINDOW: f64 = 128.0;

/// Loads the BPF object, without the stack walker if stacks are not walked.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] if the kernel refuses.
pub(crate) fn load(options: &Options) -> Result<Session> {
    let mut open =
        JavaobjnewSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    let (stacks, slot_ns) = (options.by_stack, options.slot_ns);
    let thread_pointer = spans::offset_if(options.spans && stacks);
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_exact = name.starts_with("object_alloc");
        program.set_autoload(if stops::PROGRAMS.contains(&&*name) {
            slot_ns > 0
        } else {
            let walks = name == probes::THREAD_END || name.ends_with(WALKS) == stacks;
            is_exact == options.exact && walks
        });
    }
    if stacks {
        preflight::check_walker()?;
    } else {
        walker::disable_maps(open.open_object_mut())?;
    }
    sparse_map::set_sizes(open.open_object_mut(), &SPARSE_MAPS)?;
    sparse_map::set_sizes(open.open_object_mut(), &[if stacks { MANY_TALLIES } else { TALLIES }])?;
    if slot_ns > 0 {
        sparse_map::set_sizes(open.open_object_mut(), &[BYTES_BY_SLOT])?;
    } else {
        open.maps.bytes_by_slot.set_max_entries(1).map_err(bpf::load_error)?;
    }
    spans::set_capacity(&mut open.maps.span_sources, thread_pointer.is_some())?;
    if thread_pointer.is_some() {
        sparse_map::set_sizes(open.open_object_mut(), &[KNOWN_SPANS])?;
    } else {
        open.maps.known_spans.set_max_entries(1).map_err(bpf::load_error)?;
    }
    if stacks {
        open.maps.events.set_max_entries(options.pace.ring_bytes()).map_err(bpf::load_error)?;
    }
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.by_thread = options.by_thread;
        data.uses_walk_data = stacks;
        if let Some(offset) = thread_pointer {
            data.reads_spans = true;
            data.task_thread_pointer = offset;
        }
        data.slot_ns = slot_ns;
        data.polls_regularly = options.pace == Pace::Calm;
        data.counts_costs = options.pace == Pace::Calm;
        data.large_bytes = options.large.unwrap_or(u64::MAX);
    }
    let skel = session::load(open)?;
    let mut session = Session::new(skel, Event::decode, stacks)?.with_maps_by_jvm(&BY_JVM);
    if options.pace == Pace::Calm {
        session = session.with_costs()?;
    }
    Ok(if stacks { session.with_variant(WALKS) } else { session })
}

/// Starts counting the allocations of a JVM. `before` has the bytes that its threads have allocated so far.
pub(crate) fn add(
    session: &Session,
    target: u64,
    layout: &layout,
    before: &[ThreadBytes],
) -> Result<()> {
    const OPERATION: &str = "register the threads of a JVM in a BPF map";
    let failed = |source| Error::Bpf { what: OPERATION.into(), source };
    for thread in before {
        let key = old_thread { target, thread: thread.thread.0 };
        let value = thread.allocated.to_ne_bytes();
        let map = &session.skel.maps.old_threads;
        map.update(bytes(&key), &value, MapFlags::ANY).map_err(failed)?;
    }
    // Inserted last, because nothing is counted before this entry exists.
    session::insert_entry(&session.skel.maps.layouts, target, bytes(layout), OPERATION)
}

/// Returns a copy of all counters.
pub(crate) fn tallies(session: &Session) -> Result<Vec<(tally_key, tally)>> {
    let entries = entries(&session.skel.maps.tallies)?;
    Ok(entries.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
}

/// Capacity of the map of counters.
pub(crate) fn max_tallies(session: &Session) -> usize {
    session.skel.maps.tallies.max_entries() as usize
}

/// Removes and returns all counters, and removes all stacks from the kernel side. Counters then start again
/// from zero, and stacks and names are sent again. An increment at the moment when a counter is read may be
/// lost.
pub(crate) fn take_tallies(session: &Session) -> Result<Vec<(tally_key, tally)>> {
    // The stacks are removed before the counters. The kernel side has therefore sent the stack of every hit
    // in the new counters again.
    clear(&session.skel.maps.known_stacks)?;
    clear(&session.skel.maps.known_spans)?;
    let taken = take_entries(&session.skel.maps.tallies)?;
    Ok(taken.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
}

/// Returns the search for JVMs that publish trace contexts; `None` if contexts are not read.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn span_sources(session: &Session) -> Result<Option<SpanSources>> {
    let reads = session.skel.maps.rodata_data.is_some_and(|data| data.reads_spans);
    let map = || MapHandle::try_from(&session.skel.maps.span_sources).map_err(bpf::load_error);
    reads.then(|| map().map(SpanSources::new)).transpose()
}

/// Returns the number of stacks in trace contexts that the kernel side can store.
pub(crate) fn max_spans(session: &Session) -> usize {
    session.skel.maps.known_spans.max_entries() as usize
}

/// Returns the number of allocations so far that were counted without their trace contexts, because there were too many.
pub(crate) fn spans_left_out(session: &Session) -> u64 {
    session.skel.maps.bss_data.as_deref().map_or(0, |data| data.spans_left_out)
}

/// Starts time slots at `begin` on `CLOCK_MONOTONIC`.
pub(crate) fn begin_times(session: &mut Session, begin: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.slots_begin_ns = begin;
    }
}

/// Removes and returns the counters by time slot. They contain the bytes counted since the previous call.
pub(crate) fn take_slot_bytes(session: &Session) -> Result<Vec<(tally_key, slot_bytes)>> {
    // An increment at the moment when an entry is removed may be lost. That is harmless: these counters are
    // weights for the division among time slots, not totals.
    let taken = take_entries(&session.skel.maps.bytes_by_slot)?;
    Ok(taken.iter().filter_map(|(key, value)| Some((copy(key)?, copy(value)?))).collect())
}

/// Returns, by JVM, the counter of allocations for which the map of counters had no free entry.
pub(crate) fn overflow(session: &Session) -> Result<Vec<(u64, tally)>> {
    let entries = entries(&session.skel.maps.overflow)?;
    let target = |k: &[u8]| Some(u64::from_ne_bytes(k.try_into().ok()?));
    Ok(entries.iter().filter_map(|(k, v)| Some((target(k)?, copy(v)?))).collect())
}

/// Returns the state of all threads that have had an event, and of all threads that existed before the trace
/// and have had no event yet.
pub(crate) fn counted(session: &Session) -> Result<Vec<Counted>> {
    // `old_threads` is read before `threads`. At its first event, a thread moves from the former to the
    // latter, so this order misses no thread.
    let old = entries(&session.skel.maps.old_threads)?;
    let old = old.iter().filter_map(|(k, v)| {
        let key = copy::<old_thread>(k)?;
        let bytes = u64::from_ne_bytes(v.as_slice().try_into().ok()?);
        let (target, thread) = (key.target, Addr(key.thread));
        Some(Counted {
            target,
            tid: None,
            thread,
            bytes,
            represented_bytes: bytes,
            has_ended: false,
            last: 0,
        })
    });
    let known = entries(&session.skel.maps.threads)?;
    let known = known.iter().filter_map(|(k, v)| {
        let (key, state) = (copy::<thread_key>(k)?, copy::<thread_state>(v)?);
        Some(Counted {
            target: key.target,
            tid: Some(key.tid),
            thread: Addr(state.thread),
            bytes: state.counted,
            represented_bytes: state.represented_bytes,
            has_ended: state.has_ended != 0,
            last: state.last,
        })
    });
    Ok(known.chain(old).collect())
}

/// Returns the sampling state of a JVM, which contains its hit counters; `None` before its first hit.
pub(crate) fn sampling_state(map: &impl MapCore, target: u64) -> Option<sampling_state> {
    copy(&map.lookup(&target.to_ne_bytes(), MapFlags::ANY).ok()??)
}

/// Deletes the entry of a thread that has ended.
pub(crate) fn forget_thread(session: &Session, counted: &Counted) {
    // It does not matter if the entry is already absent.
    let _ = match counted.tid {
        Some(tid) => {
            session.skel.maps.threads.delete(bytes(&thread_key { target: counted.target, tid }))
        }
        None => {
            let key = old_thread { target: counted.target, thread: counted.thread.0 };
            session.skel.maps.old_threads.delete(bytes(&key))
        }
    };
}

/// Sets the probability with which a full TLAB is sent to be read.
pub(crate) fn set_tlab_share(session: &mut Session, share: f64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        // The cast saturates: u32::MAX represents probability 1.
        data.tlab_share = (share * 2f64.powi(32)) as u32;
    }
}

/// Limits stack walks to this share of `MAX_STACKS_PER_WINDOW`. Until this function is called, the stack of
/// every hit is walked.
pub(crate) fn set_stack_share(session: &mut Session, share: f64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.stacks_wanted = (share * MAX_STACKS_PER_WINDOW).max(1.0) as u32;
    }
}

/// The kernel side's state of a thread: its allocated bytes, and the bytes that its samples represent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// The key of the JVM.
    pub(crate) target: u64,
    /// Thread ID, once the thread has had an event.
    pub(crate) tid: Option<u64>,
    /// Address of its JavaThread.
    pub(crate) thread: Addr,
    /// Bytes that it has allocated from its start to its last event.
    pub(crate) bytes: u64,
    /// Number of bytes that the samples of the thread represent.
    pub(crate) represented_bytes: u64,
    /// Whether it has ended, so that `bytes` is all that it has allocated.
    pub(crate) has_ended: bool,
    /// Time of its last event in jiffies (`bpf_jiffies64`); 0 if it has had none.
    pub(crate) last: u64,
}
