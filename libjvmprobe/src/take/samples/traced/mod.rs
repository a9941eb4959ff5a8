//! One process that is profiled, and what is known of its code.

mod attach;
mod told;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use told::tell_events;

use crate::{
    Addr, Pid, Result,
    bpf::probes::Links,
    follow::{Arrival, Reading, Stage, Stops},
    hotspot::{
        HotSpot,
        code::Inlining,
        thread_names::{ThreadNames, WholeNames},
        walking::JvmLayout,
    },
    own::{note, remark},
    process::{Fate, FileId, Process, Target, code::CodeMaps, libjvm::native_image},
    stack::{
        code_log::{CodeIndex, CodeLog, SharedNames},
        java_frames::{self, PlaceNames, Places},
        native::{Files, Symbols},
        raw::{RawStack, Stack},
    },
    take::samples::{
        Options, StackWalk, SymbolSource,
        event::CodeEvent,
        events::labels::Labels,
        session::{self, SampleKey, Session},
        symbols::{ask, get, version_unknown},
    },
};

/// After its mappings were looked at because of an address in none, so long are they not
/// looked at again for that: longer each time that it was in vain.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Whatever stacks there are, so often: a library that replaces another may lie at the same
/// addresses.
const CHECK: Duration = Duration::from_secs(2);

/// A process and its code.
pub(crate) struct Traced {
    who: Who,
    /// Its command's name.
    pub command: Arc<str>,
    /// Files that it has mapped.
    pub maps: CodeMaps,
    /// Their symbols.
    pub symbols: Symbols,
    /// When its mappings may be looked at again, and how long after that.
    next_look: Option<Instant>,
    pause: Duration,
    /// When they are looked at again in any case.
    next_check: Instant,
    /// Its code cache, if it is a JVM.
    pub code: CodeLog,
    /// Whether what it compiles is followed.
    is_followed: bool,
    /// Attachments that are this process's alone.
    links: Links,
    /// Events that were not found yet, and which of its mappings were searched for them.
    missing: Vec<usize>,
    searched: Option<u64>,
    /// What is told beside the stacks of events.
    pub labels: Labels,
    /// Whether all is known of it that a JVM tells.
    stage: Stage,
    /// Whether it was stopped all the time, where that is of interest.
    pub stops: Option<Stops>,
    has_map: bool,
    /// Where its map came from.
    source: Option<SymbolSource>,
    /// Whether the stack walker was told of it, or will never be.
    is_walked: bool,
    /// Whether it is known to be no native image.
    is_no_image: bool,
    /// How it is walked, until somebody asks.
    layout: Option<JvmLayout>,
    /// What the Java frames of its stacks are.
    places: Option<Places>,
    /// The names of its threads, once one was asked for.
    threads: Option<ThreadNames>,
}

/// What names the samples of a process.
pub(crate) struct Named {
    /// Its command's name.
    pub command: Arc<str>,
    /// Files that it had mapped.
    pub maps: CodeMaps,
    /// Their symbols.
    pub symbols: Symbols,
    /// What was in its code cache, and when.
    pub code: CodeIndex,
    /// Java frames that were named when they were first seen.
    pub places: Option<PlaceNames>,
    /// What is told beside stacks.
    pub labels: Labels,
    /// Names of threads of which the kernel has only the beginning.
    pub threads: WholeNames,
}

enum Who {
    /// With what it tells, or why that cannot be read.
    Jvm(Arc<Target>, Reading),
    /// Started by us, or replaced by exec: it may become a JVM.
    Future(Process),
    Other(Process),
}

impl Who {
    fn process(&self) -> &Process {
        match self {
            Self::Jvm(target, _) => &target.process,
            Self::Future(process) | Self::Other(process) => process,
        }
    }
}

impl Traced {
    /// A JVM, and what it tells.
    pub(crate) fn jvm(arrival: Arrival, files: &mut Files) -> Self {
        let Arrival { target, hotspot, stage, .. } = arrival;
        let stops = Some(Stops::new(&target.process));
        Self { stops, stage, ..Self::new(Who::Jvm(target, hotspot), files) }
    }

    /// Takes what a JVM tells by now. Returns whether it is this one.
    pub(crate) fn update(&mut self, arrival: &Arrival) -> bool {
        let Who::Jvm(target, hotspot) = &mut self.who else { return false };
        let is_this = Arc::ptr_eq(target, &arrival.target);
        if is_this {
            *hotspot = arrival.hotspot.clone();
            self.stage = arrival.stage;
        }
        is_this
    }

