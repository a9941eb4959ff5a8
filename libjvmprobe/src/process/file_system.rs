//! Whether the content of a target's file may be read by this process.
//!
//! The server of a FUSE file system may never answer, and the kernel does not interrupt a read that waits for it
//! (`reader`). So files on FUSE are rejected, except on virtiofs, whose server is the host of a virtual machine.
//!
//! An overlay hides the file system below it, and since Linux 5.11 any user can mount one in a user namespace, with FUSE
//! below. So an overlay is accepted only if
//!
//! - it is mounted in a mount namespace that belongs to our own user namespace: then root has mounted it, or
//! - the kernel shows the file system of the file below. For this, a reader process maps the file, because the kernel maps
//!   the file below all overlays, and a BPF iterator reads that file's superblock (`bpf::inodes`). The result stays valid:
//!   if the file is copied up later, its copy is on the upper file system, and an overlay accepts no FUSE there
//!   (`ovl_dentry_remote()`, fs/overlayfs/).
//!
//! Sources: statfs(2), proc(5) (mountinfo, fdinfo), ioctl_ns(2).

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    sync::OnceLock,
};

use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::{
    Addr, Pid,
    process::reader::{self, ProcFile},
};

/// `FUSE_SUPER_MAGIC`, fs/fuse/inode.c. Virtiofs has the same number.
pub(crate) const FUSE: u64 = 0x6573_5546;
/// `OVERLAYFS_SUPER_MAGIC` and `ECRYPTFS_SUPER_MAGIC`, include/uapi/linux/magic.h. Users can mount ecryptfs above FUSE.
pub(super) const OVERLAY: u64 = 0x794c_7630;
const ECRYPTFS: u64 = 0xf15f;
/// Maximum size of the list of mounts that is read.
const MAX_MOUNTS: u64 = 4 << 20;
/// `NS_GET_USERNS`, include/uapi/linux/nsfs.h.
const GET_USER_NAMESPACE: libc::Ioctl = 0xb701;

/// A file system, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Number of its kind.
    pub(crate) magic: u64,
    /// Name of its kind.
    pub(crate) name: String,
}

/// Returns the file system of the file that a process has mapped at an address, below all overlays.
pub(crate) type Inspect = fn(Pid, Addr) -> io::Result<FileSystem>;

/// Installed by `bpf::inodes` if the kernel can answer.
static INSPECT: OnceLock<Inspect> = OnceLock::new();

/// Installs the function that finds the file system below an overlay.
pub(crate) fn set_inspect(inspect: Inspect) {
    let _ = INSPECT.set(inspect);
}

/// How the content of a file may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It may be opened.
    Direct,
    /// It may be opened if [`check_below`] accepts the file below the overlay.
    Overlay,
}

/// Decides on a file or folder that an O_PATH descriptor refers to. `magic` is the kind of its file system.
///
/// # Errors
/// An error for FUSE.
pub(super) fn access(pid: Pid, found: &OwnedFd, magic: u64) -> io::Result<Access> {
    match magic {
        FUSE if is_virtiofs(pid, found).unwrap_or_default() => Ok(Access::Direct),
        FUSE | ECRYPTFS => Err(rejected("it is on a FUSE file system")),
        OVERLAY if !is_mounted_by_root(pid, found).unwrap_or_default() => Ok(Access::Overlay),
        _ => Ok(Access::Direct),
    }
}

