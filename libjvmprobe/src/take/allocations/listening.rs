//! The thread that listens to the probes of files, in [spells](super::spells) where they are hit
//! too often: for a daemon, which must cost nothing.
//!
//! One budget is shared by all JVMs, max-min fairly: many JVMs with few hits each count together, and the
//! JVM that costs most is limited first. Probes are attached to files, so that the JVMs of one file
//! have their on periods together.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, Mutex, PoisonError,
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
        cost::Runs,
        probes::Site,
        records::bytes,
        trap::prices,
        uprobe::{self, Uprobe},
    },
    follow::ByKey,
    own::{Idle, fair_share, note, privileges},
    process::{FileId, LibJvm, Target},
    take::allocations::{
        counters::{self, Session},
        event::spells,
        probes,
        spells::{Spell, Spells, Turn, ns, rate},
    },
};

/// The budget of all JVMs until another one is set, in shares of a processor.
pub(super) const BUDGET: f64 = 0.005;
/// The assumed run time of the programs until some runs were measured, in nanoseconds.
const FIRST_RUN_NS: f64 = 2000.0;
/// The average run time follows new runs by this part.
const FOLLOW: f64 = 0.25;

/// Hits without a program, by JVM: detaching takes a while, in which the traps go on.
type Unseen = Arc<Mutex<HashMap<u64, f64>>>;

/// Where the thread is told of files and JVMs.
#[derive(Debug)]
pub(super) struct Listening {
    jobs: Sender<Job>,
    /// Those that the thread listens to.
    files: HashMap<FileId, FileId>,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
    unseen: Unseen,
}

#[derive(Debug)]
enum Job {
    /// Sets the budget, in shares of a processor.
    Budget(f64),
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
    jvms: HashMap<u64, Jvm>,
    /// When hits were counted last.
    counted: u64,
    /// How long it took to attach last, and to detach.
    to_attach: Duration,
    to_let_go: Duration,
    /// How often it was not listened to something.
    silences: u64,
    /// Whether the last attempt to attach has failed.
    has_failed: bool,
    /// Until when the ends of threads are not listened to, because there were too many.
    no_ends_until: Option<u64>,
}

#[derive(Debug)]
struct Probe {
    kind: usize,
    uprobe: Uprobe,
    /// Whether it is hit too often.
    is_hot: bool,
}

/// A JVM that runs the file.
#[derive(Clone, Copy, Debug, Default)]
struct Jvm {
    /// How many hits there were when they were counted last.
    hits: Hits,
    /// The runs of programs that were measured by then.
    runs: Runs,
    /// Hits per second of each kind while it is attached.
    rates: [f64; KINDS.len()],
}

impl Jvm {
    /// Cost of all its hits while the probes are attached, in shares of a processor.
    fn cost(&self, hit_ns: f64) -> f64 {
        self.rates.iter().sum::<f64>() * hit_ns / 1e9
    }
}

/// By kind of probe.
type Hits = [u64; KINDS.len()];
const OUTSIDE: usize = 0;
const TLAB: usize = 1;
/// Ends of threads. This probe is attached all the time or, if it costs too much, not at all: an end that is
/// seen represents this thread alone.
const END: usize = 2;
const KINDS: [usize; 3] = [OUTSIDE, TLAB, END];
/// After this time, ends of threads that were too many are listened to again.
const RETRY_ENDS: Duration = Duration::from_secs(60);

/// The maps that it reads and writes.
#[derive(Debug)]
struct Maps {
    floods: MapHandle,
    spells: MapHandle,
    costs: MapHandle,
}

