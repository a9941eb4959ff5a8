//! The BPF object: loaded once; samples come out of it when they are collected.

use std::{mem::MaybeUninit, os::unix::fs::MetadataExt, time::Duration};

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, OpenObject,
    skel::{OpenSkel, Skel, SkelBuilder},
};
use libjvmprobe::{
    Error, Result,
    bpf::{
        self,
        perf::{self, Clock},
        probes::{Links, Plan, Scope, attach},
        records::{self, copy, text},
        stream::EventStream,
        walker::Walker,
    },
    process::{LibJvm, code::CodeMaps},
};

use crate::{
    event::{Event, sample_key},
    skel::{JavaprofSkel, JavaprofSkelBuilder},
};

/// Stacks of a thousand frames take eight kilobytes each.
const EVENT_BUFFER: u32 = 4 << 20;

/// Samples that are alike take one entry. They are collected once a second; twice as
/// many as can come by then is room enough, up to some 25 MB.
const SAMPLE_ENTRIES: std::ops::RangeInclusive<u64> = 1 << 14..=1 << 18;

/// Of 65,536 stacks that the kernel side can know.
pub const MANY_STACKS: usize = 50_000;

/// What to sample.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Samples a second of each processor.
    pub hertz: u64,
    /// Every process, not those named by [`Session::add_target`] only.
    pub every_process: bool,
    /// Also those of which nothing is known yet, see [`Session::ignore`].
    pub newcomers: bool,
    /// The user part of stacks.
    pub user: bool,
    /// The kernel's part of stacks.
    pub kernel: bool,
    /// Whether stacks are walked by more than frame pointers.
    pub unwind: bool,
}

/// Samples that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub comm: String,
    /// The processor.
    pub cpu: u32,
    /// The epoch of the JVM's code cache.
    pub epoch: u64,
    /// The user stack's number, 0 for none.
    pub user: u64,
    /// How its walk ended, see `WalkEnd::from_code`.
    pub user_end: u32,
    /// The kernel stack's number, 0 for none.
    pub kernel: u64,
}

/// The loaded programs, their maps and their events.
pub struct Session {
    /// Lives as long as the process, so that no attachment outlives it.
    skel: &'static mut JavaprofSkel<'static>,
    stream: EventStream<Event>,
    sampling: Vec<Link>,
    walker: Walker,
    unwind: bool,
}

