//! Reads the archive of the tool's files. Source: POSIX, pax, "ustar Interchange Format".
//!
//! The node decides what the archive contains. So only regular files are accepted, and only with the names that the
//! user has given. Nothing else in a header has an effect: no other path, link, owner or mode.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::{clean, debug_pod::random_digits};

/// Size of a block. A header is one block, and files are padded to whole blocks.
const BLOCK: usize = 512;
/// Maximum size of all files in bytes. `jvmprobed remote` writes at most 256 MiB.
const MAX_TOTAL: u64 = 300_000_000;
/// Maximum number of files.
const MAX_FILES: usize = 1000;
/// Maximum number of names that are tried for a file whose name exists.
const MAX_NUMBER: u32 = 1000;

/// Names of the files that the user expects.
#[derive(Clone, Debug)]
pub(crate) struct Names(Vec<String>);

/// How a name of the archive matches an expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    /// It is one.
    Exact,
    /// javaprof has inserted the name of an event at this position.
    OfEvent(usize),
}

impl Names {
    /// Checks the names.
    ///
    /// # Errors
    /// If one has a directory.
    pub(crate) fn new(names: Vec<String>) -> Result<Self> {
        if names.iter().any(|name| name.contains('/')) {
            bail!(
                "-o takes a file name without a directory; files are written to the current directory"
            );
        }
        Ok(Self(names))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// With several events, javaprof inserts their names before the ending.
    fn find(&self, name: &str) -> Option<Match> {
        let is_plain = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if self.0.iter().any(|wanted| wanted == name) {
            return Some(Match::Exact);
        }
        self.0.iter().find_map(|wanted| {
            wanted.match_indices('.').map(|(dot, _)| dot).filter(|dot| *dot > 0).find_map(|dot| {
                let (stem, ending) = wanted.split_at(dot);
                let event = name.strip_prefix(stem)?.strip_prefix('.')?.strip_suffix(ending)?;
                is_plain(event).then_some(Match::OfEvent(name.len() - ending.len()))
            })
        })
    }
}

/// Reads an archive and writes the expected files to `dir`. Calls `report` with a line for each file. Returns whether
/// the archive contained expected files only.
///
/// # Errors
/// If the archive ends early, is too large or is damaged.
pub(crate) fn receive(
    from: &mut impl Read,
    names: &Names,
    dir: &Path,
    report: &mut impl FnMut(&str),
) -> Result<bool> {
    let (mut total, mut is_expected) = (0, true);
    let mut copied = Vec::new();
    for _ in 0..MAX_FILES {
        let Some(header) = Header::read(from)? else { return Ok(is_expected) };
        total += header.size;
        if total > MAX_TOTAL {
            bail!("the files have more than {} MB", MAX_TOTAL / 1_000_000);
        }
        let shown = String::from_utf8_lossy(&header.name);
        let name = str::from_utf8(&header.name)
            .ok()
            .filter(|name| header.is_file && !copied.contains(&(*name).to_owned()));
        let found = name.and_then(|name| Some((name, names.find(name)?)));
        let mut content = from.take(header.size);
        if let Some((name, found)) = found {
            let name = write(&mut content, header.size, dir, name, found)?;
            report(&format!("copied {}", clean::line(&name)));
            copied.push(name);
        } else {
            report(&format!("not copied, because no option -o names it: {}", clean::quote(&shown)));
            is_expected = false;
            io::copy(&mut content, &mut io::sink())?;
            if content.limit() > 0 {
                bail!("the archive ends early");
            }
        }
        let padding = (BLOCK - header.size as usize % BLOCK) % BLOCK;
        from.read_exact(&mut [0; BLOCK][..padding])?;
    }
    bail!("the archive has more than {MAX_FILES} files")
}

/// Writes a file, and returns its name. A file that the user has named replaces an existing one, like the file of a
/// tool that runs on this machine. Its content is complete from the beginning.
fn write(
    content: &mut impl Read,
    size: u64,
    dir: &Path,
    name: &str,
    found: Match,
) -> Result<String> {
    let part = dir.join(format!(".kubectl-jvm-{}", random_digits::<8>()?));
    let failed = || format!("cannot write {}", clean::quote(name));
    // A new file: nothing is followed or replaced.
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(&part).with_context(failed)?;
    let result = fill(content, size, &mut file).and_then(|()| match found {
        Match::Exact => {
            fs::rename(&part, dir.join(name)).map(|()| name.to_owned()).with_context(failed)
        }
        // The node chooses this name, so it must not replace a file.
        Match::OfEvent(ending) => {
            let unused = unused_name(dir, name, ending)?;
            fs::rename(&part, dir.join(&unused)).map(|()| unused).with_context(failed)
        }
    });
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result
}

fn fill(content: &mut impl Read, size: u64, file: &mut File) -> Result<()> {
    let copied = io::copy(content, file).context("cannot write a file")?;
    if copied != size {
        bail!("the archive ends early");
    }
    Ok(())
}

/// Inserts a number before the ending if the name exists: `cpu.alloc-1.svg`.
fn unused_name(dir: &Path, name: &str, ending: usize) -> Result<String> {
    let numbered =
        (1..MAX_NUMBER).map(|number| format!("{}-{number}{}", &name[..ending], &name[ending..]));
    let mut names = [name.to_owned()].into_iter().chain(numbered);
    // Links count as existing, whether or not they lead to a file.
    let unused = names.find(|name| fs::symlink_metadata(dir.join(name)).is_err());
    unused.with_context(|| format!("{} exists", clean::quote(name)))
}

/// The fields of a header that have an effect.
struct Header {
    name: Vec<u8>,
    size: u64,
    is_file: bool,
}

impl Header {
    /// Reads a header; `None` at the end of the archive.
    fn read(from: &mut impl Read) -> Result<Option<Self>> {
        let mut block = [0; BLOCK];
        from.read_exact(&mut block).context("the archive ends early")?;
        if block == [0; BLOCK] {
            return Ok(None);
        }
        let sum = block.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let checksum = &block[148..156];
        // While the checksum is computed, its field consists of blanks.
        let sum =
            sum - checksum.iter().map(|byte| u64::from(*byte)).sum::<u64>() + 8 * u64::from(b' ');
        if octal(checksum) != Some(sum) {
            bail!("the archive is damaged");
        }
        let Some(size) = octal(&block[124..136]).filter(|size| *size <= MAX_TOTAL) else {
            bail!("a file has more than {} MB", MAX_TOTAL / 1_000_000);
        };
        let text =
            |field: &[u8]| field.iter().copied().take_while(|byte| *byte != 0).collect::<Vec<_>>();
        let mut name = text(&block[..100]);
        // `jvmprobed remote` writes no name with a directory, so this one matches none.
        let prefix = if &block[257..262] == b"ustar" { text(&block[345..500]) } else { Vec::new() };
        if !prefix.is_empty() {
            name = [prefix, b"/".to_vec(), name].concat();
        }
        Ok(Some(Self { name, size, is_file: matches!(block[156], b'0' | 0) }))
    }
}

/// Parses an octal number, which ends at a blank, a zero byte or the end.
fn octal(field: &[u8]) -> Option<u64> {
    let digits: Vec<_> = field
        .iter()
        .skip_while(|byte| **byte == b' ')
        .take_while(|byte| !b" \0".contains(byte))
        .collect();
    let add = |value: u64, digit: &&u8| match **digit {
        digit @ b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    };
    digits.iter().try_fold(0, add)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::{collection, prelude::*};

    use super::*;

    fn names(names: &[&str]) -> Names {
        Names::new(names.iter().map(|name| (*name).to_owned()).collect()).unwrap()
    }

    /// Returns an entry of an archive.
    fn entry(name: &str, kind: u8, link: &str, size: &str, content: &[u8]) -> Vec<u8> {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, b"0004777\0");
        put(124, size.as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let padding = vec![0; (BLOCK - content.len() % BLOCK) % BLOCK];
        [&block[..], content, &padding].concat()
    }

    fn file(name: &str, content: &[u8]) -> Vec<u8> {
        entry(name, b'0', "", &format!("{:011o}", content.len()), content)
    }

    /// Reads an archive into a directory.
    fn read(archive: &[Vec<u8>], wanted: &Names, dir: &Path) -> (Result<bool>, Vec<String>) {
        let archive = archive.concat();
        let mut lines = Vec::new();
        let result =
            receive(&mut &archive[..], wanted, dir, &mut |line| lines.push(line.to_owned()));
        (result, lines)
    }

    /// Returns the names and contents of the files in a directory.
    fn listing(dir: &Path) -> Vec<(String, String)> {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut files: Vec<_> =
            files.map(|path| (name(&path), fs::read_to_string(path).unwrap_or_default())).collect();
        files.sort();
        files
    }

    const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

    #[test]
    fn only_expected_regular_files_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, secret) = (folder.path().join("here"), folder.path().join("secret"));
        fs::create_dir(&dir).unwrap();
        fs::write(&secret, "secret").unwrap();
        // A link of the user: it is replaced, and not followed.
        symlink(&secret, dir.join("cpu.html")).unwrap();
        let link = secret.to_str().unwrap();
        let archive = [
            file("../secret", b"evil"),
            file(link, b"evil"),
            entry("a.svg", b'2', link, "00000000000", b""),
            entry("a.svg", b'1', link, "00000000000", b""),
            entry("a.svg", b'6', "", "00000000000", b""),
            entry("a.svg", b'5', "", "00000000000", b""),
            file("a.svg/x", b"evil"),
            file(".profile", b"evil"),
            file("x\x1b.html", b"evil"),
            file("cpu.html", b"a profile"),
            file("cpu.html", b"a second one"),
            END.to_vec(),
        ];
        let (result, lines) = read(&archive, &names(&["cpu.html", "a.svg"]), &dir);
        assert!(!result.unwrap());
        assert_eq!(listing(&dir), [("cpu.html".to_owned(), "a profile".to_owned())]);
        assert!(!dir.join("cpu.html").is_symlink());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        assert_eq!(lines.iter().filter(|line| line.starts_with("copied")).count(), 1, "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("names it: \"x\\x1b.html\"")), "{lines:?}");
    }

    #[test]
    fn files_of_several_events_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        fs::write(dir.join("my.cpu.alloc.svg"), "mine").unwrap();
        let archive = [
            file("my.cpu.alloc.svg", b"1"),
            file("my.cpu.usdt-x-y.svg", b"2"),
            file("my.b.svg", b"3"),
            END.to_vec(),
        ];
        let (result, lines) = read(&archive, &names(&["my.cpu.svg"]), dir);
        assert!(!result.unwrap(), "{lines:?}");
        let expected = [
            ("my.cpu.alloc-1.svg", "1"),
            ("my.cpu.alloc.svg", "mine"),
            ("my.cpu.usdt-x-y.svg", "2"),
        ];
        assert_eq!(listing(dir), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
        for bad in
            ["my.cpu..svg", "my.cpu.\n.svg", "my.cpu.a b.svg", "my.svg", "cpu.svg", "my.cpu.svg.x"]
        {
            assert_eq!(names(&["my.cpu.svg"]).find(bad), None, "{bad:?}");
        }
        assert!(Names::new(vec!["/tmp/x.html".into()]).is_err());
    }

    #[test]
    fn incomplete_and_huge_archives_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let whole = [file("a.svg", &[b'x'; 2000]), END.to_vec()].concat();
        for size in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK - 1] {
            assert!(read(&[whole[..size].to_vec()], &names(&["a.svg"]), dir).0.is_err(), "{size}");
        }
        // Complete, but for the end of the archive.
        assert!(read(&[whole[..5 * BLOCK].to_vec()], &names(&["a.svg"]), dir).0.is_err());
        assert_eq!(listing(dir).len(), 1);
        for size in ["77777777777", "04360504241", "-1", "0x10", "\u{80}", "9"] {
            assert!(
                read(&[entry("b.svg", b'0', "", size, b"")], &names(&["b.svg"]), dir).0.is_err(),
                "{size}"
            );
        }
        let many = vec![file("no", b""); MAX_FILES + 1];
        assert!(
            read(&many, &names(&["b.svg"]), dir)
                .0
                .unwrap_err()
                .to_string()
                .contains("more than 1000 files")
        );
        let mut damaged = whole.clone();
        damaged[0] ^= 1;
        assert!(read(&[damaged], &names(&["a.svg"]), dir).0.is_err());
        assert_eq!(listing(dir).len(), 1);
    }

    proptest! {
        #[test]
        fn any_archive_writes_only_expected_files(
            entries in collection::vec((any::<bool>(), "[a-z./-]{0,20}", 0_u8..8, "[0-7]{0,11}", 0..700_usize), 0..5),
            noise in collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path().join("here");
            fs::create_dir(&dir).unwrap();
            let mut archive: Vec<u8> = entries.iter().flat_map(|(is_wanted, name, kind, size, length)| {
                let name = if *is_wanted { "a.svg" } else { name };
                let own = format!("{length:011o}");
                entry(name, b'0' + kind, "/etc/passwd", if *kind < 4 { &own } else { size }, &vec![b'x'; *length])
            }).collect();
            for (at, byte) in noise {
                if !archive.is_empty() {
                    let at = at.index(archive.len());
                    archive[at] = byte;
                }
            }
            let _ = read(&[archive, END.to_vec()], &names(&["a.svg"]), &dir);
            let found = listing(&dir);
            prop_assert!(found.iter().all(|(name, _)| name.starts_with("a.") && name.ends_with(".svg")), "{found:?}");
            prop_assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}
