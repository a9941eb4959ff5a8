//! The BPF object, as the options want it; counters come out of it when they are collected.

use libbpf_rs::{
    MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    Addr, Error, Result,
    bpf::{
        self,
        cost::Trigger,
        preflight,
        records::{bytes, clear, copy, entries, take_entries},
        room::{self, Roomy},
        session, stops, walker,
    },
    hotspot::threads::ThreadBytes,
    own::Pace,
    take::allocations::{
        Options,
        event::{
            Event, flood, hit, layout, old_thread, tally, tally_key, thread_key, thread_state,
        },
        moments::Hit,
        probes,
        skel::{JavaobjnewSkel, JavaobjnewSkelBuilder},
    },
};

/// The loaded programs, their maps and their events.
pub(crate) type Session = session::Session<JavaobjnewSkel<'static>, Event>;

/// What the names of programs end in that walk stacks.
const WALKS: &str = "_stacks";
/// What is counted, by class and thread. 6 MB where it is allocated beforehand.
const TALLIES: Roomy = Roomy { name: "tallies", most: 1 << 17, allocated: 1 << 15 };
/// ... where each class has many stacks. 11 MB.
const MANY_TALLIES: Roomy = Roomy { name: "tallies", most: 1 << 18, allocated: 1 << 16 };
/// ... and in which slots of time, until they are taken out, once a second. 10 MB.
const HITS: Roomy = Roomy { name: "hits", most: 1 << 17, allocated: 1 << 16 };
/// Maps by thread and stack, 7 MB in all, and by JVM, 1 MB.
const ROOMY: [Roomy; 7] = [
    Roomy { name: "threads", most: 1 << 16, allocated: 1 << 15 },
    Roomy { name: "old_threads", most: 1 << 16, allocated: 1 << 14 },
    Roomy { name: "known_stacks", most: 1 << 16, allocated: 1 << 15 },
    Roomy { name: "layouts", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "others", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "floods", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "duties", most: 1 << 12, allocated: 1 << 12 },
];
/// Maps with entries by JVM.
const BY_JVM: [&str; 10] = [
    "layouts",
    "others",
    "floods",
    "duties",
    "tallies",
    "hits",
    "threads",
    "old_threads",
    "known_stacks",
    stops::MAP,
];
/// Stacks of a JVM in half a second, where not all are wanted.
const MOST_STACKS: f64 = 128.0;

/// Loads the object; the stack walker only if stacks are wanted.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
pub(crate) fn load(options: &Options) -> Result<Session> {
    let mut open =
        JavaobjnewSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    let (stacks, slot_ns) = (options.by_stack, options.slot_ns);
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
        walker::leave_out(open.open_object_mut())?;
    }
    room::make(open.open_object_mut(), &ROOMY)?;
    room::make(open.open_object_mut(), &[if stacks { MANY_TALLIES } else { TALLIES }])?;
    if slot_ns > 0 {
        room::make(open.open_object_mut(), &[HITS])?;
    } else {
        open.maps.hits.set_max_entries(1).map_err(bpf::load_error)?;
    }
    if stacks {
        open.maps.events.set_max_entries(options.pace.ring()).map_err(bpf::load_error)?;
    }
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.by_thread = options.by_thread;
        data.know_jvms = stacks;
        data.slot_ns = slot_ns;
        data.wakes_late = options.pace == Pace::Calm;
        data.counts_costs = options.pace == Pace::Calm;
        data.large_bytes = options.large.unwrap_or(u64::MAX);
    }
    let skel = session::load(open)?;
    let mut session = Session::new(skel, Event::decode, stacks)?.with_maps_by_jvm(&BY_JVM);
    if options.pace == Pace::Calm {
        session = session.with_costs(Trigger::Probe)?;
    }
    Ok(if stacks { session.with_variant(WALKS) } else { session })
}

/// Counts a JVM from now on. `before` is what its threads have allocated already.
pub(crate) fn add(
    session: &Session,
    target: u64,
    layout: &layout,
    before: &[ThreadBytes],
) -> Result<()> {
    const WHAT: &str = "tell the kernel about a JVM";
    let failed = |source| Error::Bpf { what: WHAT.into(), source };
    for thread in before {
        let key = old_thread { target, thread: thread.thread.0 };
        let value = thread.allocated.to_ne_bytes();
        let map = &session.skel.maps.old_threads;
        map.update(bytes(&key), &value, MapFlags::ANY).map_err(failed)?;
    }
    // The last: without it nothing is counted.
    session::tell(&session.skel.maps.layouts, target, bytes(layout), WHAT)
}

