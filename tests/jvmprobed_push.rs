//! Everything that jvmprobed pushes is delivered or counted as dropped, whatever the receiver does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use jvmprobe_tests::{pprof, receiver::Receiver, run_alone, run_beside_others, synthetic::Dice};
use jvmprobed::{
    metrics::{
        Limits, SharedTotals,
        figures::{Figures, Processor, Stop},
    },
    net::Net,
    push::{Push, ledger::Counts, retry, samples, target::Options},
    window::{Identity, JvmData, Window},
};
use libjvmprobe::{
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
    },
    trace::pauses::record::Record,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

/// Retry limits that are short enough for a test.
const SHORT_RETRIES: retry::Limits =
    retry::Limits { first: Duration::from_millis(20), longest: Duration::from_millis(200) };

fn target(to: &str) -> Options {
    Options { metrics: false, timeout: Duration::from_secs(5), ..Options::new(to.parse().unwrap()) }
}

/// Number of objects that each allocation sample represents.
const OBJECTS: u64 = 3;

/// Returns a window with CPU time and allocation of `jvms` JVMs, with pseudo-random stacks.
fn window(number: u64, jvms: u32, stacks: u32) -> Window {
    window_with_long_names(number, jvms, stacks, 0)
}

/// Returns a window as `window` does, but with names that are longer by `longer` bytes that
/// compress badly.
fn window_with_long_names(number: u64, jvms: u32, stacks: u32, longer: usize) -> Window {
    let mut dice = Dice(number * 7919 + 1);
    let begin_ns = 1_790_000_000_000_000_000 + number * 15_000_000_000;
    let jvms = (1..=jvms).map(|jvm| {
        let mut profiles = vec![Profile::of(Measure::Time), Profile::of(Measure::Allocation)];
        for profile in &mut profiles {
            (profile.begin_unix_ns, profile.duration_ns) = (begin_ns, 15_000_000_000);
            profile.hertz = 20;
            let main = profile.intern(Frame::new(Kind::Java, "app.Main.main"));
            for _ in 0..stacks {
                let kind = [Kind::Java, Kind::Native, Kind::Kernel][dice.below(3) as usize];
                let mut name = format!("some.Code.of{}", dice.below(500));
                name.extend((0..longer).map(|_| char::from(b'A' + dice.below(50) as u8)));
                let mut frame = Frame::new(kind, name.replace('\\', "x"));
                frame.line = dice.below(100) as u32;
                frame.module = (kind == Kind::Native).then(|| "libz.so".into());
                let leaf = profile.intern(frame);
                let thread = 10 + dice.below(3) as u32;
                profile.samples.push(Sample {
                    count: 1 + dice.below(50),
                    occurrences: OBJECTS,
                    ..Sample::of(jvm, format!("thread {thread}").into(), thread, vec![main, leaf])
                });
            }
        }
        let attributes = BTreeMap::from([
            ("host.name".into(), "node-1".into()),
            ("k8s.pod.uid".into(), format!("uid-{jvm}")),
        ]);
        let name = format!("shop-{jvm}");
        let identity = Identity { pid: jvm, started_ns: 1, name, attributes };
        JvmData {
            identity: Arc::new(identity),
            profiles,
            pauses: vec![Record::Pause(Default::default())],
            ..JvmData::default()
        }
    });
    Window {
        begin_ns,
        end_ns: begin_ns + 15_000_000_000,
        jvms: jvms.collect(),
        ..Window::default()
    }
}

/// The JSON line of the pause that each window has.
const PAUSE: &str = r#"{"type":"pause","time":"","ts_ns":0,"pid":0,"collector":"","op":null,"cause":null,"full":false,"collections":0,"operations":0,"ttsp_ns":null,"pause_ns":null,"stopped_ns":0,"heap_before":null,"heap_after":null,"cpu_wait_ns":null,"throttled_periods":null}"#;

fn samples_in(window: &Window) -> u64 {
    window.jvms.iter().flat_map(|jvm| &jvm.profiles).map(samples).sum()
}

/// Sums by JVM, measure and stack (innermost first).
type Truth = BTreeMap<(String, String, String), i64>;

fn truth(windows: &[Window]) -> Truth {
    let mut truth = Truth::new();
    for jvm in windows.iter().flat_map(|window| &window.jvms) {
        for profile in &jvm.profiles {
            for sample in &profile.samples {
                let names = sample.stack.iter().rev().map(|&id| profile.frame(id).name.to_string());
                let stack = names.collect::<Vec<_>>().join(";");
                let mut add = |measure: &str, value: u64| {
                    let key = (jvm.identity.name.clone(), measure.to_owned(), stack.clone());
                    *truth.entry(key).or_default() += i64::try_from(value).unwrap();
                };
                match profile.measure {
                    Measure::Time => add("cpu", sample.count * 1_000_000_000 / profile.hertz),
                    _ => {
                        add("alloc_objects", sample.occurrences);
                        add("alloc_space", sample.count);
                    }
                }
            }
        }
    }
    truth
}

