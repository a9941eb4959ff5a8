//! What the agent knows of one environment, that is of one time it was loaded.
//!
//! What is known here: when an environment writes, when it falls silent, and
//! who closes its files. Events come on several threads, and go on for a moment
//! after they were switched off (JVM Tool Interface, "Dispose Environment" and
//! "Set Event Notification Mode"). A file must not be closed under a thread that
//! is about to write: the number could by then be that of a file of the JVM's.
//! So everyone who writes is counted, nobody gets in after the environment
//! became silent, and the last one out closes.
//!
//! The memory is never given back, for the JVM may be about to call with it;
//! that is less than a hundred bytes each time the agent is loaded.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::Buffer;
use crate::jni::JavaVm;
use crate::jvmti::{EVENTS, Env};
use crate::options::Style;
use crate::sys::{self, File};

/// Bit of the gate: nobody gets in any more.
const SILENT: u32 = 1 << 31;
/// Bit of the gate: a map could not be written.
const BROKEN: u32 = 1 << 30;
/// The other bits of the gate: how many are in.
const COUNT: u32 = BROKEN - 1;
/// A file of this size gets no more records, lest the agent fill the disk after
/// a reader that died without removing it.
const FILE_MOST: i64 = 1 << 30;

/// One environment's files and options.
pub struct State {
    /// The environment.
    pub env: Env,
    /// The JVM.
    pub vm: JavaVm,
    /// How the perf map names code.
    pub style: Style,
    map: Option<i32>,
    perf: Option<i32>,
    gate: AtomicU32,
}

/// Leave to write, until dropped.
pub struct Pass(&'static State);

impl State {
    /// Puts the state in memory of the JVM's and takes the files over.
    pub fn create(
        env: Env,
        vm: JavaVm,
        style: Style,
        map: Option<File>,
        perf: Option<File>,
    ) -> Option<Pass> {
        let place: NonNull<Self> = env.allocate(size_of::<Self>())?.cast();
        if !place.is_aligned() {
            return None;
        }
        let state = Self {
            env,
            vm,
            style,
            map: map.map(File::into_fd),
            perf: perf.map(File::into_fd),
            gate: AtomicU32::new(1),
        };
        // SAFETY: the memory is large enough, aligned, and never given back. The
        // gate already counts the pass that is made here.
        unsafe {
            place.write(state);
            Some(Pass(place.as_ref()))
        }
    }

    /// The state of the environment that sent an event, unless it is silent. It
    /// becomes so here when its file has no name any more.
    pub fn enter(env: Env) -> Option<Pass> {
        let state = env.storage().cast::<Self>();
        // SAFETY: the storage is null or what `Pass::publish` put there: a state,
        // which lives for ever.
        let state: &'static Self = unsafe { state.as_ref() }?;
        let enter = |gate: u32| (gate & SILENT == 0).then_some(gate + 1);
        state.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).ok()?;
        let pass = Pass(state);
        let watched = state.map.or(state.perf)?;
        if sys::is_wanted(watched, FILE_MOST) {
            return Some(pass);
        }
        pass.silence();
        None
    }
}

impl Pass {
    /// What it is a pass to.
    pub fn state(&self) -> &'static State {
        self.0
    }

    /// Makes the state known to the environment's events.
    pub fn publish(&self) -> i32 {
        self.0.env.set_storage((&raw const *self.0).cast())
    }

    /// A buffer for the rich map, if there is one.
    pub fn map(&self) -> Option<Buffer> {
        self.0.map.and_then(|_| Buffer::new(self.0.env))
    }

    /// A buffer for the perf map, if there is one.
    pub fn perf(&self) -> Option<Buffer> {
        self.0.perf.and_then(|_| Buffer::new(self.0.env))
    }

    /// Appends the buffer to the rich map.
    pub fn write_map(&self, buffer: &Buffer) {
        self.write(self.0.map, buffer);
    }

    /// Appends the buffer to the perf map.
    pub fn write_perf(&self, buffer: &Buffer) {
        self.write(self.0.perf, buffer);
    }

    /// Appends the buffer to a file. If that fails, the environment falls silent:
    /// half a record may be at the file's end, and nothing must come after it.
    fn write(&self, fd: Option<i32>, buffer: &Buffer) {
        if fd.is_some_and(|fd| !sys::write(fd, buffer.bytes())) {
            self.0.gate.fetch_or(BROKEN, Ordering::Relaxed);
            self.silence();
        }
    }

    /// Whether a map could not be written.
    pub fn is_broken(&self) -> bool {
        self.0.gate.load(Ordering::Relaxed) & BROKEN != 0
    }

    /// Whether there is a rich map that someone still wants.
    pub fn goes_on(&self) -> bool {
        self.0.map.is_some_and(|fd| sys::is_wanted(fd, FILE_MOST))
    }

    /// Lets nobody in any more and switches the events off.
    pub fn silence(&self) {
        self.0.gate.fetch_or(SILENT, Ordering::Relaxed);
        for event in EVENTS {
            self.0.env.notify(false, event);
        }
    }

    /// Waits until all others are out, but no longer than a second.
    pub fn is_alone(&self) -> bool {
        (0..1000).any(|_| {
            let alone = self.0.gate.load(Ordering::Acquire) & COUNT == 1;
            if !alone {
                sys::pause();
            }
            alone
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let gate = self.0.gate.fetch_sub(1, Ordering::AcqRel);
        if gate & SILENT != 0 && gate & COUNT == 1 {
            for fd in [self.0.map, self.0.perf].into_iter().flatten() {
                sys::close(fd);
            }
        }
    }
}
