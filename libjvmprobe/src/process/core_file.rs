//! Core files: memory, threads and files of a process that has ended.
//!
//! The kernel dumps memory that the process has modified. It does not dump pages that are the same as in the
//! file that they were mapped from, such as code, unless bit 2 of /proc/PID/coredump_filter is set (core(5)).
//! These pages are read from the mapped files, if the files exist on this machine and are unchanged. An ELF
//! file must have the build ID that the core file contains, and any other file must begin with the page that
//! the core file contains. If the core file contains neither a build ID nor a page of a file, any ELF file at
//! the path is used. JDK 11 and later set bit 2 themselves (`-XX:+DumpPrivateMappingsInCore`), so their class
//! data archive is in the core file.
//!
//! A core file is a file of the user, who may have got it from elsewhere, so its content and its paths are untrusted.
//! Only regular files are opened.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use procfs::process::MMapPath;

use crate::{
    Addr, Error, FileOffset, Pid, Result,
    elf::{
        ElfFile,
        core_dump::{CoreDump, CoreThread, FileMapping, TRUNCATED},
        separate_debug_file::BuildId,
    },
    names::clean,
    process::{
        LibJvm,
        code::{CodeFile, CodeMaps, copy_of_memory},
        memory::Memory,
        present::Present,
    },
};

/// Maximum number of files that are opened. A JVM maps about fifteen files, and a few more for JNI libraries.
const MAX_FILES: usize = 4096;
/// Size of a page in bytes.
const PAGE: usize = 4096;

/// A core file of a JVM.
#[derive(Debug)]
pub(crate) struct CoreFile {
    /// PID of the JVM; 0 if the core file does not contain it.
    pub(crate) pid: Pid,
    /// Command name of the JVM.
    pub(crate) comm: String,
    /// The signal that ended the JVM; `None` if it continued.
    pub(crate) signal: Option<u16>,
    /// The threads. The first one received the signal.
    pub(crate) threads: Vec<CoreThread>,
    /// The memory.
    pub(crate) memory: Memory,
    /// The libjvm.so that the JVM ran.
    pub(crate) libjvm: LibJvm,
    /// Mappings of code whose files exist on this machine.
    pub(crate) code: CodeMaps,
    /// If bytes at the end of the file are missing: the size of the file, and the size that it would have if
    /// it were complete.
    pub(crate) truncated: Option<(u64, u64)>,
}

/// Memory of a core file and of the files that the process had mapped.
#[derive(Debug)]
pub(crate) struct CoreMemory {
    dump: Arc<CoreDump>,
    /// Mappings of files that exist on this machine, sorted by address.
    mapped: Vec<(Range<Addr>, FileOffset, Arc<CodeFile>)>,
}

impl CoreMemory {
    /// Fills `to` with the memory at an address; returns `false` if a part cannot be read.
    pub(super) fn read(&self, addr: Addr, to: &mut [u8]) -> bool {
        self.dump.read(addr.0, to, |addr, to| self.read_mapped(Addr(addr), to))
    }

    /// Returns the parts of an address range that were dumped.
    pub(super) fn present(&self, range: &Range<Addr>) -> Present {
        let mut found = Present { has_missing: self.dump.is_truncated(), ..Present::default() };
        for part in self.dump.dumped(range.start.0..range.end.0) {
            found.push(part);
        }
        found
    }

    fn read_mapped(&self, addr: Addr, to: &mut [u8]) -> bool {
        let behind = self.mapped.partition_point(|(range, ..)| range.start <= addr);
        let mapping = behind.checked_sub(1).and_then(|index| self.mapped.get(index));
        let Some((range, offset, file)) = mapping else { return false };
        let inside = addr.0 - range.start.0;
        let fits = range.end.0.checked_sub(addr.0).is_some_and(|rest| to.len() as u64 <= rest);
        let offset = offset.0.checked_add(inside);
        fits && offset.is_some_and(|offset| file.read_mapped(offset, to).is_ok())
    }
}

