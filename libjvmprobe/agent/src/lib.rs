//! A JVMTI agent that writes the addresses of compiled Java methods to a file.
//!
//! This module contains the entry point of the agent (`Agent_OnAttach`; JVM Tool
//! Interface, "Agent Start Up") and sets up an environment. The other modules are
//! `richmap` (the format of the map), `inline` (the JVM's record of inlined
//! methods), `names` (names of methods), `buffer` (text in memory), `state` (state
//! of one environment), `events` (the callbacks), `jvmti`, `jni` and `owned` (the
//! JVM's interfaces), and `sys` and `mem` (system calls and memory functions, which
//! replace a libc).
//!
//! The library needs no libc, so that the same file can be loaded into JVMs on
//! glibc and on musl. It never prints, never panics, and keeps nothing in
//! static memory.
//!
//! The option text is the path of the map. The agent writes a snapshot of the
//! existing code and then disposes of its environment. It stops earlier if the map
//! is unlinked or has reached 1 GiB.

#![no_std]
#![warn(missing_docs, clippy::undocumented_unsafe_blocks)]

mod buffer;
mod events;
mod inline;
mod jni;
mod jvmti;
mod mem;
mod names;
mod owned;
mod richmap;
mod state;
mod sys;

use core::ffi::{CStr, c_char, c_void};

use jni::JavaVm;
use jvmti::Env;
use state::{Pass, State};
use sys::File;

/// Reason why the agent could not start; the number is the value returned to the JVM.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Failure {
    /// The JVM returned no JVMTI environment.
    NoEnvironment = 13,
    /// The map cannot be opened, or is not a regular file.
    OpenMap = 14,
    /// JVMTI has no memory for the agent's state.
    Memory = 16,
    /// Set Environment Local Storage failed.
    Storage = 17,
    /// Set Event Callbacks failed.
    Callbacks = 18,
    /// The map cannot be written.
    Write = 19,
    /// An event cannot be enabled.
    Enable = 20,
    /// Generate Events failed, so the events for existing code are missing.
    Generate = 21,
}

/// Entry point that the JVM calls when the agent is attached to the running JVM.
///
/// # Safety
///
/// The arguments must be those that the JVM passes to this function.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the JVM's")]
pub unsafe extern "C" fn Agent_OnAttach(
    vm: JavaVm,
    text: *const c_char,
    _reserved: *mut c_void,
) -> i32 {
    let path = if text.is_null() {
        c""
    } else {
        // SAFETY: the JVM's option text ends in NUL and lives during the call.
        unsafe { CStr::from_ptr(text) }
    };
    match write_snapshot(vm, path) {
        Ok(()) => 0,
        Err(failure) => failure as i32,
    }
}

/// Opens the map, creates an environment, writes the snapshot and disposes of the environment.
fn write_snapshot(vm: JavaVm, path: &CStr) -> Result<(), Failure> {
    let map = File::append(path).ok_or(Failure::OpenMap)?;
    let env = vm.jvmti().ok_or(Failure::NoEnvironment)?;
    let Some(pass) = State::create(env, vm, map) else {
        env.dispose();
        return Err(Failure::Memory);
    };
    let result = generate(&pass, env);
    pass.stop();
    let alone = pass.wait_for_other_passes();
    drop(pass);
    if alone {
        env.dispose();
    }
    result
}

/// Sets up the environment and has the JVM send the events for the existing code.
fn generate(pass: &Pass, env: Env) -> Result<(), Failure> {
    // Errors are ignored: a JVM that lacks one of these capabilities still provides the other data.
    env.add_capability(jvmti::CAN_GENERATE_COMPILED_METHOD_LOAD_EVENTS);
    env.add_capability(jvmti::CAN_GET_SOURCE_FILE_NAME);
    env.add_capability(jvmti::CAN_GET_LINE_NUMBERS);
    check(pass.publish(), Failure::Storage)?;
    check(env.set_callbacks(&events::callbacks()), Failure::Callbacks)?;
    for event in jvmti::EVENTS {
        check(env.notify(true, event), Failure::Enable)?;
    }
    for event in jvmti::EVENTS {
        check(env.generate(event), Failure::Generate)?;
    }
    if pass.is_broken() { Err(Failure::Write) } else { Ok(()) }
}

/// Converts a JVMTI error code to a result. A missing capability is not a failure.
fn check(error: i32, failure: Failure) -> Result<(), Failure> {
    if error == 0 || error == jvmti::MUST_POSSESS_CAPABILITY { Ok(()) } else { Err(failure) }
}

/// Required by the compiler in a `no_std` library; the agent never panics.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        sys::pause();
    }
}
