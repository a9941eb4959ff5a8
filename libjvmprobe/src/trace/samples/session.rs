//! The BPF object: loads it as the options require, and reads samples and threads from its maps.

use std::{collections::HashSet, fs, ops::AddAssign, os::unix::fs::MetadataExt};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle,
    skel::{OpenSkel, SkelBuilder},
};

use crate::{
    Error, Result,
    bpf::{
        self, clock,
        kernel_types::KernelTypes,
        offcpu::{self, Hook, TaskFields, Thread},
        perf, preflight,
        records::{self, bytes, copy, text},
        session,
        spans::{self, SpanSources},
        stops,
    },
    process::code::CodeMaps,
    stack::span::SpanContext,
    sys::Pace,
    trace::samples::{
        Options, StackWalk, Targets,
        event::{Event, java_layout, limits, sample_count, sample_key, target, thin, thin_key},
        events::EventSpec,
        skel::{JavaprofSkel, JavaprofSkelBuilder},
    },
};

/// Minimum and maximum number of entries of the map of samples. Between these limits, the map has twice
/// as many entries as samples are expected between two calls of `collect`. That is more than enough, because samples
/// with equal keys share an entry. The maximum takes about 25 MB.
const SAMPLE_ENTRIES: std::ops::RangeInclusive<u64> = 1 << 14..=1 << 18;

/// Number of received stacks after which the kernel side's table of known stacks is cleared. That table has 65,536
/// entries.
pub(crate) const MANY_STACKS: usize = 50_000;

/// Programs that are always loaded: they record loads and unloads of compiled code.
const ALWAYS: [&str; 2] = ["code_load", "code_unload"];

/// Key of a sample. Samples with equal keys are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SampleKey {
    /// The process ID.
    pub(crate) pid: u32,
    /// The thread ID.
    pub(crate) tid: u32,
    /// The thread's name, as the kernel keeps it.
    pub(crate) comm: String,
    /// The processor.
    pub(crate) cpu: u32,
    /// The epoch of the JVM's code cache.
    pub(crate) epoch: u64,
    /// Number of the user stack; 0 for none. Other even values say why there is none, for example
    /// [`NOT_WALKED`].
    pub(crate) user: u64,
    /// How the walk of the user stack ended, see `WalkEnd::from_code`.
    pub(crate) user_end: u32,
    /// Number of the kernel stack; 0 for none.
    pub(crate) kernel: u64,
    /// Index of the event.
    pub(crate) event: u32,
    /// The label beside the stack; 0 for none. See [`LABEL_IS_TEXT`].
    pub(crate) label: u64,
    /// The time slot of the sample; for a wait, the slot in which it ended.
    pub(crate) slot: u32,
    /// The trace context that the thread has published.
    pub(crate) span: Option<SpanContext>,
}

/// Number of samples with equal keys, and the quantity that they represent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Number of samples.
    pub(crate) samples: u64,
    /// Quantity in the event's unit; not used for CPU time.
    pub(crate) value: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.value = self.value.saturating_add(other.value);
    }
}

/// `LABEL_IS_TEXT` of bpf/javaprof.h: the kernel side has sent a text for labels with this bit; other labels are
/// plain numbers.
pub(crate) const LABEL_IS_TEXT: u64 = 1 << 63;

/// `LABEL_FAILED` of bpf/javaprof.h: set in the label of a compilation that failed.
pub(crate) const LABEL_FAILED: u64 = 1 << 62;

/// In place of the number of a user stack: the stack was not walked, because the event occurs too often or because the
/// thread is new and has waited for its first processor. Numbers of stacks are odd.
pub(crate) const NOT_WALKED: u64 = 4;

/// In place of the number of a user stack: the thread was asleep when the trace ended, and its stack could not be walked.
/// The kernel side does not use this number.
pub(crate) const ASLEEP: u64 = 6;

/// In place of the number of a user stack: the stack was not walked, because the process's tenant exceeds its
/// share of the CPU time for walking and naming stacks.
pub(crate) const OVER_SHARE: u64 = 8;

/// Returns whether this is the number of a user stack, which the kernel side sends separately.
pub(crate) fn has_number(user: u64) -> bool {
    user % 2 == 1
}

/// The loaded programs, their maps and their events.
pub(crate) type Session = session::Session<JavaprofSkel<'static>, Event>;

