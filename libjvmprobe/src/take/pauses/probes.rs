//! The instants that are watched, and the programs that catch them.
//!
//! The fewest probes that give a true answer, for each costs the pause a few
//! microseconds: five for a stop, or three or one where the JVM's own record helps.
//! Those of the concurrent cycles fire beside the running application.

use crate::{
    Error, Result,
    bpf::probes::{Instant, Plan, Site, exported, function, resolve},
    elf::ElfFile,
    hotspot::{Collector, HotSpot},
    process::LibJvm,
    take::pauses::Options,
};

/// What is needed of every stop. All but the last may be left out, see [`plan`].
const STOP: [Instant; 5] = [
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

/// Memory pools: around a pause, or with ZGC and Shenandoah around a cycle.
const POOLS: [Instant; 2] = [
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

/// G1's marking thread begins and ends a cycle in these; there is no probe.
const G1_CYCLE: [Extra; 2] = [
    ("_ZN16G1ConcurrentMark20concurrent_cycle_endE", "fn_cycle_end", NO_CYCLES),
    ("_ZN16G1ConcurrentMark22concurrent_cycle_startEv", "fn_cycle_begin", NO_CYCLES),
];
/// In JDK 8 a full collection may end it, too.
const G1_CYCLE_OF_JDK_8: [Extra; 2] = [
    ("_ZN15G1CollectedHeap29register_concurrent_cycle_endEv", "fn_only_cycle_end", NO_CYCLES),
    ("_ZN14ConcurrentMark15scanRootRegionsEv", "fn_only_cycle_begin", NO_CYCLES),
];
const NO_CYCLES: &str = "G1's concurrent cycles are not shown";

/// The thread of CMS runs one, and sleeps: in JDK 8, later this is no function any more.
const CMS_CYCLE_OF_JDK_8: [Extra; 2] = [
    ("_ZN25ConcurrentMarkSweepThread20sleepBeforeNextCycleEv", "fn_only_cycle_end", NO_CMS_CYCLES),
    ("_ZN12CMSCollector21collect_in_backgroundE", "fn_only_cycle_begin", NO_CMS_CYCLES),
];
const NO_CMS_CYCLES: &str = "the concurrent cycles of CMS are not shown";

/// How the function's mangled name begins, the program for its entry, and what
/// is lost without.
type Extra = (&'static str, &'static str, &'static str);

/// Serial and Parallel may collect twice in one operation; each one begins here.
const COLLECTION: Extra = (
    "_ZN8GCTracer15report_gc_startEN7GCCause5CauseE",
    "fn_collection_begin",
    "the cause Ergonomics is shown as the cause that led to it",
);

/// CMS of JDK 8 waits for its own thread first, which sweeps meanwhile, and then begins.
const SWEPT: Extra = (
    COLLECTION.0,
    "fn_heap_before",
    "the heap before a collection may be more than the collection found",
);

/// The same may allocate what had not fitted before the probe tells of the end; without
/// performance data, this is where the heap after the collection is seen.
const COLLECTION_END: Extra = (
    "_ZN8GCTracer13report_gc_endE",
    "fn_collection_end",
    "the heap after a collection is not shown",
);

/// System.gc() comes in here; exported, so that it is known in every build.
const REQUEST: &str = "JVM_GC";
/// The program for it.
pub(crate) const REQUEST_PROGRAM: &str = "fn_request";

/// What to attach to a libjvm.so. Of a JVM that has not set itself up, no collector is
/// known: cycles of every kind, then.
///
/// A JVM's own record of its last stop tells when that began and what for, if
/// the USDT probes say when to look: two traps fewer inside each pause. With ZGC none is left
/// there: its operations' names tell which stops are pauses.
///
/// # Errors
/// [`Error::NoProbes`] where the stops cannot be seen, or the pools asked for.
pub(crate) fn plan(
    libjvm: &LibJvm,
    hotspot: Option<&HotSpot>,
    options: &Options,
) -> Result<Vec<Plan>> {
    let pools = options.pools;
    let major = hotspot.map(|h| h.major);
    let collector = hotspot.map(|h| h.collector).filter(|c| *c != Collector::Unknown);
    let elf = libjvm.elf()?;
    let path = &libjvm.seen_as;
    let mut plans = Vec::new();
    // CMS tells of its phases so, each for itself.
    let has_cycles = |c: Collector| c.is_concurrent() && c != Collector::Cms;
    let cycles_by_pools = collector.is_none_or(has_cycles);
    if pools || cycles_by_pools {
        match resolve(path, &elf, &POOLS) {
            Ok(found) if pools && found.iter().any(is_function) => {
                return Err(Error::NoProbes {
                    path: path.clone(),
                    what: "USDT probe hotspot:mem__pool__gc__begin".into(),
                    hint: "leave out --pools".into(),
                });
            }
            Ok(found) => plans.extend(found),
            Err(error) if pools => return Err(error),
            // Cycles are an extra: the pauses are there without.
            Err(_) => {}
        }
    }
    let wanted = extras(major, hotspot, collector);
    plans.extend(functions(&elf, &wanted));
    let mut stop = resolve(path, &elf, &STOP)?;
    let gauge = hotspot.map(|h| &h.gauge);
    // Functions are entered by other threads, too: only a stop that was seen to begin is one.
    let is_recorded = gauge.is_some_and(|gauge| gauge.last_stop.is_some());
    if is_recorded && !stop.iter().any(is_function) {
        stop.retain(|plan| !["safepoint_begin", "vmops_begin"].contains(&plan.program));
    }
    if gauge.is_some_and(|gauge| gauge.op_tells) {
        let inside = ["gc_begin", "gc_end", "fn_gc_begin", "fn_gc_end"];
        stop.retain(|plan| !inside.contains(&plan.program));
    }
    // The last instant of a stop first: a stop that is seen to begin is seen to end.
    plans.extend(stop.into_iter().rev());
    if options.stacks {
        plans.push(request(libjvm, &elf)?);
    }
    Ok(plans)
}

fn request(libjvm: &LibJvm, elf: &ElfFile) -> Result<Plan> {
    let site = exported(elf, REQUEST)?.ok_or_else(|| Error::NoProbes {
        path: libjvm.seen_as.clone(),
        what: format!("exported function {REQUEST}"),
        hint: "leave out --stack".into(),
    })?;
    Ok(Plan { program: REQUEST_PROGRAM, site, optional: None })
}

fn is_function(plan: &Plan) -> bool {
    matches!(plan.site, Site::Function { .. })
}

/// What more is wanted of a JVM.
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
        wanted.push(SWEPT);
    }
    if hotspot.is_none_or(HotSpot::settles_unseen) {
        wanted.push(COLLECTION_END);
    }
    wanted
}

/// Functions that tell more, where the file names them.
fn functions(elf: &ElfFile, wanted: &[Extra]) -> Vec<Plan> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let Ok(symbols) = elf.symbols() else {
        return Vec::new();
    };
    wanted
        .iter()
        .filter_map(|(prefix, program, loss)| {
            let site = function(elf, &symbols, prefix)?;
            Some(Plan { program, site, optional: Some(loss) })
        })
        .collect()
}
