//! The store of jvmprobed contains complete windows only, whatever happens to the daemon and to the
//! directory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    run_alone, run_beside_others,
    tool::{Tool, binary},
    windows::{PID, SAMPLES, SECOND, folder, synthetic_window},
};
use jvmprobed::store::{Store, file::PROFILES, folder::VERSION, reader::StoreReader};
use libjvmprobe::trace::pauses::record::Record;
use rustix::process::Signal;
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(86_400);
const UNLIMITED_BYTES: u64 = 1 << 40;
/// 2025-11-22T03:00:00Z, the start of an hour.
const BEGIN: u64 = 1_763_780_400;

/// Returns the number of the synthetic window that contains a pause.
fn window_number(record: &Record) -> u64 {
    let Record::Pause(stop) = record else { panic!("{record:?}") };
    stop.stopped_ns - 2_500_000
}

/// Returns the numbers of the stored windows in their order, after checking their contents.
fn checked_window_numbers(dir: &Path) -> Vec<u64> {
    let windows = StoreReader::open(dir).unwrap().read(0, u64::MAX).unwrap();
    let (mut numbers, mut sums, mut bytes) = (Vec::new(), BTreeMap::new(), 0);
    for jvm_data in windows.iter().flat_map(|stored| &stored.window.jvms) {
        if jvm_data.identity.pid != PID {
            continue;
        }
        assert_eq!(jvm_data.identity.name, "shop");
        numbers.extend(jvm_data.pauses.iter().map(window_number));
        for profile in &jvm_data.profiles {
            for sample in &profile.samples {
                let frame = profile.frame(*sample.stack.last().unwrap());
                match &*frame.name {
                    "byte[]" => bytes += sample.count,
                    name => *sums.entry(name.to_owned()).or_insert(0) += sample.count,
                }
            }
        }
    }
    let number = numbers.len() as u64;
    assert_eq!(sums.get("shop.Main.run").copied().unwrap_or(0), number * SAMPLES);
    let of_numbers = sums.get("shop.Main.window").copied().unwrap_or(0);
    assert_eq!(of_numbers, numbers.iter().sum::<u64>());
    assert_eq!(bytes, number * 1000);
    let covered: u64 = windows.iter().map(|stored| stored.covered_ns).sum();
    assert_eq!(covered, number * 15 * SECOND);
    numbers
}

/// Returns the numbers of the stored synthetic windows, sorted.
fn sorted_window_numbers(dir: &Path) -> Vec<u64> {
    let windows = StoreReader::open(dir).unwrap().read(0, u64::MAX).unwrap();
    let jvm_data = windows.iter().flat_map(|stored| &stored.window.jvms);
    let pauses = jvm_data
        .filter(|jvm_data| jvm_data.identity.pid == PID)
        .flat_map(|jvm_data| &jvm_data.pauses);
    let mut numbers: Vec<_> = pauses.map(window_number).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns all names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns a command that writes `count` windows from number `first` on.
fn writer(dir: &Path, first: u64, count: u64) -> Command {
    let mut command = Command::new(binary("window-writer"));
    let numbers =
        [DAY.as_secs() * 30, UNLIMITED_BYTES, BEGIN, first, count].map(|number| number.to_string());
    command.arg(dir).args(numbers).stdout(Stdio::piped());
    command
}

/// Returns a random duration below `most` milliseconds.
fn random_delay(most: u64) -> Duration {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    Duration::from_micros(u64::from_le_bytes(bytes) % (most * 1000))
}

#[test]
fn killed_writer_loses_at_most_the_last_window() {
    run_beside_others();
    let dir = folder();
    let (mut next, mut merged, mut cut_short) = (0, 0, 0);
    for round in 0..60 {
        let mut child = writer(dir.path(), next, 1_000_000).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "open", "round {round}");
        thread::sleep(random_delay(250));
        child.kill().unwrap();
        child.wait().unwrap();
        let told = lines.map(|line| line.unwrap().parse::<u64>().unwrap()).last();
        cut_short += names(dir.path()).iter().filter(|name| name.starts_with('.')).count();
        // The windows are checked twice: as the killed writer has left them, and again after `Store::open`
        // has cleaned up.
        let numbers = checked_window_numbers(dir.path());
        let expected = told.map_or(next, |told| told + 1);
        let number = numbers.len() as u64;
        assert!(number == expected || number == expected + 1, "{round}: {number} of {expected}");
        assert_eq!(numbers, (0..number).collect::<Vec<_>>(), "round {round}");
        drop(Store::open(dir.path(), 30 * DAY, UNLIMITED_BYTES).unwrap());
        assert_eq!(checked_window_numbers(dir.path()), numbers);
        let names = names(dir.path());
        assert!(!names.iter().any(|name| name.starts_with('.')), "{names:?}");
        merged = names.iter().filter(|name| !name.starts_with("15s")).count();
        next = number;
    }
    // Some writers were killed while writing a window, and there were enough windows to be merged.
    println!("{next} windows, {cut_short} cut short, {merged} other entries");
    assert!(cut_short > 6, "{cut_short}");
    assert!(next < 300 || merged > 2, "{next} windows, {merged}");
}

