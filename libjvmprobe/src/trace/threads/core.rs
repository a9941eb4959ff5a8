//! Dumps of the threads of a core file.
//!
//! All threads of a core file stopped at the same time, so one walk in user space suffices, and no BPF program is needed.

use std::{
    collections::BTreeMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
};

use crate::{
    Addr, Error, Result,
    bpf::{user_walker::Registers, walker::WalkTables},
    elf::core_dump::{CoreThread, TRUNCATED},
    hotspot::{
        HotSpot,
        java_threads::JavaThread,
        pages::Pages,
        virtual_threads::{ChunkFrame, MAX_VIRTUAL_THREADS},
        walking::JvmLayout,
    },
    process::{
        core_file::{CoreFile, open_regular},
        os_threads::OsThread,
    },
    stack::{namer::StackNamer, native::Files},
    sys::budget::Reservation,
    trace::{
        live::{AT_ONCE, Live},
        threads::{
            Dump, Thread,
            dump::{Walked, has_java_frames, name_stack, read_held},
            limit::{self, MAX_THREADS, Ranks, Stacks, select},
            virtual_threads::raw_stack,
        },
    },
};

/// Name of a thread that is not a Java thread. A core file contains only the name of the first thread of the process.
const UNKNOWN: &str = "unknown";
/// Key of the process in stacks. It must not be 0, which the PID may be.
const KEY: u64 = 1;

/// A thread ID, the thread's registers if they are known, and the JVM's data about a Java thread.
type FoundThread = (u32, Option<Registers>, Option<JavaThread>);

/// Dumps the threads of a core file.
#[derive(Debug)]
pub struct CoreDumper {
    path: PathBuf,
    core: CoreFile,
    hotspot: HotSpot,
    layout: JvmLayout,
    tables: WalkTables,
    namer: StackNamer,
}

