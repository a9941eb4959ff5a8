//! The page that `-o FILE.html` writes, in a real browser. The profiles are synthetic; no JVM runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use jvmprobe_tests::{
    browser::{Browser, point},
    synthetic::{Dice, SLOT_NS, SyntheticProfile, SyntheticSample, compiler, day, small},
};
use libjvmprobe::{
    render::{
        files::Files,
        formats::{FormatOptions, TitledProfile, flamegraph::Title, folded},
    },
    stack::{
        Frame, Kind,
        profile::{Measure, Profile},
        timeline::{Band, slots_per_written_slot},
    },
};
use serde_json::Value;
use tempfile::TempDir;

/// A profile, and stops of the application.
type WithBands<'a> = (&'a Profile, &'a [Band]);

/// Writes a page, as the tools do.
fn write(to: &Path, profiles: &[WithBands<'_>], options: &FormatOptions<'_>) {
    let title = Title {
        title: "CPU time of process 100 at 99 Hz (cpu-clock)".into(),
        subtitle: Some("4.72 s of CPU time in 10.00 s (0.47 cores): Java 71.31 %, JVM 12 %".into()),
    };
    let titled = profiles.iter().map(|&(profile, bands)| TitledProfile {
        profile,
        title: title.clone(),
        bands: bands.to_vec(),
    });
    let titled: Vec<_> = titled.collect();
    let names: Vec<_> = profiles.iter().map(|(profile, _)| profile.measure.name()).collect();
    Files::create(&[to.to_owned()], &names).unwrap().write(&titled, options).unwrap();
    assert!(to.exists());
}

/// A browser with a page in a window of 1,280 by 800.
struct Page {
    browser: Browser,
    _dir: TempDir,
    path: PathBuf,
}

impl Page {
    fn open(profiles: &[WithBands<'_>], options: &FormatOptions<'_>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        write(&path, profiles, options);
        let mut browser = Browser::start();
        browser.open(&path, 1280, 800);
        Self { browser, _dir: dir, path }
    }

    fn of(synthetic: &SyntheticProfile) -> Self {
        Self::open(&[(&synthetic.profile, &*synthetic.bands)], &FormatOptions::default())
    }

    fn evaluate_page_api(&mut self, expression: &str) -> Value {
        self.browser.evaluate(&format!("jvmprobe.{expression}"))
    }

    fn folded(&mut self, threads: bool) -> Vec<String> {
        let lines = self.evaluate_page_api(&format!("folded({threads})"));
        lines.as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    }

    /// Returns the text of the first element that matches a selector.
    fn text(&mut self, selector: &str) -> String {
        let text =
            self.browser.evaluate(&format!("document.querySelector({selector:?}).textContent"));
        text.as_str().unwrap().to_owned()
    }

    /// Returns the drawn boxes with this name, widest first.
    fn boxes(&mut self, name: &str) -> Vec<Value> {
        let boxes = self.evaluate_page_api("boxes()");
        let named = |b: &&Value| b["name"] == name;
        let mut boxes: Vec<_> = boxes.as_array().unwrap().iter().filter(named).cloned().collect();
        boxes.sort_by(|a, b| number(b, "width").total_cmp(&number(a, "width")));
        boxes
    }

    fn click_box(&mut self, name: &str) {
        let first = self.boxes(name).remove(0);
        let at = (number(&first, "x") + 5.0, number(&first, "y") + 6.0);
        self.browser.click(at);
    }

    fn type_search(&mut self, text: &str) {
        self.browser.evaluate("document.querySelector('#search').select()");
        self.browser.type_text(text);
    }

    /// Asserts that the page caused no errors, warnings or requests.
    fn assert_no_page_errors(&mut self) {
        assert_eq!(self.browser.complaints(), Vec::<String>::new(), "{}", self.path.display());
        let is_wider = "document.documentElement.scrollWidth > innerWidth";
        assert_eq!(self.browser.evaluate(is_wider), false, "the page is wider than the window");
    }
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap()
}

fn lines(profile: &Profile, threads: bool) -> Vec<String> {
    let mut lines = folded::lines(profile, folded::Options { threads, ..Default::default() });
    lines.sort();
    lines
}

#[test]
fn frame_kinds_of_one_method_share_one_box() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    let run = page.boxes("a.Main.run");
    // One box has the calls from `main`, and the other has the recursive calls.
    assert_eq!(run.iter().map(|b| number(b, "total")).collect::<Vec<_>>(), [90.0, 5.0]);
    let description = page.evaluate_page_api("describe('a.Main.run')").to_string();
    assert!(
        description.contains("Compiled 66.7 %, Inlined 22.2 %, Interpreted 11.1 %"),
        "{description}"
    );
    assert!(description.contains("Self 60.0 % (60 samples"), "{description}");
    page.assert_no_page_errors();
}

#[test]
fn selected_range_shows_only_its_samples() {
    let synthetic = compiler(3000, 30, 4);
    let mut page = Page::of(&synthetic);
    assert_eq!(page.folded(false), lines(&synthetic.profile, false));
    let (mut dice, last) = (Dice(7), 30 * 50);
    for _ in 0..6 {
        let [a, b] = [dice.below(last), dice.below(last)];
        let (from, to) = (a.min(b), a.max(b));
        let [start, end] =
            [from, to].map(|slot| page.evaluate_page_api(&format!("pointOf({slot})")));
        page.browser.drag(point(&start), point(&end));
        let chosen = page.evaluate_page_api("state()")["range"].clone();
        assert_eq!(chosen, serde_json::json!([from, to + 1]));
        let part = synthetic.part(|sample| (from..=to).contains(&sample.slot.into()));
        for threads in [false, true] {
            assert_eq!(page.folded(threads), lines(&part, threads), "{from} to {to}");
        }
        assert_eq!(page.evaluate_page_api("total()"), part.total() as f64);
        // The drawing shows the same range.
        assert_eq!(number(&page.boxes("all")[0], "total"), part.total() as f64);
    }
    page.browser.click_on("#range-all");
    assert_eq!(page.folded(true), lines(&synthetic.profile, true));
    // Selected with the input fields, and with the keyboard.
    page.browser.evaluate("document.querySelector('#range-from').value = '1.5'");
    page.browser.evaluate("document.querySelector('#range-to').value = '2.25'");
    page.browser.click_on("#range button");
    assert_eq!(page.evaluate_page_api("state()")["range"], serde_json::json!([75, 113]));
    page.browser.evaluate("document.querySelector('#heat').focus()");
    page.browser.press("Escape");
    page.browser.press("ArrowUp");
    page.browser.press("Enter");
    let range = page.evaluate_page_api("state()")["range"].clone();
    let from = range[0].as_u64().unwrap();
    let part = synthetic.part(|sample| u64::from(sample.slot) == from);
    assert_eq!((page.folded(false), &range[1]), (lines(&part, false), &(from + 1).into()));
    page.assert_no_page_errors();
}

#[test]
fn search_shows_the_share_of_matches() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    page.type_search("MAIN.RUN");
    assert_eq!(page.text("#matches"), "90.0 % in matching methods");
    page.type_search("/^(vfs_read|write)$/");
    assert_eq!(page.text("#matches"), "35.0 % in matching methods");
    page.type_search("no such (");
    assert_eq!(page.text("#matches"), "0 % in matching methods");
    page.click_box("a.Main.run");
    page.type_search("write");
    assert_eq!(page.text("#matches"), "16.7 % in matching methods", "share of the zoomed box");
    page.browser.evaluate("document.activeElement.blur()");
    page.browser.press("/");
    assert_eq!(page.browser.evaluate("document.activeElement.id"), "search");
    page.assert_no_page_errors();
}

