//! What is done with JVMs that are followed: gauges and stacks for them, records of them.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use libbpf_rs::MapCore;

use crate::{
    Error, Pid, Result,
    bpf::{
        clock,
        probes::Plan,
        session::{self, Attach},
    },
    follow::{ByKey, Followed, Named, Tool},
    hotspot::{Collector, HotSpot},
    own::{Pace, note},
    process::{FileId, Target},
    render::table::Lost,
    take::pauses::{
        counted::{self, Counted},
        event::Event,
        model::Jvm,
        probes,
        record::Record,
        requests::Requests,
        session::{Session, load},
        summary::Totals,
    },
};

/// What is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Every JVM, also those that start later, not those only that are named.
    pub all: bool,
    /// Each memory pool before and after; this lengthens the pauses a little.
    pub pools: bool,
    /// The Java stack of each System.gc().
    pub stacks: bool,
    /// Histograms of pauses and stops in the totals.
    pub histogram: bool,
    /// No totals: who takes each record adds them up. Of hundreds of JVMs they are large.
    pub no_totals: bool,
    /// How soon events are read.
    pub pace: Pace,
}

/// Who is told.
pub trait Sink {
    /// Takes a record: a stop or a cycle when it is over, totals of a JVM when an interval is over
    /// or the JVM has ended, and what was lost.
    ///
    /// # Errors
    /// Where the trace cannot go on.
    fn record(&mut self, record: &Record) -> Result<()>;

    /// Whether nobody wants more of it: then the trace ends.
    fn is_closed(&self) -> bool {
        false
    }
}

/// A trace of collections, for [`crate::follow::Trace`].
pub struct Taker<S> {
    /// Who is told.
    pub sink: S,
    options: Options,
    session: Session,
    requests: Requests,
    /// Why nothing can be attached, of each file with each collector that was looked at: that takes
    /// reading the file's symbols.
    unattached: HashMap<(FileId, Collector), Option<String>>,
    /// How many JVMs run each file.
    users: HashMap<FileId, usize>,
    /// JVMs that nothing can be attached to.
    counted: HashMap<u64, Counted>,
}

/// What to attach to a JVM's libjvm.so; nothing where that has neither probes nor symbols, and the
/// JVM's own counters must do.
fn plan(target: &Target, hotspot: Option<&HotSpot>, options: &Options) -> Result<Vec<Plan>> {
    let must_attach = options.pools || options.stacks;
    match probes::plan(&target.libjvm, hotspot, options) {
        Err(Error::NoProbes { .. })
            if !must_attach && hotspot.is_some_and(HotSpot::counts_pauses) =>
        {
            Ok(Vec::new())
        }
        plans => plans,
    }
}

impl<S: Sink> Taker<S> {
    /// Loads what those that are named need; JVMs still to come may need any of the programs.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`]
    /// where the kernel refuses, [`Error::NoProbes`].
    pub fn new(options: Options, sink: S, named: &[Named]) -> Result<Self> {
        let of = |(target, hotspot): &Named| plan(target, hotspot.as_ref().ok(), &options);
        let plans = named.iter().map(of).collect::<Result<Vec<_>>>()?;
        let programs: HashSet<_> = plans.iter().flatten().map(|plan| plan.program).collect();
        let session = load((!options.all).then_some(&programs), options.stacks, options.pace)?;
        Ok(Self {
            options,
            sink,
            session,
            requests: Requests::default(),
            unattached: HashMap::new(),
            users: HashMap::new(),
            counted: HashMap::new(),
        })
    }

    /// Tells what is not told yet of JVMs that still run, when the trace is over.
    ///
    /// # Errors
    /// What the sink says.
    pub fn finish(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.report(jvms)
    }
}

impl<S: Sink> Tool for Taker<S> {
    type Jvm = Jvm;
    const TAKES_YOUNG: bool = true;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>> {
        plan(target, hotspot, &self.options)
    }