#[test]
fn merging_windows_preserves_all_sums() {
    let dir = folder();
    let mut store = Store::open(dir.path(), 30 * DAY, UNLIMITED_BYTES).unwrap();
    // Ten hours.
    let number = 2400;
    let begin = BEGIN;
    for at in 0..number {
        store.put(synthetic_window(begin, at));
    }
    assert_eq!(checked_window_numbers(dir.path()), (0..number).collect::<Vec<_>>());
    let names = names(dir.path());
    let of = |level: &str| names.iter().filter(|name| name.starts_with(level)).count();
    assert!(of("15s-") <= 262 && of("5m-") <= 84 && of("1h-") >= 2, "{names:?}");
    // In merged windows, the times of samples are still known to the minute.
    let minute = |at: u64| (begin + at * 60) * SECOND;
    let mut windows = StoreReader::open(dir.path()).unwrap().read(minute(0), minute(60)).unwrap();
    let profile = &mut windows[0].window.jvms[0].profiles[0];
    assert!(profile.samples.iter().all(|sample| sample.times.len() == 60), "{:?}", profile.samples);
    profile.restrict_to(minute(3), minute(4));
    let count = |profile: &libjvmprobe::stack::profile::Profile, name: &str| -> u64 {
        let is = |sample: &&libjvmprobe::stack::profile::Sample| {
            &*profile.frame(*sample.stack.last().unwrap()).name == name
        };
        profile.samples.iter().filter(is).map(|sample| sample.count).sum()
    };
    assert_eq!(count(profile, "shop.Main.run"), 4 * SAMPLES);
    assert_eq!(count(profile, "shop.Main.window"), 12 + 13 + 14 + 15);
}

#[test]
fn store_limits_age_and_size_of_windows() {
    let dir = folder();
    let size = 400_000;
    let mut store = Store::open(dir.path(), Duration::from_secs(7200), size).unwrap();
    for at in 0..600 {
        store.put(synthetic_window(BEGIN, at));
        assert!(store.counts().bytes <= size);
    }
    let numbers = checked_window_numbers(dir.path());
    // The newest windows are there, without a gap.
    assert_eq!(numbers.last(), Some(&599));
    assert!(numbers.windows(2).all(|two| two[0] + 1 == two[1]));
    assert!(numbers.len() > 20 && numbers.len() <= 480 + 240, "{}", numbers.len());
    let on_disk: u64 = names(dir.path())
        .iter()
        .filter(|name| dir.path().join(name).is_dir())
        .flat_map(|name| fs::read_dir(dir.path().join(name)).unwrap())
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert!(on_disk <= size, "{on_disk}");
}

