//! GC tracer: plans and attaches the probes, passes gauges to the kernel side, updates the model of each JVM,
//! and reports records to a sink.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, RandomState},
    mem::offset_of,
    time::{Duration, Instant},
};

use libbpf_rs::{MapCore, MapFlags};

use crate::{
    Error, Pid, Result,
    bpf::{
        clock,
        cost::Costs,
        perf,
        probes::{Links, Plan},
        records::{bytes, copy},
        session::{self, Attach},
    },
    hotspot::{HotSpot, counters::Counts},
    jvms::{ByKey, Followed, Lost, Named, Reading, Tool},
    process::{Target, cgroup, pid::thread_named, reader::within},
    sys::{Pace, warn_once},
    trace::{
        self,
        pauses::{
            counted::{self, Counted},
            cpu_wait,
            event::{self, Event, budget, counters_event, limited_stops, stop_event},
            gauge::kernel_gauge,
            model::Jvm,
            probes,
            record::{Limited, Record, Sum},
            requests::Requests,
            session::{Session, load},
            summary::Totals,
        },
    },
};

/// Options of a trace of collections.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Trace every JVM, including those that start later, instead of the named ones only.
    pub all: bool,
    /// Record each memory pool before and after a collection. This lengthens the pauses a little.
    pub pools: bool,
    /// Record the Java stack of each System.gc().
    pub stacks: bool,
    /// Add histograms of pauses and stops to the totals.
    pub histogram: bool,
    /// Keep no totals, because the sink adds up the records itself. The totals of hundreds of JVMs need much
    /// memory.
    pub no_totals: bool,
    /// How soon events are read.
    pub pace: Pace,
    /// Maximum number of stops per second of one JVM that are recorded one by one, for each kind (collections,
    /// others). Stops beyond it are only summed up, and the sums are reported by a [`Record::Limited`] per
    /// interval.
    pub max_stops_per_second: Option<u64>,
}

/// Receiver of the records.
pub trait Sink: trace::Sink {
    /// Receives a record. A stop or a cycle is received when it has ended. The totals of a JVM, and the sums
    /// of its stops that were not recorded one by one, are received when an interval or the JVM has ended.
    /// The number of lost events is received, too.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn record(&mut self, record: &Record) -> Result<()>;
}

/// The GC tracer, a `Tool` for [`crate::jvms::Trace`].
pub struct Tracer<S> {
    /// Receives the records.
    pub sink: S,
    options: Options,
    /// Whether the kernel side measures for how long collections wait for a CPU.
    has_cpu_waits: bool,
    session: Session,
    requests: Requests,
    /// Reasons why nothing can be attached to JVMs that are about to be admitted.
    unattachable: HashMap<Pid, String>,
    /// JVMs that nothing can be attached to, whose own counters are read.
    counted: HashMap<u64, ByCounters>,
    /// Time of the next poll of the counters that have no watchpoint.
    next_counter_poll: Instant,
    /// Sums of stops that were not recorded one by one, as of the last report.
    limited: HashMap<u64, Limited>,
    /// Hashes names of tenants (control groups) to numbers that no tenant can predict.
    tenant_numbers: RandomState,
}

/// A JVM whose stops are known from its own counters.
struct ByCounters {
    counted: Counted,
    /// The watchpoint that fires at each stop; `None` if there is none and the counters are polled.
    watch: Option<Links>,
    /// Earliest time of the next poll of its counters.
    next_poll: Instant,
}

impl ByCounters {
    fn is_polled(&self) -> bool {
        self.watch.is_none()
    }
}

/// If it takes longer than this to read a JVM's counters, the next poll of that JVM is delayed: see
/// [`POLL_DELAY_FACTOR`].
const SLOW_POLL: Duration = Duration::from_millis(100);
/// Time from the begin of a slow read to the next poll of the same JVM, as a multiple of the duration of the
/// read. Events of other JVMs wait during a read.
const POLL_DELAY_FACTOR: u32 = 20;

/// Maximum time for the last poll of all JVMs.
const MAX_LAST_POLL: Duration = Duration::from_secs(1);

/// Program that runs when the JVM has written to its counter of stop time.
const COUNTED_PROGRAM: &str = "counted_stop";

