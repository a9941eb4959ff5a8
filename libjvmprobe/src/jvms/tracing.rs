//! Followed JVMs: attaches probes to each one and detaches them when it ends. Tools that cannot trace a JVM
//! that is starting up attach only after the JVM has started.
//!
//! A named JVM has its own attachments. If all JVMs are followed, those that run the same libjvm.so share the
//! attachments to that file.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsStr,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use crate::{
    Error, Pid, Result,
    bpf::{
        self,
        inodes::attached_file,
        probes::{Links, Plan, Scope},
        session::Attach,
    },
    hotspot::{Collector, HotSpot},
    jvms::{
        Arrival, Arrivals, Lost, Reading, Stage, Stops,
        run::{self, End, Tick, Times, Watch},
    },
    process::{Fate, FileId, LibJvm, Process, Target, launcher},
    sys::{Idle, Pace, warn_once},
};

pub use super::named::{Named, find, now};

/// A followed JVM.
pub struct Followed<J> {
    /// The process.
    pub target: Arc<Target>,
    /// The JVM as it was last read, or the reason why it cannot be read (yet).
    pub hotspot: Reading,
    /// The tool's own state of this JVM.
    pub jvm: J,
    /// Number of events lost, as last reported.
    lost: u64,
    stops: Stops,
    /// Attachments that only this JVM uses.
    _links: Option<Links>,
}

impl<J> Followed<J> {
    /// Returns the state read from HotSpot, or `None` if it cannot be read (yet).
    pub fn hotspot(&self) -> Option<&HotSpot> {
        self.hotspot.as_deref().ok()
    }

    /// Called when figures are reported. Prints a message if they are empty because the process was stopped (SIGSTOP).
    pub fn report_stopped(&mut self) {
        self.stops.report(&self.target.process);
    }
}

/// JVMs by the keys that identify them in BPF maps and events.
pub type ByKey<J> = BTreeMap<u64, Followed<J>>;

/// A tool that follows JVMs.
pub trait Tool {
    /// The tool's state of one JVM.
    type Jvm;

    /// Whether the tool can trace a JVM that is still starting up.
    const TRACES_STARTING_JVMS: bool;

    /// Returns the BPF session that attaches the tool's programs.
    fn session(&mut self) -> &mut dyn Attach;

    /// Returns the programs to attach to a JVM's libjvm.so, with their locations.
    ///
    /// # Errors
    /// Returns the reason why the JVM cannot be traced.
    fn plan(&mut self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>>;

    /// Sets up the tracing of a JVM. Called before the tool attaches to the JVM, and again each time the JVM
    /// was read again. If the tool has attached to a command before the command became a JVM
    /// ([`Trace::attach_early`]), the first call follows when the registry reports the JVM.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        let _ = (key, pid, hotspot);
    }

    /// Starts the tool's work on a JVM after all probes are attached.
    ///
    /// # Errors
    /// Returns the reason why the JVM cannot be traced.
    fn admit(&mut self, key: u64, target: &Target, hotspot: &Reading) -> Result<Self::Jvm>;

    /// Waits at most `timeout` for events and processes them.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn take_events(&mut self, jvms: &mut ByKey<Self::Jvm>, timeout: Duration) -> Result<()>;

    /// Reads counters: periodically (see [`Watch::tick`]), before a report and before a JVM is removed.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn collect(&mut self, jvms: &mut ByKey<Self::Jvm>) -> Result<()> {
        self.take_events(jvms, Duration::ZERO)
    }

    /// Reads counters like [`collect`](Tool::collect), after some of the JVMs have ended. JVMs that have
    /// ended can no longer be examined. Called often if many short-lived JVMs run.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn collect_last(&mut self, jvms: &mut ByKey<Self::Jvm>) -> Result<()> {
        self.collect(jvms)
    }

    /// Reports that `events` events of a JVM were lost since the last such call. By default, prints a message.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn lost(&mut self, jvm: &mut Followed<Self::Jvm>, events: u64) -> Result<()> {
        Lost::now(jvm.target.pid().0, events).warn();
        Ok(())
    }

    /// Reports an interval.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn report(&mut self, jvms: &mut ByKey<Self::Jvm>) -> Result<()>;

    /// Removes data that [`prepare`](Tool::prepare) or [`admit`](Tool::admit) has stored under the key of a JVM. Called
    /// after the JVM has ended ([`on_end`](Tool::on_end)), or if it could not be added. By default, does nothing.
    fn forget(&mut self, key: u64) {
        let _ = key;
    }

    /// Handles the end of a JVM. By default, does nothing.
    ///
    /// # Errors
    /// Returns an error if the trace cannot continue.
    fn on_end(&mut self, key: u64, jvm: Followed<Self::Jvm>) -> Result<()> {
        let _ = (key, jvm);
        Ok(())
    }

    /// Returns whether the reader of the tool's output has gone.
    fn is_closed(&self) -> bool;
}

