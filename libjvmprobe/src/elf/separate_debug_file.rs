//! Symbols of a stripped file, which has no `.symtab` itself.
//!
//! Symbols come from a file named by the user, from the folder of a distribution's debug packages, or from
//! compressed symbols in the file itself. Files that belong together have the same build ID, which is in a
//! note. Sources: "Debugging Information in Separate Files" and "MiniDebugInfo" in gdb's manual; `--build-id`
//! in ld's manual.
//!
//! Breakpoints are set at function addresses from such a file. An address is used only if the running file
//! itself has a function that begins there: see `functions`. The owner of a process controls the debug files
//! in its root directory, but processes of other owners may run the same file: see [`ElfFile::symbols_in`].

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    ops::Deref,
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
};

use lzma_rust2::XzReader;
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{
    Error, Result,
    elf::{ElfFile, content},
    sys::{
        budget::{Reservation, Share},
        limited,
    },
};

/// Folder in which debug packages install their files.
const FOLDER: &str = "/usr/lib/debug/.build-id";
/// Type and name of the build ID note (elf.h).
const NT_GNU_BUILD_ID: u32 = 3;
const GNU: &[u8; 4] = b"GNU\0";
/// Accepted sizes of a build ID in bytes. A build ID is a hash of the file or a value chosen by its author.
const ID_BYTES: std::ops::RangeInclusive<usize> = 2..=64;
/// Maximum size of decompressed symbols in bytes, and maximum memory of the decoder in KiB: `xz -7`. The symbols of a
/// libjvm.so take 5 MB, and distributions compress them with `xz -6`.
const MAX_UNPACKED: u64 = 32 << 20;
const MAX_MEMORY_KIB: u32 = 20 << 10;

/// A build ID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BuildId(Vec<u8>);

impl BuildId {
    /// Returns the build ID in a list of notes.
    pub(crate) fn of_notes(mut notes: &[u8]) -> Option<Self> {
        loop {
            // Elf64_Nhdr: n_namesz, n_descsz, n_type; then the name and the build ID.
            let word = |at: usize| Some(u32::from_ne_bytes(*notes.get(at..)?.first_chunk()?));
            let size = |at| usize::try_from(word(at)?).ok()?.checked_next_multiple_of(4);
            let content = size(0)?.checked_add(12)?;
            if word(8)? == NT_GNU_BUILD_ID && notes.get(12..content)? == GNU {
                let end = content.checked_add(usize::try_from(word(4)?).ok()?)?;
                let id = notes.get(content..end)?;
                return ID_BYTES.contains(&id.len()).then(|| Self(id.to_vec()));
            }
            notes = notes.get(content.checked_add(size(4)?)?..)?;
        }
    }
}

impl std::fmt::Display for BuildId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A file named by the user.
struct Named {
    path: PathBuf,
    id: BuildId,
    file: File,
}

fn named() -> &'static OnceLock<Vec<Named>> {
    static NAMED: OnceLock<Vec<Named>> = OnceLock::new();
    &NAMED
}

/// Sets the files named by the user, whose symbols are used for files with the same build ID. Must be called
/// only once.
///
/// # Errors
/// [`Error::Symbols`] if a file is not an ELF file, or has no symbols or no build ID.
pub(crate) fn set_symbol_files(paths: &[PathBuf]) -> Result<()> {
    let open = |path: &PathBuf| {
        let unfit = |why: String| Error::Symbols { path: path.clone(), why };
        let file = File::open(path).map_err(|e| unfit(e.to_string()))?;
        let copy = file.try_clone().map_err(|e| unfit(e.to_string()))?;
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        if !is_file {
            return Err(unfit("it is not a regular file".into()));
        }
        let elf = ElfFile::open(file).map_err(|e| unfit(e.to_string()))?;
        if !elf.has_symbols() {
            return Err(unfit("it has no symbol table".into()));
        }
        let id = elf.build_id().ok_or_else(|| unfit("it has no build ID".into()))?;
        Ok(Named { path: path.clone(), id, file: copy })
    };
    let files = paths.iter().map(open).collect::<Result<_>>()?;
    // Fails only if the files are set already, which this function's contract excludes.
    let _ = named().set(files);
    Ok(())
}

