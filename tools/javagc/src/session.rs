//! The BPF object: loaded once, attached to one JVM or one libjvm.so at a time.

use std::{collections::HashSet, mem::MaybeUninit, time::Duration};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};
use libjvmprobe::{
    Error, Result,
    bpf::{
        self,
        probes::{Links, Plan, Scope, attach},
        records,
        room::{self, Roomy},
        stream::EventStream,
        walker::{self, Walker},
    },
    hotspot::gauge::Gauge,
    process::LibJvm,
};

use crate::{
    event::Event,
    instants::REQUEST_PROGRAM,
    skel::{JavagcSkel, JavagcSkelBuilder},
};

/// The loaded programs, their maps and their events.
pub struct Session {
    /// Lives as long as the process, so that no attachment outlives it.
    skel: &'static mut JavagcSkel<'static>,
    stream: EventStream<Event>,
    walker: Option<Walker>,
}

/// One entry a JVM: 4 MB where they are allocated beforehand.
const ROOMY: [Roomy; 2] = [
    Roomy { name: "stops", most: 1 << 12, allocated: 1 << 12 },
    Roomy { name: "gauges", most: 1 << 12, allocated: 1 << 12 },
];
/// Bytes of the ring buffer where all JVMs send through it: some thousand stops.
const LARGE_RING: u32 = 1 << 22;
/// Stacks from which collections are asked for: few lines of a program do so.
const KNOWN_STACKS: u32 = 1 << 12;

impl Session {
    /// Loads the object; of its programs only those named, or all; the stack walker only if
    /// stacks are wanted.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
    pub fn load(programs: Option<&HashSet<&str>>, stacks: bool) -> Result<Self> {
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = JavagcSkelBuilder::default().open(storage).map_err(bpf::load_error)?;
        for mut program in open.open_object_mut().progs_mut() {
            let wanted = programs.is_none_or(|names| {
                program.name().to_str().is_some_and(|name| names.contains(name))
            });
            program.set_autoload(wanted && (stacks || program.name() != REQUEST_PROGRAM));
        }
        if stacks {
            bpf::preflight::check_walker()?;
            open.maps.known_stacks.set_max_entries(KNOWN_STACKS).map_err(bpf::load_error)?;
        } else {
            walker::leave_out(open.open_object_mut())?;
        }
        room::make(open.open_object_mut(), &ROOMY)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.know_jvms = stacks;
        }
        if programs.is_none() {
            open.maps.events.set_max_entries(LARGE_RING).map_err(bpf::load_error)?;
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

    /// Attaches what was planned for a libjvm.so, all or nothing. Of what is
    /// optional, `skipped` is told what is lost when the kernel refuses it:
    /// uprobes on functions, unlike USDT probes, want CAP_SYS_ADMIN.
    pub fn attach(
        &mut self,
        libjvm: &LibJvm,
        plans: &[Plan],
        scope: Scope,
        cookie: u64,
        mut skipped: impl FnMut(&str),
    ) -> Result<Links> {
        let mut links = Links::default();
        for plan in plans {
            let program = bpf::program(self.skel.object_mut(), plan.program)?;
            match (attach(&program, libjvm, &plan.site, scope, cookie), plan.optional) {
                (Ok(link), _) => links.push(link),
                (Err(Error::Permission { .. }), Some(loss)) => skipped(loss),
                (Err(error), _) => return Err(error),
            }
            // Events come in from the first attachment on.
            self.stream.make_room()?;
        }
        Ok(links)
    }

    /// Tells the kernel side where a JVM keeps its own numbers.
    pub fn set_gauge(&self, target: u64, gauge: &Gauge) -> Result<()> {
        self.skel
            .maps
            .gauges
            .update(&target.to_ne_bytes(), &gauge.to_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Bpf { what: "tell the kernel about the heap".into(), source })
    }

    /// Events of a JVM that did not fit into the ring buffer, so far.
    pub fn lost(&self, target: u64) -> u64 {
        records::counter(&self.skel.maps.lost_events, target)
    }

    /// Forgets a JVM that has ended; its number may be used again.
    pub fn forget(&mut self, target: u64) {
        if let Some(walker) = &mut self.walker {
            walker.forget(target);
            walker::forget_stacks(&self.skel.maps.known_stacks, target);
        }
        let key = target.to_ne_bytes();
        // Absent entries are what is wanted.
        let _ = self.skel.maps.gauges.delete(&key);
        let _ = self.skel.maps.lost_events.delete(&key);
        let _ = self.skel.maps.stops.delete(&key);
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