/// Attachments to one libjvm.so, shared by all JVMs that run it.
#[derive(Default)]
struct Attached {
    links: Vec<Links>,
    /// Attached programs and their locations.
    plans: HashSet<(&'static str, String)>,
    /// Collectors whose programs are attached; `None` for JVMs whose collector could not be read.
    collectors: HashSet<Option<Collector>>,
    /// Whether the file had too many mappings. Then each JVM gets the programs that are not attached yet for itself.
    is_crowded: bool,
}

/// Attachments made for a process before it becomes a JVM.
struct EarlyAttachment {
    pid: Pid,
    /// The libjvm.so that the process is expected to load.
    file: FileId,
    links: Links,
}

/// A tool and the JVMs that it follows.
pub struct Trace<T: Tool> {
    /// The tool.
    pub tool: T,
    /// The JVMs.
    pub jvms: ByKey<T::Jvm>,
    /// Shared attachments, by libjvm.so.
    files: HashMap<FileId, Attached>,
    /// JVMs reported by the registry. `None` if only named JVMs are traced and none of them was starting up
    /// when the trace began.
    arrivals: Option<Arrivals>,
    /// Attachments made for a command that is not yet a JVM.
    early: Option<EarlyAttachment>,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
    /// Whether one attachment to a file serves all JVMs that run it. If hits of several processes could not be
    /// distinguished, or if only a command is traced, each JVM has its own attachments.
    shares_files: bool,
    pace: Pace,
}

impl<T: Tool> Trace<T> {
    /// Attaches to all `named` JVMs, and fails if one of them cannot be traced. With `arrivals`, also follows
    /// every JVM that the registry reports.
    ///
    /// # Errors
    /// Returns the reason why a named JVM cannot be traced.
    pub fn start(tool: T, named: Vec<Named>, arrivals: Option<Arrivals>) -> Result<Self> {
        let mut trace = Self {
            tool,
            jvms: ByKey::new(),
            files: HashMap::new(),
            // For a command, other processes that run the same file must not be traced.
            shares_files: bpf::can_share_attachments()
                && !arrivals.as_ref().is_some_and(Arrivals::is_of_command),
            arrivals: None,
            early: None,
            idle: Idle::default(),
            pace: Pace::Prompt,
        };
        if let Some(arrivals) = arrivals {
            arrivals.wake(trace.tool.session())?;
            trace.arrivals = Some(arrivals);
        }
        for (target, hotspot) in named {
            let hotspot = if T::TRACES_STARTING_JVMS { hotspot } else { Ok(hotspot?) };
            let arrival = Arrival::new(target, hotspot);
            trace.add_alone(Arc::clone(&arrival.target), arrival.hotspot.clone())?;
            Arrivals::read_again(&mut trace.arrivals, arrival, trace.tool.session())?;
        }
        if let Some(arrivals) = &trace.arrivals {
            arrivals.wait_for_first();
        }
        trace.poll()?;
        Ok(trace)
    }

    /// Attaches to a command before it runs `program`, if that is the launcher of a JDK, so that no event of its JVM is
    /// missed.
    ///
    /// # Errors
    /// Returns the tool's error, or [`Error::Io`] if the library cannot be opened.
    pub fn attach_early(&mut self, pid: Pid, program: &OsStr) -> Result<()> {
        let Some(path) = launcher::library(program) else { return Ok(()) };
        let libjvm =
            LibJvm::of_file(&path).map_err(|e| Error::io(format!("open {}", path.display()), e))?;
        let target = Target { process: Process::open(pid)?.into(), libjvm };
        let plans = self.tool.plan(&target, None)?;
        let (session, scope) = (self.tool.session(), Scope::Process(pid));
        session.flush();
        match session.attach(&(&target.libjvm).into(), &plans, scope, bpf::key_of_single(pid)) {
            Ok(links) => self.early = Some(EarlyAttachment { pid, file: target.libjvm.id, links }),
            // Attached later, when the process maps the library.
            Err(error) => log::debug!(
                "cannot attach to {} yet, retrying when the process maps it: {error}",
                path.display()
            ),
        }
        Ok(())
    }

