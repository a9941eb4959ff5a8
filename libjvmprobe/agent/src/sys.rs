//! Raw Linux system calls, with no libc in between.
//!
//! The calling convention, the call numbers, the flag values and the layout of
//! `struct stat` of x86-64 and aarch64 come from the kernel's own headers
//! (`asm/unistd.h`, `asm-generic/unistd.h`, `asm/stat.h`, `asm/fcntl.h`) and
//! from the manual page syscall(2). A result between -4095 and -1 is a negated
//! errno.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const FSTAT: usize = 5;
    pub const NANOSLEEP: usize = 35;
    pub const OPENAT: usize = 257;
    pub const O_NOFOLLOW: usize = 0o400_000;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const WRITE: usize = 64;
    pub const FSTAT: usize = 80;
    pub const NANOSLEEP: usize = 101;
    pub const O_NOFOLLOW: usize = 0o100_000;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("only x86-64 and aarch64 are supported");

const AT_FDCWD: isize = -100;
const O_WRONLY: usize = 0o1;
const O_CREAT: usize = 0o100;
const O_APPEND: usize = 0o2_000;
const O_NONBLOCK: usize = 0o4_000;
const O_CLOEXEC: usize = 0o2_000_000;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const EINTR: isize = -4;

/// The beginning of the kernel's `struct stat`, padded to at least its full size.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Stat {
    dev: u64,
    ino: u64,
    nlink: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    pad: u32,
    rdev: u64,
    size: i64,
    rest: [u64; 12],
}

/// The beginning of the kernel's `struct stat`, padded to at least its full size.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
struct Stat {
    dev: u64,
    ino: u64,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    pad: u64,
    size: i64,
    rest: [u64; 9],
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

/// Makes a system call with up to four arguments.
///
/// # Safety
///
/// The arguments must be valid for the system call with this number. Pointers
/// among them must be valid for the kernel's reads and writes.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's convention, the two that
    // the instruction overwrites are declared, and the caller guarantees the rest.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// Makes a system call with up to four arguments, on aarch64.
///
/// # Safety
///
/// The arguments must be valid for the system call with this number. Pointers
/// among them must be valid for the kernel's reads and writes.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the registers are those of the kernel's convention, which preserves
    // all others, and the caller guarantees the rest.
    unsafe {
        asm!(
            "svc #0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d,
            options(nostack)
        );
    }
    result
}

/// A file opened for appending, closed when dropped.
pub struct File(i32);

impl File {
    /// Opens `path` for appending, and creates it (mode 0600) if it does not exist.
    /// Rejects a symbolic link as the last component, and anything but a regular
    /// file. Without `O_NONBLOCK`, the attempt to open a FIFO would block the JVM until another process opens the FIFO for reading.
    pub fn append(path: &CStr) -> Option<Self> {
        let flags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | number::O_NOFOLLOW;
        // SAFETY: the path ends in NUL and lives during the call.
        let fd = unsafe {
            call(number::OPENAT, AT_FDCWD as usize, path.as_ptr() as usize, flags, 0o600)
        };
        if fd < 0 {
            return None;
        }
        let file = Self(fd as i32);
        status(file.0).is_some_and(|stat| stat.mode & S_IFMT == S_IFREG).then_some(file)
    }

    /// Returns the descriptor, which the caller must close.
    pub fn into_fd(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for File {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // SAFETY: close takes no pointer.
    unsafe { call(number::CLOSE, fd as usize, 0, 0, 0) };
}

fn status(fd: i32) -> Option<Stat> {
    let mut stat = MaybeUninit::<Stat>::zeroed();
    // SAFETY: `Stat` is at least as large as the kernel's structure, and any bytes are a
    // valid value of it.
    unsafe {
        let result = call(number::FSTAT, fd as usize, stat.as_mut_ptr() as usize, 0, 0);
        (result == 0).then(|| stat.assume_init())
    }
}

/// Whether the open file is still linked in a directory and smaller than `max_size` bytes.
pub fn is_linked_and_below(fd: i32, max_size: i64) -> bool {
    status(fd).is_some_and(|stat| stat.nlink != 0 && stat.size < max_size)
}

/// Writes all of `bytes`, in one call unless the kernel accepts only a part. Returns false on
/// an error.
pub fn write(fd: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: pointer and length are those of a live slice.
        let done =
            unsafe { call(number::WRITE, fd as usize, bytes.as_ptr() as usize, bytes.len(), 0) };
        if done == EINTR {
            continue;
        }
        match bytes.get(done as usize..) {
            Some(rest) if done > 0 => bytes = rest,
            _ => return false,
        }
    }
    true
}

/// Sleeps for one millisecond.
pub fn pause() {
    let time = Timespec { seconds: 0, nanoseconds: 1_000_000 };
    // SAFETY: the kernel reads one timespec, and with a null second argument writes nothing.
    unsafe { call(number::NANOSLEEP, &raw const time as usize, 0, 0, 0) };
}
