//! Files that a profile is written to, in the format of their names.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use libjvmprobe::{
    render::{
        flamegraph::{self, Title},
        folded, pprof, speedscope,
    },
    stack::{builtin_map, profile::Profile},
};

use crate::args::Args;

enum Format {
    FlameGraph,
    Folded,
    Pprof,
    Speedscope,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let known = [
            (".svg", Self::FlameGraph),
            (".folded", Self::Folded),
            (".pb.gz", Self::Pprof),
            (".json", Self::Speedscope),
        ];
        match known.into_iter().find(|(ending, _)| name.ends_with(ending)) {
            Some((_, format)) => Ok(format),
            None => bail!(
                "{}: the name tells the format; use .svg, .folded, .pb.gz or .json",
                path.display()
            ),
        }
    }
}

/// The files, open since before the profile was taken.
pub struct Outputs {
    files: Vec<(PathBuf, Format, File)>,
    /// Folded stacks to compare with.
    base: Option<String>,
    threads: bool,
}

impl Outputs {
    /// Creates the files, so that one that cannot be written is told at once.
    pub fn open(args: &Args) -> Result<Self> {
        let formats: Vec<_> =
            args.output.iter().map(|path| Format::of(path)).collect::<Result<_>>()?;
        let base = match &args.diff {
            Some(path) => {
                if !formats.iter().any(|format| matches!(format, Format::FlameGraph)) {
                    bail!("--diff draws a flame graph: add -o FILE.svg");
                }
                Some(read_base(path)?)
            }
            None => None,
        };
        let create = |(path, format): (&PathBuf, Format)| {
            let file =
                File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            Ok((path.clone(), format, file))
        };
        let files = args.output.iter().zip(formats).map(create).collect::<Result<_>>()?;
        Ok(Self { files, base, threads: args.threads })
    }

    /// Writes them. Returns what was written. Of a profile without samples nothing can be
    /// drawn: then the files that were created are removed.
    pub fn write(self, profile: &Profile, title: &Title) -> Result<Vec<PathBuf>> {
        if profile.samples.is_empty() {
            for (path, _, file) in self.files {
                // What is no regular file was not created.
                if file.metadata().is_ok_and(|meta| meta.is_file()) {
                    let _ = fs::remove_file(path);
                }
            }
            return Ok(Vec::new());
        }
        let options = folded::Options { threads: self.threads, mark_kinds: false };
        let mut written = Vec::new();
        for (path, format, file) in self.files {
            let to = BufWriter::new(file);
            let result = match format {
                Format::FlameGraph => match &self.base {
                    Some(base) => flamegraph::write_difference(
                        profile,
                        base.as_bytes(),
                        options,
                        title.clone(),
                        to,
                    ),
                    None => flamegraph::write(profile, self.threads, title.clone(), to),
                },
                Format::Folded => folded::write(profile, options, to),
                Format::Pprof => pprof::write(profile, to),
                Format::Speedscope => speedscope::write(profile, to),
            };
            result.with_context(|| format!("cannot write {}", path.display()))?;
            written.push(path);
        }
        Ok(written)
    }
}

fn read_base(path: &Path) -> Result<String> {
    let text = File::open(path)
        .and_then(builtin_map::text)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let is_stack = |line: &str| {
        line.rsplit_once(' ').is_some_and(|(_, count)| count.trim().parse::<u64>().is_ok())
    };
    if !text.lines().any(is_stack) {
        bail!("{}: there are no folded stacks in it; write them with -f", path.display());
    }
    Ok(text)
}
