//! javaprof's options and output formats.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use jvmprobe_tests::{
    child_process::busy_shell,
    folded::{self, Line, total},
    load::{FRAMES, Load, classes},
    pprof,
    proc::{breakpoints, cpu_seconds, threads},
    run_alone, run_beside_others,
    runtimes::named,
    tool::{self, Output, Tool, assert_refused, binary},
};
use rustix::process::Signal;
use serde_json::Value;

/// Starts a JVM whose methods have been compiled.
fn start_warm_load(runtime: &str) -> Load {
    run_beside_others();
    // Builds the tools now, so that the build does not run beside the load.
    binary("javaprof");
    let mut load = Load::start_program(named(runtime), FRAMES, "CpuLoad");
    load.run(0.7);
    load
}

fn pid(load: &Load) -> String {
    load.pid().to_string()
}

fn start(load: &Load, args: &[&str]) -> Tool {
    let pid = pid(load);
    Tool::start("javaprof", &[&["-p", &pid], args].concat())
}

/// Profiles the load from its start to its end.
fn profile(load: &mut Load, seconds: f64, args: &[&str]) -> Output {
    let tool = start(load, args);
    load.run(seconds);
    assert_success(tool.interrupt())
}

fn assert_success(output: Output) -> Output {
    assert!(output.status.success(), "{output:?}");
    // stderr has only messages to the user, and there is no colour in a pipe.
    assert!(output.stderr.lines().all(|l| l.starts_with("javaprof: ")), "{}", output.stderr);
    assert!(!output.stdout.contains('\x1b') && !output.stderr.contains('\x1b'));
    output
}

/// Parses the folded stacks of a profile with `-f`.
fn lines(output: &Output) -> Vec<Line> {
    let lines = folded::parse(&output.stdout);
    assert!(!lines.is_empty(), "{output:?}");
    lines
}

fn is_kernel(frame: &str) -> bool {
    frame.ends_with("_[k]")
}

/// Returns the name by which `-t` shows the worker thread of the running load.
fn worker(load: &Load) -> String {
    for _ in 0..1000 {
        if let Some((tid, name)) = threads(load.pid()).iter().find(|(_, n)| *n == "cpu-worker") {
            return format!("{name}-{tid}");
        }
        sleep(Duration::from_millis(5));
    }
    panic!("the worker does not run");
}

#[test]
fn folded_stacks_begin_with_the_command_and_end_in_the_kernel() {
    run_beside_others();
    run_beside_others();
    binary("javaprof");
    // Unlike CpuLoad, GcLoad enters the kernel often.
    let flags = "-XX:+PreserveFramePointer -XX:+UseParallelGC";
    let mut load = Load::start_program(named("temurin-17"), flags, "GcLoad");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.folded");
    let output = profile(&mut load, 1.5, &["-F", "499", "-f", "-o", file.to_str().unwrap()]);
    // The file and stdout of one run have the same content.
    assert_eq!(fs::read_to_string(&file).unwrap(), output.stdout);
    let kernel: HashSet<String> = fs::read_to_string("/proc/kallsyms")
        .unwrap()
        .lines()
        .filter_map(|l| l.split_ascii_whitespace().nth(2).map(str::to_owned))
        .collect();
    let comm = fs::read_to_string(format!("/proc/{}/comm", load.pid())).unwrap();
    let (mut with_kernel, mut without) = (0, 0);
    for line in lines(&output) {
        assert_eq!(line.frames[0], comm.trim_end(), "{line:?}");
        let user = line.frames.iter().take_while(|frame| !is_kernel(frame)).count();
        for frame in &line.frames[user..] {
            let name = frame.strip_suffix("_[k]").unwrap_or_else(|| panic!("{frame}: {line:?}"));
            // The tool's own BPF programs have been unloaded since, so kallsyms no longer has them.
            let is_gone = name.starts_with("[unknown ") || name.starts_with("bpf_");
            assert!(kernel.contains(name) || is_gone, "{name}: {line:?}");
        }
        for frame in &line.frames[1..user] {
            assert!(!frame.starts_with("entry_SYSCALL_64"), "{frame}: {line:?}");
        }
        *(if user < line.frames.len() { &mut with_kernel } else { &mut without }) += line.count;
    }
    assert!(with_kernel > 5 && without > 50, "{with_kernel} with, {without} without the kernel");
}