impl CoreFile {
    /// Reads the core file `file`, which was opened at `path`. `exe` is the libjvm.so that the JVM ran, the folder of its JDK, or the `java` in that
    /// folder.
    ///
    /// # Errors
    /// [`Error::Core`].
    pub(crate) fn read(path: &Path, file: File, exe: Option<&Path>) -> Result<Self> {
        let wrong = |why: String| Error::Core { path: path.to_owned(), why };
        let dump = Arc::new(CoreDump::open(file).map_err(wrong)?);
        let truncated = dump.is_truncated().then_some((dump.size, dump.complete_size));
        let mapping = libjvm(&dump).map_err(wrong)?;
        let library = find_libjvm(&dump, mapping, exe).map_err(wrong)?;
        let files = open_files(&dump, &library);
        let with_file = |mapping: &FileMapping| {
            let file = Arc::clone(files.get(&mapping.path)?);
            Some((mapping.start..mapping.end, mapping.offset, file))
        };
        let mapped = dump.files.iter().filter_map(with_file).collect();
        let memory = Memory::of_core(CoreMemory { dump: Arc::clone(&dump), mapped });
        let libjvm = library.open().and_then(|file| LibJvm::of_core(mapping, file));
        let (pid, comm) = dump.process.clone().unwrap_or_default();
        Ok(Self {
            pid: Pid(pid),
            comm: clean::name(&comm).into_owned(),
            signal: dump.signal,
            threads: dump.threads.clone(),
            code: code(&dump, &memory, &files),
            memory,
            libjvm: libjvm.map_err(|e| wrong(e.to_string()))?,
            truncated,
        })
    }
}

/// Returns the first mapping of libjvm.so.
fn libjvm(dump: &CoreDump) -> Result<&FileMapping, String> {
    let of = |name: &str| {
        let is_it = |mapping: &&FileMapping| mapping.path.file_name().is_some_and(|n| n == name);
        dump.files.iter().find(is_it)
    };
    of("libjvm.so").ok_or_else(|| {
        let is_openj9 = |mapping: &FileMapping| {
            let name = mapping.path.file_name().unwrap_or_default();
            name.to_string_lossy().starts_with("libj9vm")
        };
        let (pid, comm) = dump.process.clone().unwrap_or_default();
        let name = format!("process {pid} ({})", clean::name(&comm));
        if dump.files.is_empty() && dump.is_truncated() {
            let size = dump.size;
            format!("the core file is truncated after {size} bytes, before its list of mapped files; {TRUNCATED}")
        } else if dump.files.is_empty() {
            "the core file does not list the files that the process had mapped; use a core file \
             that Linux or gcore has written"
                .into()
        } else if dump.files.iter().any(is_openj9) {
            format!("{name} ran Eclipse OpenJ9; only HotSpot (OpenJDK) JVMs are supported")
        } else {
            format!("{name} was not a JVM: it had not mapped libjvm.so")
        }
    })
}

/// The libjvm.so of a core file on this machine.
#[derive(Debug)]
struct Library {
    /// Its path on this machine.
    path: PathBuf,
    file: File,
    /// If the user has specified `--exe`: a folder in the file system of the process, and the folder on this
    /// machine that replaces it.
    moved: Option<(PathBuf, PathBuf)>,
}

impl Library {
    fn open(&self) -> Result<File> {
        let failed = |e| Error::io(format!("reopen {}", self.path.display()), e);
        self.file.try_clone().map_err(failed)
    }

    /// Returns the paths on this machine at which a file of the process may be.
    fn paths(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        let moved = self.moved.as_ref().and_then(|(from, to)| {
            // A path with `..` could leave the folder.
            let inside = path.strip_prefix(from).ok()?;
            let is_inside = inside.components().all(|part| part != std::path::Component::ParentDir);
            // If `to` replaces the libjvm.so itself and not a folder, `inside` is empty, and `join` would add
            // a slash.
            let is_file = inside.as_os_str().is_empty();
            is_inside.then(|| if is_file { to.clone() } else { to.join(inside) })
        });
        moved.into_iter().chain([path.to_owned()])
    }
}

