//! Probes that see stops, collections and cycles in a libjvm.so, and the BPF programs for them.
//!
//! Each probe lengthens a pause by a few microseconds, so only the necessary ones are attached. A stop needs
//! five probes. If the JVM's own record of its last stop can be read, three probes are sufficient; with ZGC,
//! one is. Probes for concurrent cycles fire while the application runs.

use crate::{
    Error, Result,
    bpf::probes::{self, Instant, Plan, Site, exported, resolve},
    elf::ElfFile,
    hotspot::{Collector, HotSpot},
    process::LibJvm,
    trace::pauses::Options,
};

/// Probes of a stop. All but the last may be omitted, see [`plan`].
const STOP_PROBES: [Instant; 5] = [
    Instant {
        usdt: ("hs_private", "safepoint__begin"),
        usdt_program: "safepoint_begin",
        functions: &[&["_ZN14RuntimeService22record_safepoint_beginE"]],
        function_program: "fn_safepoint_begin",
    },
    Instant {
        usdt: ("hotspot", "vmops__begin"),
        usdt_program: "vmops_begin",
        functions: &[&["_ZN8VMThread18evaluate_operationEP12VM_Operation"]],
        function_program: "fn_evaluate_operation",
    },
    Instant {
        usdt: ("hotspot", "gc__begin"),
        usdt_program: "gc_begin",
        functions: &[
            &["_ZN8GCIdMarkC2Ev", "_ZN8GCIdMarkC2Ej"],
            &["_ZN15VM_GC_Operation15notify_gc_beginEb"],
        ],
        function_program: "fn_gc_begin",
    },
    Instant {
        usdt: ("hotspot", "gc__end"),
        usdt_program: "gc_end",
        functions: &[&["_ZN8GCIdMarkD2Ev"], &["_ZN15VM_GC_Operation13notify_gc_endEv"]],
        function_program: "fn_gc_end",
    },
    Instant {
        usdt: ("hs_private", "safepoint__end"),
        usdt_program: "safepoint_end",
        functions: &[&["_ZN14RuntimeService20record_safepoint_endE"]],
        function_program: "fn_safepoint_end",
    },
];

/// Probes of memory pools. They fire before and after a pause; with ZGC and Shenandoah, they fire before and
/// after a cycle.
const POOL_PROBES: [Instant; 2] = [
    Instant {
        usdt: ("hotspot", "mem__pool__gc__end"),
        usdt_program: "pool_end",
        functions: &[&["_ZN23TraceMemoryManagerStatsD2Ev"]],
        function_program: "fn_cycle_end",
    },
    Instant {
        usdt: ("hotspot", "mem__pool__gc__begin"),
        usdt_program: "pool_begin",
        functions: &[
            &["_ZN23TraceMemoryManagerStatsC2E", "_ZN23TraceMemoryManagerStats10initializeE"],
            &["_ZN23TraceMemoryManagerStatsC2E"],
        ],
        function_program: "fn_cycle_begin",
    },
];

/// Functions in which G1's marking thread ends and begins a cycle; there is no USDT probe.
const G1_CYCLE: [Extra; 2] = [
    ("_ZN16G1ConcurrentMark20concurrent_cycle_endE", "fn_cycle_end", NO_CYCLES),
    ("_ZN16G1ConcurrentMark22concurrent_cycle_startEv", "fn_cycle_begin", NO_CYCLES),
];
/// Functions in which G1 of JDK 8 ends and begins a cycle. A full collection may end a cycle, too.
const G1_CYCLE_OF_JDK_8: [Extra; 2] = [
    ("_ZN15G1CollectedHeap29register_concurrent_cycle_endEv", "fn_single_cycle_end", NO_CYCLES),
    ("_ZN14ConcurrentMark15scanRootRegionsEv", "fn_single_cycle_begin", NO_CYCLES),
];
const NO_CYCLES: &str = "G1's concurrent cycles are not shown";

/// Functions that the CMS thread calls at the end of a cycle, before it sleeps, and at the begin of a cycle.
/// They exist as functions in JDK 8 only.
const CMS_CYCLE_OF_JDK_8: [Extra; 2] = [
    (
        "_ZN25ConcurrentMarkSweepThread20sleepBeforeNextCycleEv",
        "fn_single_cycle_end",
        NO_CMS_CYCLES,
    ),
    ("_ZN12CMSCollector21collect_in_backgroundE", "fn_single_cycle_begin", NO_CMS_CYCLES),
];
const NO_CMS_CYCLES: &str = "the concurrent cycles of CMS are not shown";

