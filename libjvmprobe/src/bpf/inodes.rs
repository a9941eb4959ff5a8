//! The inode that the kernel attaches probes to when it is given a file.
//!
//! Attachments are shared by all processes that map the same inode. Device and inode number do not identify it on
//! overlays: there, stat(2) and, since Linux 6.8, `/proc/PID/maps` have other numbers for each mount, and the file below
//! has others again. Neither does the file's [`FileId`], which is the same for copies of one image that are mounted
//! separately. So this process maps the file, and an iterator returns the address of the inode. The address is unique as
//! long as the file is open or has probes. No mapping of a target is examined, because a target could delay that.
//!
//! The iterator also returns the file system of the inode, which shows whether FUSE is below an overlay
//! (`process::file_system`).

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    ptr::null_mut,
    sync::OnceLock,
};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_sys::{
    BPF_TRACE_ITER, bpf_iter_create, bpf_iter_link_info, bpf_link_create, bpf_link_create_opts,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::{
    Error, Result,
    bpf::{detach, session},
    process::{
        FileId, LibJvm,
        file_system::{FileSystem, set_inspect},
    },
};

/// Generated from bpf/inodes.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/inodes.skel.rs"));
}

/// Returns the identity of the inode of a libjvm.so for attachments: [`FileId::of_inode`], or the file's [`FileId`] if the
/// kernel does not reveal the inode.
///
/// # Errors
/// [`Error::Io`] if the file cannot be mapped or was replaced, or the iterator cannot be read.
pub(crate) fn attached_file(libjvm: &LibJvm) -> Result<FileId> {
    libjvm.check_is_same()?;
    if let Some(known) = libjvm.attached_as.get() {
        return Ok(*known);
    }
    let found = match iterator() {
        None => libjvm.id,
        Some(iterator) => {
            let inode = inode_of(iterator, &libjvm.open_path());
            FileId::of_inode(inode.map_err(|e| {
                Error::io(format!("find the inode of {}", libjvm.target_path.display()), e)
            })?)
        }
    };
    Ok(*libjvm.attached_as.get_or_init(|| found))
}

/// Returns the loaded program; `None` if the kernel has no such iterator, or cannot run it for a single process, which needs
/// Linux 6.1.
fn iterator() -> Option<BorrowedFd<'static>> {
    static ITERATOR: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let load = || -> Result<OwnedFd> {
        let failed = |e| Error::io("iterate over mappings", e);
        let open = skel::InodesSkelBuilder::default().open(session::storage());
        let skel = open.and_then(OpenSkel::load).map_err(crate::bpf::load_error)?;
        let program = skel.progs.mapped_files.as_fd().try_clone_to_owned().map_err(failed)?;
        mapped_files(program.as_fd(), std::process::id()).map_err(failed)?;
        Ok(program)
    };
    let loaded = ITERATOR.get_or_init(|| {
        let loaded = load();
        loaded
            .inspect_err(|error| log::debug!("files are identified by their numbers: {error}"))
            .ok()
    });
    loaded.as_ref().map(AsFd::as_fd)
}

/// Loads the iterator, so that files on overlays can be examined later by threads that may not load programs.
pub(super) fn prepare() {
    if iterator().is_some() {
        set_inspect(|process, at| {
            let program = iterator().ok_or(io::ErrorKind::Unsupported)?;
            let found = mapping_at(&mapped_files(program, process.0)?, at.0)?;
            Ok(found.file_system)
        });
    }
}

/// Maps a file, and returns the address of its inode.
fn inode_of(program: BorrowedFd<'_>, path: &Path) -> io::Result<u64> {
    let file = File::open(path)?;
    // SAFETY: a new mapping, which is never accessed.
    let at = unsafe { mmap(null_mut(), 1, ProtFlags::READ, MapFlags::PRIVATE, &file, 0) }?;
    let files = mapped_files(program, std::process::id());
    // SAFETY: nothing refers to the mapping.
    unsafe { munmap(at, 1) }?;
    Ok(mapping_at(&files?, at as u64)?.inode)
}

/// A mapping of a file, as the iterator writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    inode: u64,
    file_system: FileSystem,
}

/// Size of `struct mapping` in bpf/inodes.bpf.c: three words and a name.
const MAPPING_SIZE: usize = 40;

impl Mapping {
    fn decode(bytes: &[u8; MAPPING_SIZE]) -> Self {
        let (words, name) = bytes.split_at(24);
        let word =
            |i: usize| words.as_chunks().0.get(i).map_or(0, |&word| u64::from_ne_bytes(word));
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Self { start: word(0), inode: word(1), file_system: FileSystem { magic: word(2), name } }
    }
}

/// Finds the mapping that begins at an address.
fn mapping_at(mappings: &[u8], at: u64) -> io::Result<Mapping> {
    let mut all = mappings.as_chunks().0.iter().map(Mapping::decode);
    all.find(|mapping| mapping.start == at).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Runs the iterator for a process. Source: `bpf_iter_task_attach()` and `task_vma` of kernel/bpf/task_iter.c.
fn mapped_files(program: BorrowedFd<'_>, pid: u32) -> io::Result<Vec<u8>> {
    // The end of the process releases all links, unless one is just being made or released.
    let _guard = detach::lock_attaching();
    let mut which = bpf_iter_link_info::default();
    which.task.pid = pid;
    let options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        iter_info: &raw mut which,
        iter_info_len: size_of::<bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    // SAFETY: the options, and what they point to, live longer than the call.
    let link =
        unsafe { bpf_link_create(program.as_raw_fd(), 0, BPF_TRACE_ITER, &raw const options) };
    let link = owned(link)?;
    // SAFETY: the call only takes a descriptor.
    let iterator = owned(unsafe { bpf_iter_create(link.as_raw_fd()) })?;
    let mut files = Vec::new();
    File::from(iterator).read_to_end(&mut files)?;
    Ok(files)
}

/// Takes over a new descriptor that libbpf has returned, or the negative error number in its place.
fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the descriptor is new, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_have_one_inode_and_copies_have_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let program = iterator().expect("a kernel with BTF, Linux 6.1 or later");
        let folder = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&a, "x").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        std::fs::copy(&a, &c).unwrap();
        let inode = |path| inode_of(program, path).unwrap();
        // The file stays open, so that its inode is not replaced by another one at the same address.
        let _open = File::open(&a).unwrap();
        assert_eq!(inode(&a), inode(&b));
        assert_ne!(inode(&a), inode(&c));
        assert!(inode_of(program, &folder.path().join("none")).is_err());
    }
}
