//! Tracing: classes as they are loaded, unloaded and initialised.
//!
//! HotSpot's probes for these events need no JVM flag. Sources:
//! hotspot/share/oops/instanceKlass.cpp (initialisation), services/classLoadingService.cpp.

mod event;
mod inits;

use std::{
    collections::{HashMap, VecDeque},
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libjvmprobe::{
    Pid,
    bpf::{
        self, clock, preflight,
        probes::{Instant, Plan, resolve},
        session::{self, Attach, Session},
        walker,
    },
    cli::describe,
    hotspot::{HotSpot, thread_names::ThreadNames},
    jvms::{
        Arrivals, ByKey, Followed, Lost, Reading, Tool, Trace,
        command::HeldCommand,
        registry::{self, Search},
        tracing,
    },
    process::{Fate, Target},
    render::{
        files,
        formats::{FormatOptions, TitledProfile, flamegraph::Title},
        units::{count, span},
    },
    stack::{StackFrame, namer::Namers},
    sys::{
        privileges::{ATTACH, MAPS, RAISE_PRIORITY, READ, keep_only},
        stop_on_signal,
    },
};

use crate::{
    args::Args,
    list::Hits,
    list_check::ListCheck,
    origin::Origin,
    record::{Changed, Rates},
    report::Report,
    skel::{JavaclassSkel, JavaclassSkelBuilder},
    status,
};
use event::{ClassEvent, Event, EventKind};
use inits::Inits;

/// Size of the ring buffer in bytes, enough for more than ten thousand class events.
const RING_BYTES: u32 = 1 << 23;
/// Suffix of the names of programs that walk stacks.
const STACKS_SUFFIX: &str = "_stacks";
/// Maximum number of stacks retained for one JVM. Each takes a few kilobytes.
const MAX_STACKS: usize = 10_000;

const fn probe(name: &'static str, program: &'static str) -> Instant {
    Instant::of_probe("hotspot", name, program)
}

/// The probes, with their programs.
const PROBES: [Instant; 8] = [
    probe("class__loaded", "class_loaded"),
    probe("class__unloaded", "class_unloaded"),
    probe("class__initialization__required", "init_required"),
    probe("class__initialization__end", "init_end"),
    probe("class__initialization__error", "init_failed"),
    probe("class__initialization__super__failed", "init_failed"),
    probe("class__initialization__erroneous", "init_elsewhere"),
    probe("class__initialization__concurrent", "init_elsewhere"),
];

/// Maximum number of events queued for JVMs that were not admitted yet.
const MAX_EARLY_EVENTS: usize = 100_000;

/// State of one JVM.
#[derive(Default)]
struct Jvm {
    threads: Option<ThreadNames>,
    stacks: HashMap<u64, Vec<StackFrame>>,
    /// Results for the lines of a list.
    hits: Option<Hits>,
    interval: Rates,
    trace: Rates,
    /// Events received before the JVM was admitted.
    early: Vec<Event>,
}

struct Tracer<'a> {
    args: &'a Args,
    report: Report,
    session: Session<JavaclassSkel<'static>, Event>,
    namers: Namers,
    begin: u64,
    interval_begin: u64,
    /// Events of JVMs that were not admitted yet, because they are starting up.
    early: VecDeque<Event>,
    /// Initialisations for the output files.
    inits: Option<Inits>,
    list_check: Option<ListCheck>,
    /// Whether something on the list may have been missed.
    has_failed: bool,
}

