//! Files that shrink while they are mapped.
//!
//! Who reads a mapped page behind the end of its file gets SIGBUS, and dies of it: whoever owns a
//! library that is being named could end the tool by truncating it. So the page is replaced by one
//! of zeros, and what reads it goes on: names are missing then, or wrong, which is said. Source:
//! mmap(2), sigaction(2) (`BUS_ADRERR`).

use std::{
    ptr::null_mut,
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether a page was replaced.
static HAS_SHRUNK: AtomicBool = AtomicBool::new(false);

/// From now on a file that shrinks does not end us. Any other SIGBUS does, as before.
pub(super) fn survive_shrinking() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = replace as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler does what may be done in one: it makes system calls and stores to
        // an atomic. Where it cannot be installed, all is as it was.
        unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) };
    });
}

/// Whether a file has shrunk while it was read.
pub fn has_shrunk() -> bool {
    HAS_SHRUNK.load(Ordering::Relaxed)
}

extern "C" fn replace(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const PAGE: usize = 4096;
    // SAFETY: with SA_SIGINFO the kernel gives a valid siginfo, for SIGBUS with an address.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR {
        // SAFETY: the page could not be read: nobody has a reference to anything in it but by
        // the mapping of the file, of which this is what a file of zeros would show.
        let page = unsafe {
            libc::mmap(
                (at / PAGE * PAGE) as *mut libc::c_void,
                PAGE,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if page != libc::MAP_FAILED {
            HAS_SHRUNK.store(true, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: what the signal does by itself, when the instruction is tried again.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_file_that_shrinks_reads_as_zeros() {
        survive_shrinking();
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * 4096).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, &[7; 3 * 4096], 0).unwrap();
        let flags = (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping of a file that is open.
        let at = unsafe { libc::mmap(null_mut(), 3 * 4096, flags.0, flags.1, flags.2, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: three pages, which are mapped.
        let read = |i: usize| unsafe { at.cast::<u8>().add(i).read_volatile() };
        assert_eq!((read(0), read(2 * 4096)), (7, 7));
        file.set_len(4096).unwrap();
        assert_eq!((read(0), read(4096), read(2 * 4096 + 1)), (7, 0, 0));
        assert!(has_shrunk());
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(at, 3 * 4096) };
    }
}
