//! The walker, compiled for user space: the library's own build, that for another processor, or another one.
//!
//! If the environment variable [`OTHER`] names a folder, the walkers are loaded from there, as `x86_64.so` and
//! `aarch64.so`: for example those that were compiled with a sanitizer, whose runtime must be in the process from the
//! start.

use std::{
    ffi::{CString, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::OnceLock,
};

pub use libjvmprobe::bpf::user_walker::{Blob, Registers, Source, Stack, blob, trail};
use libjvmprobe::bpf::user_walker::{LINKED, RawSource, WalkFunction, Walked, walk_by};

/// Name of the environment variable that selects other builds of the walker.
pub const OTHER: &str = "WALK_HARNESS";

/// Processor architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Processor {
    /// x86-64.
    #[default]
    X86_64,
    /// aarch64.
    Aarch64,
}

impl Processor {
    /// This machine's processor.
    pub const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// Name of the architecture in file names and recordings.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }
}

/// The walker of the processor that this machine does not have: see build.rs.
mod foreign {
    use super::{RawSource, Registers, Walked};

    unsafe extern "C" {
        #[cfg_attr(target_arch = "aarch64", link_name = "x86_64_harness_walk")]
        #[cfg_attr(not(target_arch = "aarch64"), link_name = "aarch64_harness_walk")]
        pub(super) fn walk(
            source: *const RawSource,
            key: u64,
            start: *const Registers,
            walked: *mut Walked,
        ) -> u64;
    }
}

fn function(processor: Processor) -> WalkFunction {
    static FUNCTIONS: OnceLock<[WalkFunction; 2]> = OnceLock::new();
    let all = FUNCTIONS.get_or_init(|| {
        [Processor::X86_64, Processor::Aarch64].map(|processor| {
            if let Some(folder) = std::env::var_os(OTHER) {
                return other(&Path::new(&folder).join(format!("{}.so", processor.name())));
            }
            if processor == Processor::OWN { LINKED } else { foreign::walk }
        })
    });
    all[usize::from(processor == Processor::Aarch64)]
}

/// Loads the walker from a library.
///
/// # Panics
/// If it is not a library with a walker.
fn other(path: &Path) -> WalkFunction {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path has no zeros");
    // SAFETY: the path is NUL-terminated, and the library is never unloaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: the handle comes from dlopen, and the name is NUL-terminated.
    let found = unsafe { libc::dlsym(library, c"harness_walk".as_ptr()) };
    assert!(!library.is_null() && !found.is_null(), "{path:?} has no walker");
    // SAFETY: this is the function in harness.c, which has this signature.
    unsafe { std::mem::transmute::<*mut c_void, WalkFunction>(found) }
}

/// Walks a stack of a process that runs on this processor.
pub fn walk(processor: Processor, source: &mut dyn Source, start: &Registers) -> Stack {
    // SAFETY: the functions and these types come from the same sources.
    unsafe { walk_by(function(processor), source, 1, start) }.1
}
