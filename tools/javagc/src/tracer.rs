//! The trace itself: attach, take events, notice who comes and goes, sum up.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use libjvmprobe::{
    Error, Pid,
    bpf::{
        self, clock,
        idle::Idle,
        probes::{Links, Plan, Scope},
        walker::Walker,
    },
    cli::{self, Schedule},
    follow::{Arrival, Arrivals, ready},
    hotspot::{Collector, HotSpot},
    own::note,
    process::{Fate, FileId, Target},
};

use crate::{
    args::Args, event::Event, instants, jvm::Jvm, record::Record, report::Report,
    requests::Requests, session::Session, summary::Totals,
};

/// How often to look for JVMs that end, start or get ready.
const TICK: Duration = Duration::from_millis(200);

/// A running trace.
pub struct Tracer<'a> {
    args: &'a Args,
    report: Report,
    session: Session,
    /// By the key that the kernel side knows them by.
    jvms: BTreeMap<u64, Jvm>,
    /// Attachments to a file, for all processes that map it.
    files: HashMap<FileId, Attached>,
    /// Where every JVM is traced.
    arrivals: Option<Arrivals>,
    requests: Requests,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
}

/// Attachments to a file: what the JVMs that run it need together.
#[derive(Default)]
struct Attached {
    links: Vec<Links>,
    /// What was attached, by program and place.
    plans: HashSet<(&'static str, String)>,
    /// For JVMs with these collectors.
    collectors: HashSet<Option<Collector>>,
}

impl<'a> Tracer<'a> {
    /// Attaches to the JVMs that the arguments name, all or none.
    pub fn start(args: &'a Args, report: Report) -> Result<Self> {
        let targets: Vec<_> =
            args.pids.iter().map(|&pid| Target::open(pid)).collect::<Result<_, _>>()?;
        let hotspots: Vec<_> =
            targets.iter().map(ready::wait_for_any_vm).collect::<Result<_, _>>()?;
        let plans: Vec<_> = targets
            .iter()
            .zip(&hotspots)
            .map(|(target, hotspot)| instants::plan(&target.libjvm, hotspot.as_ref().ok(), args))
            .collect::<Result<_, _>>()?;
        // JVMs still to come may need any of the programs.
        let programs: HashSet<_> = plans.iter().flatten().map(|plan| plan.program).collect();
        let session = Session::load((!args.all).then_some(&programs), args.stack)?;
        let mut tracer = Self {
            args,
            report,
            session,
            jvms: BTreeMap::new(),
            files: HashMap::new(),
            arrivals: args.all.then(|| Arrivals::open(args.verbose)),
            requests: Requests::default(),
            idle: Idle::default(),
        };
        for ((target, hotspot), plans) in targets.into_iter().zip(hotspots).zip(plans) {
            tracer.add_alone(target, hotspot, &plans)?;
        }
        tracer.look()?;
        Ok(tracer)
    }

    /// Takes events until the trace is over, then sums up.
    pub fn run(mut self, stop: &AtomicBool) -> Result<()> {
        let Args { duration, interval, count, .. } = *self.args;
        let mut schedule = Schedule::new(Instant::now(), TICK, duration, interval, count);
        loop {
            let next_look = self.arrivals.as_ref().map(Arrivals::next_look);
            self.take_events(schedule.timeout(Instant::now(), next_look))?;
            self.look()?;
            let due = schedule.due(Instant::now());
            if stop.load(Ordering::Relaxed) || self.report.is_closed() {
                break;
            }
            if due.report {
                self.note_lost()?;
                self.summarize()?;
                if due.end {
                    return Ok(());
                }
            }
            if due.end {
                break;
            }
            if due.tick {
                self.tick()?;
                if self.jvms.is_empty() && !self.args.all {
                    return Ok(());
                }
            }
        }
        self.take_events(Duration::ZERO)?;
        self.note_lost()?;
        self.summarize()
    }

