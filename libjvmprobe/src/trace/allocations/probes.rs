//! Probes that see allocations in a libjvm.so.
//!
//! HotSpot calls `AllocTracer` (gc/shared/allocTracer.cpp) for each object that begins a TLAB or lies outside
//! of one. Its functions are private, so only a symbol table has their addresses. One of their arguments is
//! the thread, which is needed to read how many bytes that thread has allocated since its last event. Builds
//! of JDK 8 pass the thread if they contain the flight recorder. All builds since 8u262 contain it, and so
//! does Zulu, in which the functions have other names.

use crate::{
    Error, Result,
    bpf::probes::{Plan, Site, function, functions, symbols_hint},
    hotspot::HotSpot,
    process::{LibJvm, Target},
};

/// Program for objects outside of TLABs.
pub(crate) const OUTSIDE: &str = "fn_outside_tlab";
/// Program for objects that begin a TLAB.
pub(crate) const NEW_TLAB: &str = "fn_new_tlab";
/// Program for threads that end.
pub(crate) const THREAD_END: &str = "fn_thread_end";

const FUNCTIONS: [(&str, [&str; 2]); 2] = [
    // Attached first: while only the other function had a probe, the bytes of objects outside of TLABs would
    // be counted as bytes in TLABs.
    (
        OUTSIDE,
        [
            "_ZN11AllocTracer28send_allocation_outside_tlabE",
            "_ZN11AllocTracer34send_allocation_outside_tlab_eventE11KlassHandleP8HeapWordmP6Thread",
        ],
    ),
    (
        NEW_TLAB,
        [
            "_ZN11AllocTracer27send_allocation_in_new_tlabE",
            "_ZN11AllocTracer33send_allocation_in_new_tlab_eventE11KlassHandleP8HeapWordmmP6Thread",
        ],
    ),
];
/// The function of older builds, which does not get the thread.
const OLD_FUNCTION: &str = "_ZN11AllocTracer33send_allocation_in_new_tlab_eventE";
const PROBE: (&str, &str) = ("hotspot", "object__alloc");

/// The last JDK with the flag `ExtendedDTraceProbes`.
const LAST_EXTENDED: u32 = 17;

/// Function in which a Java thread leaves the list of all threads, after its last allocation:
/// `Threads::remove` (runtime/threads.cpp).
const END: (&str, &str) = (THREAD_END, "_ZN7Threads6removeE");

/// Returns the functions to attach to. The one in which threads end is optional: without it, the bytes that a
/// thread has allocated between its last event and its end are unknown.
///
/// # Errors
/// [`Error::NoProbes`] if symbols are missing, with a hint at what works instead.
pub(crate) fn sampling_plans(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    let symbols = elf.symbols()?;
    // Searches for all of them at once; the results are cached.
    let prefixes: Vec<_> = FUNCTIONS.iter().flat_map(|(_, names)| *names).chain([END.1]).collect();
    functions(&elf, &prefixes)?;
    let plan = |&(program, names): &(&'static str, [&str; 2])| {
        let site = names.iter().find_map(|name| function(&elf, &symbols, name))?;
        Some(Plan { program, site, optional: None })
    };
    let plans: Option<Vec<_>> = FUNCTIONS.iter().map(plan).collect();
    if let Some(mut plans) = plans {
        let (program, name) = END;
        let end = function(&elf, &symbols, name);
        plans.extend(end.map(|site| Plan { program, site, optional: None }));
        return Ok(plans);
    }
    let has_probe = elf.stapsdt()?.find(PROBE.0, PROBE.1).next().is_some();
    let is_old = symbols.find_prefix(OLD_FUNCTION).is_some();
    let is_stripped = elf.is_stripped()?;
    let (what, mut hint) = missing(is_old, is_stripped, has_probe);
    if is_stripped {
        hint += &symbols_hint(&libjvm.target_path);
    }
    Err(Error::NoProbes { path: libjvm.target_path.clone(), what, hint })
}

/// Returns what is missing in a file that does not have all of the functions, and a hint at what works
/// instead.
fn missing(is_old: bool, is_stripped: bool, has_probe: bool) -> (String, String) {
    let function = "AllocTracer::send_allocation_in_new_tlab";
    let (what, instead) = match (is_old, is_stripped) {
        (true, _) => (
            format!("{function} with a thread argument (JDK 8 has it since 8u262)"),
            "8u262 or later",
        ),
        (_, true) => (
            format!("symbol table (it is stripped), which is needed to find {function}"),
            "a build with its symbol table (Temurin, Debian, Alpine)",
        ),
        (_, false) => (format!("function {function} in its symbol table"), "JDK 11 or later"),
    };
    let exact = match has_probe {
        true => ", or start the JVM with -XX:+DTraceAllocProbes and use --exact",
        false => "",
    };
    (what, format!("use {instead}{exact}"))
}

/// Returns the USDT probe that fires for every object.
///
/// # Errors
/// [`Error::NoProbes`] if it is missing.
pub(crate) fn exact(libjvm: &LibJvm) -> Result<Vec<Plan>> {
    let elf = libjvm.elf()?;
    let probes = elf.stapsdt()?;
    let (provider, name) = PROBE;
    if !probes.has(provider, name)? {
        let why = probes.explain_missing(provider, name);
        return Err(Error::NoProbes {
            path: libjvm.target_path.clone(),
            what: format!("USDT probe {provider}:{name} ({why})"),
            hint: match sampling_plans(libjvm).is_ok() {
                true => {
                    "omit --exact: the symbol table of this libjvm.so is sufficient for estimates"
                        .into()
                }
                false => "use a JDK build with probes (Temurin, Debian, Ubuntu, Fedora)".into(),
            },
        });
    }
    Ok(vec![Plan {
        program: "object_alloc",
        site: Site::Usdt { provider: provider.into(), name: name.into() },
        optional: None,
    }])
}

/// Checks that a JVM was started with a flag that makes it fire the probe.
///
/// # Errors
/// [`Error::Unsupported`] with the flag's name, if the JVM was started without such a flag.
pub(crate) fn check_probe_enabled(target: &Target, hotspot: &HotSpot) -> Result<()> {
    // Up to JDK 10, only ExtendedDTraceProbes exists, which enables all such probes.
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
    let otherwise = if sampling_plans(&target.libjvm).is_ok() { ", or omit --exact" } else { "" };
    Err(Error::Unsupported {
        what: format!(
            "process {} (JDK {}) does not report every allocated object; start it with \
             {flag}{otherwise}",
            target.pid(),
            hotspot.major,
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn missing_probes_are_explained_for_each_build() {
        let (what, hint) = missing(true, false, true);
        assert!(what.contains("JDK 8") && !what.contains("stripped"), "{what}");
        assert!(hint.contains("8u262") && hint.contains("--exact"), "{hint}");
        let (what, hint) = missing(false, true, false);
        assert!(what.contains("it is stripped"), "{what}");
        assert!(hint.contains("with its symbol table") && !hint.contains("--exact"), "{hint}");
        let (what, _) = missing(false, false, false);
        assert!(what.contains("in its symbol table") && !what.contains("stripped"), "{what}");
    }
}