#[test]
fn page_zooms_by_mouse_and_keyboard() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    let width = |page: &mut Page, name: &str| number(&page.boxes(name)[0], "width");
    let whole = width(&mut page, "all");
    assert!(width(&mut page, "a.Main.run") < whole);
    page.click_box("a.Main.run");
    assert_eq!(
        (page.evaluate_page_api("zoomed()"), width(&mut page, "a.Main.run")),
        ("a.Main.run".into(), whole)
    );
    assert!(page.text("#zoom-what").starts_with("a.Main.run 90.0 %"));
    page.browser.press("Escape");
    assert_eq!(page.evaluate_page_api("zoomed()"), "all");
    // The first key selects the root, the next two move to the widest callee, and Enter zooms to it.
    for key in ["ArrowUp", "ArrowUp", "ArrowUp", "Enter"] {
        page.browser.press(key);
    }
    assert_eq!(page.evaluate_page_api("zoomed()"), "a.Main.run");
    assert!(page.text("#announcement").starts_with("a.Main.run, Total 90.0 %"));
    page.browser.press("Backspace");
    assert_eq!(page.evaluate_page_api("zoomed()"), "a.Main.main");
    page.assert_no_page_errors();
}

#[test]
fn callers_view_inverts_the_stacks() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    page.click_box("a.Main.run");
    page.browser.press("c");
    let totals = |page: &mut Page, name: &str| -> Vec<f64> {
        page.boxes(name).iter().map(|b| number(b, "total")).collect()
    };
    // All 90 samples of this method are shown, 5 of them below a recursive call, and all are called
    // from main.
    assert_eq!(totals(&mut page, "all"), [90.0]);
    assert_eq!(totals(&mut page, "a.Main.run"), [90.0, 5.0]);
    assert_eq!(totals(&mut page, "a.Main.main"), [85.0, 5.0]);
    assert_eq!(page.text("#zoom-what"), "Callers of a.Main.run 90.0 %, 90 samples, 909.09 ms");
    // If no method is selected, the view shows the callers of each innermost method.
    page.browser.click_on("[data-view=callers]");
    assert_eq!(totals(&mut page, "write"), [25.0]);
    assert_eq!(totals(&mut page, "a.Main.main"), [60.0, 15.0, 10.0, 10.0, 5.0]);
    page.browser.click_on("[data-view=icicle]");
    let y = |page: &mut Page, name: &str| number(&page.boxes(name)[0], "y");
    assert!(y(&mut page, "a.Main.main") < y(&mut page, "a.Main.run"));
    page.browser.click_on("[data-view=flame]");
    assert!(y(&mut page, "a.Main.main") > y(&mut page, "a.Main.run"));
    page.assert_no_page_errors();
}