/// Finds the libjvm.so of a core file.
fn find_libjvm(
    dump: &CoreDump,
    mapping: &FileMapping,
    exe: Option<&Path>,
) -> Result<Library, String> {
    let original = &mapping.path;
    let (path, moved) = match exe {
        None => (original.clone(), None),
        Some(exe) => {
            let (path, from, to) = moved(original, exe)?;
            (path, Some((from, to)))
        }
    };
    let shown = path.display();
    let remedy = "specify its libjvm.so or its JDK with --exe";
    let file = open_regular(&path).map_err(|e| match exe {
        None => format!("the JVM ran {shown}, which cannot be opened here: {e}; {remedy}"),
        Some(_) => format!("--exe: cannot open {shown}: {e}"),
    })?;
    let elf = file.try_clone().map_err(|e| Error::io("reopen a file", e)).and_then(ElfFile::open);
    let elf = elf.map_err(|e| format!("{shown}: {e}; {remedy}"))?;
    if !is_same(dump, mapping, &file) {
        let id =
            |id: Option<BuildId>| id.map_or_else(String::new, |id| format!(" (build ID {id})"));
        let (expected, found) = (id(dump.build_id(mapping.start)), id(elf.build_id()));
        let original = original.display();
        return Err(format!(
            "the JVM ran {original}{expected}, but {shown} is another build{found}; {remedy}"
        ));
    }
    Ok(Library { path, file, moved })
}

/// Finds the libjvm.so that `exe` specifies. Returns its path, and two folders: one in the file system of the
/// process, and the folder on this machine that has the same files.
fn moved(original: &Path, exe: &Path) -> Result<(PathBuf, PathBuf, PathBuf), String> {
    let real =
        exe.canonicalize().map_err(|e| format!("--exe: cannot open {}: {e}", exe.display()))?;
    let parts: Vec<_> = original.iter().collect();
    let split = |at: usize| -> (PathBuf, PathBuf) {
        (parts[..at].iter().collect(), parts[at..].iter().collect())
    };
    if real.is_file() && real.file_name().is_none_or(|name| name != "java") {
        // `same` is the number of parts at the end of both paths that have the same names. The folders are
        // the paths without these parts.
        let reversed = || parts.iter().rev();
        let same = reversed().zip(real.iter().rev()).take_while(|(a, b)| *a == b).count();
        let (from, _) = split(parts.len() - same);
        let to = real.ancestors().nth(same).unwrap_or(&real).to_owned();
        return Ok((real, from, to));
    }
    let folder = match real.is_dir() {
        true => Some(&*real),
        // The JDK of JDK/bin/java.
        false => real.parent().and_then(Path::parent),
    };
    let found = folder.into_iter().flat_map(|folder| {
        // The folder may be a copy of the process's root directory, of the JDK, or of another folder above
        // the libjvm.so. It replaces the first `at` parts of the original path. The first part is the root
        // directory.
        (1..parts.len()).map(move |at| (at, folder))
    });
    let mut found = found.map(|(at, folder)| {
        let (from, inside) = split(at);
        (folder.join(inside), from, folder.to_owned())
    });
    found.find(|(path, ..)| path.is_file()).ok_or_else(|| {
        let (exe, original) = (exe.display(), original.display());
        format!("--exe: there is no libjvm.so of the JVM's path {original} in the JDK {exe}")
    })
}

/// Opens those of the mapped files that exist on this machine and are unchanged.
fn open_files(dump: &CoreDump, library: &Library) -> HashMap<PathBuf, Arc<CodeFile>> {
    let mut tried: HashMap<&Path, Option<Arc<CodeFile>>> = HashMap::new();
    for mapping in &dump.files {
        if tried.len() >= MAX_FILES {
            break;
        }
        tried.entry(&mapping.path).or_insert_with(|| {
            let mut found =
                library.paths(&mapping.path).filter_map(|path| open_regular(&path).ok());
            let file = found.find(|file| is_same(dump, mapping, file));
            if file.is_none() {
                let path = clean::name(&mapping.path.to_string_lossy()).into_owned();
                log::debug!("{path} is not here, or is another file than the one of the core file");
            }
            file.map(|file| Arc::new(CodeFile::with_installed_symbols(file)))
        });
    }
    let found = tried.into_iter().filter_map(|(path, file)| Some((path.to_owned(), file?)));
    found.collect()
}