impl Listening {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Bpf`].
    pub(super) fn start(session: &Session) -> Result<Self> {
        let maps = &session.skel.maps;
        let map = |map| MapHandle::try_from(map).map_err(bpf::load_error);
        let maps = Maps {
            floods: map(&maps.floods)?,
            spells: map(&maps.spells_of)?,
            costs: map(&maps.costs)?,
        };
        let (jobs, todo) = channel();
        let unseen = Unseen::default();
        let listener = Listener {
            maps,
            files: HashMap::new(),
            budget: BUDGET,
            run_ns: FIRST_RUN_NS,
            unseen: Arc::clone(&unseen),
        };
        let work = move || {
            privileges::keep(privileges::MAPS | privileges::ATTACH);
            listener.work(&todo);
        };
        let thread = thread::Builder::new().name("listen".into()).spawn(work);
        thread.map_err(|e| Error::io("start a thread", e))?;
        Ok(Self { jobs, files: HashMap::new(), idle: Idle::default(), unseen })
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

    /// Sets what the probes may cost all JVMs together, in shares of a processor.
    pub(super) fn set_budget(&self, budget: f64) {
        self.tell(Job::Budget(budget));
    }

    /// Returns hits since the last call that no program has counted, by JVM.
    pub(super) fn take_unseen(&self) -> HashMap<u64, f64> {
        std::mem::take(&mut self.unseen.lock().unwrap_or_else(PoisonError::into_inner))
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
            let kind = match plan.program {
                probes::OUTSIDE => OUTSIDE,
                probes::THREAD_END => END,
                _ => TLAB,
            };
            probes.push(Probe { kind, uprobe, is_hot: false });
        }
        let now = clock::monotonic_ns();
        Ok(Self {
            probes,
            spells: Spells::new(now),
            jvms: HashMap::new(),
            counted: now,
            to_attach: Duration::ZERO,
            to_let_go: Duration::ZERO,
            silences: 0,
            has_failed: false,
            no_ends_until: None,
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

    /// Counts the hits since the last time, of each JVM. Returns the run time of the programs, and how many
    /// runs that was.
    fn count(&mut self, maps: &Maps, elapsed: u64, heard_for: u64) -> (u64, u64) {
        let hot = KINDS.map(|kind| self.is_hot(kind));
        let mut runs = (0, 0);
        for (key, jvm) in &mut self.jvms {
            if let Some(now) = Runs::of(&maps.costs, *key) {
                let new = now.since(&jvm.runs);
                jvm.runs = now;
                runs = (runs.0 + new.timed_ns, runs.1 + new.timed);
            }
            let Some(flood) = counters::flood(&maps.floods, *key) else { continue };
            let now = [flood.outside_hits, flood.tlab_hits, flood.ends];
            for kind in KINDS {
                let hits = now[kind].saturating_sub(jvm.hits[kind]);
                jvm.rates[kind] = rate(hits, if hot[kind] { heard_for } else { elapsed });
            }
            jvm.hits = now;
        }
        runs
    }

    fn is_hot(&self, kind: usize) -> bool {
        self.probes.iter().any(|probe| probe.kind == kind && probe.is_hot)
    }

    /// Hits per second of one kind while it is attached, of all JVMs.
    fn rate(&self, kind: usize) -> f64 {
        self.jvms.values().map(|jvm| jvm.rates[kind]).sum()
    }

    /// Does what is due after hits were counted: listens no more, or all the time. `hit_ns` is what one hit
    /// costs, and `share` what each JVM may cost.
    fn turn(&mut self, maps: &Maps, now: u64, hit_ns: f64, share: f64) {
        let allowed: f64 = self.jvms.values().map(|jvm| jvm.cost(hit_ns).min(share)).sum();
        let cost_of = |kind| self.rate(kind) * hit_ns / 1e9;
        let mut costs = KINDS.map(cost_of);
        if self.turn_ends(now, costs[END] > allowed / 4.0) {
            costs[END] = 0.0;
        }
        // Probes that are attached all the time leave the rest of the budget to the others.
        let in_spells = self.probes.iter().any(|probe| probe.is_hot);
        let kinds = KINDS.into_iter();
        let always = kinds.filter(|&kind| in_spells && !self.is_hot(kind));
        let always: f64 = always.map(|kind| costs[kind]).sum();
        let cost = costs.iter().sum::<f64>() - always;
        let allowed = (allowed - always).max(allowed / 4.0);
        match self.spells.due(now, cost, allowed) {
            Turn::LetGo => {
                let most = costs[OUTSIDE].max(costs[TLAB]);
                for probe in self.probes.iter_mut().filter(|probe| probe.kind != END) {
                    let cost = costs[probe.kind];
                    // What is hit seldom costs little, and is heard as it is.
                    probe.is_hot = cost > allowed / 4.0 || (probe.is_hot && cost == most);
                }
                self.silences += 1;
                self.tell(maps);
                let begin = Instant::now();
                self.let_go();
                self.to_let_go = begin.elapsed();
                self.spells.takes(self.to_attach, self.to_let_go);
            }
            Turn::HearAll => {
                self.probes.iter_mut().for_each(|probe| probe.is_hot = false);
                self.tell(maps);
            }
            Turn::Stay => {}
        }
    }

    /// Listens to the ends of threads no more where they are too many, and again after a while. Returns
    /// whether it does not listen to them.
    fn turn_ends(&mut self, now: u64, are_too_many: bool) -> bool {
        let mut ends = self.probes.iter_mut().filter(|probe| probe.kind == END).peekable();
        match self.no_ends_until {
            _ if ends.peek().is_none() => {}
            None if are_too_many => {
                uprobe::let_go(ends.map(|probe| &mut probe.uprobe));
                self.no_ends_until = Some(now + ns(RETRY_ENDS));
            }
            Some(until) if now >= until => {
                let attached = ends.try_for_each(|probe| probe.uprobe.attach());
                self.no_ends_until = attached.err().map(|_| now + ns(RETRY_ENDS));
            }
            _ => {}
        }
        self.no_ends_until.is_some()
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

    /// Detaches what is hit too often.
    fn let_go(&mut self) {
        let hot = self.probes.iter_mut().filter(|probe| probe.is_hot);
        uprobe::let_go(hot.map(|probe| &mut probe.uprobe));
    }

    /// Returns the hits in a time of probes that are hit too often, by JVM.
    fn hot_hits(&self, time: Duration) -> Vec<(u64, f64)> {
        let hot: Vec<_> = KINDS.into_iter().filter(|&kind| self.is_hot(kind)).collect();
        let of = |jvm: &Jvm| hot.iter().map(|&kind| jvm.rates[kind]).sum::<f64>();
        let hits = self.jvms.iter().map(|(key, jvm)| (*key, of(jvm) * time.as_secs_f64()));
        hits.collect()
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
    /// In shares of a processor.
    budget: f64,
    /// Average run time of the programs, in nanoseconds.
    run_ns: f64,
    unseen: Unseen,
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
            Job::Budget(budget) => self.budget = budget,
            Job::Listen(id, file) => drop(self.files.insert(id, file)),
            Job::Add(key, id) => {
                self.forget(key);
                let Some(file) = self.files.get_mut(&id) else { return };
                file.jvms.insert(key, Jvm::default());
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
        let is_due = |(_, file): &(&FileId, &File)| now >= next && file.spells.next() == next;
        let Some(id) = self.files.iter().find(is_due).map(|(id, _)| *id) else { return };
        let Some(file) = self.files.get_mut(&id) else { return };
        if file.spells.due_to_attach(now) {
            return file.listen(&self.maps);
        }
        let elapsed = now.saturating_sub(std::mem::replace(&mut file.counted, now));
        let heard_for = file.spells.heard_for(now);
        let (ns, runs) = file.count(&self.maps, elapsed, heard_for);
        if runs > 0 {
            self.run_ns += FOLLOW * (ns as f64 / runs as f64 - self.run_ns);
        }
        let hit_ns = prices().probe_ns + self.run_ns;
        let costs = self.files.values().flat_map(|file| file.jvms.values());
        let share = fair_share(costs.map(|jvm| jvm.cost(hit_ns)), self.budget);
        let Some(file) = self.files.get_mut(&id) else { return };
        let silences = file.silences;
        file.turn(&self.maps, now, hit_ns, share);
        if file.silences > silences {
            let mut unseen = self.unseen.lock().unwrap_or_else(PoisonError::into_inner);
            for (key, hits) in file.hot_hits(file.to_let_go) {
                *unseen.entry(key).or_default() += hits;
            }
        }
    }
}