/// The clock is set back several times, so new windows have the times of existing ones. All windows are
/// retained, also if existing windows have been merged, and after a restart.
#[test]
fn windows_with_equal_times_are_all_retained() {
    let dir = folder();
    let mut expected = Vec::new();
    for round in 0..4 {
        let mut store = Store::open(dir.path(), 30 * DAY, UNLIMITED_BYTES).unwrap();
        // One and a half hours each time, so that the first windows are merged.
        for at in 0..360 {
            store.put(synthetic_window(BEGIN, at));
            expected.push(at);
        }
        assert_eq!((store.counts().written, store.counts().lost), (360, 0), "round {round}");
        drop(store);
        let mut numbers = checked_window_numbers(dir.path());
        numbers.sort_unstable();
        expected.sort_unstable();
        assert_eq!(numbers, expected, "round {round}");
    }
    assert!(names(dir.path()).iter().any(|name| name.starts_with("5m-")));
}

#[test]
fn clock_error_for_two_minutes_drops_no_windows() {
    let dir = folder();
    let age = Duration::from_secs(6 * 3600);
    let mut store = Store::open(dir.path(), age, UNLIMITED_BYTES).unwrap();
    let mut put = |range: std::ops::Range<u64>, begin| {
        range.for_each(|at| _ = store.put(synthetic_window(begin, at)));
    };
    put(0..600, BEGIN);
    put(600..608, BEGIN + 25 * 3600);
    put(608..620, BEGIN);
    let mut numbers = checked_window_numbers(dir.path());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..620).collect::<Vec<_>>());
    // After an hour of windows with the new time, the store accepts this time. It then removes the
    // windows that are too old, compared with the new time.
    put(620..850, BEGIN + 25 * 3600);
    assert!(checked_window_numbers(dir.path()).contains(&0));
    put(850..870, BEGIN + 25 * 3600);
    assert_eq!(checked_window_numbers(dir.path()), (600..608).chain(620..870).collect::<Vec<_>>());
}

/// The daemon itself: its clock is set back by an hour, then forward for some windows, then to the
/// right time.
#[test]
#[ignore = "long: make test-all"]
fn changing_the_clock_loses_no_windows() {
    run_alone();
    let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
    if !Path::new(library).exists() {
        println!("SKIPPED: {library} is not there (tests/setup test-all installs it)");
        return;
    }
    let scratch = folder();
    let (dir, offset) = (scratch.path().join("kept"), scratch.path().join("offset"));
    // Windows of the previous hours.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut store = Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap();
    (0..40).for_each(|at| _ = store.put(synthetic_window(now - 23 * 3600, at)));
    store.put(synthetic_window(now - 15, 0));
    drop(store);
    fs::write(&offset, "+0").unwrap();
    let mut command = Command::new(binary("jvmprobed"));
    command.args(["--config", "/dev/null", "--listen", "none", "--dir"]).arg(&dir);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &offset);
    command.env("FAKETIME_NO_CACHE", "1").env("DONT_FAKE_MONOTONIC", "1");
    let daemon = Tool::spawn(command);
    // The synthetic windows contain the JVM "shop". All other windows are the daemon's own.
    let own = || -> Vec<(u64, u64)> {
        let windows = StoreReader::open(&dir).unwrap().read(0, u64::MAX).unwrap().into_iter();
        let all = windows.map(|stored| stored.window);
        let own = all.filter(|w| w.jvms.iter().all(|jvm_data| jvm_data.identity.name != "shop"));
        own.map(|window| (window.begin_ns, window.end_ns)).collect()
    };
    let mut count = 0;
    for (set, windows) in [("+0", 1), ("-1h", 2), ("+25h", 2), ("+0", 2)] {
        fs::write(&offset, set).unwrap();
        count += windows;
        let until = Instant::now() + Duration::from_secs(120);
        while own().len() < count {
            assert!(Instant::now() < until, "{set}: {:?}", own());
            thread::sleep(Duration::from_millis(500));
        }
    }
    daemon.signal(Signal::TERM);
    let output = daemon.wait();
    assert!(output.status.success(), "{output:?}");
    // The last window may have any length, and may be missing.
    let lengths: Vec<_> = own().iter().map(|(begin, end)| end - begin).collect();
    assert!(lengths.len() == count || lengths.len() == count + 1, "{lengths:?}");
    let whole = lengths.iter().filter(|&&ns| ns > 10 * SECOND && ns < 60 * SECOND).count();
    assert!(whole >= count && !lengths.contains(&0), "{lengths:?}");
    for (hours, at_least) in [(-1, 1), (0, 2), (25, 1)] {
        let near = |ns: u64| (ns / SECOND).abs_diff(now.saturating_add_signed(hours * 3600)) < 900;
        let found = own().iter().filter(|(begin, _)| near(*begin)).count();
        assert!(found >= at_least, "{hours}: {found} of {:?}", own());
    }
    let before = sorted_window_numbers(&dir);
    assert_eq!(before, std::iter::once(0).chain(0..40).collect::<Vec<_>>());
}

