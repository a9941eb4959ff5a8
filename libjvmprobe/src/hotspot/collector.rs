//! Which garbage collector a JVM runs.

use super::{flags, vmstructs::VmStructs};
use crate::{Result, jvm::memory::Memory};

/// A garbage collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collector {
    /// `-XX:+UseSerialGC`.
    Serial,
    /// `-XX:+UseParallelGC`.
    Parallel,
    /// `-XX:+UseConcMarkSweepGC`, up to JDK 13.
    Cms,
    /// `-XX:+UseG1GC`.
    G1,
    /// `-XX:+UseZGC`, one generation.
    Z,
    /// `-XX:+UseZGC` with generations: chosen on JDK 21, the only one from 24 on.
    GenerationalZ,
    /// `-XX:+UseShenandoahGC`.
    Shenandoah,
    /// `-XX:+UseEpsilonGC`, which never collects.
    Epsilon,
    /// Not known, or not chosen yet: the JVM is starting up.
    Unknown,
}

impl Collector {
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
            Self::Epsilon => "Epsilon",
            Self::Unknown => "?",
        }
    }

    /// Whether it frees memory while the application runs, so that the heap
    /// before and after a pause says nothing about what was freed.
    pub fn is_concurrent(self) -> bool {
        matches!(self, Self::Z | Self::GenerationalZ | Self::Shenandoah | Self::Cms)
    }

    /// Reads the choice from the JVM's flags.
    ///
    /// # Errors
    /// Those of [`flags::switched_on`].
    pub fn read(memory: &Memory, structs: &VmStructs, major: u32) -> Result<Self> {
        const FLAGS: [&str; 9] = [
            "UseSerialGC",
            "UseParallelGC",
            "UseParallelOldGC",
            "UseConcMarkSweepGC",
            "UseG1GC",
            "UseZGC",
            "ZGenerational",
            "UseShenandoahGC",
            "UseEpsilonGC",
        ];
        let on = flags::switched_on(memory, structs, &FLAGS)?;
        // ZGenerational is gone (and true) from JDK 24 on.
        let generational = on.contains("ZGenerational") || major >= 24;
        let chosen = [
            ("UseG1GC", Self::G1),
            ("UseZGC", if generational { Self::GenerationalZ } else { Self::Z }),
            ("UseShenandoahGC", Self::Shenandoah),
            ("UseConcMarkSweepGC", Self::Cms),
            ("UseParallelGC", Self::Parallel),
            ("UseParallelOldGC", Self::Parallel),
            ("UseSerialGC", Self::Serial),
            ("UseEpsilonGC", Self::Epsilon),
        ];
        let found = chosen.into_iter().find(|(flag, _)| on.contains(flag));
        Ok(found.map_or(Self::Unknown, |(_, collector)| collector))
    }
}