/// Returns the probes to attach to a JVM's libjvm.so. If the file has neither probes nor symbols and the JVM's own
/// counters can be read instead, returns no probes and the reason.
fn plan(
    target: &Target,
    hotspot: Option<&HotSpot>,
    options: &Options,
) -> Result<(Vec<Plan>, Option<String>)> {
    let must_attach = options.pools || options.stacks;
    match probes::plan(&target.libjvm, hotspot, options) {
        Err(why @ Error::NoProbes { .. })
            if !must_attach && hotspot.is_some_and(HotSpot::counts_pauses) =>
        {
            Ok((Vec::new(), Some(why.to_string())))
        }
        plans => Ok((plans?, None)),
    }
}

impl<S: Sink> Tracer<S> {
    /// Loads the programs that the named JVMs need. If JVMs that start later are traced too, it loads all
    /// programs.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] if the kernel refuses, [`Error::NoProbes`].
    pub fn new(options: Options, sink: S, named: &[Named]) -> Result<Self> {
        let of = |(target, hotspot): &Named| plan(target, hotspot.as_ref().ok(), &options);
        let (plans, unattachable): (Vec<_>, Vec<_>) =
            named.iter().map(of).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let mut programs: HashSet<_> = plans.iter().flatten().map(|plan| plan.program).collect();
        programs.extend(unattachable.iter().any(Option::is_some).then_some(COUNTED_PROGRAM));
        let cpu_waits = cpu_wait::Fields::read();
        let session = load((!options.all).then_some(&programs), &options, cpu_waits.as_ref())?;
        Ok(Self {
            options,
            has_cpu_waits: cpu_waits.is_some(),
            sink,
            session,
            requests: Requests::default(),
            unattachable: HashMap::new(),
            counted: HashMap::new(),
            next_counter_poll: Instant::now(),
            limited: HashMap::new(),
            tenant_numbers: RandomState::new(),
        })
    }

    /// Makes the kernel side count a JVM's events toward the limit of its control group.
    fn set_tenant(&self, key: u64, pid: Pid) {
        if self.options.max_stops_per_second.is_none() {
            return;
        }
        let tenant = self.tenant_numbers.hash_one(cgroup::tenant_of(pid));
        let mut bytes = [0; size_of::<budget>()];
        bytes[offset_of!(budget, tenant)..][..8].copy_from_slice(&tenant.to_ne_bytes());
        let budgets = &self.session.skel.maps.budgets;
        if let Err(error) = session::insert_new_entry(budgets, key, &bytes, "limit events") {
            log::warn!("process {pid}: {error}");
        }
    }

    /// Reports the number and the total time of the stops that a JVM has made since the previous call and
    /// that were not recorded one by one.
    fn report_limited(&mut self, key: u64, pid: Pid) -> Result<()> {
        if self.options.max_stops_per_second.is_none() {
            return Ok(());
        }
        let entry = self.session.skel.maps.budgets.lookup(&key.to_ne_bytes(), MapFlags::ANY);
        // The entry is missing only if the map is full. The kernel side then counts the JVM's stops as lost.
        let Some(bytes) = entry.ok().flatten() else { return Ok(()) };
        let Some(budget) = copy::<budget>(&bytes) else { return Ok(()) };
        let sum =
            |of: &limited_stops| Sum { count: of.count, stopped_ns: of.ns, max_ns: of.max_ns };
        let [safepoints, pauses] = budget.limited.each_ref().map(sum);
        let all = Limited { pid: pid.0, pauses, safepoints };
        let before = self.limited.insert(key, all).unwrap_or_default();
        let new = all.since(&before);
        if new.is_empty() { Ok(()) } else { self.sink.record(&Record::Limited(new)) }
    }

    /// Sets a watchpoint on the JVM's counter of stop time, so that a program runs at the end of each stop.
    fn watch(&mut self, key: u64, pid: Pid, hotspot: &HotSpot) -> Result<Links> {
        const VM_THREAD: &str = "VM Thread";
        let missing = |what: &str| Error::PerfData { what: what.into() };
        let counter =
            hotspot.stop_counter().ok_or_else(|| missing("the JVM does not count stops"))?;
        let addresses = hotspot.counter_addresses().unwrap_or_default().map(u64::to_ne_bytes);
        let counted = &self.session.skel.maps.counted;
        session::insert_entry(
            counted,
            key,
            &addresses.concat(),
            "pass counter addresses to the BPF programs",
        )?;
        let thread = thread_named(pid, VM_THREAD)
            .ok_or_else(|| missing(&format!("the process has no thread named {VM_THREAD}")))?;
        let program = &self.session.skel.progs.counted_stop;
        let mut links = Links::default();
        links.push(perf::attach_watchpoint(program, thread, counter, key)?);
        Ok(links)
    }