/// All counters, as they are now.
pub(crate) fn tallies(session: &Session) -> Result<Vec<(tally_key, tally)>> {
    let entries = entries(&session.skel.maps.tallies)?;
    Ok(entries.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
}

/// So many have room.
pub(crate) fn most_tallies(session: &Session) -> usize {
    session.skel.maps.tallies.max_entries() as usize
}

/// Takes out all counters, as they are now, and forgets all stacks: both begin anew, and names are
/// sent again. What is added to a counter in that instant may be lost.
pub(crate) fn take_tallies(session: &Session) -> Result<Vec<(tally_key, tally)>> {
    // The stacks first: who is counted from here on has sent its own.
    clear(&session.skel.maps.known_stacks)?;
    let taken = take_entries(&session.skel.maps.tallies)?;
    Ok(taken.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
}

/// Counts slots of time from `begin` on, on the kernel's clock.
pub(crate) fn begin_times(session: &mut Session, begin: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.times_from = begin;
    }
}

/// Takes out what was counted since the last time, by slots of time.
pub(crate) fn take_hits(session: &Session) -> Result<Vec<(tally_key, Hit)>> {
    // What is counted between is not counted in time: it is a weight, and no sum.
    let taken = take_entries(&session.skel.maps.hits)?;
    let decode = |(key, value): &(Vec<u8>, Vec<u8>)| {
        let hit { bytes, outside_bytes } = copy(value)?;
        Some((copy(key)?, Hit { bytes, outside_bytes }))
    };
    Ok(taken.iter().filter_map(decode).collect())
}

/// The counters of classes that found no room, by JVM.
pub(crate) fn others(session: &Session) -> Result<Vec<(u64, tally)>> {
    let entries = entries(&session.skel.maps.others)?;
    let target = |k: &[u8]| Some(u64::from_ne_bytes(k.try_into().ok()?));
    Ok(entries.iter().filter_map(|(k, v)| Some((target(k)?, copy(v)?))).collect())
}

/// Up to where the bytes of each thread are attributed to classes: threads at their
/// last event, and those that have had none yet.
pub(crate) fn counted(session: &Session) -> Result<Vec<Counted>> {
    // In this order: at its first event a thread goes from here to there.
    let old = entries(&session.skel.maps.old_threads)?;
    let old = old.iter().filter_map(|(k, v)| {
        let key = copy::<old_thread>(k)?;
        let bytes = u64::from_ne_bytes(v.as_slice().try_into().ok()?);
        let (target, thread) = (key.target, Addr(key.thread));
        Some(Counted { target, tid: None, thread, bytes, told: bytes, has_ended: false, last: 0 })
    });
    let known = entries(&session.skel.maps.threads)?;
    let known = known.iter().filter_map(|(k, v)| {
        let (key, state) = (copy::<thread_key>(k)?, copy::<thread_state>(v)?);
        Some(Counted {
            target: key.target,
            tid: Some(key.tid),
            thread: Addr(state.thread),
            bytes: state.counted,
            told: state.told,
            has_ended: state.has_ended != 0,
            last: state.last,
        })
    });
    Ok(known.chain(old).collect())
}

/// The counts of a JVM whose stacks are sampled.
pub(crate) fn flood(map: &impl MapCore, target: u64) -> Option<flood> {
    copy(&map.lookup(&target.to_ne_bytes(), MapFlags::ANY).ok()??)
}

/// Forgets a thread that has ended.
pub(crate) fn forget_thread(session: &Session, counted: &Counted) {
    // Absent entries are what is wanted.
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

/// Has full TLABs told of with this probability.
pub(crate) fn set_tlab_share(session: &mut Session, share: f64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        // Saturates: the highest number stands for all.
        data.tlab_share = (share * 2f64.powi(32)) as u32;
    }
}

/// Has this share of so many stacks walked as may be at all; before it is called, all are.
pub(crate) fn set_stacks_wanted(session: &mut Session, share: f64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.stacks_wanted = (share * MOST_STACKS).max(1.0) as u32;
    }
}

/// Up to where a thread's bytes are attributed to classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// The key of the JVM.
    pub(crate) target: u64,
    /// The kernel's number of the thread, once it has had an event.
    pub(crate) tid: Option<u64>,
    /// Its JavaThread.
    pub(crate) thread: Addr,
    /// Bytes since its birth.
    pub(crate) bytes: u64,
    /// For so many stands what was taken of them.
    pub(crate) told: u64,
    /// Whether it has ended: `bytes` is all that it has allocated.
    pub(crate) has_ended: bool,
    /// When it had its last event, on the kernel's coarse clock; 0: not yet.
    pub(crate) last: u64,
}
