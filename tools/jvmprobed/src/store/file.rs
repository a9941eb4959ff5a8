//! A window as two files: profiles of all JVMs, see [`profiles`], and JSON lines with identities and pauses.
//!
//! The first line describes the window, `{"type":"window",...}`. Each JVM has one line, `{"type":"jvm",...}`,
//! followed by the records of its pauses, as `javagc -j` prints them, and by its thread dumps,
//! `{"type":"threads",...}`. A profile refers to its JVM by the
//! position of the JVM's line among the lines of JVMs, counted from 0.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde::{Deserialize, Serialize};

use crate::{
    store::{folder::Content, profiles},
    window::{HostTicks, Identity, JvmData, Window},
};

/// Name of the file of profiles.
pub const PROFILES: &str = "profiles.postcard.gz";
/// Name of the file of JSON lines, which zcat shows.
pub const LINES: &str = "jvms.jsonl.gz";

/// Maximum length of a line in bytes, including its line break.
const MAX_LINE: u64 = 1 << 20;
/// Maximum length of all lines together, in bytes after decompression.
const MAX_LINES: u64 = 256 << 20;
/// Maximum number of records of pauses; several times the number that merging leaves.
const MAX_RECORDS: usize = 250_000;
/// Maximum number of JVMs in a window; more than were ever observed.
const MAX_JVMS: usize = 100_000;

/// A window as it is stored, with data about its merging.
#[derive(Debug, Default)]
pub struct Stored {
    /// Data of the window.
    pub window: Window,
    /// Time during which data was recorded, in nanoseconds. It is less than the time from begin to end if
    /// windows were merged and the daemon did not run between them.
    pub covered_ns: u64,
    /// Names of the windows that were merged into this one; empty for an unmerged window.
    pub of: Vec<String>,
}

/// The first line of the file.
#[derive(Deserialize, Serialize)]
#[serde(tag = "type", rename = "window")]
pub struct Header {
    /// Begin, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// End, in nanoseconds since 1970.
    pub end_ns: u64,
    /// Time during which data was recorded, see [`Stored`].
    pub covered_ns: u64,
    /// Names of the merged windows, see [`Stored`].
    pub of: Vec<String>,
    /// Measures that were left out, see [`Window::left_out`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left_out: BTreeMap<String, u64>,
    /// See [`Window::host_ticks`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ticks: Option<HostTicks>,
}

/// Type of a line.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow, rename = "type")]
    kind: std::borrow::Cow<'a, str>,
}

/// Line of a JVM.
#[derive(Deserialize, Serialize)]
#[serde(tag = "type", rename = "jvm")]
struct Jvm {
    #[serde(flatten)]
    identity: Identity,
    /// See [`JvmData::cpu_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<u64>,
    /// See [`JvmData::system_cpu_ns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    system_cpu_ns: Option<u64>,
}

