//! Which garbage collector a JVM runs.
//!
//! The flags say so (`gcConfig.cpp`, `src/hotspot/share/gc/shared`).

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
    /// `-XX:+UseZGC` without generations, up to JDK 23
    Z,
    /// `-XX:+UseZGC` with generations, JDK 21 on
    GenerationalZ,
    /// `-XX:+UseShenandoahGC`
    Shenandoah,
    /// `-XX:ShenandoahGCMode=generational`, JDK 24 on
    GenerationalShenandoah,
    /// `-XX:+UseEpsilonGC`
    Epsilon,
    /// None of these, or not to be found out.
    #[default]
    Unknown,
}

impl Collector {
    /// The collector that the flags select. `major` is the JDK's feature release.
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
            // The flag went away when there was nothing left to choose (JDK 24).
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

    /// A short name without blanks.
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

    /// Whether it frees memory while the application runs, so that the heap
    /// before and after a pause says nothing about what was freed.
    pub(crate) fn is_concurrent(self) -> bool {
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
