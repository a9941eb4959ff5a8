//! Push target `dir=PATH`: a directory that receives a pprof file for each JVM and window, and the JVM's
//! pauses as JSON lines.
//!
//! A file is complete or absent. The program that reads the directory has to remove the files; jvmprobed removes none.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use libjvmprobe::{render::formats::pprof, stack::profile::Profile};

use crate::{
    push::{
        client::Outcome,
        queue::{Header, write_file},
        samples,
    },
    window::{Identity, Window},
};

/// Encodes a window as files.
pub fn files(window: &Window) -> Vec<(Header, Vec<u8>)> {
    let mut all = Vec::new();
    for jvm in &window.jvms {
        let profiles: Vec<&Profile> =
            jvm.profiles.iter().filter(|profile| !profile.samples.is_empty()).collect();
        let mut bytes = Vec::new();
        if !profiles.is_empty() && pprof::write(&profiles, &mut bytes).is_ok() {
            let header = Header {
                name: name(&jvm.identity, window, "pb.gz"),
                profiles: profiles.len() as u64,
                samples: profiles.iter().map(|profile| samples(profile)).sum(),
                time_ns: window.end_ns,
                ..Header::default()
            };
            all.push((header, bytes));
        }
        if !jvm.pauses.is_empty() {
            let name = name(&jvm.identity, window, "jsonl");
            // Records consist of numbers and strings, so serializing them does not fail.
            let lines = jvm.pauses.iter().flat_map(serde_json::to_string);
            let text = lines.map(|line| line + "\n").collect::<String>();
            let header = Header { name, time_ns: window.end_ns, ..Header::default() };
            all.push((header, text.into_bytes()));
        }
    }
    all
}

/// Returns the name of a file, for example `shop-4711-1732312345.pb.gz`: JVM, PID, and the window's begin in
/// seconds since 1970. A process chooses its own name, so every character except ASCII letters, digits and
/// underscores becomes a dash.
fn name(identity: &Identity, window: &Window, ending: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let short: String = identity.name.chars().map(safe).take(100).collect();
    let short = short.trim_matches('-');
    let short = if short.is_empty() { "jvm" } else { short };
    format!("{short}-{}-{}.{ending}", identity.pid, window.begin_ns / 1_000_000_000)
}

/// Writes a file.
pub fn send(folder: &Path, header: &Header, body: &[u8]) -> Outcome {
    match write(folder, &header.name, body) {
        Ok(()) => Outcome::accepted(),
        Err(error) => Outcome::Later(None, format!("cannot write to the directory: {error}")),
    }
}

/// Returns the path of a new file. If the clock was set back, another window may have the same name, so the name gets a
/// number. Returns `None` if an earlier attempt has already written the file.
fn free_path(folder: &Path, name: &str, body: &[u8]) -> io::Result<Option<PathBuf>> {
    /// Maximum number of windows with the same name.
    const MAX_NUMBER: u32 = 100;
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    for number in 1..=MAX_NUMBER {
        let path = match number {
            1 => folder.join(name),
            _ => folder.join(format!("{stem}-{number}.{ending}")),
        };
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(path)),
            Err(e) => return Err(e),
            Ok(found) if found.is_file() && found.len() == body.len() as u64 => {
                if fs::read(&path)? == body {
                    return Ok(None);
                }
            }
            Ok(_) => {}
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "too many files have the same name"))
}

fn write(folder: &Path, name: &str, body: &[u8]) -> io::Result<()> {
    if name.is_empty() || name.contains('/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file name"));
    }
    let Some(path) = free_path(folder, name, body)? else { return Ok(()) };
    let temporary = folder.join(format!(".{name}.tmp"));
    write_file(folder, (&temporary, &path), 0o640, &[body])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use libjvmprobe::{
        stack::profile::Measure,
        trace::pauses::record::{Limited, Record},
    };

    use super::*;
    use crate::window::JvmData;

    #[test]
    fn jvm_name_cannot_escape_the_output_folder() {
        let identity = Identity { pid: 7, name: "../../etc/pass wd".into(), ..Identity::default() };
        let jvm_data = JvmData {
            identity: Arc::new(identity),
            profiles: vec![Profile::of(Measure::Time)],
            pauses: [7, 8].map(|pid| Record::Limited(Limited { pid, ..Limited::default() })).into(),
            ..JvmData::default()
        };
        let window = Window {
            begin_ns: 5_000_000_000,
            end_ns: 6,
            jvms: vec![jvm_data],
            ..Window::default()
        };
        let files = files(&window);
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0.name, "etc-pass-wd-7-5.jsonl");
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(send(folder.path(), &files[0].0, &files[0].1), Outcome::accepted());
        let text = fs::read_to_string(folder.path().join(&files[0].0.name)).unwrap();
        let sum = r#"{"count":0,"stopped_ns":0,"max_ns":0}"#;
        let line = |pid| {
            format!(
                "{{\"type\":\"limited\",\"pid\":{pid},\"pauses\":{sum},\"safepoints\":{sum}}}\n"
            )
        };
        assert_eq!(text, line(7) + &line(8));
        // A repeated attempt writes nothing. Another window of the same second gets another name.
        assert_eq!(send(folder.path(), &files[0].0, &files[0].1), Outcome::accepted());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(send(folder.path(), &files[0].0, b"other"), Outcome::accepted());
        assert_eq!(fs::read(folder.path().join("etc-pass-wd-7-5-2.jsonl")).unwrap(), b"other");
        let gone = folder.path().join("gone");
        assert!(matches!(send(&gone, &files[0].0, b""), Outcome::Later(..)));
    }
}
