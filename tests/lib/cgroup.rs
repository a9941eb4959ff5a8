//! Control groups with limits, as a container engine or systemd makes them (cgroup v1 and v2).

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Limits of a control group, by the names that systemd units use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// MemoryMax, in bytes.
    pub memory: Option<u64>,
    /// CPUQuota, in per cent of one processor.
    pub cpu_percent: Option<u64>,
    /// CPUWeight; 100 by default.
    pub cpu_weight: Option<u64>,
    /// TasksMax.
    pub tasks: Option<u64>,
}

/// A control group that this test created. When dropped, its processes are killed and it is
/// removed.
#[derive(Debug, Default)]
pub struct Cgroup {
    /// Its folder in each required hierarchy.
    folders: Vec<PathBuf>,
    /// Folders that contain it and are removed with it, the innermost first.
    parents: Vec<PathBuf>,
}

/// A hierarchy of control groups: cgroup2, or that of a v1 controller.
enum Hierarchy {
    V2(PathBuf),
    V1(PathBuf),
}

impl Limits {
    /// Returns the limits that jvmprobed's systemd unit sets.
    ///
    /// # Panics
    /// If the unit does not limit the memory.
    pub fn of_unit() -> Self {
        let house = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests is a subfolder");
        let unit = house.join("tools/jvmprobed/deploy/systemd/jvmprobed.service");
        let unit = fs::read_to_string(unit).expect("the unit");
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key));
        let number =
            |text: &str| text.trim_end_matches(['M', '%']).parse::<u64>().expect("a number");
        Self {
            memory: Some(number(value("MemoryMax=").expect("a limit")) << 20),
            cpu_percent: value("CPUQuota=").map(number),
            cpu_weight: value("CPUWeight=").map(number),
            tasks: value("TasksMax=").map(number),
        }
    }
}

impl Cgroup {
    /// Creates a control group below the root of each hierarchy, named like that of a systemd unit.
    /// The unit's name contains `name`.
    ///
    /// # Errors
    /// The reason why the control group cannot be created on this machine. The test prints the reason and is
    /// skipped.
    pub fn new(name: &str, limits: Limits) -> io::Result<Self> {
        let name = format!("{}-{name}.service", unique_name());
        let mut group = Self::default();
        for (controller, is_wanted) in [
            ("memory", limits.memory.is_some()),
            ("cpu", limits.cpu_percent.or(limits.cpu_weight).is_some()),
            ("pids", limits.tasks.is_some()),
            ("", true),
        ] {
            if is_wanted {
                group.add(controller, &name, limits)?;
            }
        }
        Ok(group)
    }

    /// Creates a control group without limits, named like that of a container in a pod, with containerd as the
    /// runtime and systemd as the driver.
    ///
    /// # Errors
    /// The reason why the control group cannot be created on this machine.
    pub fn of_container(pod_uid: &str, container_id: &str) -> io::Result<Self> {
        let (Hierarchy::V1(root) | Hierarchy::V2(root)) = hierarchy("")?;
        let mut group = Self::default();
        let mut folder = root;
        for name in [
            unique_name(),
            "kubepods.slice".into(),
            "kubepods-burstable.slice".into(),
            format!("kubepods-burstable-pod{}.slice", pod_uid.replace('-', "_")),
            format!("cri-containerd-{container_id}.scope"),
        ] {
            folder.push(name);
            fs::create_dir(&folder)?;
            group.parents.insert(0, folder.clone());
        }
        group.folders.push(group.parents.remove(0));
        Ok(group)
    }

    fn add(&mut self, controller: &str, name: &str, limits: Limits) -> io::Result<()> {
        let (folder, is_v1) = match hierarchy(controller)? {
            Hierarchy::V1(root) => (root.join(name), true),
            Hierarchy::V2(root) => (root.join(name), false),
        };
        if !self.folders.contains(&folder) {
            fs::create_dir(&folder)?;
            self.folders.push(folder.clone());
        }
        let set = |file: &str, value: String| fs::write(folder.join(file), value);
        match (controller, is_v1) {
            ("memory", v1) => {
                let bytes = limits.memory.unwrap_or_default().to_string();
                set(if v1 { "memory.limit_in_bytes" } else { "memory.max" }, bytes)
            }
            ("cpu", v1) => {
                if let Some(percent) = limits.cpu_percent {
                    let micros = percent * 1000;
                    if v1 {
                        set("cpu.cfs_period_us", "100000".into())?;
                        set("cpu.cfs_quota_us", micros.to_string())?;
                    } else {
                        set("cpu.max", format!("{micros} 100000"))?;
                    }
                }
                limits.cpu_weight.map_or(Ok(()), |weight| {
                    let shares = weight * 1024 / 100;
                    if v1 {
                        set("cpu.shares", shares.to_string())
                    } else {
                        set("cpu.weight", weight.to_string())
                    }
                })
            }
            ("pids", _) => set("pids.max", limits.tasks.unwrap_or_default().to_string()),
            _ => Ok(()),
        }
    }

