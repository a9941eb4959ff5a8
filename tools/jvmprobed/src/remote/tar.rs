//! Archives in the ustar format, which every tar reads. Source: POSIX, pax, "ustar Interchange Format".

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags};

/// Size of a block. A header is one block, and files are padded to whole blocks.
const BLOCK: usize = 512;
/// Maximum length of a name in bytes.
const MAX_NAME: usize = 100;
/// Position and length of the checksum in a header.
const CHECKSUM: (usize, usize) = (148, 8);

/// Writes a line with `mark`, and an archive of files. Their names in the archive have no directory.
pub(super) fn write(out: &mut impl Write, mark: &str, paths: &[PathBuf]) -> Result<()> {
    writeln!(out, "{mark}")?;
    for path in paths {
        let name = path.file_name().unwrap_or_default();
        let file = open(path).with_context(|| format!("cannot open {}", name.display()))?;
        let size = file.metadata()?.len();
        out.write_all(&header(name.as_bytes(), size)?)?;
        // A file that has grown is cut off, because its size is already written.
        let copied = io::copy(&mut file.take(size), out)?;
        if copied != size {
            bail!("{} has become shorter", name.display());
        }
        let used = size as usize % BLOCK;
        out.write_all(&[0; BLOCK][..(BLOCK - used) % BLOCK])?;
    }
    out.write_all(&[0; 2 * BLOCK])?;
    out.flush()?;
    Ok(())
}

/// Opens a file, but follows no link.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Returns the header of a regular file.
fn header(name: &[u8], size: u64) -> Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    if name.len() > MAX_NAME {
        bail!("the name {} is longer than {MAX_NAME} bytes", String::from_utf8_lossy(name));
    }
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    // Mode, owner, group, size and time are octal numbers.
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    // While the checksum is computed, its field consists of blanks.
    put(CHECKSUM.0, &[b' '; CHECKSUM.1]);
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    block[CHECKSUM.0..][..CHECKSUM.1].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn tar_extracts_what_was_written() {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let contents = [("a", 0), ("b.html", 1), ("c", BLOCK), ("d", 3 * BLOCK + 7)];
        let paths: Vec<_> = contents
            .iter()
            .map(|(name, size)| {
                let path = from.path().join(name);
                fs::write(&path, vec![b'x'; *size]).unwrap();
                path
            })
            .collect();
        let mut archive = Vec::new();
        write(&mut archive, "mark", &paths).unwrap();
        let archive = archive.strip_prefix(b"mark\n").unwrap();
        let mut tar = Command::new("tar");
        let mut tar =
            tar.args(["-xf", "-", "-C"]).arg(to.path()).stdin(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(archive).unwrap();
        assert!(tar.wait().unwrap().success());
        for (name, size) in contents {
            assert_eq!(fs::read(to.path().join(name)).unwrap(), vec![b'x'; size], "{name}");
        }
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.svg");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        let error = write(&mut Vec::new(), "mark", &[path]).unwrap_err().to_string();
        assert_eq!(error, "cannot open a.svg");
    }

    #[test]
    fn long_name_is_an_error() {
        assert!(header(&[b'x'; MAX_NAME], 0).is_ok());
        assert!(header(&[b'x'; MAX_NAME + 1], 0).is_err());
    }
}
