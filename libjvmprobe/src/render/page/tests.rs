use serde_json::Value;

use super::*;
use crate::{
    render::formats::{flamegraph::Title, folded::tests::profile as small},
    stack::{
        Frame, Kind,
        profile::{Profile, Sample},
    },
};

fn page(profile: &Profile, options: &FormatOptions<'_>) -> String {
    let title = Title { title: "T & <T>".into(), subtitle: Some("spent".into()) };
    let titled = TitledProfile { profile, title, bands: Vec::new() };
    let mut bytes = Vec::new();
    write(&[titled], options, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn content_policy_allows_only_embedded_script_and_style() {
    let page = page(&small(), &FormatOptions::default());
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
    let page = page(&profile, &FormatOptions::default());
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(page.contains("<title>T &amp; &lt;T&gt;</title>"), "{page}");
    assert!(!page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'));
    let data = data(&page);
    let names = data["names"]["rest"].as_array().unwrap();
    let shown = "</script><img src=x onerror=alert(1)>\\u{202e}\\x1b[31m\"'&{{script}}";
    assert_eq!((&names[0], names[1].as_str().unwrap().len()), (&shown.into(), 1 << 16));
    assert_eq!(data["events"][0]["threads"][0][3], shown);
}

#[test]
fn difference_has_no_time_axis() {
    let mut profile = small();
    profile.slot_ns = 20_000_000;
    for (base, has_times) in [(None, true), (Some("java;a.Main.main 20\n"), false)] {
        let options = FormatOptions { base, ..FormatOptions::default() };
        let data = data(&page(&profile, &options));
        assert_eq!(data["events"][0].get("times").is_some(), has_times);
    }
}