#[test]
fn daemon_starts_immediately_after_a_kill() {
    run_beside_others();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let start = || {
        let mut command = Command::new(binary("jvmprobed"));
        command.args(["--config", "/dev/null", "--listen", "127.0.0.1:0", "--dir"]).arg(&store);
        // Missing folders for profiles are created.
        command.arg(format!("--push=dir={}", dir.path().join("new/profiles").display()));
        Tool::spawn(command)
    };
    for _ in 0..3 {
        let killed = start();
        killed.signal(Signal::KILL);
        killed.wait();
    }
    assert!(dir.path().join("new/profiles").is_dir());
    let last = start();
    last.signal(Signal::TERM);
    let output = last.wait();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn existing_directory_gets_the_configured_mode() {
    let scratch = folder();
    let dir = scratch.path().join("kept");
    // As kubelet's DirectoryOrCreate creates it.
    fs::create_dir(&dir).unwrap();
    fs::create_dir(dir.join("push")).unwrap();
    let set = |mode| fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    set(0o755);
    let mut store = Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap();
    store.put(synthetic_window(BEGIN, 0));
    drop(store);
    let window = |at: usize| {
        let mut all = names(&dir);
        all.retain(|name| name.starts_with("15s-"));
        all.sort_unstable();
        dir.join(&all[at])
    };
    assert_eq!((mode(&dir), mode(&window(0))), (0o700, 0o700));
    assert_eq!(mode(&window(0).join(PROFILES)), 0o600);
    // The configuration sets the mode, whatever mode the directory has.
    let mut store = Store::open_with_mode(&dir, DAY, UNLIMITED_BYTES, 0o750).unwrap();
    store.put(synthetic_window(BEGIN, 1));
    drop(store);
    assert_eq!((mode(&dir), mode(&window(1))), (0o750, 0o750));
    assert_eq!(mode(&window(1).join(PROFILES)), 0o640);
    set(0o755);
    drop(Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap());
    assert_eq!(mode(&dir), 0o700);
}

/// A wrong `--dir` must not lock users out of a directory.
#[test]
fn directory_with_unrelated_files_keeps_its_mode() {
    let dir = folder();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("passwd"), "").unwrap();
    for _ in 0..2 {
        let error = format!("{:#}", Store::open(dir.path(), DAY, UNLIMITED_BYTES).unwrap_err());
        assert!(error.contains("mode 0755") && error.contains("passwd"), "{error}");
    }
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o7777, 0o755);
    // A symbolic link to a directory is not followed.
    let link = dir.path().join("link");
    let other = folder();
    fs::set_permissions(other.path(), fs::Permissions::from_mode(0o755)).unwrap();
    symlink(other.path(), &link).unwrap();
    assert!(Store::open(&link, DAY, UNLIMITED_BYTES).is_err());
    assert_eq!(fs::metadata(other.path()).unwrap().permissions().mode() & 0o7777, 0o755);
}

/// A file system in memory, unmounted when dropped.
struct Mounted(TempDir);