impl<'a> Tracer<'a> {
    fn new(args: &'a Args) -> Result<Self> {
        let mut open =
            JavaclassSkelBuilder::default().open(session::storage()).map_err(bpf::load_error)?;
        if args.stacks {
            preflight::check_walker()?;
        } else {
            walker::disable_maps(open.open_object_mut())?;
        }
        open.maps.events.set_max_entries(RING_BYTES).map_err(bpf::load_error)?;
        for mut program in open.open_object_mut().progs_mut() {
            let walks = program.name().to_string_lossy().ends_with(STACKS_SUFFIX);
            program.set_autoload(args.stacks || !walks);
        }
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            data.uses_walk_data = args.stacks;
        }
        let skel = open.load().map_err(bpf::load_error)?;
        let session = Session::new(skel, Event::decode, args.stacks)?;
        let session = session.with_maps_by_jvm(&["known_stacks"]);
        let session = if args.stacks { session.with_variant(STACKS_SUFFIX) } else { session };
        let now = clock::monotonic_ns();
        Ok(Self {
            args,
            report: Report::open(args)?,
            session,
            namers: Namers::default(),
            begin: now,
            interval_begin: now,
            early: VecDeque::new(),
            inits: (!args.output.is_empty()).then(|| Inits::new(now, clock::unix_ns(now))),
            list_check: ListCheck::open(args)?,
            has_failed: false,
        })
    }

    fn handle_event(
        &mut self,
        event: Event,
        followed: &mut Followed<Jvm>,
    ) -> libjvmprobe::Result<()> {
        let Followed { jvm, hotspot, target, .. } = followed;
        match event {
            Event::Class(mut event) => {
                if let Ok(hotspot) = hotspot {
                    let threads = jvm.threads.get_or_insert_with(|| ThreadNames::new(hotspot));
                    event.thread = threads.of(event.tid, event.thread);
                }
                self.handle_class_event(*event, jvm, target.pid())
            }
            Event::Stack(number, raw) => {
                if let (Ok(hotspot), Some(walker)) = (hotspot, self.session.walker())
                    && jvm.stacks.len() < MAX_STACKS
                    && let Some(frames) = self.namers.name(hotspot, walker, &raw)?
                {
                    let frames = frames.iter().rev().map(StackFrame::from).collect();
                    jvm.stacks.insert(number, frames);
                }
                Ok(())
            }
        }
    }

    fn handle_class_event(
        &mut self,
        event: ClassEvent,
        jvm: &mut Jvm,
        pid: Pid,
    ) -> libjvmprobe::Result<()> {
        for rates in [&mut jvm.interval, &mut jvm.trace] {
            match event.kind {
                EventKind::Loaded => rates.loaded += 1,
                EventKind::Unloaded => rates.unloaded += 1,
                EventKind::Initialized => rates.initialized += 1,
                EventKind::Failed => rates.failed += 1,
            }
        }
        let is_init = matches!(event.kind, EventKind::Initialized | EventKind::Failed);
        if let (Some(inits), true) = (&mut self.inits, is_init) {
            let ClassEvent { tid, thread, class, ts_ns, duration_ns, .. } = &event;
            inits.add((pid.0, *tid), thread, class, *ts_ns, *duration_ns);
        }
        let listing = self.list_check.as_ref().map(|list_check| &list_check.listing);
        let is_listed = listing.is_none_or(|listing| !listing.lines_of(&event.class).is_empty());
        if !is_listed || self.args.common.quiet && listing.is_none() {
            return Ok(());
        }
        let stack = self.args.stacks.then(|| jvm.stacks.get(&event.stack).cloned());
        let changed = Changed {
            time: clock::rfc3339(event.ts_ns),
            ts_ns: event.ts_ns,
            pid: pid.0,
            tid: event.tid,
            thread: event.thread,
            event: match event.kind {
                EventKind::Loaded => "loaded",
                EventKind::Unloaded => "unloaded",
                EventKind::Initialized => "initialized",
                EventKind::Failed => "failed",
            },
            class: event.class,
            boot_loader: event.loader == 0,
            archived: (event.kind == EventKind::Loaded).then_some(event.is_archived),
            duration_ns: is_init.then_some(event.duration_ns),
            stack: stack.map(Option::unwrap_or_default),
        };
        if let (Some(listing), Some(hits)) = (listing, &mut jvm.hits) {
            hits.record_event(listing, &changed);
        }
        match self.args.common.quiet {
            true => Ok(()),
            false => self.report.changed(&changed),
        }
    }

    /// Matches the currently loaded classes of a JVM with the list.
    fn match_loaded(&mut self, target: &Target, hotspot: &HotSpot, hits: &mut Hits) {
        let Some(ListCheck { listing, .. }) = &self.list_check else { return };
        hits.reset_counts();
        let read = hotspot.loaded(|loaded, class| {
            let is_boot = loaded.loaders.get(class.loader).is_some_and(|loader| loader.is_boot);
            hits.match_class(listing, &class, &Origin::of(&class, is_boot));
            Ok(())
        });
        let why = match read {
            Ok(loaded) if loaded.is_complete && loaded.unreadable == 0 => return,
            Ok(_) => "not all classes were read".to_owned(),
            Err(error) => error.to_string(),
        };
        // It is no failure if the JVM exited while its classes were read, because the tracer has recorded
        // its events until then.
        if target.process.fate() == Fate::Alive {
            self.has_failed = true;
            log::warn!("process {}: {why}", target.pid());
        }
    }

    /// Prints the results for the list.
    fn report_list(&mut self, followed: &mut Followed<Jvm>) -> Result<()> {
        let Followed { jvm, target, hotspot, .. } = followed;
        let Some(mut hits) = jvm.hits.take() else { return Ok(()) };
        match hotspot {
            Ok(hotspot) if target.process.fate() == Fate::Alive => {
                self.match_loaded(target, hotspot, &mut hits);
            }
            _ => {}
        }
        let Some(list_check) = &mut self.list_check else { return Ok(()) };
        if target.process.fate() != Fate::Alive {
            hits.ended(&list_check.listing);
        }
        list_check.report_jvm(target, hits, &mut self.report)
    }

    fn rates(
        &mut self,
        followed: &mut Followed<Jvm>,
        scope: &'static str,
    ) -> libjvmprobe::Result<()> {
        let now = clock::monotonic_ns();
        let (rates, begin) = match scope {
            "interval" => (&mut followed.jvm.interval, self.interval_begin),
            _ => (&mut followed.jvm.trace, self.begin),
        };
        let mut rates = std::mem::take(rates);
        rates.time = clock::rfc3339(now);
        rates.pid = followed.target.pid().0;
        rates.scope = scope;
        rates.duration_ns = now.saturating_sub(begin);
        self.report.rates(&rates)?;
        followed.report_stopped();
        Ok(())
    }
}

