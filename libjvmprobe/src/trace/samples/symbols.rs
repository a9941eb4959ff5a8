//! Sources of the names of compiled code: the JVM's memory, a perf map, or the agent.

use crate::{
    Error, Pid, Result,
    attach::{agent, agent_map, perf_map},
    hotspot::{HotSpot, code::Inlining},
    process::Process,
    stack::code_log::Snapshot,
    trace::samples::SymbolSource,
};

/// Reads the compiled code of a JVM. Returns it with the source from which it can be read again; for a perf
/// map that `Auto` has found, this is [`SymbolSource::None`]. `Auto` reads the JVM's memory. If that cannot
/// name the code, it reads a perf map that exists already. If there is none and `named_by_user` is true, it
/// prints a note and loads our agent into the JVM.
///
/// # Errors
/// The reason why the source has no names.
pub fn get(
    source: &SymbolSource,
    process: &Process,
    hotspot: Result<&HotSpot, &Error>,
    inlining: Inlining<'_>,
    named_by_user: bool,
) -> Result<(Snapshot, SymbolSource)> {
    if *source != SymbolSource::Auto {
        return Ok((read_from(source, process, hotspot, inlining)?, source.clone()));
    }
    let error = match read_from(&SymbolSource::HotSpot, process, hotspot, inlining) {
        Ok(seen) => return Ok((seen, SymbolSource::HotSpot)),
        Err(error) => error,
    };
    let pid = process.pid;
    match perf_map::read_in_target(process) {
        Ok(text) => {
            log::warn!("process {pid}: {error}; using the existing perf map in the process's /tmp");
            return Ok((Snapshot::Map(text), SymbolSource::None));
        }
        Err(why) => log::debug!("process {pid} has no perf map: {why}"),
    }
    // Other errors mean that the JVM has ended or is inaccessible. The agent could not be loaded then,
    // either.
    let is_unknown = matches!(error, Error::Unsupported { .. } | Error::Layout { .. });
    if !(named_by_user && is_unknown) {
        return Err(error);
    }
    log::warn!(
        "process {pid}: {error}; loading the jvmprobe agent into it temporarily (--symbols hotspot \
         never does this)"
    );
    Ok((read_from(&SymbolSource::Agent, process, hotspot, inlining)?, SymbolSource::Agent))
}

/// Reads the compiled code of a JVM from one source. `inlining` applies to the JVM's memory only.
pub(super) fn read_from(
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
                    "process {}: JDK {jdk} cannot write a map of its code (JDK {first} and later \
                     can); use --symbols hotspot or agent",
                    process.pid
                ),
            })
        }
        SymbolSource::PerfMap => Ok(Snapshot::Map(perf_map::request(process, hotspot)?)),
    }
}

/// Returns the error for a JVM whose methods cannot be named because its structures could not be read.
pub(super) fn version_unknown(pid: Pid, error: &Error) -> Error {
    Error::Attach { pid, why: format!("cannot read its version: {error}") }
}
