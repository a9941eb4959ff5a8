//! Events that describe the JVM and the host.

use std::io::{self, Write};

use rustix::system::uname;

use super::{
    recording::Recording,
    types::{CPU_LOAD, JVM_INFORMATION, OS_INFORMATION, SYSTEM_PROPERTY},
};
use crate::hotspot::description::Description;

/// Fact about a JVM whose event does not say to which JVM it belongs. It is written at the end of a chunk, when it is known
/// whether the recording is about one JVM only.
#[derive(Debug)]
pub(super) enum Fact {
    /// Name and value of a system property.
    Property(String, String),
    /// Shares of the CPU time of all processors, see [`Recording::cpu_load`].
    CpuLoad([f32; 3]),
}

/// Value of a time that is not known, which readers show as "N/A".
const UNKNOWN_TIME: u64 = 1 << 63;

impl<W: Write> Recording<W> {
    /// Adds the kernel of the host that this process runs on. `now_ns` is the event's time, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn host(&mut self, now_ns: u64) -> io::Result<()> {
        let uname = uname();
        let parts = [uname.sysname(), uname.release(), uname.version(), uname.machine()];
        let text = parts.map(|part| part.to_string_lossy().into_owned()).join(" ");
        self.event(&OS_INFORMATION, (now_ns, now_ns), |_, to| to.text(&text))
    }

    /// Adds a JVM, once for each process. `now_ns` is the event's time, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn jvm(&mut self, jvm: &Description, now_ns: u64) -> io::Result<()> {
        if !self.jvms.insert(jvm.pid) {
            return Ok(());
        }
        let properties = jvm.properties.iter().cloned();
        let facts = properties.map(|(key, value)| (now_ns, Fact::Property(key, value)));
        self.facts.extend(facts);
        self.drop_ambiguous_facts();
        self.event(&JVM_INFORMATION, (now_ns, now_ns), |_, to| {
            for text in [&jvm.name, &jvm.version, &jvm.arguments, &jvm.flags, &jvm.command] {
                match text {
                    Some(text) => to.text(text),
                    None => to.no_text(),
                }
            }
            to.number(jvm.started_ms.unwrap_or(UNKNOWN_TIME));
            to.number(jvm.pid.into());
        })
    }

    /// Adds the use of the host's processors in a period that ends at `end_ns`, in nanoseconds since 1970: shares of the
    /// capacity of all processors that the JVM used in user mode and in the kernel, and that all processes used.
    pub fn cpu_load(&mut self, shares: [f32; 3], end_ns: u64) {
        self.facts.push((end_ns, Fact::CpuLoad(shares)));
        self.drop_ambiguous_facts();
    }

    /// Drops the facts that do not say to which JVM they belong, if there are several.
    fn drop_ambiguous_facts(&mut self) {
        if self.jvms.len() > 1 {
            self.facts.clear();
        }
    }

    /// Adds the facts that the current chunk is still missing.
    pub(super) fn add_facts(&mut self) {
        for (at_ns, fact) in std::mem::take(&mut self.facts) {
            match fact {
                Fact::Property(key, value) => {
                    self.append(&SYSTEM_PROPERTY, (at_ns, at_ns), |_, to| {
                        to.text(&key);
                        to.text(&value);
                    });
                }
                Fact::CpuLoad(shares) => self.append(&CPU_LOAD, (at_ns, at_ns), |_, to| {
                    shares.into_iter().for_each(|share| to.float(share));
                }),
            }
        }
    }
}