impl CoreDumper {
    /// Opens a core file. The caller then becomes the owner of the file, and passes the file to [`Self::read`].
    ///
    /// # Errors
    /// [`Error::Core`] if it cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<File> {
        let why = |e| format!("cannot open the core file: {e}");
        open_regular(path).map_err(|e| Error::Core { path: path.to_owned(), why: why(e) })
    }

    /// Reads the properties of the JVM of the core file `file`, which was opened at `path`. `exe` is the libjvm.so that the JVM ran, the folder of
    /// its JDK, or the `java` in that folder; it is needed if the libjvm.so is not at its original path.
    ///
    /// # Errors
    /// [`Error::Core`] if it is not a core file of a supported JVM, if the libjvm.so is missing, or if the core file
    /// lacks the JVM's data.
    pub fn read(path: &Path, file: File, exe: Option<&Path>) -> Result<Self> {
        let core = CoreFile::read(path, file, exe)?;
        let fail = |error: &Error| incomplete(path, &core, error);
        let hotspot = HotSpot::of_core(&core).map_err(|e| fail(&e))?;
        if !hotspot.has_vm {
            let (pid, comm) = (core.pid, &core.comm);
            let why = format!("process {pid} ({comm}) had mapped libjvm.so, but had no JVM");
            return Err(Error::Core { path: path.to_owned(), why });
        }
        let mut tables = WalkTables::default();
        tables.set_mappings(KEY, &core.code);
        let namer = StackNamer::of_core(&hotspot, &core.code, false).map_err(|e| fail(&e))?;
        Ok(Self {
            path: path.to_owned(),
            layout: hotspot.walking().map_err(|e| fail(&e))?,
            tables,
            namer: namer.with_origins(&hotspot),
            hotspot,
            core,
        })
    }

    /// Returns the JVM.
    pub fn hotspot(&self) -> &HotSpot {
        &self.hotspot
    }

    /// Returns the signal that ended the JVM, and the thread ID of the thread that received it; `None` if the JVM continued.
    pub fn signal(&self) -> Option<(u16, u32)> {
        self.core.signal.zip(self.core.threads.first().map(|thread| thread.tid))
    }

    /// Takes the dump. Logs a warning if stacks are missing.
    ///
    /// # Errors
    /// [`Error::Core`] if the core file lacks the JVM's data about its threads.
    pub fn dump(&mut self) -> Result<Dump> {
        let registers = |thread: &CoreThread| {
            let CoreThread { tid, ip, sp, fp, others } = *thread;
            (tid, Registers::new([ip, sp, fp], others))
        };
        let mut by_tid: BTreeMap<_, _> = self.core.threads.iter().map(registers).collect();
        let java = self.hotspot.java_threads();
        let java = java.map_err(|error| incomplete(&self.path, &self.core, &error))?;
        let without_stack = self.core.threads.iter().filter(|t| self.lacks_stack(t.sp)).count();
        if without_stack > 0 {
            let (path, all) = (self.path.display(), self.core.threads.len());
            let (what, remedy) = missing_memory(&self.core);
            log::warn!(
                "{path}: {what}; the stacks of {without_stack} of {all} threads are \
                 missing; {remedy}"
            );
        }
        let tids = self.tids(&java, &by_tid);
        let mut found: Vec<_> = (java.into_iter().zip(tids))
            .map(|(java, tid)| {
                let registers = tid.and_then(|tid| by_tid.remove(&tid));
                // If the JVM has stored a thread ID, this ID is shown, not that of the core file.
                (java.tid.or(tid).unwrap_or(0), registers, Some(java))
            })
            .collect();
        found.extend(by_tid.into_iter().map(|(tid, registers)| (tid, Some(registers), None)));
        let mut space = Reservation::within(&self.core.memory.share());
        let ranks = Ranks::of(found.iter().filter_map(|(.., java)| java.as_ref()));
        let mut left_out = select(&mut found, MAX_THREADS, &mut space, || {
            Ok(|(.., java): &FoundThread| ranks.get(java.as_ref().map(|java| java.address)))
        })?;
        let all = found.len();
        let mut walked = self.walk(&mut found, &mut space);
        let java = found
            .iter()
            .zip(&mut walked)
            .filter_map(|((.., java), walked)| Some((java.as_ref()?.address, walked)));
        read_held(&self.hotspot, java);
        let threads = found.into_iter().zip(walked);
        let mut stacks = Stacks::default();
        let threads: Vec<_> = threads
            .filter_map(|((tid, _, java), walked)| {
                self.thread(tid, java, walked, &mut stacks, &mut space)
            })
            .collect();
        left_out.memory += (all - threads.len()) as u64;
        let mut dump = Dump::new(self.core.pid, &self.hotspot, threads, left_out, space);
        self.add_virtual_threads(&mut dump);
        Ok(dump)
    }

    /// Adds the virtual threads to a dump, and all deadlocks. A part that is missing in the core file is left out.
    fn add_virtual_threads(&mut self, dump: &mut Dump) {
        let Self { hotspot, namer, .. } = self;
        let read = hotspot.virtual_threads(MAX_VIRTUAL_THREADS).map(|mut read| {
            // No thread runs, so a thread that counts as moving lacks data.
            for thread in &mut read.threads {
                read.is_incomplete |= std::mem::take(&mut thread.is_moving);
            }
            read
        });
        let unloads = hotspot.classes_unloaded().unwrap_or(0);
        let mut files = Files::default();
        let name = |frames: &[ChunkFrame]| {
            let raw = raw_stack(KEY, unloads, frames);
            namer.name_without_walker(hotspot, &mut files, &raw).frames
        };
        // The threads stopped at the same time, so each cycle is a deadlock.
        dump.deadlocks = dump.add_virtual_threads(read, name).cycles().to_vec();
        if let Some(missing) = &dump.missing {
            let path = self.path.display();
            match (self.core.truncated, missing_memory(&self.core)) {
                (Some(_), (what, remedy)) => log::warn!("{path}: {what}; {missing}; {remedy}"),
                (None, _) => log::warn!("{path}: {missing}"),
            }
        }
    }

    fn lacks_stack(&self, sp: u64) -> bool {
        self.core.memory.u64(Addr(sp)).is_err()
    }

    /// Returns, for each Java thread, its thread ID in the core file. A core file that gdb wrote has thread
    /// IDs of gdb's PID namespace. If these differ from the thread IDs in the JVM's data, the Java threads
    /// are found by their stacks.
    fn tids(&self, java: &[JavaThread], by_tid: &BTreeMap<u32, Registers>) -> Vec<Option<u32>> {
        let stacks: Vec<_> =
            java.iter().map(|java| self.hotspot.stack(java.address).ok()).collect();
        let is_on =
            |registers: &Registers, stack: &Range<Addr>| stack.contains(&Addr(registers.sp));
        let is_right = |(java, stack): (&JavaThread, &Option<Range<Addr>>)| {
            let registers = java.tid.and_then(|tid| by_tid.get(&tid));
            Some(is_on(registers?, stack.as_ref()?))
        };
        // One thread that is on its stack is enough evidence. Others may have left their stacks to handle a
        // signal.
        if java.iter().zip(&stacks).filter_map(is_right).any(|is_right| is_right) {
            return java.iter().map(|java| java.tid).collect();
        }
        let by_stack = |stack: &Option<Range<Addr>>| {
            let stack = stack.as_ref()?;
            let found = by_tid.iter().find(|(_, registers)| is_on(registers, stack));
            found.map(|(&tid, _)| tid)
        };
        stacks.iter().map(by_stack).collect()
    }

    /// Walks threads. Removes those for whose stacks no memory can be reserved in `space`.
    fn walk(&self, threads: &mut Vec<FoundThread>, space: &mut Reservation) -> Vec<Walked> {
        let Some(walk_data) = self.tables.walk_data(KEY) else { return Vec::new() };
        let mut pages = Pages::scattered(&self.core.memory);
        let sp = |(_, start, _): &FoundThread| start.map_or(0, |start| start.sp);
        let mut walk = |live: &mut Live<'_, '_>, (_, start, java): &FoundThread| {
            let mut walked = live.walk_still(KEY, &start.unwrap_or_default());
            if start.is_none() {
                walked.user.frames.clear();
                walked.registers.clear();
            }
            if let Some(java) = java.as_ref().filter(|_| !has_java_frames(&walked.user)) {
                live.walk_java_frames(KEY, &self.hotspot, java.address, &mut walked);
            }
            walked
        };
        let (mut kept, mut stacks) = (Vec::new(), Vec::new());
        let mut all = std::mem::take(threads).into_iter().peekable();
        while all.peek().is_some() {
            let some: Vec<_> = all.by_ref().take(AT_ONCE).collect();
            let walked = Live::walk_all(&mut pages, &self.layout, &walk_data, &some, sp, &mut walk);
            for (thread, stack) in some.into_iter().zip(walked) {
                if limit::reserve_raw(space, &stack.user) {
                    kept.push(thread);
                    stacks.push(stack);
                }
            }
        }
        *threads = kept;
        stacks
    }

    fn thread(
        &mut self,
        tid: u32,
        java: Option<JavaThread>,
        walked: Walked,
        stacks: &mut Stacks,
        space: &mut Reservation,
    ) -> Option<Thread> {
        let name = if tid == self.core.pid.0 { &self.core.comm } else { UNKNOWN };
        let os = OsThread { tid, namespace_tid: tid, name: name.to_owned(), scheduling: None };
        let mut thread = Thread::new(os, java);
        let Walked { user, held, activity, .. } = walked;
        let (namer, hotspot) = (&mut self.namer, &self.hotspot);
        let named = limit::named(stacks, space, (0, user), |user| {
            name_stack(namer, hotspot, &mut Files::default(), Vec::new(), user)
        })?;
        thread.set_stack(named, held, activity);
        Some(thread)
    }
}

/// Makes the error for a core file that lacks data of its JVM.
fn incomplete(path: &Path, core: &CoreFile, error: &Error) -> Error {
    let why = match (error, missing_memory(core)) {
        (Error::Memory { .. }, (what, remedy)) => {
            format!("{what}, and the data of its JVM is missing: {error}; {remedy}")
        }
        _ => error.to_string(),
    };
    Error::Core { path: path.to_owned(), why }
}

/// Returns why memory is missing from a core file, and what to do.
fn missing_memory(core: &CoreFile) -> (String, &'static str) {
    match core.truncated {
        Some((size, complete)) => {
            (format!("the core file is truncated, {size} of {complete} bytes"), TRUNCATED)
        }
        None => (
            "the core file is incomplete".into(),
            "set bits 0 and 1 of the JVM's /proc/PID/coredump_filter (0x33 by default)",
        ),
    }
}
