//! The thread that listens to the probes of files, in [spells](super::spells) where they are hit
//! too often: for a daemon, which must cost nothing.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::{
    Error, Result,
    bpf::{
        self, clock,
        probes::Site,
        records::bytes,
        uprobe::{self, Uprobe},
    },
    follow::ByKey,
    own::{Idle, note, privileges},
    process::{FileId, LibJvm, Target},
    take::allocations::{
        counters::{self, Session},
        event::spells,
        probes,
        spells::{HITS, Spell, Spells, Turn, rate},
    },
};

/// Where the thread is told of files and JVMs.
#[derive(Debug)]
pub(super) struct Listening {
    jobs: Sender<Job>,
    /// Those that the thread listens to.
    files: HashMap<FileId, FileId>,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
}

#[derive(Debug)]
enum Job {
    /// Listens to a file's probes, which are attached.
    Listen(FileId, File),
    /// A JVM runs a file.
    Add(u64, FileId),
    /// It does not any more.
    Forget(u64),
    /// Lets a file's probes go.
    LetGo(FileId),
}

/// A libjvm.so whose probes are listened to.
#[derive(Debug)]
struct File {
    probes: Vec<Probe>,
    spells: Spells,
    /// By JVM, how many hits of the probes there were when they were counted last,
    jvms: HashMap<u64, Hits>,
    /// and when that was.
    counted: u64,
    /// How long it took to attach last.
    to_attach: Duration,
    /// How often it was not listened to something.
    silences: u64,
    /// Whether the last attempt to attach has failed.
    has_failed: bool,
}

#[derive(Debug)]
struct Probe {
    kind: usize,
    uprobe: Uprobe,
    /// Whether it is hit too often.
    is_hot: bool,
}

/// By kind of probe.
type Hits = [u64; 2];
const OUTSIDE: usize = 0;
const TLAB: usize = 1;

/// The maps that it reads and writes.
#[derive(Debug)]
struct Maps {
    floods: MapHandle,
    spells: MapHandle,
}