#[test]
fn threads_option_separates_stacks_by_thread() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let tool = start(&load, &["-F", "499", "-f", "-t"]);
    load.go(2.0);
    let worker = worker(&load);
    let mut seen: BTreeMap<u32, HashSet<String>> = BTreeMap::new();
    for _ in 0..15 {
        for (tid, name) in threads(load.pid()) {
            seen.entry(tid).or_default().insert(name);
        }
        sleep(Duration::from_millis(100));
    }
    load.done();
    let output = assert_success(tool.interrupt());
    let mut of_worker = 0;
    for line in lines(&output) {
        let (name, tid) = line.frames[1].rsplit_once('-').unwrap_or_else(|| panic!("{line:?}"));
        let names = &seen[&tid.parse().unwrap()];
        // The kernel keeps the first 15 bytes. A thread has its process's name until it has named itself.
        let is_name = |kept: &String| name == kept || kept.len() == 15 && name.starts_with(kept);
        assert!(names.iter().any(is_name) || name == "java", "{names:?}: {line:?}");
        if line.frames[1] == worker {
            of_worker += line.count;
        } else {
            assert!(!line.has("CpuLoad.deep"), "{line:?}");
        }
    }
    assert!(of_worker > 100, "{of_worker}");
}

#[test]
fn user_and_kernel_options_restrict_frames() {
    run_beside_others();
    run_beside_others();
    binary("javaprof");
    let flags = "-XX:+PreserveFramePointer -XX:+UseParallelGC";
    let mut load = Load::start_program(named("temurin-17"), flags, "GcLoad");
    for option in ["-U", "-K"] {
        let output = profile(&mut load, 1.5, &["-F", "499", "-f", option]);
        let lines = lines(&output);
        let frames = || lines.iter().flat_map(|line| &line.frames[1..]);
        assert!(frames().all(|f| is_kernel(f) == (option == "-K")), "{option} {}", output.stdout);
        assert!(frames().count() > 10, "{option}: {}", output.stdout);
        // Frames that are omitted from stacks do not change the counts.
        assert!(total(&lines) > 150, "{option}: {}", output.stdout);
    }
}

#[test]
fn include_and_exclude_select_complementary_stacks() {
    let mut load = start_warm_load("temurin-17");
    let deep = r"^CpuLoad\.deep$";
    // The profiles run at the same time, so that their counts can be compared.
    let tools = [
        &[][..],
        &["--include", deep],
        &["--exclude", deep],
        &["--include", deep, "--include", r"CpuLoad\.sma"],
        &["--include", r"CpuLoad\.", "--exclude", "small", "--exclude", "medium"],
        &["--include", "no such frame"],
    ]
    .map(|args| start(&load, &[&["-F", "499", "-f"], args].concat()));
    load.run(1.5);
    let profiles = tools.map(|tool| folded::parse(&assert_success(tool.interrupt()).stdout));
    let [all, with, without, either, both, none] = &profiles;
    let has = |line: &Line, name: &str| line.has(&format!("CpuLoad.{name}"));
    assert!(with.iter().all(|l| has(l, "deep")), "{with:#?}");
    assert!(!without.iter().any(|l| has(l, "deep")), "{without:#?}");
    assert!(either.iter().all(|l| has(l, "deep") || has(l, "small")), "{either:#?}");
    assert!(["deep", "small"].iter().all(|name| either.iter().any(|l| has(l, name))));
    assert!(both.iter().any(|l| has(l, "deep")), "{both:#?}");
    assert!(!both.iter().any(|l| has(l, "small") || has(l, "medium")), "{both:#?}");
    assert!(none.is_empty(), "{none:#?}");
    // The samples with `deep` and those without it add up to the total, except for clock jitter.
    let (sum, all) = (total(with) + total(without), total(all));
    assert!(sum.abs_diff(all) <= all / 5, "{} and {} of {all}", total(with), total(without));
    let expected = total(profiles[0].iter().filter(|l| has(l, "deep")));
    assert!(total(with).abs_diff(expected) <= expected / 3, "{} of {expected}", total(with));
}

