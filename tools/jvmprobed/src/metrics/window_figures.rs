//! Computes the figures for metrics from a window. Stops come from its records of pauses. CPU time and
//! allocated bytes come from its profiles.

use libjvmprobe::{
    render::summary::{Work, work},
    stack::profile::{Measure, Profile},
    trace::pauses::record::{self, Limited, Record, Sum},
};

use crate::{
    metrics::{
        figures::{Figures, Processor, Stop},
        semconv::collections::Collection,
    },
    window::JvmData,
};

/// Operation label of stops of which only sums are known.
const LIMITED: &str = "limited";

/// Collectors that free memory while the application runs, by the names that javagc(8) prints. Except for
/// CMS (see [`CMS_PHASE`]), each of their collections is a cycle, and their stops are phases of cycles.
/// Shenandoah reports its degenerated and full collections as cycles, too (`ShenandoahGCSession`,
/// gc/shenandoah/shenandoahUtils.cpp).
const CYCLIC: [&str; 5] = ["ZGC", "GenZGC", "Shenandoah", "GenShen", "CMS"];
/// Prefix of the operations of CMS that are phases of a cycle. All other stops of CMS are complete
/// collections.
const CMS_PHASE: &str = "CMS_";

impl Figures {
    /// Returns the figures of a JVM's part of a window, without gauges: see [`Figures::gauges`].
    pub fn of(jvm_data: &JvmData) -> Self {
        let mut figures = Self {
            stops: jvm_data.pauses.iter().flat_map(Stop::of_record).collect(),
            ..Self::default()
        };
        if jvm_data.pauses.iter().any(is_of_cycles) {
            let limited = figures.stops.iter_mut().filter(|stop| &*stop.op == LIMITED);
            limited.for_each(|stop| stop.collections = 0);
        }
        for profile in &jvm_data.profiles {
            match profile.measure {
                Measure::Time => figures.processor.add(&Processor::of(profile)),
                Measure::Allocation => {
                    let bytes = profile.samples.iter().map(|sample| sample.count);
                    let bytes = bytes.fold(0, u64::saturating_add);
                    figures.allocated_bytes = figures.allocated_bytes.saturating_add(bytes);
                }
                Measure::Events(_) | Measure::Elapsed(_) => {}
            }
        }
        figures
    }
}

/// Returns whether a record is from a JVM whose stops are all phases of cycles: one with ZGC or Shenandoah.
fn is_of_cycles(record: &Record) -> bool {
    let collector = match record {
        Record::Pause(stop) => &stop.collector,
        Record::Cycle(cycle) => &cycle.collector,
        _ => return false,
    };
    CYCLIC.contains(&&**collector) && collector != "CMS"
}

impl Stop {
    /// Converts a record to figures: a stop, the cycle of a collector that frees memory while the application
    /// runs, or the two sums of a [`Record::Limited`]. Other records give none.
    pub fn of_record(record: &Record) -> Vec<Self> {
        match record {
            Record::Pause(stop) | Record::Safepoint(stop) => vec![Self::of_stop(stop, record)],
            Record::Cycle(cycle) if CYCLIC.contains(&&*cycle.collector) => vec![Self {
                op: cycle.op.as_str().into(),
                cause: cycle.cause.as_deref().map(Into::into),
                times: 0,
                collections: 1,
                collection: Some(Collection {
                    collector: (&*cycle.collector).into(),
                    is_cycle: true,
                    is_full: false,
                    count: 1,
                    duration_ns: cycle.duration_ns,
                }),
                heap_before: cycle.heap_before,
                heap_after: cycle.heap_after,
                ..Self::default()
            }],
            Record::Limited(limited) => Self::of_sums(limited),
            Record::Cycle(_) | Record::Lost(_) | Record::Summary(_) => Vec::new(),
        }
    }