/// Loads the BPF object.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] if the kernel rejects it.
pub(crate) fn load(options: &Options) -> Result<Session> {
    let waits = options.events.iter().position(EventSpec::has_waits);
    let waits = waits.and_then(|at| u32::try_from(at).ok());
    preflight::check_walker()?;
    if options.events.len() > 1 && !bpf::has_cookies() {
        return Err(Error::Kernel {
            what: "distinguish several events".into(),
            hint: "specify one event, or use Linux 5.15 or later".into(),
        });
    }
    let hook = waits.map(|_| Hook::find()).transpose()?;
    let task = hook.as_ref().map(|_| TaskFields::read()).transpose()?.unwrap_or_default();
    // Without BTF, stacks that begin at a probed instruction may be incomplete.
    let probed = uprobe_field_offsets().ok();
    let thread_pointer = spans::offset_if(options.spans);
    let mut open =
        JavaprofSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.every_process = options.targets == Targets::EveryProcess;
        data.samples_new_processes = options.targets == Targets::EveryJvm;
        data.want_user = options.user;
        data.want_kernel = options.kernel;
        data.uses_walk_data = options.walk != StackWalk::Fp;
        data.has_user_registers = bpf::has_user_registers();
        data.task_pid = task.pid;
        data.task_tgid = task.tgid;
        data.task_state = task.state;
        data.task_start_time = task.start_time;
        data.task_comm = task.comm;
        if let Some(places) = probed {
            [data.task_utask, data.utask_vaddr, data.utask_xol_vaddr] = places;
        }
        if let Some(offset) = thread_pointer {
            data.reads_spans = true;
            data.task_thread_pointer = offset;
        }
        data.switch_event = waits.unwrap_or(0);
        data.min_wait = u64::try_from(options.min_wait.as_nanos()).unwrap_or(u64::MAX);
        data.slot_ns = options.slot_ns;
        data.polls_regularly = options.pace == Pace::Calm;
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
    // Only the needed programs are loaded, because the verifier checks each of them.
    let wanted = options.events.iter().flat_map(EventSpec::programs);
    let wanted: HashSet<_> = wanted.chain(hook.iter().flat_map(Hook::programs)).collect();
    for mut program in open.open_object_mut().progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_iterator = waits.is_some() && name == offcpu::ITERATOR && bpf::has_task_iterator();
        let is_stop = options.slot_ns > 0 && stops::PROGRAMS.contains(&&*name);
        program.set_autoload(
            ALWAYS.contains(&&*name) || wanted.contains(&*name) || is_iterator || is_stop,
        );
    }
    if waits.is_some() {
        open.maps.threads.set_max_entries(offcpu::MAX_THREADS).map_err(bpf::load_error)?;
    }
    spans::set_capacity(&mut open.maps.span_sources, thread_pointer.is_some())?;
    // The ring buffer holds stacks, and a stack with a thousand frames takes 8 kB.
    open.maps.events.set_max_entries(options.pace.ring_bytes()).map_err(bpf::load_error)?;
    let seconds = options.pace.collect_interval().as_secs().max(1);
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
        session = session.with_costs()?;
    }
    Ok(session.with_maps_by_jvm(&[
        "targets",
        "java_layouts",
        "labels",
        "limits_of",
        "thinned",
        spans::MAP,
        stops::MAP,
    ]))
}

/// Returns the offsets of `task_struct.utask`, `uprobe_task.vaddr` and `uprobe_task.xol_vaddr`. From these fields,
/// the walker knows the probed instruction that a thread executes.
fn uprobe_field_offsets() -> Result<[u32; 3]> {
    let types = KernelTypes::load("task_struct")?;
    let [utask] = types.offsets("task_struct", ["utask"])?;
    let [vaddr, copy] = types.offsets("uprobe_task", ["vaddr", "xol_vaddr"])?;
    Ok([utask, vaddr, copy])
}

/// Passes a process's mappings to the stack walker.
pub(crate) fn set_mappings(session: &mut Session, pid: u64, maps: &CodeMaps) -> Result<()> {
    session.walker().map_or(Ok(()), |walker| walker.set_mappings(pid, maps))
}

/// Returns the search for processes that publish trace contexts; `None` if contexts are not read.
///
/// # Errors
/// [`Error::Bpf`].
pub(crate) fn span_sources(session: &Session) -> Result<Option<SpanSources>> {
    let reads = session.skel.maps.rodata_data.is_some_and(|data| data.reads_spans);
    let map = || MapHandle::try_from(&session.skel.maps.span_sources).map_err(bpf::load_error);
    reads.then(|| map().map(SpanSources::new)).transpose()
}

/// Starts sampling a process.
pub(crate) fn add_target(session: &Session, pid: u64) -> Result<()> {
    let fresh = target { epoch: 0, since: clock::monotonic_ns() };
    session
        .skel
        .maps
        .targets
        .update(&pid.to_ne_bytes(), bytes(&fresh), MapFlags::NO_EXIST)
        .map_err(|source| Error::Bpf { what: format!("add process {pid}"), source })
}

/// Makes the kernel side ignore a process that must not be sampled.
pub(crate) fn ignore(session: &Session, pid: u64) {
    // If the map is full, the kernel side continues to sample the process. User space drops the later samples
    // as it has dropped the earlier ones.
    let _ = session.skel.maps.ignored.update(&pid.to_ne_bytes(), &[1], MapFlags::ANY);
}

/// Makes the kernel side stop ignoring a PID, because the kernel may give this PID to a new process.
pub(crate) fn unignore(session: &Session, pid: u64) {
    // The entry may be missing.
    let _ = session.skel.maps.ignored.delete(&pid.to_ne_bytes());
}

