//! Files that a profile is written to, each in the format of its name.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use crate::{
    Error, Result,
    render::{
        flamegraph::{self, Title},
        folded, pprof, speedscope,
    },
    stack::profile::Profile,
};

/// What profiles are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.svg`
    FlameGraph,
    /// `.folded`
    Folded,
    /// `.pb.gz`
    Pprof,
    /// `.json`
    Speedscope,
}

impl Format {
    /// The format that a file's name tells.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`].
    pub fn of(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let known = [
            (".svg", Self::FlameGraph),
            (".folded", Self::Folded),
            (".pb.gz", Self::Pprof),
            (".json", Self::Speedscope),
        ];
        let format = known.into_iter().find(|(ending, _)| name.ends_with(ending));
        format.map(|(_, format)| format).ok_or_else(|| Error::UnknownFormat { path: path.into() })
    }
}

/// The files, open since before the profile was taken.
#[derive(Debug, Default)]
pub struct Files(Vec<(PathBuf, Format, File)>);

impl Files {
    /// Creates the files, so that one that cannot be written is told at once; none where
    /// one's name tells no format.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`]; [`Error::Io`].
    pub fn create(paths: &[PathBuf]) -> Result<Self> {
        let formats = paths.iter().map(|path| Format::of(path)).collect::<Result<Vec<_>>>()?;
        let create = |(path, format): (&PathBuf, Format)| {
            let file = File::create(path)
                .map_err(|e| Error::io(format!("create {}", path.display()), e))?;
            Ok((path.clone(), format, file))
        };
        paths.iter().zip(formats).map(create).collect::<Result<_>>().map(Self)
    }

    /// Writes them; flame graphs as the difference to a base (folded stacks) where there is
    /// one. Returns what was written. Of a profile without samples nothing can be drawn: then
    /// the files that were created are removed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(
        self,
        profile: &Profile,
        threads: bool,
        title: &Title,
        base: Option<&str>,
    ) -> Result<Vec<PathBuf>> {
        if profile.samples.is_empty() {
            for (path, _, file) in self.0 {
                // What is no regular file was not created.
                if file.metadata().is_ok_and(|meta| meta.is_file()) {
                    let _ = fs::remove_file(path);
                }
            }
            return Ok(Vec::new());
        }
        let options = folded::Options { threads, mark_kinds: false };
        let mut written = Vec::new();
        for (path, format, file) in self.0 {
            let (to, title) = (BufWriter::new(file), title.clone());
            let result = match (format, base) {
                (Format::FlameGraph, Some(base)) => {
                    flamegraph::write_difference(profile, base.as_bytes(), options, title, to)
                }
                (Format::FlameGraph, None) => flamegraph::write(profile, threads, title, to),
                (Format::Folded, _) => folded::write(profile, options, to),
                (Format::Pprof, _) => pprof::write(profile, to),
                (Format::Speedscope, _) => speedscope::write(profile, to),
            };
            result.map_err(|e| Error::io(format!("write {}", path.display()), e))?;
            written.push(path);
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_tells_the_format() {
        let of = |name: &str| Format::of(Path::new(name)).ok();
        assert_eq!(of("/tmp/a.svg"), Some(Format::FlameGraph));
        assert_eq!(of("a.pb.gz"), Some(Format::Pprof));
        assert_eq!(of("a.gz"), None);
        assert_eq!(of("svg"), None);
    }

    #[test]
    fn nothing_is_created_beside_a_wrong_name() {
        let dir = std::env::temp_dir().join(format!("files-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let paths = [dir.join("a.svg"), dir.join("a.txt")];
        let error = Files::create(&paths).unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains(".pb.gz"), "{error}");
        assert!(!paths[0].exists());
        // Without samples, nothing stays.
        let files = Files::create(&paths[..1]).unwrap();
        assert!(paths[0].exists());
        let written = files.write(&Profile::default(), false, &Title::default(), None).unwrap();
        assert!(written.is_empty() && !paths[0].exists());
        fs::remove_dir(dir).unwrap();
    }
}