#[test]
fn agent_is_not_in_the_profile() {
    run_beside_others();
    check_agent_is_not_in_the_profile(&["temurin-11"]);
}

#[test]
#[ignore = "long: make test-all"]
fn agent_is_not_in_the_profile_on_other_jdks() {
    run_beside_others();
    check_agent_is_not_in_the_profile(&["temurin-17", "temurin-21", "temurin-25"]);
}

/// The work of a JVM in response to javaprof's requests is not part of its profile.
fn check_agent_is_not_in_the_profile(runtimes: &[&str]) {
    for runtime in runtimes {
        let mut load = start_warm_load(runtime);
        let output = profile(&mut load, 0.5, &["-F", "999", "-f", "--symbols", "agent"]);
        for trace in [".jvmprobe-", "GenerateEvents", "attach_listener"] {
            assert!(!output.stdout.contains(trace), "{runtime}: {}", output.stdout);
        }
        assert!(lines(&output).iter().any(|line| line.has("CpuLoad.deep")), "{}", output.stdout);
        // A process that becomes a JVM while it is sampled.
        let java = named(runtime).java.to_str().unwrap();
        let classes = classes().to_str().unwrap();
        let mut command = Command::new(binary("javaprof"));
        command.args(["-F", "999", "-f", "--symbols", "agent", "--"]);
        command.args([java, "-cp", classes, "CpuLoad"]);
        let tool = Tool::spawn_reading(command, Stdio::piped());
        sleep(Duration::from_secs(3));
        let output = tool.interrupt();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.contains(';'), "{output:?}");
        assert!(!output.stdout.contains(".jvmprobe-"), "{runtime}: {}", output.stdout);
    }
}

fn assert_well_formed(svg: &Path) {
    let script = "import sys,xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])";
    let python = Command::new("python3").args(["-c", script]).arg(svg).status();
    assert!(python.expect("python3").success(), "{}", svg.display());
}

#[test]
fn output_formats_of_one_run_agree() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a.svg", "a.folded", "a.pb.gz", "a.json"].map(|name| dir.path().join(name));
    let mut args = vec!["-F", "499", "-q"];
    args.extend(paths.iter().flat_map(|path| ["-o", path.to_str().unwrap()]));
    let output = profile(&mut load, 2.0, &args);
    assert!(output.stdout.is_empty(), "quiet: {}", output.stdout);
    for path in &paths {
        assert!(output.stderr.contains(&format!("wrote {}", path.display())), "{output:?}");
    }
    let [svg, folded, pprof, speedscope] = &paths;
    let lines = folded::parse(&fs::read_to_string(folded).unwrap());
    let (all, deep) = (total(&lines), total(lines.iter().filter(|l| l.has("CpuLoad.deep"))));
    assert!(deep > 100, "{lines:#?}");

    assert_well_formed(svg);
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("<title>CpuLoad.deep ("), "{svg}");
    let grouped =
        if all < 1000 { all.to_string() } else { format!("{},{:03}", all / 1000, all % 1000) };
    assert!(svg.contains(&format!("<title>all ({grouped} samples, 100%)</title>")), "{all}: {svg}");

    let profile = pprof::read(pprof);
    let types: Vec<_> = profile.types.iter().map(|(t, u)| (t.as_str(), u.as_str())).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    let period = 1_000_000_000 / 499;
    let sum = |i: usize| profile.samples.iter().map(|s| s.values[i]).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (all, all * period));
    let in_deep = |s: &&pprof::Sample| s.functions.iter().any(|f| f == "CpuLoad.deep");
    assert_eq!(profile.samples.iter().filter(in_deep).map(|s| s.values[0]).sum::<u64>(), deep);

    let json: Value = serde_json::from_slice(&fs::read(speedscope).unwrap()).unwrap();
    check_speedscope(&json, all * period, deep * period);
}