/// An optional function: the prefix of its mangled name, the program for its entry, and a message about the
/// consequence if it is missing.
type Extra = (&'static str, &'static str, &'static str);

/// Begin of a collection. Serial and Parallel may collect twice in one operation, and each collection begins
/// here.
const COLLECTION: Extra = (
    "_ZN8GCTracer15report_gc_startEN7GCCause5CauseE",
    "fn_collection_begin",
    "collections caused by Ergonomics are shown with the cause of their operation",
);

/// Begin of a collection of CMS in JDK 8. Before the VM thread calls this function, it waits for the CMS
/// thread, which may meanwhile sweep and free memory. The heap size before the collection is therefore read
/// here.
const CMS_COLLECTION: Extra =
    (COLLECTION.0, "fn_heap_before", "the heap size before a collection may be too large");

/// End of a collection. Between this function and gc__end, Serial, Parallel and CMS may allocate the object
/// whose failed allocation caused the collection. Without performance data, the heap after the collection can
/// only be read here.
const COLLECTION_END: Extra = (
    "_ZN8GCTracer13report_gc_endE",
    "fn_collection_end",
    "the heap size after a collection is not shown",
);

/// Function that System.gc() calls. It is exported, so every build has its symbol.
const REQUEST: &str = "JVM_GC";
/// Program for the entry of JVM_GC.
pub(crate) const REQUEST_PROGRAM: &str = "fn_request";

/// Returns the probes to attach to a libjvm.so. While a JVM is starting up, its collector is unknown, and the
/// probes for cycles of every collector are returned (those of CMS only if the JVM is known to be JDK 8).
///
/// A JVM's own record of its last stop contains the begin and the operation of that stop. If the record can
/// be read and all probes of a stop are USDT probes, the two probes at the begin of a stop are omitted. With
/// ZGC, the probes at the begin and end of a collection are omitted too, because the names of the operations
/// show which stops are pauses.
///
/// # Errors
/// [`Error::NoProbes`] if stops cannot be seen, or if `pools` or `stacks` is set and a probe for it is missing.
pub(crate) fn plan(
    libjvm: &LibJvm,
    hotspot: Option<&HotSpot>,
    options: &Options,
) -> Result<Vec<Plan>> {
    let pools = options.pools;
    let major = hotspot.map(|h| h.major);
    let collector = hotspot.map(|h| h.collector).filter(|c| *c != Collector::Unknown);
    let elf = libjvm.elf()?;
    let path = &libjvm.target_path;
    let mut plans = Vec::new();
    // The probes of memory pools report each phase of CMS, but not its cycles.
    let has_cycles = |c: Collector| c.is_concurrent() && c != Collector::Cms;
    let cycles_by_pools = collector.is_none_or(has_cycles);
    if pools || cycles_by_pools {
        match resolve(path, &elf, &POOL_PROBES) {
            Ok(found) if pools && found.iter().any(is_function) => {
                return Err(Error::NoProbes {
                    path: path.clone(),
                    what: "USDT probe hotspot:mem__pool__gc__begin".into(),
                    hint: "omit --pools".into(),
                });
            }
            Ok(found) => plans.extend(found),
            Err(error) if pools => return Err(error),
            // Cycles are optional: pauses are reported without them, too.
            Err(_) => {}
        }
    }
    let wanted = extras(major, hotspot, collector);
    plans.extend(functions(&elf, &wanted));
    let mut stop = resolve(path, &elf, &STOP_PROBES)?;
    let gauge = hotspot.map(|h| &h.gauge);
    // Threads other than the VM thread call the functions that replace USDT probes, too. A hit of such a
    // function belongs to a stop only if the begin of that stop was observed. The probes at the begin are
    // therefore omitted only if all sites are USDT probes.
    let is_recorded = gauge.is_some_and(|gauge| gauge.last_stop.is_some());
    if is_recorded && !stop.iter().any(is_function) {
        stop.retain(|plan| !["safepoint_begin", "vmops_begin"].contains(&plan.program));
    }
    if gauge.is_some_and(|gauge| gauge.op_shows_collection) {
        let inside = ["gc_begin", "gc_end", "fn_gc_begin", "fn_gc_end"];
        stop.retain(|plan| !inside.contains(&plan.program));
    }
    // The probes are attached in reverse order, so that, if the begin of a stop is observed, its end is
    // observed, too.
    plans.extend(stop.into_iter().rev());
    if options.stacks {
        plans.push(request(libjvm, &elf)?);
    }
    Ok(plans)
}

fn request(libjvm: &LibJvm, elf: &ElfFile) -> Result<Plan> {
    let site = exported(elf, REQUEST)?.ok_or_else(|| Error::NoProbes {
        path: libjvm.target_path.clone(),
        what: format!("exported function {REQUEST}"),
        hint: "omit --stacks".into(),
    })?;
    Ok(Plan { program: REQUEST_PROGRAM, site, optional: None })
}

fn is_function(plan: &Plan) -> bool {
    matches!(plan.site, Site::Function { .. })
}

/// Returns the optional functions for a JVM.
fn extras(
    major: Option<u32>,
    hotspot: Option<&HotSpot>,
    collector: Option<Collector>,
) -> Vec<Extra> {
    let is = |wanted: &[Collector]| collector.is_none_or(|c| wanted.contains(&c));
    let mut wanted = Vec::new();
    if is(&[Collector::G1]) {
        wanted.extend(G1_CYCLE);
        wanted.extend(G1_CYCLE_OF_JDK_8);
    }
    if is(&[Collector::Serial, Collector::Parallel]) {
        wanted.push(COLLECTION);
    }
    if is(&[Collector::Cms]) && major == Some(8) {
        wanted.extend(CMS_CYCLE_OF_JDK_8);
        wanted.push(CMS_COLLECTION);
    }
    if hotspot.is_none_or(HotSpot::needs_collection_end_probe) {
        wanted.push(COLLECTION_END);
    }
    wanted
}

/// Returns the plans for those optional functions that have a symbol in the file.
fn functions(elf: &ElfFile, wanted: &[Extra]) -> Vec<Plan> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let prefixes: Vec<_> = wanted.iter().map(|(prefix, ..)| *prefix).collect();
    let sites = probes::functions(elf, &prefixes).unwrap_or_default();
    let plan = |((_, program, loss), site): (&Extra, Option<Site>)| {
        Some(Plan { program, site: site?, optional: Some(loss) })
    };
    wanted.iter().zip(sites).filter_map(plan).collect()
}
