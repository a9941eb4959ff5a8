//! The BPF object, as the options want it; samples come out of it when they are collected.

use std::{collections::HashSet, fs, io::Read, ops::AddAssign, os::unix::fs::MetadataExt};

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, ProgramMut,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    Error, Result,
    bpf::{
        self, clock,
        cost::Trigger,
        kernel_types, perf, preflight,
        records::{self, bytes, copy, text},
        session, stops,
    },
    own::Pace,
    process::code::CodeMaps,
    take::samples::{
        Options, StackWalk, Whom,
        event::{
            Event, java, limits, sample_count, sample_key, sleeper, target, thin, thin_key, thread,
        },
        events::Asked,
        skel::{JavaprofSkel, JavaprofSkelBuilder},
    },
};

/// Samples that are alike take one entry. Twice as many as can come until they are collected
/// is room enough, up to some 25 MB.
const SAMPLE_ENTRIES: std::ops::RangeInclusive<u64> = 1 << 14..=1 << 18;

/// Of 65,536 stacks that the kernel side can know.
pub(crate) const MANY_STACKS: usize = 50_000;

/// Programs that are there whatever is sampled: what JVMs compile is followed.
const ALWAYS: [&str; 2] = ["code_load", "code_unload"];

/// Finds threads that sleep since before the trace.
const ITERATOR: &str = "asleep";

/// Samples that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SampleKey {
    /// The process.
    pub(crate) pid: u32,
    /// The thread.
    pub(crate) tid: u32,
    /// Its name.
    pub(crate) comm: String,
    /// The processor.
    pub(crate) cpu: u32,
    /// The epoch of the JVM's code cache.
    pub(crate) epoch: u64,
    /// The user stack's number, 0 for none.
    pub(crate) user: u64,
    /// How its walk ended, see `WalkEnd::from_code`.
    pub(crate) user_end: u32,
    /// The kernel stack's number, 0 for none.
    pub(crate) kernel: u64,
    /// Which of the events it is of.
    pub(crate) event: u32,
    /// What is told beside the stack, 0 for nothing; see [`LABEL_IS_TEXT`].
    pub(crate) label: u64,
    /// In which slot of time it was; of waits, when they ended.
    pub(crate) slot: u32,
}

/// How often a sample came, and what that stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// How many there were.
    pub(crate) samples: u64,
    /// In the event's unit; of processor time, nothing that counts.
    pub(crate) value: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.value = self.value.saturating_add(other.value);
    }
}

/// `LABEL_IS_TEXT` of bpf/javaprof.h: such labels have a text that was sent, others are numbers.
pub(crate) const LABEL_IS_TEXT: u64 = 1 << 63;

/// In place of a user stack's number, where there is none because the event was thinned. Numbers
/// of stacks are odd.
pub(crate) const NOT_WALKED: u64 = 4;

/// The same where the thread had gone to sleep before the trace.
pub(crate) const UNSEEN: u64 = 6;

/// The same where the process's tenant exceeds its share of walks and names.
pub(crate) const OVER_SHARE: u64 = 8;

/// Returns whether this is the number of a user stack, which is sent by itself.
pub(crate) fn has_number(user: u64) -> bool {
    user % 2 == 1
}

/// So many threads have an entry of their own where waits are wanted: some 5 MB.
const THREADS: u32 = 1 << 15;

/// The loaded programs, their maps and their events.
pub(crate) type Session = session::Session<JavaprofSkel<'static>, Event>;

