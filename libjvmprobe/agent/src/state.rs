//! State of one JVMTI environment. Each load of the agent creates one.
//!
//! This module decides when an environment writes, when it stops, and which
//! thread closes its map. Events arrive on several threads, and continue for
//! a short time after they were disabled (JVM Tool Interface, "Dispose
//! Environment" and "Set Event Notification Mode"). A file must not be closed
//! while a thread is about to write to it, because the JVM could reuse the
//! descriptor for one of its own files before the write. Therefore `State::gate`
//! counts the threads that hold a `Pass`. Once the environment is stopped, the
//! gate admits no more threads, and the last thread that drops its pass closes
//! the map.
//!
//! The memory of a state is never freed, because the JVM may be about to run a
//! callback that reads it. A state has less than a hundred bytes, and each load
//! of the agent creates only one.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::buffer::Buffer;
use crate::jni::{JavaVm, Jni};
use crate::jvmti::{EVENTS, Env};
use crate::sys::{self, File};

/// Bit of the gate: the environment is stopped and admits no more threads.
const STOPPED: u32 = 1 << 31;
/// Bit of the gate: the map could not be written.
const BROKEN: u32 = 1 << 30;
/// Mask of the other bits of the gate: the number of passes in use.
const COUNT: u32 = BROKEN - 1;
/// Maximum size of the map in bytes. A map of this size gets no more records.
/// Otherwise, the agent could fill the disk if the process that reads the map
/// has died without removing it.
const MAX_FILE_SIZE: i64 = 1 << 30;

/// One environment and its map.
pub struct State {
    env: Env,
    vm: JavaVm,
    map: i32,
    gate: AtomicU32,
}

/// Permission to write to the map of a state; the gate counts it until it is dropped.
pub struct Pass(&'static State);

impl State {
    /// Creates a state in memory from JVMTI and takes ownership of the map.
    pub fn create(env: Env, vm: JavaVm, map: File) -> Option<Pass> {
        let memory: NonNull<Self> = env.allocate(size_of::<Self>())?.cast();
        if !memory.is_aligned() {
            return None;
        }
        let state = Self { env, vm, map: map.into_fd(), gate: AtomicU32::new(1) };
        // SAFETY: the memory is large enough, aligned, and never freed. The gate
        // already counts the pass that is created here.
        unsafe {
            memory.write(state);
            Some(Pass(memory.as_ref()))
        }
    }

    /// Returns a pass to the state of the environment that sent an event, unless
    /// the environment is stopped. Stops the environment if its map is unlinked or
    /// has the maximum size.
    pub fn enter(env: Env) -> Option<Pass> {
        let state = env.storage().cast::<Self>();
        // SAFETY: the storage is null or the state that `Pass::publish` stored,
        // which is never freed.
        let state: &'static Self = unsafe { state.as_ref() }?;
        let enter = |gate: u32| (gate & STOPPED == 0).then_some(gate + 1);
        state.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).ok()?;
        let pass = Pass(state);
        if sys::is_linked_and_below(state.map, MAX_FILE_SIZE) {
            return Some(pass);
        }
        pass.stop();
        None
    }
}

impl Pass {
    /// Returns the JNI environment of this thread, if the thread is attached to the JVM.
    pub fn jni(&self) -> Option<Jni> {
        self.0.vm.jni()
    }

    /// Stores the state in the environment, where `State::enter` finds it.
    pub fn publish(&self) -> i32 {
        self.0.env.set_storage((&raw const *self.0).cast())
    }

    /// Returns a buffer for records; `None` if JVMTI has no memory.
    pub fn buffer(&self) -> Option<Buffer> {
        Buffer::new(self.0.env)
    }

    /// Appends the buffer to the map. If that fails, stops the environment,
    /// because the map may end with an incomplete record that nothing must follow.
    pub fn write(&self, buffer: &Buffer) {
        if !sys::write(self.0.map, buffer.bytes()) {
            self.0.gate.fetch_or(BROKEN, Ordering::Relaxed);
            self.stop();
        }
    }

    /// Whether a write to the map failed.
    pub fn is_broken(&self) -> bool {
        self.0.gate.load(Ordering::Relaxed) & BROKEN != 0
    }

    /// Admits no more threads and disables the events.
    pub fn stop(&self) {
        self.0.gate.fetch_or(STOPPED, Ordering::Relaxed);
        for event in EVENTS {
            self.0.env.notify(false, event);
        }
    }

    /// Waits until all other passes are dropped, for about one second at most. Returns false if
    /// some remain.
    pub fn wait_for_other_passes(&self) -> bool {
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
        if gate & STOPPED != 0 && gate & COUNT == 1 {
            sys::close(self.0.map);
        }
    }
}
