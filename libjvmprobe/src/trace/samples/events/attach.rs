//! Attaches to events: to those of the kernel once, to those in files for each process.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
};

use libbpf_rs::{KprobeOpts, Link};

use super::{EventKind, EventSpec};
use crate::{
    Error, Result,
    bpf::{
        perf::{self, Clock, Rate},
        probes::{Binary, Plan, Site, exported},
        tracefs::Tracepoints,
    },
    elf::{ElfFile, is_out_of_memory},
    process::{
        LibJvm,
        code::{CodeFile, CodeMaps},
    },
    sys::budget::Budget,
    trace::samples::session::Session,
};

/// Attachments to events of the kernel.
#[derive(Default)]
pub(crate) struct Kernel {
    /// The clock whose ticks trigger samples on each processor, if an event needs one.
    pub(crate) clock: Option<Clock>,
    /// Attachments; dropping them ends the sampling.
    pub(crate) links: Vec<Link>,
}

/// Attaches to all events of the kernel. An event that is not available is an error; with `skip_missing`, a note is
/// printed and the event left out.
pub(crate) fn kernel(
    session: &Session,
    events: &[EventSpec],
    frequency: u64,
    skip_missing: bool,
) -> Result<Kernel> {
    let mut kernel = Kernel::default();
    for (number, event) in events.iter().enumerate() {
        match kernel.attach(session, event, number as u64, frequency) {
            Ok(()) => {}
            Err(error) if skip_missing => log::warn!("{}", missing(event, &error)),
            Err(error) => return Err(error),
        }
    }
    Ok(kernel)
}

/// Returns the message about an event that is left out.
pub(crate) fn missing(event: &EventSpec, error: &Error) -> String {
    format!("skipping event {}: {error}", event.name)
}

impl Kernel {
    fn attach(
        &mut self,
        session: &Session,
        event: &EventSpec,
        number: u64,
        frequency: u64,
    ) -> Result<()> {
        let programs = &session.skel.progs;
        match &event.what {
            EventKind::Cpu | EventKind::Wall => {
                let hertz = event.hertz(frequency);
                let (clock, links) = perf::attach_clock(&programs.sample, hertz, number)?;
                self.clock = Some(clock);
                self.links.extend(links);
            }
            EventKind::Software(counted) => {
                let rate = event.rate.unwrap_or(Rate::Each(1));
                self.count(session, *counted, &event.name, rate, number)?;
            }
            EventKind::Hardware(counted) => {
                let rate = event.rate.unwrap_or(Rate::Hertz(frequency));
                self.count(session, *counted, &event.name, rate, number)?;
            }
            EventKind::Tracepoint { category, name } => {
                let tracepoint = Tracepoints::open()?.find(category, name)?;
                self.links.push(perf::attach_once(&programs.any_tracepoint, tracepoint, number)?);
            }
            EventKind::Kprobe(function) => {
                let opts = KprobeOpts { cookie: number, ..Default::default() };
                let link = programs.any_kprobe.attach_kprobe_with_opts(false, function, opts);
                self.links.push(link.map_err(|source| no_kprobe(function, source))?);
            }
            EventKind::OffCpu
            | EventKind::Uprobe { .. }
            | EventKind::Usdt { .. }
            | EventKind::Java(_) => {}
        }
        Ok(())
    }

    fn count(
        &mut self,
        session: &Session,
        counted: perf::Event,
        name: &str,
        rate: Rate,
        number: u64,
    ) -> Result<()> {
        let program = &session.skel.progs.sample;
        self.links.extend(perf::attach(program, counted, name, rate, number)?);
        Ok(())
    }
}

fn no_kprobe(function: &str, source: libbpf_rs::Error) -> Error {
    let what = format!("attach to the kernel function {function}");
    match std::fs::exists("/sys/bus/event_source/devices/kprobe") {
        Ok(false) => Error::Kernel { what, hint: "the kernel is built without kprobes".into() },
        _ if source.kind() == libbpf_rs::ErrorKind::NotFound => {
            Error::Unknown { what: format!("function {function} in this kernel"), near: Vec::new() }
        }
        _ => Error::Bpf { what, source },
    }
}

