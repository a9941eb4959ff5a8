//! State of one profiled process: its mappings, compiled code, labels and thread names.

mod attach;
mod event_layouts;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use event_layouts::configure_events;

use crate::{
    Addr, Pid, Result,
    bpf::{
        probes::Links,
        spans::{SpanSearch, SpanSources},
    },
    hotspot::{
        HotSpot,
        code::Inlining,
        description::Description,
        thread_names::{CompleteNames, ThreadNames},
        walking::JvmLayout,
    },
    jvms::{Arrival, Reading, Stage, Stops},
    process::{
        Fate, FileId, Process, Target, cgroup,
        code::{CodeMaps, RereadLimit},
        libjvm::native_image,
    },
    stack::{
        code_log::{self, CodeIndex, CodeLog, SharedNames},
        java_frames::{self, JavaFrames, LocationNames},
        native::{Files, Symbols},
        raw::{RawStack, Stack},
    },
    sys::{
        budget::{Budget, Reservation},
        limited,
    },
    trace::samples::{
        Options, StackWalk, SymbolSource,
        event::CodeEvent,
        events::{attach::SearchedFiles, labels::Labels},
        session::{self, SampleKey, Session},
        symbols::{get, read_from, version_unknown},
    },
};

pub(crate) use attach::{Shared, SharedKey};

/// First interval at which the mappings are re-read even if every address of the stacks is mapped, because a library
/// that replaces another one may be mapped at the same addresses. Each time that a re-read finds no change, the interval
/// doubles, up to `MAX_FORCED_REREAD_INTERVAL`.
const MIN_FORCED_REREAD_INTERVAL: Duration = Duration::from_secs(2);
const MAX_FORCED_REREAD_INTERVAL: Duration = Duration::from_secs(16);

/// Maximum time between two re-reads because of unmapped addresses. Samples are named later.
const MAX_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// A profiled process and its code.
pub(crate) struct Traced {
    kind: ProcessKind,
    /// The name of its command.
    pub command: Arc<str>,
    /// Executable mappings, with their files.
    pub maps: CodeMaps,
    /// Symbols of the mapped files.
    pub symbols: Symbols,
    reread_limit: RereadLimit,
    /// Time from which the mappings are re-read even if every address is mapped.
    next_forced_reread: Instant,
    forced_reread_interval: Duration,
    /// Log of its code cache's contents, if it is a JVM.
    pub code: CodeLog,
    /// Memory of the code log.
    code_memory: Reservation,
    /// Whether the probes on loads and unloads of its compiled code are attached.
    has_code_probes: bool,
    /// Attachments of this process alone, not shared with other JVMs.
    links: Links,
    /// Indexes of the events that were not found yet, and the version of the mappings that was searched last.
    missing: Vec<usize>,
    searched: Option<u64>,
    searched_files: SearchedFiles,
    /// Search for the variable by which the process publishes trace contexts.
    span_search: SpanSearch,
    /// Texts of the labels that samples carry beside their stacks.
    pub labels: Labels,
    /// Startup stage of the JVM. While the JVM is starting, later arrivals contain more data.
    stage: Stage,
    /// Detects that the process was stopped (SIGSTOP) for the whole trace. `None` for a process that is not a
    /// JVM and was not named by the user.
    pub stops: Option<Stops>,
    has_map: bool,
    /// Source of the map of compiled code.
    source: Option<SymbolSource>,
    /// Whether there was an attempt to configure the stack walker for the process. A failed attempt is not
    /// repeated.
    is_walked: bool,
    /// Whether its description was returned.
    is_described: bool,
    /// Whether the process is known not to be a native image.
    is_not_image: bool,
    /// Layout by which the walker reads this JVM.
    layout: Option<JvmLayout>,
    /// Names of the Java frames of its stacks.
    java_frames: Option<JavaFrames>,
    /// Complete names of its threads. Created when a thread of the JVM is first sampled after start-up.
    threads: Option<ThreadNames>,
}

/// Everything needed to name the samples of a process.
pub(crate) struct Named {
    /// The name of its command.
    pub command: Arc<str>,
    /// Executable mappings, with their files.
    pub maps: CodeMaps,
    /// Symbols of the mapped files.
    pub symbols: Symbols,
    /// Contents of its code cache, by epoch.
    pub code: CodeIndex,
    /// Java frames that were named when they were first seen.
    pub java_names: Option<LocationNames>,
    /// Texts of labels.
    pub labels: Labels,
    /// Complete names of threads, of which the kernel keeps only 15 bytes.
    pub threads: CompleteNames,
}