    /// Makes a command's process start in this control group.
    pub fn enter(&self, command: &mut Command) {
        let files: Vec<_> = self.folders.iter().map(|dir| dir.join("cgroup.procs")).collect();
        let enter = move || files.iter().try_for_each(|file| fs::write(file, "0"));
        // SAFETY: between fork and exec only files are opened and written. A test has more
        // threads than one, but glibc's malloc may be used in the child of a fork.
        unsafe { command.pre_exec(enter) };
    }

    /// Kills all its processes at once, as the kernel does if a container's memory is used up and as systemd does.
    ///
    /// # Errors
    /// The errors of write(2). Before Linux 5.14, there is no file `cgroup.kill`.
    pub fn kill(&self) -> io::Result<()> {
        let file =
            self.folders.iter().map(|dir| dir.join("cgroup.kill")).find(|file| file.exists());
        fs::write(file.ok_or(io::ErrorKind::NotFound)?, "1")
    }

    /// Returns the number of periods in which its CPU quota was used up; `None` if it has no quota.
    pub fn throttled_periods(&self) -> Option<u64> {
        let stats = self.folders.iter().map(|dir| fs::read_to_string(dir.join("cpu.stat")));
        stats.flatten().find_map(|stat| {
            stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok())
        })
    }

    /// Returns the peak memory use of all its processes together, in bytes and including the page
    /// cache; `None` if the kernel does not report it.
    pub fn peak_memory(&self) -> Option<u64> {
        let names = ["memory.max_usage_in_bytes", "memory.peak"];
        let paths = self.folders.iter().flat_map(|dir| names.map(|name| dir.join(name)));
        paths.filter_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok()).max()
    }

    /// Returns the number of processes that the kernel killed because the memory limit was reached.
    pub fn oom_kills(&self) -> u64 {
        let names = ["memory.oom_control", "memory.events"];
        let paths = self.folders.iter().flat_map(|dir| names.map(|name| dir.join(name)));
        let texts = paths.filter_map(|path| fs::read_to_string(path).ok());
        let count = |text: String| {
            let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
            line.trim().parse::<u64>().ok()
        };
        texts.filter_map(count).sum()
    }

    /// Makes a user the owner of this group, who may then create groups below it. Returns its folder in cgroup2.
    ///
    /// # Errors
    /// The owner cannot be changed.
    pub fn delegate(&self, user: u32) -> io::Result<PathBuf> {
        let folder = self.folders.last().expect("the folder in cgroup2 is created last").clone();
        chown(&folder, Some(user), Some(user))?;
        for file in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(folder.join(file), Some(user), Some(user))?;
        }
        Ok(folder)
    }

    /// Returns the IDs of the processes in it and in the groups below it.
    pub fn processes(&self) -> Vec<i32> {
        let texts = self.folders.iter().flat_map(|folder| with_subfolders(folder));
        let texts: Vec<_> =
            texts.filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok()).collect();
        let pids = texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse().ok());
        // A process is in one folder of each hierarchy.
        pids.filter(|pid| *pid > 1).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Kills the processes in it and in the groups below it, one after the other; works on each kernel.
    pub fn kill_processes(&self) {
        for pid in self.processes() {
            // The processes are our children, or their children.
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Returns a folder with all folders below it, the outermost first.
fn with_subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let below = folders.flat_map(|entry| with_subfolders(&entry.path()));
    [folder.to_owned()].into_iter().chain(below).collect()
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            self.kill_processes();
            self.folders.retain(|folder| {
                let inside_out = with_subfolders(folder).into_iter().rev();
                !inside_out.fold(false, |_, dir| fs::remove_dir(dir).is_ok())
            });
            if self.folders.is_empty() || Instant::now() > until {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        for parent in &self.parents {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Returns the beginning of a name that no other control group has.
fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("jvmprobe-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the hierarchy of a controller. An empty name selects cgroup2. A process has a group in cgroup2
/// even if all controllers are in v1 hierarchies.
fn hierarchy(controller: &str) -> io::Result<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut v2 = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(at), Some(kind), Some(options)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == controller) => {
                return Ok(Hierarchy::V1(at.into()));
            }
            "cgroup2" => v2 = Some(Path::new(at).to_owned()),
            _ => {}
        }
    }
    let v2 = v2.ok_or_else(|| io::Error::other("no cgroup file system is mounted"))?;
    let has = |file: &str| {
        let text = fs::read_to_string(v2.join(file)).unwrap_or_default();
        text.split_whitespace().any(|name| name == controller)
    };
    if !controller.is_empty() && !has("cgroup.subtree_control") {
        if !has("cgroup.controllers") {
            return Err(io::Error::other(format!("no cgroup controller {controller:?}")));
        }
        fs::write(v2.join("cgroup.subtree_control"), format!("+{controller}"))?;
    }
    Ok(Hierarchy::V2(v2))
}
