//! Allocation tracer: plans and attaches the probes, reads the counters and events of the kernel side, updates
//! the model of each JVM, and reports to a sink.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Error, Pid, Result,
    bpf::{
        can_share_attachments, clock,
        probes::Plan,
        session::Attach,
        spans::SpanSources,
        stops::{self, Stop},
    },
    hotspot::{HotSpot, threads::ThreadArray},
    jvms::{ByKey, Followed, Lost, Reading, Tool},
    process::{Target, cgroup::tenant_of},
    stack::{namer::Namers, span::SpanContext},
    sys::{Effort, Pace, budget},
    trace::{
        self,
        allocations::{
            counters::{self, Session},
            duty::DutyCycles,
            event::Event,
            jvm_totals::Scope,
            model::{Jvm, kernel_layout},
            probes,
            record::Large,
            report::{AllocationReport, Begin},
            stacks::Stacks,
        },
    },
};

/// Interval at which the sampling shares of full TLABs and of stacks are adapted.
const ADAPT: Duration = Duration::from_millis(200);

/// Number of thread entries above which entries of ended threads are deleted. The kernel side can store
/// 65,536 threads (32,768 before Linux 6.1).
const MANY_THREADS: usize = 16_384;

/// Options of an allocation trace.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Count every object, by the USDT probe `object__alloc`. The JVMs must run with a flag that enables it.
    pub exact: bool,
    /// Count each thread separately.
    pub by_thread: bool,
    /// Walk stacks, and count each stack separately.
    pub by_stack: bool,
    /// With `by_stack`, read the trace contexts that threads publish, and keep allocations of different spans apart.
    pub spans: bool,
    /// Minimum size in bytes of objects that are reported one by one as they are allocated. Without `exact`,
    /// these are objects outside of TLABs only.
    pub large: Option<u64>,
    /// Length in nanoseconds of the time slots that allocations are counted in; 0 for none. Only the profile of
    /// a whole trace has time slots.
    pub slot_ns: u64,
    /// Approximate maximum memory for classes, threads and stacks, in bytes.
    pub max_memory: usize,
    /// Report each interval.
    pub intervals: bool,
    /// Keep totals of the whole trace and report them when a JVM ends. Otherwise, only the current interval
    /// is reported when a JVM ends, and memory use does not grow with the length of the trace.
    pub keeps_whole_trace: bool,
    /// How soon events are read, and how much CPU time reading TLABs may take. [`Pace::Calm`] is for a trace of
    /// all JVMs.
    pub pace: Pace,
}

impl Options {
    /// Totals by class over the whole trace, and nothing else.
    pub const NONE: Self = Self {
        exact: false,
        by_thread: false,
        by_stack: false,
        spans: false,
        large: None,
        slot_ns: 0,
        max_memory: usize::MAX,
        intervals: false,
        keeps_whole_trace: true,
        pace: Pace::Prompt,
    };
}

/// Receiver of the results.
pub trait Sink: trace::Sink {
    /// Receives the allocations of a JVM: those of an interval or, when the JVM or the trace has ended, those
    /// of the whole trace. Without [`Options::keeps_whole_trace`], the last allocations are those of the
    /// interval that was in progress.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn table(&mut self, report: &AllocationReport<'_>) -> Result<()>;

    /// Receives a large object as soon as its event is read. The default ignores it.
    ///
    /// # Errors
    /// If the trace cannot go on.
    fn large(&mut self, large: Large) -> Result<()> {
        let _ = large;
        Ok(())
    }

    /// Receives a stop of a JVM's application, if time slots are configured.
    fn stop(&mut self, stop: Stop) {
        let _ = stop;
    }

    /// Receives the number of allocations since the last call that were counted without their trace contexts, because
    /// there were too many. The default prints a message.
    fn spans_left_out(&mut self, allocations: u64) {
        log::warn!("{allocations} sampled allocations have no span: there were too many spans");
    }
}

/// Number of stacks above which all counters and stacks are reset, unless totals of the whole trace are kept.
/// The kernel side can store 65,536 stacks.
const MANY_STACKS: usize = 1 << 15;

/// The allocation tracer, a `Tool` for [`crate::jvms::Trace`].
pub struct Tracer<S> {
    /// Receives the results.
    pub sink: S,
    options: Options,
    session: Session,
    /// Limits the CPU time spent on reading TLABs.
    tlab_effort: Effort,
    /// Limits the CPU time spent on naming stacks; `None` if that is not limited.
    naming_effort: Option<Effort>,
    /// Duty cycles of the allocation probes in a daemon; `None` if the main loop attaches the probes.
    duty: Option<DutyCycles>,
    /// Maximum cost of the probes in millionths of a processor, which the caller may change during the trace;
    /// `None` for the default.
    cost_budget: Option<Arc<AtomicU64>>,
    memory: budget::Budget,
    adapted: Instant,
    /// Number of the kernel side's counters when they were last read.
    tallies: usize,
    namers: Namers,
    /// Search for the JVMs that publish trace contexts, if these are read.
    span_sources: Option<SpanSources>,
    /// Number of allocations without their trace contexts that were reported to the sink.
    spans_left_out: u64,
    /// Time at which counting of the first JVM began.
    begin: Option<Begin>,
}

