//! A loaded BPF object with its event stream, attachments, stack walker and counters of lost events.
//!
//! This is the part that all tracers have in common. A tool opens its own skeleton, sets its variables, loads it, and
//! passes it to [`Session::new`].

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use libbpf_rs::{
    ErrorKind, MapCore, MapFlags, MapHandle, OpenObject, ProgramMut,
    skel::{OpenSkel, Skel},
};

use crate::{
    Error, Result,
    bpf::{
        self,
        cost::{self, Costs},
        detach::Object,
        probes::{Binary, Code, Links, Plan, Scope, attach},
        records, sparse_map,
        stream::EventStream,
        walker::{self, Walker},
    },
    process::Target,
};

/// Map whose keys are the ids of the stacks already sent to user space, and whose values are the keys of the
/// stacks' JVMs: bpf/walk/intern.bpf.h.
const KNOWN_STACKS: &str = "known_stacks";

/// Allocates storage for a skeleton: a pointer, which stays allocated as long as the process runs.
pub fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

/// Owner of a skeleton. It closes the BPF object when the session and all attachments of the object's programs have
/// been dropped, because libbpf keeps the data of USDT probes in the object.
struct SkeletonOwner<S> {
    skel: NonNull<S>,
    lock: Mutex<()>,
}

// SAFETY: the owner only drops the skeleton. This consists of calls of libbpf and of memory that no other thread
// uses, because the session is gone then.
unsafe impl<S> Send for SkeletonOwner<S> {}
// SAFETY: a shared reference to the owner gives no access to the skeleton.
unsafe impl<S> Sync for SkeletonOwner<S> {}

impl<S> Drop for SkeletonOwner<S> {
    fn drop(&mut self) {
        // SAFETY: the pointer is from a `Box`, and the session's reference to the skeleton is gone.
        drop(unsafe { Box::from_raw(self.skel.as_ptr()) });
    }
}

impl<S> Object for SkeletonOwner<S> {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic aborts the process (except in tests), so it cannot leave inconsistent data behind the lock.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a map of a loaded object.
fn map(skel: &impl Skel<'static>, name: &str) -> Result<MapHandle> {
    let map = skel.object().maps().find(|map| map.name() == name);
    let map = map.ok_or_else(|| bpf::defect(&format!("find the BPF map {name}")))?;
    MapHandle::try_from(&map).map_err(bpf::load_error)
}

/// Loads a configured object.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] if the kernel refuses it, [`Error::Bpf`].
pub fn load<O: OpenSkel<'static>>(mut open: O) -> Result<O::Output> {
    if !bpf::can_share_attachments() {
        sparse_map::for_probes_by_jvm(open.open_object_mut())?;
    }
    open.load().map_err(bpf::load_error)
}

/// A loaded BPF object: its programs, maps and events.
pub struct Session<S: 'static, E: 'static> {
    /// Skeleton, which lives as long as `owner`. It must not be moved out of the session.
    pub skel: &'static mut S,
    owner: Arc<SkeletonOwner<S>>,
    stream: EventStream<E>,
    lost: MapHandle,
    walker: Option<Walker>,
    /// Cost of the probes to each JVM, if it is counted.
    costs: Option<Costs>,
    variant: &'static str,
    maps_by_jvm: &'static [&'static str],
}

