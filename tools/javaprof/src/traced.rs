//! One process that is profiled, and what is known of its code.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Addr, Error, Pid, Result,
    cli::note,
    follow::Stops,
    hotspot::{
        FIRST_READ, HotSpot,
        code_cache::Inlining,
        places::{self, Places},
    },
    jvm::{Fate, FileId, Process, Target, agent},
    stack::{
        agent_map, builtin_map,
        code::{CodeLog, Snapshot},
        maps::{CodeMaps, FileCache},
        native::Symbols,
        walk::{RawStack, Stack},
    },
    trace::attach::{self, Links, Scope, resolve},
};

use crate::{
    args::{Args, StackWalk, SymbolSource},
    event::CodeEvent,
    session::Session,
};

/// What HotSpot tells of its compiled methods, without any flag.
const CODE: [attach::Instant; 2] = [
    attach::Instant {
        usdt: ("hotspot", "compiled__method__unload"),
        usdt_program: "code_unload",
        functions: &[],
        function_program: "code_unload",
    },
    attach::Instant {
        usdt: ("hotspot", "compiled__method__load"),
        usdt_program: "code_load",
        functions: &[],
        function_program: "code_load",
    },
];

/// A JVM has set itself up within a few seconds; one with a very large heap takes longer.
const SETTING_UP: Duration = Duration::from_secs(60);

/// After its mappings were looked at because of an address in none, so long are they not
/// looked at again for that: longer each time that it was in vain.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A process and its code.
pub struct Traced {
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
    /// Its code cache, if it is a JVM.
    pub code: CodeLog,
    /// Whether what it compiles is followed.
    is_followed: bool,
    /// Attachments that are this process's alone.
    links: Option<Links>,
    /// Until when a JVM is asked again that is still setting itself up.
    ask_until: Instant,
    /// Whether it was stopped all the time, where that is of interest.
    pub stops: Option<Stops>,
    has_map: bool,
    /// Whether the stack walker was told of it, or will never be.
    is_walked: bool,
    /// What the Java frames of its stacks are.
    places: Option<Places>,
}

enum Who {
    Jvm(Box<(Target, Option<HotSpot>)>),
    /// Started by us, or replaced by exec: it may become a JVM.
    Future(Process),
    Other(Process),
}

impl Who {
    fn process(&self) -> &Process {
        match self {
            Self::Jvm(jvm) => &jvm.0.process,
            Self::Future(process) | Self::Other(process) => process,
        }
    }
}

impl Traced {
    /// A JVM, and what it tells.
    pub fn jvm(target: Target, hotspot: Option<HotSpot>, files: &mut FileCache) -> Self {
        let stops = Some(Stops::new(&target.process));
        let who = Who::Jvm(Box::new((target, hotspot)));
        Self { stops, ..Self::new(who, files) }
    }

    /// A process that may become a JVM.
    pub fn future_jvm(process: Process, files: &mut FileCache) -> Self {
        Self::new(Who::Future(process), files)
    }

    /// A process that is none.
    pub fn other(process: Process, files: &mut FileCache) -> Self {
        Self::new(Who::Other(process), files)
    }

    fn new(who: Who, files: &mut FileCache) -> Self {
        let process = who.process();
        Self {
            command: process.comm.as_str().into(),
            maps: CodeMaps::default(),
            symbols: files.symbols(),
            next_look: None,
            pause: PAUSE,
            code: CodeLog::default(),
            is_followed: false,
            links: None,
            ask_until: Instant::now() + SETTING_UP,
            stops: None,
            has_map: false,
            is_walked: false,
            places: None,
            who,
        }
    }

    fn process(&self) -> &Process {
        self.who.process()
    }