#[test]
fn method_table_lists_each_method_once() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    page.browser.click_on("[data-view=methods]");
    let rows = |page: &mut Page| {
        let all = "[...document.querySelectorAll('#rows tr')].map((r) => [...r.children].map((c) => c.textContent).join(' '))";
        let all = page.browser.evaluate(all);
        all.as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let by_self = rows(&mut page);
    assert_eq!(by_self[0], "65.0 % 65 90.0 % 90 a.Main.run");
    assert_eq!(by_self[3], "0 % 0 100.0 % 100 a.Main.main");
    page.browser.click_on("[data-column=total]");
    assert!(rows(&mut page)[0].ends_with("a.Main.main"));
    assert_eq!(
        page.browser.evaluate("document.querySelector('[aria-sort]').ariaSort"),
        "descending"
    );
    page.browser.click_on("[data-column=name]");
    let names = ["a.Main.main", "a.Main.run", "vfs_read", "write"];
    assert!(rows(&mut page).iter().zip(names).all(|(row, name)| row.ends_with(name)));
    page.type_search("run");
    assert_eq!(rows(&mut page).len(), 1);
    page.browser.click_on("#rows button");
    assert_eq!(page.text("#zoom-what"), "Callers of a.Main.run 90.0 %, 90 samples, 909.09 ms");
    page.assert_no_page_errors();
}

