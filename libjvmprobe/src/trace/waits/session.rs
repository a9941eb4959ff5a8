//! The BPF object: loads it, and exchanges its maps' contents.

use libbpf_rs::{
    Link, MapCore, MapFlags,
    skel::{OpenSkel, Skel, SkelBuilder},
};

use crate::{
    Addr, Error, Pid, Result,
    bpf::{
        self, clock,
        kernel_types::KernelTypes,
        offcpu::{self, Hook, TaskFields, Thread},
        records::{bytes, copy},
        session,
        sparse_map::{self, SparseMap},
    },
    hotspot::java_threads::{Form, WaitFields},
    sys::Pace,
    trace::waits::{
        Options,
        event::{Event, class_place, traced_jvm},
        skel::{JavawaitSkel, JavawaitSkelBuilder},
    },
};

/// The loaded programs, their maps and their events.
pub(super) type Session = session::Session<JavawaitSkel<'static>, Event>;

/// Maps with entries of threads.
const BY_THREAD: [&str; 3] = ["java_threads", "wakers", "wakes"];

/// Map with the waits of each JVM that were left out.
const LEFT_OUT: SparseMap =
    SparseMap { name: "left_out_of", on_demand_capacity: 4096, preallocated_capacity: 1024 };

/// Loads the BPF object. Waits shorter than the minimum are only added up.
///
/// # Errors
/// [`crate::Error::Permission`] or [`crate::Error::Kernel`] if the kernel rejects it.
pub(super) fn load(hook: &Hook, options: Options) -> Result<Session> {
    let Options { min, pace, holders, .. } = options;
    let task = TaskFields::read()?;
    let mut open =
        JavawaitSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.uses_walk_data = true;
        data.has_user_registers = bpf::has_user_registers();
        data.task_pid = task.pid;
        data.task_tgid = task.tgid;
        data.task_state = task.state;
        data.task_start_time = task.start_time;
        data.task_comm = task.comm;
        data.min_wait = u64::try_from(min.as_nanos()).unwrap_or(u64::MAX);
        data.polls_regularly = pace == Pace::Calm;
        data.counts_costs = pace == Pace::Calm;
        data.walks_wakers = holders;
        data.has_limits = pace == Pace::Calm;
        (data.task_throttled, data.task_cfs_rq, data.cfs_rq_throttle_count) = throttling();
    }
    let wanted: Vec<_> = hook.programs().chain([offcpu::ITERATOR]).collect();
    for mut program in open.open_object_mut().progs_mut() {
        let is_wanted = program.name().to_str().is_some_and(|name| wanted.contains(&name));
        program.set_autoload(is_wanted);
    }
    for mut map in open.open_object_mut().maps_mut() {
        let is_by_thread = map.name().to_str().is_some_and(|name| BY_THREAD.contains(&name));
        if is_by_thread || map.name() == "threads" {
            map.set_max_entries(offcpu::MAX_THREADS).map_err(bpf::load_error)?;
        }
    }
    sparse_map::set_sizes(open.open_object_mut(), &[LEFT_OUT])?;
    open.maps.events.set_max_entries(pace.ring_bytes()).map_err(bpf::load_error)?;
    let skel = session::load(open)?;
    let mut session = Session::new(skel, Event::decode, true)?;
    // Stacks of threads that still wait at the end are walked in user space.
    if let Some(walker) = session.walker() {
        walker.keep_rows();
    }
    let session = session.with_maps_by_jvm(&["known_stacks", "limits_of", "left_out_of"]);
    if pace == Pace::Calm { session.with_costs() } else { Ok(session) }
}

/// Returns the offsets by which the kernel side sees that a task's control group has used up its CPU time: of
/// `task_struct.throttled` (Linux 6.18), or of `task_struct.se.cfs_rq` and `cfs_rq.throttle_count`. All are 0 if the kernel
/// has none of them.
fn throttling() -> (u32, u32, u32) {
    let Ok(types) = KernelTypes::load("task_struct") else { return (0, 0, 0) };
    let offset = |structure, field| types.offsets(structure, [field]).ok().map(|[offset]| offset);
    if let Some(throttled) = offset("task_struct", "throttled") {
        return (throttled, 0, 0);
    }
    let by_queue = || {
        let queue = offset("task_struct", "se")?.checked_add(offset("sched_entity", "cfs_rq")?)?;
        Some((0, queue, offset("cfs_rq", "throttle_count")?))
    };
    by_queue().unwrap_or_default()
}

/// Attaches to the scheduler's events. Nothing is recorded before [`begin`].
///
/// # Errors
/// [`crate::Error::Bpf`].
pub(super) fn attach(session: &mut Session, hook: &Hook) -> Result<Vec<Link>> {
    hook.attach(session.skel.object_mut())
}

/// Starts the recording; `began` is the current time on the kernel's monotonic clock in nanoseconds.
pub(super) fn begin(session: &mut Session, began: u64) {
    if let Some(data) = session.skel.maps.bss_data.as_deref_mut() {
        data.trace_began_ns = began;
    }
}

/// Starts to record the waits of a JVM. Without `fields`, the kernel side does not read what the JVM stores about them.
///
/// # Errors
/// [`crate::Error::Bpf`].
pub(super) fn add_jvm(
    session: &Session,
    key: u64,
    pid: Pid,
    fields: Option<&WaitFields>,
) -> Result<()> {
    let since = clock::monotonic_ns();
    let jvm = traced_jvm { key, since, ..fields.and_then(layout_of).unwrap_or_default() };
    let added = session.skel.maps.targets.update(&pid.0.to_ne_bytes(), bytes(&jvm), MapFlags::ANY);
    added.map_err(|source| Error::Bpf { what: format!("add process {pid}"), source })
}

/// Ends the recording of a JVM's waits.
pub(super) fn remove_jvm(session: &Session, pid: Pid) {
    // The entry may be missing.
    let _ = session.skel.maps.targets.delete(&pid.0.to_ne_bytes());
}

fn layout_of(fields: &WaitFields) -> Option<traced_jvm> {
    let offset = |offset: u64| u32::try_from(offset).ok();
    let (form, shift, base) = match fields.form {
        Form::Address => (0, 0, 0),
        Form::Narrow { base, shift } => (1, shift, base),
        Form::Colored => (2, 0, 0),
    };
    let class = fields.class.place();
    Some(traced_jvm {
        key: 0,
        since: 0,
        pending_monitor: offset(fields.pending_monitor)?,
        waiting_monitor: offset(fields.waiting_monitor)?,
        thread_object: offset(fields.thread_object)?,
        virtual_thread: offset(fields.virtual_thread)?,
        monitor_object: offset(fields.monitor_object)?,
        has_handles: fields.has_handles.into(),
        park_blocker: offset(fields.park_blocker)?,
        number: offset(fields.number)?,
        form,
        shift,
        base,
        class: class_place {
            bytes: class.bytes,
            at: class.at,
            bit: class.bit,
            shift: class.shift,
            base: class.base,
        },
    })
}

/// Tells the kernel side the JavaThread of a thread; 0 for a thread that is not a Java thread.
pub(super) fn set_java_thread(session: &Session, tid: u32, java_thread: Addr) {
    let map = &session.skel.maps.java_threads;
    // If the map is full, the thread's waits are reported without the objects that it waits for.
    let _ = map.update(&tid.to_ne_bytes(), &java_thread.0.to_ne_bytes(), MapFlags::ANY);
}

/// Returns the kernel side's entry of a thread.
pub(super) fn thread(session: &Session, tid: u32) -> Option<Thread> {
    copy(&session.skel.maps.threads.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok()??)
}