/// Location of an event in a mapped file.
pub(crate) struct Found {
    /// The file.
    pub(crate) binary: Binary,
    /// The programs and the sites to attach them to.
    pub(crate) plans: Vec<Plan>,
    /// Whether the file is the process's libjvm.so.
    pub(crate) is_libjvm: bool,
    /// Keeps the file open.
    _file: Option<Arc<CodeFile>>,
}

/// Files of a process that were searched for events, by the address of the [`CodeFile`]. The weak reference holds the
/// allocation, so that no other file gets its address while the entry exists.
#[derive(Debug, Default)]
pub(crate) struct SearchedFiles(HashMap<usize, Weak<CodeFile>>);

/// Finds events in the files of a process. Each file is opened once for all events, and not again with the same
/// `searched`. Returns `None` for events of the kernel, and for Java events if the process is not a JVM.
///
/// # Errors
/// For each event that is not found, [`Error::NoProbes`] or [`Error::Unknown`].
pub(crate) fn find(
    events: &[&EventSpec],
    libjvm: Option<&LibJvm>,
    maps: &CodeMaps,
    searched: &mut SearchedFiles,
) -> Vec<Result<Option<Found>>> {
    let mut searches: Vec<_> = events.iter().map(|event| Search::new(event, libjvm)).collect();
    searched.0.retain(|_, file| file.strong_count() > 0);
    let share = Budget::of_process().share(maps.tenant());
    for mapping in maps.iter() {
        let Some(file) = &mapping.file else { continue };
        let key = Arc::as_ptr(file) as usize;
        let is_open = |search: &&mut Search<'_>| search.result.is_none();
        if searched.0.contains_key(&key) || searches.iter().all(|search| search.result.is_some()) {
            continue;
        }
        let is_complete = match file.reopen().and_then(|file| ElfFile::open_for(file, &share)) {
            Ok(elf) => {
                let open = searches.iter_mut().filter(is_open);
                // Every event is searched for, even if memory does not suffice for one.
                open.map(|search| search.file(&mapping.module, file, &elf))
                    .filter(|done| !done)
                    .count()
                    == 0
                    && file.is_same(elf.file())
            }
            // Mapped files that are not ELF files have no events.
            Err(error) => matches!(error, Error::Elf { .. }),
        };
        if is_complete {
            searched.0.insert(key, Arc::downgrade(file));
        }
    }
    searches.into_iter().map(Search::end).collect()
}

/// Search for one event.
struct Search<'a> {
    what: &'a EventKind,
    /// Whether a file that may have the event is mapped.
    seen: bool,
    result: Option<Result<Option<Found>>>,
}

impl<'a> Search<'a> {
    /// Searches libjvm.so, if the process has one.
    fn new(event: &'a EventSpec, libjvm: Option<&LibJvm>) -> Self {
        let result = in_libjvm(&event.what, libjvm).transpose();
        Self { what: &event.what, seen: false, result }
    }

    /// Searches a mapped file. Returns `false` if the tenant's share of memory does not suffice; then the search goes on.
    fn file(&mut self, module: &str, file: &Arc<CodeFile>, elf: &ElfFile) -> bool {
        match self.site(module, elf) {
            Ok(None) => {}
            Ok(Some(site)) => {
                let (file, module) = (Arc::clone(file), PathBuf::from(module));
                self.result = Some(Ok(Some(Found {
                    binary: Binary { path: file.path(), target_path: module },
                    plans: vec![plan(self.program(), site)],
                    is_libjvm: false,
                    _file: Some(file),
                })));
            }
            Err(error) if is_out_of_memory(&error) => return false,
            Err(error) => self.result = Some(Err(error)),
        }
        true
    }

