//! Probes attached to the files of a traced process: those on loads and unloads of its compiled code and on stops, and
//! those of the sampled events that are located in files (Java events, USDT probes and functions).

use std::collections::HashMap;

use super::{ProcessKind, Traced};
use crate::{
    Error,
    bpf::{
        inodes::attached_file,
        probes::{Instant, Links, Plan, Scope, Site, exported, resolve},
        session::Attach,
        stops,
    },
    process::{FileId, LibJvm, Target},
    trace::samples::{
        events::{EventKind, EventSpec, attach::find},
        session::Session,
    },
};

/// USDT probes by which HotSpot reports loads and unloads of compiled methods. They need no JVM flag.
const CODE: [Instant; 2] = [
    Instant::of_probe("hotspot", "compiled__method__unload", "code_unload"),
    Instant::of_probe("hotspot", "compiled__method__load", "code_load"),
];

/// Attachments shared by all JVMs that run the same libjvm.so, by file and index of the event; `None` if the file had too many
/// mappings, so that each JVM has attachments of its own. The entry whose index is `None` contains the probes on loads and
/// unloads of compiled code, and those on stops.
pub(crate) type Shared = HashMap<SharedKey, Option<Links>>;
pub(crate) type SharedKey = (FileId, Option<usize>);

impl Traced {
    /// Attaches the probes on loads and unloads of compiled code and, if `with_stops`, those on stops of the
    /// application. With `shared`, one attachment per libjvm.so serves all JVMs that run that file; without it, the
    /// process gets attachments of its own. Does nothing for a process that is not a JVM.
    ///
    /// # Errors
    /// If the probes cannot be found or attached; the JVM's code loads are then not recorded.
    pub(crate) fn follow(
        &mut self,
        session: &mut Session,
        shared: Option<&mut Shared>,
        with_stops: bool,
    ) -> Result<(), Error> {
        let ProcessKind::Jvm(target, _) = &self.kind else {
            return Ok(());
        };
        let libjvm = &target.libjvm;
        let plans = || -> Result<_, Error> {
            let elf = libjvm.elf()?;
            let mut plans = resolve(&libjvm.target_path, &elf, &CODE)?;
            if with_stops {
                plans.extend(stops::plans(libjvm)?);
            }
            Ok(plans)
        };
        match shared {
            Some(shared) => {
                let own = attach_shared(session, shared, target, None, plans)?;
                self.links.extend(own);
            }
            None => {
                let pid = target.pid();
                let scope = Scope::Process(pid);
                self.links.extend(session.attach(
                    &libjvm.into(),
                    &plans()?,
                    scope,
                    pid.0.into(),
                )?);
            }
        }
        self.has_code_probes = true;
        Ok(())
    }

    /// Attaches to the events that are located in the process's files. The first call searches for all events. A later
    /// call does nothing unless the mappings have changed since the last search; it then searches the new files for the
    /// events that could not be attached, except Java events. Events in libjvm.so are attached through `shared`, as in
    /// [`follow`](Self::follow), except functions that only the symbols from the root of the process show: they are
    /// attached to in this process only. The first call returns the events that could not be attached, with the errors; later calls return none.
    pub(crate) fn attach_events(
        &mut self,
        events: &[EventSpec],
        session: &mut Session,
        mut shared: Option<&mut Shared>,
    ) -> Vec<(usize, Error)> {
        let version = self.maps.version();
        let is_first = self.searched.is_none();
        let wanted: Vec<_> = match self.searched.replace(version) {
            None => (0..events.len()).collect(),
            Some(searched) if searched == version => return Vec::new(),
            Some(_) => std::mem::take(&mut self.missing),
        };
        let (pid, target) = match &self.kind {
            ProcessKind::Jvm(target, _) => (target.pid(), Some(target)),
            ProcessKind::Future(process) | ProcessKind::Other(process) => (process.pid, None),
        };
        let libjvm = target.map(|target| &target.libjvm);
        let mut failed = Vec::new();
        let of_wanted: Vec<_> = wanted.iter().map(|&number| &events[number]).collect();
        let found = find(&of_wanted, libjvm, &self.maps, &mut self.searched_files);
        for (number, found) in wanted.into_iter().zip(found) {
            let cookie = number as u64;
            let found = found.and_then(|found| {
                let Some(found) = found else { return Ok(None) };
                let (mut plans, mut links) = (found.plans, Links::default());
                if let (Some(shared), Some(target), true) = (&mut shared, target, found.is_libjvm) {
                    let (of_file, of_process) = split(&target.libjvm, plans)?;
                    if !of_file.is_empty() {
                        let plans = || Ok(of_file);
                        links = attach_shared(session, shared, target, Some(number), plans)?;
                    }
                    plans = of_process;
                }
                if !plans.is_empty() {
                    let scope = Scope::Process(pid);
                    links.extend(session.attach(&found.binary, &plans, scope, cookie)?);
                }
                Ok(Some(links))
            });
            match found {
                Ok(links) => self.links.extend(links.unwrap_or_default()),
                Err(error) => {
                    // The event may be in a file that the process maps later.
                    if !matches!(events[number].what, EventKind::Java(_)) {
                        self.missing.push(number);
                    }
                    failed.push((number, error));
                }
            }
        }
        if is_first { failed } else { Vec::new() }
    }

    /// Detaches the probes that are attached to this process only: those of its events, its compiled code and its
    /// stops. Shared attachments remain.
    pub(crate) fn detach_events(&mut self) {
        self.links = Links::default();
    }
}

/// Attaches plans of the event with this index, or those on compiled code and stops, to a libjvm.so for all processes that run
/// it, unless that was done for an earlier JVM. Returns attachments of this JVM alone, if the file has too many mappings.
fn attach_shared(
    session: &mut Session,
    shared: &mut Shared,
    target: &Target,
    number: Option<usize>,
    plans: impl FnOnce() -> Result<Vec<Plan>, Error>,
) -> Result<Links, Error> {
    let cookie = number.unwrap_or(0) as u64;
    let key = (attached_file(&target.libjvm)?, number);
    let is_crowded = match shared.get(&key) {
        Some(Some(_)) => return Ok(Links::default()),
        Some(None) => true,
        None => false,
    };
    let (links, scope) = session.attach_shared(target, &plans()?, is_crowded, cookie)?;
    Ok(match scope {
        Scope::AllProcesses => {
            shared.insert(key, Some(links));
            Links::default()
        }
        Scope::Process(_) => {
            shared.insert(key, None);
            links
        }
    })
}

/// Divides plans into those whose sites are the same for all processes that run a libjvm.so, and those whose sites are
/// known only from symbols in the root of one process.
fn split(libjvm: &LibJvm, plans: Vec<Plan>) -> Result<(Vec<Plan>, Vec<Plan>), Error> {
    if libjvm.may_share_attachments() {
        return Ok((plans, Vec::new()));
    }
    let elf = libjvm.elf()?;
    let is_of_file = |plan: &Plan| match &plan.site {
        Site::Usdt { .. } => true,
        Site::Function { symbol, .. } => {
            exported(&elf, symbol).is_ok_and(|site| site.as_ref() == Some(&plan.site))
        }
    };
    Ok(plans.into_iter().partition(is_of_file))
}