impl Session {
    /// Loads the object.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
    pub fn load(options: Options) -> Result<Self> {
        bpf::preflight::check_walker()?;
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = JavaprofSkelBuilder::default().open(storage).map_err(bpf::load_error)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.every_process = options.every_process;
            data.newcomers = options.newcomers;
            data.want_user = options.user;
            data.want_kernel = options.kernel;
            data.know_jvms = options.unwind;
            data.has_user_registers = bpf::has_user_registers();
            if !bpf::sees_initial_pids()
                && let Ok(ns) = std::fs::metadata("/proc/self/ns/pid")
            {
                data.pidns_dev = ns.dev();
                data.pidns_ino = ns.ino();
            }
        }
        open.maps.events.set_max_entries(EVENT_BUFFER).map_err(bpf::load_error)?;
        let entries = options.hertz.saturating_mul(perf::online_cpus()?.len() as u64 * 2);
        let entries = entries.clamp(*SAMPLE_ENTRIES.start(), *SAMPLE_ENTRIES.end());
        let entries = u32::try_from(entries).unwrap_or(1 << 14);
        open.maps.samples.set_max_entries(entries).map_err(bpf::load_error)?;
        let skel = open.load().map_err(bpf::load_error)?;
        let events = MapHandle::try_from(&skel.maps.events).map_err(bpf::load_error)?;
        let stream = EventStream::open(Box::leak(Box::new(events)), Event::decode)?;
        let walker = Walker::new(skel.object())?;
        Ok(Self {
            skel: Box::leak(Box::new(skel)),
            stream,
            sampling: Vec::new(),
            walker,
            unwind: options.unwind,
        })
    }

    /// Tells the stack walker what a process has mapped.
    pub fn tell_mappings(&mut self, pid: u64, maps: &CodeMaps) -> Result<()> {
        if self.unwind { self.walker.set_mappings(pid, maps) } else { Ok(()) }
    }

    /// What the stack walker knows.
    pub fn walker(&mut self) -> &mut Walker {
        &mut self.walker
    }

    /// Begins to sample.
    pub fn start(&mut self, hertz: u64) -> Result<Clock> {
        let (clock, links) = perf::attach(&self.skel.progs.sample, hertz)?;
        self.sampling = links;
        Ok(clock)
    }

    /// Samples no more.
    pub fn stop(&mut self) {
        self.sampling.clear();
    }

    /// Profiles a process from now on.
    pub fn add_target(&self, pid: u64) -> Result<()> {
        let fresh = 0_u64.to_ne_bytes();
        self.skel
            .maps
            .targets
            .update(&pid.to_ne_bytes(), &fresh, MapFlags::NO_EXIST)
            .map_err(|source| Error::Bpf { what: format!("add process {pid}"), source })
    }

    /// Samples a process no more that is none of those wanted.
    pub fn ignore(&self, pid: u64) {
        // Where there is no room for it, it is sampled, and left out again.
        let _ = self.skel.maps.ignored.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY);
    }

    /// Samples a process again that gets the number of one that was ignored.
    pub fn heed(&self, pid: u64) {
        // Absent entries are what is wanted.
        let _ = self.skel.maps.ignored.delete(&pid.to_ne_bytes());
    }

    /// Forgets a process that has ended; its number may be used again.
    pub fn forget(&mut self, pid: u64) {
        self.walker.forget(pid);
        // Absent entries are what is wanted.
        let _ = self.skel.maps.targets.delete(&pid.to_ne_bytes());
    }

    /// The epoch that a JVM's code cache is in.
    pub fn epoch(&self, pid: u64) -> u64 {
        records::counter(&self.skel.maps.targets, pid)
    }

    /// Attaches what was planned for a libjvm.so, all or nothing.
    pub fn attach(
        &mut self,
        libjvm: &LibJvm,
        plans: &[Plan],
        scope: Scope,
        key: u64,
    ) -> Result<Links> {
        let mut links = Links::default();
        for plan in plans {
            let program = bpf::program(self.skel.object_mut(), plan.program)?;
            links.push(attach(&program, libjvm, &plan.site, scope, key)?);
            // Events come in from the first attachment on.
            self.stream.make_room()?;
        }
        Ok(links)
    }

    /// Waits for events, up to `timeout`.
    pub fn events(&self, timeout: Duration) -> Result<impl Iterator<Item = Event> + use<>> {
        Ok(self.stream.wait(timeout)?.into_iter())
    }

    /// Forgets stacks of a process that has ended.
    pub fn forget_stacks_of(&self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            // Gone or not, it is not needed.
            let _ = self.skel.maps.known_stacks.delete(&id.to_ne_bytes());
        }
    }

    /// Makes room for [`MANY_STACKS`] more: those that come again are sent again.
    pub fn forget_stacks(&self) {
        let known = &self.skel.maps.known_stacks;
        for key in known.keys().collect::<Vec<_>>() {
            // Gone or not, it is not needed.
            let _ = known.delete(&key);
        }
    }

    /// Takes out what was counted since the last time.
    pub fn collect(&self) -> Vec<(SampleKey, u64)> {
        let map = &self.skel.maps.samples;
        let keys: Vec<_> = map.keys().collect();
        let take = |key: Vec<u8>| {
            // In one step, so that no count between is lost.
            let count = map.lookup_and_delete(&key).ok()??;
            Some((decode_key(&key)?, u64::from_ne_bytes(count.try_into().ok()?)))
        };
        keys.into_iter().filter_map(take).collect()
    }

    /// Samples that were taken and could not be counted.
    pub fn lost(&self) -> u64 {
        self.lost_of(0)
    }

    /// Loads and unloads of code of a process that could not be sent.
    pub fn lost_of(&self, key: u64) -> u64 {
        records::counter(&self.skel.maps.lost_events, key)
    }
}

fn decode_key(bytes: &[u8]) -> Option<SampleKey> {
    let key: sample_key = copy(bytes)?;
    Some(SampleKey {
        pid: key.tgid,
        tid: key.tid,
        comm: text(&key.comm),
        cpu: key.cpu,
        epoch: key.epoch,
        user: key.user,
        user_end: key.user_end,
        kernel: key.kernel,
    })
}

#[cfg(test)]
mod tests {
    use libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC;

    use super::*;

    /// Linux 5.15 to 6.0 refuse a perf_event program that has such a map.
    #[test]
    fn no_map_allocates_while_sampling() {
        let mut storage = MaybeUninit::uninit();
        let open = JavaprofSkelBuilder::default().open(&mut storage).expect("our own object");
        for map in open.open_object().maps() {
            assert_eq!(map.map_flags() & BPF_F_NO_PREALLOC, 0, "{:?}", map.name());
        }
    }
}