impl<S: Sink> Tracer<S> {
    /// Loads the BPF object and, in a daemon, starts the duty cycles.
    ///
    /// # Errors
    /// [`Error::Permission`] or [`Error::Kernel`] if the kernel refuses.
    pub fn new(options: Options, sink: S) -> Result<Self> {
        let effort = |allowed| Effort::new(allowed).with_raise_delay(options.pace.raise_delay());
        let tlab_effort = effort(options.pace.tlab_reading_share());
        let naming_effort = options.pace.naming_share().map(effort);
        // A tenant gets at most half of a budget. A tool works for one user, so it has only one tenant.
        let max_memory = match options.pace {
            Pace::Prompt => options.max_memory.saturating_mul(2),
            Pace::Calm => options.max_memory,
        };
        let mut session = counters::load(&options)?;
        let is_bounded = options.pace == Pace::Calm && !options.exact && can_share_attachments();
        let span_sources = counters::span_sources(&session)?;
        let duty = is_bounded.then(|| DutyCycles::start(&session)).transpose()?;
        counters::set_tlab_share(&mut session, tlab_effort.share());
        if let Some(naming_effort) = &naming_effort {
            counters::set_stack_share(&mut session, naming_effort.share());
        }
        Ok(Self {
            sink,
            options,
            session,
            tlab_effort,
            naming_effort,
            duty,
            cost_budget: None,
            memory: budget::Budget::of(max_memory),
            adapted: Instant::now(),
            tallies: 0,
            namers: Namers::default(),
            span_sources,
            spans_left_out: 0,
            begin: None,
        })
    }

    /// Sets the maximum cost of the probes to all JVMs together, in millionths of a processor (default: 5000).
    /// The value is read once per interval, and has an effect only at [`Pace::Calm`].
    #[must_use]
    pub fn with_cost_budget(mut self, ppm: Arc<AtomicU64>) -> Self {
        self.cost_budget = Some(ppm);
        self.apply_cost_budget();
        self
    }

    fn apply_cost_budget(&self) {
        if let (Some(duty), Some(ppm)) = (&self.duty, &self.cost_budget) {
            duty.set_budget(ppm.load(Ordering::Relaxed) as f64 / 1e6);
        }
    }

    /// Reports the cost of the probes to the sink.
    fn report_costs(&mut self) -> Result<()> {
        self.apply_cost_budget();
        let missed_hits = self.duty.as_ref().map(DutyCycles::take_missed_hits).unwrap_or_default();
        let Some(costs) = self.session.costs() else { return Ok(()) };
        missed_hits.into_iter().for_each(|(key, hits)| costs.add_missed_hits(key, hits));
        let costs = costs.take()?;
        costs.into_iter().for_each(|cost| self.sink.cost(cost));
        Ok(())
    }

    /// Reports the JVMs that still run when the trace ends.
    ///
    /// # Errors
    /// Errors of the sink.
    pub fn finish(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.report_costs()?;
        self.report_spans_left_out();
        let now = clock::monotonic_ns();
        for jvm in jvms.values_mut() {
            if !self.options.intervals {
                jvm.report_stopped();
            }
            self.report_table(jvm, self.last_scope(), now)?;
        }
        Ok(())
    }

    /// Whether the kernel side's maps or the memory for stacks are filling up, so that new entries will soon
    /// not fit.
    fn is_nearly_full(&self, jvms: &ByKey<Jvm>) -> bool {
        let stacks: Vec<_> = jvms.values().map(|followed| followed.jvm.stacks_kept()).collect();
        let in_spans =
            |followed: &Followed<Jvm>| followed.jvm.stacks.as_ref().map_or(0, Stacks::in_spans);
        self.tallies > counters::max_tallies(&self.session) / 2
            || stacks.iter().map(|(count, _)| count).sum::<usize>() > MANY_STACKS
            || stacks.iter().any(|(_, is_full)| *is_full)
            || jvms.values().map(in_spans).sum::<usize>() > counters::max_spans(&self.session) / 2
    }

    /// Reports allocations without their trace contexts to the sink.
    fn report_spans_left_out(&mut self) {
        let all = counters::spans_left_out(&self.session);
        let new = all.saturating_sub(std::mem::replace(&mut self.spans_left_out, all));
        if new > 0 {
            self.sink.spans_left_out(new);
        }
    }