/// Returns what a receiver got over OTLP, each profile once.
fn received_otlp(requests: &[Value]) -> Truth {
    let (mut got, mut known) = (Truth::new(), BTreeSet::new());
    for profile in requests.iter().flat_map(|r| r["profiles"].as_array().into_iter().flatten()) {
        if !known.insert(profile["id"].as_str().unwrap().to_owned()) {
            continue;
        }
        for sample in profile["samples"].as_array().unwrap() {
            let frames = sample["stack"].as_array().unwrap().iter();
            let stack: Vec<_> = frames.map(|frame| frame["name"].as_str().unwrap()).collect();
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let name = text(&profile["resource"]["service.name"]);
            let key = (name, text(&profile["type"][0]), stack.join(";"));
            *got.entry(key).or_default() += sample["values"][0].as_i64().unwrap();
        }
    }
    got
}

/// Returns what a receiver got over Pyroscope's API.
fn received_pyroscope(requests: &[Value]) -> Truth {
    let folder = tempfile::tempdir().unwrap();
    let (mut got, mut known) = (Truth::new(), BTreeSet::new());
    for series in requests.iter().flat_map(|r| r["pyroscope"].as_array().into_iter().flatten()) {
        for profile in series["profiles"].as_array().unwrap() {
            if !known.insert(profile["id"].as_str().unwrap().to_owned()) {
                continue;
            }
            let path = folder.path().join("profile");
            write_base64(&path, profile["pprof"].as_str().unwrap());
            let name = series["labels"]["service_name"].as_str().unwrap();
            add_pprof(&mut got, name, &path);
        }
    }
    got
}

fn add_pprof(to: &mut Truth, name: &str, path: &Path) {
    let profile = pprof::read(path);
    for sample in &profile.samples {
        for ((measure, _), value) in profile.types.iter().zip(&sample.values) {
            if measure == "samples" || *value == 0 {
                continue;
            }
            let key = (name.to_owned(), measure.clone(), sample.functions.join(";"));
            *to.entry(key).or_default() += i64::try_from(*value).unwrap();
        }
    }
}