impl ElfFile {
    /// Returns this file with the symbols of another one.
    pub(crate) fn with_symbols_of(mut self, separate_debug_file: Option<&File>) -> Self {
        let file = separate_debug_file.and_then(|file| file.try_clone().ok());
        let open = |file| Self::open_for(file, &self.share).ok();
        self.separate_debug_file = file.and_then(open).map(Box::new);
        self
    }

    /// Returns whether the file itself has a symbol table with private functions (`.symtab`).
    pub(crate) fn has_symbols(&self) -> bool {
        self.section(".symtab").is_some_and(|table| table.has_data())
    }

    /// Returns the build ID.
    pub(crate) fn build_id(&self) -> Option<BuildId> {
        BuildId::of_notes(&self.section(".note.gnu.build-id")?.short_data().ok()?)
    }

    /// Opens a file with the symbols that this file lacks, from a source that the owners of the target
    /// processes do not control: a file named by the user of this tool, this machine's debug files, or the
    /// file's own `.gnu_debugdata`.
    ///
    /// # Errors
    /// [`Error::Io`] of the kind `OutOfMemory` if the tenant's share of memory is used up.
    pub(crate) fn trusted_symbols(&self, target_path: &Path) -> Result<Option<SymbolFile>> {
        report_unused(target_path, self.build_id().as_ref());
        if self.has_symbols() {
            return Ok(None);
        }
        match self.installed_symbols() {
            Some(file) => Ok(Some(file.into())),
            None => self.unpacked(),
        }
    }

    /// Opens a file with the symbols of this build: one that the user has named, or one from a debug package
    /// of this machine.
    pub(crate) fn installed_symbols(&self) -> Option<File> {
        let id = self.build_id()?;
        let is_its = |named: &&Named| named.id == id;
        let named = named().get().and_then(|files| files.iter().find(is_its));
        named
            .and_then(|named| named.file.try_clone().ok())
            // No target controls this file, so a lack of memory of one tenant must not hide it from others.
            .or_else(|| checked(&id, &Share::default(), File::open(path(&id)?)))
    }

    /// Returns this file with the symbols that the user has named or that a debug package of this machine has, if there are any.
    pub fn with_installed_symbols(self) -> Self {
        let file = self.installed_symbols();
        self.with_symbols_of(file.as_ref())
    }

    /// Opens the debug file of this build in another root directory. `open` opens a path in that directory.
    ///
    /// The owner of that root directory controls the content of the file. The symbols may be used to name
    /// frames of processes that have that root directory. An attachment to an address from this file must be
    /// limited to the process for which the file was opened, because processes of other owners may run the
    /// same library.
    pub(crate) fn symbols_in(&self, open: impl Fn(&Path) -> io::Result<File>) -> Option<File> {
        let id = self.build_id()?;
        checked(&id, self.share(), open(&path(&id)?))
    }

    /// Returns whether the file has compressed symbols.
    pub(crate) fn has_packed_symbols(&self) -> bool {
        self.section(".gnu_debugdata").is_some()
    }

    /// Decompresses the symbols in `.gnu_debugdata`; `None` if there are none or they are malformed.
    ///
    /// # Errors
    /// [`Error::Io`] of the kind `OutOfMemory` if the tenant's share of memory is used up.
    pub(crate) fn unpacked(&self) -> Result<Option<SymbolFile>> {
        let Some(section) = self.section(".gnu_debugdata") else { return Ok(None) };
        let packed = match section.data() {
            Ok(packed) => packed,
            Err(error) if is_out_of_memory(&error) => return Err(error),
            Err(_) => return Ok(None),
        };
        let decoder = content::reserve(self.share(), (MAX_MEMORY_KIB as usize) << 10)?;
        let Ok(file) = memfd_create("jvmprobe-symbols", MemfdFlags::CLOEXEC) else {
            return Ok(None);
        };
        let reader = XzReader::new_mem_limit(&packed[..], false, MAX_MEMORY_KIB);
        let reserved = Reservation::within(self.share());
        let mut unpacked = SymbolFile { file: file.into(), reserved, is_refused: false };
        let copied = io::copy(&mut reader.take(MAX_UNPACKED + 1), &mut unpacked);
        drop((decoder, packed));
        match copied {
            Ok(0..=MAX_UNPACKED) => {}
            // The decoder reports a lack of memory, too: if the data requires more than its limit.
            Err(error) if unpacked.is_refused => {
                limited::add("files", self.share().tenant(), 1);
                return Err(Error::io("decompress symbols", error));
            }
            _ => return Ok(None),
        }
        let Ok(copy) = unpacked.file.try_clone() else { return Ok(None) };
        let elf = Self::open_for(copy, self.share());
        Ok(elf.is_ok_and(|elf| elf.has_symbols()).then_some(unpacked))
    }
}

