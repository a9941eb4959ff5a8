//! The BPF object, as these arguments want it; counters come out of it when they are collected.

use libbpf_rs::{
    MapCore, MapFlags,
    skel::{OpenSkel, SkelBuilder},
};
use libjvmprobe::{
    Addr, Error, Result,
    bpf::{
        self, preflight,
        records::{bytes, copy},
        room::{self, Roomy},
        session, walker,
    },
    hotspot::threads::ThreadBytes,
};

use crate::{
    args::Args,
    event::{Event, layout, old_thread, tally, tally_key, thread_key, thread_state},
    skel::{JavaobjnewSkel, JavaobjnewSkelBuilder},
};

/// The loaded programs, their maps and their events.
pub type Session = session::Session<JavaobjnewSkel<'static>, Event>;

/// What the names of programs end in that walk stacks.
const WALKS: &str = "_stacks";
/// What is counted, by class and thread. 6 MB where it is allocated beforehand.
const TALLIES: Roomy = Roomy { name: "tallies", most: 1 << 17, allocated: 1 << 15 };
/// ... where each class has many stacks. 11 MB.
const MANY_TALLIES: Roomy = Roomy { name: "tallies", most: 1 << 18, allocated: 1 << 16 };
/// Maps by thread and stack, 7 MB in all, and by JVM, 1 MB.
const ROOMY: [Roomy; 5] = [
    Roomy { name: "threads", most: 1 << 16, allocated: 1 << 15 },
    Roomy { name: "old_threads", most: 1 << 16, allocated: 1 << 14 },
    Roomy { name: "known_stacks", most: 1 << 16, allocated: 1 << 15 },
    Roomy { name: "layouts", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "others", most: 1 << 12, allocated: 1 << 12 },
];
/// Bytes of the ring buffer where stacks are sent through it.
const LARGE_RING: u32 = 1 << 22;

/// Maps with entries by JVM.
const BY_JVM: [&str; 6] =
    ["layouts", "others", "tallies", "threads", "old_threads", "known_stacks"];

/// Loads the object; the stack walker only if stacks are wanted.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
pub fn load(args: &Args) -> Result<Session> {
    let mut open =
        JavaobjnewSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    let stacks = args.wants_stacks();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_exact = name.starts_with("object_alloc");
        program.set_autoload(is_exact == args.exact && name.ends_with(WALKS) == stacks);
    }
    if stacks {
        preflight::check_walker()?;
    } else {
        walker::leave_out(open.open_object_mut())?;
    }
    room::make(open.open_object_mut(), &ROOMY)?;
    room::make(open.open_object_mut(), &[if stacks { MANY_TALLIES } else { TALLIES }])?;
    if stacks {
        open.maps.events.set_max_entries(LARGE_RING).map_err(bpf::load_error)?;
    }
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.by_thread = args.threads;
        data.know_jvms = stacks;
        data.large_bytes = args.large.unwrap_or(u64::MAX);
    }
    let skel = session::load(open)?;
    let session = Session::new(skel, Event::decode, stacks)?.with_maps_by_jvm(&BY_JVM);
    Ok(if stacks { session.with_variant(WALKS) } else { session })
}

/// Counts a JVM from now on. `before` is what its threads have allocated already.
pub fn add(session: &Session, target: u64, layout: &layout, before: &[ThreadBytes]) -> Result<()> {
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
pub fn tallies(session: &Session) -> Result<Vec<(tally_key, tally)>> {
    let entries = entries(&session.skel.maps.tallies)?;
    Ok(entries.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
}

/// The counters of classes that found no room, by JVM.
pub fn others(session: &Session) -> Result<Vec<(u64, tally)>> {
    let entries = entries(&session.skel.maps.others)?;
    let target = |k: &[u8]| Some(u64::from_ne_bytes(k.try_into().ok()?));
    Ok(entries.iter().filter_map(|(k, v)| Some((target(k)?, copy(v)?))).collect())
}

/// Up to where the bytes of each thread are attributed to classes: threads at their
/// last event, and those that have had none yet.
pub fn counted(session: &Session) -> Result<Vec<Counted>> {
    let known = entries(&session.skel.maps.threads)?;
    let known = known.iter().filter_map(|(k, v)| {
        let (key, state) = (copy::<thread_key>(k)?, copy::<thread_state>(v)?);
        let (thread, bytes) = (Addr(state.thread), state.counted);
        Some(Counted { target: key.target, tid: Some(key.tid), thread, bytes })
    });
    let old = entries(&session.skel.maps.old_threads)?;
    let old = old.iter().filter_map(|(k, v)| {
        let key = copy::<old_thread>(k)?;
        let bytes = u64::from_ne_bytes(v.as_slice().try_into().ok()?);
        Some(Counted { target: key.target, tid: None, thread: Addr(key.thread), bytes })
    });
    Ok(known.chain(old).collect())
}

/// Forgets a thread that has ended.
pub fn forget_thread(session: &Session, counted: &Counted) {
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
pub fn set_tlab_share(session: &mut Session, share: f64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        // Saturates: the highest number stands for all.
        data.tlab_share = (share * 2f64.powi(32)) as u32;
    }
}

/// Up to where a thread's bytes are attributed to classes.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The key of the JVM.
    pub target: u64,
    /// The kernel's number of the thread, once it has had an event.
    pub tid: Option<u64>,
    /// Its JavaThread.
    pub thread: Addr,
    /// Bytes since its birth.
    pub bytes: u64,
}

/// All keys and values of a map, with one system call: libbpf-rs takes a batch that is not
/// full for the last, but the kernel ends one before a bucket that does not fit.
fn entries(map: &dyn MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "read what was counted".into(), source };
    let all = map.max_entries();
    Ok(map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY).map_err(failed)?.collect())
}
