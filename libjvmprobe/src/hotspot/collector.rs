//! Determines a JVM's garbage collector from its flags
//! (`gcConfig.cpp`, `src/hotspot/share/gc/shared`).

use crate::{hotspot::flags::Flags, process::memory::Memory};

/// A garbage collector of HotSpot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Collector {
    /// `-XX:+UseSerialGC`
    Serial,
    /// `-XX:+UseParallelGC`
    Parallel,
    /// `-XX:+UseConcMarkSweepGC`, up to JDK 13
    Cms,
    /// `-XX:+UseG1GC`
    G1,
    /// `-XX:+UseZGC`, non-generational, up to JDK 23
    Z,
    /// `-XX:+UseZGC`, generational, since JDK 21
    GenerationalZ,
    /// `-XX:+UseShenandoahGC`
    Shenandoah,
    /// `-XX:ShenandoahGCMode=generational`, since JDK 24
    GenerationalShenandoah,
    /// `-XX:+UseEpsilonGC`
    Epsilon,
    /// The JVM uses another collector, or its collector cannot be determined.
    #[default]
    Unknown,
}

impl Collector {
    /// Returns the collector that the flags select. `major` is the JDK's feature release.
    pub(crate) fn from_flags(memory: &Memory, flags: &Flags, major: u32) -> Self {
        let on = |name| flags.flag_bool(memory, name) == Some(true);
        if on("UseSerialGC") {
            Self::Serial
        } else if on("UseParallelGC") || on("UseParallelOldGC") {
            Self::Parallel
        } else if on("UseConcMarkSweepGC") {
            Self::Cms
        } else if on("UseG1GC") {
            Self::G1
        } else if on("UseZGC") {
            // JDK 24 removed the flag ZGenerational together with non-generational ZGC.
            let generations = flags.flag_bool(memory, "ZGenerational");
            if generations.unwrap_or(major >= 24) { Self::GenerationalZ } else { Self::Z }
        } else if on("UseShenandoahGC") {
            let mode = flags.flag_string(memory, "ShenandoahGCMode");
            if mode.as_deref() == Some("generational") {
                Self::GenerationalShenandoah
            } else {
                Self::Shenandoah
            }
        } else if on("UseEpsilonGC") {
            Self::Epsilon
        } else {
            Self::Unknown
        }
    }

    /// Returns a short name without spaces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serial => "Serial",
            Self::Parallel => "Parallel",
            Self::Cms => "CMS",
            Self::G1 => "G1",
            Self::Z => "ZGC",
            Self::GenerationalZ => "GenZGC",
            Self::Shenandoah => "Shenandoah",
            Self::GenerationalShenandoah => "GenShen",
            Self::Epsilon => "Epsilon",
            Self::Unknown => "?",
        }
    }

    /// Returns the collector with this [`name`](Self::name).
    pub fn named(name: &str) -> Self {
        let all = [
            Self::Serial,
            Self::Parallel,
            Self::Cms,
            Self::G1,
            Self::Z,
            Self::GenerationalZ,
            Self::Shenandoah,
            Self::GenerationalShenandoah,
            Self::Epsilon,
        ];
        all.into_iter().find(|collector| collector.name() == name).unwrap_or(Self::Unknown)
    }

    /// Whether this collector frees memory while the application runs, so that the heap sizes
    /// before and after a pause do not show how much it has freed.
    pub fn is_concurrent(self) -> bool {
        matches!(
            self,
            Self::Z
                | Self::GenerationalZ
                | Self::Shenandoah
                | Self::GenerationalShenandoah
                | Self::Cms
        )
    }
}