fn write_base64(path: &Path, text: &str) {
    let mut child = Command::new("base64")
        .arg("-d")
        .stdin(std::process::Stdio::piped())
        .stdout(fs::File::create(path).unwrap())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Asserts the invariant: everything that was handed in is delivered, dropped or queued.
fn assert_balanced(push: &Push, accepted_samples: u64) -> Counts {
    let counts = push.ledgers()[0].read();
    let dropped: u64 = counts.dropped.values().sum();
    assert_eq!(counts.accepted_samples, accepted_samples, "{counts:?}");
    assert_eq!(
        counts.delivered_samples + dropped + counts.waiting_samples,
        accepted_samples,
        "{counts:?}"
    );
    counts
}

/// Waits until the queue is empty.
fn wait_until_delivered(push: &Push, accepted_samples: u64) -> Counts {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let counts = push.ledgers()[0].read();
        if counts.waiting_bytes == 0 {
            return assert_balanced(push, accepted_samples);
        }
        assert!(Instant::now() < until, "still waiting after a minute: {counts:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of CPU samples and allocation stacks.
fn samples_of(truth: &Truth) -> u64 {
    let sum = |measure: &str| {
        let of = truth.iter().filter(|((_, m, _), _)| m == measure);
        u64::try_from(of.map(|(_, value)| value).sum::<i64>()).unwrap()
    };
    sum("cpu") / 50_000_000 + sum("alloc_objects") / OBJECTS
}

#[test]
fn each_kind_of_target_gets_the_same_profiles() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let folder = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    let windows: Vec<_> = (1..=3).map(|number| window(number, 4, 50)).collect();
    let accepted_samples = windows.iter().map(samples_in).sum();
    let (http, grpc) = (receiver.http, receiver.grpc);
    for (to, read) in [
        (format!("otlp=http://127.0.0.1:{http}"), received_otlp as fn(&[Value]) -> Truth),
        (format!("otlp=grpc://127.0.0.1:{grpc}"), received_otlp),
        (format!("pyroscope=http://127.0.0.1:{http}/base/"), received_pyroscope),
    ] {
        let before = receiver.requests().len();
        let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
        windows.iter().for_each(|window| push.window(window));
        let counts = wait_until_delivered(&push, accepted_samples);
        assert_eq!((counts.delivered_samples, counts.dropped.len()), (accepted_samples, 0), "{to}");
        let requests = receiver.requests().split_off(before);
        assert_eq!(read(&requests), truth(&windows), "{to}");
        check_attributes(&requests);
    }
    let to = format!("dir={}", files.path().display());
    let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
    windows.iter().for_each(|window| push.window(window));
    wait_until_delivered(&push, accepted_samples);
    let mut got = Truth::new();
    for window in &windows {
        for jvm in &window.jvms {
            let base = format!(
                "{}-{}-{}",
                jvm.identity.name,
                jvm.identity.pid,
                window.begin_ns / 1_000_000_000
            );
            add_pprof(&mut got, &jvm.identity.name, &files.path().join(format!("{base}.pb.gz")));
            let pauses = fs::read_to_string(files.path().join(format!("{base}.jsonl"))).unwrap();
            assert_eq!(pauses, PAUSE.to_owned() + "\n");
        }
    }
    assert_eq!(got, truth(&windows));
    assert_eq!(fs::read_dir(files.path()).unwrap().count(), 24);
}

/// Checks the attributes, labels and headers of received requests, but not the stacks.
fn check_attributes(requests: &[Value]) {
    for request in requests {
        for profile in request["profiles"].as_array().into_iter().flatten() {
            assert_eq!(profile["resource"]["host.name"], "node-1");
            assert_eq!(profile["scope"], "jvmprobed");
            assert_eq!(profile["duration"], 15_000_000_000_u64);
            if profile["type"][0] == "cpu" {
                assert_eq!(profile["period_type"], profile["type"]);
                assert_eq!(profile["period"], 50_000_000);
            }
            for sample in profile["samples"].as_array().unwrap() {
                let leaf = &sample["stack"][0];
                let kinds = ["jvm", "native", "kernel"];
                assert!(kinds.contains(&leaf["kind"].as_str().unwrap()), "{leaf}");
                assert_eq!(leaf["kind"] == "native", leaf["module"] == "libz.so", "{leaf}");
                let thread = sample["attributes"]["thread.id"].as_i64().unwrap();
                assert_eq!(sample["attributes"]["thread.name"], format!("thread {thread}"));
            }
        }
        for series in request["pyroscope"].as_array().into_iter().flatten() {
            let name = series["labels"]["__name__"].as_str().unwrap();
            assert!(["process_cpu", "memory"].contains(&name), "{name}");
            assert_eq!(series["labels"]["host_name"], "node-1");
        }
        if !request["pyroscope"].is_null() {
            assert_eq!(request["path"], "/base/push.v1.PusherService/Push");
        }
        let agent = request["headers"]["user-agent"].as_str().unwrap();
        assert!(agent.starts_with("jvmprobed/"), "{agent}");
    }
}

/// If a receiver fails for a time, only data that it has rejected permanently is missing in the
/// end.
#[test]
fn failing_receiver_loses_only_counted_samples() {
    run_beside_others();
    for (scheme, troubles) in [
        ("http", &["cut", "status 503", "status 429 1", "slow 2", "status 500", "page"][..]),
        ("grpc", &["grpc 14", "grpc 8 1", "slow 2", "grpc 4"][..]),
    ] {
        let receiver = Receiver::start(None);
        let port = if scheme == "http" { receiver.http } else { receiver.grpc };
        let folder = tempfile::tempdir().unwrap();
        let net = Net::start().unwrap();
        let mut options = target(&format!("otlp={scheme}://127.0.0.1:{port}"));
        options.timeout = Duration::from_secs(1);
        let push = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap();
        let (mut windows, mut accepted_samples) = (Vec::new(), 0);
        for (number, trouble) in (0..).zip(troubles) {
            receiver.mode(trouble);
            let before = receiver.requests().len();
            let new = window(number, 2, 20);
            accepted_samples += samples_in(&new);
            push.window(&new);
            windows.push(new);
            // The request has arrived twice before it is accepted.
            receiver.wait_for(before + 2);
            assert_balanced(&push, accepted_samples);
            receiver.mode("ok");
            wait_until_delivered(&push, accepted_samples);
        }
        let counts = assert_balanced(&push, accepted_samples);
        assert_eq!(
            (counts.delivered_samples, counts.dropped.len()),
            (accepted_samples, 0),
            "{counts:?}"
        );
        assert_eq!(received_otlp(&receiver.requests()), truth(&windows));
        assert!(counts.requests["later"] >= 2 * troubles.len() as u64, "{counts:?}");

        // Permanently rejected data is dropped; later windows are not.
        let (refusal, partial) = if scheme == "http" { ("status 400", 3) } else { ("grpc 3", 3) };
        receiver.mode(refusal);
        let refused = window(100, 2, 20);
        accepted_samples += samples_in(&refused);
        push.window(&refused);
        let counts = wait_until_delivered(&push, accepted_samples);
        assert_eq!(counts.dropped["refused"], samples_in(&refused), "{counts:?}");
        receiver.mode(&format!("partial {partial}"));
        let partly = window(101, 2, 20);
        accepted_samples += samples_in(&partly);
        push.window(&partly);
        let counts = wait_until_delivered(&push, accepted_samples);
        // 2 JVMs have 6 OTLP profiles, half of which were rejected.
        let share = samples_in(&partly).div_ceil(2);
        assert_eq!(counts.dropped["partly-refused"], share, "{counts:?}");
    }
}

/// Returns the contents of the profiles that the receiver of Pyroscope's protocol has accepted.
fn accepted_values(requests: &[Value]) -> Truth {
    let ids = |request: &Value| -> BTreeSet<String> {
        let ids = request["accepted"].as_array().into_iter().flatten();
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let mut kept = Vec::new();
    for request in requests {
        let (mut request, ids) = (request.clone(), ids(request));
        for series in request["pyroscope"].as_array_mut().into_iter().flatten() {
            let profiles = series["profiles"].as_array_mut().unwrap();
            profiles.retain(|profile| ids.contains(profile["id"].as_str().unwrap()));
        }
        kept.push(request);
    }
    received_pyroscope(&kept)
}

/// Pyroscope validates each series, and sends one answer for all series of a request: 400 if it
/// rejects one, or 500 if it fails on one. Each series that it accepts must arrive, and the number
/// of requests is bounded.
#[test]
fn series_rejected_by_pyroscope_does_not_affect_others() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let net = Net::start().unwrap();
    for code in [400, 500] {
        let folder = tempfile::tempdir().unwrap();
        let before = receiver.requests().len();
        receiver.mode(&format!("judge 20000 {code}"));
        let to = format!("pyroscope=http://127.0.0.1:{}", receiver.http);
        let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
        let mut one = window(1, 4, 20);
        // A label whose name begins with a digit, one whose name has no valid character, one with an
        // empty value, one with a long value, and one with a long name.
        let identity = Arc::make_mut(&mut one.jvms[0].identity);
        for (name, value) in
            [("0day/x", "a"), ("é", "b"), ("empty", ""), ("k.v", &*"v".repeat(9999))]
        {
            identity.attributes.insert(name.into(), value.into());
        }
        identity.attributes.insert("n".repeat(5000), "c".into());
        let mut large = window(1, 2, 1500);
        one.jvms[1] = large.jvms.remove(1);
        let refused: u64 = one.jvms[1].profiles.iter().map(samples).sum();
        let mut accepted_samples = samples_in(&one);
        push.window(&one);
        // The second window is queued behind the first one, so that the target accepts something in
        // the meantime.
        let two = window(2, 2, 20);
        accepted_samples += samples_in(&two);
        push.window(&two);
        let counts = wait_until_delivered(&push, accepted_samples);
        let dropped: Vec<_> =
            counts.dropped.iter().map(|(why, samples)| (*why, *samples)).collect();
        assert_eq!(dropped, [("refused", refused)], "{code}");
        let requests = receiver.requests().split_off(before);
        one.jvms.remove(1);
        assert_eq!(accepted_values(&requests), truth(&[one, two]), "{code}");
        // After a rejected request, each of its 8 profiles is sent alone: once, or several times if
        // the server fails (500).
        let most = if code == 400 { 10 } else { 40 };
        assert!(requests.len() <= most, "{code}: {} requests", requests.len());
    }
    // Wait profiles have a name with a dash, which is not allowed in a sample type.
    let folder = tempfile::tempdir().unwrap();
    receiver.mode("judge 4194304");
    let to = format!("pyroscope=http://127.0.0.1:{}", receiver.http);
    let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
    let mut waits = window(3, 1, 5);
    waits.jvms[0].profiles[0].measure = Measure::Elapsed("off-cpu".into());
    push.window(&waits);
    let counts = wait_until_delivered(&push, samples_in(&waits));
    assert!(counts.dropped.is_empty(), "{counts:?}");
}

#[test]
fn resource_rejected_by_collector_does_not_affect_others() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let net = Net::start().unwrap();
    for to in [
        format!("otlp=http://127.0.0.1:{}", receiver.http),
        format!("otlp=grpc://127.0.0.1:{}", receiver.grpc),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let before = receiver.requests().len();
        receiver.mode("reject shop-3");
        let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
        let mut one = window(1, 5, 30);
        push.window(&one);
        let counts = wait_until_delivered(&push, samples_in(&one));
        let refused: u64 = one.jvms.remove(2).profiles.iter().map(samples).sum();
        assert_eq!(counts.dropped["refused"], refused, "{to}");
        let mut requests = receiver.requests().split_off(before);
        assert!(requests.len() < 20, "{to}: {} requests", requests.len());
        let is_taken = |request: &Value| {
            let profiles = request["profiles"].as_array().unwrap();
            profiles.iter().all(|profile| profile["resource"]["service.name"] != "shop-3")
        };
        requests.retain(is_taken);
        assert_eq!(received_otlp(&requests), truth(&[one]), "{to}");
        check_attributes(&requests);
    }
}

#[test]
fn endless_response_is_cut_off_at_maximum_length() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    for (to, outcome) in [
        (format!("otlp=grpc://127.0.0.1:{}", receiver.grpc), "later"),
        // The HTTP status precedes the endless body, so the request counts as accepted.
        (format!("pyroscope=http://127.0.0.1:{}", receiver.http), "taken"),
    ] {
        receiver.mode("endless");
        let mut options = target(&to);
        // The limit on the length of answers must end the request, not the timeout.
        options.timeout = Duration::from_secs(3600);
        let push = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap();
        let one = window(1, 1, 5);
        push.window(&one);
        let until = Instant::now() + Duration::from_secs(60);
        while !push.ledgers()[0].read().requests.contains_key(outcome) {
            assert!(Instant::now() < until, "{to}: {:?}", push.ledgers()[0].read());
            thread::sleep(Duration::from_millis(20));
        }
        receiver.mode("ok");
        wait_until_delivered(&push, samples_in(&one));
    }
}

