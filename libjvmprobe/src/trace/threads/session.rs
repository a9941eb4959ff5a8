//! The BPF object: loads it, and reads the threads that it reports.

use std::time::Duration;

use libbpf_rs::{Link, MapCore, MapFlags, skel::SkelBuilder};

use crate::{
    Error, Pid, Result,
    bpf::{self, kernel_types, perf, preflight, records, session},
    trace::threads::{
        event::{Event, waiting_thread},
        skel::{JavastackSkel, JavastackSkelBuilder},
    },
};

/// Maximum number of threads of all targets together.
const MAX_THREADS: u64 = 1 << 17;
/// Size of the ring buffer in bytes. A stack of a thousand frames takes 8 kB.
const RING_BYTES: u32 = 1 << 22;
/// Samples per second and processor of threads that run.
const RUNNING_HERTZ: u64 = 999;

/// The loaded programs, their maps and their events.
pub(super) type Session = session::Session<JavastackSkel<'static>, Event>;

/// The programs of the BPF object are loaded separately, because the kernel takes a tenth of a second to verify the one
/// that walks stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The iterator over the threads that do not run.
    Waiting,
    /// The program that walks the stacks of running threads.
    Running,
}

/// Loads a part of the BPF object.
///
/// # Errors
/// [`Error::Permission`] or [`Error::Kernel`] if the kernel rejects the object or lacks what it needs.
pub(super) fn load(part: Part, with_kernel_stacks: bool) -> Result<Session> {
    preflight::check_walker()?;
    if !bpf::has_task_iterator() {
        return Err(Error::Kernel {
            what: "iterate over all threads".into(),
            hint: "use Linux 5.15 or later, and run in the host's PID namespace".into(),
        });
    }
    let fields = ["pid", "tgid", "on_cpu", "nvcsw", "nivcsw"];
    let [pid, tgid, on_cpu, voluntary, involuntary] = kernel_types::offsets("task_struct", fields)?;
    let mut open =
        JavastackSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.uses_walk_data = true;
        data.want_kernel = with_kernel_stacks;
        data.has_user_registers = true;
        [data.task_pid, data.task_tgid] = [pid, tgid];
        data.task_on_cpu = on_cpu;
        [data.task_voluntary_switches, data.task_involuntary_switches] = [voluntary, involuntary];
    }
    open.progs.waiting.set_autoload(part == Part::Waiting);
    open.progs.running.set_autoload(part == Part::Running);
    open.maps.events.set_max_entries(RING_BYTES).map_err(bpf::load_error)?;
    Session::new(session::load(open)?, Event::decode, part == Part::Running)
}

/// Begins a dump: from now on, only the threads of this process are reported, and every stack is sent again.
///
/// # Errors
/// [`Error::Bpf`].
pub(super) fn begin_dump(session: &Session, pid: Pid) -> Result<()> {
    let maps = &session.skel.maps;
    // The targets are removed first, so that no program adds a stack after the events were discarded.
    records::clear(&maps.targets)?;
    session.events(Duration::ZERO)?.for_each(drop);
    records::clear(&maps.known_stacks)?;
    let added = maps.targets.update(&u64::from(pid.0).to_ne_bytes(), &[1], MapFlags::ANY);
    added.map_err(|source| Error::Bpf { what: format!("add process {pid}"), source })
}

/// Returns all threads, of all targets, that are not running.
///
/// # Errors
/// [`Error::Bpf`], [`Error::Io`].
pub(super) fn waiting_threads(session: &Session) -> Result<Vec<waiting_thread>> {
    records::tasks(&session.skel.progs.waiting, MAX_THREADS)
}

/// Samples threads that run, on each processor, until the result is dropped.
///
/// # Errors
/// The errors of [`perf::attach_clock`].
pub(super) fn sample_running(session: &Session) -> Result<Vec<Link>> {
    let (_, links) = perf::attach_clock(&session.skel.progs.running, RUNNING_HERTZ, 0)?;
    Ok(links)
}
