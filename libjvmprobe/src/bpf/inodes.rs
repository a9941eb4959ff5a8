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
//!
//! To attach a probe in all processes, the kernel writes a breakpoint to each mapping of the location. It charges the page
//! tables that this needs to the control group of the process that attaches: 4 kB for each mapping of 2 MB. A process could
//! map a file 65,000 times. So the mappings of a location are [counted](CountedFile) before.
//!
//! Whatever the scope of a probe, the kernel visits all mappings of its location, in all processes. Meanwhile, no process of
//! the host can fork (`dup_mmap_sem` of kernel/events/uprobes.c). So a location with [very many](MAX_VISITED) gets no probe.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr::null_mut,
    sync::OnceLock,
};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_sys::{
    BPF_TRACE_ITER, bpf_iter_create, bpf_iter_link_info, bpf_link_create, bpf_link_create_opts,
    bpf_prog_test_run_opts, bpf_test_run_opts,
};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    param::page_size,
};

use crate::{
    Error, FileOffset, Pid, Result,
    bpf::{detach, probes::Scope, session},
    process::{
        FileId, LibJvm, cgroup,
        file_system::{FileSystem, set_inspect},
    },
    sys::limited,
};

/// Generated from bpf/inodes.bpf.c.
#[allow(missing_docs, unused_imports, unused_qualifications, clippy::all, clippy::restriction)]
#[allow(clippy::nursery, clippy::pedantic)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/inodes.skel.rs"));
}

/// Maximum number of mappings of a location at which a probe is attached in all processes. Each JVM that runs a file has one.
const MAX_SHARED: u64 = 512;

/// Maximum number of mappings of a location at which a probe is attached at all. The kernel takes about a microsecond for each.
const MAX_VISITED: u64 = 1 << 14;

/// The loaded programs.
#[derive(Debug)]
struct Programs {
    mapped_files: OwnedFd,
    count_mappings: OwnedFd,
}

/// An open file whose mappings are counted before probes are attached to it in all processes. Must not be used after the
/// file was closed.
#[derive(Debug)]
pub(super) struct CountedFile {
    /// Address of the inode; `None` if the kernel does not reveal it, which needs Linux 6.1.
    inode: Option<u64>,
}

impl CountedFile {
    /// Finds the inode of a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped, or its inode is not found.
    pub(super) fn new(file: &File) -> Result<Self> {
        let inode = programs().map(|programs| inode_of(programs.mapped_files.as_fd(), file));
        let inode = inode.transpose().map_err(|e| Error::io("find the inode of a file", e))?;
        Ok(Self { inode })
    }

    /// Checks that processes have mapped a location so rarely that a probe may be attached to it. If the inode is not known, it
    /// may. If a location is mapped too often for any probe, counts this as a loss of a tenant that maps it.
    ///
    /// # Errors
    /// [`Error::MappedTooOften`]; [`Error::Crowded`] if only a probe for all processes must not be attached; or [`Error::Io`] if
    /// the program that counts fails.
    pub(super) fn check(&self, offset: FileOffset, scope: Scope) -> Result<()> {
        let (Some(inode), Some(programs)) = (self.inode, programs()) else { return Ok(()) };
        let counted = count(programs.count_mappings.as_fd(), inode, offset)
            .map_err(|e| Error::io("count the mappings of a file", e))?;
        if counted.mappings > MAX_VISITED {
            if let Some(pid) = u32::try_from(counted.pid).ok().filter(|pid| *pid != 0) {
                log::debug!("process {pid} has one of the mappings of a file with too many");
                limited::add("mappings", &cgroup::tenant_of(Pid(pid)), 1);
            }
            return Err(Error::MappedTooOften { max: MAX_VISITED });
        }
        match scope {
            Scope::AllProcesses if counted.mappings > MAX_SHARED => Err(Error::Crowded),
            _ => Ok(()),
        }
    }
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
    let found = match programs() {
        None => libjvm.id,
        Some(programs) => {
            let inode = inode_of(programs.mapped_files.as_fd(), &libjvm.file()?);
            FileId::of_inode(inode.map_err(|e| {
                Error::io(format!("find the inode of {}", libjvm.target_path.display()), e)
            })?)
        }
    };
    Ok(*libjvm.attached_as.get_or_init(|| found))
}

/// Returns the loaded programs; `None` if the kernel has no such iterator, or cannot run it for a single process, which
/// needs Linux 6.1.
fn programs() -> Option<&'static Programs> {
    static PROGRAMS: OnceLock<Option<Programs>> = OnceLock::new();
    let load = || -> Result<Programs> {
        let failed = |e| Error::io("iterate over mappings", e);
        let open = skel::InodesSkelBuilder::default().open(session::storage());
        let skel = open.and_then(OpenSkel::load).map_err(crate::bpf::load_error)?;
        let duplicate = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(failed);
        let programs = Programs {
            mapped_files: duplicate(skel.progs.mapped_files.as_fd())?,
            count_mappings: duplicate(skel.progs.count_mappings.as_fd())?,
        };
        mapped_files(programs.mapped_files.as_fd(), std::process::id()).map_err(failed)?;
        Ok(programs)
    };
    let loaded = PROGRAMS.get_or_init(|| {
        let loaded = load();
        loaded
            .inspect_err(|error| log::debug!("files are identified by their numbers: {error}"))
            .ok()
    });
    loaded.as_ref()
}

