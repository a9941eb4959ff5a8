//! The BPF object: loaded once; counters come out of it when they are collected.

use std::{mem::MaybeUninit, time::Duration};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};
use libjvmprobe::{
    Addr, Error, Result,
    bpf::{
        self,
        probes::{Links, Plan, Scope, attach},
        records::{self, copy},
        room::{self, Roomy},
        stream::EventStream,
        walker::{self, Walker},
    },
    hotspot::threads::ThreadBytes,
    process::LibJvm,
};

use crate::{
    args::Args,
    event::{Event, layout, old_thread, tally, tally_key, thread_key, thread_state},
    skel::{JavaobjnewSkel, JavaobjnewSkelBuilder},
};

/// The loaded programs, their maps and their events.
pub struct Session {
    /// Lives as long as the process, so that no attachment outlives it.
    skel: &'static mut JavaobjnewSkel<'static>,
    stream: EventStream<Event>,
    walker: Option<Walker>,
}

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

impl Session {
    /// Loads the object; the stack walker only if stacks are wanted.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
    pub fn load(args: &Args) -> Result<Self> {
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = JavaobjnewSkelBuilder::default().open(storage).map_err(bpf::load_error)?;
        let stacks = args.wants_stacks();
        for mut program in open.open_object_mut().progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let is_exact = name.starts_with("object_alloc");
            program.set_autoload(is_exact == args.exact && name.ends_with(WALKS) == stacks);
        }
        if stacks {
            bpf::preflight::check_walker()?;
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
        let skel = open.load().map_err(bpf::load_error)?;
        let events = MapHandle::try_from(&skel.maps.events).map_err(bpf::load_error)?;
        let stream = EventStream::open(Box::leak(Box::new(events)), Event::decode)?;
        let walker = stacks.then(|| Walker::new(skel.object())).transpose()?;
        Ok(Self { skel: Box::leak(Box::new(skel)), stream, walker })
    }

    /// The stack walker, if stacks are wanted.
    pub fn walker(&mut self) -> Option<&mut Walker> {
        self.walker.as_mut()
    }

    /// Attaches what was planned for a libjvm.so, all or nothing.
    pub fn attach(
        &mut self,
        libjvm: &LibJvm,
        plans: &[Plan],
        scope: Scope,
        cookie: u64,
    ) -> Result<Links> {
        let mut links = Links::default();
        for plan in plans {
            let name = match self.walker {
                Some(_) => format!("{}{WALKS}", plan.program),
                None => plan.program.into(),
            };
            let program = bpf::program(self.skel.object_mut(), &name)?;
            links.push(attach(&program, libjvm, &plan.site, scope, cookie)?);
            // Events come in from the first attachment on.
            self.stream.make_room()?;
        }
        Ok(links)
    }

    /// Counts a JVM from now on. `before` is what its threads have allocated already.
    pub fn add(&self, target: u64, layout: &layout, before: &[ThreadBytes]) -> Result<()> {
        let failed = |source| Error::Bpf { what: "tell the kernel about a JVM".into(), source };
        for thread in before {
            let key = old_thread { target, thread: thread.thread.0 };
            let value = thread.allocated.to_ne_bytes();
            let map = &self.skel.maps.old_threads;
            map.update(bytes(&key), &value, MapFlags::ANY).map_err(failed)?;
        }
        // The last: without it nothing is counted.
        let layouts = &self.skel.maps.layouts;
        layouts.update(&target.to_ne_bytes(), bytes(layout), MapFlags::ANY).map_err(failed)
    }

    /// Forgets a JVM that has ended; its number may be used again.
    pub fn forget(&mut self, target: u64) {
        if let Some(walker) = &mut self.walker {
            walker.forget(target);
            walker::forget_stacks(&self.skel.maps.known_stacks, target);
        }
        let key = target.to_ne_bytes();
        let maps = &self.skel.maps;
        // Absent entries are what is wanted.
        let _ = maps.layouts.delete(&key);
        let _ = maps.others.delete(&key);
        let _ = maps.lost_events.delete(&key);
        // In each of these, the target comes first in the key.
        let lists: [&dyn MapCore; 3] = [&maps.tallies, &maps.threads, &maps.old_threads];
        for map in lists {
            let keys: Vec<_> = map.keys().filter(|k| k.starts_with(&key)).collect();
            for key in keys {
                let _ = map.delete(&key);
            }
        }
    }