fn check_speedscope(json: &Value, all: u64, deep: u64) {
    let frames = json["shared"]["frames"].as_array().unwrap();
    let (mut sum, mut in_deep) = (0, 0);
    for profile in json["profiles"].as_array().unwrap() {
        let samples = profile["samples"].as_array().unwrap();
        let weights: Vec<_> =
            profile["weights"].as_array().unwrap().iter().map(|w| w.as_u64().unwrap()).collect();
        assert_eq!(samples.len(), weights.len());
        for (sample, weight) in samples.iter().zip(&weights) {
            let indexes = sample.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as usize);
            // An index out of range would panic.
            let names: Vec<_> = indexes.map(|i| frames[i]["name"].as_str().unwrap()).collect();
            in_deep += if names.contains(&"CpuLoad.deep") { *weight } else { 0 };
        }
        let own: u64 = weights.iter().sum();
        assert_eq!(profile["endValue"].as_u64(), Some(own));
        assert_eq!(profile["unit"], "nanoseconds");
        sum += own;
    }
    assert_eq!((sum, in_deep), (all, deep));
}

#[test]
fn diff_option_draws_changes_against_the_base_profile() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (base, first, second) = (path("base.folded"), path("1.svg"), path("2.svg"));
    profile(&mut load, 1.0, &["-F", "499", "-o", &base]);
    // In the base profile, the time of `deep` belongs to a method with another name.
    let text = fs::read_to_string(&base).unwrap().replace("CpuLoad.deep", "CpuLoad.gone");
    fs::write(&base, text).unwrap();
    let args = ["-F", "499", "--diff", &base, "-o", &first, "-o", &second];
    profile(&mut load, 1.0, &args);
    for svg in [first, second] {
        assert_well_formed(Path::new(&svg));
        let text = fs::read_to_string(&svg).unwrap();
        let titles = text.lines().filter(|l| l.contains("<title>CpuLoad.deep ("));
        // The base profile lacks `deep`, so the share of `deep` has grown.
        assert!(titles.clone().count() > 0 && titles.clone().all(|l| l.contains("%; +")), "{text}");
    }
}

#[test]
fn diff_without_base_or_svg_is_rejected() {
    run_beside_others();
    let load = start_warm_load("temurin-17");
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base.folded");
    fs::write(&base, "java;a 1\n").unwrap();
    let (base, missing) = (base.to_str().unwrap(), "/nonexistent/base.folded");
    let out = dir.path().join("out.folded");
    let pid = pid(&load);
    let run = |args: &[&str]| tool::run("javaprof", &[&["-p", &pid, "0.2"], args].concat());
    assert_refused(&run(&["--diff", base]), 1, &["--diff", "add -o FILE.svg"]);
    let out = out.to_str().unwrap();
    assert_refused(&run(&["--diff", base, "-o", out]), 1, &["--diff", "add -o FILE.svg"]);
    assert!(!Path::new(out).exists());
    let svg = dir.path().join("out.svg");
    let svg = svg.to_str().unwrap();
    assert_refused(&run(&["--diff", missing, "-o", svg]), 1, &[missing, "No such file"]);
    for rubbish in [&b""[..], b"no stack\n", b"\0\xff 1x\n"] {
        fs::write(base, rubbish).unwrap();
        assert_refused(&run(&["--diff", base, "-o", svg]), 1, &[base, "no folded stacks"]);
    }
}

fn assert_summary(output: &Output) {
    for word in [" samples", "complete", " lost", "Java", "CpuLoad.deep", "SELF", "Hottest stacks"]
    {
        assert!(output.stdout.contains(word), "no {word:?} in {}", output.stdout);
    }
    assert!(output.stdout.lines().all(|line| line == line.trim_end()), "{}", output.stdout);
}

#[test]
fn duration_ends_the_profile_with_a_summary() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    for args in [&["-d", "1"][..], &["1"], &["--duration", "0.7"]] {
        let tool = start(&load, args);
        load.go(1.2);
        assert_summary(&assert_success(tool.wait()));
        load.done();
    }
}

#[test]
fn signals_end_the_profile_with_a_summary() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let tool = start(&load, &[]);
        load.run(0.7);
        tool.signal(signal);
        assert_summary(&assert_success(tool.wait()));
    }
}

