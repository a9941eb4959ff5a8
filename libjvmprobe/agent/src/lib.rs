//! A JVMTI agent that writes the addresses of compiled Java methods to a file.
//!
//! This module contains the entry points of the agent (`Agent_OnLoad` at the
//! JVM's start, `Agent_OnAttach` at any later time; JVM Tool Interface, "Agent
//! Start Up") and sets up an environment. The other modules are `options` (the
//! option text), `richmap` and `perfmap` (the two formats), `inline` (the JVM's
//! record of inlined methods), `names` (names of methods), `buffer` (text in
//! memory), `state` (state of one environment), `events` (the callbacks),
//! `jvmti`, `jni` and `owned` (the JVM's interfaces), and `sys` and `mem`
//! (system calls and memory functions, which replace a libc).
//!
//! The library needs no libc, so that the same file can be loaded into JVMs on
//! glibc and on musl. It never prints, never panics, and keeps nothing in
//! static memory.
//!
//! The option `map=PATH` names the file of the rich map, and `perf=PATH` that of the
//! perf map; at least one of the two is required. The options `unfold=none|simple|all`, `msig`, `sourcepos`,
//! `dottedclass`, `cleanclass` and `annotate` change the entries and names in the
//! perf map.
//!
//! An agent that is attached to a running JVM first writes a snapshot of the
//! existing code. With `map=` and without `once`, it then continues to write until
//! the rich map is unlinked; otherwise, it disposes of its environment after the
//! snapshot. An agent that is loaded at the JVM's start ignores `once`. It writes
//! until the rich map is unlinked or, without a rich map, until the perf map is
//! unlinked. A file that has reached 1 GiB is treated like an unlinked one.

#![no_std]
#![warn(missing_docs, clippy::undocumented_unsafe_blocks)]

mod buffer;
mod events;
mod inline;
mod jni;
mod jvmti;
mod mem;
mod names;
mod options;
mod owned;
mod perfmap;
mod richmap;
mod state;
mod sys;

use core::ffi::{c_char, c_void};

use jni::JavaVm;
use jvmti::Env;
use state::{Pass, State};
use sys::File;

/// Reason why the agent could not start; the number is the value returned to the JVM.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Failure {
    /// The option text is invalid or too long.
    Options = 11,
    /// Neither `map` nor `perf` is given.
    NoFile = 12,
    /// The JVM returned no JVMTI environment.
    NoEnvironment = 13,
    /// The rich map cannot be opened, or is not a regular file.
    OpenMap = 14,
    /// The perf map cannot be opened, or is not a regular file.
    OpenPerf = 15,
    /// JVMTI has no memory for the agent's state.
    Memory = 16,
    /// Set Environment Local Storage failed.
    Storage = 17,
    /// Set Event Callbacks failed.
    Callbacks = 18,
    /// A map cannot be written.
    Write = 19,
    /// An event cannot be enabled.
    Enable = 20,
    /// Generate Events failed, so the events for existing code are missing.
    Generate = 21,
}

/// Entry point that the JVM calls at its own start.
///
/// # Safety
///
/// The arguments must be those that the JVM passes to this function.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the JVM's")]
pub unsafe extern "C" fn Agent_OnLoad(
    vm: JavaVm,
    text: *const c_char,
    _reserved: *mut c_void,
) -> i32 {
    // SAFETY: the JVM's option text ends in NUL and lives during the call.
    exit_status(unsafe { options::text(text) }.ok_or(Failure::Options), vm, false)
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
    // SAFETY: the JVM's option text ends in NUL and lives during the call.
    exit_status(unsafe { options::text(text) }.ok_or(Failure::Options), vm, true)
}

fn exit_status(text: Result<&[u8], Failure>, vm: JavaVm, live: bool) -> i32 {
    match text.and_then(|text| start(vm, text, live)) {
        Ok(()) => 0,
        Err(failure) => failure as i32,
    }
}

/// Opens the files, creates an environment and sets it up; reverts everything on failure.
fn start(vm: JavaVm, text: &[u8], live: bool) -> Result<(), Failure> {
    let options = options::parse(text).ok_or(Failure::Options)?;
    if options.map.is_none() && options.perf.is_none() {
        return Err(Failure::NoFile);
    }
    let map = open(options.map, Failure::OpenMap)?;
    let perf = open(options.perf, Failure::OpenPerf)?;
    let env = vm.jvmti().ok_or(Failure::NoEnvironment)?;
    let Some(pass) = State::create(env, vm, options.style, map, perf) else {
        env.dispose();
        return Err(Failure::Memory);
    };
    let result = set_up(&pass, env, live);
    // An agent that was attached to a running JVM is done after the snapshot, unless it writes a
    // rich map without the option `once`.
    let keeps_writing =
        result.is_ok() && (!live || pass.continues_after_snapshot() && !options.once);
    if !keeps_writing {
        pass.stop();
        let alone = pass.wait_for_other_passes();
        drop(pass);
        if alone {
            env.dispose();
        }
    }
    result
}

fn open(path: Option<&[u8]>, failure: Failure) -> Result<Option<File>, Failure> {
    let Some(path) = path else {
        return Ok(None);
    };
    let mut copy = [0; options::PATH_MAX];
    for (to, &from) in copy.iter_mut().zip(path) {
        *to = from;
    }
    let path = copy.get(..=path.len()).ok_or(failure)?;
    File::append(path).map(Some).ok_or(failure)
}

fn set_up(pass: &Pass, env: Env, live: bool) -> Result<(), Failure> {
    // Errors are ignored: a JVM that lacks one of these capabilities still provides the other data.
    env.add_capability(jvmti::CAN_GENERATE_COMPILED_METHOD_LOAD_EVENTS);
    env.add_capability(jvmti::CAN_GET_SOURCE_FILE_NAME);
    env.add_capability(jvmti::CAN_GET_LINE_NUMBERS);
    check(pass.publish(), Failure::Storage)?;
    check(env.set_callbacks(&events::callbacks()), Failure::Callbacks)?;
    record(pass, richmap::header)?;
    for event in jvmti::EVENTS {
        check(env.notify(true, event), Failure::Enable)?;
    }
    if live {
        for event in [jvmti::COMPILED_METHOD_LOAD, jvmti::DYNAMIC_CODE_GENERATED] {
            check(env.generate(event), Failure::Generate)?;
        }
    }
    // At the JVM's start there is no code yet, so the empty snapshot is complete.
    record(pass, richmap::complete)
}

/// Converts a JVMTI error code to a result. A missing capability is not a failure.
fn check(error: i32, failure: Failure) -> Result<(), Failure> {
    if error == 0 || error == jvmti::MUST_POSSESS_CAPABILITY { Ok(()) } else { Err(failure) }
}

/// Writes one record to the rich map, if there is one and no earlier write failed.
fn record(pass: &Pass, write: fn(&mut buffer::Buffer)) -> Result<(), Failure> {
    if !pass.is_broken()
        && let Some(mut out) = pass.map()
    {
        write(&mut out);
        pass.write_map(&out);
    }
    if pass.is_broken() { Err(Failure::Write) } else { Ok(()) }
}

/// Required by the compiler in a `no_std` library; the agent never panics.
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        sys::pause();
    }
}