    /// Looks whether it is stopped.
    pub fn look_at_stops(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.look(self.who.process());
        }
    }

    /// Says so if it was stopped all the time.
    pub fn tell_stops(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.tell(self.who.process());
        }
    }

    /// Its number.
    pub fn pid(&self) -> Pid {
        self.process().pid
    }

    /// What has become of it.
    pub fn fate(&self) -> Fate {
        self.process().fate()
    }

    /// Whether it is a JVM.
    pub fn is_jvm(&self) -> bool {
        matches!(self.who, Who::Jvm(_))
    }

    /// Whether it is a JVM or was named by the user, not one of all processes.
    pub fn is_named(&self) -> bool {
        self.stops.is_some()
    }

    /// Whether it has become a JVM since it was last asked.
    pub fn has_become_jvm(&mut self, files: &mut FileCache) -> bool {
        if !matches!(self.who, Who::Future(_)) {
            return false;
        }
        match Target::open(self.pid()) {
            Ok(target) => {
                let maps = std::mem::take(&mut self.maps);
                let hotspot = HotSpot::read(&target).ok();
                *self = Self { maps, ..Self::jvm(target, hotspot, files) };
                true
            }
            Err(_) => false,
        }
    }

    /// Follows what it compiles. Through `shared`, which all JVMs have that run the same
    /// file, or by attachments of its own.
    ///
    /// # Errors
    /// What is lost where it cannot.
    pub fn follow(
        &mut self,
        session: &mut Session,
        shared: Option<&mut HashMap<FileId, Links>>,
    ) -> Result<(), Error> {
        let Who::Jvm(jvm) = &self.who else {
            return Ok(());
        };
        let libjvm = &jvm.0.libjvm;
        let plans = || resolve(&libjvm.seen_as, &libjvm.elf()?, &CODE);
        match shared {
            Some(files) => {
                if let Entry::Vacant(file) = files.entry(libjvm.id) {
                    file.insert(session.attach(libjvm, &plans()?, Scope::Everyone, 0)?);
                }
            }
            None => {
                let pid = jvm.0.pid();
                let scope = Scope::Process(pid);
                self.links = Some(session.attach(libjvm, &plans()?, scope, pid.0.into())?);
            }
        }
        self.is_followed = true;
        Ok(())
    }

    /// Looks at its mappings.
    pub fn refresh_maps(&mut self, files: &mut FileCache, session: &mut Session) -> Result<()> {
        let pid = self.pid();
        self.maps.refresh(pid, files)?;
        // Before that, the walker would make no use of it.
        if self.is_walked { session.tell_mappings(pid.0.into(), &self.maps) } else { Ok(()) }
    }

    /// Looks at its mappings if a stack has addresses in none: a library that was loaded
    /// just now is not to be walked without its unwind table any longer.
    pub fn look_for(&mut self, stack: &Stack, files: &mut FileCache, session: &mut Session) {
        let is_unmapped = |maps: &CodeMaps| {
            stack.addresses().any(|addr| addr > Addr(0) && maps.find(addr).is_none())
        };
        let now = Instant::now();
        if !is_unmapped(&self.maps) || self.next_look.is_some_and(|next| now < next) {
            return;
        }
        // Gone in the meantime: what was seen before must do.
        let _ = self.refresh_maps(files, session);
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
    pub fn tell_walker(
        &mut self,
        args: &Args,
        files: &mut FileCache,
        session: &mut Session,
    ) -> Result<()> {
        let Args { stacks: how, ref symbols, signatures, .. } = *args;
        let key = self.pid().0.into();
        self.look_again();
        let Who::Jvm(jvm) = &self.who else {
            return Ok(());
        };
        if self.is_walked || how == StackWalk::Fp {
            return Ok(());
        }
        let (target, hotspot) = &**jvm;
        let is_set_up = hotspot.as_ref().is_some_and(|h| h.is_set_up);
        if !is_set_up && Instant::now() < self.ask_until {
            return Ok(());
        }
        self.is_walked = true;
        // Libraries were loaded while it set itself up; or it is gone by now.
        let _ = self.maps.refresh(target.pid(), files);
        let pid = target.pid();
        let Some(hotspot) = hotspot else {
            return Err(Error::Attach { pid, why: "its version is unknown".into() });
        };
        session.walker().add_jvm(key, &hotspot.walking()?);
        session.tell_mappings(key, &self.maps)?;
        let compiled = matches!(symbols, SymbolSource::Auto | SymbolSource::HotSpot);
        if *symbols != SymbolSource::None {
            self.places = Some(Places::new(hotspot, compiled, signatures)?);
        }
        Ok(())
    }

    /// Names the interpreted frames of a stack.
    pub fn resolve(&mut self, raw: &RawStack) -> Stack {
        if let (Some(places), Who::Jvm(jvm)) = (&mut self.places, &self.who)
            && let Some(hotspot) = &jvm.1
        {
            return places.resolve(hotspot, raw);
        }
        places::plain(raw)
    }

    /// The Java frames that were named.
    pub fn take_places(&mut self) -> Option<Places> {
        self.places.take()
    }

    /// Reads again what a JVM tells that is still setting itself up.
    fn look_again(&mut self) {
        if let Who::Jvm(jvm) = &mut self.who
            && jvm.1.as_ref().is_none_or(|h| !h.is_set_up)
            && Instant::now() < self.ask_until
        {
            match &mut jvm.1 {
                Some(hotspot) => hotspot.look_again(),
                None => jvm.1 = HotSpot::read(&jvm.0).ok(),
            }
        }
    }

    /// Takes what it compiled or discarded.
    pub fn take(&mut self, event: CodeEvent) {
        match event.place {
            Some((addr, size)) => self.code.load(event.epoch, addr, size, event.code),
            None => self.code.unload(event.epoch, event.code),
        }
    }

    /// Gets the map of what it had compiled before. `Ok(false)` where it is too early
    /// to ask.
    pub fn get_map(&mut self, source: &SymbolSource, session: &Session) -> Result<bool> {
        let key = self.pid().0.into();
        let Who::Jvm(jvm) = &mut self.who else {
            return Ok(false);
        };
        if self.has_map {
            return Ok(true);
        }
        let (target, hotspot) = &mut **jvm;
        if hotspot.as_ref().is_none_or(|h| !h.is_set_up) && Instant::now() < self.ask_until {
            return Ok(false);
        }
        self.has_map = true;
        let process = &target.process;
        // What happens from here on is told by probes; what the map does not show yet
        // is shown by them.
        let epoch = session.epoch(key);
        let seen = match source {
            SymbolSource::None => return Ok(true),
            SymbolSource::File(path) => Snapshot::Map(builtin_map::read(path, process)?),
            _ => match ask(source, process, hotspot.as_ref(), Inlining::Nowhere) {
                Ok(seen) => seen,
                Err(error) if *source != SymbolSource::Auto => return Err(error),
                Err(error) => {
                    let path = builtin_map::path_of(process);
                    let text = builtin_map::read(&path, process).map_err(|_| error)?;
                    note(&format!("using {}, which was there", path.display()));
                    Snapshot::Map(text)
                }
            },
        };
        self.code.snapshot(epoch, seen);
        Ok(true)
    }

    /// Asks again at the end: for what a JVM that cannot be followed compiled since, and for
    /// what was inlined at these addresses, which are sorted, where that is not known yet.
    pub fn ask_again(&mut self, source: &SymbolSource, sampled: &[Addr]) {
        let Who::Jvm(jvm) = &self.who else {
            return;
        };
        let (target, hotspot) = &**jvm;
        let knows_inlining = *source == SymbolSource::PerfMap || self.places.is_some();
        let is_wanted = *source == SymbolSource::Agent || !knows_inlining || !self.is_followed;
        if !self.has_map || !is_wanted {
            return;
        }
        // Gone or hung by now: what was known before must do.
        let hotspot = hotspot.as_ref();
        let Ok(seen) = ask(source, &target.process, hotspot, Inlining::At(sampled)) else {
            return;
        };
        let unknown = self.code.refine(seen.into_entries());
        if !self.is_followed {
            for (addr, size, code) in unknown {
                self.code.load(1, addr, size, code);
            }
        }
    }
}