    /// All counters, as they are now.
    pub fn tallies(&self) -> Result<Vec<(tally_key, tally)>> {
        let entries = entries(&self.skel.maps.tallies)?;
        Ok(entries.iter().filter_map(|(k, v)| Some((copy(k)?, copy(v)?))).collect())
    }

    /// The counters of classes that found no room, by JVM.
    pub fn others(&self) -> Result<Vec<(u64, tally)>> {
        let entries = entries(&self.skel.maps.others)?;
        let target = |k: &[u8]| Some(u64::from_ne_bytes(k.try_into().ok()?));
        Ok(entries.iter().filter_map(|(k, v)| Some((target(k)?, copy(v)?))).collect())
    }

    /// Up to where the bytes of each thread are attributed to classes: threads at their
    /// last event, and those that have had none yet.
    pub fn counted(&self) -> Result<Vec<Counted>> {
        let known = entries(&self.skel.maps.threads)?;
        let known = known.iter().filter_map(|(k, v)| {
            let (key, state) = (copy::<thread_key>(k)?, copy::<thread_state>(v)?);
            let (thread, bytes) = (Addr(state.thread), state.counted);
            Some(Counted { target: key.target, tid: Some(key.tid), thread, bytes })
        });
        let old = entries(&self.skel.maps.old_threads)?;
        let old = old.iter().filter_map(|(k, v)| {
            let key = copy::<old_thread>(k)?;
            let bytes = u64::from_ne_bytes(v.as_slice().try_into().ok()?);
            Some(Counted { target: key.target, tid: None, thread: Addr(key.thread), bytes })
        });
        Ok(known.chain(old).collect())
    }

    /// Forgets a thread that has ended.
    pub fn forget_thread(&self, counted: &Counted) {
        // Absent entries are what is wanted.
        let _ = match counted.tid {
            Some(tid) => {
                self.skel.maps.threads.delete(bytes(&thread_key { target: counted.target, tid }))
            }
            None => {
                let key = old_thread { target: counted.target, thread: counted.thread.0 };
                self.skel.maps.old_threads.delete(bytes(&key))
            }
        };
    }

    /// Has full TLABs told of with this probability.
    pub fn set_tlab_share(&mut self, share: f64) {
        if let Some(data) = self.skel.maps.bss_data.as_deref_mut() {
            // Saturates: the highest number stands for all.
            data.tlab_share = (share * 2f64.powi(32)) as u32;
        }
    }

    /// What could not be counted or sent of a JVM, so far.
    pub fn lost(&self, target: u64) -> u64 {
        records::counter(&self.skel.maps.lost_events, target)
    }

    /// Takes events out of the ring buffer, and keeps them for [`Session::events`].
    pub fn make_room(&self) -> Result<()> {
        self.stream.make_room()
    }

    /// Waits for events, up to `timeout`.
    pub fn events(&self, timeout: Duration) -> Result<impl Iterator<Item = Event> + use<>> {
        Ok(self.stream.wait(timeout)?.into_iter())
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

fn bytes<T: plain::Plain>(value: &T) -> &[u8] {
    // SAFETY: types that are Plain here are structs of integers without padding between
    // or behind them (see the test of layouts), so that all bytes are initialised.
    unsafe { plain::as_bytes(value) }
}

/// All keys and values of a map, with one system call: libbpf-rs takes a batch that is not
/// full for the last, but the kernel ends one before a bucket that does not fit.
fn entries(map: &dyn MapCore) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let failed = |source| Error::Bpf { what: "read what was counted".into(), source };
    let all = map.max_entries();
    Ok(map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY).map_err(failed)?.collect())
}
