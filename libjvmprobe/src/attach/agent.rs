//! Our JVMTI agent, loaded into a JVM temporarily: it writes a map of compiled code and inlined methods, and then does
//! nothing more.
//!
//! The agent (`libjvmprobe/agent`) needs no libc and is embedded here. It is copied into the target's file
//! system, owned by the target's user, under a name that cannot be guessed. The agent writes the map while
//! the JVM loads it. The copy and the map are removed as soon as the map has been read or loading has failed.
//! JDK 21 and later print a warning on the target's stderr when an agent is loaded (JEP 451), and future JDKs
//! may reject the agent.

use std::{
    fs::File,
    io::{self, Write},
};

use crate::{
    Error, Result,
    attach::{jcmd, perf_map},
    hotspot::HotSpot,
    process::{
        Process,
        identity::Owner,
        root::{self, Folder, NewFile, Root},
    },
    sys::Deadline,
};

static AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.so"));

/// Folders of the target from which code can be loaded, preferred ones first.
const FOLDERS: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// Loads the agent and returns the map that it has written.
///
/// # Errors
/// [`Error::Attach`] with the reason why the JVM cannot be attached to or rejects the agent.
pub fn map(process: &Process, hotspot: &HotSpot) -> Result<String> {
    let refuse = |why| Error::Attach { pid: process.pid, why };
    let deadline = Deadline::within(jcmd::TIMEOUT);
    let root = Root::open(process).map_err(refuse)?;
    let mut reasons = Vec::new();
    for folder in FOLDERS {
        let loaded = root.folder(folder).map_err(Failed::Folder).and_then(|folder_handle| {
            load_from(&folder_handle, folder, process, hotspot, deadline)
        });
        match loaded {
            Ok(text) => return Ok(text),
            // Another folder would not help.
            Err(Failed::Jvm(error)) => return Err(error),
            Err(Failed::Folder(why)) if why.starts_with(folder) => reasons.push(why),
            Err(Failed::Folder(why)) => reasons.push(format!("{folder}: {why}")),
        }
    }
    Err(refuse(format!("it did not load the agent ({})", reasons.join("; "))))
}

enum Failed {
    /// The JVM cannot be attached to, does not answer or rejects the command.
    Jvm(Error),
    /// The folder cannot be used: it is full, read-only or mounted with `noexec`.
    Folder(String),
}

fn load_from(
    folder_handle: &Folder<'_>,
    folder: &str,
    process: &Process,
    hotspot: &HotSpot,
    deadline: Deadline,
) -> Result<String, Failed> {
    let name = unguessable_name().map_err(Failed::Folder)?;
    let create = |ending: &str, mode, content| {
        let name = format!("{name}.{ending}");
        create(folder_handle, process, &name, mode, content)
            .map_err(|e| Failed::Folder(e.to_string()))
    };
    let _agent = create("so", 0o500, AGENT)?;
    let map = create("map", 0o600, &[])?;
    let agent_path = format!("{folder}/{name}.so");
    let map_path = format!("{folder}/{name}.map");
    let arguments = [&agent_path, "true", &map_path];
    let answer =
        jcmd::command(process, hotspot, "load", &arguments, deadline).map_err(Failed::Jvm)?;
    let answer = answer.trim();
    let code = answer.strip_prefix("return code: ").unwrap_or(answer);
    if code != "0" {
        return Err(Failed::Folder(answer.lines().next().unwrap_or("no reason given").into()));
    }
    // The map is read through the descriptor with which it was created, because the target could replace the
    // file of that name.
    root::text(map.file(), perf_map::MAX_BYTES)
        .map_err(|e| Failed::Folder(format!("cannot read the agent's map: {e}")))
}

const PREFIX: &str = ".jvmprobe-";
const RANDOM_BYTES: usize = 12;

fn unguessable_name() -> Result<String, String> {
    let mut random = [0_u8; RANDOM_BYTES];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| e.to_string())?;
    Ok(random.iter().fold(PREFIX.to_owned(), |name, byte| name + &format!("{byte:02x}")))
}

/// Returns whether a mapped file with this name is our agent.
pub fn is_agent(file_name: &str) -> bool {
    let random = file_name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(".so"));
    random.is_some_and(|text| {
        text.len() == 2 * RANDOM_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Creates a file with this content that belongs to the target's user.
fn create<'a>(
    folder: &'a Folder<'a>,
    process: &Process,
    name: &str,
    mode: u32,
    content: &[u8],
) -> io::Result<NewFile<'a>> {
    let new = folder.create(Owner::Target(process), name, mode)?;
    let mut writer: &File = new.file();
    writer.write_all(content)?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use goblin::elf::Elf;

    use super::*;

    #[test]
    fn agent_library_imports_no_libraries_or_symbols() {
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
        assert!(exported("Agent_OnAttach"));
    }

    #[test]
    fn successive_agent_names_differ() {
        assert_ne!(unguessable_name().unwrap(), unguessable_name().unwrap());
    }

    #[test]
    fn is_agent_accepts_only_generated_names() {
        assert!(is_agent(&(unguessable_name().unwrap() + ".so")));
        for other in ["", "libjvm.so", ".jvmprobe-.so", ".jvmprobe-17.so", "libjvmprobe.so"] {
            assert!(!is_agent(other), "{other}");
        }
    }
}