impl Listening {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Bpf`].
    pub(super) fn start(session: &Session) -> Result<Self> {
        let maps = &session.skel.maps;
        let map = |map| MapHandle::try_from(map).map_err(bpf::load_error);
        let maps = Maps { floods: map(&maps.floods)?, spells: map(&maps.spells_of)? };
        let (jobs, todo) = channel();
        let work = move || {
            privileges::keep(privileges::MAPS | privileges::ATTACH);
            Listener { maps, files: HashMap::new() }.work(&todo);
        };
        let thread = thread::Builder::new().name("listen".into()).spawn(work);
        thread.map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { jobs, files: HashMap::new(), idle: Idle::default() })
    }

    /// Listens to what a JVM tells.
    ///
    /// # Errors
    /// Why its libjvm.so cannot be attached to.
    pub(super) fn add(&mut self, key: u64, target: &Target, session: &mut Session) -> Result<()> {
        let file = target.libjvm.id;
        if let Entry::Vacant(new) = self.files.entry(file) {
            let listened = File::attach(&target.libjvm, session)?;
            new.insert(file);
            self.tell(Job::Listen(file, listened));
        }
        self.tell(Job::Add(key, file));
        Ok(())
    }

    /// Forgets a JVM that has ended.
    pub(super) fn forget(&self, key: u64) {
        self.tell(Job::Forget(key));
    }

    /// Lets go of files that no JVM has run for a while.
    pub(super) fn release<J>(&mut self, jvms: &ByKey<J>) {
        let used = jvms.values().map(|jvm| jvm.target.libjvm.id);
        for file in self.idle.release(&mut self.files, used, Instant::now()) {
            self.tell(Job::LetGo(file));
        }
    }

    fn tell(&self, job: Job) {
        // It ends with us.
        let _ = self.jobs.send(job);
    }
}

impl File {
    fn attach(libjvm: &LibJvm, session: &mut Session) -> Result<Self> {
        let file = Arc::new(libjvm.file()?);
        let mut probes = Vec::new();
        for plan in probes::sampled(libjvm)? {
            let Site::Function { offset, .. } = plan.site else { continue };
            let program = session.program(plan.program)?;
            let mut uprobe = Uprobe::new(Arc::clone(&file), offset, program)?;
            uprobe.attach()?;
            let kind = if plan.program == probes::OUTSIDE { OUTSIDE } else { TLAB };
            probes.push(Probe { kind, uprobe, is_hot: false });
        }
        let now = clock::monotonic_ns();
        Ok(Self {
            probes,
            spells: Spells::new(now),
            jvms: HashMap::new(),
            counted: now,
            to_attach: Duration::ZERO,
            silences: 0,
            has_failed: false,
        })
    }

    /// What its JVMs are to be told; `None`: that all was heard, always.
    fn told(&self) -> Option<spells> {
        let of = |kind| {
            let is_hot = self.probes.iter().any(|probe| probe.kind == kind && probe.is_hot);
            let spell = if is_hot { self.spells.told() } else { Spell::ALWAYS };
            spell.into()
        };
        let silences = self.silences;
        (silences > 0).then(|| spells { outside: of(OUTSIDE), tlab: of(TLAB), silences })
    }

    /// The hits of each kind since they were counted last, of the JVM that had most of it.
    fn count(&mut self, maps: &Maps) -> Hits {
        let mut most = Hits::default();
        for (key, before) in &mut self.jvms {
            let Some(flood) = counters::flood(&maps.floods, *key) else { continue };
            let now = [flood.outside_hits, flood.tlab_hits];
            for kind in [OUTSIDE, TLAB] {
                most[kind] = most[kind].max(now[kind].saturating_sub(before[kind]));
            }
            *before = now;
        }
        most
    }

    /// Does what is due: listens, or listens no more.
    fn turn(&mut self, maps: &Maps, now: u64) {
        if self.spells.due_to_attach(now) {
            return self.listen(maps);
        }
        let hits = self.count(maps);
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.counted, now));
        let heard_for = self.spells.heard_for(now);
        let in_spells = self.probes.iter().any(|probe| probe.is_hot);
        let of_all = |probe: &&Probe| probe.is_hot || !in_spells;
        let counted = self.probes.iter().filter(of_all).map(|probe| hits[probe.kind]).sum();
        match self.spells.due(now, counted) {
            Turn::LetGo => {
                let most = self.probes.iter().map(|probe| hits[probe.kind]).max().unwrap_or(0);
                for probe in &mut self.probes {
                    let (hits, time) =
                        (hits[probe.kind], if probe.is_hot { heard_for } else { elapsed });
                    // What is hit seldom costs little, and is heard as it is.
                    probe.is_hot = rate(hits, time) > HITS / 4.0 || (probe.is_hot && hits == most);
                }
                self.silences += 1;
                self.tell(maps);
                let begin = Instant::now();
                self.let_go();
                self.spells.takes(self.to_attach, begin.elapsed());
            }
            Turn::HearAll => {
                self.probes.iter_mut().for_each(|probe| probe.is_hot = false);
                self.tell(maps);
            }
            Turn::Stay => {}
        }
    }

    /// A spell begins.
    fn listen(&mut self, maps: &Maps) {
        let begin = Instant::now();
        let mut hot = self.probes.iter_mut().filter(|probe| probe.is_hot);
        let attached = hot.try_for_each(|probe| probe.uprobe.attach());
        let has_failed = std::mem::replace(&mut self.has_failed, attached.is_err());
        match attached {
            Ok(()) => {
                self.to_attach = begin.elapsed();
                self.spells.attached(clock::monotonic_ns());
                self.tell(maps);
            }
            Err(error) => {
                if !has_failed {
                    note(&format!("allocations are not heard of until it succeeds: {error}"));
                }
                self.let_go();
                self.spells.failed(clock::monotonic_ns());
            }
        }
    }

    fn let_go(&mut self) {
        let hot = self.probes.iter_mut().filter(|probe| probe.is_hot);
        uprobe::let_go(hot.map(|probe| &mut probe.uprobe));
    }

    fn tell(&self, maps: &Maps) {
        let told = self.told();
        self.jvms.keys().for_each(|key| maps.tell(*key, told.as_ref()));
    }
}

impl Maps {
    fn tell(&self, key: u64, told: Option<&spells>) {
        let key = key.to_ne_bytes();
        // Where it is absent, all is heard. There is room for as many as there are JVMs.
        let _ = match told {
            Some(told) => self.spells.update(&key, bytes(told), MapFlags::ANY),
            None => self.spells.delete(&key),
        };
    }
}

/// What the thread has.
struct Listener {
    maps: Maps,
    files: HashMap<FileId, File>,
}

impl Listener {
    fn work(mut self, todo: &Receiver<Job>) {
        loop {
            let wait = self.next().saturating_sub(clock::monotonic_ns());
            match todo.recv_timeout(Duration::from_nanos(wait)) {
                Ok(job) => self.take(job),
                Err(RecvTimeoutError::Timeout) => self.turn(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::Listen(id, file) => drop(self.files.insert(id, file)),
            Job::Add(key, id) => {
                self.forget(key);
                let Some(file) = self.files.get_mut(&id) else { return };
                file.jvms.insert(key, Hits::default());
                self.maps.tell(key, file.told().as_ref());
            }
            Job::Forget(key) => self.forget(key),
            Job::LetGo(id) => {
                let file = self.files.remove(&id);
                file.iter()
                    .flat_map(|file| file.jvms.keys())
                    .for_each(|k| self.maps.tell(*k, None));
            }
        }
    }

    fn forget(&mut self, key: u64) {
        for file in self.files.values_mut() {
            if file.jvms.remove(&key).is_some() {
                self.maps.tell(key, None);
            }
        }
    }

    /// When there is something to do. Spells come one after the other: to let go takes a while, in
    /// which others would go on.
    fn next(&self) -> u64 {
        let in_spell = self.files.values().any(|file| file.spells.is_in_spell());
        let waits = |file: &&File| in_spell && file.spells.is_silent();
        let next = self.files.values().filter(|file| !waits(file)).map(|file| file.spells.next());
        next.min().unwrap_or(u64::MAX)
    }

    fn turn(&mut self) {
        let (now, next) = (clock::monotonic_ns(), self.next());
        let is_due = |file: &&mut File| now >= next && file.spells.next() == next;
        if let Some(file) = self.files.values_mut().find(is_due) {
            file.turn(&self.maps, now);
        }
    }
}