/// Returns whether a file is the one that the process had mapped. `first` is its mapping with the lowest address.
fn is_same(dump: &CoreDump, first: &FileMapping, file: &File) -> bool {
    let (mut here, mut there) = ([0; PAGE], [0; PAGE]);
    let Ok(len) = file.read_at(&mut here, 0) else { return false };
    let has_page = first.offset.0 == 0 && dump.read(first.start.0, &mut there, |_, _| false);
    let elf = file.try_clone().ok().and_then(|file| ElfFile::open(file).ok());
    match dump.build_id(first.start) {
        // A file that was stripped later has the same build ID.
        Some(expected) => elf.and_then(|elf| elf.build_id()) == Some(expected),
        None if has_page => len > 0 && here[..len] == there[..len],
        // The core file does not contain the first page of the file, for example because bit 4 of
        // coredump_filter was not set. So an ELF file is accepted without a comparison.
        None => elf.is_some(),
    }
}

/// Returns the mappings of code whose files exist on this machine.
fn code(dump: &CoreDump, memory: &Memory, files: &HashMap<PathBuf, Arc<CodeFile>>) -> CodeMaps {
    let is_code = |mapping: &&FileMapping| {
        dump.segment(mapping.start.0).is_some_and(|segment| segment.is_code)
    };
    let of_files = dump.files.iter().filter(is_code).filter_map(|mapping| {
        let file = Arc::clone(files.get(&mapping.path)?);
        let path = MMapPath::Path(mapping.path.clone());
        Some((mapping.start..mapping.end, mapping.offset, path, file))
    });
    let vdso = dump.vdso.and_then(|start| {
        let end = dump.segment(start.0).filter(|segment| segment.start == start.0)?.end;
        let file = copy_of_memory(memory, start..Addr(end)).ok()?;
        let file = Arc::new(CodeFile::with_installed_symbols(file));
        Some((start..Addr(end), FileOffset(0), MMapPath::Vdso, file))
    });
    CodeMaps::of(of_files.chain(vdso))
}

/// Opens a regular file. Does not open any other file, because opening a device may have an effect, and opening a pipe
/// waits for a writer.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // O_PATH finds a file without opening it.
    let found = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    match found.metadata()?.is_file() {
        true => File::open(format!("/proc/self/fd/{}", found.as_raw_fd())),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libjvm_is_found_in_a_copy_of_the_jdk_or_of_the_root_directory() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().canonicalize().unwrap();
        let original = Path::new("/usr/lib/jvm/jdk-17/lib/server/libjvm.so");
        let make = |path: &str| {
            let path = here.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let libjvm = make("copy/lib/server/libjvm.so");
        let java = make("copy/bin/java");
        let in_jdk = (libjvm.clone(), "/usr/lib/jvm/jdk-17".into(), here.join("copy"));
        for exe in [&here.join("copy"), &java, &libjvm] {
            assert_eq!(moved(original, exe), Ok(in_jdk.clone()), "{}", exe.display());
        }
        let link = here.join("java-link");
        std::os::unix::fs::symlink(&java, &link).unwrap();
        assert_eq!(moved(original, &link), Ok(in_jdk));
        let alone = make("alone/libjvm-17.so");
        assert_eq!(moved(original, &alone), Ok((alone.clone(), original.into(), alone.clone())));
        let in_root = make("container/usr/lib/jvm/jdk-17/lib/server/libjvm.so");
        let container = here.join("container");
        assert_eq!(moved(original, &container), Ok((in_root, "/".into(), container)));
        assert!(moved(original, &here.join("copy/bin")).unwrap_err().contains("no libjvm.so"));
        assert!(moved(original, &here.join("missing")).unwrap_err().contains("cannot open"));
    }

    #[test]
    fn only_paths_inside_a_moved_folder_are_replaced() {
        let library = Library {
            path: "/copy/lib/server/libjvm.so".into(),
            file: File::open("/proc/self/exe").unwrap(),
            moved: Some(("/jdk".into(), "/copy".into())),
        };
        let paths = |path: &str| library.paths(Path::new(path)).collect::<Vec<_>>();
        let all = ["/copy/lib/a.so", "/jdk/lib/a.so"].map(PathBuf::from);
        assert_eq!(paths("/jdk/lib/a.so"), all);
        assert_eq!(paths("/lib/a.so"), [PathBuf::from("/lib/a.so")]);
        assert_eq!(paths("/jdk/../a.so"), [PathBuf::from("/jdk/../a.so")]);
    }
}
