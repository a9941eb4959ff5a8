//! Named events of Java programs.
//!
//! Each event is located at an exported function of HotSpot, which every build has, at a function from the symbol
//! table, or at a USDT probe. Sources: hotspot/share/include/jvm.h, hotspot/share/runtime/deoptimization.hpp,
//! hotspot/share/compiler/compileBroker.cpp.

use std::borrow::Cow;

use crate::{
    Error, Result,
    bpf::probes::{Plan, Site, exported, function},
    elf::ElfFile,
    names::demangle::demangle,
    process::LibJvm,
};

/// A named event of Java programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JavaEvent {
    /// Throwables created with a stack trace.
    Exceptions,
    /// Classes defined from bytes.
    Classes,
    /// Thread starts.
    Threads,
    /// Deoptimizations: uncommon traps, at which the interpreter continues a method that C2 has compiled.
    Deopt,
    /// Compilations, with their time.
    Compiles,
    /// Requests for garbage collections.
    GcRequests,
    /// Allocations that stall, waiting for ZGC.
    Stalls,
}

/// The location that a program is attached to.
enum ProbePoint {
    /// An exported function.
    Exported(&'static str),
    /// A function, by the beginning of its mangled name.
    Function(&'static str),
    Usdt(&'static str, &'static str),
}

/// A program and the location that it is attached to.
struct ProbeSite {
    program: &'static str,
    point: ProbePoint,
    /// Whether the event cannot be recorded correctly without this location. An optional location is absent in some
    /// versions or with some collectors; if all locations of an event are optional, one of them must exist.
    is_needed: bool,
}

const fn needed(program: &'static str, point: ProbePoint) -> ProbeSite {
    ProbeSite { program, point, is_needed: true }
}

const fn optional(program: &'static str, point: ProbePoint) -> ProbeSite {
    ProbeSite { program, point, is_needed: false }
}

impl JavaEvent {
    /// All named events.
    pub const ALL: [Self; 7] = [
        Self::Exceptions,
        Self::Classes,
        Self::Threads,
        Self::Deopt,
        Self::Compiles,
        Self::GcRequests,
        Self::Stalls,
    ];

    /// Returns the event's name in the `--event` option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exceptions => "exceptions",
            Self::Classes => "classes",
            Self::Threads => "threads",
            Self::Deopt => "deopt",
            Self::Compiles => "compiles",
            Self::GcRequests => "gc-requests",
            Self::Stalls => "stalls",
        }
    }

    /// Returns whether the profile shows the event's duration instead of the number of events.
    pub(crate) fn has_duration(self) -> bool {
        self == Self::Compiles
    }

    /// Returns a message about occurrences of this event that cannot be observed.
    pub(crate) fn limitation(self) -> Option<&'static str> {
        match self {
            Self::Exceptions => Some(
                "exceptions without a stack trace are not recorded: those of classes that disable \
                 it, and those that compiled code throws repeatedly (unless the JVM runs with \
                 -XX:-OmitStackTraceInFastThrow)",
            ),
            _ => None,
        }
    }

    fn locations(self) -> &'static [ProbeSite] {
        use ProbePoint::{Exported, Function, Usdt};
        match self {
            Self::Exceptions => {
                const { &[needed("java_object", Exported("JVM_FillInStackTrace"))] }
            }
            Self::Threads => const { &[needed("java_object", Exported("JVM_StartThread"))] },
            Self::Classes => {
                const {
                    &[
                        needed("java_define", Exported("JVM_DefineClass")),
                        needed("java_define", Exported("JVM_DefineClassWithSource")),
                        // JDKs before 15 have no hidden classes.
                        optional("java_lookup_define", Exported("JVM_LookupDefineClass")),
                    ]
                }
            }
            // Code that C1 compiled deoptimizes through other functions. These have no probe: in trials on
            // x86-64, no Java program called them.
            Self::Deopt => {
                const { &[needed("java_deopt", Function("_ZN14Deoptimization13uncommon_trapE"))] }
            }
            Self::Compiles => {
                const {
                    &[
                        needed("java_compile_end", Usdt("hotspot", "method__compile__end")),
                        needed("java_compile_begin", Usdt("hotspot", "method__compile__begin")),
                        optional(
                            "java_compile_task",
                            Function("_ZN13CompileBroker25invoke_compiler_on_methodE"),
                        ),
                    ]
                }
            }
            Self::GcRequests => {
                const {
                    &[
                        needed("any_uprobe", Exported("JVM_GC")),
                        optional("any_uprobe", Function("_ZN8JvmtiEnv22ForceGarbageCollectionE")),
                        optional("any_uprobe", Function("_ZN12SystemGCDCmd7executeE")),
                    ]
                }
            }
            Self::Stalls => {
                const {
                    &[
                        // JDKs before 15 have no function for this.
                        optional("any_uprobe", Function("_ZN14ZPageAllocator16alloc_page_stallE")),
                        // JDK 21 to 23 have two ZGCs.
                        optional("any_uprobe", Function("_ZN14XPageAllocator16alloc_page_stallE")),
                    ]
                }
            }
        }
    }

    /// Returns the programs that the event may attach.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        self.locations().iter().map(|location| location.program)
    }

    /// Returns the programs and the sites in a libjvm.so to attach them to.
    ///
    /// # Errors
    /// [`Error::NoProbes`] if the event cannot be observed in this file.
    pub fn plan(self, libjvm: &LibJvm, elf: &ElfFile) -> Result<Vec<Plan>> {
        let (mut plans, mut missing) = (Vec::new(), None);
        for location in self.locations() {
            match location.point.site(elf)? {
                Some(site) => plans.push(Plan { program: location.program, site, optional: None }),
                None if location.is_needed => missing = Some(location),
                None => {}
            }
        }
        if plans.is_empty() {
            missing = self.locations().first();
        }
        let Some(missing) = missing else { return Ok(plans) };
        Err(Error::NoProbes {
            path: libjvm.target_path.clone(),
            what: format!(
                "{}, which is needed to record {}",
                missing.point.describe(),
                self.name()
            ),
            hint: "omit this event, or use a build with probes and a symbol table".into(),
        })
    }

    /// Returns whether the kernel side reads the class of an object for this event.
    pub(crate) fn reads_classes(self) -> bool {
        matches!(self, Self::Exceptions | Self::Threads)
    }
}

impl ProbePoint {
    /// Returns the kind of location and its name, for messages.
    fn describe(&self) -> String {
        match self {
            Self::Exported(name) | Self::Function(name) => format!("function {}", demangle(name)),
            Self::Usdt(provider, name) => format!("USDT probe {provider}:{name}"),
        }
    }

    fn site(&self, elf: &ElfFile) -> Result<Option<Site>> {
        Ok(match *self {
            Self::Exported(name) => exported(elf, name)?,
            Self::Function(prefix) => function(elf, &elf.symbols()?, prefix),
            Self::Usdt(provider, name) => {
                let is_there = elf.stapsdt()?.has(provider, name)?;
                let (provider, name) = (Cow::Borrowed(provider), Cow::Borrowed(name));
                is_there.then_some(Site::Usdt { provider, name })
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_locations_have_readable_descriptions() {
        let all: Vec<_> = JavaEvent::ALL.iter().flat_map(|event| event.locations()).collect();
        let names: Vec<_> = all.iter().map(|location| location.point.describe()).collect();
        assert!(names.iter().all(|name| !name.contains("_Z")), "{names:?}");
        assert!(names.contains(&"function Deoptimization::uncommon_trap".to_owned()), "{names:?}");
    }
}
