//! JVMs that are followed: attached to when they come, asked until they have set themselves up,
//! let go when they end.
//!
//! A JVM that was named has attachments of its own; where all are followed, those of a
//! libjvm.so are for all JVMs that run it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use crate::{
    Pid, Result,
    bpf::{
        self,
        probes::{Links, Plan, Scope},
        session::Attach,
    },
    follow::{
        Arrival, Arrivals, Stops, ready,
        run::{self, End, Times, Watch},
    },
    hotspot::{Collector, HotSpot},
    own::{Idle, note, remark},
    process::{Fate, FileId, Target},
    render::table::Lost,
};

/// A JVM has set itself up within a few seconds; one with a very large heap takes longer.
const SETTING_UP: Duration = Duration::from_secs(60);

/// A JVM that is followed.
pub struct Followed<J> {
    /// The process.
    pub target: Target,
    /// What it tells of itself, or why that is not known (yet).
    pub hotspot: Result<HotSpot>,
    /// What the tool keeps of it.
    pub jvm: J,
    /// What was lost of it.
    lost: u64,
    stops: Stops,
    /// Until when it is asked again what it did not tell yet.
    ask_until: Instant,
    /// Attachments that are this JVM's alone.
    _links: Option<Links>,
}

impl<J> Followed<J> {
    /// What HotSpot tells of itself, once it does.
    pub fn hotspot(&self) -> Option<&HotSpot> {
        self.hotspot.as_ref().ok()
    }

    /// Its figures are told: a line says if they are empty because it was stopped.
    pub fn tell_stops(&mut self) {
        self.stops.tell(&self.target.process);
    }

    /// Asks a JVM that was still starting up what it tells by now; whether there may be
    /// anything new.
    fn learn_more(&mut self) -> bool {
        if self.hotspot().is_some_and(|h| h.is_set_up) || Instant::now() > self.ask_until {
            return false;
        }
        look_again(&self.target, &mut self.hotspot);
        self.hotspot.is_ok()
    }
}

fn look_again(target: &Target, hotspot: &mut Result<HotSpot>) {
    match hotspot {
        Ok(hotspot) => hotspot.look_again(),
        Err(_) => {
            *hotspot = HotSpot::read(target);
            if let Err(error) = hotspot {
                let pid = target.pid();
                remark(|| format!("process {pid} does not tell what it is: {error}"));
            }
        }
    }
}

/// JVMs by the keys that the kernel side knows them by.
pub type ByKey<J> = BTreeMap<u64, Followed<J>>;

/// A tool that follows JVMs.
pub trait Tool {
    /// What it keeps of each.
    type Jvm;

    /// Whether it can do with a JVM that has not set itself up yet.
    const TAKES_YOUNG: bool;

    /// What to attach with.
    fn session(&mut self) -> &mut dyn Attach;

    /// What to attach to a JVM's libjvm.so.
    ///
    /// # Errors
    /// Why it cannot be traced.
    fn plan(&self, target: &Target, hotspot: Option<&HotSpot>) -> Result<Vec<Plan>>;

    /// Gets ready for a JVM, before anything is attached and again when it tells more.
    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        let _ = (key, pid, hotspot);
    }

    /// Begins with a JVM, once all is attached.
    ///
    /// # Errors
    /// Why it cannot be traced.
    fn admit(&mut self, key: u64, target: &Target, hotspot: &Result<HotSpot>) -> Result<Self::Jvm>;

    /// Waits for events, up to `timeout`, and takes them.
    ///
    /// # Errors
    /// Where the trace cannot go on; so below.
    fn take_events(&mut self, jvms: &mut ByKey<Self::Jvm>, timeout: Duration) -> Result<()>;

    /// Takes what was counted: each second, before a report and before a JVM is let go.
    ///
    /// # Errors
    /// As above.
    fn collect(&mut self, jvms: &mut ByKey<Self::Jvm>) -> Result<()> {
        self.take_events(jvms, Duration::ZERO)
    }

    /// So many events of a JVM were lost since this was last said. By default a line says so.
    ///
    /// # Errors
    /// As above.
    fn lost(&mut self, jvm: &mut Followed<Self::Jvm>, events: u64) -> Result<()> {
        Lost::now(jvm.target.pid().0, events).tell();
        Ok(())
    }

    /// Reports an interval.
    ///
    /// # Errors
    /// As above.
    fn report(&mut self, jvms: &mut ByKey<Self::Jvm>) -> Result<()>;

    /// A JVM has ended. By default there is nothing to tell of it any more.
    ///
    /// # Errors
    /// As above.
    fn gone(&mut self, key: u64, jvm: Followed<Self::Jvm>) -> Result<()> {
        let _ = (key, jvm);
        Ok(())
    }

    /// Whether nobody reads what it writes.
    fn is_closed(&self) -> bool;
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

/// A JVM that was named by the user, and what it tells.
pub type Named = (Target, Result<HotSpot>);