/// Returns whether a tenant's share of memory did not suffice, so that a later attempt may succeed.
pub(crate) fn is_out_of_memory(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::OutOfMemory)
}

/// A file with symbols. The memory of a file that exists only in memory is reserved.
#[derive(Debug)]
pub(crate) struct SymbolFile {
    file: File,
    reserved: Reservation,
    /// Whether the tenant's share of memory did not suffice.
    is_refused: bool,
}

impl SymbolFile {
    /// Returns the file, and its memory, which must be held while the file is open.
    pub(crate) fn into_parts(self) -> (File, Reservation) {
        (self.file, self.reserved)
    }
}

impl From<File> for SymbolFile {
    fn from(file: File) -> Self {
        Self { file, reserved: Reservation::default(), is_refused: false }
    }
}

impl Deref for SymbolFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl io::Write for SymbolFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.is_refused = !self.reserved.reserve(bytes.len());
        if self.is_refused {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A link to a file with debug information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DebugLink {
    /// File name, or the path if the link has one.
    pub(crate) name: PathBuf,
    check: Check,
}

/// Property that identifies the linked file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Check {
    /// Checksum of the complete file.
    Crc(u32),
    /// Build ID.
    Id(BuildId),
}

impl DebugLink {
    /// Returns whether a file is the linked one. For a checksum, reads the complete file.
    pub(crate) fn matches(&self, elf: &ElfFile) -> bool {
        match &self.check {
            Check::Id(id) => elf.build_id().as_ref() == Some(id),
            Check::Crc(expected) => crc(elf.file()).is_ok_and(|crc| crc == *expected),
        }
    }
}

fn crc(file: &File) -> io::Result<u32> {
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match std::os::unix::fs::FileExt::read_at(file, &mut buffer, at)? {
            0 => return Ok(crc.sum()),
            bytes => {
                crc.update(&buffer[..bytes]);
                at += bytes as u64;
            }
        }
    }
}

/// Links to debug files. Sources: "Debugging Information in Separate Files" in gdb's manual; dwz(1).
impl ElfFile {
    /// Returns the link to the file with debug information that was stripped from this one:
    /// `.gnu_debuglink`.
    pub(crate) fn debug_link(&self) -> Option<DebugLink> {
        let bytes = self.section(".gnu_debuglink")?.short_data().ok()?;
        let name = file_name(&bytes)?;
        // Only a name without a folder is accepted; the caller searches for it in the folders that belong to
        // this file.
        Path::new(name).file_name().filter(|last| *last == name)?;
        let at = (name.len() + 1).next_multiple_of(4);
        let crc = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(DebugLink { name: name.into(), check: Check::Crc(u32::from_ne_bytes(crc)) })
    }

    /// Returns the link to the file with debug information shared by several files: `.gnu_debugaltlink`.
    pub(crate) fn debug_alt_link(&self) -> Option<DebugLink> {
        let bytes = self.section(".gnu_debugaltlink")?.short_data().ok()?;
        let name = file_name(&bytes)?;
        let id = bytes.get(name.len() + 1..).filter(|id| ID_BYTES.contains(&id.len()))?;
        Some(DebugLink { name: name.into(), check: Check::Id(BuildId(id.to_vec())) })
    }
}

/// Returns the name at the beginning of a link.
fn file_name(link: &[u8]) -> Option<&OsStr> {
    let end = link.iter().position(|&byte| byte == 0).filter(|end| (1..4096).contains(end))?;
    Some(std::os::unix::ffi::OsStrExt::from_bytes(&link[..end]))
}

