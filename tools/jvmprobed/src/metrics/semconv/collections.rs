//! Names and actions of collections, as `GarbageCollectorMXBean` and its notifications report them.
//!
//! Sources: the `GCMemoryManager`s in hotspot/share/gc/*/ (serialHeap, parallelScavengeHeap, g1MonitoringSupport,
//! zServiceability, shenandoahHeap), JDK 8 to 28.

/// A collection, or a pause or a cycle of a concurrent collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collection {
    /// Name of the collector, as javagc(8) prints it.
    pub collector: Box<str>,
    /// Whether it is a concurrent cycle.
    pub is_cycle: bool,
    /// Whether it is a full collection.
    pub is_full: bool,
    /// Number of collections: more than one if only a sum is known, or if a stop had several.
    pub count: u64,
    /// Their total duration, in nanoseconds.
    pub duration_ns: u64,
}

impl Collection {
    /// Splits the collections of a stop into young ones and the full one. Only their total duration is known: the full
    /// collection gets all of it, and young ones get 0. Without a full collection, the result is one element with the mean
    /// duration.
    pub fn each(&self) -> Vec<Self> {
        if !self.is_full || self.count < 2 {
            let duration_ns = self.duration_ns / self.count.max(1);
            return vec![Self { duration_ns, ..self.clone() }];
        }
        let young = Self { is_full: false, count: self.count - 1, duration_ns: 0, ..self.clone() };
        vec![young, Self { count: 1, ..self.clone() }]
    }
}

/// Name and action of a collection.
pub type NameAndAction = (&'static str, &'static str);

const MINOR: &str = "end of minor GC";
const MAJOR: &str = "end of major GC";
const PAUSE: &str = "end of GC pause";
const CYCLE: &str = "end of GC cycle";
const YOUNG_CYCLE: &str = "end of Young GC cycle";
const GLOBAL_CYCLE: &str = "end of Global GC cycle";
const CONCURRENT_PAUSE: &str = "end of concurrent GC pause";

/// First JDK that reports pauses and cycles of ZGC separately.
const FIRST_WITH_ZGC_PAUSES: u32 = 17;
/// Causes for which generational ZGC begins a major collection with a collection of the young generation alone
/// (`should_preclean_young`, zDriver.cpp), and for which generational Shenandoah collects both generations.
const FULL_CAUSES: [&str; 3] =
    ["System.gc()", "Diagnostic Command", "JvmtiEnv ForceGarbageCollection"];
/// First JDK that reports the pauses of G1's concurrent marking.
const FIRST_WITH_G1_CONCURRENT: u32 = 20;
/// First JDK that reports the generation in the action of a cycle of generational Shenandoah.
const FIRST_WITH_SHENANDOAH_GENERATIONS: u32 = 27;
/// First JDK that reports the phase as the action of a pause of Shenandoah.
const FIRST_WITH_SHENANDOAH_PHASES: u32 = 17;

/// Names the collections of one JVM. Generational ZGC attributes a pause to the minor or major collection that runs, so the
/// namer remembers whether the last start of marking began a major one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Namer {
    is_major: bool,
}

impl Namer {
    /// Returns name and action of a collection, by its operation and cause, in this JDK; `None` if the JVM does not report it.
    pub fn name(
        &mut self,
        collection: &Collection,
        (op, cause): (&str, &str),
        major: Option<u32>,
    ) -> Option<NameAndAction> {
        let is_cycle = collection.is_cycle;
        Some(match (&*collection.collector, collection.is_full) {
            ("Serial", false) => ("Copy", MINOR),
            ("Serial", true) => ("MarkSweepCompact", MAJOR),
            ("Parallel", false) => ("PS Scavenge", MINOR),
            ("Parallel", true) => ("PS MarkSweep", MAJOR),
            ("CMS", _) if op.starts_with("CMS_") => return None,
            ("CMS", is_full) if is_full || is_cycle => ("ConcurrentMarkSweep", MAJOR),
            ("CMS", _) => ("ParNew", MINOR),
            ("G1", _) if is_cycle => return None,
            ("G1", false) if is_g1_concurrent(op) => {
                major.filter(|&major| major >= FIRST_WITH_G1_CONCURRENT)?;
                ("G1 Concurrent GC", CONCURRENT_PAUSE)
            }
            ("G1", false) => ("G1 Young Generation", MINOR),
            ("G1", true) => ("G1 Old Generation", MAJOR),
            ("ZGC", _) if major.is_some_and(|major| major < FIRST_WITH_ZGC_PAUSES) => {
                is_cycle.then_some(())?;
                ("ZGC", MAJOR)
            }
            ("ZGC", _) if is_cycle => ("ZGC Cycles", CYCLE),
            ("ZGC", _) => ("ZGC Pauses", PAUSE),
            ("GenZGC", _) if is_cycle && op.contains("Minor") => ("ZGC Minor Cycles", CYCLE),
            ("GenZGC", _) if is_cycle => ("ZGC Major Cycles", CYCLE),
            ("GenZGC", _) => match self.is_of_major(op, cause) {
                true => ("ZGC Major Pauses", PAUSE),
                false => ("ZGC Minor Pauses", PAUSE),
            },
            ("GenShen", _)
                if is_cycle
                    && major.is_some_and(|major| major >= FIRST_WITH_SHENANDOAH_GENERATIONS) =>
            {
                // Cycles of the old generation have the same causes as those of the young one.
                let is_global = FULL_CAUSES.contains(&cause);
                ("Shenandoah Cycles", if is_global { GLOBAL_CYCLE } else { YOUNG_CYCLE })
            }
            ("Shenandoah" | "GenShen", _) if is_cycle => ("Shenandoah Cycles", CYCLE),
            ("Shenandoah" | "GenShen", _) => {
                let has_phases = major.is_some_and(|major| major >= FIRST_WITH_SHENANDOAH_PHASES);
                ("Shenandoah Pauses", if has_phases { shenandoah_phase(op) } else { PAUSE })
            }
            _ => return None,
        })
    }