/// Finds out what compiled code a JVM has, with inlining where that can be chosen. `Auto`
/// reads its memory; where that does not tell, the JVM is asked.
pub fn ask(
    source: &SymbolSource,
    process: &Process,
    hotspot: Option<&HotSpot>,
    inlining: Inlining<'_>,
) -> Result<Snapshot> {
    let refuse = |why: String| Error::Attach { pid: process.pid, why };
    let Some(hotspot) = hotspot else {
        return Err(refuse("its version is unknown".into()));
    };
    let writes_maps = hotspot.major >= builtin_map::FIRST_JDK;
    match source {
        SymbolSource::None | SymbolSource::File(_) => Ok(Snapshot::Entries(Vec::new())),
        SymbolSource::HotSpot => Ok(Snapshot::Entries(hotspot.code(inlining)?)),
        SymbolSource::Agent => {
            let text = agent::map(process, hotspot)?;
            Ok(Snapshot::Entries(agent_map::parse(&text).collect()))
        }
        SymbolSource::PerfMap if !writes_maps => {
            let (jdk, first) = (hotspot.major, builtin_map::FIRST_JDK);
            let others = if jdk < FIRST_READ { "agent" } else { "hotspot or agent" };
            Err(Error::Unsupported {
                what: format!(
                    "process {}: JDK {jdk} cannot write a map of its code (JDK {first} can); use \
                     --symbols {others}",
                    process.pid
                ),
            })
        }
        SymbolSource::PerfMap => Ok(Snapshot::Map(builtin_map::request(process, hotspot)?)),
        SymbolSource::Auto => match hotspot.code(inlining) {
            Ok(entries) if !entries.is_empty() => Ok(Snapshot::Entries(entries)),
            _ if writes_maps => ask(&SymbolSource::PerfMap, process, Some(hotspot), inlining),
            _ => ask(&SymbolSource::Agent, process, Some(hotspot), inlining),
        },
    }
}
