//! The walker, compiled for user space: the library's own, or another.
//!
//! Where the variable [`OTHER`] names a library, the walker is taken from there: one that was
//! compiled with a sanitizer, whose runtime has to be in the process from the beginning.

use std::{
    ffi::{CString, c_void},
    os::unix::ffi::OsStrExt,
    sync::OnceLock,
};

pub use libjvmprobe::bpf::here::{Blob, Source, Stack, Start, blob, trail};
use libjvmprobe::bpf::here::{LINKED, WalkFunction, walk_by};

/// The name of the environment variable.
pub const OTHER: &str = "WALK_HARNESS";

fn function() -> WalkFunction {
    static FUNCTION: OnceLock<WalkFunction> = OnceLock::new();
    *FUNCTION.get_or_init(|| std::env::var_os(OTHER).map_or(LINKED, |path| other(path.as_bytes())))
}

/// # Panics
/// Where it is no such library.
fn other(path: &[u8]) -> WalkFunction {
    let path = CString::new(path).expect("a path has no zeros");
    // SAFETY: strings that end in zero; what is loaded stays loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: as above.
    let found = unsafe { libc::dlsym(library, c"harness_walk".as_ptr()) };
    assert!(!library.is_null() && !found.is_null(), "{path:?} has no walker");
    // SAFETY: the function of harness.c, as it is declared.
    unsafe { std::mem::transmute::<*mut c_void, WalkFunction>(found) }
}

/// Walks a stack.
pub fn walk(source: &mut dyn Source, start: &Start) -> Stack {
    // SAFETY: both were compiled from these sources.
    unsafe { walk_by(function(), source, 1, start) }.1
}