/// Loads the object.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] where the kernel refuses.
pub(crate) fn load(options: &Options) -> Result<Session> {
    let waits = options.events.iter().position(Asked::has_waits);
    let waits = waits.and_then(|at| u32::try_from(at).ok());
    preflight::check_walker()?;
    if options.events.len() > 1 && !bpf::has_cookies() {
        return Err(Error::Kernel {
            what: "tell several events apart".into(),
            hint: "ask for one, or use Linux 5.15 or later".into(),
        });
    }
    let fields = ["pid", "tgid", "__state", "start_time", "comm"];
    let task = match waits {
        Some(_) => kernel_types::offsets("task_struct", fields)?,
        None => [0; 5],
    };
    // Without BTF, stacks that begin at a probed instruction may be incomplete.
    let probed = probed_places().ok();
    let mut open =
        JavaprofSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.every_process = options.whom == Whom::EveryProcess;
        data.newcomers = options.whom == Whom::EveryJvm;
        data.want_user = options.user;
        data.want_kernel = options.kernel;
        data.know_jvms = options.walk != StackWalk::Fp;
        data.has_user_registers = bpf::has_user_registers();
        [data.task_pid, data.task_tgid, data.task_state, data.task_start_time, data.task_comm] =
            task;
        if let Some(places) = probed {
            [data.task_utask, data.utask_vaddr, data.utask_xol_vaddr] = places;
        }
        data.switch_event = waits.unwrap_or(0);
        data.min_wait = u64::try_from(options.min_wait.as_nanos()).unwrap_or(u64::MAX);
        data.slot_ns = options.slot_ns;
        data.wakes_late = options.pace == Pace::Calm;
        data.counts_costs = options.pace == Pace::Calm;
        data.has_limits = options.pace == Pace::Calm;
        for (event, is_thinned) in options.events.iter().zip(&mut data.is_thinned) {
            *is_thinned = event.is_thinned();
        }
        if !bpf::sees_initial_pids()
            && let Ok(ns) = fs::metadata("/proc/self/ns/pid")
        {
            data.pidns_dev = ns.dev();
            data.pidns_ino = ns.ino();
        }
    }
    // Only what is needed: the verifier looks at each.
    let wanted: HashSet<_> = options.events.iter().flat_map(Asked::programs).collect();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_iterator = waits.is_some() && name == ITERATOR && sees_sleepers();
        let is_stop = options.slot_ns > 0 && stops::PROGRAMS.contains(&&*name);
        program.set_autoload(
            ALWAYS.contains(&&*name) || wanted.contains(&*name) || is_iterator || is_stop,
        );
    }
    if waits.is_some() {
        open.maps.threads.set_max_entries(THREADS).map_err(bpf::load_error)?;
    }
    // Stacks of a thousand frames take eight kilobytes each.
    open.maps.events.set_max_entries(options.pace.ring()).map_err(bpf::load_error)?;
    let seconds = options.pace.collects_every().as_secs().max(1);
    let entries = options.hertz().saturating_mul(perf::online_cpus()?.len() as u64 * 2 * seconds);
    let entries = entries.clamp(*SAMPLE_ENTRIES.start(), *SAMPLE_ENTRIES.end());
    let entries = u32::try_from(entries).unwrap_or(1 << 14);
    open.maps.samples.set_max_entries(entries).map_err(bpf::load_error)?;
    let skel = session::load(open)?;
    let mut session = Session::new(skel, Event::decode, true)?;
    if waits.is_some()
        && let Some(walker) = session.walker()
    {
        walker.keep_rows();
    }
    if options.pace == Pace::Calm {
        session = session.with_costs(Trigger::Interrupt)?;
    }
    Ok(session.with_maps_by_jvm(&[
        "targets",
        "javas",
        "labels",
        "limits_of",
        "thinned",
        stops::MAP,
    ]))
}

/// Offsets of `task_struct.utask`, `uprobe_task.vaddr` and `uprobe_task.xol_vaddr`, by which the walker knows the
/// probed instruction that a thread executes.
fn probed_places() -> Result<[u32; 3]> {
    let [utask] = kernel_types::offsets("task_struct", ["utask"])?;
    let [vaddr, copy] = kernel_types::offsets("uprobe_task", ["vaddr", "xol_vaddr"])?;
    Ok([utask, vaddr, copy])
}

/// Tells the stack walker what a process has mapped.
pub(crate) fn tell_mappings(session: &mut Session, pid: u64, maps: &CodeMaps) -> Result<()> {
    session.walker().map_or(Ok(()), |walker| walker.set_mappings(pid, maps))
}

