//! The inode that the kernel attaches probes to, for a file that a process has mapped.
//!
//! Attachments are shared by all processes that map the same inode. Device and inode number do not identify it on
//! overlays: there, stat(2) and, since Linux 6.8, `/proc/PID/maps` have other numbers for each mount, and the file below
//! has others again. Neither does [`FileId`], which is the same for copies of one image that are mounted separately. So an
//! iterator returns the address of the inode itself, which is unique as long as the file is mapped or has probes.

use std::{
    fs::File,
    io::Read,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::OnceLock,
};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_sys::{
    BPF_TRACE_ITER, bpf_iter_create, bpf_iter_link_info, bpf_link_create, bpf_link_create_opts,
};

use crate::{
    Addr, Error, Pid, Result,
    bpf::session,
    process::{FileId, Target},
};

/// Generated from bpf/inodes.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/inodes.skel.rs"));
}

/// Maximum size of the list of a process's mapped files: those of the default limit of mappings, vm.max_map_count.
const MAX_LIST: u64 = 65_536 * 24;

/// Returns the identity of the inode of a JVM's libjvm.so for attachments: [`FileId::of_inode`], or the file's
/// [`FileId`] if the kernel does not reveal the inode.
///
/// # Errors
/// [`Error::NoSuchProcess`] if the process has ended or does not map the file any more.
pub(crate) fn attached_file(target: &Target) -> Result<FileId> {
    let libjvm = &target.libjvm;
    if let Some(known) = libjvm.attached_as.get() {
        return Ok(*known);
    }
    let found = match iterator() {
        None => libjvm.id,
        Some(iterator) => {
            let pid = target.pid();
            let inode = inode_at(iterator, pid, libjvm.map_start);
            FileId::of_inode(inode.ok_or(Error::NoSuchProcess { pid })?)
        }
    };
    Ok(*libjvm.attached_as.get_or_init(|| found))
}

/// Returns the loaded program; `None` if the kernel has no such iterator, or refuses to run it for one process, which needs
/// Linux 6.1.
fn iterator() -> Option<BorrowedFd<'static>> {
    static ITERATOR: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let loaded = ITERATOR.get_or_init(|| {
        let open = skel::InodesSkelBuilder::default().open(session::storage()).ok()?;
        let skel = open.load().ok()?;
        let program = skel.progs.mapped_files.as_fd().try_clone_to_owned().ok()?;
        // This function is in a mapped file, too.
        let own = Addr(attached_file as *const () as u64);
        inode_at(program.as_fd(), Pid(std::process::id()), own)?;
        Some(program)
    });
    loaded.as_ref().map(AsFd::as_fd)
}

/// Returns the address of the inode that is mapped at an address; `None` if the process does not exist or no file is mapped
/// there.
fn inode_at(program: BorrowedFd<'_>, pid: Pid, at: Addr) -> Option<u64> {
    let mut files = Vec::new();
    mapped_files(program, pid)?.take(MAX_LIST).read_to_end(&mut files).ok()?;
    let words = files.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let words: Vec<u64> = words.collect();
    let mapping = words.as_chunks().0.iter().find(|[start, end, _]| (*start..*end).contains(&at.0));
    mapping.map(|[_, _, inode]| *inode)
}

/// Starts the iterator for a process. Source: `bpf_iter_task_attach()` and `task_vma` of kernel/bpf/task_iter.c.
fn mapped_files(program: BorrowedFd<'_>, pid: Pid) -> Option<File> {
    let mut which = bpf_iter_link_info::default();
    which.task.pid = pid.0;
    let mut options = bpf_link_create_opts {
        sz: size_of::<bpf_link_create_opts>() as _,
        iter_info: &raw mut which,
        iter_info_len: size_of::<bpf_iter_link_info>() as u32,
        ..Default::default()
    };
    let options = &raw mut options;
    // SAFETY: the options, and what they point to, live longer than the call.
    let link = unsafe { bpf_link_create(program.as_raw_fd(), 0, BPF_TRACE_ITER, options) };
    let link = owned(link)?;
    // SAFETY: the call only takes a descriptor.
    let iterator = unsafe { bpf_iter_create(link.as_raw_fd()) };
    owned(iterator).map(File::from)
}

/// Takes over a new descriptor that libbpf has returned; `None` for an error.
fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the descriptor is new, so it has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_one_file_have_one_inode() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let own = Pid(std::process::id());
        let program = iterator().expect("a kernel with BTF, and Linux 6.1 or later");
        let of_code = inode_at(program, own, Addr(attached_file as *const () as u64));
        static CONSTANT: [u8; 4096] = [1; 4096];
        assert!(of_code.is_some_and(|inode| inode > 0));
        assert_eq!(inode_at(program, own, Addr(CONSTANT.as_ptr() as u64)), of_code);
        assert_eq!(inode_at(program, own, Addr(8)), None);
        assert_eq!(inode_at(program, Pid(4_194_305), Addr(8)), None);
    }
}
