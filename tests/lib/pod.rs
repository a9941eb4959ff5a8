//! A pod as a node sees it: a control group with a container in it, and the kubelet's log directories.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// A control group that is named like that of a container in a pod. It is removed when its processes have ended.
#[derive(Debug)]
pub struct Pod {
    group: PathBuf,
    /// UID of the pod.
    pub uid: String,
    /// ID of the container.
    pub container_id: String,
}

impl Pod {
    /// Creates the control group, whose QoS class is Guaranteed, and whose runtime is CRI-O.
    ///
    /// # Errors
    /// No control groups are mounted here, or none can be created.
    pub fn create() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let is_group = |fields: &Vec<&str>| match fields[2] {
            "cgroup2" => true,
            "cgroup" => fields[3].split(',').any(|option| option == "pids"),
            _ => false,
        };
        let mut all = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = all.find(is_group).map(|fields| fields[1].to_owned());
        let root = root.ok_or_else(|| io::Error::other("no control groups are mounted"))?;
        let container_id = "0123456789abcdef".repeat(4);
        let uid = format!("0f3b1c5e-86a2-4b0f-9d3e-{:012x}", std::process::id());
        let folder = format!("kubepods-pod{}.slice", uid.replace('-', "_"));
        let group = Path::new(&root).join(folder).join(format!("crio-{container_id}.scope"));
        fs::create_dir_all(&group)?;
        Ok(Self { group, uid, container_id })
    }

    /// Moves a process into the container.
    ///
    /// # Panics
    /// If it has ended.
    pub fn add(&self, pid: u32) {
        fs::write(self.group.join("cgroup.procs"), pid.to_string()).expect("move a process");
    }

    /// Creates the directories that the kubelet keeps in /var/log for this pod with its containers. The container of this
    /// control group is the first one.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn create_logs(&self, logs: &Path, (namespace, name): (&str, &str), containers: &[&str]) {
        let pod = logs.join("pods").join(format!("{namespace}_{name}_{}", self.uid));
        let links = logs.join("containers");
        fs::create_dir_all(&links).expect("a folder");
        for container in containers {
            fs::create_dir_all(pod.join(container)).expect("a folder");
        }
        let link = format!("{name}_{namespace}_{}-{}.log", containers[0], self.container_id);
        let to = pod.join(containers[0]).join("0.log");
        std::os::unix::fs::symlink(to, links.join(link)).expect("a link");
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.group).is_ok() || !self.group.exists() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.group.parent().map(fs::remove_dir);
    }
}