    /// Returns the PID and the collector's name of each JVM; the name is empty if unknown.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (Pid, &str)> {
        let collector = |jvm: &Followed<_>| jvm.hotspot().map_or("", |h| h.collector.name());
        self.jvms.values().map(move |jvm| (jvm.target.pid(), collector(jvm)))
    }

    /// Runs the main loop until the trace ends, then reads the remaining events and counters.
    ///
    /// # Errors
    /// Returns the tool's error.
    pub fn run(&mut self, times: Times, stop: &AtomicBool) -> Result<End> {
        self.pace = times.pace;
        let end = run::run(self, times, stop)?;
        if end == End::Time {
            self.collect()?;
        }
        Ok(end)
    }

    fn collect(&mut self) -> Result<()> {
        self.tool.collect(&mut self.jvms)?;
        self.report_lost_events()
    }

    fn report_lost_events(&mut self) -> Result<()> {
        for (key, jvm) in &mut self.jvms {
            let so_far = self.tool.session().lost(*key);
            let events = so_far.saturating_sub(std::mem::replace(&mut jvm.lost, so_far));
            if events > 0 {
                self.tool.lost(jvm, events)?;
            }
        }
        Ok(())
    }

    /// Adds a JVM with attachments of its own.
    fn add_alone(&mut self, target: Arc<Target>, hotspot: Reading) -> Result<()> {
        let plans = self.tool.plan(&target, hotspot.as_deref().ok())?;
        let pid = target.pid();
        let key = bpf::key_of_single(pid);
        // The tool must be prepared before the first event can arrive.
        self.tool.prepare(key, pid, hotspot.as_deref().ok());
        let session = self.tool.session();
        session.flush();
        let links = session.attach(&(&target.libjvm).into(), &plans, Scope::Process(pid), key)?;
        self.add(key, target, hotspot, Some(links))
    }

    /// Adds a JVM of the traced command: with the attachments made in advance if there are any, else with new ones.
    fn add_of_command(&mut self, target: Arc<Target>, hotspot: Reading) -> Result<()> {
        let pid = target.pid();
        let is_for_target =
            |early: &mut EarlyAttachment| (early.pid, early.file) == (pid, target.libjvm.id);
        let Some(EarlyAttachment { links, .. }) = self.early.take_if(is_for_target) else {
            log::warn!("process {pid}: tracing began late, so earlier events are missing");
            return self.add_alone(target, hotspot);
        };
        let key = bpf::key_of_single(pid);
        self.tool.prepare(key, pid, hotspot.as_deref().ok());
        self.add(key, target, hotspot, Some(links))
    }

    fn add(
        &mut self,
        key: u64,
        target: Arc<Target>,
        hotspot: Reading,
        links: Option<Links>,
    ) -> Result<()> {
        log::debug!("process {} runs {}", target.pid(), target.libjvm.target_path.display());
        let jvm = self.tool.admit(key, &target, &hotspot)?;
        let followed = Followed {
            stops: Stops::new(&target.process),
            // Losses counted so far belong to an earlier process with this key.
            lost: self.tool.session().lost(key),
            target,
            hotspot,
            jvm,
            _links: links,
        };
        self.jvms.insert(key, followed);
        Ok(())
    }

    /// Adds a JVM that shares its attachments with all JVMs that run the same file.
    fn add_to_file(&mut self, target: Arc<Target>, hotspot: Reading) -> Result<()> {
        let links = self.attach_to_file(&target, hotspot.as_deref().ok())?;
        self.add(key_in_file(&target), target, hotspot, links)
    }

    /// Attaches all programs that a JVM needs and that were not attached to its libjvm.so for an earlier JVM. Returns the
    /// attachments that only this JVM uses, if the file has too many mappings to share them.
    fn attach_to_file(
        &mut self,
        target: &Target,
        hotspot: Option<&HotSpot>,
    ) -> Result<Option<Links>> {
        let file = attached_file(&target.libjvm)?;
        let collector = hotspot.map(|hotspot| hotspot.collector);
        if self.files.get(&file).is_some_and(|file| file.collectors.contains(&collector)) {
            return Ok(None);
        }
        let mut plans = self.tool.plan(target, hotspot)?;
        if plans.is_empty() {
            // Without a probe, nothing keeps the inode, so another file might get its address.
            return Ok(None);
        }
        let attached = self.files.entry(file).or_default();
        let plan_key = |plan: &Plan| (plan.program, format!("{:?}", plan.site));
        plans.retain(|plan| !attached.plans.contains(&plan_key(plan)));
        let session = self.tool.session();
        let (links, scope) = session.attach_shared(target, &plans, attached.is_crowded, 0)?;
        if scope != Scope::AllProcesses {
            attached.is_crowded = true;
            return Ok(Some(links));
        }
        attached.links.push(links);
        attached.plans.extend(plans.iter().map(plan_key));
        attached.collectors.insert(collector);
        Ok(None)
    }