/// Returns the number before a word.
fn number_before(text: &str, word: &str) -> u64 {
    let (before, _) = text.split_once(word).unwrap_or_else(|| panic!("no {word:?} in {text}"));
    before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn summary_sample_count_matches_cpu_time() {
    let mut load = start_warm_load("temurin-17");
    let tool = start(&load, &["-F", "499"]);
    let before = cpu_seconds(load.pid());
    load.run(2.0);
    let used = cpu_seconds(load.pid()) - before;
    let output = assert_success(tool.interrupt());
    assert_summary(&output);
    let samples = number_before(&output.stdout, " samples;") as f64;
    let ratio = samples / (used * 499.0);
    assert!((0.5..1.5).contains(&ratio), "{samples} samples of {used} s\n{}", output.stdout);
    assert_eq!(number_before(&output.stdout, " samples lost"), 0);
}

#[test]
fn frequency_option_sets_samples_per_second() {
    let mut load = start_warm_load("temurin-17");
    let mut rate = |hertz: &str| {
        let tool = start(&load, &["-F", hertz, "-f"]);
        let before = cpu_seconds(load.pid());
        load.run(2.0);
        let used = cpu_seconds(load.pid()) - before;
        total(&lines(&assert_success(tool.interrupt()))) as f64 / used
    };
    let ratio = rate("990") / rate("99");
    assert!((5.0..20.0).contains(&ratio), "{ratio}");
}

/// Asserts that the load's worker thread has samples of the load's methods.
fn assert_worker(lines: &[Line], worker: &str) {
    let mine = lines.iter().filter(|l| l.frames[1] == worker && l.has("CpuLoad.deep"));
    assert!(total(mine) > 50, "{worker}: {lines:#?}");
}

#[test]
fn stacks_of_several_jvms_are_not_mixed() {
    run_beside_others();
    let (mut first, mut second) = (start_warm_load("temurin-17"), start_warm_load("temurin-25"));
    let tool = start(&first, &["-p", &pid(&second), "-F", "499", "-f", "-t"]);
    first.go(1.5);
    second.go(1.5);
    let workers = [worker(&first), worker(&second)];
    first.done();
    second.done();
    let output = assert_success(tool.interrupt());
    assert!(output.stderr.contains("2 processes"), "{}", output.stderr);
    let lines = lines(&output);
    for worker in &workers {
        assert_worker(&lines, worker);
    }
    let known = |l: &&Line| l.has("CpuLoad.deep") && !workers.contains(&l.frames[1]);
    assert_eq!(lines.iter().filter(known).count(), 0, "{lines:#?}");
}

/// Starts a load program without address randomization. `CpuTwin` is a copy of `CpuLoad` under
/// another name, whose code has the same addresses.
fn start_without_aslr(program: &str, flags: &str) -> Load {
    let class = fs::read(classes().join("CpuLoad.class")).unwrap();
    let name: Vec<_> = b"CpuLoad".iter().zip(b"CpuTwin").collect();
    let mut renamed = class.clone();
    for at in (0..class.len() - name.len()).filter(|&at| class[at..].starts_with(b"CpuLoad")) {
        renamed[at..at + name.len()].copy_from_slice(b"CpuTwin");
    }
    fs::write(classes().join("CpuTwin.class"), renamed).unwrap();
    let runtime = named("temurin-17");
    let mut command = Command::new("setarch");
    command.arg("-R").arg(&runtime.java).args(flags.split_ascii_whitespace());
    let mut load = Load::spawn_program(command, program, runtime.major);
    load.run(1.5);
    load
}

/// Two JVMs have the same addresses but different code, like replicas that were restored from one
/// image.
#[test]
fn stacks_of_jvms_with_equal_addresses_are_not_mixed() {
    run_beside_others();
    binary("javaprof");
    // With these flags, methods are interpreted only, or are compiled in a fixed order during the
    // warm-up, so both JVMs have their code at the same addresses.
    for flags in ["-Xint -XX:+UseSerialGC", "-Xbatch -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"] {
        let (mut first, mut second) =
            (start_without_aslr("CpuLoad", flags), start_without_aslr("CpuTwin", flags));
        let tool = start(&first, &["-p", &pid(&second), "-F", "499", "-f", "-t"]);
        first.go(2.0);
        second.go(2.0);
        let workers = [worker(&first), worker(&second)];
        first.done();
        second.done();
        let output = assert_success(tool.interrupt());
        let lines = lines(&output);
        for (worker, own, other) in [(0, "CpuLoad.", "CpuTwin."), (1, "CpuTwin.", "CpuLoad.")] {
            let mine: Vec<_> = lines.iter().filter(|l| l.frames[1] == workers[worker]).collect();
            let any = |line: &Line, class| line.frames.iter().any(|f| f.starts_with(class));
            assert!(total(mine.iter().copied().filter(|l| any(l, own))) > 200, "{lines:#?}");
            let wrong = mine.iter().filter(|l| any(l, other)).count();
            assert_eq!(wrong, 0, "{flags}: {} shows {other}: {mine:#?}", workers[worker]);
        }
    }
}

#[test]
fn option_all_profiles_running_and_later_jvms() {
    let mut early = start_warm_load("temurin-17");
    let tool = Tool::start("javaprof", &["-a", "-F", "499", "-f", "-t"]);
    let mut late = start_warm_load("temurin-21");
    early.go(1.5);
    late.go(1.5);
    let workers = [worker(&early), worker(&late)];
    early.done();
    late.done();
    let output = assert_success(tool.interrupt());
    let lines = lines(&output);
    for worker in &workers {
        assert_worker(&lines, worker);
    }
}

#[test]
fn system_wide_profile_includes_non_jvm_processes() {
    let mut load = start_warm_load("temurin-17");
    let shell = busy_shell();
    let tool = Tool::start("javaprof", &["--system-wide", "-F", "499", "-f", "-t"]);
    load.go(1.5);
    let worker = worker(&load);
    load.done();
    let output = assert_success(tool.interrupt());
    let lines = lines(&output);
    let name = format!("sh-{}", shell.pid());
    let of_shell = lines.iter().filter(|l| l.frames[0] == "sh" && l.frames[1] == name);
    assert!(total(of_shell) > 50, "{lines:#?}");
    assert_worker(&lines, &worker);
}

/// Starts javaprof with a command and a stdin for it.
fn start_with_command(args: &[&str], program: &[&str], input: Stdio) -> Tool {
    run_beside_others();
    let mut command = Command::new(binary("javaprof"));
    command.args(args).arg("--").arg(&named("temurin-17").java).args(FRAMES.split_whitespace());
    command.arg("-cp").arg(classes()).args(program);
    Tool::spawn_reading(command, input)
}

#[test]
fn a_command_is_profiled_from_its_start_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    fs::write(&input, "go 2\nquit\n").unwrap();
    let tool =
        start_with_command(&["-F", "199", "-f"], &["CpuLoad"], File::open(input).unwrap().into());
    let output = assert_success(tool.wait());
    // The command uses the tool's stdin and stdout.
    let mut text = output.stdout.lines();
    assert!(text.next().unwrap().starts_with("ready "), "{}", output.stdout);
    let measured = text.next().unwrap().strip_prefix("done ").expect("measurements");
    let mut measured = measured.split(' ').filter_map(|word| word.split_once('='));
    let (_, deep_ns) = measured.find(|(name, _)| *name == "deep").expect("a measurement");
    let expected = deep_ns.parse::<f64>().unwrap() / 1e9 * 199.0;
    let stacks: Vec<_> = text.collect();
    let lines = folded::parse(&stacks.join("\n"));
    let seen = total(lines.iter().filter(|l| l.has("CpuLoad.deep"))) as f64;
    let error = 4.0 * expected.sqrt() + 2.0;
    assert!(seen > 5.0 && (seen - expected).abs() <= error, "{seen} of {expected}: {lines:#?}");
    // The profile begins before the JVM runs any Java code.
    assert!(lines.iter().any(|l| l.has("Threads::create_vm")), "{lines:#?}");
    // The name is that of the command, not of the process that started it.
    assert!(total(lines.iter().filter(|l| l.frames[0] != "java")) <= 5, "{lines:#?}");
}

