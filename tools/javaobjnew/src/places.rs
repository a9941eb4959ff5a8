//! Where allocations can be watched in a libjvm.so.
//!
//! HotSpot's `AllocTracer` (gc/shared/allocTracer.cpp) is called for each object that
//! begins a TLAB or lies outside of one. Its functions are private: only a symbol table
//! tells where they are. Since JDK 9 they are given the thread, without which nothing can
//! be said of the objects in between; before, they had other names.

use libjvmprobe::{
    Error, Result,
    hotspot::HotSpot,
    jvm::{LibJvm, Target},
    trace::attach::{Plan, Site, function},
};

const FUNCTIONS: [(&str, &str); 2] = [
    // First, so that what is outside of TLABs is never taken for what is inside.
    ("fn_outside_tlab", "_ZN11AllocTracer28send_allocation_outside_tlabE"),
    ("fn_new_tlab", "_ZN11AllocTracer27send_allocation_in_new_tlabE"),
];
const OLD_FUNCTION: &str = "_ZN11AllocTracer34send_allocation_in_new_tlab_eventE";
const PROBE: (&str, &str) = ("hotspot", "object__alloc");

/// The last JDK that knows `ExtendedDTraceProbes`.
const LAST_EXTENDED: u32 = 17;

/// The functions to attach to.
///
/// # Errors
/// [`Error::NoProbes`] where the symbols are missing, saying what works instead.
pub fn sampled(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    let symbols = elf.symbols()?;
    let plan = |&(program, prefix): &(&'static str, &str)| {
        let site = function(&elf, &symbols, prefix)?;
        Some(Plan { program, site, optional: None })
    };
    let plans: Option<Vec<_>> = FUNCTIONS.iter().map(plan).collect();
    plans.ok_or_else(|| {
        let has_probe = elf.stapsdt().is_ok_and(|p| p.find(PROBE.0, PROBE.1).next().is_some());
        let (what, instead) = if symbols.find_prefix(OLD_FUNCTION).is_some() {
            ("AllocTracer that is given the thread (it is that of JDK 8)", "JDK 11 or later")
        } else {
            (
                "symbol AllocTracer::send_allocation_in_new_tlab (it is stripped)",
                "a build with its symbol table (Temurin, Debian, Alpine)",
            )
        };
        let exact = if has_probe {
            ", or start the JVM with -XX:+DTraceAllocProbes and use --exact"
        } else {
            ""
        };
        Error::NoProbes {
            path: libjvm.seen_as.clone(),
            what: what.into(),
            hint: format!("use {instead}{exact}"),
        }
    })
}

/// The probe that fires for every object.
///
/// # Errors
/// [`Error::NoProbes`] where it is missing.
pub fn exact(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    let probes = elf.stapsdt()?;
    let (provider, name) = PROBE;
    if probes.find(provider, name).next().is_none() {
        return Err(Error::NoProbes {
            path: libjvm.seen_as.clone(),
            what: format!(
                "USDT probe {provider}:{name} ({})",
                probes.explain_missing(provider, name)
            ),
            hint: "leave --exact out: without it no probe is needed, only the symbol table".into(),
        });
    }
    Ok(vec![Plan { program: "object_alloc", site: Site::Usdt { provider, name }, optional: None }])
}

/// Whether a JVM was started with the flag that makes it fire the probe.
///
/// # Errors
/// [`Error::Attach`] with the flag's name, for a JVM that has set itself up without it.
pub fn fires(target: &Target, hotspot: &HotSpot) -> Result<()> {
    // Up to JDK 10 there was only the one for all.
    let flags = ["DTraceAllocProbes", "ExtendedDTraceProbes"];
    if flags.iter().any(|flag| hotspot.flag(flag) == Some(true)) {
        return Ok(());
    }
    let has_own = hotspot.flag(flags[0]).is_some();
    let flag = match (has_own, hotspot.major) {
        (true, ..=LAST_EXTENDED) => "-XX:+DTraceAllocProbes (or -XX:+ExtendedDTraceProbes)",
        (true, _) => "-XX:+DTraceAllocProbes",
        (false, _) => "-XX:+ExtendedDTraceProbes",
    };
    Err(Error::Attach {
        pid: target.pid(),
        why: format!(
            "this JVM (JDK {}) does not tell of every object; start it with {flag}, or leave \
             --exact out",
            hotspot.major
        ),
    })
}
