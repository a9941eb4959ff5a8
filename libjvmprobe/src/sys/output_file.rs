//! Files that the user names for output. They contain names and stacks of other users' programs.
//!
//! A new file is readable for its owner only. The tools run as root and may be told to write into a folder in which
//! other users can create files, such as /tmp. There, another user could place a link that leads to a file of root, or a
//! file from which that user reads what is written. So links that neither root nor the present user has created are not
//! followed, and a file of another user in a folder with the sticky bit is not used.
//!
//! Sources: open(2); `fs.protected_symlinks` and `fs.protected_regular` in proc(5), which the kernel may not enforce.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

/// Maximum number of links that are followed.
const MAX_LINKS: usize = 8;
/// Mode bits of a folder in which every user can create files, but remove only own files.
const STICKY: u32 = libc::S_ISVTX;
const WRITABLE_FOR_OTHERS: u32 = libc::S_IWOTH | libc::S_IWGRP;

/// Creates a file, or truncates one that exists.
///
/// # Errors
/// Returns the errors of open(2), and an error if another user controls the link or the file.
pub fn create(path: &Path) -> io::Result<File> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        // The links below /proc lead to open files, such as /dev/stdout, and only the kernel can follow them.
        let flags = if path.starts_with("/proc") { 0 } else { libc::O_NOFOLLOW };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        match options.open(&path) {
            Ok(file) => {
                check_owner(&path, &file)?;
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                return Ok(file);
            }
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => path = target(&path)?,
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Returns the path to which a link leads.
fn target(link: &Path) -> io::Result<PathBuf> {
    let owner = fs::symlink_metadata(link)?.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(io::Error::other(format!(
            "it is a symbolic link of user {owner}, which is not followed"
        )));
    }
    Ok(folder(link).join(fs::read_link(link)?))
}

/// Returns an error if the file belongs to another user and lies in a folder in which every user can create files.
fn check_owner(path: &Path, file: &File) -> io::Result<()> {
    let file = file.metadata()?;
    let own = geteuid().as_raw();
    if !file.is_file() || file.uid() == own || path.starts_with("/proc") {
        return Ok(());
    }
    let folder = fs::metadata(folder(path))?;
    let is_shared = folder.mode() & STICKY != 0 && folder.mode() & WRITABLE_FOR_OTHERS != 0;
    if is_shared && file.uid() != folder.uid() {
        let owner = file.uid();
        return Err(io::Error::other(format!("it is a file of user {owner} in a shared folder")));
    }
    Ok(())
}

fn folder(path: &Path) -> &Path {
    let parent = path.parent().unwrap_or(path);
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    const OTHER: u32 = 65_534;

    #[test]
    fn new_file_is_private_and_an_existing_one_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        drop(create(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::write(&path, "text").unwrap();
        drop(create(&path).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        let link = dir.path().join("link");
        symlink("out", &link).unwrap();
        fs::write(&path, "text").unwrap();
        drop(create(&link).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        // Links that lead to each other.
        symlink("a", dir.path().join("b")).unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        assert!(create(&dir.path().join("a")).is_err());
        assert!(create(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn links_and_shared_files_of_other_users_are_not_used() {
        if !geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [secret, link, file] = ["secret", "link", "file"].map(|name| dir.path().join(name));
        fs::write(&secret, "secret").unwrap();
        symlink(&secret, &link).unwrap();
        lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
        let error = create(&link).unwrap_err().to_string();
        assert!(error.contains("symbolic link of user 65534"), "{error}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
        fs::write(&file, "").unwrap();
        chown(&file, Some(OTHER), Some(OTHER)).unwrap();
        assert!(create(&file).is_ok());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(create(&file).is_err());
    }
}