#[test]
fn short_lived_command_has_symbol_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.folded");
    let args = ["-F", "1999", "-q", "-o", file.to_str().unwrap()];
    let output = assert_success(start_with_command(&args, &["--version"], Stdio::null()).wait());
    assert!(output.stdout.starts_with("openjdk 17"), "{}", output.stdout);
    let lines = folded::parse(&fs::read_to_string(file).unwrap());
    let all = total(&lines);
    assert!(all > 20, "{lines:#?}");
    assert!(total(lines.iter().filter(|l| l.frames[0] == "java")) > all * 4 / 5, "{lines:#?}");
    // The innermost user frame may be in code whose mapping was not observed.
    let named = lines.iter().filter(|l| l.frames[1..].iter().any(|f| !f.starts_with("[unknown")));
    assert!(total(named) > all / 2, "{lines:#?}");
    assert!(lines.iter().any(|l| l.has("Threads::create_vm")), "{lines:#?}");
}

#[test]
fn interrupt_also_ends_the_command() {
    run_beside_others();
    // The command's stdin stays open, so the command does not end by itself.
    let tool = start_with_command(&["-f"], &["CpuLoad"], Stdio::piped());
    // Waits until the command is a JVM that handles SIGTERM.
    sleep(Duration::from_secs(1));
    let output = assert_success(tool.interrupt());
    let ready = output.stdout.lines().next().unwrap();
    let pid = ready.strip_prefix("ready ").unwrap_or_else(|| panic!("{}", output.stdout));
    assert!(!Path::new("/proc").join(pid).exists(), "{pid} still runs");
}