/// Profiles a process from now on.
pub(crate) fn add_target(session: &Session, pid: u64) -> Result<()> {
    let fresh = target { epoch: 0, since: clock::monotonic_ns() };
    session
        .skel
        .maps
        .targets
        .update(&pid.to_ne_bytes(), bytes(&fresh), MapFlags::NO_EXIST)
        .map_err(|source| Error::Bpf { what: format!("add process {pid}"), source })
}

/// Samples a process no more that is none of those wanted.
pub(crate) fn ignore(session: &Session, pid: u64) {
    // Where there is no room for it, it is sampled, and left out again.
    let _ = session.skel.maps.ignored.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY);
}

/// Samples a process again that gets the number of one that was ignored.
pub(crate) fn heed(session: &Session, pid: u64) {
    // Absent entries are what is wanted.
    let _ = session.skel.maps.ignored.delete(&pid.to_ne_bytes());
}

/// Sets the limits of a process. Returns the loads and unloads of code that were left out so far.
pub(crate) fn limit(session: &Session, pid: u64, unwalked: u32, leaves_out_code: bool) -> u64 {
    let map = &session.skel.maps.limits_of;
    let left_out = left_out(session, pid);
    // Counts between the two calls are lost.
    let new = limits { unwalked, leaves_out_code: leaves_out_code.into(), left_out };
    // Without space for it, the process has no limits.
    let _ = map.update(&pid.to_ne_bytes(), bytes(&new), MapFlags::ANY);
    left_out
}

/// Returns the loads and unloads of code that were left out of a process so far.
pub(crate) fn left_out(session: &Session, pid: u64) -> u64 {
    let entry = session.skel.maps.limits_of.lookup(&pid.to_ne_bytes(), MapFlags::ANY);
    let limits = entry.ok().flatten().and_then(|bytes| copy::<limits>(&bytes));
    limits.map_or(0, |limits| limits.left_out)
}

/// The epoch that a JVM's code cache is in.
pub(crate) fn epoch(session: &Session, pid: u64) -> u64 {
    records::counter(&session.skel.maps.targets, pid)
}

/// Forgets stacks of a process that has ended.
pub(crate) fn forget_stacks_of(session: &Session, ids: impl Iterator<Item = u64>) {
    for id in ids {
        // Gone or not, it is not needed.
        let _ = session.skel.maps.known_stacks.delete(&id.to_ne_bytes());
    }
}

/// Makes room for [`MANY_STACKS`] more: those that come again are sent again.
pub(crate) fn forget_stacks(session: &Session) {
    // What cannot be forgotten now is next time.
    let _ = records::clear(&session.skel.maps.known_stacks);
}

/// Takes out what was counted since the last time.
pub(crate) fn collect(session: &Session) -> Vec<(SampleKey, Count)> {
    // What is not taken now is taken next time.
    let taken = records::take_entries(&session.skel.maps.samples).unwrap_or_default();
    let decode = |(key, count): &(Vec<u8>, Vec<u8>)| {
        let sample_count { samples, value } = copy(count)?;
        Some((decode_key(key)?, Count { samples, value }))
    };
    taken.iter().filter_map(decode).collect()
}

/// Takes out what was thinned and not yet counted with another one, of all processes or of one;
/// nothing must be sampled there any more.
pub(crate) fn collect_thinned(session: &Session, pid: Option<u32>) -> Vec<(SampleKey, Count)> {
    let map = &session.skel.maps.thinned;
    let take = |bytes: Vec<u8>| {
        let key: thin_key = copy(&bytes)?;
        let of = u32::try_from(key.target).ok().filter(|&of| pid.is_none_or(|pid| pid == of))?;
        let thin: thin = copy(&map.lookup(&bytes, MapFlags::ANY).ok()??)?;
        let _ = map.delete(&bytes);
        let event = u32::try_from(key.event).ok()?;
        let count = Count { samples: 0, value: thin.pending };
        let key = SampleKey { event, label: key.label, user: NOT_WALKED, ..SampleKey::of(of) };
        (thin.pending > 0).then_some((key, count))
    };
    map.keys().collect::<Vec<_>>().into_iter().filter_map(take).collect()
}

