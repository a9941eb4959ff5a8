//! Events of Java programs that have names.
//!
//! Each is an entry of HotSpot's that is exported, so that every build has it, or a function that
//! its symbol table names, or a probe. Sources: hotspot/share/include/jvm.h,
//! hotspot/share/runtime/deoptimization.hpp, hotspot/share/compiler/compileBroker.cpp.

use std::borrow::Cow;

use libjvmprobe::{
    Error, Result,
    bpf::probes::{Plan, Site, exported, function},
    elf::ElfFile,
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

/// A program and what it is attached to.
enum Spot {
    /// A function that is exported.
    Exported(&'static str),
    /// A function by how its mangled name begins.
    Function(&'static str),
    Usdt(&'static str, &'static str),
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
    pub fn has_duration(self) -> bool {
        self == Self::Compiles
    }

    /// What cannot be seen of it.
    pub fn unseen(self) -> Option<&'static str> {
        match self {
            Self::Exceptions => Some(
                "exceptions without a stack trace are not seen: those that compiled code throws \
                 again and again (-XX:-OmitStackTraceInFastThrow makes them whole), and classes \
                 that want none",
            ),
            _ => None,
        }
    }

    /// Programs and where they are attached: the first set of which all are there.
    fn spots(self) -> &'static [&'static [(&'static str, Spot)]] {
        use Spot::{Exported, Function, Usdt};
        match self {
            Self::Exceptions => &[&[("java_object", Exported("JVM_FillInStackTrace"))]],
            Self::Threads => &[&[("java_object", Exported("JVM_StartThread"))]],
            Self::Classes => &[
                &[
                    ("java_define", Exported("JVM_DefineClass")),
                    ("java_define", Exported("JVM_DefineClassWithSource")),
                    ("java_lookup_define", Exported("JVM_LookupDefineClass")),
                ],
                // Before JDK 15 there are no hidden classes.
                &[
                    ("java_define", Exported("JVM_DefineClass")),
                    ("java_define", Exported("JVM_DefineClassWithSource")),
                ],
            ],
            Self::Deopt => &[&[("java_deopt", Function("_ZN14Deoptimization13uncommon_trapE"))]],
            Self::Compiles => &[
                &[
                    ("java_compile_end", Usdt("hotspot", "method__compile__end")),
                    ("java_compile_begin", Usdt("hotspot", "method__compile__begin")),
                    (
                        "java_compile_task",
                        Function("_ZN13CompileBroker25invoke_compiler_on_methodE"),
                    ),
                ],
                &[
                    ("java_compile_end", Usdt("hotspot", "method__compile__end")),
                    ("java_compile_begin", Usdt("hotspot", "method__compile__begin")),
                ],
            ],
            Self::GcRequests => &[
                &[
                    ("any_uprobe", Exported("JVM_GC")),
                    ("any_uprobe", Function("_ZN8JvmtiEnv22ForceGarbageCollectionE")),
                    ("any_uprobe", Function("_ZN12SystemGCDCmd7executeE")),
                ],
                &[("any_uprobe", Exported("JVM_GC"))],
            ],
            Self::Stalls => &[
                // JDK 21 to 23 have two ZGCs. Before JDK 15 it has no function for that.
                &[
                    ("any_uprobe", Function("_ZN14ZPageAllocator16alloc_page_stallE")),
                    ("any_uprobe", Function("_ZN14XPageAllocator16alloc_page_stallE")),
                ],
                &[("any_uprobe", Function("_ZN14ZPageAllocator16alloc_page_stallE"))],
            ],
        }
    }

    /// The programs that may be attached.
    pub fn programs(self) -> impl Iterator<Item = &'static str> {
        self.spots().iter().flat_map(|spots| spots.iter()).map(|(program, _)| *program)
    }

    /// Where to attach which program in a libjvm.so.
    ///
    /// # Errors
    /// [`Error::NoProbes`] where it cannot be seen there.
    pub fn plan(self, libjvm: &LibJvm, elf: &ElfFile) -> Result<Vec<Plan>> {
        let mut missing = "";
        for spots in self.spots() {
            let mut plans = Vec::new();
            for (program, spot) in *spots {
                match spot.site(elf)? {
                    Some(site) => plans.push(Plan { program, site, optional: None }),
                    None => missing = spot.name(),
                }
            }
            if plans.len() == spots.len() {
                return Ok(plans);
            }
        }
        Err(Error::NoProbes {
            path: libjvm.seen_as.clone(),
            what: format!("{missing}, by which {} are seen", self.name()),
            hint: "leave this event out, or use a build with probes and a symbol table".into(),
        })
    }

    /// Whether the kernel side reads what class objects are of.
    pub fn reads_classes(self) -> bool {
        matches!(self, Self::Exceptions | Self::Threads)
    }
}

impl Spot {
    fn name(&self) -> &'static str {
        match self {
            Self::Exported(name) | Self::Function(name) | Self::Usdt(_, name) => name,
        }
    }

    fn site(&self, elf: &ElfFile) -> Result<Option<Site>> {
        Ok(match *self {
            Self::Exported(name) => exported(elf, name)?,
            Self::Function(prefix) => function(elf, &elf.symbols()?, prefix),
            Self::Usdt(provider, name) => {
                let is_there = elf.stapsdt()?.find(provider, name).next().is_some();
                let (provider, name) = (Cow::Borrowed(provider), Cow::Borrowed(name));
                is_there.then_some(Site::Usdt { provider, name })
            }
        })
    }
}