    /// Takes all counters out of the kernel side's map and adds them to the models.
    fn drain_counters(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        for (key, tally) in counters::take_tallies(&self.session)? {
            if let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&key.target) {
                jvm.add_tally(hotspot, &key, &tally);
            }
        }
        Ok(())
    }

    /// Scope of the last report of a JVM.
    fn last_scope(&self) -> Scope {
        if self.options.keeps_whole_trace { Scope::Trace } else { Scope::Interval }
    }

    fn report_table(&mut self, followed: &Followed<Jvm>, scope: Scope, now_ns: u64) -> Result<()> {
        let jvm = &followed.jvm;
        let table = jvm.table(followed.hotspot(), scope, now_ns);
        self.sink.table(&AllocationReport {
            table: &table,
            scope,
            command: &followed.target.process.comm,
            stacks: jvm.stacks.as_ref(),
            time_slots: jvm.time_slots().filter(|_| scope == Scope::Trace),
            begin: self.begin.unwrap_or_default(),
        })
    }

    fn take(&mut self, followed: &mut Followed<Jvm>, event: Event) -> Result<()> {
        let Followed { jvm, hotspot: Ok(hotspot), .. } = followed else { return Ok(()) };
        match event {
            Event::Name(name) => jvm.record_names(name),
            Event::Large(large) => {
                if let Some(record) = jvm.large(hotspot, &large) {
                    self.sink.large(record)?;
                }
            }
            Event::Tlab(tlab) => {
                let weight = 1.0 / self.tlab_effort.share();
                self.tlab_effort.spend(|| jvm.read_tlab(hotspot, &tlab, weight));
            }
            Event::Stop(stop) => self.sink.stop(stop),
            Event::Span(event) => {
                if let Some(stacks) = &mut jvm.stacks
                    && let Some(span) = SpanContext::of_words(event.span.trace, event.span.span)
                {
                    stacks.take_in_span(event.number, event.stack, span);
                }
            }
            Event::Stack(number, stack) => {
                let Some(walker) = self.session.walker() else { return Ok(()) };
                let mut name = || jvm.take_stack(hotspot, number, &stack, &mut self.namers, walker);
                match &mut self.naming_effort {
                    Some(naming_effort) => naming_effort.spend(name),
                    None => name(),
                }?;
            }
        }
        Ok(())
    }

    /// Reads the kernel side's counters and adds them to the models.
    fn collect_counted(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.namers.release_unused(self.session.walker());
        let tallies = counters::tallies(&self.session)?;
        self.tallies = tallies.len();
        let slot_bytes = match self.options.slot_ns {
            0 => Vec::new(),
            _ => counters::take_slot_bytes(&self.session)?,
        };
        // Reads the events with the names and stacks to which the counters refer. The kernel side sent these
        // events before it incremented the counters for the first time.
        self.take_events(jvms, Duration::ZERO)?;
        if let Some(sources) = &mut self.span_sources {
            for (key, followed) in jvms.iter_mut() {
                if let (Some(stacks), Some(mappings)) =
                    (&mut followed.jvm.stacks, self.namers.mappings(*key))
                {
                    stacks.update_span_source(sources, *key, followed.target.pid(), mappings);
                }
            }
        }
        jvms.values_mut().for_each(|followed| followed.jvm.begin_reading());
        for (key, tally) in tallies {
            if let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&key.target) {
                jvm.add_tally(hotspot, &key, &tally);
            }
        }
        for (key, slot_bytes) in slot_bytes {
            if let Some(Followed { jvm, hotspot: Ok(hotspot), .. }) = jvms.get_mut(&key.target) {
                jvm.add_slot_bytes(hotspot, &key, slot_bytes);
            }
        }
        // The memory for time slots is not part of max_memory. Its limit is a quarter of max_memory, divided
        // equally among the JVMs.
        let share = self.options.max_memory / 4 / jvms.len().max(1);
        jvms.values_mut().for_each(|followed| followed.jvm.shrink_time_slots(share));
        for (target, tally) in counters::overflow(&self.session)? {
            if let Some(followed) = jvms.get_mut(&target) {
                followed.jvm.add_others(&tally);
            }
        }
        Ok(())
    }

    /// Starts counting the allocations of a JVM. The attached programs ignore hits in this JVM until its
    /// layout is in the map.
    fn count(&mut self, key: u64, target: &Target, hotspot: &Reading) -> Result<Jvm> {
        let pid = target.pid();
        let Ok(hotspot) = hotspot else { return Err(Error::NoSuchProcess { pid }) };
        let walks = self.namers.contains(key);
        let tenant = match self.options.pace {
            Pace::Prompt => Arc::default(),
            Pace::Calm => tenant_of(pid),
        };
        let memory = self.memory.share(&tenant);
        let mut stacks = self.session.walker().map(|_| Stacks::within(&memory, walks));
        if let (Some(sources), Some(stacks), Some(mappings)) =
            (&mut self.span_sources, &mut stacks, self.namers.mappings(key))
        {
            stacks.update_span_source(sources, key, pid, mappings);
        }
        if self.options.exact {
            probes::check_probe_enabled(target, hotspot)?;
        }
        let layout = kernel_layout(hotspot, walks)?;
        let before = match self.options.exact {
            true => Vec::new(),
            false => hotspot.thread_bytes(&mut ThreadArray::default())?,
        };
        let options = Options { by_stack: stacks.is_some(), ..self.options };
        let jvm = Jvm::new(pid, hotspot, options, stacks, &memory)?;
        if self.begin.is_none() {
            let begin = Begin::now();
            self.begin = Some(begin);
            counters::begin_times(&mut self.session, begin.ns);
        }
        counters::add(&self.session, key, &layout, &before)?;
        self.sink.jvm(hotspot)?;
        Ok(jvm)
    }

    /// Reads how many bytes each thread has allocated.
    fn collect_threads(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        if self.options.exact {
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
            let ended = jvm.update_in_flight(hotspot, &own);
            if all.len() > MANY_THREADS {
                ended.into_iter().for_each(|one| counters::forget_thread(&self.session, one));
            }
        }
        Ok(())
    }
}