/// An answer that keeps sending bytes and never ends.
#[test]
fn endless_response_is_cut_off_at_timeout() {
    run_beside_others();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    let mut options = target(&format!("pyroscope=http://127.0.0.1:{port}"));
    options.timeout = Duration::from_secs(1);
    let push = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap();
    push.window(&window(1, 1, 5));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n").unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !push.ledgers()[0].read().requests.contains_key("later") {
        assert!(Instant::now() < until, "{:?}", push.ledgers()[0].read());
        let _ = stream.write_all(b"x");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Returns all capability sets of this process's threads with this name.
fn capabilities(name: &str) -> Vec<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    // A thread may end in the meantime.
    let read = |file: std::path::PathBuf| fs::read_to_string(file).unwrap_or_default();
    let named = tasks.filter(|task| read(task.join("comm")).trim() == name);
    let status = named.map(|task| read(task.join("status")));
    let sets = status.flat_map(|status| {
        let lines = status.lines().filter_map(|line| {
            let kinds = ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:", "CapBnd:"];
            let kind = kinds.into_iter().find_map(|kind| line.strip_prefix(kind))?;
            Some(u64::from_str_radix(kind.trim(), 16).unwrap())
        });
        lines.collect::<Vec<_>>()
    });
    sets.collect()
}

