//! JDK Flight Recorder's format, as HotSpot writes it since JDK 11 (version 2).
//!
//! | module | contents |
//! |---|---|
//! | [`recording`] | chunks, written as a stream |
//! | [`file`](mod@file) | recordings in files |
//! | `samples` | events of a profile |
//! | `pauses` | events of collections and safepoints |
//! | `waits` | events of waits |
//! | [`facts`] | events that describe the JVM and the host |
//! | `types` | types of events and constants |
//! | `metadata` | the description of the types that a recording contains |
//! | `pools` | constants: stacks, methods, classes, threads, names |
//! | `names` | names of methods |
//! | `encode` | numbers and texts |

mod encode;
pub mod facts;
pub mod file;
mod metadata;
mod names;
mod pauses;
mod pools;
pub mod recording;
mod samples;
mod types;
mod waits;

use std::{
    io::{self, Write},
    path::Path,
};

use crate::{
    hotspot::description::Description,
    render::formats::{Format, TitledProfile, jfr::recording::Recording},
};

/// Entry of the format table.
pub const FORMAT: Format = Format {
    ending: ".jfr",
    name: "JDK Flight Recorder",
    draws_differences: false,
    holds_several: true,
    shows_times: true,
    has_span_labels: false,
    write: |profiles, options, to| write(profiles, options.jvms, to),
};

/// Returns whether a file's name has the ending of this format.
pub fn is_named(path: &Path) -> bool {
    path.to_string_lossy().ends_with(FORMAT.ending)
}

/// Writes profiles, the stops of the applications, and the descriptions of their JVMs.
fn write(profiles: &[TitledProfile<'_>], jvms: &[Description], to: impl Write) -> io::Result<()> {
    let mut recording = Recording::new(to);
    let begin_ns = profiles.iter().map(|titled| titled.profile.begin_unix_ns).min().unwrap_or(0);
    recording.host(begin_ns)?;
    jvms.iter().try_for_each(|jvm| recording.jvm(jvm, begin_ns))?;
    for titled in profiles {
        recording.profile(titled.profile)?;
    }
    // All profiles of a trace have the same stops.
    if let Some(titled) = profiles.first() {
        for band in &titled.bands {
            let begin_ns = titled.profile.begin_unix_ns.saturating_add(band.begin_ns);
            let stopped_ns = band.end_ns.saturating_sub(band.begin_ns);
            recording.stop(begin_ns, None, stopped_ns, Some(&band.label))?;
        }
    }
    recording.finish()
}