/// Returns a file if it has symbols and this build ID.
fn checked(id: &BuildId, share: &Share, file: io::Result<File>) -> Option<File> {
    let file = file.ok()?;
    let elf = ElfFile::open_for(file.try_clone().ok()?, share).ok()?;
    (elf.has_symbols() && elf.build_id().as_ref() == Some(id)).then_some(file)
}

/// Warns, once per build of a target, about all files named by the user if none of them belongs to that
/// build.
fn report_unused(target_path: &Path, id: Option<&BuildId>) {
    static REPORTED: Mutex<Vec<Option<BuildId>>> = Mutex::new(Vec::new());
    const MAX_REPORTED: usize = 64;
    let Some(files) = named().get().filter(|files| !files.is_empty()) else { return };
    if files.iter().any(|file| Some(&file.id) == id) {
        return;
    }
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    let id = id.cloned();
    if reported.contains(&id) || reported.len() >= MAX_REPORTED {
        return;
    }
    let its = id.as_ref().map_or_else(|| "none".into(), ToString::to_string);
    reported.push(id);
    for Named { path, id, .. } in files {
        log::warn!(
            "ignoring --symbols-from {}: it has build ID {id}, but {} has build ID {its}",
            path.display(),
            target_path.display()
        );
    }
}

/// Returns the path of a build's debug file.
fn path(id: &BuildId) -> Option<PathBuf> {
    let hex = id.to_string();
    let (folder, name) = hex.split_at_checked(2)?;
    Some(Path::new(FOLDER).join(folder).join(format!("{name}.debug")))
}

