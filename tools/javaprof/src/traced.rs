//! One process that is profiled, and what is known of its code.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use libjvmprobe::{
    Addr, Error, Pid, Result,
    cli::note,
    hotspot::{
        HotSpot,
        code_cache::Inlining,
        places::{self, Places},
    },
    jvm::{Fate, Process, Target, agent},
    stack::{
        agent_map, builtin_map,
        code::{CodeLog, Snapshot},
        maps::{CodeMaps, FileCache},
        walk::{RawStack, Stack},
    },
    trace::attach::{self, Links, Plan, Scope, resolve},
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

/// How often to ask again a JVM that is still setting itself up.
const MAX_QUESTIONS: u32 = 50;

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
    /// When its mappings may be looked at again, and how long after that.
    next_look: Option<Instant>,
    pause: Duration,
    /// Its code cache, if it is a JVM.
    pub code: CodeLog,
    /// Attachments that are this process's alone.
    links: Option<Links>,
    questions_left: u32,
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

impl Traced {
    /// A JVM.
    pub fn jvm(target: Target) -> Self {
        let command = target.process.comm.as_str().into();
        let hotspot = HotSpot::read(&target).ok();
        Self::new(Who::Jvm(Box::new((target, hotspot))), command)
    }

    /// A process that may become a JVM.
    pub fn future_jvm(process: Process) -> Self {
        let command = process.comm.as_str().into();
        Self::new(Who::Future(process), command)
    }

    /// A process that is none.
    pub fn other(process: Process) -> Self {
        let command = process.comm.as_str().into();
        Self::new(Who::Other(process), command)
    }

    fn new(who: Who, command: Arc<str>) -> Self {
        Self {
            who,
            command,
            maps: CodeMaps::default(),
            next_look: None,
            pause: PAUSE,
            code: CodeLog::default(),
            links: None,
            questions_left: MAX_QUESTIONS,
            has_map: false,
            is_walked: false,
            places: None,
        }
    }

    fn process(&self) -> &Process {
        match &self.who {
            Who::Jvm(jvm) => &jvm.0.process,
            Who::Future(process) | Who::Other(process) => process,
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

    /// Whether it has become a JVM since it was last asked.
    pub fn has_become_jvm(&mut self) -> bool {
        if !matches!(self.who, Who::Future(_)) {
            return false;
        }
        match Target::open(self.pid()) {
            Ok(target) => {
                let maps = std::mem::take(&mut self.maps);
                *self = Self { maps, ..Self::jvm(target) };
                true
            }
            Err(_) => false,
        }
    }

    /// Follows what it compiles. Returns what is lost where it cannot.
    pub fn follow(&mut self, session: &mut Session) -> Result<(), Error> {
        let Who::Jvm(jvm) = &self.who else {
            return Ok(());
        };
        let target = &jvm.0;
        let plans: Vec<Plan> = resolve(&target.libjvm.seen_as, &target.libjvm.elf()?, &CODE)?;
        let pid = target.pid();
        self.links =
            Some(session.attach(&target.libjvm, &plans, Scope::Process(pid), pid.0.into())?);
        Ok(())
    }

    /// Whether what it compiles is followed.
    pub fn is_followed(&self) -> bool {
        self.links.is_some()
    }

    /// Looks at its mappings.
    pub fn refresh_maps(&mut self, files: &mut FileCache, session: &mut Session) -> Result<()> {
        let pid = self.pid();
        self.maps.refresh(pid, files)?;
        if self.is_jvm() { session.tell_mappings(pid.0.into(), &self.maps) } else { Ok(()) }
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
    pub fn tell_walker(&mut self, args: &Args, session: &mut Session) -> Result<()> {
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
        if !is_set_up && self.questions_left > 0 {
            return Ok(());
        }
        self.is_walked = true;
        let pid = target.pid();
        let Some(hotspot) = hotspot else {
            return Err(Error::Attach { pid, why: "its version is unknown".into() });
        };
        session.walker().add_jvm(key, &hotspot.walking()?)?;
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
            && self.questions_left > 0
        {
            self.questions_left -= 1;
            jvm.1 = HotSpot::read(&jvm.0).ok();
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
        if hotspot.as_ref().is_none_or(|h| !h.is_set_up) && self.questions_left > 0 {
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
        let is_wanted = *source == SymbolSource::Agent || !knows_inlining || !self.is_followed();
        if !self.has_map || !is_wanted {
            return;
        }
        // Gone or hung by now: what was known before must do.
        let hotspot = hotspot.as_ref();
        let Ok(seen) = ask(source, &target.process, hotspot, Inlining::At(sampled)) else {
            return;
        };
        let unknown = self.code.refine(seen.into_entries());
        if !self.is_followed() {
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
        SymbolSource::PerfMap if !writes_maps => Err(refuse(format!(
            "JDK {} cannot write a map of its code (JDK {} can); use --symbols hotspot or agent",
            hotspot.major,
            builtin_map::FIRST_JDK
        ))),
        SymbolSource::PerfMap => Ok(Snapshot::Map(builtin_map::request(process, hotspot)?)),
        SymbolSource::Auto => match hotspot.code(inlining) {
            Ok(entries) if !entries.is_empty() => Ok(Snapshot::Entries(entries)),
            _ if writes_maps => ask(&SymbolSource::PerfMap, process, Some(hotspot), inlining),
            _ => ask(&SymbolSource::Agent, process, Some(hotspot), inlining),
        },
    }
}
