//! Identity of a file, independent of its mount and name.
//!
//! Containers use overlay file systems, and on an overlay, stat(2) returns numbers that differ for each
//! mount. So a file that all containers of an image share has a different number in each container. Files
//! with the same [`FileId`] have the same content, so that symbols and unwind tables are kept once. Probes are
//! attached to inodes: see `bpf::inodes`.
//!
//! A descriptor of a file on an overlay does not always lead to the same content: once a process of the container writes to
//! the file, it leads to the container's own copy (`ovl_real_file()`, fs/overlayfs/file.c). So the code that reads such a file
//! for several processes compares its [`Version`] afterwards.

use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
};

use rustix::fs::{AtFlags, StatxFlags, fstatfs, statx};

use crate::process::file_system::OVERLAY;

/// `AT_HANDLE_FID`, include/uapi/linux/fcntl.h (since Linux 6.5; overlays support it since 6.6).
const FID: libc::c_int = 0x200;
/// `MAX_HANDLE_SZ`, include/linux/exportfs.h.
const MAX_HANDLE: usize = 128;

/// Identity of a file, independent of its mount and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Device number, a hash that identifies the file below an overlay, or `u64::MAX`.
    dev: u64,
    /// Inode number, 0, or the inode's address in the kernel.
    ino: u64,
}

impl FileId {
    /// Makes the identity of a file from the address of its inode in the kernel.
    pub(crate) fn of_inode(address: u64) -> Self {
        // No device has this number.
        Self { dev: u64::MAX, ino: address }
    }

    /// Determines the identity of an open file. `mapped` is the device and inode number in /proc/PID/maps, if
    /// the file is mapped. Up to Linux 6.7, these numbers identify the file below an overlay that was mapped, but the open
    /// file may be a copy that was made later.
    pub(crate) fn of(file: &File, mapped: Option<(u64, u64)>) -> io::Result<Self> {
        let meta = file.metadata()?;
        let from_stat = Self { dev: meta.dev(), ino: meta.ino() };
        if fstatfs(file)?.f_type as u64 != OVERLAY {
            return Ok(from_stat);
        }
        let below = handle(file);
        let mapped = mapped.filter(|_| below.is_none()).unwrap_or_default();
        if below.is_none() && mapped == (0, 0) {
            return Ok(from_stat);
        }
        // A handle does not always identify the file system below the overlay, and a copy that a container has made has the
        // handle of the original. So size and times are compared, too. Files that agree in all of these values count as one
        // file.
        let mut hasher = DefaultHasher::new();
        let version = Version::of(file)?;
        (below, mapped, meta.size(), meta.mtime(), meta.mtime_nsec(), version).hash(&mut hasher);
        Ok(Self { dev: hasher.finish(), ino: 0 })
    }
}

/// Time at which the inode of a file on an overlay was created, or last changed if the file system does not record its
/// creation. It distinguishes the file from a copy that a container makes of it: the container chooses content, size and
/// modification time of the copy, but not this time. Other files have no version, because a descriptor always leads to the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Version(Option<(bool, i64, u32)>);

impl Version {
    /// Determines the version of an open file.
    ///
    /// # Errors
    /// The errors of statx(2) and statfs(2).
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        if fstatfs(file)?.f_type as u64 != OVERLAY {
            return Ok(Self(None));
        }
        let stat = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME | StatxFlags::CTIME)?;
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        let time = if has_birth { stat.stx_btime } else { stat.stx_ctime };
        Ok(Self(Some((has_birth, time.tv_sec, time.tv_nsec))))
    }

    /// Returns whether a descriptor still leads to this version.
    pub(crate) fn is_of(self, file: &File) -> bool {
        self.0.is_none() || Self::of(file).is_ok_and(|version| version == self)
    }
}

/// `struct file_handle`, include/linux/fs.h.
#[repr(C)]
struct Handle {
    size: u32,
    kind: i32,
    bytes: [u8; MAX_HANDLE],
}

/// Returns the result of name_to_handle_at(2): on an overlay, the handle of the file below (`struct ovl_fh`,
/// fs/overlayfs/overlayfs.h).
fn handle(file: &File) -> Option<Vec<u8>> {
    let mut handle = Handle { size: MAX_HANDLE as u32, kind: 0, bytes: [0; MAX_HANDLE] };
    let mut mount = 0_i32;
    // SAFETY: the kernel writes at most `size` bytes after the first two fields, and the mount ID.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH | FID,
        )
    };
    let bytes = handle.bytes.get(..handle.size as usize)?;
    (result == 0).then(|| bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_have_the_same_file_id() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "x").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        let id = |path| FileId::of(&File::open(path).unwrap(), Some((1, 2))).unwrap();
        assert_eq!(id(&a), id(&b));
        std::fs::write(folder.path().join("c"), "x").unwrap();
        assert_ne!(id(&a), id(&folder.path().join("c")));
    }
}