#[test]
fn threads_and_frame_kinds_can_be_filtered() {
    let synthetic = small();
    let mut page = Page::of(&synthetic);
    page.browser.click_on("#threads summary");
    page.browser.click_on("#threads-list li:nth-child(1) input");
    // The busiest thread is the first, 101.
    let part = synthetic.part(|sample| sample.tid != 101);
    assert_eq!(page.folded(true), lines(&part, true));
    page.browser.click_on("#split");
    assert_eq!(number(&page.boxes("worker-102-102")[0], "total"), 25.0);
    page.browser.press("Escape");
    page.browser.click_on("#kinds [data-kind='5']");
    let innermost =
        |sample: &SyntheticSample| synthetic.profile.frame(*sample.stack.last().unwrap());
    let is_native = |sample: &SyntheticSample| innermost(sample).kind == Kind::Native;
    let part = synthetic.part(|sample| sample.tid != 101 && !is_native(sample));
    assert_eq!(page.folded(true), lines(&part, true));
    page.assert_no_page_errors();
}

#[test]
fn event_selector_switches_the_profile() {
    let cpu = small();
    let mut bytes = compiler(200, 4, 2).profile;
    (bytes.measure, bytes.slot_ns) = (Measure::Allocation, 0);
    let empty = Profile::of(Measure::Events("page-faults".into()));
    let profiles = [(&cpu.profile, &*cpu.bands), (&bytes, &[]), (&empty, &[])];
    let mut page = Page::open(&profiles, &FormatOptions::default());
    assert_eq!(page.folded(false), lines(&cpu.profile, false));
    let choose = |page: &mut Page, number: u32| {
        let code = format!(
            "(() => {{ const s = document.querySelector('#event'); s.value = '{number}';
              s.dispatchEvent(new Event('change')); return s.selectedOptions[0].textContent; }})()"
        );
        page.browser.evaluate(&code)
    };
    assert_eq!(choose(&mut page, 1), "alloc");
    assert_eq!(page.folded(true), lines(&bytes, true));
    assert_eq!(page.browser.evaluate("document.querySelector('#axis').hidden"), true);
    assert_eq!(choose(&mut page, 2), "page-faults");
    assert_eq!(page.browser.evaluate("document.querySelector('#nothing').hidden"), false);
    assert_eq!(choose(&mut page, 0), "cpu");
    assert_eq!(page.browser.evaluate("document.querySelector('#axis').hidden"), false);
    page.assert_no_page_errors();
}

#[test]
fn difference_shows_the_numbers_of_both_profiles() {
    let synthetic = small();
    let base = "java;a.Main.main;a.Main.run 30\njava;a.Main.main;a.Main.gone 30\n";
    let options = FormatOptions { base: Some(base), ..FormatOptions::default() };
    let mut page = Page::open(&[(&synthetic.profile, &[])], &options);
    assert_eq!(page.browser.evaluate("document.querySelector('#axis').hidden"), true);
    let description = page.evaluate_page_api("describe('a.Main.run')").to_string();
    assert!(
        description.contains("Before 50.0 % (30 samples") && description.contains("+40.00 points"),
        "{description}"
    );
    // The callers view compares the samples of both profiles in which this method is the innermost
    // one.
    page.browser.click_on("[data-view=callers]");
    let description = page.evaluate_page_api("describe('a.Main.run')").to_string();
    assert!(
        description.contains("Total 65.0 %") && description.contains("Before 50.0 % (30"),
        "{description}"
    );
    page.browser.click_on("[data-view=methods]");
    page.browser.click_on("[data-column=change]");
    page.browser.click_on("[data-column=change]");
    let first = page.text("#rows tr");
    assert!(first.contains("50.0 %−50.00a.Main.gone"), "{first}");
    assert_eq!(page.folded(false), lines(&synthetic.profile, false));
    page.assert_no_page_errors();
}

#[test]
fn page_fits_any_window_size() {
    let synthetic = compiler(2000, 20, 8);
    let mut page = Page::of(&synthetic);
    for (width, height) in [(1920, 1080), (800, 600), (390, 844), (1280, 800)] {
        page.browser.resize(width, height);
        let drawn = number(&page.boxes("all")[0], "width");
        assert!((f64::from(width) - drawn) < 60.0, "{drawn} of {width}");
        page.assert_no_page_errors();
    }
}

