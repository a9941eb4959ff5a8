//! Output files of a profile, and the folded stacks that `--diff` compares it with.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use libjvmprobe::{
    attach::perf_map,
    process::root,
    render::{
        files::Files,
        formats::{self, FormatOptions, TitledProfile, flamegraph::Title},
        spans, summary,
    },
    stack::{profile::Profile, timeline::Band},
    trace::samples::About,
};

use crate::args::Args;

/// Output files, opened before sampling begins.
pub struct Outputs {
    /// Files whose samples have labels with their spans, and all others.
    labelled: Files,
    files: Files,
    /// Folded stacks to compare with, from `--diff`.
    base: Option<String>,
    threads: bool,
    keep_narrow: bool,
    by_second: bool,
    by_span: bool,
}

impl Outputs {
    /// Creates the files before sampling, so that an unwritable file is reported early.
    pub fn open(args: &Args) -> Result<Self> {
        let used: Vec<_> =
            args.output.iter().map(|path| formats::of(path)).collect::<Result<_, _>>()?;
        let base = match &args.diff {
            Some(path) => {
                if !used.iter().any(|format| format.draws_differences) {
                    bail!(
                        "--diff needs an output file that shows differences: add -o {}",
                        formats::drawing_differences()
                    );
                }
                Some(read_base(path)?)
            }
            None => None,
        };
        let events = args.events();
        let names: Vec<_> = events.iter().map(|event| &*event.name).collect();
        let has_labels =
            |path: &PathBuf| formats::of(path).is_ok_and(|format| format.has_span_labels);
        let (labelled, others): (Vec<_>, Vec<_>) =
            args.output.iter().cloned().partition(has_labels);
        let labelled = Files::create(&labelled, &names)?;
        let files = Files::create(&others, &names)?;
        let Args { threads, keep_narrow, timeline: by_second, span: by_span, .. } = *args;
        Ok(Self { labelled, files, base, threads, keep_narrow, by_second, by_span })
    }

    /// Writes the profiles, one for each event, except those without samples.
    pub fn write(self, profiles: &[Profile], about: &About, title: &str) -> Result<()> {
        let Self { threads, keep_narrow, by_second, .. } = self;
        let base = self.base.as_deref();
        let format_options =
            FormatOptions { threads, base, keep_narrow, by_second, jvms: &about.jvms };
        write(self.labelled, profiles, about, title, &format_options)?;
        let by_span = self.by_span.then(|| profiles.iter().map(spans::grouped).collect::<Vec<_>>());
        let profiles = by_span.as_deref().unwrap_or(profiles);
        write(self.files, profiles, about, title, &format_options)
    }
}

fn write(
    files: Files,
    profiles: &[Profile],
    about: &About,
    title: &str,
    format_options: &FormatOptions<'_>,
) -> Result<()> {
    let bands: Vec<_> = about.stops.iter().map(|stop| Band::of(stop, about.begin_ns)).collect();
    let titled = profiles.iter().map(|profile| {
        let subtitle = Some(summary::total_line(profile));
        let title = Title { title: title.to_owned(), subtitle };
        TitledProfile { profile, title, bands: bands.clone() }
    });
    Ok(files.write(&titled.collect::<Vec<_>>(), format_options)?)
}

fn read_base(path: &Path) -> Result<String> {
    let text = File::open(path)
        .and_then(|file| root::text(&file, perf_map::MAX_BYTES))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let is_stack = |line: &str| {
        line.rsplit_once(' ').is_some_and(|(_, count)| count.trim().parse::<u64>().is_ok())
    };
    if !text.lines().any(is_stack) {
        bail!("{}: contains no folded stacks; create them with -f", path.display());
    }
    Ok(text)
}
