//! What is attached to the files of a process: probes by which its compiled code is followed, and
//! the events that are in them.

use std::collections::{HashMap, hash_map::Entry};

use libjvmprobe::{
    Error,
    bpf::{
        probes::{self, Links, Scope, resolve},
        session::Attach,
    },
    process::FileId,
};

use super::{Traced, Who};
use crate::{
    events::{Asked, What, attach::find},
    session::Session,
};

/// What HotSpot tells of its compiled methods, without any flag.
const CODE: [probes::Instant; 2] = [
    probes::Instant {
        usdt: ("hotspot", "compiled__method__unload"),
        usdt_program: "code_unload",
        functions: &[],
        function_program: "code_unload",
    },
    probes::Instant {
        usdt: ("hotspot", "compiled__method__load"),
        usdt_program: "code_load",
        functions: &[],
        function_program: "code_load",
    },
];

impl Traced {
    /// Follows what it compiles. Through `shared`, which all JVMs have that run the same
    /// file, or by attachments of its own.
    ///
    /// # Errors
    /// What is lost where it cannot.
    pub fn follow(
        &mut self,
        session: &mut Session,
        shared: Option<&mut HashMap<FileId, Links>>,
    ) -> Result<(), Error> {
        let Who::Jvm(jvm) = &self.who else {
            return Ok(());
        };
        let libjvm = &jvm.0.libjvm;
        let plans = || resolve(&libjvm.seen_as, &libjvm.elf()?, &CODE);
        match shared {
            Some(files) => {
                if let Entry::Vacant(file) = files.entry(libjvm.id) {
                    file.insert(session.attach(&libjvm.into(), &plans()?, Scope::Everyone, 0)?);
                }
            }
            None => {
                let pid = jvm.0.pid();
                let scope = Scope::Process(pid);
                self.links.extend(session.attach(
                    &libjvm.into(),
                    &plans()?,
                    scope,
                    pid.0.into(),
                )?);
            }
        }
        self.is_followed = true;
        Ok(())
    }

    /// Attaches to the events that are in its files. Those in libjvm.so through `shared`, as
    /// [`follow`](Self::follow) does. Returns those that are not there, the first time.
    pub fn attach_events(
        &mut self,
        events: &[Asked],
        session: &mut Session,
        mut shared: Option<&mut HashMap<(FileId, usize), Links>>,
    ) -> Vec<(usize, Error)> {
        let version = self.maps.version();
        let is_first = self.searched.is_none();
        let wanted: Vec<_> = match self.searched.replace(version) {
            None => (0..events.len()).collect(),
            Some(searched) if searched == version => return Vec::new(),
            Some(_) => std::mem::take(&mut self.missing),
        };
        let (pid, libjvm) = match &self.who {
            Who::Jvm(jvm) => (jvm.0.pid(), Some(&jvm.0.libjvm)),
            Who::Future(process) | Who::Other(process) => (process.pid, None),
        };
        let mut failed = Vec::new();
        for number in wanted {
            let cookie = number as u64;
            let found = find(&events[number], libjvm, &self.maps).and_then(|found| {
                let Some(found) = found else { return Ok(None) };
                let mut attach = |scope| session.attach(&found.binary, &found.plans, scope, cookie);
                match (&mut shared, libjvm) {
                    (Some(shared), Some(libjvm)) if found.is_libjvm => {
                        if let Entry::Vacant(file) = shared.entry((libjvm.id, number)) {
                            file.insert(attach(Scope::Everyone)?);
                        }
                        Ok(None)
                    }
                    _ => attach(Scope::Process(pid)).map(Some),
                }
            });
            match found {
                Ok(links) => self.links.extend(links.unwrap_or_default()),
                Err(error) => {
                    // It may be in a file that is mapped later.
                    if !matches!(events[number].what, What::Java(_)) {
                        self.missing.push(number);
                    }
                    failed.push((number, error));
                }
            }
        }
        if is_first { failed } else { Vec::new() }
    }

    /// Takes no more events of its files, nor of what it compiles.
    pub fn stop_events(&mut self) {
        self.links = Links::default();
    }
}