#[test]
fn hostile_names_are_displayed_as_text() {
    let bad = "</script><img src=x onerror=alert(1)><b>\u{202e}evil\u{1b}[31m\u{7}\"'&amp;";
    let shown = "</script><img src=x onerror=alert(1)><b>\\u{202e}evil\\x1b[31m\\x07\"'&amp;";
    let mut profile = Profile::default();
    // Longer than any name that a tool writes.
    let long = Frame { name: "x".repeat(1 << 16).into(), ..Frame::new(Kind::Java, "") };
    // The common beginning of these names is one character, but two UTF-16 units.
    let names = ["\u{1f600}x", "\u{1f600}y", bad];
    let mut stack = names.map(|name| profile.intern(Frame::new(Kind::Java, name))).to_vec();
    stack.push(profile.intern(long));
    let synthetic =
        SyntheticProfile::of(profile, vec![SyntheticSample { slot: 0, tid: 1, stack, count: 3 }]);
    let mut page = Page::of(&synthetic);
    for name in ["\u{1f600}x", "\u{1f600}y", shown] {
        assert_eq!(page.boxes(name).len(), 1, "{name}");
    }
    page.browser.click_on("[data-view=methods]");
    assert!(page.text("#rows tr:nth-child(2)").ends_with(shown));
    page.browser.click_on("#rows tr:nth-child(2) button");
    assert!(page.text("#zoom-what").contains(shown));
    assert_eq!(page.browser.evaluate("document.querySelectorAll('img, main b b').length"), 0);
    page.assert_no_page_errors();
}

#[test]
fn deep_stacks_many_threads_and_long_profiles_are_shown() {
    // One stack of 1,024 frames, and one of none.
    let mut profile = Profile::default();
    let stack: Vec<_> = (0..1024)
        .map(|i| profile.intern(Frame::new(Kind::Inlined, format!("a.Deep.m{i}"))))
        .collect();
    let without = SyntheticSample { slot: 9, tid: 2, stack: Vec::new(), count: 1 };
    let deep = SyntheticProfile::of(
        profile,
        vec![SyntheticSample { slot: 0, tid: 1, stack, count: 1 }, without],
    );
    let mut page = Page::of(&deep);
    assert_eq!(page.folded(true), lines(&deep.profile, true));
    assert_eq!(page.evaluate_page_api("boxes().length"), 1025);
    let first = page.boxes("a.Deep.m0").remove(0);
    assert!((0.0..800.0).contains(&number(&first, "y")), "the root is not visible: {first}");
    page.assert_no_page_errors();
    // 5,000 threads.
    let mut many = small();
    for i in 0..5000 {
        let SyntheticSample { slot, stack, .. } = many.samples[i % 6].clone();
        many.samples.push(SyntheticSample { slot, stack, tid: 1000 + i as u32, count: 1 });
    }
    let many = SyntheticProfile { ..SyntheticProfile::of(many.profile, many.samples) };
    let mut page = Page::of(&many);
    page.browser.click_on("#threads summary");
    assert_eq!(page.browser.evaluate("document.querySelectorAll('#threads-list li').length"), 300);
    page.browser.click_on("#split");
    assert_eq!(page.folded(true), lines(&many.profile, true));
    page.assert_no_page_errors();
    // A day.
    let mut day = compiler(2000, 10, 2);
    for (i, sample) in day.samples.iter_mut().enumerate() {
        sample.slot = i as u32 * (24 * 3600 * 50 / 2000);
    }
    let day = SyntheticProfile::of(day.profile, day.samples);
    let mut page = Page::of(&day);
    assert!(page.text("#axis-caption").contains("Each column covers 5\u{a0}min"));
    let [start, end] =
        [600, 900_000].map(|slot| page.evaluate_page_api(&format!("pointOf({slot})")));
    page.browser.drag(point(&start), point(&end));
    let range = page.evaluate_page_api("state()")["range"].clone();
    let (from, to) = (range[0].as_u64().unwrap(), range[1].as_u64().unwrap());
    assert!(from <= 600 && to > 900_000 && from % 300 == 0 && to % 300 == 0, "{range}");
    let part = day.part(|sample| (from..to).contains(&sample.slot.into()));
    assert_eq!(page.folded(false), lines(&part, false));
    assert_eq!(SLOT_NS, 20_000_000);
    page.assert_no_page_errors();
}