impl Tool for Tracer<'_> {
    type Jvm = Jvm;
    const TRACES_STARTING_JVMS: bool = true;

    fn session(&mut self) -> &mut dyn Attach {
        &mut self.session
    }

    fn plan(&mut self, target: &Target, _: Option<&HotSpot>) -> libjvmprobe::Result<Vec<Plan>> {
        resolve(&target.libjvm.target_path, &target.libjvm.elf()?, &PROBES)
    }

    fn prepare(&mut self, key: u64, pid: Pid, hotspot: Option<&HotSpot>) {
        if let (Some(hotspot), Some(walker)) = (hotspot, self.session.walker()) {
            self.namers.add(key, pid, hotspot, walker);
        }
    }

    fn admit(&mut self, key: u64, target: &Target, hotspot: &Reading) -> libjvmprobe::Result<Jvm> {
        let mut hits = self.list_check.as_ref().map(|list_check| Hits::new(&list_check.listing));
        // Covers classes loaded before tracing began. For a JVM that is starting up, all loads are traced.
        if let (Some(hits), Ok(hotspot)) = (&mut hits, hotspot)
            && hotspot.is_set_up
        {
            self.match_loaded(target, hotspot, hits);
        }
        let all = std::mem::take(&mut self.early);
        let (early, others) = all.into_iter().partition(|event| event.target() == key);
        self.early = others;
        Ok(Jvm { early: early.into(), hits, ..Jvm::default() })
    }

    fn take_events(&mut self, jvms: &mut ByKey<Jvm>, timeout: Duration) -> libjvmprobe::Result<()> {
        for followed in jvms.values_mut() {
            for event in std::mem::take(&mut followed.jvm.early) {
                self.handle_event(event, followed)?;
            }
        }
        for event in self.session.events(timeout)? {
            match jvms.get_mut(&event.target()) {
                Some(followed) => self.handle_event(event, followed)?,
                None => {
                    if self.early.len() >= MAX_EARLY_EVENTS {
                        self.early.pop_front();
                    }
                    self.early.push_back(event);
                }
            }
        }
        Ok(())
    }

    fn collect(&mut self, jvms: &mut ByKey<Jvm>) -> libjvmprobe::Result<()> {
        self.namers.release_unused(self.session.walker());
        self.take_events(jvms, Duration::ZERO)
    }

    fn report(&mut self, jvms: &mut ByKey<Jvm>) -> libjvmprobe::Result<()> {
        for followed in jvms.values_mut() {
            self.rates(followed, "interval")?;
        }
        self.interval_begin = clock::monotonic_ns();
        Ok(())
    }

    fn forget(&mut self, key: u64) {
        self.namers.forget(key);
    }

    fn on_end(&mut self, _: u64, mut followed: Followed<Jvm>) -> libjvmprobe::Result<()> {
        if let Err(error) = self.report_list(&mut followed) {
            self.has_failed = true;
            log::warn!("process {}: {error:#}", followed.target.pid());
        }
        self.rates(&mut followed, "trace")
    }

    fn lost(&mut self, jvm: &mut Followed<Jvm>, events: u64) -> libjvmprobe::Result<()> {
        self.has_failed |= self.list_check.is_some();
        Lost::now(jvm.target.pid().0, events).warn();
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.report.is_closed()
    }
}