    /// Returns whether a JVM shares its attachments with all JVMs that run the same libjvm.so.
    fn shares_files_with(&self, target: &Target) -> bool {
        self.shares_files && target.libjvm.may_share_attachments()
    }

    /// Adds new JVMs, and updates those that were read again.
    fn add_or_update(&mut self, arrivals: Vec<Arrival>) -> Result<()> {
        let mut new = Vec::new();
        for arrival in arrivals {
            let followed = self.jvms.iter_mut().find(|(_, jvm)| is_of(jvm, arrival.target.pid()));
            let Some((&key, jvm)) = followed else {
                new.push(arrival);
                continue;
            };
            if Arc::ptr_eq(&jvm.target, &arrival.target) {
                jvm.hotspot = arrival.hotspot;
                self.tool.prepare(key, jvm.target.pid(), jvm.hotspot.as_deref().ok());
            } else {
                // The process that had this PID has ended or runs another program.
                self.remove_ended(true)?;
                new.push(arrival);
            }
        }
        self.add_found(new)
    }

    /// Adds new JVMs. Prepares those that share attachments before anything is attached, so that no event of
    /// any of them is missed.
    fn add_found(&mut self, mut arrivals: Vec<Arrival>) -> Result<()> {
        if !T::TRACES_STARTING_JVMS {
            arrivals.retain(|Arrival { target, hotspot, stage, .. }| match (stage, hotspot) {
                (Stage::Starting, _) => false,
                (Stage::Ready, Ok(_)) => true,
                (Stage::Ready, Err(error)) => {
                    let line = format!("not tracing process {}", target.pid());
                    warn_once(&line, &error.to_string());
                    false
                }
            });
        }
        for Arrival { target, hotspot, .. } in &arrivals {
            if self.shares_files_with(target) {
                self.tool.prepare(key_in_file(target), target.pid(), hotspot.as_deref().ok());
            }
        }
        for arrival in arrivals {
            let Arrival { target, hotspot, .. } = arrival.clone();
            let pid = target.pid();
            let refused = Arc::clone(&target);
            let shares_files = self.shares_files_with(&target);
            let key = match shares_files {
                true => key_in_file(&target),
                false => bpf::key_of_single(pid),
            };
            let added = refused.libjvm.mark_reading(&refused.process).and_then(|_mark| {
                if self.arrivals.as_ref().is_some_and(Arrivals::is_of_command) {
                    self.add_of_command(target, hotspot)
                } else if shares_files {
                    self.add_to_file(target, hotspot)
                } else {
                    self.add_alone(target, hotspot)
                }
            });
            if let Err(error) = added {
                warn_once(&format!("not tracing process {pid}"), &error.to_string());
                if let Some(arrivals) = &mut self.arrivals {
                    match error {
                        Error::MappedTooOften { .. } => arrivals.postpone(arrival),
                        _ => arrivals.refuse(&refused),
                    }
                }
                self.forget(key);
            }
            self.tool.session().drain_ring()?;
        }
        Ok(())
    }

    /// Removes JVMs that have ended. If `closely`, also removes those that run another program now (exec).
    fn remove_ended(&mut self, closely: bool) -> Result<()> {
        let fate = |jvm: &Followed<_>| jvm.target.process.fate_if(closely);
        let fates = self.jvms.iter().map(|(key, jvm)| (*key, fate(jvm)));
        let changed: Vec<_> = fates.filter(|(_, fate)| *fate != Fate::Alive).collect();
        if !changed.is_empty() {
            // Counters may have changed between the last read and the end of the JVM.
            self.tool.collect_last(&mut self.jvms)?;
            self.report_lost_events()?;
        }
        for (key, fate) in changed {
            let Some(jvm) = self.jvms.remove(&key) else { continue };
            let pid = jvm.target.pid();
            self.pace.log_progress(&match fate {
                Fate::Execed => format!("process {pid} runs another program now"),
                _ => format!("process {pid} has ended"),
            });
            // The queue may still hold an arrival that the registry published before the process ended.
            self.arrivals.iter_mut().for_each(|arrivals| arrivals.refuse(&jvm.target));
            self.tool.on_end(key, jvm)?;
            self.forget(key);
        }
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        self.tool.forget(key);
        self.tool.session().forget(key);
    }
}