    fn is_of_major(&mut self, op: &str, cause: &str) -> bool {
        match op {
            "ZMarkStartYoung" => self.is_major = FULL_CAUSES.contains(&cause),
            "ZMarkStartYoungAndOld" => self.is_major = true,
            _ if op.ends_with("Old") => return true,
            _ => {}
        }
        self.is_major
    }
}

/// Returns the phase of Shenandoah that an operation runs.
fn shenandoah_phase(op: &str) -> &'static str {
    match op.strip_prefix("Shenandoah").unwrap_or(op) {
        "InitMark" => "Init Mark",
        op if op.starts_with("FinalMark") => "Final Mark",
        "InitUpdateRefs" => "Init Update Refs",
        "FinalUpdateRefs" => "Final Update Refs",
        "FinalRoots" => "Final Roots",
        "DegeneratedGC" => "Degenerated GC",
        "FullGC" => "Full GC",
        _ => PAUSE,
    }
}

fn is_g1_concurrent(op: &str) -> bool {
    op.contains("Remark") || op.contains("Cleanup") || op == "CGC_Operation"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_collection_in_the_stop_of_a_full_one_is_counted() {
        let both = Collection {
            collector: "Parallel".into(),
            is_cycle: false,
            is_full: true,
            count: 2,
            duration_ns: 700,
        };
        let each: Vec<_> =
            both.each().iter().map(|c| (c.is_full, c.count, c.duration_ns)).collect();
        assert_eq!(each, [(false, 1, 0), (true, 1, 700)]);
        let limited = Collection { is_full: false, count: 10, ..both };
        let each: Vec<_> =
            limited.each().iter().map(|c| (c.is_full, c.count, c.duration_ns)).collect();
        assert_eq!(each, [(false, 10, 70)]);
    }

    #[test]
    fn pauses_of_generational_zgc_belong_to_the_collection_that_began_last() {
        let pause = Collection {
            collector: "GenZGC".into(),
            is_cycle: false,
            is_full: false,
            count: 1,
            duration_ns: 5,
        };
        let mut namer = Namer::default();
        let names: Vec<_> = [
            "ZMarkStartYoungAndOld",
            "ZMarkEndYoung",
            "ZRelocateStartYoung",
            "ZMarkStartYoung",
            "ZMarkEndYoung",
            "ZMarkEndOld",
            "ZRelocateStartOld",
        ]
        .into_iter()
        .map(|op| namer.name(&pause, (op, "Allocation Rate"), Some(21)).unwrap().0)
        .collect();
        let (minor, major) = ("ZGC Minor Pauses", "ZGC Major Pauses");
        assert_eq!(names, [major, major, major, minor, minor, major, major]);
        let first = namer.name(&pause, ("ZMarkStartYoung", "System.gc()"), Some(21));
        assert_eq!(first.unwrap().0, major);
    }

    #[test]
    fn cycles_of_generational_shenandoah_have_a_generation_since_jdk_27() {
        let cycle = Collection {
            collector: "GenShen".into(),
            is_cycle: true,
            is_full: false,
            count: 1,
            duration_ns: 5,
        };
        let action =
            |cause, major| Namer::default().name(&cycle, ("", cause), Some(major)).unwrap().1;
        assert_eq!(action("Concurrent GC", 26), "end of GC cycle");
        assert_eq!(action("Concurrent GC", 27), "end of Young GC cycle");
        assert_eq!(action("System.gc()", 28), "end of Global GC cycle");
    }

    #[test]
    fn pauses_of_g1_marking_are_reported_since_jdk_20() {
        let pause = Collection {
            collector: "G1".into(),
            is_cycle: false,
            is_full: false,
            count: 1,
            duration_ns: 5,
        };
        let name =
            |op, major| Namer::default().name(&pause, (op, ""), Some(major)).map(|(name, _)| name);
        assert_eq!(name("G1PauseRemark", 17), None);
        assert_eq!(name("G1PauseRemark", 21), Some("G1 Concurrent GC"));
        assert_eq!(name("G1CollectForAllocation", 17), Some("G1 Young Generation"));
    }
}