#[test]
fn method_names_come_from_the_given_map_file() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map");
    // A map that existed before is rewritten, and not deleted afterwards.
    let own = format!("/tmp/perf-{}.map", load.pid());
    fs::write(&own, "").unwrap();
    profile(&mut load, 0.3, &["-q", "--symbols", "perfmap"]);
    let text = fs::read_to_string(&own).unwrap();
    fs::remove_file(&own).unwrap();
    fs::write(&map, text.replace("CpuLoad.medium", "Renamed.medium")).unwrap();
    let symbols = format!("file:{}", map.display());
    let output = profile(&mut load, 1.5, &["-F", "499", "-f", "--symbols", &symbols]);
    let lines = lines(&output);
    assert!(lines.iter().any(|l| l.has("Renamed.medium")), "{lines:#?}");
    assert!(lines.iter().any(|l| l.has("CpuLoad.small")), "{lines:#?}");
    assert!(!Path::new(&own).exists(), "the JVM must not be asked for a map");
}

#[test]
fn symbols_none_leaves_the_jvm_unmodified() {
    run_alone();
    let mut load = start_warm_load("temurin-17");
    let clean = breakpoints(load.pid(), named("temurin-17"));
    let tool = start(&load, &["-F", "499", "-f", "--symbols", "none"]);
    load.run(1.0);
    assert_eq!(breakpoints(load.pid(), named("temurin-17")), clean);
    let output = assert_success(tool.interrupt());
    let lines = lines(&output);
    assert!(!output.stdout.contains("CpuLoad."), "{lines:#?}");
    // Native code has names nevertheless.
    assert!(lines.iter().any(|l| l.has("JavaThread::thread_main_inner")), "{lines:#?}");
    assert!(!threads(load.pid()).values().any(|name| name.starts_with("Attach Listen")));
}

#[test]
fn signatures_option_shows_parameter_types() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let output = profile(&mut load, 1.0, &["-F", "499", "-f", "--signatures"]);
    let lines = lines(&output);
    assert!(lines.iter().any(|l| l.has("CpuLoad.deep(int, int)")), "{lines:#?}");
    assert!(!lines.iter().any(|l| l.has("CpuLoad.deep")), "{lines:#?}");
}

#[test]
fn completions_and_man_page_list_every_option() {
    let help = tool::run("javaprof", &["--help"]);
    assert!(help.status.success());
    assert!(help.stdout.lines().count() <= 50, "{}", help.stdout);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../man/javaprof.8");
    let bash = tool::run("javaprof", &["--completions", "bash"]);
    assert!(bash.status.success() && bash.stdout.contains("complete"), "{bash:?}");
    let options: Vec<_> = help
        .stdout
        .split(|c: char| c.is_whitespace() || c == ',')
        .filter(|word| word.starts_with("--") && word.len() > 4)
        .map(|word| word.trim_end_matches([']', '.', ')', ':']))
        .collect();
    assert!(options.len() > 15, "{options:?}");
    for option in &options {
        assert!(bash.stdout.contains(option), "{option} is not completed");
    }
    let man = fs::read_to_string(page).expect("man/javaprof.8").replace('\\', "");
    for option in &options {
        assert!(man.contains(option), "{option} is not in the man page");
    }
    let lint = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(page).output();
    let lint = lint.expect("mandoc (tests/setup installs it)");
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
}

