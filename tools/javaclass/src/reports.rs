//! Reads reports that this or another version of `javaclass -j` and `javaclass merge -j` has printed.
//!
//! Each JVM's classes are followed by a summary with their number, so a truncated report is
//! detected. Lines of types that this version does not know are skipped.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Maximum length of a line in bytes; a class with all its methods takes less.
const MAX_LINE: u64 = 256 << 20;

/// A line of a report, with the fields that are used here.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line {
    Class(ClassLine),
    Summary(SummaryLine),
    Merged(MergedLine),
    Runs(RunsLine),
    #[serde(other)]
    Other,
}

/// A class of a JVM.
#[derive(Debug, Deserialize)]
pub struct ClassLine {
    /// Its name.
    pub class: String,
    /// Its origin.
    pub origin: String,
    /// Its state.
    pub state: String,
    /// Number of its methods that were called.
    pub called: u64,
    /// Number of classes that share this record.
    #[serde(default = "one")]
    pub classes: u64,
    /// Its methods, if the report has them.
    #[serde(default)]
    pub method_list: Vec<MethodLine>,
}

/// A method of a class.
#[derive(Debug, Deserialize)]
pub struct MethodLine {
    /// Its name.
    pub name: String,
    /// Its descriptor.
    pub descriptor: String,
    /// Its usage: `called`, `not called`, `unknown` or `abstract`.
    pub usage: String,
}

/// The summary that follows a JVM's classes.
#[derive(Debug, Deserialize)]
pub struct SummaryLine {
    complete: bool,
    unreadable: u64,
    classes: u64,
    /// Number of classes that were unloaded, if known.
    #[serde(default)]
    pub unloaded: Option<u64>,
    #[serde(default)]
    version: Option<String>,
}

/// A class of a merged report.
#[derive(Debug, Deserialize)]
pub struct MergedLine {
    /// Its name.
    pub class: String,
}

/// The totals that follow the classes of a merged report.
#[derive(Debug, Deserialize)]
pub struct RunsLine {
    /// Number of merged runs that are incomplete.
    pub incomplete: u64,
    classes: u64,
    /// Sum of the numbers of classes that were unloaded in each run, as far as these are known.
    pub unloaded: u64,
    #[serde(default)]
    version: Option<String>,
}

fn one() -> u64 {
    1
}

/// An item of a report, in the report's order.
pub enum Item {
    /// A class of the JVM to which the next summary belongs.
    Class(ClassLine),
    /// The summary of a JVM.
    Jvm(SummaryLine),
    /// A class of a merged report.
    Merged(MergedLine),
    /// The totals of a merged report.
    Runs(RunsLine),
}

impl SummaryLine {
    /// Whether all its classes were read.
    pub fn is_complete(&self) -> bool {
        self.complete && self.unreadable == 0
    }
}

/// Reads reports and passes their items to `handle`.
///
/// # Errors
/// A file cannot be read, is not a report, or was truncated; errors that `handle` returns.
pub fn read(files: &[PathBuf], mut handle: impl FnMut(&Path, Item) -> Result<()>) -> Result<()> {
    for path in files {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        read_one(path, BufReader::new(file), |item| handle(path, item))?;
    }
    Ok(())
}

/// Reads a report; `path` is its name for messages.
pub fn read_one(
    path: &Path,
    mut report: impl BufRead,
    mut handle: impl FnMut(Item) -> Result<()>,
) -> Result<()> {
    let mut line = String::new();
    // Number of classes since the last summary, and whether there was any summary.
    let (mut classes_since_summary, mut has_ended) = (0_u64, false);
    let mut other_version = None;
    let name = path.display();
    for number in 1_u64.. {
        let at = || format!("{name}, line {number}");
        line.clear();
        let read = report.by_ref().take(MAX_LINE).read_line(&mut line).with_context(at)?;
        if read == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let what = || format!("{}: not a line of a javaclass -j report", at());
        let mut end = |classes: u64, version: &mut Option<String>| {
            ensure!(
                classes == classes_since_summary,
                "{}: lists {classes_since_summary} of {classes} classes: the report is truncated, \
                 or was made with --quiet",
                at()
            );
            (classes_since_summary, has_ended) = (0, true);
            other_version = version.take().filter(|version| version != env!("CARGO_PKG_VERSION"));
            Ok(())
        };
        handle(match serde_json::from_str(&line).with_context(what)? {
            Line::Class(class) => {
                classes_since_summary = classes_since_summary.saturating_add(class.classes);
                Item::Class(class)
            }
            Line::Merged(class) => {
                classes_since_summary = classes_since_summary.saturating_add(1);
                Item::Merged(class)
            }
            Line::Summary(mut summary) => {
                end(summary.classes, &mut summary.version)?;
                Item::Jvm(summary)
            }
            Line::Runs(mut runs) => {
                end(runs.classes, &mut runs.version)?;
                Item::Runs(runs)
            }
            Line::Other => continue,
        })?;
    }
    if let Some(version) = other_version {
        let own = env!("CARGO_PKG_VERSION");
        log::warn!("{name} was written by javaclass {version}; this is version {own}");
    }
    match (classes_since_summary, has_ended) {
        (1.., _) => bail!("{name} ends without a summary: it is truncated"),
        (0, false) => bail!("{name} is not a javaclass -j report: it has no summary"),
        (0, true) => Ok(()),
    }
}
