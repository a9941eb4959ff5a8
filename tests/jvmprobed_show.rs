//! `jvmprobed show` prints stored windows in the formats of the tools.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Output},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jvmprobe_tests::{
    page, pprof, run_alone,
    tool::binary,
    windows::{SAMPLES, SECOND, folder, synthetic_window},
};
use jvmprobed::store::Store;
use tempfile::TempDir;

/// A directory with windows of the last hour, and of the same hour yesterday.
struct TestStore {
    dir: TempDir,
    /// Start of the last hour, in seconds since 1970.
    begin: u64,
}

/// Number of windows in an hour.
const WINDOWS_PER_HOUR: u64 = 240;

impl TestStore {
    fn new() -> Self {
        let dir = folder();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let begin = now - WINDOWS_PER_HOUR * 15;
        let mut store = Store::open(dir.path(), Duration::from_secs(48 * 3600), 1 << 40).unwrap();
        for day in [86_400, 0] {
            (0..WINDOWS_PER_HOUR).for_each(|at| _ = store.put(synthetic_window(begin - day, at)));
        }
        Self { dir, begin }
    }

    fn show(&self, args: &[&str]) -> Output {
        let mut command = Command::new(binary("jvmprobed"));
        command.arg("show").arg("--dir").arg(self.dir.path()).args(args).output().unwrap()
    }

