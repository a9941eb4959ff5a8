//! The callbacks: one event becomes at most one write to the map.
//!
//! The parameters of the two events and their slots in `jvmtiEventCallbacks`,
//! which begins with event 50, come from the JVM Tool Interface specification
//! ("Event Index") and `jvmti.h`. The JVM calls the callbacks from any thread.

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null;

use crate::inline;
use crate::jvmti::{COMPILED_METHOD_LOAD, DYNAMIC_CODE_GENERATED, Env, MethodId};
use crate::names::Methods;
use crate::richmap::{self, Code};
use crate::state::State;

const FIRST: i32 = 50;
const COUNT: usize = (DYNAMIC_CODE_GENERATED - FIRST + 1) as usize;

/// Returns the table for Set Event Callbacks, up to the last event that the agent uses.
pub fn callbacks() -> [*const c_void; COUNT] {
    let mut table = [null(); COUNT];
    for (event, callback) in [
        (COMPILED_METHOD_LOAD, compiled_method_load as *const c_void),
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
    let code = Code { start, size: size.max(0) as usize };
    // SAFETY: `info` is valid until this callback returns.
    let pcs = unsafe { inline::pcs(info) };
    let mut methods = Methods::new(env, pass.jni());
    if let Some(mut out) = pass.buffer() {
        richmap::loaded(&mut out, &mut methods, method, code, pcs);
        pass.write(&out);
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
    if let Some(mut out) = pass.buffer() {
        richmap::dynamic(&mut out, code, name);
        pass.write(&out);
    }
}
