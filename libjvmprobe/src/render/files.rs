//! Files that a profile is written to, each in the format of its name.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::PathBuf,
};

use crate::{
    Error, Result,
    render::formats::{self, Format, How},
    stack::profile::Profile,
};

/// The files, open since before the profile was taken.
#[derive(Debug, Default)]
pub struct Files(Vec<(PathBuf, &'static Format, File)>);

impl Files {
    /// Creates the files, so that one that cannot be written is told at once; none where
    /// one's name tells no format.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`]; [`Error::Io`].
    pub fn create(paths: &[PathBuf]) -> Result<Self> {
        let formats = paths.iter().map(|path| formats::of(path)).collect::<Result<Vec<_>>>()?;
        let create = |(path, format): (&PathBuf, &'static Format)| {
            let file = File::create(path)
                .map_err(|e| Error::io(format!("create {}", path.display()), e))?;
            Ok((path.clone(), format, file))
        };
        paths.iter().zip(formats).map(create).collect::<Result<_>>().map(Self)
    }

    /// Writes them. Returns what was written. Of a profile without samples nothing can be
    /// drawn: then the files that were created are removed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(self, profile: &Profile, how: &How<'_>) -> Result<Vec<PathBuf>> {
        if profile.samples.is_empty() {
            for (path, _, file) in self.0 {
                // What is no regular file was not created.
                if file.metadata().is_ok_and(|meta| meta.is_file()) {
                    let _ = fs::remove_file(path);
                }
            }
            return Ok(Vec::new());
        }
        let mut written = Vec::new();
        for (path, format, file) in self.0 {
            let result = (format.write)(profile, how, &mut BufWriter::new(file));
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
        let written = files.write(&Profile::default(), &How::default()).unwrap();
        assert!(written.is_empty() && !paths[0].exists());
        fs::remove_dir(dir).unwrap();
    }
}