#[test]
fn network_threads_have_no_capabilities() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let files = tempfile::tempdir().unwrap();
    let receiver = Receiver::start(None);
    let net = Net::start().unwrap();
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.lines().any(|line| line.starts_with("CapEff:") && !line.ends_with("0000")));
    // The host name of the first target must be resolved by a thread. Another thread writes into the
    // folder of the second target.
    let to = [
        format!("otlp=http://localhost:{}", receiver.http),
        format!("dir={}", files.path().display()),
    ];
    let targets = to.map(|to| target(&to));
    let push = Push::start(&net, &targets, folder.path(), SHORT_RETRIES).unwrap();
    let one = window(1, 1, 5);
    push.window(&one);
    wait_until_delivered(&push, samples_in(&one));
    let until = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(files.path()).unwrap().count() < 2 {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(20));
    }
    // Other tests in this process have such threads, too.
    for name in ["jvmprobed-net", "jvmprobed-help"] {
        let sets = capabilities(name);
        assert!(sets.len() >= 5 && sets.iter().all(|&set| set == 0), "{name}: {sets:x?}");
    }
}

/// At the start, secrets are read with the same privileges as later for each request. So a file
/// that can only be read with capabilities is rejected at the start.
#[test]
fn unreadable_secret_file_is_rejected_at_startup() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("token");
    fs::write(&secret, "x").unwrap();
    std::os::unix::fs::chown(&secret, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    let net = Net::start().unwrap();
    let mut options = target("otlp=http://127.0.0.1:1");
    options.bearer_token_file = Some(secret);
    let error = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap_err();
    assert!(format!("{error:#}").contains("Permission denied"), "{error:#}");
}

#[test]
fn queued_windows_survive_a_restart() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    // At first no server listens on this port; later one does.
    let place = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = place.local_addr().unwrap().port();
    drop(place);
    let to = format!("pyroscope=http://127.0.0.1:{port}");
    let windows: Vec<_> = (1..=5).map(|number| window(number, 2, 30)).collect();
    let accepted_samples = windows.iter().map(samples_in).sum();
    let net = Net::start().unwrap();
    let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
    windows.iter().for_each(|window| push.window(window));
    let counts = assert_balanced(&push, accepted_samples);
    assert_eq!((counts.waiting_samples, counts.delivered_samples), (accepted_samples, 0));
    let begun = Instant::now();
    push.end(&net, Duration::from_secs(5));
    assert!(begun.elapsed() < Duration::from_secs(20), "ending took longer than its limit");
    // As in a reload of the configuration, the queue directory must be released at once, even while
    // a request hangs.
    let hangs = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for _ in 0..3 {
        let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
        hangs.accept().unwrap();
        assert_eq!(assert_balanced(&push, accepted_samples).waiting_samples, accepted_samples);
        push.end(&net, Duration::from_millis(100));
    }
    drop(hangs);
    drop(net);

    let receiver = Receiver::start(None);
    relay(port, receiver.http);
    let net = Net::start().unwrap();
    let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
    let counts = wait_until_delivered(&push, accepted_samples);
    assert_eq!((counts.delivered_samples, counts.dropped.len()), (accepted_samples, 0));
    assert_eq!(received_pyroscope(&receiver.requests()), truth(&windows));
}

/// Forwards connections from one port to another.
fn relay(from: u16, to: u16) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    thread::spawn(move || {
        for one in listener.incoming().map_while(Result::ok) {
            join(one, TcpStream::connect(("127.0.0.1", to)).unwrap());
        }
    });
}

