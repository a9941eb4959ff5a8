//! Small shared libraries for tests, built by the C compiler that Rust links with.

use std::{
    fs::{self, File},
    io::{Seek, Write},
    os::unix::fs::FileExt,
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

/// Returns a file that consists of sections with these names, types and contents, and a section with their names. Each
/// section is linked to the next one.
pub(crate) fn sections(sections: &[(&str, u32, &[u8])]) -> File {
    let file = tempfile::tempfile().unwrap();
    let mut at = 64;
    let mut placed = Vec::new();
    for &(name, kind, content) in sections {
        file.write_all_at(content, at).unwrap();
        placed.push((name, kind, at, content.len() as u64));
        at += content.len() as u64;
    }
    write_headers(&file, &placed, at);
    file
}

/// Returns a sparse file whose sections have these names and this size, and contain zeros only.
pub(crate) fn sparse(names: &[&str], size: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    let placed: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(i, &name)| (name, 1, 4096 + i as u64 * size, size))
        .collect();
    write_headers(&file, &placed, 4096 + names.len() as u64 * size);
    file
}

/// Writes the file header, and section headers for sections with these names, types, offsets and sizes to an offset.
fn write_headers(file: &File, sections: &[(&str, u32, u64, u64)], at: u64) {
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    let name_table = (".shstrtab", 3, 0, 0);
    for (i, (name, kind, offset, size)) in sections.iter().chain([&name_table]).enumerate() {
        let mut header = [0; 64];
        header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&u32::to_le_bytes(*kind));
        header[24..32].copy_from_slice(&offset.to_le_bytes());
        header[32..40].copy_from_slice(&size.to_le_bytes());
        header[40..44].copy_from_slice(&(i as u32 + 2).to_le_bytes());
        headers.extend(header);
        names.extend([name.as_bytes(), b"\0"].concat());
    }
    let last = headers.len() - 64;
    headers[last + 24..last + 32].copy_from_slice(&at.to_le_bytes());
    headers[last + 32..last + 40].copy_from_slice(&(names.len() as u64).to_le_bytes());
    file.write_all_at(&names, at).unwrap();
    let table = (at + names.len() as u64).next_multiple_of(8);
    file.write_all_at(&headers, table).unwrap();
    let mut head = [0; 64];
    head[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
    head[16] = 3;
    head[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    head[40..48].copy_from_slice(&table.to_le_bytes());
    head[58..60].copy_from_slice(&64_u16.to_le_bytes());
    head[60..62].copy_from_slice(&(headers.len() as u16 / 64).to_le_bytes());
    head[62..64].copy_from_slice(&(headers.len() as u16 / 64 - 1).to_le_bytes());
    file.write_all_at(&head, 0).unwrap();
}
