//! What `AllocLoad` says that it has allocated: the truth to compare with.

use std::collections::BTreeMap;

/// Objects and bytes by class, and by call path.
#[derive(Clone, Debug, Default)]
pub struct Allocated {
    /// Objects and bytes by class.
    pub classes: BTreeMap<String, (u64, u64)>,
    /// Bytes by the outermost method of the call path: `a`, `b`, `c`.
    pub paths: BTreeMap<String, u64>,
    /// Bytes of all, by `ThreadMXBean.getThreadAllocatedBytes`.
    pub total: u64,
}

/// Parses the load's answer.
///
/// # Panics
/// Where it is none.
pub fn parse(answer: &str) -> Allocated {
    let mut allocated = Allocated::default();
    for word in answer.split_ascii_whitespace().skip(1) {
        let (name, value) = word.rsplit_once('=').unwrap_or_else(|| panic!("no value: {word}"));
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|e| panic!("{e}: {word}"));
        if name == "allocated" {
            allocated.total = number(value);
        } else if let Some(path) = name.strip_prefix("path:") {
            allocated.paths.insert(path.into(), number(value));
        } else {
            let (objects, bytes) = value.split_once('/').expect("OBJECTS/BYTES");
            allocated.classes.insert(name.into(), (number(objects), number(bytes)));
        }
    }
    allocated
}