enum ProcessKind {
    /// A JVM, with the structures that were read from it, or the error if they could not be read.
    Jvm(Arc<Target>, Reading),
    /// A process that may become a JVM: a command that we have started, or a process that has called exec.
    Future(Process),
    Other(Process),
}

impl ProcessKind {
    fn process(&self) -> &Process {
        match self {
            Self::Jvm(target, _) => &target.process,
            Self::Future(process) | Self::Other(process) => process,
        }
    }
}

impl Traced {
    /// Returns the state of a new JVM.
    pub(crate) fn jvm(arrival: Arrival, files: &mut Files) -> Self {
        let Arrival { target, hotspot, stage, .. } = arrival;
        let stops = Some(Stops::new(&target.process));
        Self { stops, stage, ..Self::new(ProcessKind::Jvm(target, hotspot), files) }
    }

    /// Adopts the data in a later arrival of this JVM. Returns false if the arrival is of another JVM.
    pub(crate) fn update(&mut self, arrival: &Arrival) -> bool {
        let ProcessKind::Jvm(target, hotspot) = &mut self.kind else { return false };
        let is_this = Arc::ptr_eq(target, &arrival.target);
        if is_this {
            *hotspot = arrival.hotspot.clone();
            self.stage = arrival.stage;
        }
        is_this
    }

    /// Returns the state of a process that may become a JVM.
    pub(crate) fn future_jvm(process: Process, files: &mut Files) -> Self {
        Self::new(ProcessKind::Future(process), files)
    }

    /// Returns the state of a process that is not a HotSpot JVM.
    pub(crate) fn other(process: Process, files: &mut Files) -> Self {
        Self::new(ProcessKind::Other(process), files)
    }

    fn new(kind: ProcessKind, files: &mut Files) -> Self {
        let process = kind.process();
        let tenant = cgroup::tenant_of(process.pid);
        Self {
            command: process.comm.as_str().into(),
            maps: CodeMaps::default(),
            symbols: files.symbols(process.pid),
            reread_limit: RereadLimit::new(MAX_REREAD_INTERVAL),
            next_forced_reread: Instant::now() + MIN_FORCED_REREAD_INTERVAL,
            forced_reread_interval: MIN_FORCED_REREAD_INTERVAL,
            code: CodeLog::default(),
            code_memory: Reservation::within(&Budget::of_process().share(&tenant)),
            has_code_probes: false,
            links: Links::default(),
            missing: Vec::new(),
            searched: None,
            searched_files: SearchedFiles::default(),
            span_search: SpanSearch::default(),
            labels: Labels::default(),
            stage: Stage::Ready,
            stops: None,
            has_map: false,
            source: None,
            is_walked: false,
            is_described: false,
            is_not_image: false,
            layout: None,
            java_frames: None,
            threads: None,
            kind,
        }
    }

    fn process(&self) -> &Process {
        self.kind.process()
    }