    /// Starts to read the counters of a JVM that nothing can be attached to, and prints the reason `why`.
    fn admit_counted(&mut self, key: u64, pid: Pid, hotspot: &HotSpot, why: &str) -> Result<()> {
        // The watchpoint is set before the first reading, so that it observes every stop after that reading.
        // Earlier stops are not reported.
        let watch = self.watch(key, pid, hotspot);
        let counted = Counted::begin(hotspot.counts()?, hotspot.stop_time_excludes_sync());
        let every = counted::poll_interval(self.options.pace).as_millis();
        let how = match &watch {
            Ok(_) => "read at the end of each stop".into(),
            Err(error) => format!(
                "polled every {every} ms because of an error ({error}); several collections \
                 between two polls are shown as one, and other stops are not shown"
            ),
        };
        let line = format!(
            "process {pid}: deriving pauses from the JVM's own counters, {how}; operations, heap \
             sizes and cycles are not available"
        );
        warn_once(&line, why);
        self.counted
            .insert(key, ByCounters { counted, watch: watch.ok(), next_poll: Instant::now() });
        Ok(())
    }

    /// Reports the stops that a JVM's counters show. Uses the values that were read at the end of a stop
    /// (`at_end`), or reads the counters now if that is `None`.
    fn count(
        &mut self,
        jvms: &mut ByKey<Jvm>,
        key: u64,
        at_end: Option<&counters_event>,
    ) -> Result<()> {
        let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&key) else {
            return Ok(());
        };
        let Some(ByCounters { counted, .. }) = self.counted.get_mut(&key) else { return Ok(()) };
        let (found, cause) = match at_end {
            Some(e) => {
                let cause = event::cause(&e.cause, &e.last_cause);
                (counted.stop(Counts::of(&e.numbers), e.ts_ns), cause)
            }
            None => {
                // If the JVM has ended, the main loop soon detects that.
                let Ok(counts) = hotspot.counts() else { return Ok(()) };
                (counted.update(counts, clock::monotonic_ns()), hotspot.last_cause())
            }
        };
        for found in found {
            self.sink.record(&jvm.count(found, cause.clone(), hotspot))?;
        }
        Ok(())
    }

    /// Adds the entry of a JVM without which the BPF programs ignore its stops, unless it is there.
    fn add_stop_entry(&self, key: u64) -> Result<()> {
        let stops = &self.session.skel.maps.stops;
        let empty = [0; size_of::<stop_event>()];
        session::insert_new_entry(stops, key, &empty, "record the stops of another JVM")
    }

    /// Reports what the polled counters of JVMs show, of those for which `is_due` is true.
    fn poll_counters(
        &mut self,
        jvms: &mut ByKey<Jvm>,
        is_due: impl Fn(&ByCounters) -> bool,
    ) -> Result<()> {
        let due = self.counted.iter().filter(|(_, of)| of.is_polled() && is_due(of));
        for key in due.map(|(key, _)| *key).collect::<Vec<_>>() {
            let begin = Instant::now();
            self.count(jvms, key, None)?;
            let took = begin.elapsed();
            if let Some(of) = self.counted.get_mut(&key).filter(|_| took > SLOW_POLL) {
                of.next_poll = begin + took * POLL_DELAY_FACTOR;
            }
        }
        Ok(())
    }

    /// Reports the JVMs that still run when the trace ends.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        // Collections may have ended since the last poll, which can be seconds ago on a busy machine.
        within(MAX_LAST_POLL, || self.poll_counters(jvms, |_| true))?;
        self.report(jvms)
    }
}

impl<S: Sink> Tool for Tracer<S> {
    type Jvm = Jvm;
    const TRACES_STARTING_JVMS: bool = true;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>> {
        let (plans, why) = plan(target, hotspot, &self.options)?;
        let pid = target.pid();
        self.unattachable.remove(&pid);
        self.unattachable.extend(why.map(|why| (pid, why)));
        Ok(plans)
    }