    /// Returns the stops of which only sums are known, with their average length.
    fn of_sums(limited: &Limited) -> Vec<Self> {
        let stop = |sum: &Sum, collections| Self {
            op: LIMITED.into(),
            times: sum.count,
            stopped_ns: sum.stopped_ns / sum.count.max(1),
            collections,
            ..Self::default()
        };
        let both = [stop(&limited.pauses, limited.pauses.count), stop(&limited.safepoints, 0)];
        both.into_iter().filter(|stop| stop.times > 0).collect()
    }

    fn of_stop(stop: &record::Stop, record: &Record) -> Self {
        let op = stop.op.as_deref().unwrap_or_default();
        // A stop without operation comes from the JVM's own counters, which report no cycles. So its
        // collections are counted.
        let is_phase = matches!(record, Record::Pause(_))
            && CYCLIC.contains(&&*stop.collector)
            && !op.is_empty()
            && (stop.collector != "CMS" || op.starts_with(CMS_PHASE));
        let collection = matches!(record, Record::Pause(_)).then(|| Collection {
            collector: (&*stop.collector).into(),
            is_cycle: false,
            is_full: stop.full,
            count: stop.collections.max(1),
            duration_ns: stop.pause_ns.unwrap_or(stop.stopped_ns),
        });
        let of_stop = Self {
            collection,
            op: op.into(),
            cause: stop.cause.as_deref().map(Into::into),
            stopped_ns: stop.stopped_ns,
            ttsp_ns: stop.ttsp_ns,
            cpu_wait_ns: stop.cpu_wait_ns,
            ..Self::default()
        };
        if is_phase {
            // A phase of a cycle frees no memory.
            return of_stop;
        }
        let (heap_before, heap_after) = (stop.heap_before, stop.heap_after);
        Self { collections: stop.collections, heap_before, heap_after, ..of_stop }
    }
}

