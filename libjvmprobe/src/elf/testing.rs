//! Small shared libraries for tests, built by the C compiler that Rust links with.

use std::{
    fs::{self, File},
    io::{Seek, Write},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{Result, elf::ElfFile};

/// A library in its own temporary directory.
pub(crate) struct Library {
    dir: TempDir,
}

impl Library {
    /// Assembles and links a library.
    pub(crate) fn build(assembly: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source.s");
        fs::write(&source, assembly).unwrap();
        let library = Self { dir };
        let status = Command::new("cc")
            .args(["-shared", "-nostdlib", "-o"])
            .arg(library.path())
            .arg(source)
            .args(flags)
            .status()
            .unwrap();
        assert!(status.success(), "{assembly}");
        library
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir().join("library.so")
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    pub(crate) fn elf(&self) -> ElfFile {
        ElfFile::open(File::open(self.path()).unwrap()).unwrap()
    }
}

/// Opens bytes as an ELF file.
pub(crate) fn open(bytes: &[u8]) -> Result<ElfFile> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    ElfFile::open(file)
}

/// Returns the assembly of a probe and its note. `moved` is added to the location and the base in the note,
/// as if sections had been moved after the file was linked.
pub(crate) fn probe(location: &str, moved: i64, semaphore: &str, strings: [&str; 3]) -> String {
    note("stapsdt", 3, location, moved, semaphore, strings)
}

/// Returns the assembly of a note with any owner and type.
pub fn note(
    owner: &str,
    kind: u32,
    location: &str,
    moved: i64,
    semaphore: &str,
    [provider, name, args]: [&str; 3],
) -> String {
    format!(
        "
        .text
        .globl {location}
        {location}: nop
        .pushsection .note.stapsdt,\"\",\"note\"
        .balign 4
        .4byte 992f-991f, 994f-993f, {kind}
        991: .asciz \"{owner}\"
        992: .balign 4
        993: .8byte {location} + {moved}, _.stapsdt.base + {moved}, {semaphore}
        .asciz \"{provider}\"
        .asciz \"{name}\"
        .asciz \"{args}\"
        994: .balign 4
        .popsection
        .ifndef _.stapsdt.base
        .pushsection .stapsdt.base,\"a\",\"progbits\"
        .hidden _.stapsdt.base
        .globl _.stapsdt.base
        _.stapsdt.base: .space 1
        .popsection
        .endif
        "
    )
}
