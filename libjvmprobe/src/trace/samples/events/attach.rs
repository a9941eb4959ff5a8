//! Attaches to events: to those of the kernel once, to those in files for each process.

use std::{path::PathBuf, sync::Arc};

use libbpf_rs::{KprobeOpts, Link};

use super::{EventKind, EventSpec};
use crate::{
    Error, Result,
    bpf::{
        perf::{self, Clock, Rate},
        probes::{Binary, Plan, Site, exported},
        tracefs::Tracepoints,
    },
    elf::ElfFile,
    process::{
        LibJvm,
        code::{CodeFile, CodeMaps},
    },
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

/// Finds an event in the files of a process. Returns `None` for events of the kernel, and for Java events if the
/// process is not a JVM.
///
/// # Errors
/// [`Error::NoProbes`], [`Error::Unknown`].
pub(crate) fn find(
    event: &EventSpec,
    libjvm: Option<&LibJvm>,
    maps: &CodeMaps,
) -> Result<Option<Found>> {
    let in_libjvm = |libjvm: &LibJvm, plans| {
        Some(Found { binary: libjvm.into(), plans, is_libjvm: true, _file: None })
    };
    match &event.what {
        EventKind::Java(java) => match libjvm {
            Some(libjvm) => Ok(in_libjvm(libjvm, java.plan(libjvm, &libjvm.elf()?)?)),
            None => Ok(None),
        },
        EventKind::Usdt { provider, name } => {
            let has = |elf: &ElfFile| elf.stapsdt()?.has(provider, name);
            let site =
                || Site::Usdt { provider: provider.clone().into(), name: name.clone().into() };
            if let Some(libjvm) = libjvm
                && has(&libjvm.elf()?)?
            {
                return Ok(in_libjvm(libjvm, vec![plan("any_usdt", site())]));
            }
            let found = in_files(maps, |_, elf| Ok(has(elf)?.then(site)))?;
            found.map(|found| Some(found.attached_by("any_usdt"))).ok_or_else(|| Error::Unknown {
                what: format!("USDT probe {provider}:{name} in a file that the process has mapped"),
                near: Vec::new(),
            })
        }
        EventKind::Uprobe { library, symbol } => {
            let mut seen = false;
            let found = in_files(maps, |module, elf| {
                if !module.starts_with(library.as_str()) {
                    return Ok(None);
                }
                seen = true;
                if let Some(site) = exported(elf, symbol)? {
                    return Ok(Some(site));
                }
                let private = elf.symbols()?.find(symbol);
                let offset = private.and_then(|symbol| elf.vaddr_to_offset(symbol.value));
                Ok(offset.map(|offset| Site::Function { symbol: symbol.clone(), offset }))
            })?;
            let what = match seen {
                true => format!("function {symbol} in {library}"),
                false => format!("file {library}* that the process has mapped"),
            };
            let missing = || Error::Unknown { what, near: Vec::new() };
            found.map(|found| Some(found.attached_by("any_uprobe"))).ok_or_else(missing)
        }
        _ => Ok(None),
    }
}

fn plan(program: &'static str, site: Site) -> Plan {
    Plan { program, site, optional: None }
}

/// A site in a mapped file.
struct EventSite {
    site: Site,
    file: Arc<CodeFile>,
    module: String,
}

impl EventSite {
    fn attached_by(self, program: &'static str) -> Found {
        Found {
            binary: Binary { path: self.file.path(), target_path: PathBuf::from(self.module) },
            plans: vec![plan(program, self.site)],
            is_libjvm: false,
            _file: Some(self.file),
        }
    }
}

/// Returns the first site that `find_site` finds in the mapped files. `find_site` gets the name and the ELF structure
/// of each file.
fn in_files(
    maps: &CodeMaps,
    mut find_site: impl FnMut(&str, &ElfFile) -> Result<Option<Site>>,
) -> Result<Option<EventSite>> {
    for mapping in maps.iter() {
        let Some(file) = &mapping.file else { continue };
        // Mapped files that are not ELF files have no events.
        let Ok(elf) = file.reopen().and_then(ElfFile::open) else { continue };
        if let Some(site) = find_site(&mapping.module, &elf)? {
            let (file, module) = (file.clone(), mapping.module.to_string());
            return Ok(Some(EventSite { site, file, module }));
        }
    }
    Ok(None)
}