/// Loads the programs, so that files on overlays can be examined later by threads that may not load programs.
pub(super) fn prepare() {
    if programs().is_some() {
        set_inspect(|process, at| {
            let programs = programs().ok_or(io::ErrorKind::Unsupported)?;
            let mappings = mapped_files(programs.mapped_files.as_fd(), process.0)?;
            let found = mapping_at(&mappings, at.0)?;
            Ok(found.file_system)
        });
    }
}

/// Maps a file, and returns the address of its inode.
fn inode_of(program: BorrowedFd<'_>, file: &File) -> io::Result<u64> {
    // SAFETY: a new mapping, which is never accessed.
    let at = unsafe { mmap(null_mut(), 1, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }?;
    let files = mapped_files(program, std::process::id());
    // SAFETY: nothing refers to the mapping.
    unsafe { munmap(at, 1) }?;
    Ok(mapping_at(&files?, at as u64)?.inode)
}

/// Argument and result of the program `count_mappings`: `struct count` in bpf/inodes.bpf.c.
#[repr(C)]
struct Count {
    inode: u64,
    offset: u64,
    page_size: u64,
    max: u64,
    mappings: u64,
    pid: u64,
}

/// Counts the mappings of a location in an open file, up to one more than may be [visited](MAX_VISITED).
fn count(program: BorrowedFd<'_>, inode: u64, offset: FileOffset) -> io::Result<Count> {
    let (page_size, max) = (page_size() as u64, MAX_VISITED + 1);
    let mut count = Count { inode, offset: offset.0, page_size, max, mappings: 0, pid: 0 };
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        ctx_in: (&raw mut count).cast(),
        ctx_size_in: size_of::<Count>() as u32,
        ..Default::default()
    };
    // The kernel writes the results to the argument (bpf_prog_test_run_syscall() of net/bpf/test_run.c).
    // SAFETY: the options, and what they point to, live longer than the call.
    let error = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    match error {
        0 => Ok(count),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
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
    let _guard = detach::begin_attaching();
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
    use rustix::mm::{Advice, madvise};

    use super::*;

    #[test]
    fn hard_links_have_one_inode_and_copies_have_others() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let programs = programs().expect("a kernel with BTF, Linux 6.1 or later");
        let folder = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| folder.path().join(name));
        std::fs::write(&a, "x").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        std::fs::copy(&a, &c).unwrap();
        let inode =
            |path| inode_of(programs.mapped_files.as_fd(), &File::open(path).unwrap()).unwrap();
        // The file stays open, so that its inode is not replaced by another one at the same address.
        let _open = File::open(&a).unwrap();
        assert_eq!(inode(&a), inode(&b));
        assert_ne!(inode(&a), inode(&c));
    }

    #[test]
    fn mappings_of_a_location_are_counted_and_limited() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let programs = programs().expect("a kernel with BTF, Linux 6.1 or later");
        let (page, file) = (page_size(), tempfile::tempfile().unwrap());
        file.set_len(8 * page as u64).unwrap();
        let inode = inode_of(programs.mapped_files.as_fd(), &file).unwrap();
        let at = |number: usize| FileOffset((number * page) as u64 + 1);
        let count = |n| count(programs.count_mappings.as_fd(), inode, at(n)).unwrap();
        let counts = || [0, 1, 2, 7].map(|n| count(n).mappings);
        assert_eq!(counts(), [0; 4]);
        let map = |pages: usize, from: usize| {
            let (size, protection, from) = (pages * page, ProtFlags::READ, (from * page) as u64);
            // SAFETY: a new mapping, which is never accessed.
            let at = unsafe { mmap(null_mut(), size, protection, MapFlags::PRIVATE, &file, from) };
            let at = at.unwrap();
            // Other tests may fork this process.
            // SAFETY: the mapping is never accessed.
            unsafe { madvise(at, size, Advice::LinuxDontFork) }.unwrap();
            (at, size)
        };
        // SAFETY: nothing refers to the mapping.
        let unmap = |(at, size)| unsafe { munmap(at, size) }.unwrap();
        let mut maps = vec![map(8, 0), map(1, 1), map(2, 1), map(3, 0)];
        assert_eq!(counts(), [2, 4, 3, 1]);
        assert_eq!(count(7).pid, u64::from(std::process::id()));
        let counted = CountedFile::new(&file).unwrap();
        let check = |number, scope| counted.check(at(number), scope);
        let (all, one) = (Scope::AllProcesses, Scope::Process(Pid(1)));
        assert!(check(7, all).is_ok());
        // The kernel does not merge mappings of the same page.
        maps.extend((1..MAX_SHARED).map(|_| map(1, 7)));
        assert_eq!(counts(), [2, 4, 3, MAX_SHARED]);
        assert!(check(0, all).is_ok() && check(7, all).is_ok());
        let last = map(1, 7);
        assert!(matches!(check(7, all), Err(Error::Crowded)));
        assert!(check(7, one).is_ok() && check(0, all).is_ok());
        unmap(last);
        assert!(check(7, all).is_ok());
        maps.extend((1..MAX_VISITED).map(|_| map(1, 6)));
        assert_eq!(count(6).mappings, MAX_VISITED);
        assert!(check(6, one).is_ok());
        maps.push(map(1, 6));
        for scope in [one, all] {
            assert!(matches!(check(6, scope), Err(Error::MappedTooOften { .. })));
        }
        // Mappings of other pages are not visited.
        assert_eq!(counts(), [2, 4, 3, MAX_SHARED]);
        maps.into_iter().for_each(unmap);
        assert_eq!(counts(), [0; 4]);
    }
}