impl<S: Skel<'static>, E> Session<S, E> {
    /// Takes over a loaded object that has a ring buffer `events`, a map `lost_events` and, if `walks`, the stack
    /// walker. `decode` converts a record into an event.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn new(skel: S, decode: fn(&[u8]) -> Option<E>, walks: bool) -> Result<Self> {
        let lost = map(&skel, "lost_events")?;
        let stream = EventStream::open(map(&skel, "events")?, decode)?;
        let walker = walks.then(|| Walker::new(skel.object())).transpose()?;
        let mut skel = NonNull::from(Box::leak(Box::new(skel)));
        let owner = Arc::new(SkeletonOwner { skel, lock: Mutex::default() });
        // SAFETY: the skeleton lives as long as its owner, and the reference stays in the session, which owns it, too.
        let skel = unsafe { skel.as_mut() };
        Ok(Self { skel, owner, stream, lost, walker, costs: None, variant: "", maps_by_jvm: &[] })
    }

    /// Sets a suffix: if a program with the plan's name and this suffix exists, it is attached instead.
    #[must_use]
    pub fn with_variant(mut self, variant: &'static str) -> Self {
        self.variant = variant;
        self
    }

    /// Sets the maps from which [`Attach::forget`] removes the entries of a JVM. In the map `known_stacks`,
    /// these are the entries whose value is the JVM's key. In other maps, these are the entries whose key
    /// begins with the JVM's key.
    #[must_use]
    pub fn with_maps_by_jvm(mut self, maps: &'static [&'static str]) -> Self {
        self.maps_by_jvm = maps;
        self
    }

    /// Counts the cost of the probes to each JVM. The object must have been loaded with `counts_costs` set.
    ///
    /// # Errors
    /// [`Error::Bpf`], [`Error::Defect`].
    pub(crate) fn with_costs(mut self) -> Result<Self> {
        self.costs = Some(Costs::new(map(self.skel, cost::MAP)?));
        Ok(self)
    }

    /// Returns the cost of the probes to each JVM, if it is counted.
    pub(crate) fn costs(&mut self) -> Option<&mut Costs> {
        self.costs.as_mut()
    }

    /// Returns the stack walker, if stacks are collected.
    pub fn walker(&mut self) -> Option<&mut Walker> {
        self.walker.as_mut()
    }

    /// Returns a descriptor of a plan's program or of its variant, to be attached by the caller.
    ///
    /// # Errors
    /// [`Error::Defect`] if there is none, [`Error::Io`].
    pub(crate) fn program(&mut self, name: &str) -> Result<OwnedFd> {
        let program = self.named(name)?;
        let fd = program.as_fd().try_clone_to_owned();
        fd.map_err(|e| Error::io("duplicate the descriptor of a BPF program", e))
    }

    fn named(&mut self, name: &str) -> Result<ProgramMut<'_>> {
        let varied = format!("{name}{}", self.variant);
        let has_variant =
            self.skel.object().progs().any(|program| program.name() == varied.as_str());
        bpf::program(self.skel.object_mut(), if has_variant { &varied } else { name })
    }

    /// Waits for events, up to `timeout`.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    pub fn events(&self, timeout: Duration) -> Result<impl Iterator<Item = E> + use<S, E>> {
        Ok(self.stream.wait(timeout)?.into_iter())
    }
}

/// The part of a session that is needed to follow JVMs.
pub trait Attach {
    /// Attaches all plans to a file, for example a libjvm.so; after an error, none is attached. If
    /// CAP_SYS_ADMIN is missing, which uprobes on functions need and USDT probes do not, an optional plan is
    /// skipped, and a message names what is lost.
    ///
    /// # Errors
    /// [`Error::Permission`], [`Error::NoSuchProcess`] or [`Error::Bpf`], naming the location; [`Error::Crowded`] or
    /// [`Error::MappedTooOften`].
    fn attach(
        &mut self,
        binary: &Binary,
        plans: &[Plan],
        scope: Scope,
        cookie: u64,
    ) -> Result<Links>;

    /// Attaches all plans to a JVM's libjvm.so for all processes that run it; if the file has too many mappings, or
    /// `is_crowded` says so, for this JVM alone. Returns the processes for which they were attached.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); [`Error::Io`] if the container has replaced the file.
    fn attach_shared(
        &mut self,
        target: &Target,
        plans: &[Plan],
        is_crowded: bool,
        cookie: u64,
    ) -> Result<(Links, Scope)> {
        let binary = (&target.libjvm).into();
        let mut scope = if is_crowded { Scope::Process(target.pid()) } else { Scope::AllProcesses };
        let mut attached = self.attach(&binary, plans, scope, cookie);
        if matches!(attached, Err(Error::Crowded)) {
            scope = Scope::Process(target.pid());
            attached = self.attach(&binary, plans, scope, cookie);
        }
        let links = attached?;
        target.libjvm.check_is_same()?;
        Ok((links, scope))
    }