/// Sets the limits of a process. Returns the number of loads and unloads of code left out so far.
pub(crate) fn set_limits(session: &Session, pid: u64, unwalked: u32, leaves_out_code: bool) -> u64 {
    let map = &session.skel.maps.limits_of;
    let left_out = left_out(session, pid);
    // Loads and unloads that the kernel side leaves out between this read and the update below are not
    // counted.
    let new = limits { unwalked, leaves_out_code: leaves_out_code.into(), left_out };
    // If the map is full, the process has no limits.
    let _ = map.update(&pid.to_ne_bytes(), bytes(&new), MapFlags::ANY);
    left_out
}

/// Returns the number of loads and unloads of a process's code left out so far.
pub(crate) fn left_out(session: &Session, pid: u64) -> u64 {
    let entry = session.skel.maps.limits_of.lookup(&pid.to_ne_bytes(), MapFlags::ANY);
    let limits = entry.ok().flatten().and_then(|bytes| copy::<limits>(&bytes));
    limits.map_or(0, |limits| limits.left_out)
}

/// Returns the current epoch of a JVM's code cache.
pub(crate) fn epoch(session: &Session, pid: u64) -> u64 {
    records::counter(&session.skel.maps.targets, pid)
}

/// Removes the user stacks with these numbers from the kernel side's table of known stacks, after their samples have
/// been named or dropped.
pub(crate) fn forget_stacks_of(session: &Session, ids: impl Iterator<Item = u64>) {
    for id in ids {
        // The entry may be missing.
        let _ = session.skel.maps.known_stacks.delete(&id.to_ne_bytes());
    }
}

/// Clears the kernel side's table of known stacks, which makes space for [`MANY_STACKS`] more. A stack that occurs
/// again is sent again.
pub(crate) fn forget_stacks(session: &Session) {
    // On an error, the next call clears the rest.
    let _ = records::clear(&session.skel.maps.known_stacks);
}

/// Takes the samples counted since the last call.
pub(crate) fn collect(session: &Session) -> Vec<(SampleKey, Count)> {
    // On an error, the next call takes them.
    let taken = records::take_entries(&session.skel.maps.samples).unwrap_or_default();
    let decode = |(key, count): &(Vec<u8>, Vec<u8>)| {
        let sample_count { samples, value } = copy(count)?;
        Some((decode_key(key)?, Count { samples, value }))
    };
    taken.iter().filter_map(decode).collect()
}

/// Removes and returns the quantities of events that were thinned out (`bpf/thin.bpf.h`) and are not yet part of a
/// sample: those of process `pid`, or of all processes if it is `None`. The processes must no longer be sampled.
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

/// Sets the time at which the first time slot begins, on the kernel's monotonic clock in nanoseconds.
pub(crate) fn begin_times(session: &mut Session, begin: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.slots_begin_ns = begin;
    }
}

/// Starts counting waits; `began` is the current time on the kernel's monotonic clock in nanoseconds.
pub(crate) fn begin_waits(session: &mut Session, began: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.trace_began_ns = began;
    }
}

/// Returns the kernel side's entries of all threads.
pub(crate) fn threads(session: &Session) -> Vec<Thread> {
    let map = &session.skel.maps.threads;
    let keys: Vec<_> = map.keys().collect();
    keys.iter().filter_map(|key| copy(&map.lookup(key, MapFlags::ANY).ok()??)).collect()
}

/// Removes the kernel side's entries of a process's threads.
pub(crate) fn forget_threads(session: &Session, pid: u32) {
    let map = &session.skel.maps.threads;
    for key in map.keys().collect::<Vec<_>>() {
        let thread = map.lookup(&key, MapFlags::ANY).ok().flatten();
        if thread.and_then(|bytes| copy::<Thread>(&bytes)).is_some_and(|t| t.tgid == pid) {
            // The entry may be missing by now.
            let _ = map.delete(&key);
        }
    }
}

/// Returns a thread's name, as the kernel keeps it.
pub(crate) fn comm(thread: &Thread) -> String {
    text(&thread.comm)
}

/// Passes the layout of a JVM's structures to the kernel side.
pub(crate) fn set_java_layout(session: &Session, pid: u64, layout: &java_layout) -> Result<()> {
    session::insert_entry(
        &session.skel.maps.java_layouts,
        pid,
        bytes(layout),
        "pass the layout of the JVM's structures to the BPF programs",
    )
}

impl SampleKey {
    /// Returns a key with this process, its main thread, and nothing else.
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
            span: None,
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
        span: SpanContext::of_words(key.span.trace, key.span.span),
    })
}

#[cfg(test)]
mod tests {
    use libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC;

    use super::*;

    /// Linux 5.15 to 6.0 reject a perf_event program that uses a map that is not preallocated.
    #[test]
    fn maps_are_preallocated() {
        let mut storage = std::mem::MaybeUninit::uninit();
        let open = JavaprofSkelBuilder::default().open(&mut storage).expect("our own object");
        for map in open.open_object().maps() {
            assert_eq!(map.map_flags() & BPF_F_NO_PREALLOC, 0, "{:?}", map.name());
        }
    }
}