/// The JSON records of all intervals together have the same stacks and counts as the file.
#[test]
fn json_intervals_add_up_to_the_folded_file() {
    run_beside_others();
    let mut load = start_warm_load("temurin-21");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.folded");
    let tool =
        start(&load, &["-F", "499", "-j", "-s", "-t", "-o", file.to_str().unwrap(), "1", "3"]);
    load.run(4.0);
    // javaprof ends by itself, after the third report.
    let output = assert_success(tool.wait());
    let records = output.json();
    let of_type = |wanted: &str| -> Vec<&Value> {
        records.iter().filter(|record| record["type"] == wanted).collect()
    };
    let number = |record: &Value, field: &str| record[field].as_u64().expect("a number");
    let summaries = of_type("summary");
    assert_eq!(summaries.len(), 3, "{}", output.stdout);
    let mut all = BTreeMap::<String, u64>::new();
    for summary in &summaries {
        assert_eq!(summary["scope"], "interval");
        let at = |record: &&&Value| record["time"] == summary["time"];
        let (stacks, methods) = (of_type("stack"), of_type("method"));
        let samples: u64 = stacks.iter().filter(at).map(|stack| number(stack, "samples")).sum();
        assert_eq!(samples, number(summary, "samples"), "each sample has its stack");
        assert!(samples > 100, "{summary}");
        let shares: f64 =
            summary["shares"].as_object().unwrap().values().map(|s| s.as_f64().unwrap()).sum();
        assert!((shares - 1.0).abs() < 1e-6, "{summary}");
        for method in methods.iter().filter(at) {
            // The counts of each method are recalculated from the stacks.
            let name = &method["method"];
            let has = |own: bool| {
                let of = |stack: &&&Value| {
                    let mut frames = stack["stack"].as_array().unwrap().iter();
                    match own {
                        true => frames.next().is_some_and(|frame| frame["method"] == *name),
                        false => frames.any(|frame| frame["method"] == *name),
                    }
                };
                stacks.iter().filter(at).filter(of).map(|s| number(s, "samples")).sum::<u64>()
            };
            assert_eq!(
                (has(true), has(false)),
                (number(method, "self_samples"), number(method, "total_samples"))
            );
        }
        for stack in stacks.iter().filter(at) {
            assert_eq!(stack["pid"], load.pid(), "{stack}");
            let (thread, tid) = (stack["thread"].as_str().unwrap(), number(stack, "tid"));
            let frames = stack["stack"].as_array().unwrap().iter().rev();
            let frames: Vec<_> = frames.map(|f| f["method"].as_str().unwrap().to_owned()).collect();
            let key = format!(
                "{};{thread}-{tid};{}",
                stack["command"].as_str().unwrap(),
                frames.join(";")
            );
            *all.entry(key).or_default() += number(stack, "samples");
        }
    }
    let text = fs::read_to_string(&file).unwrap();
    let unmarked = |frame: &str| frame.trim_end_matches("_[k]").to_owned();
    let mut written = BTreeMap::<String, u64>::new();
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let stack: Vec<_> = stack.split(';').map(unmarked).collect();
        *written.entry(stack.join(";")).or_default() += count.parse::<u64>().unwrap();
    }
    assert_eq!(all, written);
    load.quit();
}

#[test]
fn each_interval_prints_its_own_summary() {
    run_beside_others();
    let mut load = start_warm_load("temurin-17");
    let tool = start(&load, &["-T", "1", "2"]);
    load.run(2.5);
    let output = assert_success(tool.wait());
    let titles: Vec<_> =
        output.stdout.lines().filter(|line| line.contains("CPU time of process")).collect();
    assert_eq!(titles.len(), 2, "{}", output.stdout);
    assert!(
        titles.iter().all(|title| title.starts_with("20") && title.contains('T')),
        "{titles:?}"
    );
    load.quit();
}