    /// Adds the JVM's entries on the kernel side and prepares the stack walker before probes are attached, because
    /// the BPF programs read the heap at the first stop and walk a stack at the first request.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        self.set_tenant(key, pid);
        let maps = &self.session.skel.maps;
        if self.has_cpu_waits {
            // If the map is full, the JVM's waits are unknown.
            let empty = [0; cpu_wait::ENTRY_SIZE];
            let _ = session::insert_new_entry(&maps.gc_threads, key, &empty, "measure waits");
        }
        // If that fails, admit() reports it.
        let _ = self.add_stop_entry(key);
        let Some(hotspot) = hotspot else { return };
        let gauges = &maps.gauges;
        let what = "pass heap addresses to the BPF programs";
        let gauge = kernel_gauge(&hotspot.gauge);
        if let Err(error) = session::insert_entry(gauges, key, bytes(&gauge), what) {
            log::warn!("{error}");
        }
        if let Some(walker) = self.session.walker().filter(|_| hotspot.is_set_up) {
            self.requests.add(key, pid, hotspot, walker);
        }
    }

    fn admit(&mut self, key: u64, target: &Target, hotspot: &Reading) -> Result<Jvm> {
        let pid = target.pid();
        self.add_stop_entry(key)?;
        if let Some(costs) = self.session.costs() {
            costs.add(key);
        }
        if let Err(error) = hotspot {
            let what = "collector, heap sizes and causes are still unknown";
            log::warn!("process {pid}: {what}: {error}");
        }
        if let (Ok(hotspot), Some(why)) = (hotspot, self.unattachable.remove(&pid)) {
            self.admit_counted(key, pid, hotspot, &why)?;
        }
        if let Ok(hotspot) = hotspot
            && hotspot.is_set_up
        {
            self.sink.jvm(hotspot)?;
        }
        let now = clock::monotonic_ns();
        let Options { pools, histogram, no_totals, .. } = self.options;
        let totals = (!no_totals).then(|| Totals::new(now, histogram));
        Ok(Jvm::new(pid.0, totals, now, pools))
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> Result<()> {
        let timeout = match self.counted.values().any(ByCounters::is_polled) {
            true => timeout.min(self.next_counter_poll.saturating_duration_since(Instant::now())),
            false => timeout,
        };
        for event in self.session.events(timeout)? {
            let key = event.target();
            if let Event::Counted(end) = &event {
                self.count(jvms, key, Some(end))?;
                continue;
            }
            // Events that arrive before their JVM is admitted are ignored.
            let Some(Followed { jvm, hotspot, .. }) = jvms.get_mut(&key) else { continue };
            let hotspot = hotspot.as_deref().ok();
            match (&event, self.session.walker()) {
                (Event::Request(request), _) => self.requests.add_request(request),
                (Event::Stack(number, stack), Some(walker)) => {
                    self.requests.name_stack(*number, stack, hotspot, walker)?;
                }
                _ => {}
            }
            if let Some(mut record) = jvm.process_event(&event, hotspot) {
                if let Record::Pause(stop) = &mut record {
                    self.requests.add_to_pause(key, stop);
                }
                self.sink.record(&record)?;
            }
        }
        let now = Instant::now();
        if now < self.next_counter_poll {
            return Ok(());
        }
        self.next_counter_poll = now + counted::poll_interval(self.options.pace);
        self.poll_counters(jvms, |of| now >= of.next_poll)
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.requests.release_unused(self.session.walker());
        self.take_events(jvms, Duration::ZERO)
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        followed.jvm.lost(events);
        self.sink.record(&Record::Lost(Lost::now(followed.target.pid().0, events)))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        let now = clock::monotonic_ns();
        for (&key, followed) in jvms.iter_mut() {
            self.report_limited(key, followed.target.pid())?;
            if let Some(summary) = followed.jvm.summary(followed.hotspot.as_deref().ok(), now) {
                self.sink.record(&summary)?;
            }
            followed.report_stopped();
            followed.jvm.next_interval(now);
        }
        let unreferenced_stacks = self.requests.unreferenced_stacks();
        for number in &unreferenced_stacks {
            // The kernel's entry is deleted before forget_stacks() is called. If the stack occurs again, the
            // kernel side sends it again, and it arrives after forget_stacks(), which therefore does not drop
            // it.
            let _ = self.session.skel.maps.known_stacks.delete(&number.to_ne_bytes());
        }
        self.requests.forget_stacks(&unreferenced_stacks);
        let costs = self.session.costs().map(Costs::take).transpose()?.unwrap_or_default();
        costs.into_iter().for_each(|cost| self.sink.cost(cost));
        self.sink.reported();
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        self.requests.forget(key);
        self.counted.remove(&key);
        self.limited.remove(&key);
    }

    fn on_end(&mut self, key: u64, followed: Followed<Jvm>) -> Result<()> {
        if let Some(cost) = self.session.costs().and_then(|costs| costs.take_last(key)) {
            self.sink.cost(cost);
        }
        self.report_limited(key, followed.target.pid())?;
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
