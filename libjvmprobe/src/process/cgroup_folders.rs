//! Owners of control groups' folders in the cgroup file systems that are mounted in this process's mount namespace.
//!
//! Source: cgroups(7) and cgroup_namespaces(7): a path in /proc/PID/cgroup begins at the root of the reader's cgroup
//! namespace, and with `/..` if the group is outside of it. The same applies to the root of a mount in
//! /proc/self/mountinfo, see proc_pid_mountinfo(5).

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Owner of a control group's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Root,
    Other,
    /// The folder does not exist: the group was removed.
    None,
    /// The file system is not mounted here.
    Unknown,
}

/// Mounted cgroup file systems.
#[derive(Debug, Default)]
pub(super) struct Folders(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// Controllers or name of the hierarchy; empty for version 2.
    controllers: Vec<String>,
    /// Group whose folder is the mount point, as a path from the root of the cgroup namespace.
    root: String,
    point: PathBuf,
}

impl Folders {
    /// Returns the file systems that are mounted in this process's mount namespace.
    pub(super) fn of_this_process() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn parse(mountinfo: &str) -> Self {
        let mount = |line: &str| {
            let (mount, file_system) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, point) = (fields.next()?, fields.next()?);
            let mut fields = file_system.split(' ');
            let controllers = match fields.next()? {
                "cgroup2" => Vec::new(),
                "cgroup" => fields.nth(1)?.split(',').map(str::to_owned).collect(),
                _ => return None,
            };
            Some(Mount { controllers, root: root.to_owned(), point: point.into() })
        };
        Self(mountinfo.lines().filter_map(mount).collect())
    }

    /// Returns the owner of a folder in a path of /proc/PID/cgroup: of the one with this number, counted from 0.
    /// `controllers` are those of the path's line.
    pub(super) fn owner(&self, controllers: &str, path: &str, number: usize) -> Owner {
        let is_hierarchy = |mount: &&Mount| match controllers.split(',').next() {
            None | Some("") => mount.controllers.is_empty(),
            Some(first) => mount.controllers.iter().any(|controller| controller == first),
        };
        let folders: Vec<_> = path.split('/').skip(1).take(number + 1).collect();
        let mut relative = self.0.iter().filter(is_hierarchy).filter_map(|mount| {
            let root: Vec<_> = mount.root.split('/').filter(|part| !part.is_empty()).collect();
            let rest = folders.strip_prefix(&root[..])?;
            // Folders above the mount point have no path here.
            (!rest.contains(&"..")).then(|| mount.point.join(rest.join("/")))
        });
        relative.next().map_or(Owner::Unknown, |folder| owner_of(&folder))
    }
}

fn owner_of(folder: &Path) -> Owner {
    // The kernel creates all entries of a cgroup file system, and none of them is a link.
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.uid() == 0 => Owner::Root,
        Ok(_) => Owner::Other,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Owner::None,
        Err(_) => Owner::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// Returns folders with one mount of version 2.
    fn mounted(root: &str, point: &Path) -> Folders {
        Folders(vec![Mount { controllers: Vec::new(), root: root.into(), point: point.into() }])
    }

    #[test]
    fn mounts_of_both_versions_are_parsed() {
        let folders = Folders::parse(
            "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n\
             31 24 0:27 /../.. /host/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd\n\
             32 24 0:28 / /proc rw - proc proc rw\nodd\n",
        );
        let mount = |controllers: &[&str], root: &str, point: &str| Mount {
            controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
            root: root.into(),
            point: point.into(),
        };
        let v1 = mount(&["rw", "xattr", "name=systemd"], "/../..", "/host/systemd");
        assert_eq!(folders.0, [mount(&[], "/", "/sys/fs/cgroup"), v1]);
    }

    #[test]
    fn owner_is_read_below_the_root_of_the_mount() {
        let point = tempfile::tempdir().unwrap();
        fs::create_dir_all(point.path().join("a/b")).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        if is_root {
            chown(point.path().join("a/b"), Some(65534), None).unwrap();
        }
        let owners = |root: &str, path: &str| {
            let folders = mounted(root, point.path());
            let count = path.split('/').count() - 1;
            (0..count).map(|number| folders.owner("", path, number)).collect::<Vec<_>>()
        };
        let (first, second) =
            if is_root { (Owner::Root, Owner::Other) } else { (Owner::Other, Owner::Other) };
        assert_eq!(owners("/", "/a/b/c"), [first, second, Owner::None]);
        assert_eq!(owners("/..", "/../a/b")[1..], [first, second]);
        assert_eq!(owners("/", "/../a"), [Owner::Unknown; 2]);
        assert_eq!(owners("/../..", "/../a")[1], Owner::Unknown);
        assert_eq!(mounted("/", point.path()).owner("cpu,cpuacct", "/a", 0), Owner::Unknown);
    }
}