/// Writes the initialisations to files.
fn write(inits: Inits, files: files::Files, what: &str) -> Result<()> {
    let profile = inits.into_profile(clock::monotonic_ns());
    if profile.lost > 0 {
        log::warn!("dropped {}: too many to write", count(profile.lost, "initialization"));
    }
    let subtitle = format!("{} in {}", span(profile.total()), span(profile.duration_ns));
    let title = Title { title: format!("Class initializers, {what}"), subtitle: Some(subtitle) };
    let titled = TitledProfile { profile: &profile, title, bands: Vec::new() };
    let format_options = FormatOptions { threads: true, ..FormatOptions::default() };
    Ok(files.write(&[titled], &format_options)?)
}

/// Traces until the duration has passed, all JVMs have exited or the user interrupts.
pub fn run(args: &Args) -> Result<ExitCode> {
    let common = &args.common;
    bpf::set_libbpf_output(common.verbose > 1);
    preflight::check()?;
    // Reports an unknown user before anything else is done.
    let user = args.started.user()?;
    let files = files::Files::create(&args.output, &["init"])?;
    let stop = stop_on_signal()?;
    let tracer = Tracer::new(args)?;
    // Forked before rights are dropped, so that the command has the rights that it would have without
    // javaclass.
    let waiting = args.started.fork(user)?;
    keep_only(MAPS | READ | ATTACH | RAISE_PRIORITY);
    let arrivals = match &waiting {
        Some(waiting) => Some(Arrivals::open(registry::Options {
            targets: Search::Command(waiting.pid),
            ..Default::default()
        })?),
        None => common.arrivals()?,
    };
    let named = tracing::find(&common.pids()?)?;
    let mut trace = Trace::start(tracer, named, arrivals)?;
    if let (Some(waiting), Some(program)) = (&waiting, args.started.program()) {
        trace.attach_early(waiting.pid, program)?;
    }
    let joins_later = common.all || waiting.is_some();
    keep_only(MAPS | READ | if joins_later { ATTACH } else { MAPS });
    let what = match args.started.program() {
        Some(program) => program.display().to_string(),
        None => describe(common.all, trace.names()),
    };
    log::info!("Tracing classes of {what}... Hit Ctrl-C to end.");
    let running = waiting.map(HeldCommand::go).transpose()?;
    trace.run(common.times(), &stop)?;
    for (_, mut followed) in std::mem::take(&mut trace.jvms) {
        trace.tool.report_list(&mut followed)?;
        trace.tool.rates(&mut followed, "trace")?;
    }
    let Tracer { list_check, has_failed, inits, .. } = trace.tool;
    if let Some(inits) = inits {
        write(inits, files, &what)?;
    }
    let in_use = list_check.map(ListCheck::finish).transpose()?.unwrap_or_default();
    // All results are printed before javaclass waits for the command to exit.
    if let Some(running) = running {
        running.end();
    }
    Ok(status(in_use, has_failed))
}
