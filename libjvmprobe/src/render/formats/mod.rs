//! What profiles are written as: one file a format, and one row of [`FORMATS`].
//!
//! | module | what it writes |
//! |---|---|
//! | [`firefox`] | Firefox Profiler's format |
//! | [`flamegraph`] | flame graphs, also of differences |
//! | [`folded`] | folded stacks |
//! | [`pprof`] | pprof's format |
//! | [`speedscope`] | speedscope's format |
//!
//! The page is of several files, and has a folder beside this one: [`page`](mod@page).

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    render::{formats::flamegraph::Title, page},
    stack::{profile::Profile, timeline::Timeline, times},
};

pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod pprof;
pub mod speedscope;

/// A format.
#[derive(Debug)]
pub struct Format {
    /// How the names of its files end.
    pub ending: &'static str,
    /// What it is.
    pub name: &'static str,
    /// Whether it can draw the difference to another profile.
    pub draws_differences: bool,
    /// Whether one file has room for profiles of several measures.
    pub holds_several: bool,
    /// Whether it shows when samples were taken.
    pub shows_times: bool,
    /// Writes profiles: one, unless it holds several.
    pub(super) write: fn(&[Titled<'_>], &How<'_>, &mut dyn Write) -> io::Result<()>,
}

/// A profile, and what stands above it where there is room for that.
#[derive(Clone, Debug)]
pub struct Titled<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// The title.
    pub title: Title,
    /// When its samples were taken, where that is known.
    pub timeline: Option<&'a Timeline>,
}

/// How a profile is written.
#[derive(Clone, Debug, Default)]
pub struct How<'a> {
    /// Threads are kept apart.
    pub threads: bool,
    /// Folded stacks that it is compared with, where that can be drawn.
    pub base: Option<&'a str>,
    /// Frames that are too narrow to be seen are drawn as well, where a picture has a fixed width.
    pub keep_narrow: bool,
    /// Folded stacks are told for each second.
    pub by_second: bool,
}

/// All of them.
pub const FORMATS: [&Format; 6] = [
    &flamegraph::FORMAT,
    &page::FORMAT,
    &folded::FORMAT,
    &pprof::FORMAT,
    // Before what its names end in as well.
    &firefox::FORMAT,
    &speedscope::FORMAT,
];

/// The format that a file's name tells.
///
/// # Errors
/// [`Error::UnknownFormat`].
pub fn of(path: &Path) -> Result<&'static Format> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let format = FORMATS.into_iter().find(|format| name.ends_with(format.ending));
    format.ok_or_else(|| Error::UnknownFormat { path: path.into(), known: list() })
}

/// How long slots of time are to be for what is written to these files, in nanoseconds; 0 where
/// nobody wants them: none of them shows times, nor are stacks folded `by_second`.
pub fn slot_ns(paths: &[PathBuf], by_second: bool) -> u64 {
    let shows = |path: &PathBuf| of(path).is_ok_and(|format| format.shows_times);
    if by_second || paths.iter().any(shows) { times::SLOT } else { 0 }
}

/// Where a format that holds one profile is given another number of them.
fn not_one() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "one profile is expected")
}

/// Those that draw differences, as names of files: `FILE.svg or FILE.html`.
pub fn drawing_differences() -> String {
    let all = FORMATS.iter().filter(|format| format.draws_differences);
    let names: Vec<_> = all.map(|format| format!("FILE{}", format.ending)).collect();
    names.join(" or ")
}

/// All of them, for people: `.svg (flame graph), ... or .json (speedscope)`.
pub fn list() -> String {
    let all = FORMATS.map(|format| format!("{} ({})", format.ending, format.name));
    let [first @ .., last] = &all;
    format!("{} or {last}", first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_format() {
        let name = |file: &str| of(Path::new(file)).ok().map(|format| format.name);
        assert_eq!(name("/tmp/a.svg"), Some("flame graph"));
        assert_eq!(name("a.html"), Some("page"));
        assert_eq!(name("a.pb.gz"), Some("pprof"));
        assert_eq!(name("a.ffprof.json"), Some("Firefox Profiler"));
        assert_eq!((name("a.gz"), name("svg")), (None, None));
        let all = ".svg (flame graph), .html (page), .folded (folded stacks), .pb.gz \
                   (pprof), .ffprof.json (Firefox Profiler) or .json (speedscope)";
        assert_eq!(list(), all);
    }
}