    /// Checks whether the process is stopped (SIGSTOP).
    pub(crate) fn check_stopped(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.poll(self.kind.process());
        }
    }

    /// Prints a note if the process was stopped (SIGSTOP) for the whole trace.
    pub(crate) fn report_stopped(&mut self) {
        if let Some(stops) = &mut self.stops {
            stops.report(self.kind.process());
        }
    }

    /// Prints a note if the JVM's version could not be read during the whole trace.
    pub(crate) fn report_unreadable_version(&self) {
        if let ProcessKind::Jvm(_, Err(error)) = &self.kind
            && !self.is_walked
        {
            log::warn!("process {}: cannot read its version: {error}", self.pid());
        }
    }

    /// The process ID.
    pub(crate) fn pid(&self) -> Pid {
        self.process().pid
    }

    /// Returns whether the process is alive, has ended, or runs another program.
    pub(crate) fn fate(&self) -> Fate {
        self.process().fate()
    }

    /// Returns the result of [`Process::fate_if`].
    pub(crate) fn fate_if(&self, closely: bool) -> Fate {
        self.process().fate_if(closely)
    }

    /// Returns whether the process is a JVM.
    pub(crate) fn is_jvm(&self) -> bool {
        matches!(self.kind, ProcessKind::Jvm(..))
    }

    /// Returns the target if the process is a JVM.
    pub(crate) fn target(&self) -> Option<&Arc<Target>> {
        match &self.kind {
            ProcessKind::Jvm(target, _) => Some(target),
            ProcessKind::Future(_) | ProcessKind::Other(_) => None,
        }
    }

    /// Returns the [`attached_file`](crate::bpf::inodes::attached_file) of the libjvm.so that the process runs, if it is
    /// known.
    pub(crate) fn libjvm(&self) -> Option<FileId> {
        self.target()?.libjvm.attached_as.get().copied()
    }

    /// Returns whether the process is a JVM or was named by the user. Other processes are sampled only because all
    /// processes are.
    pub(crate) fn is_named(&self) -> bool {
        self.stops.is_some()
    }

    /// Reads the JVM if a process that may become a JVM has become one by now.
    pub(crate) fn find_jvm(&self) -> Option<Arrival> {
        if !self.may_become_jvm() {
            return None;
        }
        let target = Target::open(self.pid()).ok()?;
        let hotspot = HotSpot::read(&target);
        Some(Arrival::new(target, hotspot))
    }

    /// Replaces the state by that of the JVM that the process has become. Mappings and labels are kept.
    pub(crate) fn become_jvm(&mut self, arrival: Arrival, files: &mut Files) {
        let (maps, labels) = (std::mem::take(&mut self.maps), std::mem::take(&mut self.labels));
        *self = Self { maps, labels, ..Self::jvm(arrival, files) };
    }

    /// Returns whether the process may become a JVM.
    pub(crate) fn may_become_jvm(&self) -> bool {
        matches!(self.kind, ProcessKind::Future(_))
    }

    /// Searches for the variable by which the process publishes trace contexts, unless its mappings are the same as in
    /// the last search. Searches only JVMs and processes that the user named.
    pub(crate) fn find_span_source(&mut self, sources: &mut SpanSources) {
        let pid = self.pid();
        if self.is_named() {
            sources.update(&mut self.span_search, pid.0.into(), pid, &self.maps);
        }
    }

    /// Re-reads the mappings, and passes them to the stack walker if that is configured for the process.
    pub(crate) fn refresh_maps(&mut self, files: &mut Files, session: &mut Session) -> Result<()> {
        let pid = self.pid();
        self.maps.refresh(pid, &files.mapped)?;
        // The walker does not use mappings of a process that it is not configured for.
        if self.is_walked {
            session::set_mappings(session, pid.0.into(), &self.maps)
        } else {
            Ok(())
        }
    }

    /// Re-reads the mappings. On an error, for example because the process has ended, keeps those that were read
    /// before.
    pub(crate) fn try_refresh_maps(&mut self, files: &mut Files, session: &mut Session) {
        if let Err(error) = self.refresh_maps(files, session) {
            let pid = self.pid();
            log::debug!("cannot update the mappings of process {pid}: {error}");
        }
    }

    /// Re-reads the mappings if a stack has an address outside of all mappings, so that stacks in a library
    /// that was just loaded are soon walked by its unwind table. Also re-reads them if the last re-read was
    /// `forced_reread_interval` ago. [`RereadLimit`] limits how often.
    pub(crate) fn refresh_maps_for(
        &mut self,
        stack: &Stack,
        files: &mut Files,
        session: &mut Session,
    ) {
        let is_unmapped = |maps: &CodeMaps| stack.addresses().any(|addr| maps.lacks(addr));
        let now = Instant::now();
        if !self.reread_limit.allows(now) {
            return;
        }
        let is_due = now >= self.next_forced_reread || self.maps.is_incomplete();
        if !is_due && !is_unmapped(&self.maps) {
            return;
        }
        let version = self.maps.version();
        self.try_refresh_maps(files, session);
        self.forced_reread_interval = match self.maps.version() == version {
            true => (self.forced_reread_interval * 2).min(MAX_FORCED_REREAD_INTERVAL),
            false => MIN_FORCED_REREAD_INTERVAL,
        };
        self.next_forced_reread = now + self.forced_reread_interval;
        let end = Instant::now();
        self.reread_limit.add(end, end - now, is_unmapped(&self.maps));
    }

    /// Configures the stack walker for the process, once: when the JVM has started, or if the process is a native
    /// image. Does nothing if stacks are to be walked by frame pointers.
    ///
    /// # Errors
    /// If the JVM's structures or mappings cannot be read or passed on; its stacks are then walked by frame pointers.
    pub(crate) fn configure_walker(
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
        let ProcessKind::Jvm(target, hotspot) = &self.kind else {
            return self.configure_walker_for_image(files, session);
        };
        if self.stage == Stage::Starting {
            return Ok(());
        }
        self.is_walked = true;
        // More libraries were loaded while the JVM started. If the process has ended meanwhile, the known mappings
        // remain.
        let pid = target.pid();
        if let Err(error) = self.maps.refresh(pid, &files.mapped) {
            log::debug!("cannot read the mappings of process {pid}: {error}");
        }
        let hotspot = hotspot.as_deref().map_err(|error| version_unknown(pid, error))?;
        if let Some(walker) = session.walker() {
            let layout = hotspot.walking()?;
            walker.add_jvm(key, &layout);
            self.layout = Some(layout);
        }
        session::set_mappings(session, key, &self.maps)?;
        self.labels.traps = configure_events(pid, hotspot, &options.events, session);
        let compiled = matches!(symbols, SymbolSource::Auto | SymbolSource::HotSpot);
        if *symbols != SymbolSource::None {
            self.java_frames = Some(JavaFrames::new(hotspot, compiled, signatures)?);
        }
        Ok(())
    }

    /// Returns the description of a JVM that has started, once.
    pub(crate) fn describe(&mut self) -> Option<Description> {
        let ProcessKind::Jvm(_, Ok(hotspot)) = &self.kind else { return None };
        if self.stage == Stage::Starting || std::mem::replace(&mut self.is_described, true) {
            return None;
        }
        Some(hotspot.description())
    }

    /// Configures the stack walker for a native image that was named or started by the user. The walker needs
    /// only the mappings, because all code of an image is in files.
    fn configure_walker_for_image(
        &mut self,
        files: &mut Files,
        session: &mut Session,
    ) -> Result<()> {
        let pid = self.pid();
        let is_wanted = self.is_named() || self.may_become_jvm();
        if !is_wanted || self.is_not_image {
            return Ok(());
        }
        if native_image(pid).is_none() {
            // A program that the process executes later may be a native image.
            self.is_not_image = !self.may_become_jvm();
            return Ok(());
        }
        self.is_walked = true;
        if let Err(error) = self.maps.refresh(pid, &files.mapped) {
            log::debug!("cannot read the mappings of process {pid}: {error}");
        }
        session::set_mappings(session, pid.0.into(), &self.maps)
    }

    /// Returns the layout by which the walker reads this JVM; `None` if it is not a JVM or could not be read.
    pub(crate) fn layout(&self) -> Option<JvmLayout> {
        self.layout
    }

    /// Reads the data that is needed to name the Java frames of several stacks, for all stacks at once.
    pub(crate) fn prefetch_java_frames<'a>(
        &mut self,
        stacks: impl IntoIterator<Item = &'a RawStack>,
    ) {
        if let (Some(java_frames), ProcessKind::Jvm(_, Ok(hotspot))) =
            (&mut self.java_frames, &self.kind)
        {
            java_frames.prefetch_java_frames(hotspot, stacks);
        }
    }

    /// Names the Java frames of a stack.
    pub(crate) fn resolve(&mut self, raw: &RawStack) -> Stack {
        if let (Some(java_frames), ProcessKind::Jvm(_, Ok(hotspot))) =
            (&mut self.java_frames, &self.kind)
        {
            return java_frames.resolve(hotspot, raw);
        }
        java_frames::without_names(raw)
    }

    /// Takes the names of all Java frames so far. Frames of later stacks are named anew.
    pub(crate) fn take_java_names(&mut self) -> Option<LocationNames> {
        self.java_frames.as_mut().map(JavaFrames::take_names)
    }

    /// Returns the data that names the samples so far, including `java_names`, the names of their Java
    /// frames. Also drops from the code log the code that no longer exists.
    pub(crate) fn take_named(
        &mut self,
        java_names: Option<LocationNames>,
        names: &mut SharedNames,
    ) -> Named {
        let code = self.code.take_index();
        self.code.share(names);
        Named {
            command: Arc::clone(&self.command),
            maps: self.maps.clone(),
            symbols: self.symbols.clone(),
            code,
            java_names,
            labels: self.labels.clone(),
            threads: self.threads.as_ref().map_or_else(CompleteNames::default, |t| t.names.clone()),
        }
    }

    /// Drops from the code log the code that no longer exists, because no sample of this period refers to it.
    pub(crate) fn drop_ended_code(&mut self, names: &mut SharedNames) {
        if self.code.changes() > 0 {
            self.code.take_index();
            self.code.share(names);
        }
    }

    /// Returns the data that names the samples of a process that is no longer traced.
    pub(crate) fn into_named(mut self) -> Named {
        let java_names = self.take_java_names();
        let code = self.code.into_index();
        let Self { command, maps, symbols, labels, threads, .. } = self;
        let threads = threads.map_or_else(CompleteNames::default, |threads| threads.names);
        Named { command, maps, symbols, code, java_names, labels, threads }
    }

    /// Looks up the complete name of a sampled thread, once the JVM is ready.
    pub(crate) fn look_up_thread_name(&mut self, key: &SampleKey) {
        if let (ProcessKind::Jvm(_, Ok(hotspot)), Stage::Ready) = (&self.kind, self.stage) {
            let threads = self.threads.get_or_insert_with(|| ThreadNames::new(hotspot));
            threads.look_up(key.tid, &key.comm);
        }
    }

    /// Returns the approximate size, in bytes, of the code log's loads and unloads and of the names of Java frames.
    pub(crate) fn size(&self) -> usize {
        self.code.changes() * code_log::ENTRY
            + self.java_frames.as_ref().map_or(0, JavaFrames::size)
    }

    /// Adds a load or unload of compiled code to the code log.
    pub(crate) fn take(&mut self, event: CodeEvent) {
        match event.range {
            Some((addr, size)) => self.code.load(event.epoch, addr, size, event.code),
            None => self.code.unload(event.epoch, event.code),
        }
        self.limit_code();
    }

    /// Reserves the memory of the code log. If the tenant's share does not suffice, the log begins anew; then only frames that were named when they were first seen have names.
    fn limit_code(&mut self) {
        /// Number of bytes that are reserved at once.
        const BATCH: usize = 200 << 10;
        let needed = self.code.size().next_multiple_of(BATCH);
        if needed <= self.code_memory.bytes() {
            return;
        }
        let more = needed - self.code_memory.bytes();
        if !self.code_memory.reserve(more) {
            limited::add("naming", self.maps.tenant(), self.code.len() as u64);
            self.code = CodeLog::default();
            self.code_memory.release();
        }
    }

    /// Reads the map of the code that the JVM has compiled so far, once. Returns `Ok(false)` if the process is not a
    /// JVM or is still starting.
    pub(crate) fn read_code_map(
        &mut self,
        options: &Options,
        session: &Session,
        names: &mut SharedNames,
    ) -> Result<bool> {
        let key = self.pid().0.into();
        let ProcessKind::Jvm(target, hotspot) = &self.kind else {
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
        // The epoch is read before the map. If code is loaded in between and is missing from the map, the
        // probes have recorded it in the code log.
        let epoch = session::epoch(session, key);
        let named_by_user = options.named_by_user;
        let inlining = Inlining::Nowhere;
        let hotspot = hotspot.as_deref().map_err(|error| &**error);
        let (seen, source) =
            get(&options.symbols, &target.process, hotspot, inlining, named_by_user)?;
        self.code.snapshot(epoch, seen);
        self.code.share(names);
        self.limit_code();
        self.source = Some(source);
        Ok(true)
    }

    /// Reads the map of compiled code again at the end of the trace. If no probes report loads of code, this
    /// adds the code that was compiled since the first reading. If inlining is not known yet, this adds the
    /// methods inlined at the addresses in `sampled` (sorted).
    pub(crate) fn reread_code_map(&mut self, sampled: &[Addr]) {
        let ProcessKind::Jvm(target, hotspot) = &self.kind else {
            return;
        };
        let Some(source) = &self.source else {
            return;
        };
        let knows_inlining = *source == SymbolSource::PerfMap || self.java_frames.is_some();
        let is_wanted = *source == SymbolSource::Agent || !knows_inlining || !self.has_code_probes;
        if !is_wanted {
            return;
        }
        // If the JVM has ended or hangs, the code known so far is used.
        let hotspot = hotspot.as_deref().map_err(|error| &**error);
        let seen = match read_from(source, &target.process, hotspot, Inlining::At(sampled)) {
            Ok(seen) => seen,
            Err(error) => {
                let pid = target.pid();
                log::debug!("cannot update the symbols of process {pid} at the end: {error}");
                return;
            }
        };
        let unknown = self.code.refine(seen.into_entries());
        if !self.has_code_probes {
            for (addr, size, code) in unknown {
                self.code.load(1, addr, size, code);
            }
        }
    }
}