/// Finds the JVMs that the user has named, and waits for those that are just being made.
///
/// # Errors
/// [`NoVm`](crate::Error::NoVm), [`NoSuchProcess`](crate::Error::NoSuchProcess) and those of [`Target::open`].
pub fn find(pids: &[Pid]) -> Result<Vec<Named>> {
    let targets = pids.iter().map(|&pid| Target::open(pid)).collect::<Result<Vec<_>>>()?;
    let hotspots = targets.iter().map(ready::wait_for_any_vm).collect::<Result<Vec<_>>>()?;
    Ok(targets.into_iter().zip(hotspots).collect())
}

/// A tool and the JVMs that it follows.
pub struct Trace<T: Tool> {
    /// The tool.
    pub tool: T,
    /// The JVMs.
    pub jvms: ByKey<T::Jvm>,
    /// Where only ready ones are wanted: those that are not, and until when they are asked.
    young: Vec<(Arrival, Instant)>,
    /// Attachments to a file, for all processes that map it.
    files: HashMap<FileId, Attached>,
    /// Where every JVM is traced.
    arrivals: Option<Arrivals>,
    /// Files that no JVM runs any more.
    idle: Idle<FileId>,
    verbose: bool,
}

impl<T: Tool> Trace<T> {
    /// Attaches to those named, all or none; to every JVM where `arrivals` are given.
    ///
    /// # Errors
    /// Why one that was named cannot be traced.
    pub fn start(
        tool: T,
        named: Vec<Named>,
        arrivals: Option<Arrivals>,
        verbose: bool,
    ) -> Result<Self> {
        let mut trace = Self {
            tool,
            jvms: ByKey::new(),
            young: Vec::new(),
            files: HashMap::new(),
            arrivals,
            idle: Idle::default(),
            verbose,
        };
        for (target, hotspot) in named {
            trace.add_alone(target, hotspot)?;
        }
        trace.look()?;
        Ok(trace)
    }