impl Mounted {
    fn new(options: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(dir.path());
        assert!(mount.status().unwrap().success());
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("kept")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn writer_on_full_disk_continues_and_counts_lost_windows() {
    run_beside_others();
    let disk = Mounted::new("size=600k");
    let mut command = writer(&disk.path(), 0, 200);
    let child = command.stderr(Stdio::piped()).output().unwrap();
    let (said, errors) =
        (String::from_utf8(child.stdout).unwrap(), String::from_utf8(child.stderr).unwrap());
    let lost = said.lines().filter(|line| line.starts_with("lost")).count();
    assert!(child.status.success() && lost > 0, "{said}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("the disk is full"), "{errors}");
    // The windows that were reported as written are there, and no traces of others.
    let told: Vec<u64> = said.lines().skip(1).filter_map(|line| line.parse().ok()).collect();
    assert_eq!(checked_window_numbers(&disk.path()), told);
    assert!(!names(&disk.path()).iter().any(|name| name.starts_with('.')));
    // With free space again, writing continues.
    let first = names(&disk.path()).into_iter().filter(|name| name.starts_with("15s"));
    first.take(9).for_each(|name| fs::remove_dir_all(disk.path().join(name)).unwrap());
    let mut store = Store::open(&disk.path(), DAY, UNLIMITED_BYTES).unwrap();
    store.put(synthetic_window(BEGIN, 200));
    assert_eq!((store.counts().written, store.counts().lost), (1, 0));
}

/// A disk that is full from the start: a daemon that cannot store anything does not start.
#[test]
fn disk_full_at_startup_is_reported_in_one_line() {
    run_beside_others();
    let disk = Mounted::new("size=64k");
    let filler = disk.0.path().join("filler");
    while fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&filler)
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[0; 4096]))
        .is_ok()
    {}
    let said = startup_error(&disk.path());
    assert!(said.contains("No space left on device"), "{said}");
    assert!(!disk.path().join("version").exists());
}

/// Returns the one-line error message of a daemon for a directory.
fn startup_error(dir: &Path) -> String {
    let own = format!("{:#}", Store::open(dir, DAY, UNLIMITED_BYTES).unwrap_err());
    let output = Command::new(binary("jvmprobed")).arg("--dir").arg(dir).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said, format!("jvmprobed: {own}\n"));
    assert_eq!(own.lines().count(), 1);
    own
}

#[test]
fn unusable_directory_is_rejected_in_one_line() {
    run_beside_others();
    let scratch = TempDir::new().unwrap();
    let dir = scratch.path().join("kept");
    // A directory of another user, and one to which others may write.
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(65534), None).unwrap();
    assert!(startup_error(&dir).contains("belongs to user 65534"));
    chown(&dir, Some(0), None).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(startup_error(&dir).contains("is writable by other users"));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    // A link to it, a file, and a path that does not exist.
    let link = scratch.path().join("link");
    symlink(&dir, &link).unwrap();
    assert!(startup_error(&link).contains("symbolic link"));
    fs::write(scratch.path().join("file"), "").unwrap();
    assert!(startup_error(&scratch.path().join("file")).contains("is not a directory"));
    assert!(startup_error(&scratch.path().join("a/b/c")).contains("cannot create"));
    // Nothing was written into any of them.
    assert!(names(&dir).is_empty());
    // A second daemon on the same directory.
    let store = Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap();
    assert!(startup_error(&dir).contains("another jvmprobed writes to"));
    drop(store);
    // A directory of a newer version, which readers reject as well.
    fs::write(dir.join("version"), format!("{}\n", VERSION + 1)).unwrap();
    assert!(
        startup_error(&dir).contains(&format!("has version {} of a newer jvmprobed", VERSION + 1))
    );
    let show =
        Command::new(binary("jvmprobed")).args(["show", "--dir"]).arg(&dir).output().unwrap();
    let said = String::from_utf8(show.stderr).unwrap();
    assert!(said.contains("newer jvmprobed") && said.lines().count() == 1, "{said}");
    fs::write(dir.join("version"), "x").unwrap();
    assert!(startup_error(&dir).contains("does not contain a number"));
}

#[test]
fn windows_of_an_older_format_are_removed_at_startup() {
    run_beside_others();
    (1..=2).for_each(check_that_windows_are_removed);
}

