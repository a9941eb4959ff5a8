//! Classes of a jar, from the central directory at its end, and of jars within it.
//!
//! Sources: the JAR file specification (multi-release), Spring Boot's executable jars
//! (`BOOT-INF`), web applications (`WEB-INF`). Only central directories are read. A jar within a jar
//! must be unpacked for this, so [`Limits`] bounds the work that a zip bomb can cause.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
};

use anyhow::{Context, Result, bail};
use flate2::read::DeflateDecoder;
use rawzip::{
    CompressionMethod, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive, ZipArchiveEntryWayfinder,
};

/// Maximum size of a jar within a jar, in bytes.
const MAX_INNER: u64 = 256 << 20;
/// Folders of classes that are not part of the classes' names.
const FOLDERS: [&str; 2] = ["BOOT-INF/classes/", "WEB-INF/classes/"];
/// Folder of classes for specific Java versions.
const VERSIONS: &str = "META-INF/versions/";

/// Remaining limits for all jars of a JVM.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of directory entries.
    pub entries: u64,
    /// Bytes of jars within jars, including those that are rejected as too large, and of names.
    pub(super) bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 4_000_000, bytes: 2 << 30 }
    }
}

impl Limits {
    /// Counts an entry; fails if the limit is exceeded.
    pub fn count_entry(&mut self) -> Result<()> {
        self.entries = self.entries.checked_sub(1).context("too many entries")?;
        Ok(())
    }

    /// Counts the bytes of a name that is kept, which may be 64 KiB; fails if the limit is exceeded.
    pub(super) fn count_name(&mut self, name: &str) -> Result<()> {
        let left = self.bytes.checked_sub(name.len() as u64);
        self.bytes = left.context("entry names are too long")?;
        Ok(())
    }
}

/// Returns the classes of a jar and of jars within it, by the path of each jar within the outer one.
/// The path of the outer jar itself is empty.
pub fn classes(file: &File, limits: &mut Limits) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file.try_clone()?, &mut buffer)?;
    let mut found = BTreeMap::new();
    let (own, inner) = directory(&archive, limits)?;
    for (path, at) in inner {
        let mut read = || -> Result<BTreeSet<String>> {
            let bytes = unpack(&archive, at, limits)?;
            let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
            let archive = ZipArchive::from_seekable(std::io::Cursor::new(bytes), &mut buffer)?;
            Ok(directory(&archive, limits)?.0)
        };
        let classes = read().with_context(|| format!("cannot read {path} inside it"))?;
        found.insert(path, classes);
    }
    if !own.is_empty() || found.is_empty() {
        found.insert(String::new(), own);
    }
    Ok(found)
}

type Inner = (String, (ZipArchiveEntryWayfinder, CompressionMethod));

/// Returns the classes and the archives that a central directory lists.
fn directory<R: ReaderAt>(
    archive: &ZipArchive<R>,
    limits: &mut Limits,
) -> Result<(BTreeSet<String>, Vec<Inner>)> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let mut entries = archive.entries(&mut buffer);
    let (mut classes, mut inner) = (BTreeSet::new(), Vec::new());
    while let Some(entry) = entries.next_entry()? {
        limits.count_entry()?;
        let Ok(path) = std::str::from_utf8(entry.file_path().as_bytes()) else { continue };
        if let Some(class) = class_of(path) {
            limits.count_name(&class)?;
            classes.insert(class);
        } else if path.ends_with(".jar") {
            limits.count_name(path)?;
            inner.push((path.to_owned(), (entry.wayfinder(), entry.compression_method())));
        }
    }
    Ok((classes, inner))
}

/// Returns the name of the class in an entry; `None` if the entry is not a class.
pub fn class_of(path: &str) -> Option<String> {
    let path = path.strip_suffix(".class")?;
    let path = FOLDERS.iter().find_map(|folder| path.strip_prefix(folder)).unwrap_or(path);
    let path = match path.strip_prefix(VERSIONS) {
        Some(versioned) => versioned.split_once('/')?.1,
        None => path,
    };
    let last = path.rsplit('/').next().unwrap_or(path);
    // module-info and package-info describe a module or a package.
    let is_class = !path.is_empty() && !matches!(last, "" | "module-info" | "package-info");
    // Other files in META-INF are not loaded as classes.
    (is_class && !path.starts_with("META-INF/")).then(|| path.replace('/', "."))
}

