//! Profile files, each in the format given by its name.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
    slice,
};

use crate::{
    Error, Result,
    render::formats::{self, Format, FormatOptions, TitledProfile},
    sys::output_file,
};

/// Output files, opened before profiling begins.
#[derive(Debug, Default)]
pub struct Files(Vec<OpenFile>);

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    format: &'static Format,
    file: File,
    /// Index of the profile to write; `None` to write all.
    profile_index: Option<usize>,
}

impl Files {
    /// Creates the files in advance, so that errors are reported before profiling begins. If the name of any file has
    /// no known format, creates none. `measures` are the names of the profiles: a format that holds only one profile
    /// gets one file for each measure, such as `cpu.page-faults.svg`.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`] if a name has no known format; [`Error::Io`] if a file cannot be created.
    pub fn create(paths: &[PathBuf], measures: &[&str]) -> Result<Self> {
        let formats = paths.iter().map(|path| formats::of(path)).collect::<Result<Vec<_>>>()?;
        let mut files = Vec::new();
        for (path, format) in paths.iter().zip(formats) {
            let mut create = |path: PathBuf, profile_index| {
                let file = output_file::create(&path)
                    .map_err(|e| Error::io(format!("create {}", path.display()), e))?;
                files.push(OpenFile { path, format, file, profile_index });
                Ok(())
            };
            if format.holds_several || measures.len() < 2 {
                create(path.clone(), None)?;
            } else {
                for (profile_index, measure) in measures.iter().enumerate() {
                    create(named_for(path, format, measure), Some(profile_index))?;
                }
            }
        }
        Ok(Self(files))
    }

    /// Writes profiles, one for each of the measures, and logs the path of each file. Profiles without samples cannot be
    /// drawn, so the files created for them are removed.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written.
    pub fn write(self, profiles: &[TitledProfile<'_>], options: &FormatOptions<'_>) -> Result<()> {
        for OpenFile { path, format, file, profile_index } in self.0 {
            let profiles = match profile_index {
                Some(profile_index) => {
                    profiles.get(profile_index).map(slice::from_ref).unwrap_or_default()
                }
                None => profiles,
            };
            if profiles.iter().all(|titled| titled.profile.samples.is_empty()) {
                // Only a regular file is removed. Anything else, such as a device, was not created by us.
                if file.metadata().is_ok_and(|meta| meta.is_file()) {
                    let _ = fs::remove_file(path);
                }
                continue;
            }
            let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
            if let Err(error) = (format.write)(profiles, options, &mut BufWriter::new(file)) {
                // An incomplete file is removed.
                if is_file {
                    let _ = fs::remove_file(&path);
                }
                return Err(Error::io(format!("write {}", path.display()), error));
            }
            log::info!("wrote {}", path.display());
        }
        Ok(())
    }
}

/// Returns the name of the file for one of several measures.
fn named_for(path: &Path, format: &Format, measure: &str) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let measure: String = measure.chars().map(plain).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(format.ending).unwrap_or(&name);
    path.with_file_name(format!("{stem}.{measure}{}", format.ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{render::formats::flamegraph::Title, stack::profile::Profile};

    #[test]
    fn unknown_extension_creates_no_files() {
        let dir = std::env::temp_dir().join(format!("files-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let paths = [dir.join("a.svg"), dir.join("a.txt")];
        let error = Files::create(&paths, &["cpu"]).unwrap_err().to_string();
        assert!(error.contains("a.txt") && error.contains(".pb.gz"), "{error}");
        assert!(!paths[0].exists());
        // Without samples, no file remains.
        let files = Files::create(&paths[..1], &["cpu"]).unwrap();
        assert!(paths[0].exists());
        let profile = Profile::default();
        let titled =
            TitledProfile { profile: &profile, title: Title::default(), bands: Vec::new() };
        files.write(&[titled], &FormatOptions::default()).unwrap();
        assert!(!paths[0].exists());
        // A format that holds one profile has a file for each measure.
        let files = Files::create(&paths[..1], &["cpu", "usdt:x:y"]).unwrap();
        let names: Vec<_> = files.0.iter().map(|file| file.path.file_name().unwrap()).collect();
        assert_eq!(names, ["a.cpu.svg", "a.usdt-x-y.svg"]);
        drop(files);
        fs::remove_dir_all(dir).unwrap();
    }
}
