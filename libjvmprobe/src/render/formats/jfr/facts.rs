//! Events that describe the JVM and the host.

use std::io::{self, Write};

use rustix::system::uname;

use super::{
    recording::Recording,
    types::{JVM_INFORMATION, OS_INFORMATION},
};

/// Value of a time that is not known, which readers show as "N/A".
const UNKNOWN_TIME: u64 = 1 << 63;

/// A JVM. Texts that are unknown are missing in its event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jvm<'a> {
    /// The process.
    pub pid: u32,
    /// Name and version, for example `OpenJDK 64-Bit Server VM 21.0.5+11`.
    pub version: Option<&'a str>,
    /// Main class or jar.
    pub program: Option<&'a str>,
    /// Start of the process in nanoseconds since 1970, if known.
    pub started_ns: Option<u64>,
}

impl<W: Write> Recording<W> {
    /// Adds the kernel of the host that this process runs on.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn host(&mut self, now_ns: u64) -> io::Result<()> {
        let uname = uname();
        let parts = [uname.sysname(), uname.release(), uname.version(), uname.machine()];
        let text = parts.map(|part| part.to_string_lossy().into_owned()).join(" ");
        self.event(&OS_INFORMATION, (now_ns, now_ns), |_, to| to.text(&text))
    }

    /// Adds a JVM, once for each process.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn jvm(&mut self, jvm: Jvm<'_>, now_ns: u64) -> io::Result<()> {
        if !self.jvms.insert(jvm.pid) {
            return Ok(());
        }
        // The version is the last word.
        let (name, version) =
            match jvm.version.map(|text| text.rsplit_once(' ').unwrap_or((text, ""))) {
                Some((name, version)) => (Some(name), Some(version)),
                None => (None, None),
            };
        let started_ms = jvm.started_ns.map_or(UNKNOWN_TIME, |ns| ns / 1_000_000);
        self.event(&JVM_INFORMATION, (now_ns, now_ns), |_, to| {
            for text in [name, version, None, None, jvm.program] {
                match text {
                    Some(text) => to.text(text),
                    None => to.no_text(),
                }
            }
            to.number(started_ms);
            to.number(jvm.pid.into());
        })
    }
}