/// Unpacks an archive within an archive.
fn unpack<R: ReaderAt>(
    archive: &ZipArchive<R>,
    (at, compression): (ZipArchiveEntryWayfinder, CompressionMethod),
    limits: &mut Limits,
) -> Result<Vec<u8>> {
    let entry = archive.get_entry(at)?;
    let max = MAX_INNER.min(limits.bytes);
    let mut bytes = Vec::new();
    let read = match compression {
        CompressionMethod::STORE => entry.reader().take(max + 1).read_to_end(&mut bytes),
        CompressionMethod::DEFLATE => {
            DeflateDecoder::new(entry.reader()).take(max + 1).read_to_end(&mut bytes)
        }
        other => bail!("its compression {other:?} is not supported"),
    };
    // Rejected data counts, too, so that many zip bombs cost no more than one.
    limits.bytes = limits.bytes.saturating_sub(bytes.len() as u64);
    if read? as u64 > max {
        bail!("it is too large");
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::io::{Seek, Write};

    use proptest::prelude::*;
    use rawzip::ZipArchiveWriter;

    use super::*;

    fn jar(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        for (path, bytes) in entries {
            let (mut entry, config) = archive.new_file(*path).start().unwrap();
            let mut writer = config.wrap(&mut entry);
            writer.write_all(bytes).unwrap();
            let (_, output) = writer.finish().unwrap();
            entry.finish(output).unwrap();
        }
        archive.finish().unwrap()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn classes_of_nested_jars_are_listed() {
        let inner = jar(&[("b/C.class", b""), ("b/c.txt", b"")]);
        let outer = jar(&[
            ("BOOT-INF/classes/a/B.class", b""),
            ("META-INF/versions/11/a/B.class", b""),
            ("module-info.class", b""),
            ("BOOT-INF/lib/c.jar", &inner),
        ]);
        let found = classes(&file(&outer), &mut Limits::default()).unwrap();
        let of = |path: &str| found[path].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(of(""), ["a.B"]);
        assert_eq!(of("BOOT-INF/lib/c.jar"), ["b.C"]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn oversized_or_damaged_jars_are_rejected() {
        let inner = jar(&[("b/C.class", &[0; 4096])]);
        let outer = jar(&[("lib/c.jar", &inner)]);
        for limits in [Limits { entries: 1, bytes: 1 << 20 }, Limits { entries: 9, bytes: 100 }] {
            assert!(classes(&file(&outer), &mut limits.clone()).is_err(), "{limits:?}");
        }
        assert!(classes(&file(b"no jar"), &mut Limits::default()).is_err());
        assert!(classes(&file(&outer[..outer.len() - 10]), &mut Limits::default()).is_err());
    }

    #[test]
    fn rejected_jars_and_long_names_consume_the_limits() {
        let inner = jar(&[("b/C.class", &[0; 4096])]);
        let outer = jar(&[("lib/c.jar", &inner)]);
        let mut limits = Limits { entries: 99, bytes: 1000 };
        assert!(classes(&file(&outer), &mut limits).is_err());
        assert_eq!(limits.bytes, 0);
        let name = format!("{}.class", "n".repeat(60_000));
        let mut limits = Limits { entries: 99, bytes: 100_000 };
        assert!(classes(&file(&jar(&[(&name, b"")])), &mut limits).is_ok());
        assert!(classes(&file(&jar(&[(&name, b"")])), &mut limits).is_err());
    }

    #[test]
    fn entry_paths_convert_to_class_names() {
        for (path, class) in [
            ("a/B$C.class", Some("a.B$C")),
            ("B.class", Some("B")),
            ("WEB-INF/classes/a/B.class", Some("a.B")),
            ("a/package-info.class", None),
            ("META-INF/x/B.class", None),
            ("META-INF/versions/9/module-info.class", None),
            ("a/.class", None),
            (".class", None),
            ("a/b.txt", None),
        ] {
            assert_eq!(class_of(path).as_deref(), class, "{path}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn corrupted_jars_cause_no_panic(at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
            let inner = jar(&[("b/C.class", b"x")]);
            let mut outer = jar(&[("a/B.class", b"y"), ("c.jar", &inner)]);
            let len = outer.len();
            outer[at % len] = byte;
            outer.truncate(len - cut % 8);
            let _ = classes(&file(&outer), &mut Limits::default());
        }
    }
}