/// Whether the probes of a JVM are at the same locations as those of other JVMs that run its libjvm.so. Probes at the locations
/// that only the JVM's own files show have no duty cycle.
fn has_duty_cycle(target: &Target) -> bool {
    target.libjvm.may_share_attachments()
}

impl<S: Sink> Tool for Tracer<S> {
    type Jvm = Jvm;
    const TRACES_STARTING_JVMS: bool = false;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, target: &Target, _: Option<&HotSpot>) -> Result<Vec<Plan>> {
        let libjvm = &target.libjvm;
        let mut plans = match self.options.exact {
            true => probes::exact(libjvm)?,
            false => probes::sampling_plans(libjvm)?,
        };
        if self.duty.is_some() && has_duty_cycle(target) {
            // DutyCycles::add() attaches the other probes when the JVM is admitted.
            plans.retain(|plan| plan.program == probes::THREAD_END);
        }
        if self.options.slot_ns > 0 {
            plans.extend(stops::plans(libjvm)?);
        }
        Ok(plans)
    }

    /// Prepares the naming of a JVM's stacks, if stacks are walked.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let (Some(walker), Some(hotspot)) = (self.session.walker(), hotspot) {
            self.namers.add(key, pid, hotspot, walker);
        }
    }

    fn admit(&mut self, key: u64, target: &Target, hotspot: &Reading) -> Result<Jvm> {
        if let Some(duty) = self.duty.as_ref().filter(|_| has_duty_cycle(target)) {
            duty.add(key, target, &mut self.session)?;
        }
        if let Some(costs) = self.session.costs() {
            costs.add(key);
        }
        self.count(key, target, hotspot)
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
            let share = self.tlab_effort.adapt(elapsed);
            counters::set_tlab_share(&mut self.session, share);
            if let Some(naming_effort) = &mut self.naming_effort {
                let share = naming_effort.adapt(elapsed);
                counters::set_stack_share(&mut self.session, share);
            }
        }
        Ok(())
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        for followed in jvms.values_mut() {
            followed.jvm.name_threads();
        }
        self.collect_counted(jvms)?;
        self.collect_threads(jvms)
    }

    fn collect_last(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.collect_counted(jvms)
    }

    fn lost(&mut self, followed: &mut Followed<Jvm>, events: u64) -> Result<()> {
        followed.jvm.lost(events);
        self.sink.lost(Lost::now(followed.target.pid().0, events))
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> Result<()> {
        self.report_costs()?;
        self.report_spans_left_out();
        let begins_anew = !self.options.keeps_whole_trace && self.is_nearly_full(jvms);
        if begins_anew {
            self.drain_counters(jvms)?;
        }
        let now = clock::monotonic_ns();
        for followed in jvms.values_mut() {
            if self.options.intervals {
                self.report_table(followed, Scope::Interval, now)?;
                followed.report_stopped();
            }
            followed.jvm.next_interval(now);
            if begins_anew {
                followed.jvm.reset();
            }
        }
        self.sink.reported();
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        if let Some(duty) = &self.duty {
            duty.forget(key);
        }
        self.namers.forget(key);
    }

    fn on_end(&mut self, key: u64, followed: Followed<Jvm>) -> Result<()> {
        if let Some(cost) = self.session.costs().and_then(|costs| costs.take_last(key)) {
            self.sink.cost(cost);
        }
        self.report_table(&followed, self.last_scope(), clock::monotonic_ns())
    }

    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}