/// Attaches to what tells of waits; nothing is counted before [`begin_waits`].
pub(crate) fn attach_waits(session: &Session) -> Result<Vec<Link>> {
    let programs = &session.skel.progs;
    let attach = |(program, what): (&ProgramMut<'_>, &str)| {
        let failed = |source| Error::Bpf { what: format!("attach to {what}"), source };
        program.attach().map_err(failed)
    };
    let all = [
        (&programs.switches, "sched_switch"),
        (&programs.wakes, "sched_wakeup"),
        (&programs.ends, "sched_process_exit"),
    ];
    all.into_iter().map(attach).collect()
}

/// Threads that sleep and have not switched since their process was looked at. None where the
/// kernel has no such iterator ([`sees_sleepers`]).
///
/// # Errors
/// [`Error::Bpf`], [`Error::Io`].
pub(crate) fn sleepers(session: &Session) -> Result<Vec<sleeper>> {
    if !sees_sleepers() {
        return Ok(Vec::new());
    }
    let failed = |source| Error::Bpf { what: "walk over all tasks".into(), source };
    let link = session.skel.progs.asleep.attach().map_err(failed)?;
    let most = u64::from(THREADS) * size_of::<sleeper>() as u64;
    let mut all = Vec::new();
    let iterator = Iter::new(&link).map_err(failed)?;
    iterator.take(most).read_to_end(&mut all).map_err(|e| Error::io("read all tasks", e))?;
    Ok(all.chunks_exact(size_of::<sleeper>()).filter_map(copy).collect())
}

/// Whether threads can be found that sleep since before the trace.
fn sees_sleepers() -> bool {
    bpf::has_user_registers() && bpf::sees_initial_pids()
}

/// Counts slots of time from `begin` on, on the kernel's clock.
pub(crate) fn begin_times(session: &mut Session, begin: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.times_from = begin;
    }
}

/// Counts waits from now on, the time `began`.
pub(crate) fn begin_waits(session: &mut Session, began: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.began = began;
    }
}

/// What the kernel side knows of threads.
pub(crate) fn threads(session: &Session) -> Vec<thread> {
    let map = &session.skel.maps.threads;
    let keys: Vec<_> = map.keys().collect();
    keys.iter().filter_map(|key| copy(&map.lookup(key, MapFlags::ANY).ok()??)).collect()
}

/// Forgets the threads of a process.
pub(crate) fn forget_threads(session: &Session, pid: u32) {
    let map = &session.skel.maps.threads;
    for key in map.keys().collect::<Vec<_>>() {
        let thread = map.lookup(&key, MapFlags::ANY).ok().flatten();
        if thread.and_then(|bytes| copy::<thread>(&bytes)).is_some_and(|t| t.tgid == pid) {
            // Gone or not, it is not needed.
            let _ = map.delete(&key);
        }
    }
}

/// A thread's name.
pub(crate) fn comm(thread: &thread) -> String {
    text(&thread.comm)
}

/// Tells the kernel side how a JVM's structures are read.
pub(crate) fn tell_java(session: &Session, pid: u64, java: &java) -> Result<()> {
    session::tell(&session.skel.maps.javas, pid, bytes(java), "read the JVM's structures")
}

impl SampleKey {
    /// One that says nothing but whose it is.
    pub(crate) fn of(pid: u32) -> Self {
        Self {
            pid,
            tid: pid,
            comm: String::new(),
            cpu: 0,
            epoch: 0,
            user: 0,
            user_end: 0,
            kernel: 0,
            event: 0,
            label: 0,
            slot: 0,
        }
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
        event: key.event,
        label: key.label,
        slot: key.slot,
    })
}

#[cfg(test)]
mod tests {
    use libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC;

    use super::*;

    /// Linux 5.15 to 6.0 refuse a perf_event program that has such a map.
    #[test]
    fn no_map_allocates_while_sampling() {
        let mut storage = std::mem::MaybeUninit::uninit();
        let open = JavaprofSkelBuilder::default().open(&mut storage).expect("our own object");
        for map in open.open_object().maps() {
            assert_eq!(map.map_flags() & BPF_F_NO_PREALLOC, 0, "{:?}", map.name());
        }
    }
}