    /// A process that may become a JVM.
    pub(crate) fn future_jvm(process: Process, files: &mut Files) -> Self {
        Self::new(Who::Future(process), files)
    }

    /// A process that is none.
    pub(crate) fn other(process: Process, files: &mut Files) -> Self {
        Self::new(Who::Other(process), files)
    }

    fn new(who: Who, files: &mut Files) -> Self {
        let process = who.process();
        Self {
            command: process.comm.as_str().into(),
            maps: CodeMaps::default(),
            symbols: files.symbols(process.pid),
            next_look: None,
            pause: PAUSE,
            next_check: Instant::now() + CHECK,
            code: CodeLog::default(),
            is_followed: false,
            links: Links::default(),
            missing: Vec::new(),
            searched: None,
            labels: Labels::default(),
            stage: Stage::Ready,
            stops: None,
            has_map: false,
            source: None,
            is_walked: false,
            is_no_image: false,
            layout: None,
            places: None,
            threads: None,
            who,
        }
    }

    fn process(&self) -> &Process {
        self.who.process()
    }

    /// Looks whether it is stopped.
    pub(crate) fn look_at_stops(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.look(self.who.process());
        }
    }

    /// Says so if it was stopped all the time.
    pub(crate) fn tell_stops(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.tell(self.who.process());
        }
    }

    /// Says so if it has not told what it is, which it was asked all the time.
    pub(crate) fn tell_why_unknown(&self) {
        if let Who::Jvm(_, Err(error)) = &self.who
            && !self.is_walked
        {
            note(&format!("process {}: its version is unknown: {error}", self.pid()));
        }
    }

    /// Its number.
    pub(crate) fn pid(&self) -> Pid {
        self.process().pid
    }

    /// What has become of it.
    pub(crate) fn fate(&self) -> Fate {
        self.process().fate()
    }

    /// The same, see [`Process::fate_if`].
    pub(crate) fn fate_if(&self, closely: bool) -> Fate {
        self.process().fate_if(closely)
    }

    /// Whether it is a JVM.
    pub(crate) fn is_jvm(&self) -> bool {
        matches!(self.who, Who::Jvm(..))
    }

    /// The JVM that it is.
    pub(crate) fn target(&self) -> Option<&Arc<Target>> {
        match &self.who {
            Who::Jvm(target, _) => Some(target),
            Who::Future(_) | Who::Other(_) => None,
        }
    }

    /// The libjvm.so that it runs.
    pub(crate) fn libjvm(&self) -> Option<FileId> {
        self.target().map(|target| target.libjvm.id)
    }

    /// Whether it is a JVM or was named by the user, not one of all processes.
    pub(crate) fn is_named(&self) -> bool {
        self.stops.is_some()
    }

    /// The JVM that it has become, if it has.
    pub(crate) fn find_jvm(&self) -> Option<Arrival> {
        if !self.may_become_jvm() {
            return None;
        }
        let target = Target::open(self.pid()).ok()?;
        let hotspot = HotSpot::read(&target);
        Some(Arrival::new(target, hotspot))
    }

    /// It has become this JVM.
    pub(crate) fn become_jvm(&mut self, arrival: Arrival, files: &mut Files) {
        let (maps, labels) = (std::mem::take(&mut self.maps), std::mem::take(&mut self.labels));
        *self = Self { maps, labels, ..Self::jvm(arrival, files) };
    }

    /// Whether it is about to become a JVM.
    pub(crate) fn may_become_jvm(&self) -> bool {
        matches!(self.who, Who::Future(_))
    }

    /// Looks at its mappings.
    pub(crate) fn refresh_maps(&mut self, files: &mut Files, session: &mut Session) -> Result<()> {
        let pid = self.pid();
        self.maps.refresh(pid, &files.mapped)?;
        // Before that, the walker would make no use of it.
        if self.is_walked {
            session::tell_mappings(session, pid.0.into(), &self.maps)
        } else {
            Ok(())
        }
    }

    /// The same; where it cannot, because it is gone for example, what was seen before must do.
    pub(crate) fn try_refresh_maps(&mut self, files: &mut Files, session: &mut Session) {
        if let Err(error) = self.refresh_maps(files, session) {
            let pid = self.pid();
            remark(|| format!("what process {pid} has mapped by now is not known: {error}"));
        }
    }

    /// Looks at its mappings if a stack has addresses in none: a library that was loaded
    /// just now is not to be walked without its unwind table any longer.
    pub(crate) fn look_for(&mut self, stack: &Stack, files: &mut Files, session: &mut Session) {
        let is_unmapped = |maps: &CodeMaps| {
            stack.addresses().any(|addr| addr > Addr(0) && maps.find(addr).is_none())
        };
        let now = Instant::now();
        let is_wanted = now >= self.next_check || is_unmapped(&self.maps);
        if !is_wanted || self.next_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_check = now + CHECK;
        self.try_refresh_maps(files, session);
        self.pause = match is_unmapped(&self.maps) {
            true => (self.pause * 2).min(LONGEST_PAUSE),
            false => PAUSE,
        };
        self.next_look = Some(now + self.pause);
    }

    /// Tells the stack walker what it must know, once the JVM is set up.
    ///
    /// # Errors
    /// Where stacks can be walked by frame pointers only.
    pub(crate) fn tell_walker(
        &mut self,
        options: &Options,
        files: &mut Files,
        session: &mut Session,
    ) -> Result<()> {
        let Options { walk: how, ref symbols, signatures, .. } = *options;
        let key = self.pid().0.into();
        if self.is_walked || how == StackWalk::Fp {
            return Ok(());
        }
        let Who::Jvm(target, hotspot) = &self.who else {
            return self.tell_walker_of_image(files, session);
        };
        if self.stage == Stage::Starting {
            return Ok(());
        }
        self.is_walked = true;
        // Libraries were loaded while it set itself up; or it is gone by now.
        let pid = target.pid();
        if let Err(error) = self.maps.refresh(pid, &files.mapped) {
            remark(|| format!("what process {pid} has mapped is not known: {error}"));
        }
        let hotspot = hotspot.as_deref().map_err(|error| version_unknown(pid, error))?;
        if let Some(walker) = session.walker() {
            let layout = hotspot.walking()?;
            walker.add_jvm(key, &layout);
            self.layout = Some(layout);
        }
        session::tell_mappings(session, key, &self.maps)?;
        self.labels.traps = tell_events(pid, hotspot, &options.events, session);
        let compiled = matches!(symbols, SymbolSource::Auto | SymbolSource::HotSpot);
        if *symbols != SymbolSource::None {
            self.places = Some(Places::new(hotspot, compiled, signatures)?);
        }
        Ok(())
    }

    /// The same of a native image that was named or started: it has no code but that of its files.
    fn tell_walker_of_image(&mut self, files: &mut Files, session: &mut Session) -> Result<()> {
        let pid = self.pid();
        let is_wanted = self.is_named() || self.may_become_jvm();
        if !is_wanted || self.is_no_image {
            return Ok(());
        }
        if native_image(pid).is_none() {
            // What is to come may be one.
            self.is_no_image = !self.may_become_jvm();
            return Ok(());
        }
        self.is_walked = true;
        if let Err(error) = self.maps.refresh(pid, &files.mapped) {
            remark(|| format!("what process {pid} has mapped is not known: {error}"));
        }
        session::tell_mappings(session, pid.0.into(), &self.maps)
    }

    /// How its stacks are walked, once.
    pub(crate) fn first_layout(&mut self) -> Option<JvmLayout> {
        self.layout.take()
    }

    /// Gets to know the Java frames of some stacks together.
    pub(crate) fn learn<'a>(&mut self, stacks: impl IntoIterator<Item = &'a RawStack>) {
        if let (Some(places), Who::Jvm(_, Ok(hotspot))) = (&mut self.places, &self.who) {
            places.learn(hotspot, stacks);
        }
    }

    /// Names the Java frames of a stack.
    pub(crate) fn resolve(&mut self, raw: &RawStack) -> Stack {
        if let (Some(places), Who::Jvm(_, Ok(hotspot))) = (&mut self.places, &self.who) {
            return places.resolve(hotspot, raw);
        }
        java_frames::plain(raw)
    }

    /// What the Java frames of the stacks are that came up to now. Those that come from here on
    /// are named anew.
    pub(crate) fn take_places(&mut self) -> Option<PlaceNames> {
        self.places.as_mut().map(Places::take_names)
    }

    /// What names what was sampled up to now, with the Java frames of its stacks.
    pub(crate) fn settle(&mut self, places: Option<PlaceNames>, names: &mut SharedNames) -> Named {
        let code = self.code.settle();
        self.code.share(names);
        Named {
            command: Arc::clone(&self.command),
            maps: self.maps.clone(),
            symbols: self.symbols,
            code,
            places,
            labels: self.labels.clone(),
            threads: self.threads.as_ref().map_or_else(WholeNames::default, |t| t.known.clone()),
        }
    }

    /// Nothing was sampled up to now: what came and went is of no interest.
    pub(crate) fn forget_past(&mut self, names: &mut SharedNames) {
        if self.code.kept() > 0 {
            self.code.settle();
            self.code.share(names);
        }
    }

    /// What names what was sampled.
    pub(crate) fn into_named(mut self) -> Named {
        let places = self.take_places();
        let code = self.code.into_index();
        let Self { command, maps, symbols, labels, threads, .. } = self;
        let threads = threads.map_or_else(WholeNames::default, |threads| threads.known);
        Named { command, maps, symbols, code, places, labels, threads }
    }

    /// Finds out the whole name of a thread that was sampled.
    pub(crate) fn learn_thread(&mut self, key: &SampleKey) {
        if let (Who::Jvm(_, Ok(hotspot)), Stage::Ready) = (&self.who, self.stage) {
            let threads = self.threads.get_or_insert_with(|| ThreadNames::new(hotspot));
            threads.learn(key.tid, &key.comm);
        }
    }

    /// About how many bytes it keeps of what comes and goes.
    pub(crate) fn size(&self) -> usize {
        /// A load with its name.
        const LOAD: usize = 200;
        self.code.kept() * LOAD + self.places.as_ref().map_or(0, Places::size)
    }

    /// Takes what it compiled or discarded.
    pub(crate) fn take(&mut self, event: CodeEvent) {
        match event.place {
            Some((addr, size)) => self.code.load(event.epoch, addr, size, event.code),
            None => self.code.unload(event.epoch, event.code),
        }
    }

    /// Gets the map of what it had compiled before. `Ok(false)` where it is too early
    /// to ask.
    pub(crate) fn get_map(
        &mut self,
        options: &Options,
        session: &Session,
        names: &mut SharedNames,
    ) -> Result<bool> {
        let key = self.pid().0.into();
        let Who::Jvm(target, hotspot) = &self.who else {
            return Ok(false);
        };
        if self.has_map {
            return Ok(true);
        }
        if self.stage == Stage::Starting {
            return Ok(false);
        }
        self.has_map = true;
        if options.symbols == SymbolSource::None {
            return Ok(true);
        }
        // What happens from here on is told by probes; what the map does not show yet
        // is shown by them.
        let epoch = session::epoch(session, key);
        let may_ask = options.may_ask;
        let inlining = Inlining::Nowhere;
        let hotspot = hotspot.as_deref().map_err(|error| &**error);
        let (seen, source) = get(&options.symbols, &target.process, hotspot, inlining, may_ask)?;
        self.code.snapshot(epoch, seen);
        self.code.share(names);
        self.source = Some(source);
        Ok(true)
    }

    /// Asks again at the end: for what a JVM that cannot be followed compiled since, and for
    /// what was inlined at these addresses, which are sorted, where that is not known yet.
    pub(crate) fn ask_again(&mut self, sampled: &[Addr]) {
        let Who::Jvm(target, hotspot) = &self.who else {
            return;
        };
        let Some(source) = &self.source else {
            return;
        };
        let knows_inlining = *source == SymbolSource::PerfMap || self.places.is_some();
        let is_wanted = *source == SymbolSource::Agent || !knows_inlining || !self.is_followed;
        if !is_wanted {
            return;
        }
        // Gone or hung by now: what was known before must do.
        let hotspot = hotspot.as_deref().map_err(|error| &**error);
        let seen = match ask(source, &target.process, hotspot, Inlining::At(sampled)) {
            Ok(seen) => seen,
            Err(error) => {
                let pid = target.pid();
                remark(|| format!("process {pid} was not asked again at the end: {error}"));
                return;
            }
        };
        let unknown = self.code.refine(seen.into_entries());
        if !self.is_followed {
            for (addr, size, code) in unknown {
                self.code.load(1, addr, size, code);
            }
        }
    }
}
