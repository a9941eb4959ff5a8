//! Events of Java programs that have names.
//!
//! Each is an entry of HotSpot's that is exported, so that every build has it, or a function that
//! its symbol table names, or a probe. Sources: hotspot/share/include/jvm.h,
//! hotspot/share/runtime/deoptimization.hpp, hotspot/share/compiler/compileBroker.cpp.

use std::borrow::Cow;

use crate::{
    Error, Result,
    bpf::probes::{Plan, Site, exported, function},
    elf::ElfFile,
    names::demangle::demangle,
    process::LibJvm,
};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JavaEvent {
    /// Throwables that are made with a stack trace.
    Exceptions,
    /// Classes that are defined from bytes.
    Classes,
    /// Threads that are started.
    Threads,
    /// Compiled code that is given up where it is run.
    Deopt,
    /// Compilations, with their time.
    Compiles,
    /// Requests for collections.
    GcRequests,
    /// Allocations that wait for ZGC.
    Stalls,
}

/// What a program is attached to.
enum Place {
    /// A function that is exported.
    Exported(&'static str),
    /// A function by how its mangled name begins.
    Function(&'static str),
    Usdt(&'static str, &'static str),
}

/// A program and where it is attached.
struct Spot {
    program: &'static str,
    place: Place,
    /// Whether nothing is seen right without it. Of those that may be missing, as not every version
    /// and collector has them, one has to be there if that is all there is.
    is_needed: bool,
}

const fn needed(program: &'static str, place: Place) -> Spot {
    Spot { program, place, is_needed: true }
}

const fn optional(program: &'static str, place: Place) -> Spot {
    Spot { program, place, is_needed: false }
}

impl JavaEvent {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Exceptions,
        Self::Classes,
        Self::Threads,
        Self::Deopt,
        Self::Compiles,
        Self::GcRequests,
        Self::Stalls,
    ];

    /// What it is called.
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

    /// Whether what is counted is the time that it takes.
    pub(crate) fn has_duration(self) -> bool {
        self == Self::Compiles
    }

    /// What cannot be seen of it.
    pub(crate) fn unseen(self) -> Option<&'static str> {
        match self {
            Self::Exceptions => Some(
                "exceptions without a stack trace are not seen: those that compiled code throws \
                 again and again (-XX:-OmitStackTraceInFastThrow makes them whole), and classes \
                 that want none",
            ),
            _ => None,
        }
    }

    fn spots(self) -> &'static [Spot] {
        use Place::{Exported, Function, Usdt};
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
                        // Before JDK 15 there are no hidden classes.
                        optional("java_lookup_define", Exported("JVM_LookupDefineClass")),
                    ]
                }
            }
            // C1 has functions for that, too: on x86-64 none of the loops that were tried called them.
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
                        // Before JDK 15 it has no function for that.
                        optional("any_uprobe", Function("_ZN14ZPageAllocator16alloc_page_stallE")),
                        // JDK 21 to 23 have two ZGCs.
                        optional("any_uprobe", Function("_ZN14XPageAllocator16alloc_page_stallE")),
                    ]
                }
            }
        }
    }

    /// The programs that may be attached.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        self.spots().iter().map(|spot| spot.program)
    }

    /// Where to attach which program in a libjvm.so.
    ///
    /// # Errors
    /// [`Error::NoProbes`] where it cannot be seen there.
    pub fn plan(self, libjvm: &LibJvm, elf: &ElfFile) -> Result<Vec<Plan>> {
        let (mut plans, mut missing) = (Vec::new(), None);
        for spot in self.spots() {
            match spot.place.site(elf)? {
                Some(site) => plans.push(Plan { program: spot.program, site, optional: None }),
                None if spot.is_needed => missing = Some(spot),
                None => {}
            }
        }
        if plans.is_empty() {
            missing = self.spots().first();
        }
        let Some(missing) = missing else { return Ok(plans) };
        Err(Error::NoProbes {
            path: libjvm.seen_as.clone(),
            what: format!("{}, by which {} are seen", missing.place.describe(), self.name()),
            hint: "leave this event out, or use a build with probes and a symbol table".into(),
        })
    }

    /// Whether the kernel side reads what class objects are of.
    pub(crate) fn reads_classes(self) -> bool {
        matches!(self, Self::Exceptions | Self::Threads)
    }
}

impl Place {
    /// The kind of place and its name, for people.
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
    fn places_are_described_by_readable_names() {
        let all: Vec<_> = JavaEvent::ALL.iter().flat_map(|event| event.spots()).collect();
        let names: Vec<_> = all.iter().map(|spot| spot.place.describe()).collect();
        assert!(names.iter().all(|name| !name.contains("_Z")), "{names:?}");
        assert!(names.contains(&"function Deoptimization::uncommon_trap".to_owned()), "{names:?}");
    }
}