/// Copies data in both directions.
fn join(one: TcpStream, other: TcpStream) {
    for (mut from, mut to) in [
        (one.try_clone().unwrap(), other.try_clone().unwrap()),
        (other.try_clone().unwrap(), one.try_clone().unwrap()),
    ] {
        thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
}

/// A file system of half a megabyte, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = c"size=512k,mode=0700";
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(options)).unwrap();
        Self(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[test]
fn full_queue_disk_drops_only_counted_samples() {
    run_beside_others();
    let receiver = Receiver::start(None);
    receiver.mode("down");
    let small_disk = SmallDisk::new();
    let to = format!("otlp=http://127.0.0.1:{}", receiver.http);
    let net = Net::start().unwrap();
    let push = Push::start(&net, &[target(&to)], small_disk.0.path(), SHORT_RETRIES).unwrap();
    let (mut windows, mut accepted_samples) = (Vec::new(), 0);
    // The windows have about 8 MB in total. Half a megabyte of them fits on the disk, and the daemon
    // keeps at most four more megabytes in memory.
    for number in 0..60 {
        let new = window_with_long_names(number, 2, 100, 500);
        accepted_samples += samples_in(&new);
        push.window(&new);
        windows.push(new);
        assert_balanced(&push, accepted_samples);
    }
    let counts = assert_balanced(&push, accepted_samples);
    assert!(counts.dropped["not-stored"] > 0, "{counts:?}");
    assert!(counts.waiting_bytes < 6 << 20, "{counts:?}");
    let before = receiver.requests().len();
    receiver.mode("ok");
    let counts = wait_until_delivered(&push, accepted_samples);
    let accepted = received_otlp(
        &receiver.requests()[before..]
            .iter()
            .filter(|r| r["mode"] == "ok")
            .cloned()
            .collect::<Vec<_>>(),
    );
    assert_eq!(samples_of(&accepted), counts.delivered_samples);
    // There is free space again.
    let new = window(1000, 2, 20);
    accepted_samples += samples_in(&new);
    push.window(&new);
    wait_until_delivered(&push, accepted_samples);
}

#[test]
fn full_queue_drops_the_oldest_windows() {
    run_beside_others();
    let receiver = Receiver::start(None);
    receiver.mode("down");
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    let mut options = target(&format!("pyroscope=http://127.0.0.1:{}", receiver.http));
    options.queue_size = 60_000;
    let push = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap();
    let windows: Vec<_> = (0..30).map(|number| window(number, 2, 200)).collect();
    let accepted_samples = windows.iter().map(samples_in).sum();
    for window in &windows {
        push.window(window);
    }
    let before = receiver.requests().len();
    receiver.mode("ok");
    let counts = wait_until_delivered(&push, accepted_samples);
    assert!(counts.dropped["queue-full"] > accepted_samples / 2, "{counts:?}");
    let requests = receiver.requests();
    let accepted: Vec<_> =
        requests[before..].iter().filter(|r| r["mode"] == "ok").cloned().collect();
    let got = received_pyroscope(&accepted);
    assert_eq!(samples_of(&got), counts.delivered_samples);
    // The newest window is among those that were kept.
    let newest = truth(&windows[29..]);
    assert!(newest.iter().all(|(key, value)| got[key] >= *value));
}

#[test]
fn secrets_certificates_and_proxies_are_used() {
    run_beside_others();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(file("key"))
        .arg("-out")
        .arg(file("certificate"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let both = [fs::read(file("key")).unwrap(), fs::read(file("certificate")).unwrap()].concat();
    fs::write(file("both"), both).unwrap();
    fs::write(file("token"), "first\n").unwrap();
    let receiver = Receiver::start(Some(&file("both")));
    let net = Net::start().unwrap();

    // Without the certificate, the server is not trusted, and nothing is sent.
    let to = format!("otlp=https://localhost:{}", receiver.http);
    let push = Push::start(&net, &[target(&to)], &file("untrusted"), SHORT_RETRIES).unwrap();
    push.window(&window(1, 1, 5));
    let until = Instant::now() + Duration::from_secs(60);
    while !push.ledgers()[0].read().requests.contains_key("later") {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(20));
    }
    assert!(receiver.requests().is_empty());
    drop(push);

    let mut options = target(&to);
    options.ca_file = Some(file("certificate"));
    options.bearer_token_file = Some(file("token"));
    options.headers = BTreeMap::from([("X-Scope-OrgID".into(), "tenant".into())]);
    let push = Push::start(&net, &[options.clone()], &file("trusted"), SHORT_RETRIES).unwrap();
    let one = window(1, 1, 5);
    push.window(&one);
    wait_until_delivered(&push, samples_in(&one));
    // A replaced token file is used from then on.
    fs::write(file("token"), "second\n").unwrap();
    push.window(&one);
    wait_until_delivered(&push, 2 * samples_in(&one));
    let tokens: Vec<_> = receiver
        .requests()
        .iter()
        .map(|r| (r["headers"]["authorization"].clone(), r["headers"]["x-scope-orgid"].clone()))
        .collect();
    assert_eq!(
        tokens,
        [("Bearer first".into(), "tenant".into()), ("Bearer second".into(), "tenant".into())]
    );

    // The token over gRPC.
    let before = receiver.requests().len();
    options.to = format!("otlp=grpcs://localhost:{}", receiver.grpc).parse().unwrap();
    let push = Push::start(&net, &[options.clone()], &file("grpc"), SHORT_RETRIES).unwrap();
    push.window(&one);
    wait_until_delivered(&push, samples_in(&one));
    let headers = receiver.requests()[before]["headers"].clone();
    assert_eq!(headers["authorization"], "Bearer second");
    assert_eq!(headers["x-scope-orgid"], "tenant");

    // Through a proxy, which connects every request to the receiver, although the URL has port
    // 4318.
    let (proxy, asked) = proxy(receiver.http);
    options.to = "otlp=https://localhost:4318".parse().unwrap();
    options.proxy = Some(format!("http://127.0.0.1:{proxy}"));
    let push = Push::start(&net, &[options.clone()], &file("proxy"), SHORT_RETRIES).unwrap();
    push.window(&one);
    wait_until_delivered(&push, samples_in(&one));
    assert_eq!(asked.recv().unwrap(), "CONNECT localhost:4318 HTTP/1.1");

    options.basic_auth_file = Some(file("token"));
    let error = Push::start(&net, &[options], &file("both-kinds"), SHORT_RETRIES).unwrap_err();
    assert!(format!("{error:#}").contains("cannot be combined"), "{error:#}");
}

/// Starts a proxy that forwards all connections to one port. Returns the proxy's own port and a
/// channel with the requests that it gets.
fn proxy(to: u16) -> (u16, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (say, asked) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for mut one in listener.incoming().map_while(Result::ok) {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                one.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let first = String::from_utf8(head).unwrap().lines().next().unwrap().to_owned();
            say.send(first).unwrap();
            one.write_all(b"HTTP/1.1 200 Established\r\n\r\n").unwrap();
            join(one, TcpStream::connect(("127.0.0.1", to)).unwrap());
        }
    });
    (port, asked)
}