/// One day of a busy machine: with longer slots the page opens, and no sample is missing.
#[test]
fn busy_day_is_shown_in_longer_time_slots() {
    let day = day(1_200_000);
    let slot_ns = SLOT_NS * u64::from(slots_per_written_slot(&day.profile));
    assert!(slot_ns > SLOT_NS && 3_600_000_000_000 % slot_ns == 0, "{slot_ns}");
    let mut page = Page::of(&day);
    let size = fs::metadata(&page.path).unwrap().len();
    assert!(size < 8 << 20, "{size} bytes");
    assert_eq!(page.evaluate_page_api("total()"), day.profile.total() as f64);
    // The range from the second to the third hour.
    let set =
        |id: &str, second: u64| format!("document.querySelector('#range-{id}').value = '{second}'");
    page.browser.evaluate(&set("from", 3600));
    page.browser.evaluate(&set("to", 3 * 3600));
    page.browser.click_on("#range button");
    let slots = 3600 * 50..3 * 3600 * 50_u64;
    let part = day.part(|sample| slots.contains(&sample.slot.into()));
    assert_eq!(page.evaluate_page_api("total()"), part.total() as f64);
    page.browser.click_on("[data-view=callers]");
    let shown = page.evaluate_page_api("boxes()");
    let own = shown.as_array().unwrap().iter().filter(|b| b["name"] == "memset_avx2");
    let widest = own.map(|b| number(b, "total")).fold(0.0, f64::max);
    let is_memset = |sample: &SyntheticSample| {
        &*day.profile.frame(*sample.stack.last().unwrap()).name == "memset_avx2"
    };
    let truth = day.part(|sample| slots.contains(&sample.slot.into()) && is_memset(sample)).total();
    assert_eq!(widest, truth as f64);
    page.assert_no_page_errors();
}

/// Writes screenshots into target/page, for inspection by people.
#[test]
fn screenshots_are_written_without_page_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/page");
    fs::create_dir_all(&folder).unwrap();
    let synthetic = compiler(3000, 30, 8);
    let file = folder.join("compiler.html");
    write(&file, &[(&synthetic.profile, &*synthetic.bands)], &FormatOptions::default());
    let mut browser = Browser::start();
    browser.open(&file, 1280, 800);
    for (width, height) in [(1600, 1000), (1024, 700), (390, 844)] {
        for is_dark in [false, true] {
            browser.resize(width, height);
            browser.prefer_dark(is_dark);
            let picture = browser.screenshot();
            assert!(picture.starts_with(b"\x89PNG"));
            let name = format!("{width}-{}.png", if is_dark { "dark" } else { "light" });
            fs::write(folder.join(name), picture).unwrap();
        }
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    // Compared with a base profile that lacks a part of the samples.
    let base = synthetic.part(|sample| !sample.stack.contains(&7) && sample.slot % 3 != 0);
    let base = lines(&base, false).join("\n");
    let options = FormatOptions { base: Some(&base), ..FormatOptions::default() };
    let file = folder.join("difference.html");
    write(&file, &[(&synthetic.profile, &[])], &options);
    browser.open(&file, 1280, 800);
    fs::write(folder.join("difference.png"), browser.screenshot()).unwrap();
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

/// Firefox draws the page as well: a blank screenshot would have few bytes.
#[test]
fn firefox_renders_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let [page, picture, home] = ["page.html", "page.png", "home"].map(|name| dir.path().join(name));
    fs::create_dir(&home).unwrap();
    let synthetic = compiler(3000, 30, 8);
    write(&page, &[(&synthetic.profile, &*synthetic.bands)], &FormatOptions::default());
    let ended = Command::new("firefox-esr")
        .args(["--headless", "--no-remote", "--window-size", "1280,800", "--screenshot"])
        .args([&picture, Path::new("--profile"), &home])
        .arg(format!("file://{}", page.display()))
        .env("HOME", &home)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("firefox-esr: tests/setup test installs it");
    assert!(ended.success());
    let bytes = fs::read(&picture).unwrap();
    assert!(bytes.len() > 40_000, "{} bytes", bytes.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("target/page");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("firefox.png"), bytes).unwrap();
}
