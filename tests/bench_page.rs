//! Figures of the page: its size, the time until it is first painted, and the time to search, to
//! zoom and to change the view, in headless Chromium. `kotlinc` is a profile of the Kotlin compiler
//! that is recorded in this run; the others are synthetic.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "figures are printed")]

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use jvmprobe_tests::{
    bench::{run_parts, spread},
    browser::Browser,
    programs, runtimes,
    synthetic::{SyntheticProfile, compiler, day},
    tool::binary,
};
use libjvmprobe::render::{
    files::Files,
    formats::{FormatOptions, TitledProfile, flamegraph::Title},
};

const RUNS: usize = 7;

fn main() {
    run_parts(&[
        ("kotlinc", kotlinc),
        ("compiler", || synthetic_page("a compiler, 15 s", &compiler(3000, 15, 30))),
        ("hour", || synthetic_page("20,000 samples in an hour", &compiler(20_000, 3600, 100))),
        ("day", || synthetic_page("1,200,000 samples in a day", &day(1_200_000))),
    ]);
}

/// Returns the time from an action in the page until its result is painted, in milliseconds.
fn until_painted(browser: &mut Browser, action: &str) -> f64 {
    let code = format!(
        "(async () => {{ const frame = () => new Promise((done) => requestAnimationFrame(done));
          await frame(); const begin = performance.now(); {action}; await frame();
          return performance.now() - begin; }})()"
    );
    browser.evaluate(&code).as_f64().unwrap()
}

/// Profiles the Kotlin compiler for 15 s at 99 Hz, as a user would.
fn kotlinc() {
    let folder = tempfile::tempdir().unwrap();
    let program = programs::kotlinc(folder.path(), 10);
    let path = folder.path().join("page.html");
    let mut command = Command::new(binary("javaprof"));
    command.args(["-q", "-d", "15", "-o"]).arg(&path).arg("--");
    command.arg(&runtimes::named("temurin-21").java).args(&program.args);
    // The Kotlin compiler continues to run after the end of the profile.
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !path.metadata().is_ok_and(|file| file.len() > 0) {
        assert!(child.try_wait().unwrap().is_none(), "no page was written");
        std::thread::sleep(Duration::from_millis(100));
    }
    child.wait().unwrap();
    page("kotlinc, 15 s", &path);
}

fn synthetic_page(title: &str, synthetic: &SyntheticProfile) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let bands = synthetic.bands.clone();
    let titled = TitledProfile { profile: &synthetic.profile, title: Title::default(), bands };
    Files::create(std::slice::from_ref(&path), &["cpu"])
        .unwrap()
        .write(&[titled], &FormatOptions::default())
        .unwrap();
    page(title, &path);
}

fn page(title: &str, path: &Path) {
    println!("{title}: {} kB", fs::metadata(path).unwrap().len() / 1000);
    let mut browser = Browser::start();
    let view = |name: &str| format!("document.querySelector('[data-view={name}]').click()");
    let search = |text: &str| {
        format!(
            "(() => {{ const s = document.querySelector('#search'); s.value = '{text}';
              s.dispatchEvent(new Event('input')); }})()"
        )
    };
    let zoom = "(() => { const box = jvmprobe.boxes().filter((b) => b.name.includes('.'))
        .reduce((a, b) => b.width > a.width ? b : a);
        document.querySelector('#frames').dispatchEvent(
          new MouseEvent('click', { clientX: box.x + 2, clientY: box.y + 5, bubbles: true })); })()";
    let actions = [
        ("search", search("accept")),
        ("zoom", zoom.to_owned()),
        ("icicle", view("icicle")),
        ("callers", view("callers")),
        ("methods", view("methods")),
        ("flame graph", view("flame")),
    ];
    let mut times = vec![Vec::new(); actions.len()];
    let mut painted = Vec::new();
    for _ in 0..RUNS {
        browser.open(path, 1280, 800);
        browser.wait_for_frame();
        let first = "new Promise((done) => new PerformanceObserver((list) =>
            done(list.getEntries()[0].startTime)).observe({ type: 'paint', buffered: true }))";
        painted.push(browser.evaluate(first).as_f64().unwrap());
        for ((_, action), times) in actions.iter().zip(&mut times) {
            times.push(until_painted(&mut browser, action));
        }
    }
    println!("  first paint: {} ms", spread(painted));
    for ((name, _), times) in actions.iter().zip(times) {
        println!("  {name}: {} ms", spread(times));
    }
}