    /// The first stop wants to know the heap already, and the first stack to be walked.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        let Some(hotspot) = hotspot else { return };
        let gauges = &self.session.skel.maps.gauges;
        let what = "tell the kernel about the heap";
        if let Err(error) = session::tell(gauges, key, &hotspot.gauge.to_bytes(), what) {
            note(&error.to_string());
        }
        if let Some(walker) = self.session.walker().filter(|_| hotspot.is_set_up)
            && let Err(error) = self.requests.add(key, pid, hotspot, walker)
        {
            note(&format!("stacks of process {pid} are not shown: {error}"));
        }
    }

    fn admit(&mut self, key: u64, target: &Target, hotspot: &Result<HotSpot>) -> Result<Jvm> {
        let pid = target.pid();
        *self.users.entry(target.libjvm.id).or_default() += 1;
        if let Err(error) = hotspot {
            let what = "collector, heap and causes are not known yet";
            note(&format!("process {pid}: {what}: {error}"));
        }
        let why = hotspot.as_ref().ok().and_then(|hotspot| {
            let of = (target.libjvm.id, hotspot.collector);
            let look = || {
                let plans = probes::plan(&target.libjvm, Some(hotspot), &self.options);
                plans.err().map(|why| why.to_string())
            };
            self.unattached.entry(of).or_insert_with(look).clone()
        });
        if let (Ok(hotspot), Some(why)) = (hotspot, why) {
            self.counted.insert(key, Counted::begin(hotspot.counts()?));
            let every = counted::look(self.options.pace).as_millis();
            note(&format!(
                "process {pid}: pauses are told by its own counters, looked at each {every} ms: of \
                 several at once the number and the sum, and neither operations, other stops nor \
                 the heap; for {why}"
            ));
        }
        let now = clock::monotonic_ns();
        let Options { pools, histogram, no_totals, .. } = self.options;
        let totals = (!no_totals).then(|| Totals::new(now, histogram));
        Ok(Jvm::new(pid.0, totals, now, pools))
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        let timeout = match self.counted.is_empty() {
            true => timeout,
            false => timeout.min(counted::look(self.options.pace)),
        };
        for event in self.session.events(timeout)? {
            let key = event.target();
            // What happened in a JVM before it was known is not told.
            let Some(Followed { jvm, hotspot, .. }) = jvms.get_mut(&key) else { continue };
            let hotspot = hotspot.as_ref().ok();
            match (&event, self.session.walker()) {
                (Event::Request(request), _) => self.requests.take(request),
                (Event::Stack(number, stack), Some(walker)) => {
                    self.requests.take_stack(*number, stack, hotspot, walker)?;
                }
                _ => {}
            }
            if let Some(mut record) = jvm.take(&event, hotspot) {
                if let Record::Pause(stop) = &mut record {
                    self.requests.settle(key, stop);
                }
                self.sink.record(&record)?;
            }
        }
        for (key, counted) in &mut self.counted {
            let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(key) else {
                continue;
            };
            // When it has ended, that is soon seen.
            let Ok(counts) = hotspot.counts() else { continue };
            for found in counted.look(counts, clock::monotonic_ns()) {
                self.sink.record(&jvm.count(found, hotspot))?;
            }
        }
        Ok(())
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.requests.let_go(self.session.walker());
        self.take_events(jvms, Duration::ZERO)
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        followed.jvm.lost(events);
        self.sink.record(&Record::Lost(Lost::now(followed.target.pid().0, events)))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        let now = clock::monotonic_ns();
        for followed in jvms.values_mut() {
            if let Some(summary) = followed.jvm.summary(followed.hotspot.as_ref().ok(), now) {
                self.sink.record(&summary)?;
            }
            followed.tell_stops();
            followed.jvm.next_interval(now);
        }
        let superfluous = self.requests.superfluous();
        for number in &superfluous {
            // First there: what is needed again is sent again, behind this.
            let _ = self.session.skel.maps.known_stacks.delete(&number.to_ne_bytes());
        }
        self.requests.forget_stacks(&superfluous);
        Ok(())
    }

    fn gone(&mut self, key: u64, followed: Followed<Jvm>) -> Result<()> {
        self.requests.forget(key);
        self.counted.remove(&key);
        let file = followed.target.libjvm.id;
        if let Some(users) = self.users.get_mut(&file) {
            *users -= 1;
        }
        // Its number may be another file's once nobody runs it.
        self.users.retain(|_, users| *users > 0);
        let users = &self.users;
        self.unattached.retain(|(file, _), _| users.contains_key(file));
        let now = clock::monotonic_ns();
        match followed.jvm.summary(followed.hotspot(), now) {
            Some(summary) => self.sink.record(&summary),
            None => Ok(()),
        }
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}
