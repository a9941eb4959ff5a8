//! Where the names of compiled code come from: memory, a map, the JVM itself.

use crate::{
    Error, Pid, Result,
    ask::{agent, agent_map, perf_map},
    hotspot::{HotSpot, code::Inlining},
    own::note,
    process::Process,
    stack::code_log::Snapshot,
    take::samples::SymbolSource,
};

/// Finds out what compiled code a JVM has, and says from where. `Auto` reads its memory; where
/// that cannot name the code, a map that is there. Only where there is none, either, and if
/// it may ask, it asks the JVM by our agent, and says so before.
///
/// # Errors
/// Why it cannot be found out.
pub fn get(
    source: &SymbolSource,
    process: &Process,
    hotspot: Result<&HotSpot, &Error>,
    inlining: Inlining<'_>,
    may_ask: bool,
) -> Result<(Snapshot, SymbolSource)> {
    if *source != SymbolSource::Auto {
        return Ok((ask(source, process, hotspot, inlining)?, source.clone()));
    }
    let error = match ask(&SymbolSource::HotSpot, process, hotspot, inlining) {
        Ok(seen) => return Ok((seen, SymbolSource::HotSpot)),
        Err(error) => error,
    };
    let pid = process.pid;
    if let Ok(text) = perf_map::read_there(process) {
        note(&format!("process {pid}: {error}; using the map that was in its /tmp"));
        return Ok((Snapshot::Map(text), SymbolSource::None));
    }
    // One that is gone or hidden would not answer, either.
    let is_unknown = matches!(error, Error::Unsupported { .. } | Error::Layout { .. });
    if !(may_ask && is_unknown) {
        return Err(error);
    }
    note(&format!(
        "process {pid}: {error}; loading our agent into it for a moment, which --symbols hotspot \
         never does"
    ));
    Ok((ask(&SymbolSource::Agent, process, hotspot, inlining)?, SymbolSource::Agent))
}

/// Finds out what compiled code a JVM has, in one way, with inlining where that can be chosen.
pub(super) fn ask(
    source: &SymbolSource,
    process: &Process,
    hotspot: Result<&HotSpot, &Error>,
    inlining: Inlining<'_>,
) -> Result<Snapshot> {
    if let SymbolSource::File(path) = source {
        return Ok(Snapshot::Map(perf_map::read(path, process)?));
    }
    let hotspot = hotspot.map_err(|error| version_unknown(process.pid, error))?;
    let writes_maps = hotspot.major >= perf_map::FIRST_JDK;
    match source {
        SymbolSource::None | SymbolSource::File(_) => Ok(Snapshot::Entries(Vec::new())),
        SymbolSource::Auto | SymbolSource::HotSpot => {
            Ok(Snapshot::Entries(hotspot.code(inlining)?))
        }
        SymbolSource::Agent => {
            let text = agent::map(process, hotspot)?;
            Ok(Snapshot::Entries(agent_map::parse(&text).collect()))
        }
        SymbolSource::PerfMap if !writes_maps => {
            let (jdk, first) = (hotspot.major, perf_map::FIRST_JDK);
            Err(Error::Unsupported {
                what: format!(
                    "process {}: JDK {jdk} cannot write a map of its code (JDK {first} can); use \
                     --symbols hotspot or agent",
                    process.pid
                ),
            })
        }
        SymbolSource::PerfMap => Ok(Snapshot::Map(perf_map::request(process, hotspot)?)),
    }
}

/// Why a JVM's methods cannot be named: what it tells of itself could not be read.
pub(super) fn version_unknown(pid: Pid, error: &Error) -> Error {
    Error::Attach { pid, why: format!("its version is unknown: {error}") }
}