#[test]
fn target_with_another_protocol_is_retried() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    for to in [
        format!("otlp=grpc://127.0.0.1:{}", receiver.http),
        format!("otlp=http://127.0.0.1:{}", receiver.grpc),
        format!("otlp=https://127.0.0.1:{}", receiver.http),
    ] {
        let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
        let one = window(1, 1, 5);
        push.window(&one);
        let until = Instant::now() + Duration::from_secs(60);
        while push.ledgers()[0].read().requests.get("later").is_none_or(|times| *times < 2) {
            assert!(Instant::now() < until, "{to}: {:?}", push.ledgers()[0].read());
            thread::sleep(Duration::from_millis(20));
        }
        let counts = assert_balanced(&push, samples_in(&one));
        assert_eq!(counts.waiting_samples, samples_in(&one), "{to}");
    }
    // The receiver has not decoded any request.
    assert!(receiver.requests().is_empty());
}

#[test]
fn metrics_arrive_over_otlp() {
    run_beside_others();
    let receiver = Receiver::start(None);
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    let totals = SharedTotals::new(Limits::default());
    let identity = window(1, 1, 1).jvms.remove(0).identity;
    let stop = |ns| Stop {
        op: "G1CollectForAllocation".into(),
        cause: Some("G1 Evacuation Pause".into()),
        stopped_ns: ns,
        times: 1,
        collections: 1,
        heap_after: Some(1 << 20),
        ..Stop::default()
    };
    let processor = Processor { java_ns: 2_500_000_000, ..Processor::default() };
    let stops = vec![stop(1_000_000), stop(1_000_000), stop(64_000_000)];
    totals.lock().admit(&identity);
    totals
        .lock()
        .add(&identity, &Figures { stops, processor, allocated_bytes: 77, ..Figures::default() });
    for to in [
        format!("otlp=http://127.0.0.1:{}", receiver.http),
        format!("otlp=grpc://127.0.0.1:{}", receiver.grpc),
    ] {
        let mut options = target(&to);
        options.metrics = true;
        let push = Push::start(&net, &[options], folder.path(), SHORT_RETRIES).unwrap();
        let before = receiver.requests().len();
        push.metrics(&totals);
        let request = receiver.wait_for(before + 1).remove(before);
        let points = request["metrics"].as_array().unwrap();
        let of = |name: &str| -> Vec<&Value> {
            points.iter().filter(|point| point["name"] == name).collect()
        };
        let stopped = of("jvmprobe.stopped");
        assert_eq!((stopped.len(), stopped[0]["value"].as_f64().unwrap()), (1, 0.066));
        assert_eq!((&stopped[0]["unit"], &stopped[0]["kind"]), (&"s".into(), &"sum".into()));
        assert_eq!(stopped[0]["resource"]["service.name"], "shop-1");
        assert_eq!(stopped[0]["resource"]["k8s.pod.uid"], "uid-1");
        assert_eq!(stopped[0]["labels"]["cause"], "G1 Evacuation Pause");
        assert_eq!(of("jvmprobe.allocated")[0]["value"], 77.0);
        let java = of("jvmprobe.processor").into_iter().find(|p| p["labels"]["kind"] == "java");
        assert_eq!(java.unwrap()["value"], 2.5);
        let lengths = of("jvmprobe.stop_duration")[0];
        assert_eq!((&lengths["count"], &lengths["scale"]), (&3.into(), &3.into()));
        // Bucket i covers 2^(i/8) (exclusive) to 2^((i+1)/8) seconds (inclusive).
        let offset = lengths["offset"].as_i64().unwrap();
        let buckets = lengths["buckets"].as_array().unwrap();
        let of_length = |seconds: f64| {
            let index = (seconds.log2() * 8.0).ceil() as i64 - 1 - offset;
            buckets[usize::try_from(index).unwrap()].as_i64().unwrap()
        };
        assert_eq!((of_length(0.001), of_length(0.064)), (2, 1));
        assert_eq!(of("jvmprobed.jvms")[0]["resource"]["service.name"], "jvmprobed");
    }
}

