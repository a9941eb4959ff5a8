//! Our JVMTI agent, loaded into a JVM for a moment: it writes down what compiled code
//! there is, with what was inlined where, and falls silent.
//!
//! The agent (`libjvmprobe/agent`) needs no libc and is embedded here. It is copied into
//! the target's file system with the target's user as its owner, under a name that
//! nobody can guess, and removed as soon as the JVM has mapped it, with the map that it
//! has written by then. JDK 21 and later print a warning on
//! the target's stderr when an agent is loaded (JEP 451), and later ones may refuse.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
};

use super::{
    Process,
    attach::{self, inside, open_folder},
};
use crate::{Error, Result, hotspot::HotSpot, stack::builtin_map};

static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// Folders of the target that code may be loaded from, best first.
const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// Loads the agent and returns the map that it has written.
///
/// # Errors
/// [`Error::Attach`] saying why the JVM cannot be attached to or refuses the agent.
pub fn map(process: &Process, hotspot: &HotSpot) -> Result<String> {
    let mut reasons = Vec::new();
    for folder in FOLDERS {
        match load_from(folder, process, hotspot) {
            Ok(text) => return Ok(text),
            // Another folder would not help.
            Err(Failed::Jvm(error)) => return Err(error),
            Err(Failed::Folder(why)) => reasons.push(format!("{folder}: {why}")),
        }
    }
    let why = format!("it did not take the agent ({})", reasons.join("; "));
    Err(Error::Attach { pid: process.pid, why })
}

enum Failed {
    /// The JVM does not answer.
    Jvm(Error),
    /// Something is wrong with this folder: full, read-only, `noexec`.
    Folder(String),
}

fn load_from(folder: &str, process: &Process, hotspot: &HotSpot) -> Result<String, Failed> {
    let here =
        open_folder(&format!("/proc/{}/root{folder}", process.pid)).map_err(Failed::Folder)?;
    let name = unguessable_name().map_err(Failed::Folder)?;
    let create = |ending: &str, mode, content: &'static [u8]| {
        let name = format!("{name}.{ending}");
        TargetFile::create(&here, &name, mode, content, process).map_err(Failed::Folder)
    };
    let _agent = create("so", 0o500, AGENT)?;
    let map = create("map", 0o600, &[])?;
    let agent_there = format!("{folder}/{name}.so");
    let options = format!("map={folder}/{name}.map,once");
    let answer = attach::command(process, hotspot, "load", &[&agent_there, "true", &options])
        .map_err(Failed::Jvm)?;
    let answer = answer.trim();
    let code = answer.strip_prefix("return code: ").unwrap_or(answer);
    if code != "0" {
        return Err(Failed::Folder(answer.lines().next().unwrap_or("no reason given").into()));
    }
    let text = File::open(map.path()).and_then(builtin_map::text);
    text.map_err(|e| Failed::Folder(format!("the agent's map: {e}")))
}

fn unguessable_name() -> Result<String, String> {
    let mut random = [0_u8; 12];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| e.to_string())?;
    Ok(random.iter().fold(".jvmprobe-".to_owned(), |name, byte| name + &format!("{byte:02x}")))
}

/// A file in the target's file system, removed when it goes out of scope; also after
/// the target's end, for the folder is held.
struct TargetFile<'a> {
    folder: &'a File,
    name: String,
}

impl<'a> TargetFile<'a> {
    fn create(
        folder: &'a File,
        name: &str,
        mode: u32,
        content: &'static [u8],
        process: &Process,
    ) -> Result<Self, String> {
        let path = inside(folder, name);
        attach::as_target(process, || {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(mode);
            options.open(&path).map(|_| ()).map_err(|e| e.to_string())
        })?;
        let file = Self { folder, name: name.into() };
        // As the target's user we might lack the right to write what only it may read.
        let mut writer =
            OpenOptions::new().write(true).open(file.path()).map_err(|e| e.to_string())?;
        writer.write_all(content).map_err(|e| e.to_string())?;
        Ok(file)
    }

    fn path(&self) -> std::path::PathBuf {
        inside(self.folder, &self.name)
    }
}

impl Drop for TargetFile<'_> {
    fn drop(&mut self) {
        // Gone only where somebody else removed it.
        let _ = fs::remove_file(self.path());
    }
}

#[cfg(test)]
mod tests {
    use goblin::elf::Elf;

    use super::*;

    #[test]
    fn the_agent_wants_nothing_of_a_libc() {
        let elf = Elf::parse(AGENT).unwrap();
        assert!(elf.libraries.is_empty(), "{:?}", elf.libraries);
        let undefined: Vec<_> = elf
            .dynsyms
            .iter()
            .filter(|sym| sym.is_import())
            .filter_map(|sym| elf.dynstrtab.get_at(sym.st_name))
            .collect();
        assert!(undefined.is_empty(), "{undefined:?}");
        let exported =
            |name| elf.dynsyms.iter().any(|s| elf.dynstrtab.get_at(s.st_name) == Some(name));
        assert!(exported("Agent_OnAttach") && exported("Agent_OnLoad"));
    }

    #[test]
    fn names_are_never_the_same() {
        assert_ne!(unguessable_name().unwrap(), unguessable_name().unwrap());
    }
}
