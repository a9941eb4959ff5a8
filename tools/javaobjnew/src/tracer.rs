//! What javaobjnew does with JVMs that are followed: what the kernel side counts of them goes
//! into their models.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Error, Pid, Result,
    bpf::{clock, probes::Plan, session::Attach},
    follow::{ByKey, Followed, Tool},
    hotspot::HotSpot,
    own::note,
    process::Target,
    render::table::Lost,
    stack::native::Files,
};

use crate::{
    args::Args,
    books::{Options, Scope},
    census::Budget,
    counters::{self, Session},
    event::Event,
    flames::Flames,
    model::{Jvm, kernel_layout},
    probes,
    report::Report,
    stacks::Stacks,
};

/// How often the share of TLABs that are read is adapted.
const ADAPT: Duration = Duration::from_millis(200);

/// Of 65,536 threads (before Linux 6.1: 32,768) that the kernel side can know. Beyond this,
/// it is told to forget those that have ended.
const MANY_THREADS: usize = 16_384;

/// A trace of allocations.
pub struct Tracer<'a> {
    args: &'a Args,
    report: Report,
    session: Session,
    budget: Budget,
    adapted: Instant,
    /// Files that JVMs have mapped.
    files: Files,
    /// What is ready for the stacks of JVMs that are about to be added.
    stacks: HashMap<u64, Stacks>,
    /// What all that have ended have allocated.
    pub flames: Flames,
}

impl<'a> Tracer<'a> {
    /// Loads what is needed.
    pub fn new(args: &'a Args, report: Report) -> Result<Self> {
        let budget = Budget::new();
        let mut session = counters::load(args)?;
        counters::set_tlab_share(&mut session, budget.share());
        Ok(Self {
            args,
            report,
            session,
            budget,
            adapted: Instant::now(),
            files: Files::default(),
            stacks: HashMap::new(),
            flames: Flames::new(args.max_memory),
        })
    }

    /// Reports the whole trace of a JVM.
    pub fn sum_up(&mut self, followed: &Followed<Jvm>, now_ns: u64) -> Result<()> {
        let jvm = &followed.jvm;
        let table = jvm.table(followed.hotspot(), Scope::Trace, now_ns);
        if let Some(stacks) = jvm.stacks.as_ref().filter(|_| !self.args.output.is_empty()) {
            self.flames.add(&followed.target.process.comm, &table, stacks);
        }
        self.report.table(&table, jvm.stacks.as_ref())
    }

    fn take(&mut self, followed: &mut Followed<Jvm>, event: Event) -> Result<()> {
        let Followed { jvm, hotspot: Ok(hotspot), .. } = followed else { return Ok(()) };
        match event {
            Event::Name(name) => jvm.told(name),
            Event::Large(large) => {
                if let Some(record) = jvm.large(hotspot, large) {
                    self.report.large(record)?;
                }
            }
            Event::Tlab(tlab) => {
                let stands_for = 1.0 / self.budget.share();
                self.budget.spend(|| jvm.read_tlab(hotspot, &tlab, stands_for));
            }
            Event::Stack(number, stack) => {
                if let Some(walker) = self.session.walker() {
                    jvm.take_stack(hotspot, number, &stack, &mut self.files, walker)?;
                }
            }
        }
        Ok(())
    }
}

impl Tool for Tracer<'_> {
    type Jvm = Jvm;
    const TAKES_YOUNG: bool = false;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&self, target: &Target, _: Option<&HotSpot>) -> Result<Vec<Plan>> {
        if self.args.exact {
            probes::exact(&target.libjvm)
        } else {
            probes::sampled(&target.libjvm)
        }
    }

    /// Gets ready for a JVM's stacks, where they are wanted.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        let (Some(walker), Some(hotspot)) = (self.session.walker(), hotspot) else { return };
        let stacks = Stacks::new(key, pid, hotspot, &mut self.files, walker);
        let stacks = stacks.unwrap_or_else(|error| {
            note(&format!("stacks of process {pid} are not shown: {error}"));
            Stacks::default()
        });
        self.stacks.insert(key, stacks);
    }

    /// From here on it is counted: what is attached does nothing before.
    fn admit(&mut self, key: u64, target: &Target, hotspot: &Result<HotSpot>) -> Result<Jvm> {
        let pid = target.pid();
        let Ok(hotspot) = hotspot else { return Err(Error::NoSuchProcess { pid }) };
        let stacks = self.stacks.remove(&key);
        if self.args.exact {
            probes::fires(target, hotspot)?;
        }
        let walks = stacks.as_ref().is_some_and(Stacks::are_known);
        let layout = kernel_layout(hotspot, walks)?;
        let before = if self.args.exact { Vec::new() } else { hotspot.thread_bytes()? };
        let options = Options {
            by_thread: self.args.threads,
            by_stack: stacks.is_some(),
            exact: self.args.exact,
        };
        let jvm = Jvm::new(pid, hotspot, options, stacks)?;
        counters::add(&self.session, key, &layout, &before)?;
        Ok(jvm)
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            if let Some(followed) = jvms.get_mut(&event.target()) {
                self.take(followed, event)?;
            }
        }
        let elapsed = self.adapted.elapsed();
        if elapsed >= ADAPT {
            self.adapted = Instant::now();
            let share = self.budget.adapt(elapsed);
            counters::set_tlab_share(&mut self.session, share);
        }
        Ok(())
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.files.let_go(self.session.walker());
        let tallies = counters::tallies(&self.session)?;
        // What it told before it counted.
        self.take_events(jvms, Duration::ZERO)?;
        jvms.values_mut().for_each(|followed| followed.jvm.begin_collection());
        for (key, tally) in tallies {
            if let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&key.target) {
                jvm.take(hotspot, &key, &tally);
            }
        }
        for (target, tally) in counters::others(&self.session)? {
            if let Some(followed) = jvms.get_mut(&target) {
                followed.jvm.take_others(&tally);
            }
        }
        if self.args.exact {
            return Ok(());
        }
        let mut counted = HashMap::<u64, Vec<_>>::new();
        let all = counters::counted(&self.session)?;
        for one in &all {
            counted.entry(one.target).or_default().push(one);
        }
        for (target, followed) in jvms {
            let Followed { jvm, hotspot: Ok(hotspot), .. } = followed else { continue };
            let own = counted.remove(target).unwrap_or_default();
            let ended = jvm.take_threads(hotspot, &own);
            if all.len() > MANY_THREADS {
                ended.into_iter().for_each(|one| counters::forget_thread(&self.session, one));
            }
        }
        Ok(())
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        followed.jvm.lost(events);
        self.report.lost(Lost::now(followed.target.pid().0, events))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        let now = clock::monotonic_ns();
        for followed in jvms.values_mut() {
            if self.args.prints_tables() {
                let table =
                    followed.jvm.table(followed.hotspot.as_ref().ok(), Scope::Interval, now);
                self.report.table(&table, followed.jvm.stacks.as_ref())?;
                followed.tell_stops();
            }
            followed.jvm.next_interval(now);
        }
        Ok(())
    }

    fn gone(&mut self, _: u64, followed: Followed<Jvm>) -> Result<()> {
        self.sum_up(&followed, clock::monotonic_ns())
    }

    fn is_closed(&self) -> bool {
        self.report.is_closed()
    }
}