    /// Returns the output of `jvmprobed show`, which must succeed.
    fn output(&self, args: &[&str]) -> String {
        let output = self.show(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the one-line error message of `jvmprobed show`, which must fail.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.show(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    }

    /// Returns the start of the window with this number in the last hour, formatted as an argument.
    fn at(&self, window: u64) -> String {
        let at = jiff::Timestamp::from_second(i64::try_from(self.begin + window * 15).unwrap());
        at.unwrap().to_string()
    }
}

/// Returns the number of samples of `shop.Main.window` in these windows of one JVM.
fn window_samples(windows: std::ops::Range<u64>) -> u64 {
    windows.sum()
}

#[test]
fn time_range_is_shown_as_a_table() {
    let test_store = TestStore::new();
    let (from, until) = (test_store.at(20), test_store.at(24));
    let text = test_store.output(&["--since", &from, "--until", &until, "--jvm", "^shop$"]);
    assert!(text.contains("\nJVM shop 77, "), "{text}");
    // 400 + (20 + 21 + 22 + 23) samples at 20 per second.
    assert!(text.contains("24.30 s of CPU time in 60.00 s (0.41 cores): Java 100.00 %"), "{text}");
    let samples = |name: &str| {
        let row =
            text.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{text}"));
        row.split_whitespace().nth_back(1).unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(samples("shop.Main.run"), 4 * SAMPLES);
    assert_eq!(samples("shop.Main.window"), window_samples(20..24));
    // Both JVMs have the same main jar, so they are distinguished by their names.
    let (from, until) = (test_store.at(16), test_store.at(20));
    let both = test_store.output(&["--since", &from, "--until", &until, "--jvm", "shop.jar"]);
    assert!(both.contains("2 JVMs (batch 78, shop 77), "), "{both}");
}

#[test]
fn list_command_shows_stored_jvms() {
    let test_store = TestStore::new();
    let list = |args: &[&str]| {
        let mut command = Command::new(binary("jvmprobed"));
        command.arg("list").arg("--dir").arg(test_store.dir.path()).args(args).output().unwrap()
    };
    let listed = list(&["-j"]);
    assert!(listed.status.success(), "{listed:?}");
    let jvms: Vec<serde_json::Value> = String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = jvms.iter().map(|jvm| (&jvm["name"], &jvm["pid"])).collect();
    assert_eq!(names, [(&"batch".into(), &78.into()), (&"shop".into(), &77.into())]);
    let at = |time: &serde_json::Value| {
        time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_second().cast_unsigned()
    };
    let shop = &jvms[1];
    assert_eq!(
        (at(&shop["first"]), at(&shop["last"])),
        (test_store.begin - 86_400, test_store.begin + 3600)
    );
    assert!(shop["windows"].as_u64().unwrap() >= 2, "{shop}");
    let text = String::from_utf8(list(&["--jvm", "77"]).stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.ends_with(" shop")).count(), 1, "{text}");
    assert!(!text.contains("batch") && text.contains(" windows, "), "{text}");
    let none = list(&["--jvm", "7"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8(none.stderr).unwrap().contains("matches `7`"));
}

/// A range that begins or ends within a stored slot is widened to complete slots, so that rates
/// refer to the range that is shown.
#[test]
fn rates_refer_to_the_displayed_time_range() {
    let test_store = TestStore::new();
    // Time after the start of window 20. CPU samples are stored in slots of one second.
    let at = |millis: u64| {
        let at = i64::try_from((test_store.begin + 20 * 15) * 1000 + millis).unwrap();
        jiff::Timestamp::from_millisecond(at).unwrap().to_string()
    };
    for (from, until, more, is_widened, rate) in [
        (0, 15_000, &[][..], false, "6.00 s of CPU time in 15.00 s (0.40 cores)"),
        (3_200, 3_900, &[], true, "5.00 s of CPU time in 1.00 s (5.00 cores)"),
        (8_500, 10_500, &[], true, "1.00 s of CPU time in 3.00 s (0.33 cores)"),
        (0, 61_000, &[], false, " of CPU time in 61.00 s"),
        (0, 15_000, &["--alloc"], false, "1000B allocated in 15.00 s, 66B/s"),
        (3_200, 3_900, &["--alloc"], true, "1000B allocated in 15.00 s, 66B/s"),
        (0, 61_000, &["--alloc"], true, "4.9K allocated in 75.00 s, 66B/s"),
    ] {
        let (from, until) = (at(from), at(until));
        let when = ["--since", &from, "--until", &until, "--jvm", "^shop$"];
        let text = test_store.output(&[&when, more].concat());
        assert!(text.contains(rate), "{rate}: {text}");
        assert_eq!(text.contains("\nShowing more than "), is_widened, "{rate}: {text}");
        // CPU time as accounted by the kernel, which is stored for whole windows.
        let account = "\n6.30 s of CPU time as counted by the kernel (0.42 cores)";
        let is_whole = (until.as_str(), more.len()) == (at(15_000).as_str(), 0);
        assert_eq!(text.contains(account), is_whole, "{text}");
    }
}

/// Windows of a daemon that exceeded its CPU limit: the rate was lower for some time, then
/// allocation was not collected.
#[test]
fn reduced_collection_keeps_sums_and_is_reported() {
    let mut test_store = TestStore { dir: folder(), begin: 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    test_store.begin = now - 40 * 15;
    let mut store =
        Store::open(test_store.dir.path(), Duration::from_secs(86_400), 1 << 40).unwrap();
    // Ten windows with 20 samples per second, then ten with 9, then ten with 4. Each window has 5 s
    // of run().
    for at in 0..30 {
        let mut window = synthetic_window(test_store.begin, at);
        window.jvms.truncate(1);
        let hertz = [20, 9, 4][at as usize / 10];
        let [cpu, _] = &mut window.jvms[0].profiles[..] else { panic!("{window:?}") };
        cpu.hertz = hertz;
        cpu.samples.truncate(1);
        (cpu.samples[0].count, cpu.samples[0].times) = (5 * hertz, vec![(3, 5 * hertz)]);
        if at >= 20 {
            window.jvms[0].profiles.truncate(1);
            window.left_out.insert("alloc".into(), 15 * SECOND);
        }
        store.put(window);
    }
    let (from, until) = (test_store.at(0), test_store.at(30));
    let time = ["--since", &from, "--until", &until];
    let text = test_store.output(&time);
    // Each window has 5 s. The samples are weighted, so their number is that of a rate of 20 per
    // second.
    assert!(text.contains("150.00 s of CPU time in 450.00 s"), "{text}");
    assert!(
        text.contains(
            "To save resources, the rate was reduced to 4 samples per second; samples are weighted as if it was 20\n"
        ),
        "{text}"
    );
    assert!(text.contains("\n3000 samples;"), "{text}");
    let alloc = test_store.output(&[&time[..], &["--alloc"]].concat());
    assert!(
        alloc.contains("alloc was not collected for 150.00 s of 450.00 s, to save resources\n"),
        "{alloc}"
    );
    // The rate refers to the time in which allocation was collected: 1000 bytes in each of 20
    // windows.
    assert!(alloc.contains("allocated in 300.00 s, 66B/s"), "{alloc}");
    // Without saving, there is no message.
    let (from, until) = (test_store.at(1), test_store.at(9));
    let text = test_store.output(&["--since", &from, "--until", &until]);
    assert!(!text.contains("save"), "{text}");
}

#[test]
fn time_range_within_a_merged_window_is_shown() {
    let test_store = TestStore::new();
    // Yesterday's windows span five minutes or an hour; one minute of them is shown.
    let since = test_store.begin - 86_400;
    let minute = since.next_multiple_of(60) + 600;
    let at = |second: u64| {
        jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap().to_string()
    };
    let text = test_store.output(&[
        "--since",
        &at(minute),
        "--until",
        &at(minute + 60),
        "--jvm",
        "^shop$",
    ]);
    // The stored slots of one minute begin at the start of their window, not at full minutes, and the last slot of a window
    // may be shorter. The requested minute therefore lies in one slot or two, which are shown.
    let (_, shown) = text.split_once(" of CPU time in ").unwrap();
    let shown: f64 = shown.split_once(" s ").unwrap().0.parse().unwrap();
    assert!((60.0..=120.0).contains(&shown), "{text}");
    let windows = (shown / 15.0) as u64;
    let row = text.lines().find(|line| line.ends_with(" shop.Main.run")).unwrap();
    let samples: u64 = row.split_whitespace().nth_back(1).unwrap().parse().unwrap();
    // The samples of run() are three seconds after the start of each window, so one window more or
    // less may be in the range.
    assert!((windows - 1..=windows + 1).any(|n| n * SAMPLES == samples), "{text}");
}

#[test]
fn allocation_and_pauses_use_the_formats_of_their_tools() {
    let test_store = TestStore::new();
    let (from, until) = (test_store.at(20), test_store.at(24));
    let when = ["--since", &from, "--until", &until, "--jvm", "^shop$"];
    let text = test_store.output(&[&when[..], &["--alloc"]].concat());
    assert!(text.contains("3.9K allocated in 60.00 s, 66B/s; 40 objects"), "{text}");
    assert!(text.contains("BYTES/s") && text.lines().any(|line| line.contains("byte[]")), "{text}");
    let text = test_store.output(&[&when[..], &["--gc", "-T"]].concat());
    let rows: Vec<_> = text.lines().filter(|line| line.contains("G1 Evacuation Pause")).collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert!(rows[0].ends_with("0.001      2.000       2.500      100.0M      20.0M"), "{text}");
    assert!(
        text.contains(
            "GC stopped the application 4 times for 10.0 ms: 0.02 % of the time;\n  4 collections, 0 full, 4.0 per minute"
        ),
        "{text}"
    );
    let lines = test_store.output(&[&when[..], &["--gc", "--json"]].concat());
    let stopped = lines.lines().map(|line| {
        let pause: serde_json::Value = serde_json::from_str(line).unwrap();
        pause["stopped_ns"].as_u64().unwrap()
    });
    assert_eq!(stopped.collect::<Vec<_>>(), [2_500_020, 2_500_021, 2_500_022, 2_500_023]);
}

#[test]
fn output_files_match_the_table() {
    let test_store = TestStore::new();
    let out = TempDir::new().unwrap();
    let path = |name: &str| out.path().join(name).into_os_string().into_string().unwrap();
    let files = ["a.folded", "a.pb.gz", "a.svg", "a.html", "a.json"].map(path);
    let (from, until) = (test_store.at(20), test_store.at(24));
    let mut args = vec!["--quiet", "--since", &from, "--until", &until, "--jvm", "^shop$"];
    files.iter().for_each(|file| args.extend(["-o", file]));
    assert_eq!(test_store.output(&args), "");
    let folded = fs::read_to_string(&files[0]).unwrap();
    let expected = format!(
        "java;shop.Main.main;shop.Main.run {}\njava;shop.Main.main;shop.Main.window {}\n",
        4 * SAMPLES,
        window_samples(20..24)
    );
    assert_eq!(folded, expected);
    let profile = pprof::read(Path::new(&files[1]));
    assert_eq!(
        counts(&profile, 0),
        [("shop.Main.run", 4 * SAMPLES), ("shop.Main.window", window_samples(20..24))]
    );
    for file in [&files[2], &files[4]] {
        assert!(fs::read_to_string(file).unwrap().contains("shop.Main.run"), "{file}");
    }
    // On the page's time axis, samples and pauses are at their time, in slots of one second.
    let times = page::times(Path::new(&files[3]));
    assert_eq!((times.begin_ms, times.slot_ns), ((test_store.begin + 300) * 1000, SECOND));
    let slots: Vec<_> = times.counts.iter().map(|count| (count[0], count[3])).collect();
    assert_eq!(
        slots,
        [(3, 100), (9, 20), (18, 100), (24, 21), (33, 100), (39, 22), (48, 100), (54, 23)]
    );
    let bands: Vec<_> = times.bands.iter().map(|band| (band.0, band.2, &*band.3)).collect();
    let pause = |second: u64| (second * 1_000_000, true, "G1 Evacuation Pause");
    assert_eq!(bands, [pause(7), pause(22), pause(37), pause(52)]);
}

/// Returns the samples by innermost function, for one of the profile's values.
fn counts(profile: &pprof::Pprof, value: usize) -> Vec<(&str, u64)> {
    let mut counts = std::collections::BTreeMap::new();
    for sample in &profile.samples {
        *counts.entry(&*sample.functions[0]).or_insert(0) += sample.values[value];
    }
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[test]
fn exported_pprof_and_stored_jsonl_are_readable() {
    let test_store = TestStore::new();
    let out = TempDir::new().unwrap();
    // The last window, which has one JVM or two.
    let when = [test_store.at(WINDOWS_PER_HOUR - 1), test_store.at(WINDOWS_PER_HOUR)];
    let pprof_of = |args: &[&str]| {
        let file = out.path().join("a.pb.gz").into_os_string().into_string().unwrap();
        test_store.output(
            &[&["-q", "--since", &when[0], "--until", &when[1], "-o", &file], args].concat(),
        );
        pprof::read(Path::new(&file))
    };
    let types = |profile: &pprof::Pprof| profile.types.clone();
    let named =
        |types: [(&str, &str); 2]| types.map(|(kind, unit)| (kind.to_owned(), unit.to_owned()));
    let jvms = if (WINDOWS_PER_HOUR - 1) % 7 == 3 { 2 } else { 1 };
    let samples =
        [("shop.Main.run", jvms * SAMPLES), ("shop.Main.window", jvms * (WINDOWS_PER_HOUR - 1))];
    let cpu = pprof_of(&[]);
    assert_eq!(types(&cpu), named([("samples", "count"), ("cpu", "nanoseconds")]));
    assert_eq!(counts(&cpu, 0), samples);
    assert_eq!(counts(&cpu, 1), samples.map(|(name, count)| (name, count * 50_000_000)));
    let alloc = pprof_of(&["--alloc"]);
    assert_eq!(types(&alloc), named([("alloc_objects", "count"), ("alloc_space", "bytes")]));
    assert_eq!(counts(&alloc, 0), [("byte[]", jvms * 10)]);
    assert_eq!(counts(&alloc, 1), [("byte[]", jvms * 1000)]);
    let names = fs::read_dir(test_store.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap());
    let last = names.filter(|name| name.starts_with("15s-")).max().unwrap();
    let lines = test_store.dir.path().join(&last).join("jvms.jsonl.gz");
    let lines = Command::new("zcat").arg(lines).output().unwrap().stdout;
    let types = String::from_utf8(lines)
        .unwrap()
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["type"].as_str().unwrap().to_owned()
        })
        .collect::<Vec<_>>();
    assert_eq!(types[..3], ["window", "jvm", "pause"]);
}

#[test]
fn diff_option_compares_two_time_ranges() {
    let test_store = TestStore::new();
    let out = TempDir::new().unwrap();
    let svg = out.path().join("d.svg").into_os_string().into_string().unwrap();
    let (from, until) = (test_store.at(40), test_store.at(44));
    let when = ["--since", &from, "--until", &until, "--jvm", "^shop$"];
    // Five minutes earlier, less time was spent in this method.
    let text = test_store.output(&[&when[..], &["--diff", "5m", "-o", &svg]].concat());
    assert!(text.contains("\nCompared with JVM shop 77, "), "{text}");
    let row = text.lines().rfind(|line| line.ends_with(" shop.Main.window")).unwrap();
    // 40 + 41 + 42 + 43 = 166 of 566 samples, 20 + 21 + 22 + 23 = 86 of 486.
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        ["29.33", "%", "17.70", "%", "+11.63", "shop.Main.window"]
    );
    assert!(fs::read_to_string(&svg).unwrap().contains("shop.Main.window"));
    // Allocation is compared by class, and these windows always have the same class.
    let text = test_store.output(&[&when[..], &["--alloc", "--diff", "5m"]].concat());
    assert!(text.contains("byte[]") && text.contains("Nothing has changed"), "{text}");
    let folded = out.path().join("d.folded").into_os_string().into_string().unwrap();
    let error = test_store.refused(&[&when[..], &["--diff", "5m", "-o", &folded]].concat());
    assert!(error.contains("--diff is only supported for FILE.svg or FILE.html"), "{error}");
}

#[test]
fn missing_data_is_reported_in_one_line() {
    let test_store = TestStore::new();
    let error = test_store.refused(&["--since", "10h", "--until", "9h"]);
    assert!(
        error.contains("nothing is stored for ") && error.contains("; stored times: "),
        "{error}"
    );
    // The message has the requested period and the two periods for which windows are stored.
    assert_eq!(error.matches(" to ").count(), 3, "{error}");
    let error = test_store.refused(&["--since", "1h", "--jvm", "nobody"]);
    assert!(
        error.contains("matches `nobody`; JVMs in this time: ") && error.contains("shop 77"),
        "{error}"
    );
    assert!(
        test_store
            .refused(&["--since", "5m", "--until", "10m"])
            .contains("--since must be before --until")
    );
    assert!(test_store.refused(&["--event", "off-cpu"]).contains("collected: cpu, alloc"));
    let error = test_store.refused(&["--wall"]);
    assert!(error.contains("no waits were recorded") && error.contains("--waits 1ms"), "{error}");
    let nowhere = TempDir::new().unwrap();
    let nowhere = TestStore { dir: nowhere, begin: 0 };
    assert!(nowhere.refused(&[]).contains("contains no windows of jvmprobed"));
    for wrong in [
        &["--since", "yesterday"][..],
        &["-j"],
        &["--alloc", "-j"],
        &["--diff", "5m", "-j"],
        &["--gc", "-o", "x.svg"],
        &["--gc", "--diff", "5m"],
        &["--wall", "--alloc"],
        &["--wall", "-e", "wait"],
        &["--wall", "-j"],
    ] {
        let output = test_store.show(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
    }
}

#[test]
fn directory_mode_controls_access_by_other_users() {
    run_alone();
    let tool = TempDir::new().unwrap();
    let binary_of_all = tool.path().join("jvmprobed");
    fs::copy(binary("jvmprobed"), &binary_of_all).unwrap();
    fs::set_permissions(tool.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Other users can read the windows only if the directory's mode allows it.
    for (mode, is_open) in [(0o700, false), (0o755, true)] {
        let dir = folder();
        let day = Duration::from_secs(86_400);
        let mut store = Store::open_with_mode(dir.path(), day, 1 << 40, mode).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        (0..WINDOWS_PER_HOUR)
            .for_each(|at| _ = store.put(synthetic_window(now - WINDOWS_PER_HOUR * 15, at)));
        let mut command = Command::new(&binary_of_all);
        command.args(["show", "--since", "1h", "--dir"]).arg(dir.path());
        let output = command.uid(65534).gid(65534).current_dir("/").output().unwrap();
        let (text, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.success(), is_open, "{error}");
        assert_eq!(text.contains("shop.Main.run"), is_open, "{text}");
        if !is_open {
            assert!(error.contains("Permission denied") && error.lines().count() == 1, "{error}");
        }
    }
}

#[test]
fn configuration_error_is_reported_with_its_line() {
    let dir = TempDir::new().unwrap();
    let (file, kept) = (dir.path().join("a.toml"), dir.path().join("kept"));
    fs::write(&file, format!("[store]\ndir = {kept:?}\nkepp = \"1h\"\n")).unwrap();
    let run =
        |file: &Path| Command::new(binary("jvmprobed")).arg("--config").arg(file).output().unwrap();
    let refused = |file: &Path| {
        let output = run(file);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
        text
    };
    let text = refused(&file);
    assert!(text.contains("a.toml: line 3: unknown field `kepp`"), "{text}");
    assert!(refused(&dir.path().join("none")).contains("none: No such file"));
    // Nothing was created there.
    assert!(!kept.exists());
}

#[test]
fn completions_and_man_page_list_every_option() {
    let output_of = |args: &[&str]| {
        let output = Command::new(binary("jvmprobed")).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let man = include_str!("../man/jvmprobed.8").replace('\\', "");
    let bash = output_of(&["--completions", "bash"]);
    for help in [output_of(&["--help"]), output_of(&["show", "--help"])] {
        let options: Vec<_> = help
            .split(|c: char| c.is_whitespace() || c == ',')
            .filter(|word| word.starts_with("--") && word.len() > 4)
            .map(|word| word.trim_end_matches([']', '.', ')', ':', ';']))
            .collect();
        assert!(options.len() > 6, "{options:?}");
        for option in options {
            assert!(man.contains(option), "{option} is not in the man page");
            assert!(bash.contains(option), "{option} is not completed");
        }
    }
    let lint = Command::new("mandoc")
        .args(["-T", "lint", "-W", "warning"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../man/jvmprobed.8"))
        .output();
    let lint = lint.expect("mandoc (tests/setup installs it)");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}