    fn program(&self) -> &'static str {
        if matches!(self.what, EventKind::Usdt { .. }) { "any_usdt" } else { "any_uprobe" }
    }

    /// Returns the event's site in a mapped file.
    fn site(&mut self, module: &str, elf: &ElfFile) -> Result<Option<Site>> {
        match self.what {
            EventKind::Usdt { provider, name } => usdt(elf, provider, name),
            EventKind::Uprobe { library, symbol } if module.starts_with(library.as_str()) => {
                self.seen = true;
                if let Some(site) = exported(elf, symbol)? {
                    return Ok(Some(site));
                }
                let private = elf.symbols()?.find(symbol);
                let offset = private.and_then(|symbol| elf.vaddr_to_offset(symbol.value));
                Ok(offset.map(|offset| Site::Function { symbol: symbol.clone(), offset }))
            }
            _ => Ok(None),
        }
    }

    fn end(self) -> Result<Option<Found>> {
        self.result.unwrap_or_else(|| {
            let what = match self.what {
                EventKind::Usdt { provider, name } => {
                    format!("USDT probe {provider}:{name} in a file that the process has mapped")
                }
                EventKind::Uprobe { library, symbol } if self.seen => {
                    format!("function {symbol} in {library}")
                }
                EventKind::Uprobe { library, .. } => {
                    format!("file {library}* that the process has mapped")
                }
                _ => return Ok(None),
            };
            Err(Error::Unknown { what, near: Vec::new() })
        })
    }
}

/// Searches for an event in libjvm.so alone. Returns `None` if it may be in other files, and `Some(None)` if it has no
/// place in a file of this process.
fn in_libjvm(what: &EventKind, libjvm: Option<&LibJvm>) -> Result<Option<Option<Found>>> {
    let found = |libjvm: &LibJvm, plans| {
        Some(Found { binary: libjvm.into(), plans, is_libjvm: true, _file: None })
    };
    Ok(match (what, libjvm) {
        (EventKind::Java(java), Some(libjvm)) => {
            Some(found(libjvm, java.plan(libjvm, &libjvm.elf()?)?))
        }
        (EventKind::Usdt { provider, name }, Some(libjvm)) => {
            let site = usdt(&libjvm.elf()?, provider, name)?;
            site.map(|site| found(libjvm, vec![plan("any_usdt", site)]))
        }
        (EventKind::Usdt { .. } | EventKind::Uprobe { .. }, _) => None,
        _ => Some(None),
    })
}

fn usdt(elf: &ElfFile, provider: &str, name: &str) -> Result<Option<Site>> {
    let site = || Site::Usdt { provider: provider.to_owned().into(), name: name.to_owned().into() };
    Ok(elf.stapsdt()?.has(provider, name)?.then(site))
}

fn plan(program: &'static str, site: Site) -> Plan {
    Plan { program, site, optional: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pid, process::code::FileCache};

    #[test]
    fn a_file_is_searched_once_for_all_events() {
        let mut maps = CodeMaps::default();
        maps.refresh(Pid(std::process::id()), &FileCache::default()).unwrap();
        let event = |symbol: &str| EventSpec {
            name: symbol.into(),
            what: EventKind::Uprobe { library: "libc.so".into(), symbol: symbol.into() },
            rate: None,
        };
        let (missing, present) = (event("no_such_function"), event("getpid"));
        let mut searched = SearchedFiles::default();
        let mut search = |events: &[&EventSpec]| {
            let found = find(events, None, &maps, &mut searched).into_iter();
            let found: Vec<_> =
                found.map(|found| found.is_ok_and(|found| found.is_some())).collect();
            (found, searched.0.len())
        };
        let (found, files) = search(&[&missing, &present]);
        assert!(found == [false, true] && files > 0);
        // The files that were searched are not opened again.
        assert_eq!(search(&[&present]), (vec![false], files));
    }
}