/// A process that is killed when this is dropped.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// OpenTelemetry's own collector accepts and prints the pushed data.
#[test]
#[ignore = "long: make test-all"]
fn opentelemetry_collector_accepts_profiles_and_metrics() {
    run_alone();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("otelcol/build");
    let output = Command::new(script).stderr(std::process::Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "tests/otelcol/build failed");
    let root = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let port = || {
        let place = TcpListener::bind("127.0.0.1:0").unwrap();
        place.local_addr().unwrap().port()
    };
    let (grpc, http) = (port(), port());
    let config = format!(
        "receivers: {{otlp: {{protocols: {{grpc: {{endpoint: 127.0.0.1:{grpc}}}, http: {{endpoint: 127.0.0.1:{http}}}}}}}}}\n\
         exporters: {{debug: {{verbosity: detailed}}}}\n\
         service:\n  telemetry: {{metrics: {{level: none}}}}\n  pipelines:\n\
         \x20   profiles: {{receivers: [otlp], exporters: [debug]}}\n\
         \x20   metrics: {{receivers: [otlp], exporters: [debug]}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    fs::write(folder.path().join("config.yaml"), config).unwrap();
    // The program is linked against the C library of the system in which it was built.
    let collector = Command::new(format!("{root}/lib64/ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(format!("{root}/usr/lib/x86_64-linux-gnu"))
        .arg(format!("{root}/b/otelcol"))
        .arg("--config")
        .arg(folder.path().join("config.yaml"))
        .args(["--feature-gates", "service.profilesSupport"])
        .stdout(fs::File::create(&log).unwrap())
        .stderr(fs::OpenOptions::new().append(true).open(&log).unwrap())
        .spawn()
        .unwrap();
    let _collector = KilledOnDrop(collector);
    let net = Net::start().unwrap();
    let windows = [window(1, 2, 20)];
    let accepted_samples = windows.iter().map(samples_in).sum();
    let totals = SharedTotals::new(Limits::default());
    totals.lock().admit(&windows[0].jvms[0].identity);
    totals.lock().add(
        &windows[0].jvms[0].identity,
        &Figures { allocated_bytes: 4711, ..Figures::default() },
    );
    for to in [format!("otlp=http://127.0.0.1:{http}"), format!("otlp=grpc://127.0.0.1:{grpc}")] {
        let mut options = target(&to);
        options.metrics = true;
        let push =
            Push::start(&net, &[options], &folder.path().join("queue"), SHORT_RETRIES).unwrap();
        push.window(&windows[0]);
        push.metrics(&totals);
        let counts = wait_until_delivered(&push, accepted_samples);
        assert_eq!(
            (counts.delivered_samples, counts.dropped.len()),
            (accepted_samples, 0),
            "{counts:?}"
        );
    }
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("jvmprobe.allocated").count(), 2, "{said}");
    assert!(said.contains("4711") && said.contains("app.Main.main"), "{said}");
    assert!(said.contains("uid-1") && said.contains("alloc_space"), "{said}");
}

/// Adds the output of `go tool pprof -raw` for a file: it lists values and location IDs of each
/// sample, and then the locations.
fn add_raw(to: &mut Truth, name: &str, raw: &str) {
    let (_, rest) = raw.split_once("Samples:\n").unwrap();
    let (samples, rest) = rest.split_once("Locations\n").unwrap();
    let functions: BTreeMap<&str, &str> = rest
        .lines()
        .take_while(|line| !line.starts_with("Mappings"))
        .map(|line| {
            let (id, rest) = line.trim().split_once(": ").unwrap();
            // An address, the function, and its location as far as known.
            (id, rest.split_whitespace().skip(1).find(|word| !word.starts_with("M=")).unwrap())
        })
        .collect();
    let mut lines = samples.lines();
    let types = lines.next().unwrap().split_whitespace();
    let types: Vec<_> = types.map(|kind| kind.split('/').next().unwrap()).collect();
    for line in lines.filter(|line| !line.contains('[')) {
        let (values, ids) = line.split_once(": ").unwrap();
        let stack: Vec<_> = ids.split_whitespace().map(|id| functions[id]).collect();
        for (measure, value) in types.iter().zip(values.split_whitespace()) {
            let value: i64 = value.parse().unwrap();
            if *measure != "samples" && value != 0 {
                let key = (name.to_owned(), (*measure).to_owned(), stack.join(";"));
                *to.entry(key).or_default() += value;
            }
        }
    }
}

/// Go's own pprof reader, in the Debian root in which the collector was built.
#[test]
#[ignore = "long: make test-all"]
fn go_pprof_reads_the_pushed_files() {
    run_alone();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("otelcol/build");
    let output = Command::new(script).stderr(std::process::Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "tests/otelcol/build failed");
    let root = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let files = tempfile::tempdir_in(format!("{root}/tmp")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let net = Net::start().unwrap();
    let to = format!("dir={}", files.path().display());
    let push = Push::start(&net, &[target(&to)], folder.path(), SHORT_RETRIES).unwrap();
    let windows = [window(1, 3, 60)];
    push.window(&windows[0]);
    wait_until_delivered(&push, samples_in(&windows[0]));
    let mut got = Truth::new();
    for entry in fs::read_dir(files.path()).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        let Some(stem) = file.strip_suffix(".pb.gz") else { continue };
        // NAME-PID-BEGIN
        let name = stem.rsplitn(3, '-').last().unwrap();
        let inside = format!("/{}", path.strip_prefix(&root).unwrap().display());
        let output = Command::new("chroot")
            .arg(&root)
            .args([
                "env",
                "HOME=/tmp",
                "GOROOT=/usr/lib/go",
                "go",
                "tool",
                "pprof",
                "-raw",
                &inside,
            ])
            .output()
            .unwrap();
        let raw = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        add_raw(&mut got, name, &raw);
    }
    assert_eq!(got, truth(&windows));
}