    /// Makes the wait for events end also when a descriptor is readable.
    fn wake_on(&mut self, waker: OwnedFd);

    /// Waits until the kernel side has all data that was given to the stack walker, if there is one.
    fn flush(&mut self);

    /// Moves events from the ring buffer to a queue, so that the buffer does not fill up.
    ///
    /// # Errors
    /// [`Error::Bpf`].
    fn drain_ring(&self) -> Result<()>;

    /// Returns the number of events of a JVM that could not be counted or sent so far.
    fn lost(&self, target: u64) -> u64;

    /// Removes all data of a JVM that has ended; its key may be used again.
    fn forget(&mut self, target: u64);
}

impl<S: Skel<'static>, E> Attach for Session<S, E> {
    fn attach(
        &mut self,
        binary: &Binary,
        plans: &[Plan],
        scope: Scope,
        cookie: u64,
    ) -> Result<Links> {
        let owner = Arc::clone(&self.owner);
        let mut links = Links::of_object(owner.clone());
        if plans.is_empty() {
            return Ok(links);
        }
        links.note_descriptors(|links| {
            let code = Code::open(binary, scope)?;
            for plan in plans {
                let program = self.named(plan.program)?;
                match (attach(&program, &*owner, &code, &plan.site, cookie), plan.optional) {
                    (Ok(link), _) => links.push(link),
                    (Err(Error::Permission { .. }), Some(loss)) => {
                        log::warn!("{loss}, because CAP_SYS_ADMIN is missing; run as root");
                    }
                    (Err(error), _) => return Err(error),
                }
                // Events arrive from the first attachment on, so the ring buffer is emptied after every
                // attachment.
                self.stream.drain_ring()?;
            }
            Ok(())
        })?;
        Ok(links)
    }

    fn wake_on(&mut self, waker: OwnedFd) {
        self.stream.wake_on(waker);
    }

    fn flush(&mut self) {
        if let Some(walker) = &mut self.walker {
            walker.flush();
        }
    }

    fn drain_ring(&self) -> Result<()> {
        self.stream.drain_ring()
    }

    fn lost(&self, target: u64) -> u64 {
        records::counter(&self.lost, target)
    }

    fn forget(&mut self, target: u64) {
        if let Some(walker) = &mut self.walker {
            walker.forget(target);
        }
        if let Some(costs) = &mut self.costs {
            costs.forget(target);
        }
        let key = target.to_ne_bytes();
        // Here and below, failed deletions are ignored, because absent entries are the goal.
        let _ = self.lost.delete(&key);
        for map in self.skel.object().maps() {
            if !self.maps_by_jvm.iter().any(|name| map.name() == *name) {
                continue;
            }
            if map.name() == KNOWN_STACKS {
                walker::forget_stacks(&map, target);
            } else if map.key_size() as usize == key.len() {
                let _ = map.delete(&key);
            } else {
                let all = records::entries(&map).unwrap_or_default();
                let own = all.iter().filter(|(k, _)| k.starts_with(&key));
                own.for_each(|(key, _)| _ = map.delete(key));
            }
        }
    }
}

/// Writes the entry of a JVM to a map.
///
/// # Errors
/// [`Error::Bpf`], with `what` naming the operation that failed.
pub fn insert_entry(map: &impl MapCore, target: u64, value: &[u8], what: &str) -> Result<()> {
    map.update(&target.to_ne_bytes(), value, MapFlags::ANY)
        .map_err(|source| Error::Bpf { what: what.into(), source })
}

/// Writes the entry of a JVM to a map. An existing entry stays.
///
/// # Errors
/// [`Error::Bpf`], with `what` naming the operation that failed.
pub(crate) fn insert_new_entry(
    map: &impl MapCore,
    target: u64,
    value: &[u8],
    what: &str,
) -> Result<()> {
    match map.update(&target.to_ne_bytes(), value, MapFlags::NO_EXIST) {
        Err(source) if source.kind() != ErrorKind::AlreadyExists => {
            Err(Error::Bpf { what: what.into(), source })
        }
        _ => Ok(()),
    }
}
