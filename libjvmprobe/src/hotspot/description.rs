//! Description of a JVM: version, arguments and system properties, as the JVM's performance data have them.
//!
//! Sources: hotspot/share/runtime/statSampler.cpp (`create_misc_perfdata`, `create_system_property_instrumentation`),
//! services/management.cpp (`_vm_init_done_time`).

use crate::{
    hotspot::{HotSpot, instance::perf_data, perfdata::PerfData},
    names::clean,
};

/// Length of a text at which HotSpot truncates it, in bytes (`PerfMaxStringConstLength` in runtime/globals.hpp).
const TRUNCATED: usize = 1024;

/// Prefix of the names of system properties.
const PROPERTY: &str = "java.property.";

/// Description of a JVM. Truncated texts end in `...`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The process.
    pub pid: u32,
    /// Name of the VM, for example `OpenJDK 64-Bit Server VM`.
    pub name: Option<String>,
    /// Its version, with the details of its build if they are known.
    pub version: Option<String>,
    /// Arguments of the JVM: flags and options.
    pub arguments: Option<String>,
    /// Arguments from settings files.
    pub flags: Option<String>,
    /// Main class or jar, with the arguments of the program.
    pub command: Option<String>,
    /// Time at which the JVM was initialized, in milliseconds since 1970.
    pub started_ms: Option<u64>,
    /// Names and values of system properties. The JVM shows only some of them to other processes.
    pub properties: Vec<(String, String)>,
}

impl HotSpot {
    /// Returns the JVM's description. Without performance data, only name and version are known.
    pub fn description(&self) -> Description {
        let pid = self.pid.0;
        let data = perf_data(&self.memory, &self.layout)
            .inspect_err(|e| log::debug!("process {pid}: its arguments are unknown: {e}"))
            .ok()
            .flatten();
        data.map_or_else(|| product(&self.version), |(_, data)| of(&data)).of_process(pid)
    }
}

impl Description {
    /// Returns this description with the number of the process.
    #[must_use]
    pub fn of_process(self, pid: u32) -> Self {
        Self { pid, ..self }
    }
}

/// Returns a description of which only name and version are known. The version is the last word of `product`.
pub fn product(product: &str) -> Description {
    let (name, version) = match product.rsplit_once(' ') {
        Some((name, version)) => (name, Some(version.to_owned())),
        None => (product, None),
    };
    Description { name: Some(name.to_owned()), version, ..Description::default() }
}

fn of(data: &PerfData) -> Description {
    let text = |name: &str| data.string(name).map(shown).filter(|text| !text.is_empty());
    let properties = data.names().filter_map(|name| {
        let key = name.strip_prefix(PROPERTY)?;
        Some((clean::name(key).into_owned(), shown(data.string(name)?)))
    });
    Description {
        pid: 0,
        name: text("java.property.java.vm.name"),
        version: text("sun.rt.internalVersion"),
        arguments: text("java.rt.vmArgs"),
        flags: text("java.rt.vmFlags"),
        command: text("sun.rt.javaCommand"),
        started_ms: data.number("sun.rt.vmInitDoneTime").filter(|&ms| ms > 0),
        properties: properties.collect(),
    }
}

fn shown(text: &str) -> String {
    let mark = if text.len() >= TRUNCATED { "..." } else { "" };
    format!("{}{mark}", clean::name(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_texts_are_marked() {
        assert_eq!(shown("a\n"), "a\\x0a");
        let long = "a".repeat(TRUNCATED);
        assert_eq!(shown(&long), long + "...");
    }

    #[test]
    fn version_is_the_last_word_of_a_product() {
        let Description { name, version, .. } = product("OpenJDK 64-Bit Server VM 21.0.5+11");
        assert_eq!(name.as_deref(), Some("OpenJDK 64-Bit Server VM"));
        assert_eq!(version.as_deref(), Some("21.0.5+11"));
        assert_eq!(product("JVM").version, None);
    }
}