/// Writes both files of a window by calling `put`.
///
/// # Errors
/// Errors of `put`.
pub fn write<T>(
    stored: &Stored,
    put: impl FnOnce(&[(&str, Content<'_>)]) -> io::Result<T>,
) -> io::Result<T> {
    let jvms = &stored.window.jvms;
    let profiles: Vec<_> = (0..)
        .zip(jvms)
        .flat_map(|(jvm, jvm_data)| jvm_data.profiles.iter().map(move |profile| (jvm, profile)))
        .collect();
    let profiles = |to: &mut dyn Write| profiles::write(&profiles, to);
    let lines = |to: &mut dyn Write| write_lines(stored, to);
    put(&[(PROFILES, &profiles), (LINES, &lines)])
}

fn write_lines(stored: &Stored, to: &mut dyn Write) -> io::Result<()> {
    let Window { begin_ns, end_ns, jvms, left_out, host_ticks } = &stored.window;
    // The lines are repetitive: a higher level takes three times as long for files that are a sixth smaller.
    let mut zip = GzEncoder::new(to, Compression::fast());
    let (covered_ns, of) = (stored.covered_ns, stored.of.clone());
    let header = Header {
        begin_ns: *begin_ns,
        end_ns: *end_ns,
        covered_ns,
        of,
        left_out: left_out.clone(),
        host_ticks: *host_ticks,
    };
    serde_json::to_writer(&mut zip, &header)?;
    zip.write_all(b"\n")?;
    for jvm_data in jvms {
        let JvmData { cpu_ns, system_cpu_ns, .. } = *jvm_data;
        let line = |identity| serde_json::to_vec(&Jvm { identity, cpu_ns, system_cpu_ns });
        let mut jvm = line((*jvm_data.identity).clone())?;
        // The line cannot be left out, because profiles refer to JVMs by position.
        if jvm.len() as u64 >= MAX_LINE {
            jvm = line(jvm_data.identity.without_details())?;
        }
        zip.write_all(&jvm)?;
        zip.write_all(b"\n")?;
        for record in &jvm_data.pauses {
            let line = serde_json::to_vec(record)?;
            // A record with a longer line is left out. The reader refuses such lines, so the record would
            // make the complete window unreadable.
            if (line.len() as u64) < MAX_LINE {
                zip.write_all(&line)?;
                zip.write_all(b"\n")?;
            }
        }
        for dump in &jvm_data.dumps {
            let line = serde_json::to_vec(dump)?;
            if (line.len() as u64) < MAX_LINE {
                zip.write_all(&line)?;
                zip.write_all(b"\n")?;
            }
        }
    }
    zip.finish()?.flush()
}

/// Reads a window from its two files.
///
/// # Errors
/// Errors of the readers; [`io::ErrorKind::InvalidData`] for content that [`write`](fn@write) does not produce.
pub fn read(profiles: impl Read, lines: impl Read) -> io::Result<Stored> {
    let mut lines = Lines::new(lines);
    let Header { begin_ns, end_ns, covered_ns, of, left_out, host_ticks } =
        next_header(&mut lines)?;
    let mut jvms: Vec<JvmData> = Vec::new();
    let mut records = 0;
    while let Some(line) = lines.next()? {
        let kind: Kind<'_> = serde_json::from_str(&line)?;
        if kind.kind == "jvm" {
            let Jvm { identity, cpu_ns, system_cpu_ns } = serde_json::from_str(&line)?;
            if jvms.len() >= MAX_JVMS {
                return Err(invalid("it contains too many JVMs"));
            }
            let identity = identity.into();
            jvms.push(JvmData { identity, cpu_ns, system_cpu_ns, ..JvmData::default() });
        } else {
            let jvm_data = jvms.last_mut().ok_or_else(|| invalid("a record belongs to no JVM"))?;
            records += 1;
            if records > MAX_RECORDS {
                return Err(invalid("it contains too many records"));
            }
            match &*kind.kind {
                "threads" => jvm_data.dumps.push(serde_json::from_str(&line)?),
                _ => jvm_data.pauses.push(serde_json::from_str(&line)?),
            }
        }
    }
    for (jvm, profile) in profiles::read(profiles)? {
        let jvm_data =
            jvms.get_mut(jvm as usize).ok_or_else(|| invalid("a profile belongs to no JVM"))?;
        jvm_data.profiles.push(profile);
    }
    let window = Window { begin_ns, end_ns, jvms, left_out, host_ticks };
    Ok(Stored { window, covered_ns, of })
}

/// Reads the first line of a window.
///
/// # Errors
/// The same errors as [`read`](fn@read).
pub fn read_header(lines: impl Read) -> io::Result<Header> {
    next_header(&mut Lines::new(lines))
}

/// Reads the identities of a window's JVMs.
///
/// # Errors
/// The same errors as [`read`](fn@read).
pub fn read_jvms(lines: impl Read) -> io::Result<Vec<Identity>> {
    let mut lines = Lines::new(lines);
    next_header(&mut lines)?;
    let mut jvms = Vec::new();
    while let Some(line) = lines.next()? {
        let kind: Kind<'_> = serde_json::from_str(&line)?;
        if kind.kind == "jvm" && jvms.len() < MAX_JVMS {
            jvms.push(serde_json::from_str::<Jvm>(&line)?.identity);
        }
    }
    Ok(jvms)
}

fn next_header(lines: &mut Lines<impl Read>) -> io::Result<Header> {
    let line = lines.next()?.ok_or_else(|| invalid("it is empty"))?;
    Ok(serde_json::from_str(&line)?)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Reader of lines of bounded length.
struct Lines<R: Read>(BufReader<io::Take<GzDecoder<R>>>);

impl<R: Read> Lines<R> {
    fn new(from: R) -> Self {
        Self(BufReader::new(GzDecoder::new(from).take(MAX_LINES)))
    }

    /// Returns the next line; `None` at the end.
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if (&mut self.0).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.pop() != Some(b'\n') {
            return Err(invalid("a line is too long or incomplete"));
        }
        String::from_utf8(line).map(Some).map_err(|_| invalid("it is not text"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use libjvmprobe::trace::pauses::record::{Record, Stop};
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn encode_files(stored: &Stored) -> [Vec<u8>; 2] {
        let all = write(stored, |files| {
            let mut all = Vec::new();
            for (_, content) in files {
                let mut bytes = Vec::new();
                content(&mut bytes)?;
                all.push(bytes);
            }
            Ok(all)
        });
        all.unwrap().try_into().unwrap()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut zip = GzEncoder::new(Vec::new(), Compression::fast());
        zip.write_all(text).unwrap();
        zip.finish().unwrap()
    }

    fn stored(pauses: Vec<Record>) -> Stored {
        let identity = Identity { pid: 7, name: "shop\n\u{202e}".into(), ..Identity::default() };
        let profiles = vec![libjvmprobe::stack::profile::Profile::default()];
        let dump = r#"{"type":"threads","time":"2026-11-22T03:12:00Z","pid":7,"cause":"deadlock",
            "deadlocks":[["a","b"]],"waiting":0,"threads":"\"a\"\n\tat A.b\n","locks":"x"}"#;
        let dumps = vec![serde_json::from_str(dump).unwrap()];
        let identity = Arc::new(identity);
        let (cpu_ns, system_cpu_ns) = (Some(7), Some(3));
        let jvm_data = JvmData { identity, profiles, pauses, dumps, cpu_ns, system_cpu_ns };
        let left_out = [("alloc".to_owned(), 2)].into();
        let host_ticks = Some(HostTicks { busy: 5, total: 9 });
        let jvms = vec![jvm_data];
        let window = Window { begin_ns: 5, end_ns: u64::MAX, jvms, left_out, host_ticks };
        Stored { window, covered_ns: 3, of: vec!["a".into()] }
    }

    #[test]
    fn written_window_reads_back_unchanged() {
        let stop = |op: &str| Stop {
            op: Some(op.into()),
            stopped_ns: u64::MAX,
            heap_after: Some(7),
            ..Stop::default()
        };
        let lost = r#"{"type":"lost","time":"t","pid":7,"events":3}"#;
        let pauses = vec![
            Record::Pause(stop("a\n\"\u{202e}")),
            serde_json::from_str(lost).unwrap(),
            // Longer than the maximum length of a line.
            Record::Safepoint(stop(&"x".repeat(1 << 20))),
        ];
        let json = |records: &[Record]| -> Vec<_> {
            records.iter().map(|record| serde_json::to_string(record).unwrap()).collect()
        };
        let pauses_left = json(&pauses[..2]);
        assert_eq!(pauses_left[1], lost);
        let stored = stored(pauses);
        let dumps = stored.window.jvms[0].dumps.clone();
        assert_eq!(dumps.len(), 1);
        let [profiles, lines] = encode_files(&stored);
        let again = read(&profiles[..], &lines[..]).unwrap();
        let jvm_data = &again.window.jvms[0];
        assert_eq!((jvm_data.identity.pid, &*jvm_data.identity.name), (7, "shop\n\u{202e}"));
        assert_eq!((json(&jvm_data.pauses), jvm_data.profiles.len()), (pauses_left, 1));
        assert_eq!((jvm_data.cpu_ns, jvm_data.system_cpu_ns), (Some(7), Some(3)));
        assert_eq!(jvm_data.dumps, dumps);
        assert_eq!(again.window.host_ticks, Some(HostTicks { busy: 5, total: 9 }));
        assert_eq!(again.window.left_out["alloc"], 2);
        assert_eq!(
            (again.window.end_ns, again.covered_ns, again.of),
            (u64::MAX, 3, vec!["a".to_owned()])
        );
    }

    #[test]
    fn jvm_with_too_long_a_line_loses_attributes() {
        let mut stored = stored(Vec::new());
        let identity = Arc::make_mut(&mut stored.window.jvms[0].identity);
        identity.attributes = [("a", "\\".repeat(1 << 20)), ("container.id", "c".into())]
            .map(|(key, value)| (key.to_owned(), value))
            .into();
        let [profiles, lines] = encode_files(&stored);
        let identity = &read(&profiles[..], &lines[..]).unwrap().window.jvms[0].identity;
        assert_eq!((identity.attributes.len(), &*identity.tenant()), (1, "container/c"));
    }

    #[test]
    fn malformed_windows_are_rejected() {
        let [profiles, _] = encode_files(&stored(Vec::new()));
        let header = r#"{"type":"window","begin_ns":1,"end_ns":2,"covered_ns":1,"of":[]}"#;
        let jvm = r#"{"type":"jvm","pid":1,"started_ns":1,"name":"a","attributes":{}}"#;
        let refused =
            |lines: &str| read(&profiles[..], &gzip(lines.as_bytes())[..]).unwrap_err().to_string();
        assert!(read(&profiles[..], &gzip(format!("{header}\n{jvm}\n").as_bytes())[..]).is_ok());
        assert!(refused("").contains("empty"));
        assert!(refused(&format!("{header}\n")).contains("a profile belongs to no JVM"));
        assert!(
            refused(&format!("{header}\n{{\"type\":\"pause\"}}\n"))
                .contains("a record belongs to no JVM")
        );
        assert!(
            refused(&format!("{header}\n{jvm}\n{{\"type\":\"other\"}}\n"))
                .contains("unknown variant")
        );
        let many = "{\"type\":\"pause\"}\n".repeat(MAX_RECORDS + 1);
        assert!(refused(&format!("{header}\n{jvm}\n{many}")).contains("too many records"));
        assert!(refused(&format!("{header}\n{jvm}")).contains("incomplete"));
        assert!(refused(&format!("{header}\n{}\n", "x".repeat(2 << 20))).contains("too long"));
        assert!(read(&profiles[..], &b"no gzip"[..]).is_err());
    }

    proptest! {
        #[test]
        fn random_lines_cause_no_panic(lines in vec("\\PC{0,40}|\\{\"type\":\"(jvm|pause|window)\"(,\"pid\":1)?\\}", 0..5)) {
            let [profiles, _] = encode_files(&stored(Vec::new()));
            let _ = read(&profiles[..], &gzip(lines.join("\n").as_bytes())[..]);
        }
    }
}