impl Processor {
    /// Returns the CPU time in a profile of CPU time. A [`Sample`](libjvmprobe::stack::profile::Sample)
    /// represents `count` sampling periods. The kinds of code are those that `show` prints, except that code
    /// of the JVM counts as native code.
    pub fn of(profile: &Profile) -> Self {
        let period = 1_000_000_000 / profile.hertz.max(1);
        let mut all = Self::default();
        for sample in &profile.samples {
            let to = match work(profile, sample) {
                Work::Java => &mut all.java_ns,
                Work::Gc => &mut all.gc_ns,
                Work::Jit => &mut all.jit_ns,
                Work::Jvm | Work::Native => &mut all.native_ns,
                Work::Kernel => &mut all.kernel_ns,
                // These samples are of threads that did not run.
                Work::Blocked | Work::Runnable | Work::Idle | Work::Short | Work::Asleep => {
                    continue;
                }
            };
            *to = to.saturating_add(sample.count.saturating_mul(period));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use libjvmprobe::stack::{Frame, Kind, profile::Sample};

    use super::*;
    use crate::window::Identity;

    fn records<const N: usize>(json: [&str; N]) -> Vec<Record> {
        json.map(|json| serde_json::from_str(json).unwrap()).into()
    }

    #[test]
    fn pause_and_safepoint_records_become_stops() {
        let pauses = [
            r#"{"type":"pause","pid":1,"op":"G1","cause":"c","collections":2,"stopped_ns":7,"ttsp_ns":1,"cpu_wait_ns":3,"heap_before":5,"heap_after":null}"#,
            r#"{"type":"safepoint","op":"ThreadDump","cause":null,"pause_ns":null,"stopped_ns":3,"ttsp_ns":1,"collections":0}"#,
            r#"{"type":"cycle","collector":"G1","op":"Concurrent Cycle","duration_ns":9}"#,
            r#"{"type":"lost","time":"","pid":1,"events":4}"#,
        ];
        let pauses = records(pauses);
        let identity = Arc::new(Identity::default());
        let stops = Figures::of(&JvmData { identity, pauses, ..JvmData::default() }).stops;
        let [pause, safepoint] = &stops[..] else { panic!("{stops:?}") };
        assert_eq!((&*pause.op, pause.cause.as_deref(), pause.collections), ("G1", Some("c"), 2));
        assert_eq!((pause.stopped_ns, pause.heap_before, pause.heap_after), (7, Some(5), None));
        assert_eq!((pause.cpu_wait_ns, safepoint.cpu_wait_ns), (Some(3), None));
        assert_eq!((&*safepoint.op, safepoint.collections), ("ThreadDump", 0));
    }

    #[test]
    fn concurrent_collectors_count_cycles_as_collections() {
        let pauses = [
            r#"{"type":"pause","collector":"ZGC","op":"ZMarkStart","collections":1,"stopped_ns":7,"heap_before":5,"heap_after":5}"#,
            r#"{"type":"pause","collector":"ZGC","op":"ZMarkEnd","collections":1,"stopped_ns":7,"heap_before":5,"heap_after":5}"#,
            r#"{"type":"cycle","collector":"ZGC","op":"ZGC Cycles","cause":"Warmup","heap_before":9,"heap_after":2}"#,
            r#"{"type":"pause","collector":"Shenandoah","op":"ShenandoahDegeneratedGC","collections":1,"stopped_ns":3,"heap_before":8,"heap_after":4}"#,
            r#"{"type":"pause","collector":"CMS","op":"GenCollectForAllocation","collections":1,"stopped_ns":3,"heap_before":8,"heap_after":4}"#,
            r#"{"type":"pause","collector":"CMS","op":"CMS_Final_Remark","collections":1,"stopped_ns":3,"heap_before":8,"heap_after":8}"#,
            r#"{"type":"pause","collector":"CMS","op":null,"collections":2,"stopped_ns":3,"heap_before":null,"heap_after":null}"#,
        ];
        let stops: Vec<_> = records(pauses).iter().flat_map(Stop::of_record).collect();
        let known = |stop: &Stop| (stop.times, stop.collections, stop.heap_before, stop.heap_after);
        assert_eq!(
            stops.iter().map(known).collect::<Vec<_>>(),
            [
                (1, 0, None, None),
                (1, 0, None, None),
                (0, 1, Some(9), Some(2)),
                (1, 0, None, None),
                (1, 1, Some(8), Some(4)),
                (1, 0, None, None),
                (1, 2, None, None)
            ]
        );
        assert_eq!(stops[2].cause.as_deref(), Some("Warmup"));
    }

    #[test]
    fn limited_shenandoah_stops_count_no_collections() {
        let limited = r#"{"type":"limited","pid":7,"pauses":{"count":9,"stopped_ns":9,"max_ns":5},"safepoints":{"count":0,"stopped_ns":0,"max_ns":0}}"#;
        let pause =
            |collector: &str| format!(r#"{{"type":"pause","collector":"{collector}","op":"x"}}"#);
        for (collector, collections) in [("Shenandoah", 0), ("CMS", 9), ("G1", 9)] {
            let pauses = records([limited, &pause(collector)]);
            let stops = Figures::of(&JvmData { pauses, ..JvmData::default() }).stops;
            assert_eq!((stops[0].times, stops[0].collections), (9, collections), "{collector}");
        }
    }

    #[test]
    fn cpu_time_is_split_by_frame_kind_and_thread() {
        let mut profile = Profile::of(Measure::Time);
        profile.hertz = 20;
        for (kind, thread, count) in [
            (Kind::Inlined, "main", 1),
            (Kind::Jvm, "GC Thread#3", 2),
            (Kind::Jvm, "C2 CompilerThre", 4),
            (Kind::Native, "main", 8),
            (Kind::Kernel, "main", 16),
            (Kind::Kernel, "G1 Conc#0", 32),
            (Kind::Jvm, "VM Thread", 64),
        ] {
            let stack = vec![profile.intern(Frame::new(kind, "VM_GenCollectFull::doit()"))];
            profile.samples.push(Sample { count, ..Sample::of(1, thread.into(), 1, stack) });
        }
        let counts = Processor::of(&profile).kinds().map(|(_, ns)| ns / 50_000_000);
        assert_eq!(counts, [1, 2 + 32 + 64, 4, 8, 16]);
    }
}
