//! The callbacks: one event becomes at most one write to each map.
//!
//! The parameters of the three events and their slots in `jvmtiEventCallbacks`,
//! which begins with event 50, come from the JVM Tool Interface specification
//! ("Event Index") and `jvmti.h`. The JVM calls the callbacks from any thread.
//! In "Compiled Method Unload" the `jmethodID` is no longer valid, so only the
//! address is used.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null;

use crate::inline;
use crate::jvmti::{
    COMPILED_METHOD_LOAD, COMPILED_METHOD_UNLOAD, DYNAMIC_CODE_GENERATED, Env, MethodId,
};
use crate::names::Methods;
use crate::perfmap;
use crate::richmap::{self, Code};
use crate::state::State;

const FIRST: i32 = 50;
const COUNT: usize = (DYNAMIC_CODE_GENERATED - FIRST + 1) as usize;

/// Returns the table for Set Event Callbacks, up to the last event that the agent uses.
pub fn callbacks() -> [*const c_void; COUNT] {
    let mut table = [null(); COUNT];
    for (event, callback) in [
        (COMPILED_METHOD_LOAD, compiled_method_load as *const c_void),
        (COMPILED_METHOD_UNLOAD, compiled_method_unload as *const c_void),
        (DYNAMIC_CODE_GENERATED, dynamic_code_generated as *const c_void),
    ] {
        if let Some(slot) = table.get_mut((event - FIRST) as usize) {
            *slot = callback;
        }
    }
    table
}

unsafe extern "C" fn compiled_method_load(
    env: Env,
    method: MethodId,
    size: i32,
    start: usize,
    _map_length: i32,
    _map: *const c_void,
    info: *const c_void,
) {
    let Some(pass) = State::enter(env) else {
        return;
    };
    let state = pass.state();
    let code = Code { start, size: size.max(0) as usize };
    // SAFETY: `info` is valid until this callback returns.
    let pcs = unsafe { inline::pcs(info) };
    let mut methods = Methods::new(env, state.vm.jni());
    if let Some(mut out) = pass.map() {
        richmap::loaded(&mut out, &mut methods, method, code, pcs);
        pass.write_map(&out);
    }
    if let Some(mut out) = pass.perf() {
        perfmap::loaded(&mut out, &mut methods, method, code, pcs, state.style);
        pass.write_perf(&out);
    }
}

unsafe extern "C" fn compiled_method_unload(env: Env, _method: MethodId, start: usize) {
    let Some(pass) = State::enter(env) else {
        return;
    };
    if let Some(mut out) = pass.map() {
        richmap::unloaded(&mut out, start);
        pass.write_map(&out);
    }
}

unsafe extern "C" fn dynamic_code_generated(
    env: Env,
    name: *const c_char,
    start: usize,
    size: i32,
) {
    let Some(pass) = State::enter(env) else {
        return;
    };
    let code = Code { start, size: size.max(0) as usize };
    let name = if name.is_null() {
        &[]
    } else {
        // SAFETY: the name ends in NUL and is valid until this callback returns.
        unsafe { CStr::from_ptr(name) }.to_bytes()
    };
    if let Some(mut out) = pass.map() {
        richmap::dynamic(&mut out, code, name);
        pass.write_map(&out);
    }
    if let Some(mut out) = pass.perf() {
        perfmap::dynamic(&mut out, code, name);
        pass.write_perf(&out);
    }
}