fn is_of<J>(jvm: &Followed<J>, pid: Pid) -> bool {
    jvm.target.pid() == pid
}

/// Returns the key of a JVM that shares its attachments with all JVMs that run the same file. The key is the
/// PID.
fn key_in_file(target: &Target) -> u64 {
    target.pid().0.into()
}

impl<T: Tool> Watch for Trace<T> {
    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        self.tool.take_events(&mut self.jvms, timeout)
    }

    fn poll(&mut self) -> Result<()> {
        let arrivals = self.arrivals.as_mut().map(Arrivals::take).unwrap_or_default();
        self.add_or_update(arrivals)
    }

    fn tick(&mut self, Tick { collect, closely }: Tick) -> Result<()> {
        if collect {
            self.collect()?;
        } else if closely {
            self.report_lost_events()?;
        }
        self.remove_ended(closely)?;
        let used = self.jvms.values();
        let used = used.filter_map(|jvm| jvm.target.libjvm.attached_as.get().copied());
        self.idle.release(&mut self.files, used, Instant::now());
        for jvm in self.jvms.values_mut() {
            jvm.stops.poll(&jvm.target.process);
        }
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.collect()?;
        self.tool.report(&mut self.jvms)
    }

    fn is_over(&self) -> bool {
        self.jvms.is_empty() && self.arrivals.as_ref().is_none_or(Arrivals::is_over)
    }

    fn is_closed(&self) -> bool {
        self.tool.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::OwnedFd, sync::atomic::Ordering};

    use super::*;
    use crate::{
        Error,
        bpf::probes::{Binary, Site},
        hotspot::testing::FakeJvm,
        jvms::testing::{WaitingShell, arrival, library},
    };

    /// A tool that records the calls it receives.
    #[derive(Default)]
    struct RecordingTool<const TRACES_STARTING_JVMS: bool> {
        session: RecordingSession,
        /// Keys, and whether the JVM had finished starting.
        prepared: Vec<(u64, bool)>,
        admitted: Vec<u64>,
        lost: Vec<(Pid, u64)>,
        ended: Vec<u64>,
        forgotten: Vec<u64>,
        collected: u32,
        reports: u32,
        /// Processes that cannot be traced.
        refuses: Vec<Pid>,
        stop: AtomicBool,
    }

    #[derive(Default)]
    struct RecordingSession {
        /// Programs, scope and cookie of each attachment.
        attached: Vec<(Vec<&'static str>, Scope, u64)>,
        lost: HashMap<u64, u64>,
        forgotten: Vec<u64>,
        is_crowded: bool,
    }

    impl Attach for RecordingSession {
        fn attach(
            &mut self,
            _: &Binary,
            plans: &[Plan],
            scope: Scope,
            cookie: u64,
        ) -> Result<Links> {
            if self.is_crowded && scope == Scope::AllProcesses {
                return Err(Error::Crowded);
            }
            let programs = plans.iter().map(|plan| plan.program).collect();
            self.attached.push((programs, scope, cookie));
            Ok(Links::default())
        }

        fn wake_on(&mut self, _: OwnedFd) {}

        fn flush(&mut self) {}

        fn drain_ring(&self) -> Result<()> {
            Ok(())
        }

        fn lost(&self, target: u64) -> u64 {
            self.lost.get(&target).copied().unwrap_or(0)
        }

        fn forget(&mut self, target: u64) {
            self.forgotten.push(target);
        }
    }

    impl<const ACCEPTS_STARTING: bool> Tool for RecordingTool<ACCEPTS_STARTING> {
        type Jvm = ();
        const TRACES_STARTING_JVMS: bool = ACCEPTS_STARTING;

        fn session(&mut self) -> &mut dyn Attach {
            &mut self.session
        }

        /// One program for every JVM, and another one for those with G1.
        fn plan(&mut self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>> {
            let pid = target.pid();
            if self.refuses.contains(&pid) {
                return Err(Error::NoSuchProcess { pid });
            }
            let is_g1 = hotspot.is_some_and(|h| h.collector == Collector::G1);
            let programs = if is_g1 { &["all", "g1"][..] } else { &["all"] };
            let site = Site::Usdt { provider: "hotspot".into(), name: "x".into() };
            let plan = |&program| Plan { program, site: site.clone(), optional: None };
            Ok(programs.iter().map(plan).collect())
        }

        fn prepare(&mut self, key: u64, _: Pid, hotspot: Option<&HotSpot>) {
            self.prepared.push((key, hotspot.is_some_and(|h| h.is_set_up)));
        }

        fn admit(&mut self, key: u64, _: &Target, _: &Reading) -> Result<()> {
            self.admitted.push(key);
            Ok(())
        }

        fn take_events(&mut self, _: &mut ByKey<()>, _: Duration) -> Result<()> {
            Ok(())
        }

        fn collect(&mut self, _: &mut ByKey<()>) -> Result<()> {
            self.collected += 1;
            Ok(())
        }

        fn lost(&mut self, jvm: &mut Followed<()>, events: u64) -> Result<()> {
            self.lost.push((jvm.target.pid(), events));
            Ok(())
        }

        fn report(&mut self, _: &mut ByKey<()>) -> Result<()> {
            self.reports += 1;
            Ok(())
        }

        fn forget(&mut self, key: u64) {
            self.forgotten.push(key);
        }

        fn on_end(&mut self, key: u64, _: Followed<()>) -> Result<()> {
            self.ended.push(key);
            Ok(())
        }

        fn is_closed(&self) -> bool {
            self.stop.load(Ordering::Relaxed)
        }
    }

    /// Starts a trace of the given JVMs.
    fn trace<const ACCEPTS_STARTING: bool>(
        named: Vec<Named>,
    ) -> Result<Trace<RecordingTool<ACCEPTS_STARTING>>> {
        let mut trace = Trace::start(RecordingTool::default(), named, None)?;
        trace.shares_files = true;
        Ok(trace)
    }

    /// A JVM that has finished starting.
    fn started_jvm(flag: &str) -> FakeJvm {
        let mut jvm = FakeJvm::new(flag);
        jvm.set_up();
        jvm
    }

    fn unreadable_hotspot() -> Result<HotSpot> {
        Err(Error::layout("unreadable JVM"))
    }

    const CLOSELY: Tick = Tick { closely: true, collect: false };

    #[test]
    fn named_jvm_gets_its_own_attachments() {
        let (library, one, g1) = (library(), WaitingShell::new(), started_jvm("UseG1GC"));
        let trace = trace::<true>(vec![(one.target(&library), Ok(g1.hotspot()))]).unwrap();
        let key = bpf::key_of_single(one.pid());
        let attached = (vec!["all", "g1"], Scope::Process(one.pid()), key);
        assert_eq!(trace.tool.session.attached, [attached]);
        assert_eq!(trace.tool.prepared, [(key, true)]);
        assert_eq!(trace.tool.admitted, [key]);
        assert_eq!(trace.names().collect::<Vec<_>>(), [(one.pid(), "G1")]);
        assert!(!trace.is_over());
    }

    #[test]
    fn start_fails_if_a_named_jvm_is_untraceable() {
        let (library, g1) = (library(), started_jvm("UseG1GC"));
        let (one, other) = (WaitingShell::new(), WaitingShell::new());
        let named = || {
            let named = [&one, &other].map(|process| process.target(&library));
            named.map(|target| (target, Ok(g1.hotspot()))).into()
        };
        let tool = RecordingTool::<true> { refuses: vec![other.pid()], ..Default::default() };
        assert!(Trace::start(tool, named(), None).is_err());
        // A tool with TRACES_STARTING_JVMS can trace a JVM that cannot be read.
        let unreadable = || vec![(one.target(&library), unreadable_hotspot())];
        assert!(trace::<false>(unreadable()).is_err());
        assert_eq!(trace::<true>(unreadable()).unwrap().names().next(), Some((one.pid(), "")));
    }

    #[test]
    fn each_program_is_attached_to_a_file_once() {
        let (library, g1, serial) = (library(), started_jvm("UseG1GC"), started_jvm("UseSerialGC"));
        let processes = [(); 5].map(|()| WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        let jvms = [&serial, &g1, &serial, &g1].map(|jvm| Ok(jvm.hotspot()));
        let found = processes.iter().zip(jvms).map(|(p, jvm)| arrival(p, &library, jvm)).collect();
        trace.add_or_update(found).unwrap();
        let all_processes = |programs: &[&'static str]| (programs.to_vec(), Scope::AllProcesses, 0);
        // For each JVM, only programs that no earlier JVM has needed were attached.
        assert_eq!(trace.tool.session.attached, [all_processes(&["all"]), all_processes(&["g1"])]);
        assert_eq!(trace.jvms.len(), 4);
        // Each JVM was prepared once, in the order of arrival.
        let keys: Vec<u64> = processes[..4].iter().map(|p| p.pid().0.into()).collect();
        assert_eq!(trace.tool.prepared, keys.iter().map(|&key| (key, true)).collect::<Vec<_>>());
        assert_eq!(trace.tool.admitted, keys);
        // Another file has its own attachments.
        let other = self::library();
        trace.add_or_update(vec![arrival(&processes[4], &other, Ok(g1.hotspot()))]).unwrap();
        assert_eq!(trace.tool.session.attached[2..], [all_processes(&["all", "g1"])]);
    }

    #[test]
    fn jvms_of_a_file_with_many_mappings_get_own_attachments_to_what_is_not_shared() {
        let (library, g1, serial) = (library(), started_jvm("UseG1GC"), started_jvm("UseSerialGC"));
        let processes = [(); 4].map(|()| WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        let mut add = |number: usize, jvm: &FakeJvm, is_crowded| {
            trace.tool.session.is_crowded = is_crowded;
            let found = arrival(&processes[number], &library, Ok(jvm.hotspot()));
            trace.add_or_update(vec![found]).unwrap();
        };
        add(0, &serial, false);
        add(1, &g1, true);
        // Shared attachments, beside those that a JVM has, would count each of its hits twice.
        add(2, &g1, false);
        add(3, &serial, false);
        let own = |number: usize| (vec!["g1"], Scope::Process(processes[number].pid()), 0);
        let shared = (vec!["all"], Scope::AllProcesses, 0);
        assert_eq!(trace.tool.session.attached, [shared, own(1), own(2)]);
        assert_eq!(trace.tool.admitted, processes.each_ref().map(|p| u64::from(p.pid().0)));
    }

    #[test]
    fn without_file_sharing_each_jvm_gets_own_attachments() {
        let (library, g1) = (library(), started_jvm("UseG1GC"));
        let processes = [(); 2].map(|()| WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        trace.shares_files = false;
        let found = processes.iter().map(|p| arrival(p, &library, Ok(g1.hotspot()))).collect();
        trace.add_or_update(found).unwrap();
        let scopes = trace.tool.session.attached.iter().map(|(_, scope, _)| *scope);
        let own = processes.each_ref().map(|process| Scope::Process(process.pid()));
        assert_eq!(scopes.collect::<Vec<_>>(), own);
        assert_eq!(trace.tool.prepared.len(), 2);
    }

    #[test]
    fn untraceable_jvm_does_not_stop_other_jvms() {
        let (library, g1) = (library(), started_jvm("UseG1GC"));
        let processes = [(); 2].map(|()| WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        trace.tool.refuses = vec![processes[0].pid()];
        let found = processes.iter().map(|p| arrival(p, &library, Ok(g1.hotspot()))).collect();
        trace.add_or_update(found).unwrap();
        assert_eq!(trace.names().collect::<Vec<_>>(), [(processes[1].pid(), "G1")]);
        let key = u64::from(processes[0].pid().0);
        assert_eq!(
            (&trace.tool.forgotten, &trace.tool.session.forgotten),
            (&vec![key], &vec![key])
        );
    }

    /// An arrival of the same JVM after it has finished starting.
    fn ready_arrival(arrival: &Arrival, jvm: &FakeJvm) -> Arrival {
        let mut hotspot = HotSpot::clone(arrival.hotspot.as_ref().unwrap());
        hotspot.refresh();
        assert!(hotspot.is_set_up && jvm.hotspot().is_set_up);
        Arrival { hotspot: Ok(Arc::new(hotspot)), stage: Stage::Ready, ..arrival.clone() }
    }

    #[test]
    fn tool_not_accepting_starting_jvms_waits_for_readiness() {
        let (library, mut g1, one) = (library(), FakeJvm::new("UseG1GC"), WaitingShell::new());
        let mut trace = trace::<false>(Vec::new()).unwrap();
        let starting = arrival(&one, &library, Ok(g1.hotspot()));
        trace.add_or_update(vec![starting.clone()]).unwrap();
        assert!(trace.jvms.is_empty());
        g1.set_up();
        trace.add_or_update(vec![ready_arrival(&starting, &g1)]).unwrap();
        assert_eq!(trace.names().collect::<Vec<_>>(), [(one.pid(), "G1")]);
        assert_eq!(trace.tool.prepared.len(), 1);
    }

    #[test]
    fn unreadable_jvm_is_traced_if_tool_accepts_starting_jvms() {
        let (library, one) = (library(), WaitingShell::new());
        let unreadable =
            || Arrival { stage: Stage::Ready, ..arrival(&one, &library, unreadable_hotspot()) };
        let mut trace = trace::<false>(Vec::new()).unwrap();
        trace.add_or_update(vec![unreadable()]).unwrap();
        assert!(trace.jvms.is_empty());
        let mut trace = self::trace::<true>(Vec::new()).unwrap();
        trace.add_or_update(vec![unreadable()]).unwrap();
        assert_eq!(trace.jvms.len(), 1);
    }

    #[test]
    fn tool_prepares_again_when_starting_jvm_is_ready() {
        let (library, mut g1, one) = (library(), FakeJvm::new("UseG1GC"), WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        let starting = arrival(&one, &library, Ok(g1.hotspot()));
        trace.add_or_update(vec![starting.clone()]).unwrap();
        assert_eq!(trace.jvms.len(), 1);
        g1.set_up();
        trace.add_or_update(vec![ready_arrival(&starting, &g1)]).unwrap();
        let key = u64::from(one.pid().0);
        assert_eq!(trace.tool.prepared.last(), Some(&(key, true)));
        assert_eq!(trace.tool.admitted, [key]);
    }

    #[test]
    fn exec_in_a_traced_process_makes_new_jvm() {
        let (library, g1, mut one) = (library(), started_jvm("UseG1GC"), WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        trace.add_or_update(vec![arrival(&one, &library, Ok(g1.hotspot()))]).unwrap();
        one.exec();
        trace.add_or_update(vec![arrival(&one, &library, Ok(g1.hotspot()))]).unwrap();
        let key = u64::from(one.pid().0);
        assert_eq!(
            (&trace.tool.ended[..], &trace.tool.admitted[..]),
            (&[key][..], &[key, key][..])
        );
        assert_eq!(trace.jvms.len(), 1);
    }

    #[test]
    fn ended_and_execed_jvms_are_detached() {
        let (library, g1) = (library(), started_jvm("UseG1GC"));
        let mut processes = [(); 3].map(|()| WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        let found = processes.iter().map(|p| arrival(p, &library, Ok(g1.hotspot()))).collect();
        trace.add_or_update(found).unwrap();
        trace.tick(CLOSELY).unwrap();
        assert_eq!((trace.jvms.len(), trace.tool.collected), (3, 0));
        processes[0].end();
        processes[1].exec();
        trace.tick(CLOSELY).unwrap();
        let keys = processes.each_ref().map(|process| u64::from(process.pid().0));
        assert_eq!(trace.jvms.keys().copied().collect::<Vec<_>>(), keys[2..]);
        let mut ended = trace.tool.ended.clone();
        ended.sort_unstable();
        assert_eq!(ended, keys[..2]);
        assert_eq!(trace.tool.session.forgotten, trace.tool.ended);
        assert_eq!(trace.tool.forgotten, trace.tool.ended);
        // Counters were read once after the two JVMs had ended.
        assert_eq!(trace.tool.collected, 1);
        processes[2].end();
        trace.tick(CLOSELY).unwrap();
        assert!(trace.is_over());
    }

    #[test]
    fn lost_events_are_reported_once() {
        let (library, g1, one) = (library(), started_jvm("UseG1GC"), WaitingShell::new());
        let mut trace = trace::<true>(Vec::new()).unwrap();
        let key = one.pid().0.into();
        // Counted for an earlier process with this PID.
        trace.tool.session.lost.insert(key, 5);
        trace.add_or_update(vec![arrival(&one, &library, Ok(g1.hotspot()))]).unwrap();
        trace.tick(CLOSELY).unwrap();
        assert!(trace.tool.lost.is_empty());
        trace.tool.session.lost.insert(key, 7);
        trace.tick(CLOSELY).unwrap();
        trace.tick(Tick { collect: true, ..CLOSELY }).unwrap();
        assert_eq!(trace.tool.lost, [(one.pid(), 2)]);
        trace.tool.session.lost.insert(key, 8);
        trace.report().unwrap();
        assert_eq!(trace.tool.lost[1..], [(one.pid(), 1)]);
    }

    #[test]
    fn final_counters_are_collected_once() {
        let mut trace = trace::<true>(Vec::new()).unwrap();
        trace.tool.stop.store(true, Ordering::Relaxed);
        let end = trace.run(Times::default(), &AtomicBool::new(false)).unwrap();
        assert_eq!((end, trace.tool.collected, trace.tool.reports), (End::Time, 1, 0));
        // The last report has collected the counters, so they are not collected again at the end.
        let mut trace = self::trace::<true>(Vec::new()).unwrap();
        let times =
            Times { interval: Some(Duration::from_millis(1)), count: Some(1), ..Times::default() };
        let end = trace.run(times, &AtomicBool::new(false)).unwrap();
        assert_eq!((end, trace.tool.collected, trace.tool.reports), (End::Reported, 1, 1));
    }
}
