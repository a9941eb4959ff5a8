use serde_json::Value;

use super::{packed::tests::numbers, *};
use crate::{
    render::formats::{flamegraph::Title, folded::tests::profile as small},
    stack::{
        Frame, Kind,
        profile::{Measure, Profile, Sample},
        timeline::{Band, BandKind},
    },
};

fn page(profiles: &[&Profile], bands: &[Band], options: &FormatOptions<'_>) -> String {
    let title = Title { title: "T & <T>".into(), subtitle: Some("spent".into()) };
    let titled = |&profile| TitledProfile { profile, title: title.clone(), bands: bands.to_vec() };
    let profiles: Vec<_> = profiles.iter().map(titled).collect();
    let mut bytes = Vec::new();
    write(&profiles, options, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn rows(value: &Value) -> Vec<u64> {
    numbers(value.as_str().unwrap())
}

fn sum_of_every(value: &Value, width: usize, at: usize) -> u64 {
    rows(value).chunks(width).map(|row| row[at]).sum()
}

#[test]
fn page_contains_each_event_with_correct_sums() {
    let cpu = small();
    let mut faults = small();
    faults.measure = Measure::Events("page-faults".into());
    let page = page(&[&cpu, &faults], &[], &FormatOptions::default());
    assert!(page.contains("<title>T &amp; &lt;T&gt;</title>"), "{page}");
    let data = data(&page);
    assert_eq!(data["title"], "T & <T>");
    let events = data["events"].as_array().unwrap();
    assert_eq!((&events[0]["unit"], &events[1]["unit"]), (&"samples".into(), &"count".into()));
    for event in events {
        assert_eq!(sum_of_every(&event["samples"], 3, 2), cpu.total());
        assert_eq!(event["threads"].as_array().unwrap().len(), 2);
        // Two stacks: main, run; main, vfs_read.
        assert_eq!(rows(&event["stacks"]), [0, 2, 0, 1, 1, 1, 2]);
        assert!(event.get("times").is_none() && event.get("base").is_none());
    }
}

#[test]
fn content_policy_allows_only_embedded_script_and_style() {
    let page = page(&[&small()], &[], &FormatOptions::default());
    let policy = page.split_once("Content-Security-Policy\" content=\"").unwrap().1;
    let policy = policy.split_once('"').unwrap().0;
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe") && !page.contains("http://") && !page.contains("https://"));
    let script = page.rsplit_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
    let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
    for text in [script, style] {
        assert!(policy.contains(&STANDARD.encode(Sha256::digest(text))), "{policy}");
    }
    assert!(!page.contains("{{"), "a placeholder was not replaced");
}

#[test]
fn hostile_names_are_escaped() {
    let mut profile = Profile::default();
    let bad = "</script><img src=x onerror=alert(1)>\u{202e}\u{1b}[31m\"'&{{script}}";
    // The name is set without `Frame::new`, which would clean it.
    let frame = Frame { name: bad.into(), ..Frame::new(Kind::Java, "") };
    let long = Frame { name: "x".repeat(1 << 16).into(), ..Frame::new(Kind::Java, "") };
    let ids = [profile.intern(frame), profile.intern(long)];
    profile.samples.push(Sample {
        stack: ids.to_vec(),
        command: bad.into(),
        thread: bad.into(),
        ..small().samples[0].clone()
    });
    let page = page(&[&profile], &[], &FormatOptions::default());
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'));
    let data = data(&page);
    let names = data["names"]["rest"].as_array().unwrap();
    let shown = "</script><img src=x onerror=alert(1)>\\u{202e}\\x1b[31m\"'&{{script}}";
    assert_eq!((&names[0], names[1].as_str().unwrap().len()), (&shown.into(), 1 << 16));
    assert_eq!(data["events"][0]["threads"][0][3], shown);
}

#[test]
fn timeline_contains_times_of_profiled_samples_and_bands() {
    let mut profile = small();
    (profile.begin_unix_ns, profile.slot_ns) = (1_700_000_000_123_456_789, 20_000_000);
    for (slot, sample, count) in [(0, 0, 2), (7, 1, 1), (60, 1, 2), (61, 2, 1)] {
        profile.samples[sample].times.push((slot, count));
    }
    let band = Band {
        begin_ns: 1_500,
        end_ns: 12_000_001,
        kind: BandKind::Collection,
        label: "G1 Evacuation Pause".into(),
    };
    let page = page(&[&profile], &[band], &FormatOptions::default());
    let data = data(&page);
    let times = &data["events"][0]["times"];
    // Slot, stack, thread, count.
    let [first, second] = [[0, 0, 0, 2], [7, 0, 1, 1]];
    let [third, fourth] = [[53, 0, 1, 2], [1, 1, 1, 1]];
    assert_eq!(rows(&times["counts"]), [first, second, third, fourth].concat());
    assert_eq!(times["begin_ms"], 1_700_000_000_123_u64);
    assert_eq!(times["bands"], serde_json::json!([[1, 12_001, "gc", "G1 Evacuation Pause"]]));
}

#[test]
fn difference_contains_base_and_new_samples() {
    let base = "java;a.Main.main;a.Main.run 60\njava;a.Main.main;gone_[k] 20\nno stack\n";
    let options = FormatOptions { base: Some(base), ..FormatOptions::default() };
    let mut profile = small();
    profile.slot_ns = 20_000_000;
    let data = data(&page(&[&profile], &[], &options));
    let event = &data["events"][0];
    assert!(event.get("times").is_none(), "the base has no times");
    assert_eq!(sum_of_every(&event["samples"], 3, 2), 6);
    assert_eq!(sum_of_every(&event["base"], 2, 1), 80);
    let names = data["names"]["rest"].as_array().unwrap();
    assert!(names.contains(&"gone".into()) && names.contains(&"java".into()), "{names:?}");
    // run and main are Java code; gone and vfs_read are kernel code; java is a command, not code.
    let mut kinds: Vec<_> = rows(&data["names"]["frames"]).chunks(2).map(|f| f[1]).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [0, 1, 6, 6, 9]);
}
