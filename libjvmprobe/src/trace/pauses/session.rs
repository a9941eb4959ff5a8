//! The BPF object, loaded as the options require.

use std::collections::HashSet;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::{
    Result,
    bpf::{
        self, preflight, session,
        sparse_map::{self, SparseMap},
        walker,
    },
    sys::Pace,
    trace::pauses::{
        cpu_wait::Fields,
        event::Event,
        probes::REQUEST_PROGRAM,
        skel::{JavagcSkel, JavagcSkelBuilder},
        tracer::Options,
    },
};

/// The loaded programs, their maps and their events.
pub(crate) type Session = session::Session<JavagcSkel<'static>, Event>;

/// Maps with one entry per JVM: 5 MB if preallocated.
const SPARSE_MAPS: [SparseMap; 5] = [
    SparseMap { name: "stops", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    SparseMap { name: "gauges", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    SparseMap { name: "counted", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    SparseMap { name: "budgets", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 12 },
    // An entry has 2 KB. If a JVM has no entry, its waits for a CPU are unknown.
    SparseMap { name: "gc_threads", on_demand_capacity: 1 << 12, preallocated_capacity: 1 << 9 },
];
/// Maximum number of distinct stacks of requests for collections. Few lines of a program make such requests.
const KNOWN_STACKS: u32 = 1 << 12;
/// Maximum number of events per second of a control group, as a multiple of the maximum of one JVM.
const TENANT_SHARE: u64 = 10;
/// Maps with entries that belong to a JVM.
const BY_JVM: [&str; 6] = ["gauges", "counted", "stops", "budgets", "gc_threads", "known_stacks"];

/// Loads the BPF object with the programs named in `programs`, or with all programs if that is `None`. The
/// stack walker and the program for requests are loaded only if `stacks` is set. `max_stops_per_second` is the maximum
/// number of events of each kind that a JVM sends per second. `cpu_waits` are the offsets of the kernel's counters of waits for a CPU; without them, these waits are unknown.
///
/// # Errors
/// [`Error::Permission`](crate::Error::Permission) or [`Error::Kernel`](crate::Error::Kernel) if the kernel
/// refuses.
pub(crate) fn load(
    programs: Option<&HashSet<&str>>,
    &Options { stacks, pools, pace, max_stops_per_second, .. }: &Options,
    cpu_waits: Option<&Fields>,
) -> Result<Session> {
    let max_events = max_stops_per_second.unwrap_or(0);
    let mut open =
        JavagcSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
    for mut program in open.open_object_mut().progs_mut() {
        let wanted = programs
            .is_none_or(|names| program.name().to_str().is_some_and(|name| names.contains(name)));
        program.set_autoload(wanted && (stacks || program.name() != REQUEST_PROGRAM));
    }
    if stacks {
        preflight::check_walker()?;
        open.maps.known_stacks.set_max_entries(KNOWN_STACKS).map_err(bpf::load_error)?;
    } else {
        walker::disable_maps(open.open_object_mut())?;
    }
    sparse_map::set_sizes(open.open_object_mut(), &SPARSE_MAPS)?;
    if let Some(data) = open.maps.rodata_data.as_deref_mut() {
        data.uses_walk_data = stacks;
        data.reports_pools = pools;
        data.max_events_per_second = max_events;
        data.max_tenant_events_per_second = max_events.saturating_mul(TENANT_SHARE);
        data.polls_regularly = pace == Pace::Calm;
        data.counts_costs = pace == Pace::Calm;
        if let Some(fields) = cpu_waits {
            [
                data.task_pid,
                data.task_comm,
                data.task_start_time,
                data.task_signal,
                data.task_thread_node,
            ] = fields.task;
            [data.task_run_delay, data.task_last_arrival, data.task_last_queued] = fields.waits;
            [data.signal_threads, data.signal_thread_head] = fields.signal;
            [data.task_group, data.group_parent, data.group_throttled] =
                fields.quota.unwrap_or_default();
        }
    }
    // If every JVM is traced, many JVMs share the ring buffer. Its size then depends on the pace, and it
    // holds more than a thousand stops at either pace.
    if programs.is_none() {
        open.maps.events.set_max_entries(pace.ring_bytes()).map_err(bpf::load_error)?;
    }
    let skel = session::load(open)?;
    let session = Session::new(skel, Event::decode, stacks)?.with_maps_by_jvm(&BY_JVM);
    if pace == Pace::Calm { session.with_costs() } else { Ok(session) }
}