    /// One line about what is traced.
    pub fn describe(&self) -> String {
        let collector = |jvm: &Jvm| jvm.hotspot().map_or("", |h| h.collector.name());
        let jvms = self.jvms.values().map(|jvm| (jvm.target.pid(), collector(jvm)));
        cli::describe(self.args.all, jvms)
    }

    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        for event in self.session.events(timeout)? {
            let key = event.target();
            // What happened in a JVM before it was known is not told.
            let Some(jvm) = self.jvms.get_mut(&key) else { continue };
            match (&event, self.session.walker()) {
                (Event::Request(request), _) => self.requests.take(request),
                (Event::Stack(number, stack), Some(walker)) => {
                    self.requests.take_stack(*number, stack, jvm.hotspot(), walker)?;
                }
                _ => {}
            }
            if let Some(mut record) = jvm.take(&event) {
                if let Record::Pause(stop) = &mut record {
                    self.requests.settle(key, stop);
                }
                self.report.record(&record)?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<()> {
        self.note_lost()?;
        let fates: Vec<_> = self.jvms.iter().map(|(key, jvm)| (*key, jvm.fate())).collect();
        if fates.iter().any(|(_, fate)| *fate != Fate::Alive) {
            // The last stops may have come between the last wait and the end.
            self.take_events(Duration::ZERO)?;
        }
        for (key, fate) in fates.into_iter().filter(|(_, fate)| *fate != Fate::Alive) {
            let Some(jvm) = self.jvms.remove(&key) else {
                continue;
            };
            let pid = jvm.target.pid();
            note(&match fate {
                Fate::Execed => format!("process {pid} runs another program now"),
                _ => format!("process {pid} has ended"),
            });
            self.report.record(&jvm.summary(clock::monotonic_ns()))?;
            self.session.forget(key);
            self.requests.forget(key);
            if let Some(arrivals) = &mut self.arrivals {
                arrivals.forget(pid);
            }
        }
        let used = self.jvms.values().map(|jvm| jvm.target.libjvm.id);
        self.idle.release(&mut self.files, used, Instant::now());
        for jvm in self.jvms.values_mut() {
            jvm.stops.look(&jvm.target.process);
        }
        self.learn_more()
    }

    /// Tells the kernel side what JVMs tell that were setting themselves up.
    fn learn_more(&mut self) -> Result<()> {
        let mut set_up = Vec::new();
        for (key, jvm) in &mut self.jvms {
            if let Some(hotspot) = jvm.learn_more() {
                self.session.set_gauge(*key, &hotspot.gauge)?;
                set_up.push(*key);
            }
        }
        for key in set_up {
            if let (Some(walker), Some(jvm)) = (self.session.walker(), self.jvms.get(&key)) {
                know_stacks(&mut self.requests, walker, key, jvm.target.pid(), jvm.hotspot());
            }
        }
        Ok(())
    }

    fn note_lost(&mut self) -> Result<()> {
        for (key, jvm) in &mut self.jvms {
            let now = clock::rfc3339(clock::monotonic_ns());
            if let Some(record) = jvm.note_lost(self.session.lost(*key), now) {
                self.report.record(&record)?;
            }
        }
        Ok(())
    }

    fn summarize(&mut self) -> Result<()> {
        let now = clock::monotonic_ns();
        for jvm in self.jvms.values_mut() {
            self.report.record(&jvm.summary(now))?;
            jvm.stops.tell(&jvm.target.process);
            jvm.next_interval(now);
        }
        Ok(())
    }

    /// Adds JVMs that are new, with what they need attached.
    fn look(&mut self) -> Result<()> {
        let arrivals = self.arrivals.as_mut().map(Arrivals::take).unwrap_or_default();
        // First of all, so that nothing of any is missed once something is attached.
        for Arrival { target, hotspot } in &arrivals {
            if bpf::reaches_everyone() {
                let key = key_in_file(target);
                self.set_gauge(key, hotspot.as_ref().ok());
                self.know_stacks(key, target.pid(), hotspot.as_ref().ok());
            }
        }
        for Arrival { target, hotspot } in arrivals {
            let pid = target.pid();
            if let Err(error) = self.add_found(target, hotspot) {
                note(&format!("process {pid} is not traced: {error}"));
            }
            self.session.make_room()?;
        }
        self.learn_more()
    }

    fn add_found(&mut self, target: Target, hotspot: Result<HotSpot, Error>) -> Result<(), Error> {
        if !bpf::reaches_everyone() {
            // Hits of several processes could not be told apart: attach one by one.
            let plans = instants::plan(&target.libjvm, hotspot.as_ref().ok(), self.args)?;
            return self.add_alone(target, hotspot, &plans);
        }
        self.attach_to_file(&target, hotspot.as_ref().ok())?;
        self.add(key_in_file(&target), target, hotspot, None);
        Ok(())
    }

    /// Attaches to the file that a JVM runs what no JVM before it has needed.
    fn attach_to_file(&mut self, target: &Target, hotspot: Option<&HotSpot>) -> Result<(), Error> {
        let attached = self.files.entry(target.libjvm.id).or_default();
        let collector = hotspot.map(|hotspot| hotspot.collector);
        if attached.collectors.contains(&collector) {
            return Ok(());
        }
        let mut plans = instants::plan(&target.libjvm, hotspot, self.args)?;
        let place = |plan: &Plan| (plan.program, format!("{:?}", plan.site));
        plans.retain(|plan| !attached.plans.contains(&place(plan)));
        let scope = Scope::Everyone;
        attached.links.push(self.session.attach(&target.libjvm, &plans, scope, 0, note_loss)?);
        attached.plans.extend(plans.iter().map(place));
        attached.collectors.insert(collector);
        Ok(())
    }

    /// Adds a JVM with attachments of its own.
    fn add_alone(
        &mut self,
        target: Target,
        hotspot: Result<HotSpot, Error>,
        plans: &[Plan],
    ) -> Result<(), Error> {
        let pid = target.pid();
        let key = bpf::key_alone(pid);
        // Before the first event, which wants to know the heap already.
        self.set_gauge(key, hotspot.as_ref().ok());
        self.know_stacks(key, pid, hotspot.as_ref().ok());
        if let Some(walker) = self.session.walker() {
            walker.settle();
        }
        let links =
            self.session.attach(&target.libjvm, plans, Scope::Process(pid), key, note_loss)?;
        self.add(key, target, hotspot, Some(links));
        Ok(())
    }

    fn add(
        &mut self,
        key: u64,
        target: Target,
        hotspot: Result<HotSpot, Error>,
        links: Option<Links>,
    ) {
        if let Err(error) = &hotspot {
            note(&format!(
                "process {}: collector, heap and causes are not known yet: {error}",
                target.pid()
            ));
        }
        if self.args.verbose {
            let path = target.libjvm.seen_as.display();
            note(&format!("process {} runs {path}", target.pid()));
        }
        let now = clock::monotonic_ns();
        let totals = Totals::new(now, self.args.histogram);
        let mut jvm = Jvm::new(target, hotspot, now, totals, self.args.pools, links);
        jvm.forgive(self.session.lost(key));
        self.jvms.insert(key, jvm);
    }

    /// Gets ready for the stacks of a JVM that has set itself up. Before anything is
    /// attached: the first stack wants to be walked, too.
    fn know_stacks(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let Some(walker) = self.session.walker() {
            know_stacks(&mut self.requests, walker, key, pid, hotspot);
        }
    }

    fn set_gauge(&self, key: u64, hotspot: Option<&HotSpot>) {
        if let Some(hotspot) = hotspot
            && let Err(error) = self.session.set_gauge(key, &hotspot.gauge)
        {
            note(&error.to_string());
        }
    }
}

/// The key of a JVM that is seen through attachments to its file.
fn key_in_file(target: &Target) -> u64 {
    target.pid().0.into()
}

fn know_stacks(
    requests: &mut Requests,
    walker: &mut Walker,
    key: u64,
    pid: Pid,
    hotspot: Option<&HotSpot>,
) {
    if let Some(hotspot) = hotspot.filter(|hotspot| hotspot.is_set_up)
        && let Err(error) = requests.add(key, pid, hotspot, walker)
    {
        note(&format!("stacks of process {pid} are not shown: {error}"));
    }
}

fn note_loss(loss: &str) {
    note(&format!("{loss}: CAP_SYS_ADMIN is missing"));
}
