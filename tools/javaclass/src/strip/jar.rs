//! Reads a jar, which is never modified, and writes a new jar with some of its entries.
//!
//! Sources: the JAR file specification; PKWARE's APPNOTE, which the crates implement. Jars that
//! other zip readers may interpret differently (duplicate names, overlapping entries, data before
//! the first entry) are rejected, and so are jars that would unpack to more than the limits.

use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufWriter, Read, Seek, Write},
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::DeflateDecoder;
use rawzip::{
    FileReader, RECOMMENDED_BUFFER_SIZE, ZipArchive, ZipArchiveEntryWayfinder, ZipFileHeaderRecord,
};
use zip::{CompressionMethod, DateTime, ZipWriter, write::SimpleFileOptions};

use crate::jars::class_of;

/// Maximum number of entries in a jar.
const MAX_ENTRIES: usize = 1_000_000;
/// Maximum size in bytes of an entry that is unpacked into memory.
const MAX_ENTRY: u64 = 64 << 20;
/// Maximum unpacked size of all entries in bytes.
const MAX_TOTAL: u64 = 4 << 30;
/// Size in bytes from which an entry needs ZIP64 fields.
const LARGE: u64 = u32::MAX as u64;

/// An open jar.
pub struct Jar {
    archive: ZipArchive<FileReader>,
    /// Its entries, in order.
    pub entries: Vec<Entry>,
    comment: Vec<u8>,
}

/// An entry of a jar.
pub struct Entry {
    /// Its path.
    pub path: String,
    /// Name of the class that it contains, with dots.
    pub class: Option<String>,
    /// Its compressed size in bytes.
    pub packed: u64,
    size: u64,
    at: ZipArchiveEntryWayfinder,
    method: CompressionMethod,
    time: DateTime,
    permissions: Option<u32>,
}

impl Jar {
    /// Opens a jar and reads its central directory.
    pub fn open(file: File) -> Result<Self> {
        let length = file.metadata()?.len();
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let archive = ZipArchive::from_file(file, &mut buffer)?;
        let mut comment = Vec::new();
        archive.comment().read_to_end(&mut comment)?;
        let (mut entries, mut paths) = (Vec::new(), HashSet::new());
        let (mut begin, mut packed, mut size) = (u64::MAX, 0_u64, 0_u64);
        let mut records = archive.entries(&mut buffer);
        while let Some(record) = records.next_entry()? {
            begin = begin.min(record.local_header_offset());
            let entry = Entry::new(&record)?;
            packed = packed.saturating_add(entry.packed);
            size = size.saturating_add(entry.size);
            ensure!(entries.len() < MAX_ENTRIES, "it has more than {MAX_ENTRIES} entries");
            ensure!(paths.insert(entry.path.clone()), "it contains {} twice", entry.path);
            entries.push(entry);
        }
        ensure!(!entries.is_empty(), "it is empty");
        ensure!(begin == 0, "it begins with other data, such as a script, that would be lost");
        ensure!(packed <= length, "its entries overlap");
        ensure!(size <= MAX_TOTAL, "its unpacked size of {size} bytes is too large");
        Ok(Self { archive, entries, comment })
    }

    /// Returns the path of its signature file, if it is signed.
    pub fn signature(&self) -> Option<&str> {
        let is_signature = |path: &&str| {
            let path = path.to_ascii_uppercase();
            let name = path.strip_prefix("META-INF/").unwrap_or_default();
            !name.contains('/') && name.ends_with(".SF")
        };
        self.entries.iter().map(|entry| entry.path.as_str()).find(is_signature)
    }

