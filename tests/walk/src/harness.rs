//! The walker, compiled for user space: the library's own build, or another one.
//!
//! If the environment variable [`OTHER`] names a library, the walker is loaded from there: for
//! example one that was compiled with a sanitizer, whose runtime must be in the process from the
//! start.

use std::{
    ffi::{CString, c_void},
    os::unix::ffi::OsStrExt,
    sync::OnceLock,
};

pub use libjvmprobe::bpf::user_walker::{Blob, Registers, Source, Stack, blob, trail};
use libjvmprobe::bpf::user_walker::{LINKED, WalkFunction, walk_by};

/// Name of the environment variable that selects another build of the walker.
pub const OTHER: &str = "WALK_HARNESS";

fn function() -> WalkFunction {
    static FUNCTION: OnceLock<WalkFunction> = OnceLock::new();
    *FUNCTION.get_or_init(|| std::env::var_os(OTHER).map_or(LINKED, |path| other(path.as_bytes())))
}

/// Loads the walker from a library.
///
/// # Panics
/// If it is not a library with a walker.
fn other(path: &[u8]) -> WalkFunction {
    let path = CString::new(path).expect("a path has no zeros");
    // SAFETY: the path is NUL-terminated, and the library is never unloaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the handle comes from dlopen, and the name is NUL-terminated.
    let found = unsafe { libc::dlsym(library, c"harness_walk".as_ptr()) };
    assert!(!library.is_null() && !found.is_null(), "{path:?} has no walker");
    // SAFETY: this is the function in harness.c, which has this signature.
    unsafe { std::mem::transmute::<*mut c_void, WalkFunction>(found) }
}

/// Walks a stack.
pub fn walk(source: &mut dyn Source, start: &Registers) -> Stack {
    // SAFETY: the function and these types come from the same sources.
    unsafe { walk_by(function(), source, 1, start) }.1
}