/// Decides on a file on an overlay, which a reader process has mapped at an address.
///
/// # Errors
/// An error if it is on FUSE, or if this cannot be determined.
pub(super) fn check_below(reader: Pid, mapped: Addr) -> io::Result<()> {
    let unknown = |why: String| {
        io::Error::other(format!(
            "it is on an overlay that was mounted in a user namespace, and whether a FUSE file system is \
             below it cannot be determined ({why})"
        ))
    };
    let Some(inspect) = INSPECT.get() else {
        return Err(unknown("this needs BPF and Linux 6.1 or later".into()));
    };
    match inspect(reader, mapped) {
        Ok(below) if below.name == "virtiofs" => Ok(()),
        // An overlay that does not map the file below it is unknown to us.
        Ok(FileSystem { magic: FUSE | ECRYPTFS | OVERLAY, .. }) => {
            Err(rejected("it is on an overlay above a FUSE file system"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(unknown(error.to_string())),
    }
}

fn rejected(where_: &str) -> io::Error {
    io::Error::other(format!("{where_}, whose server could block the tool forever"))
}

/// Returns whether a file is on virtiofs. Its protocol is FUSE, but its server is the host of the virtual machine,
/// which is trusted.
fn is_virtiofs(pid: Pid, found: &OwnedFd) -> io::Result<bool> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(found, c"", flags, StatxFlags::empty())?;
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    Ok(mounts(pid)?.lines().any(|line| {
        let kind = line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next());
        line.split(' ').nth(2) == Some(&device) && kind == Some("virtiofs")
    }))
}

/// Returns whether the mount of a file is in the mount namespace of a process, and that namespace belongs to our own user
/// namespace. Asks no file system.
fn is_mounted_by_root(pid: Pid, found: &OwnedFd) -> io::Result<bool> {
    let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", found.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).unwrap_or_default();
    let is_mounted =
        |mounts: &str| mounts.lines().any(|line| line.split(' ').next() == Some(id.trim()));
    Ok(owns_mount_namespace(pid)? && is_mounted(&mounts(pid)?))
}

fn mounts(pid: Pid) -> io::Result<String> {
    let mut bytes = Vec::new();
    ProcFile::open(pid, "mountinfo")?.take(MAX_MOUNTS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns whether the mount namespace of a process belongs to our own user namespace.
fn owns_mount_namespace(pid: Pid) -> io::Result<bool> {
    let namespace = File::open(format!("/proc/{pid}/ns/mnt"))?;
    // SAFETY: this request has no argument.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_USER_NAMESPACE) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which has no other owner.
    let owner = unsafe { File::from_raw_fd(owner) }.metadata()?;
    let ours = fs::metadata("/proc/thread-self/ns/user")?;
    Ok((owner.dev(), owner.ino()) == (ours.dev(), ours.ino()))
}

/// Checks that a folder, or a file that is not read, is not on FUSE. Folders on overlays are accepted.
///
/// # Errors
/// An error for FUSE; [`io::ErrorKind::TimedOut`] if the file system does not answer.
pub(super) fn check_not_fuse(pid: Pid, found: &OwnedFd) -> io::Result<()> {
    access(pid, found, reader::file_system(pid, found)?).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn own_mount_namespace_is_trusted_and_unlisted_mounts_are_not() {
        let own = Pid(std::process::id());
        assert!(owns_mount_namespace(own).unwrap());
        let file = tempfile::tempfile().unwrap().as_fd().try_clone_to_owned().unwrap();
        assert!(is_mounted_by_root(own, &file).unwrap());
        // The kernel's own mount of pipes is in no namespace.
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        assert!(!is_mounted_by_root(own, &pipe).unwrap());
    }

    #[test]
    fn fuse_is_rejected_below_an_overlay_unless_it_is_virtiofs() {
        fn answer(_: Pid, at: Addr) -> io::Result<FileSystem> {
            let kind = |magic, name: &str| Ok(FileSystem { magic, name: name.into() });
            match at.0 {
                1 => kind(0xef53, "ext4"),
                2 => kind(FUSE, "virtiofs"),
                3 => kind(FUSE, "fuse"),
                4 => kind(OVERLAY, "overlay"),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
        assert!(check_below(Pid(1), Addr(1)).unwrap_err().to_string().contains("Linux 6.1"));
        set_inspect(answer);
        let accepted = [1, 2, 3, 4, 5].map(|at| check_below(Pid(1), Addr(at)).is_ok());
        assert_eq!(accepted, [true, true, false, false, false]);
    }
}
