//! File formats of profiles: one source file per format, and one entry in [`FORMATS`].
//!
//! | module | contents |
//! |---|---|
//! | [`firefox`] | Firefox Profiler's format |
//! | [`flamegraph`] | flame graphs, also of differences |
//! | [`folded`] | folded stacks |
//! | [`jfr`](mod@jfr) | recordings of JDK Flight Recorder |
//! | [`pprof`] | pprof's format |
//! | [`speedscope`] | speedscope's format |
//!
//! The HTML page consists of several source files in a folder beside this one: [`page`](mod@page).

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    hotspot::description::Description,
    render::{formats::flamegraph::Title, page},
    stack::{profile::Profile, timeline::Band, times},
};

pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod jfr;
pub mod pprof;
pub mod speedscope;

/// A file format.
#[derive(Debug)]
pub struct Format {
    /// Ending of file names.
    pub ending: &'static str,
    /// Name for people.
    pub name: &'static str,
    /// Whether it can show the difference to another profile.
    pub draws_differences: bool,
    /// Whether one file can contain profiles of several measures.
    pub holds_several: bool,
    /// Whether it shows the times of samples.
    pub shows_times: bool,
    /// Whether its samples have the trace context as a label.
    pub has_span_labels: bool,
    /// Writes profiles: exactly one, unless `holds_several`.
    pub(super) write:
        fn(&[TitledProfile<'_>], &FormatOptions<'_>, &mut dyn Write) -> io::Result<()>,
}

/// A profile with its title, which not all formats show.
#[derive(Clone, Debug)]
pub struct TitledProfile<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// The title.
    pub title: Title,
    /// Stops of the application. Pages and pictures show them on the time axis, if the times of the samples are known.
    /// Recordings contain them in any case.
    pub bands: Vec<Band>,
}

/// Options of all formats.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions<'a> {
    /// Show threads separately.
    pub threads: bool,
    /// Folded stacks to compare with, for formats that show differences.
    pub base: Option<&'a str>,
    /// In pictures of a fixed width, also draw frames that are too narrow to be visible.
    pub keep_narrow: bool,
    /// Write folded stacks per second.
    pub by_second: bool,
    /// Descriptions of the JVMs, for formats that contain them.
    pub jvms: &'a [Description],
}

/// All formats.
pub const FORMATS: [&Format; 7] = [
    &flamegraph::FORMAT,
    &page::FORMAT,
    &folded::FORMAT,
    &pprof::FORMAT,
    &jfr::FORMAT,
    // Must precede speedscope, whose ending is a suffix of this one.
    &firefox::FORMAT,
    &speedscope::FORMAT,
];

/// Returns the format for a file's name.
///
/// # Errors
/// [`Error::UnknownFormat`] if the name has no known ending.
pub fn of(path: &Path) -> Result<&'static Format> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let format = FORMATS.into_iter().find(|format| name.ends_with(format.ending));
    format.ok_or_else(|| Error::UnknownFormat { path: path.into(), known: list() })
}

/// Returns the length in nanoseconds of the time slots that must be recorded. Returns 0 if times are not
/// needed: none of these files shows times, and `by_second` is not set.
pub fn slot_ns(paths: &[PathBuf], by_second: bool) -> u64 {
    let shows = |path: &PathBuf| of(path).is_ok_and(|format| format.shows_times);
    if by_second || paths.iter().any(shows) { times::SLOT } else { 0 }
}

/// Returns whether one of these files has trace contexts as labels of its samples.
pub fn have_span_labels(paths: &[PathBuf]) -> bool {
    paths.iter().any(|path| of(path).is_ok_and(|format| format.has_span_labels))
}

/// The error for a number of profiles other than one.
fn wrong_profile_count() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "expected exactly one profile")
}

/// Returns the formats that show differences, as file names: `FILE.svg or FILE.html`.
pub fn drawing_differences() -> String {
    let all = FORMATS.iter().filter(|format| format.draws_differences);
    let names: Vec<_> = all.map(|format| format!("FILE{}", format.ending)).collect();
    names.join(" or ")
}

/// Returns the name extensions of all formats, for help texts.
pub fn extensions() -> String {
    FORMATS.map(|format| format.ending).join(", ")
}

/// Returns a list of all formats for people: `.svg (flame graph), ... or .json (speedscope)`.
pub fn list() -> String {
    let all = FORMATS.map(|format| format!("{} ({})", format.ending, format.name));
    let [first @ .., last] = &all;
    format!("{} or {last}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_extension_selects_the_format() {
        let name = |file: &str| of(Path::new(file)).ok().map(|format| format.name);
        assert_eq!(name("/tmp/a.svg"), Some("flame graph"));
        assert_eq!(name("a.html"), Some("page"));
        assert_eq!(name("a.pb.gz"), Some("pprof"));
        assert_eq!(name("a.ffprof.json"), Some("Firefox Profiler"));
        assert_eq!((name("a.gz"), name("svg")), (None, None));
        let all = ".svg (flame graph), .html (page), .folded (folded stacks), .pb.gz \
                   (pprof), .jfr (JDK Flight Recorder), .ffprof.json (Firefox Profiler) or .json \
                   (speedscope)";
        assert_eq!(list(), all);
    }
}