    /// Unpacks an entry into memory.
    pub fn read(&self, entry: &Entry) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let max = MAX_ENTRY;
        let mut unpack = || {
            ensure!(entry.size <= max, "it is larger than {max} bytes");
            entry.unpack(&self.archive, &mut bytes)
        };
        unpack().with_context(|| format!("cannot read {}", entry.path))?;
        Ok(bytes)
    }

    /// Writes a jar with the entries for which `is_selected` returns true.
    pub fn write(&self, is_selected: impl Fn(usize) -> bool, out: &File) -> Result<()> {
        let mut jar = ZipWriter::new(BufWriter::new(out));
        jar.set_raw_comment(self.comment.clone().into())?;
        for (_, entry) in self.entries.iter().enumerate().filter(|(number, _)| is_selected(*number))
        {
            let copied = entry.copy(&self.archive, &mut jar);
            copied.with_context(|| format!("cannot copy {}", entry.path))?;
        }
        jar.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(out.sync_all()?)
    }
}

impl Entry {
    fn new(record: &ZipFileHeaderRecord<'_>) -> Result<Self> {
        let raw = record.file_path();
        let path =
            str::from_utf8(raw.as_bytes()).context("it has an entry name that is not UTF-8")?;
        let inner = path.strip_suffix('/').unwrap_or(path);
        let leads_out = inner.split('/').any(|part| matches!(part, "" | "." | ".."));
        ensure!(!leads_out, "it has an entry with an unsafe path: {path}");
        let is_plain = !path.contains(|c: char| c.is_control() || c == '\\');
        ensure!(is_plain, "it has an entry with an invalid name: {path:?}");
        ensure!(!record.flags().is_encrypted(), "{path} is encrypted");
        let method = match record.compression_method() {
            rawzip::CompressionMethod::STORE => CompressionMethod::Stored,
            rawzip::CompressionMethod::DEFLATE => CompressionMethod::Deflated,
            other => bail!("{path} uses compression {other:?}, which Java does not support"),
        };
        let t = record.last_modified();
        let time = DateTime::from_date_and_time(
            t.year(),
            t.month(),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
        );
        // The high half holds the Unix mode, if there is one.
        let mode = record.external_attributes() >> 16;
        Ok(Self {
            path: path.to_owned(),
            class: class_of(path),
            packed: record.compressed_size_hint(),
            size: record.uncompressed_size_hint(),
            at: record.wayfinder(),
            method,
            // Times before 1980 cannot be represented.
            time: time.unwrap_or_default(),
            permissions: (mode != 0).then_some(mode),
        })
    }

    /// Unpacks it, and verifies its checksum and size.
    fn unpack(&self, from: &ZipArchive<FileReader>, to: &mut impl Write) -> Result<()> {
        let packed = from.get_entry(self.at)?;
        let reader: Box<dyn Read + '_> = match self.method {
            CompressionMethod::Deflated => Box::new(DeflateDecoder::new(packed.reader())),
            _ => Box::new(packed.reader()),
        };
        let read = io::copy(&mut packed.verifying_reader(reader).take(self.size + 1), to)?;
        ensure!(read == self.size, "its size differs from the size in the jar's directory");
        Ok(())
    }

    fn copy(
        &self,
        from: &ZipArchive<FileReader>,
        to: &mut ZipWriter<impl Write + Seek>,
    ) -> Result<()> {
        let mut options = SimpleFileOptions::default()
            .compression_method(self.method)
            .last_modified_time(self.time)
            .large_file(self.size.max(self.packed) >= LARGE);
        if let Some(permissions) = self.permissions {
            options = options.unix_permissions(permissions);
        }
        if self.path.ends_with('/') {
            return Ok(to.add_directory(&*self.path, options)?);
        }
        to.start_file(&*self.path, options)?;
        self.unpack(from, to)
    }
}