/// Checks that the daemon replaces the windows of an older version of the format.
fn check_that_windows_are_removed(version: u32) {
    let scratch = folder();
    let dir = scratch.path().join("kept");
    let mut store = Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap();
    (0..3).for_each(|at| _ = store.put(synthetic_window(BEGIN, at)));
    drop(store);
    fs::create_dir(dir.join("push")).unwrap();
    fs::write(dir.join("push/queued"), "x").unwrap();
    // Version 1 used other names for a window's files.
    for window in names(&dir).into_iter().filter(|name| version == 1 && name.starts_with("15s-")) {
        let file = dir.join(window);
        fs::rename(file.join(PROFILES), file.join("profiles.pb.gz")).unwrap();
    }
    fs::write(dir.join("version"), format!("{version}\n")).unwrap();
    let show =
        Command::new(binary("jvmprobed")).args(["show", "--dir"]).arg(&dir).output().unwrap();
    let said = String::from_utf8(show.stderr).unwrap();
    assert!(
        said.contains(&format!("has version {version} of an older jvmprobed"))
            && said.lines().count() == 1,
        "{said}"
    );
    assert_eq!(show.status.code(), Some(1));
    assert_eq!(names(&dir).iter().filter(|name| name.starts_with("15s-")).count(), 3);
    let writer = writer(&dir, 3, 2).stderr(Stdio::piped()).output().unwrap();
    assert!(writer.status.success(), "{writer:?}");
    let said = String::from_utf8(writer.stderr).unwrap();
    assert!(said.contains("removed 3 windows of an older jvmprobed"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(checked_window_numbers(&dir), [3, 4]);
    assert_eq!(fs::read_to_string(dir.join("push/queued")).unwrap(), "x");
    // From then on nothing more is removed.
    drop(Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap());
    assert_eq!(checked_window_numbers(&dir), [3, 4]);
}

#[test]
fn read_only_disk_is_reported_in_one_line() {
    run_beside_others();
    let disk = Mounted::new("size=1m");
    let mut store = Store::open(&disk.path(), DAY, UNLIMITED_BYTES).unwrap();
    store.put(synthetic_window(BEGIN, 0));
    drop(store);
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(disk.0.path()).status();
    assert!(remount.unwrap().success());
    assert!(startup_error(&disk.path()).contains("Read-only file system"));
    assert!(startup_error(&disk.0.path().join("other")).contains("Read-only file system"));
    // Read-only access is possible.
    assert_eq!(checked_window_numbers(&disk.path()), [0]);
}

#[test]
fn symlinks_and_fifos_in_the_store_are_skipped() {
    run_beside_others();
    let scratch = folder();
    let (dir, other) = (scratch.path().join("kept"), scratch.path().join("other"));
    drop(Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap());
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "x").unwrap();
    symlink(&other, dir.join(".new-15s-20251122T030000.000Z-15000ms")).unwrap();
    symlink(&other, dir.join("15s-20251122T030000.000Z-15000ms")).unwrap();
    let mut store = Store::open(&dir, DAY, UNLIMITED_BYTES).unwrap();
    for at in 0..300 {
        store.put(synthetic_window(BEGIN + 1, at));
    }
    // A pipe without a writer in place of a file.
    let window = names(&dir).into_iter().find(|name| name.starts_with("15s-20251122T04")).unwrap();
    let file = dir.join(window).join(PROFILES);
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let all = names(&dir).iter().filter(|name| name.contains("-20251122T")).count();
    assert_eq!(StoreReader::open(&dir).unwrap().read(0, u64::MAX).unwrap().len(), all - 1);
    let show = Command::new(binary("jvmprobed"))
        .args([
            "show",
            "--since",
            "2025-11-22T03:00:00Z",
            "--until",
            "2025-11-22T05:00:00Z",
            "--dir",
        ])
        .arg(&dir)
        .output();
    let show = show.unwrap();
    let said = String::from_utf8(show.stderr).unwrap();
    assert!(show.status.success() && said.contains("which cannot be read"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(fs::read_to_string(other.join("precious")).unwrap(), "x");
}