    /// Process numbers and collectors.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (Pid, &str)> {
        let collector = |jvm: &Followed<_>| jvm.hotspot().map_or("", |h| h.collector.name());
        self.jvms.values().map(move |jvm| (jvm.target.pid(), collector(jvm)))
    }

    /// Follows until it is time to end, and takes what came last.
    ///
    /// # Errors
    /// What the tool says.
    pub fn run(&mut self, times: Times, stop: &AtomicBool) -> Result<End> {
        let end = run::run(self, times, stop)?;
        if end == End::Time {
            self.collect()?;
        }
        Ok(end)
    }

    fn collect(&mut self) -> Result<()> {
        self.tool.collect(&mut self.jvms)?;
        self.tell_lost()
    }

    fn tell_lost(&mut self) -> Result<()> {
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
    fn add_alone(&mut self, target: Target, hotspot: Result<HotSpot>) -> Result<()> {
        let hotspot = if T::TAKES_YOUNG { hotspot } else { Ok(hotspot?) };
        let plans = self.tool.plan(&target, hotspot.as_ref().ok())?;
        let pid = target.pid();
        let key = bpf::key_alone(pid);
        // Before the first event.
        self.tool.prepare(key, pid, hotspot.as_ref().ok());
        let session = self.tool.session();
        session.settle();
        let links = session.attach(&(&target.libjvm).into(), &plans, Scope::Process(pid), key)?;
        self.add(key, target, hotspot, Some(links))
    }

    fn add(
        &mut self,
        key: u64,
        target: Target,
        hotspot: Result<HotSpot>,
        links: Option<Links>,
    ) -> Result<()> {
        if self.verbose {
            let path = target.libjvm.seen_as.display();
            note(&format!("process {} runs {path}", target.pid()));
        }
        let jvm = self.tool.admit(key, &target, &hotspot)?;
        let followed = Followed {
            stops: Stops::new(&target.process),
            // What was lost before is another's.
            lost: self.tool.session().lost(key),
            ask_until: Instant::now() + SETTING_UP,
            target,
            hotspot,
            jvm,
            _links: links,
        };
        self.jvms.insert(key, followed);
        Ok(())
    }

    /// Adds a JVM that shares its attachments with all that run the same file.
    fn add_to_file(&mut self, target: Target, hotspot: Result<HotSpot>) -> Result<()> {
        let hotspot = if T::TAKES_YOUNG { hotspot } else { Ok(hotspot?) };
        self.attach_to_file(&target, hotspot.as_ref().ok())?;
        self.add(key_in_file(&target), target, hotspot, None)
    }

    /// Attaches to the file that a JVM runs what no JVM before it has needed.
    fn attach_to_file(&mut self, target: &Target, hotspot: Option<&HotSpot>) -> Result<()> {
        let attached = self.files.entry(target.libjvm.id).or_default();
        let collector = hotspot.map(|hotspot| hotspot.collector);
        if attached.collectors.contains(&collector) {
            return Ok(());
        }
        let mut plans = self.tool.plan(target, hotspot)?;
        let place = |plan: &Plan| (plan.program, format!("{:?}", plan.site));
        plans.retain(|plan| !attached.plans.contains(&place(plan)));
        let session = self.tool.session();
        attached.links.push(session.attach(
            &(&target.libjvm).into(),
            &plans,
            Scope::Everyone,
            0,
        )?);
        attached.plans.extend(plans.iter().map(place));
        attached.collectors.insert(collector);
        Ok(())
    }

    /// Adds JVMs that are new: all get ready first, so that nothing of any is missed once
    /// something is attached.
    fn add_found(&mut self, arrivals: Vec<Arrival>) -> Result<()> {
        for Arrival { target, hotspot } in &arrivals {
            if bpf::reaches_everyone() {
                self.tool.prepare(key_in_file(target), target.pid(), hotspot.as_ref().ok());
            }
        }
        for Arrival { target, hotspot } in arrivals {
            let pid = target.pid();
            let added = if bpf::reaches_everyone() {
                self.add_to_file(target, hotspot)
            } else {
                // Hits of several processes could not be told apart: attach one by one.
                self.add_alone(target, hotspot)
            };
            if let Err(error) = added {
                note(&format!("process {pid} is not traced: {error}"));
            }
            self.tool.session().make_room()?;
        }
        Ok(())
    }

    /// Those of the young ones and of those that are new that can be added.
    fn grown_up(&mut self, arrivals: Vec<Arrival>) -> Vec<Arrival> {
        if T::TAKES_YOUNG {
            return arrivals;
        }
        let now = Instant::now();
        for (Arrival { hotspot, target }, _) in &mut self.young {
            look_again(target, hotspot);
        }
        let mut grown_up = Vec::new();
        let young = std::mem::take(&mut self.young).into_iter();
        let new = arrivals.into_iter().map(|arrival| (arrival, now + SETTING_UP));
        for (arrival, ask_until) in young.chain(new) {
            if arrival.hotspot.as_ref().is_ok_and(|h| h.is_set_up) || now > ask_until {
                grown_up.push(arrival);
            } else if arrival.target.process.fate() == Fate::Alive {
                self.young.push((arrival, ask_until));
            }
        }
        grown_up
    }

    /// Lets go of those that are no more what they were.
    fn part(&mut self) -> Result<()> {
        let fate = |jvm: &Followed<_>| jvm.target.process.fate();
        let fates = self.jvms.iter().map(|(key, jvm)| (*key, fate(jvm)));
        let changed: Vec<_> = fates.filter(|(_, fate)| *fate != Fate::Alive).collect();
        if !changed.is_empty() {
            // What came between the last look and the end.
            self.collect()?;
        }
        for (key, fate) in changed {
            let Some(jvm) = self.jvms.remove(&key) else { continue };
            let pid = jvm.target.pid();
            note(&match fate {
                Fate::Execed => format!("process {pid} runs another program now"),
                _ => format!("process {pid} has ended"),
            });
            self.tool.gone(key, jvm)?;
            self.tool.session().forget(key);
            if let Some(arrivals) = &mut self.arrivals {
                arrivals.forget(pid);
            }
        }
        Ok(())
    }

    fn learn_more(&mut self) {
        for (key, jvm) in &mut self.jvms {
            if jvm.learn_more() {
                self.tool.prepare(*key, jvm.target.pid(), jvm.hotspot.as_ref().ok());
            }
        }
    }
}

/// The key of a JVM that is seen through attachments to its file.
fn key_in_file(target: &Target) -> u64 {
    target.pid().0.into()
}

impl<T: Tool> Watch for Trace<T> {
    fn take_events(&mut self, timeout: Duration) -> Result<()> {
        self.tool.take_events(&mut self.jvms, timeout)
    }

    fn next_look(&self) -> Option<Instant> {
        self.arrivals.as_ref().map(Arrivals::next_look)
    }

    fn look(&mut self) -> Result<()> {
        let arrivals = self.arrivals.as_mut().map(Arrivals::take).unwrap_or_default();
        let arrivals = self.grown_up(arrivals);
        self.add_found(arrivals)?;
        self.learn_more();
        Ok(())
    }

    fn tick(&mut self, collect: bool) -> Result<()> {
        if collect {
            self.collect()?;
        } else {
            self.tell_lost()?;
        }
        self.part()?;
        let used = self.jvms.values().map(|jvm| jvm.target.libjvm.id);
        let used = used.chain(self.young.iter().map(|(young, _)| young.target.libjvm.id));
        self.idle.release(&mut self.files, used, Instant::now());
        for jvm in self.jvms.values_mut() {
            jvm.stops.look(&jvm.target.process);
        }
        Ok(())
    }

    fn report(&mut self) -> Result<()> {
        self.collect()?;
        self.tool.report(&mut self.jvms)
    }

    fn is_over(&self) -> bool {
        self.jvms.is_empty() && self.young.is_empty() && self.arrivals.is_none()
    }

    fn is_closed(&self) -> bool {
        self.tool.is_closed()
    }
}