/// Returns the name of the Debian or Ubuntu package with the symbols of a JDK. `None` unless the path of its
/// libjvm.so has a folder as in these distributions: `/usr/lib/jvm/java-17-openjdk-amd64`.
pub(crate) fn debug_package(libjvm: &Path) -> Option<String> {
    let number = |folder: &OsStr| {
        let rest = folder.to_str()?.strip_prefix("java-")?;
        let (number, _machine) = rest.split_once("-openjdk-")?;
        number.parse::<u32>().ok()
    };
    let found = libjvm.iter().find_map(number)?;
    Some(format!("openjdk-{found}-dbg"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::{elf::testing::Library, sys::budget::Budget};

    const ASSEMBLY: &str = "
        .text
        .type hidden, @function
        .cfi_startproc
        nop
        .cfi_endproc
        hidden: .cfi_startproc
        nop
        nop
        .cfi_endproc
        .size hidden, 2";

    /// Returns a stripped library. `keep` can copy the symbols before they are removed.
    fn stripped(flags: &[&str], keep: &dyn Fn(&Library)) -> Library {
        let library = Library::build(ASSEMBLY, flags);
        keep(&library);
        let status = Command::new("strip").arg(library.path()).status().unwrap();
        assert!(status.success());
        library
    }

    fn run(command: &mut Command) {
        assert!(command.status().unwrap().success(), "{command:?}");
    }

    #[test]
    fn symbols_are_found_by_the_build_id() {
        let separate_debug_file = |library: &Library| library.dir().join("apart");
        let library = stripped(&["-Wl,--build-id"], &|library: &Library| {
            std::fs::copy(library.path(), separate_debug_file(library)).unwrap();
        });
        let elf = library.elf();
        assert!(!elf.has_symbols() && elf.symbols().unwrap().find("hidden").is_none());
        let id = elf.build_id().unwrap();
        let hex = id.to_string();
        let find = |open: &dyn Fn(&Path) -> io::Result<File>| elf.symbols_in(open);
        let file = find(&|path| {
            let wanted = format!("{FOLDER}/{}/{}.debug", &hex[..2], &hex[2..]);
            assert_eq!(path, Path::new(&wanted));
            File::open(separate_debug_file(&library))
        });
        let with = library.elf().with_symbols_of(file.as_ref());
        let symbol = with.symbols().unwrap().find("hidden").unwrap();
        assert!(with.begins_function(symbol.value) && !with.is_stripped().unwrap());
        // A file of another build, one without symbols, and a missing one.
        let other = Library::build(".text\nhidden: nop\nnop", &["-Wl,--build-id"]);
        assert!(find(&|_| File::open(other.path())).is_none());
        assert!(find(&|_| File::open(library.path())).is_none());
        assert!(find(&|_| Err(io::ErrorKind::NotFound.into())).is_none());
    }

    #[test]
    fn compressed_symbols_are_decompressed_within_limits() {
        let library = stripped(&["-Wl,--build-id=none"], &|library: &Library| {
            let packed = library.dir().join("symbols");
            std::fs::copy(library.path(), &packed).unwrap();
            run(Command::new("xz").arg("--keep").arg(&packed));
        });
        assert!(library.elf().trusted_symbols(&library.path()).unwrap().is_none());
        let add = |content: &Path| {
            let mut section = std::ffi::OsString::from(".gnu_debugdata=");
            section.push(content);
            let path = library.path();
            let objcopy = || Command::new("objcopy");
            run(objcopy().args(["--remove-section", ".gnu_debugdata"]).arg(&path));
            run(objcopy().arg("--add-section").arg(section).arg(&path));
            library.elf().trusted_symbols(&library.path()).unwrap()
        };
        let packed = library.dir().join("symbols.xz");
        let file = add(&packed).expect("symbols");
        let with = library.elf().with_symbols_of(Some(&file));
        assert!(with.symbols().unwrap().find("hidden").is_some());
        // The memory of the symbols is reserved.
        let budget = Budget::of(100 << 20);
        let open =
            || ElfFile::open_for(File::open(library.path()).unwrap(), &budget.share(&"t".into()));
        let elf = open().unwrap();
        let headers = budget.held();
        let file = elf.unpacked().unwrap().expect("symbols");
        assert_eq!(
            budget.held() - headers,
            usize::try_from(file.metadata().unwrap().len()).unwrap()
        );
        let mut other = Reservation::within(elf.share());
        assert!(other.reserve(49 << 20));
        assert!(is_out_of_memory(&elf.unpacked().unwrap_err()));
        drop((file, elf, other));
        assert_eq!(budget.held(), 0);
        // Truncated, modified, and different data.
        let bytes = std::fs::read(&packed).unwrap();
        let bad = library.dir().join("bad");
        for bad_bytes in [&bytes[..bytes.len() / 2], &bytes[40..], b"no xz"] {
            std::fs::write(&bad, bad_bytes).unwrap();
            assert!(add(&bad).is_none());
        }
        // Too large after decompression.
        let large = library.dir().join("large");
        File::create(&large).unwrap().set_len(MAX_UNPACKED + (1 << 20)).unwrap();
        run(Command::new("xz").arg("-1").arg(&large));
        assert!(add(&library.dir().join("large.xz")).is_none());
        // Requires more memory than the limit.
        std::fs::copy(library.dir().join("symbols"), library.dir().join("hungry")).unwrap();
        let hungry = library.dir().join("hungry");
        run(Command::new("xz").args(["--lzma2=dict=128MiB", "--keep"]).arg(&hungry));
        assert!(add(&library.dir().join("hungry.xz")).is_none());
    }

    #[test]
    fn named_file_without_symbols_or_build_id_is_rejected() {
        let why = |path: &Path| match set_symbol_files(&[path.to_owned()]) {
            Err(Error::Symbols { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        let stripped = stripped(&["-Wl,--build-id"], &|_: &Library| {});
        assert!(why(&stripped.path()).contains("no symbol table"));
        let without = Library::build(ASSEMBLY, &["-Wl,--build-id=none"]);
        assert!(why(&without.path()).contains("no build ID"));
        assert!(why(Path::new("/proc/self/status")).contains("malformed ELF"));
        assert!(why(Path::new("/")).contains("not a regular file"));
        assert!(why(Path::new("/nowhere")).contains("No such file"));
    }

    #[test]
    fn debian_jvm_path_maps_to_its_debug_package() {
        let package = |path: &str| debug_package(Path::new(path));
        let debian = "/usr/lib/jvm/java-8-openjdk-amd64/jre/lib/amd64/server/libjvm.so";
        assert_eq!(package(debian).as_deref(), Some("openjdk-8-dbg"));
        for other in ["java-1.8.0-openjdk-1.8.0.292-1.el7.x86_64", "java-8-openjdk", "temurin-8"] {
            assert_eq!(package(&format!("/usr/lib/jvm/{other}/lib/server/libjvm.so")), None);
        }
    }
}