/// Writes a jar to a temporary file beside `path`, and renames it to `path` when it is complete.
pub fn write_atomically(path: &Path, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
    let name = path.file_name().context("it is not a file name")?.to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let file = File::create_new(&draft)?;
    let done = write(&file).and_then(|()| Ok(std::fs::rename(&draft, path)?));
    if done.is_err() {
        // An incomplete jar must not remain.
        let _ = std::fs::remove_file(&draft);
    }
    done
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use proptest::prelude::*;
    use rawzip::ZipArchiveWriter;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    /// Builds a zip without any checks, so that it may be invalid.
    fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        for (path, bytes) in entries {
            let path = rawzip::path::EntryPath::verbatim(path.as_bytes());
            let method = rawzip::CompressionMethod::DEFLATE;
            let (mut entry, config) =
                archive.new_file(path).compression_method(method).start().unwrap();
            let encoder =
                flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
            let mut writer = config.wrap(encoder);
            writer.write_all(bytes).unwrap();
            let (encoder, output) = writer.finish().unwrap();
            encoder.finish().unwrap();
            entry.finish(output).unwrap();
        }
        archive.finish().unwrap()
    }

    fn error_of(bytes: &[u8]) -> String {
        let jar = Jar::open(file(bytes))
            .and_then(|jar| jar.entries.iter().try_for_each(|entry| jar.read(entry).map(drop)));
        format!("{:#}", jar.unwrap_err())
    }

    #[test]
    fn malicious_or_damaged_jars_are_rejected() {
        for (path, word) in [
            ("../x", "unsafe path"),
            ("a/../../x", "unsafe path"),
            ("/etc/passwd", "unsafe path"),
            ("a//b", "unsafe path"),
            ("a\\b", "invalid name"),
            ("a\u{1b}[2J", "invalid name"),
        ] {
            let why = error_of(&zip(&[("a", b"x"), (path, b"y")]));
            assert!(why.contains(word), "{path}: {why}");
        }
        let twice = zip(&[("a/B.class", b"x"), ("a/B.class", b"y")]);
        assert!(error_of(&twice).contains("twice"));
        let good = zip(&[("a", b"some text"), ("b", b"other")]);
        assert!(error_of(&[b"#!/bin/sh\n", &good[..]].concat()).contains("begins with other data"));
        assert!(!error_of(&good[..good.len() - 30]).is_empty(), "cut");
        assert!(error_of(&zip(&[])).contains("empty"));
        let zeros = vec![0; MAX_ENTRY as usize + 1];
        assert!(error_of(&zip(&[("bomb", &zeros)])).contains("larger than"));
        // An entry that claims a smaller size. The last occurrence of the true size is the one in the
        // central directory.
        let mut lying = zip(&[("liar", &[0; 100_000])]);
        let at = lying.windows(4).rposition(|w| w == 100_000_u32.to_le_bytes()).unwrap();
        lying[at..at + 4].copy_from_slice(&10_u32.to_le_bytes());
        assert!(error_of(&lying).contains("liar"), "{}", error_of(&lying));
    }

    #[test]
    fn selected_entries_are_copied_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.jar");
        let jar =
            Jar::open(file(&zip(&[("META-INF/", b""), ("a", b"one"), ("b", b"two")]))).unwrap();
        write_atomically(&out, |file| jar.write(|number| number != 1, file)).unwrap();
        let copy = Jar::open(File::open(&out).unwrap()).unwrap();
        let paths: Vec<_> = copy.entries.iter().map(|entry| &*entry.path).collect();
        assert_eq!(paths, ["META-INF/", "b"]);
        assert_eq!(copy.read(&copy.entries[1]).unwrap(), b"two");
        // After a failure, the old file is unchanged, and there is no temporary file.
        write_atomically(&out, |_| bail!("no")).unwrap_err();
        assert_eq!(Jar::open(File::open(&out).unwrap()).unwrap().entries.len(), 2);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn signature_files_directly_in_meta_inf_are_found() {
        for (path, is_signed) in [
            ("META-INF/A.SF", true),
            ("meta-inf/a.sf", true),
            ("META-INF/x/A.SF", false),
            ("A.SF", false),
        ] {
            let jar = Jar::open(file(&zip(&[(path, b"")]))).unwrap();
            assert_eq!(jar.signature().is_some(), is_signed, "{path}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn corrupted_jars_cause_no_panic(at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
            let mut bytes = zip(&[("a/B.class", b"xxxxxxxx"), ("c", b"text")]);
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(len - cut % 8);
            if let Ok(jar) = Jar::open(file(&bytes)) {
                let _ = jar.write(|_| true, &tempfile::tempfile().unwrap());
            }
        }
    }
}
