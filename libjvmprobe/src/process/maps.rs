//! Mappings of a process, read line by line.
//!
//! A process may have 65,530 mappings (sysctl vm.max_map_count), each with a path of 50 kB and more. So the caller
//! selects the lines to keep, and the size of the text is limited. Source: proc(5), `/proc/PID/maps`.

use std::io::{self, BufRead, BufReader, Read};

use procfs::{
    FromRead,
    process::{MemoryMap, MemoryMaps},
};

use crate::{
    Pid, Result,
    process::{
        pid::{proc_error, read_error},
        reader::ProcFile,
    },
};

/// Maximum size of the text. 65,530 mappings with ordinary paths take 8 MB.
const MAX_TEXT: u64 = 64 << 20;
/// Maximum length of a line. A path that can be opened has at most 4,096 bytes (PATH_MAX).
const MAX_LINE: usize = 8192;
/// Maximum total size of the lines that are kept.
const MAX_KEPT: usize = 16 << 20;
/// Beginning of the names of System V shared memory. If a file has such a name, procfs may panic, because it expects eight
/// digits after this beginning. No caller needs these mappings.
const SYSTEM_V: &[u8] = b"/SYSV";

/// Returns the mappings of a process whose lines `is_wanted` selects. Lines longer than `MAX_LINE` are skipped, and so is
/// System V shared memory.
///
/// # Errors
/// [`NoSuchProcess`](crate::Error::NoSuchProcess), [`Permission`](crate::Error::Permission);
/// [`Io`](crate::Error::Io) if the text exceeds 64 MiB, or the selected lines together exceed 16 MiB.
pub(crate) fn of(pid: Pid, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<MemoryMap>> {
    let mut kept = Vec::new();
    for_each_line(pid, "maps", |line| {
        if !is_system_v(line) && is_wanted(line) {
            if kept.len() + line.len() > MAX_KEPT {
                return Err(io::Error::other("it has too many mappings"));
            }
            kept.extend_from_slice(line);
        }
        Ok(true)
    })?;
    parse(pid, &kept)
}

/// Returns the first `max` mappings of a process whose lines `is_wanted` selects, and the number of further ones.
///
/// # Errors
/// Returns the errors of [`of`], but not one for the size of the selected lines.
pub(crate) fn first_of(
    pid: Pid,
    max: usize,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Result<(Vec<MemoryMap>, usize)> {
    let (mut kept, mut count, mut omitted) = (Vec::new(), 0, 0);
    for_each_line(pid, "maps", |line| {
        if !is_system_v(line) && is_wanted(line) {
            if count < max && kept.len() + line.len() <= MAX_KEPT {
                kept.extend_from_slice(line);
                count += 1;
            } else {
                omitted += 1;
            }
        }
        Ok(true)
    })?;
    Ok((parse(pid, &kept)?, omitted))
}

/// Parses the lines of mappings.
fn parse(pid: Pid, lines: &[u8]) -> Result<Vec<MemoryMap>> {
    // File names may contain any bytes, and procfs would reject invalid UTF-8.
    let text = String::from_utf8_lossy(lines);
    let maps = MemoryMaps::from_read(text.as_bytes()).map_err(|e| proc_error(pid, e))?;
    Ok(maps.0)
}

/// Returns whether any mapping's line contains one of the texts. Stops reading at the first such line.
///
/// # Errors
/// Returns the errors of [`of`].
pub(super) fn any_line_contains(pid: Pid, texts: &[&[u8]]) -> Result<bool> {
    any_line_of(pid, "maps", texts)
}

/// Like [`any_line_contains`], but for a process whose first thread has ended: reads the mappings of another thread.
///
/// # Errors
/// Returns the errors of [`of`].
pub(super) fn any_line_of_thread_contains(pid: Pid, thread: Pid, texts: &[&[u8]]) -> Result<bool> {
    any_line_of(pid, &format!("task/{thread}/maps"), texts)
}

fn any_line_of(pid: Pid, name: &str, texts: &[&[u8]]) -> Result<bool> {
    let mut is_there = false;
    for_each_line(pid, name, |line| {
        is_there = texts.iter().any(|text| has(line, text));
        Ok(!is_there)
    })?;
    Ok(is_there)
}

/// Returns whether a line contains a text.
pub(super) fn has(line: &[u8], text: &[u8]) -> bool {
    line.windows(text.len()).any(|window| window == text)
}

/// Returns the name at the end of a line, with the newline; empty if the mapping has no name.
pub(super) fn name_of(line: &[u8]) -> &[u8] {
    // Five fields precede the name, which is padded with spaces on the left.
    line.splitn(6, |&byte| byte == b' ').nth(5).unwrap_or_default().trim_ascii_start()
}

fn is_system_v(line: &[u8]) -> bool {
    name_of(line).starts_with(SYSTEM_V)
}

/// Returns whether a mapping is executable, by its line: `START-END PERMISSIONS ...`.
pub(super) fn is_code(line: &[u8]) -> bool {
    let permissions = line.split(|&byte| byte == b' ').nth(1);
    permissions.is_some_and(|permissions| permissions.get(2) == Some(&b'x'))
}

fn for_each_line(pid: Pid, name: &str, line: impl FnMut(&[u8]) -> io::Result<bool>) -> Result<()> {
    let path = format!("/proc/{pid}/{name}");
    let read = || lines(BufReader::with_capacity(64 << 10, ProcFile::open(pid, name)?), line);
    read().map_err(|e| read_error(pid, &path, e))
}

/// Calls `line` with each line of at most `MAX_LINE` bytes, including the newline, until it returns false.
fn lines(from: impl BufRead, mut line: impl FnMut(&[u8]) -> io::Result<bool>) -> io::Result<()> {
    let mut from = from.take(MAX_TEXT);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = from.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut bytes)?;
        match bytes.last() {
            None if from.limit() == 0 => return Err(io::Error::other("it is longer than 64 MiB")),
            None => return Ok(()),
            Some(b'\n') => {
                if !line(&bytes)? {
                    return Ok(());
                }
            }
            // Ignores an incomplete line at the size limit or at the end of the text.
            Some(_) if read < MAX_LINE => {}
            Some(_) => from.skip_until(b'\n').map(drop)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn long_lines_are_skipped_and_large_files_rejected() {
        let read = |text: &str| {
            let mut all = Vec::new();
            let result = lines(text.as_bytes(), |line| {
                all.push(String::from_utf8(line.to_vec()).unwrap());
                Ok(true)
            });
            result.map(|()| all)
        };
        assert_eq!(read("").unwrap(), [""; 0]);
        let long = "x".repeat(MAX_LINE);
        assert_eq!(read(&format!("a\n{long}\n{long}{long}{long}\nb\n")).unwrap(), ["a\n", "b\n"]);
        let max = format!("{}\n", &long[..MAX_LINE - 1]);
        assert_eq!(read(&format!("{max}c\n")).unwrap(), [max.as_str(), "c\n"]);
        let huge = "y".repeat(usize::try_from(MAX_TEXT).unwrap() + 1);
        assert!(read(&huge).unwrap_err().to_string().contains("64 MiB"));
        assert!(read(&"z\n".repeat(1 << 25)).unwrap_err().to_string().contains("64 MiB"));
    }

    #[test]
    fn names_are_at_the_end_of_lines() {
        let line =
            |path: &str| format!("7f01-7f02 r-xp 00000000 08:01 1037    {path}\n").into_bytes();
        assert_eq!(name_of(&line("/a b/SYSV")), b"/a b/SYSV\n");
        assert_eq!(name_of(b"7f01-7f02 r-xp 00000000 00:00 0\n"), b"");
        assert_eq!(name_of(b""), b"");
        // procfs panics at the second of these paths.
        assert!(
            ["/SYSV00000000 (deleted)", "/SYSV1", "/SYSV"]
                .iter()
                .all(|path| is_system_v(&line(path)))
        );
        assert!(!["/srv/SYSV", "/lib/libjvm.so"].iter().any(|path| is_system_v(&line(path))));
    }

    #[test]
    fn mappings_are_filtered_by_their_lines() {
        let own = Pid(std::process::id());
        let all = of(own, |_| true).unwrap().len();
        let code = of(own, is_code).unwrap();
        let (first, omitted) = first_of(own, 2, is_code).unwrap();
        assert_eq!((first.len(), omitted), (2, code.len() - 2));
        assert_eq!(first[1].address, code[1].address);
        assert!(code.len() < all && !code.is_empty());
        use procfs::process::MMPermissions;
        assert!(code.iter().all(|map| map.perms.contains(MMPermissions::EXECUTE)));
        assert!(any_line_contains(own, &[b"nothing of this name", b"[stack]"]).unwrap());
        assert!(!any_line_contains(own, &[b"nothing of this name"]).unwrap());
        assert!(matches!(
            any_line_contains(Pid(u32::MAX), &[b"x"]),
            Err(Error::NoSuchProcess { .. })
        ));
    }
}
