//! Figures of the page: how large it is, when it is first painted, and how long it takes to search,
//! to zoom and to change the view, in headless Chromium.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "figures are printed")]

use std::fs;

use jvmprobe_tests::{
    bench::{run_parts, spread},
    browser::Browser,
    made_up::compiler,
};
use libjvmprobe::render::{
    files::Files,
    formats::{How, Titled, flamegraph::Title},
};

const RUNS: usize = 7;

fn main() {
    run_parts(&[
        ("compiler", || page("a compiler, 15 s", 3000, 15, 30)),
        ("hour", || {
            page("20,000 samples in an hour", 20_000, 3600, 100);
        }),
    ]);
}

/// How long something takes in the page until it is painted, in milliseconds.
fn until_painted(browser: &mut Browser, action: &str) -> f64 {
    let code = format!(
        "(async () => {{ const frame = () => new Promise((done) => requestAnimationFrame(done));
          await frame(); const begin = performance.now(); {action}; await frame();
          return performance.now() - begin; }})()"
    );
    browser.evaluate(&code).as_f64().unwrap()
}

fn page(title: &str, samples: usize, seconds: u64, threads: u64) {
    let made_up = compiler(samples, seconds, threads);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let titled = Titled {
        profile: &made_up.profile,
        title: Title::default(),
        timeline: Some(&made_up.timeline),
    };
    Files::create(std::slice::from_ref(&path), &["cpu"])
        .unwrap()
        .write(&[titled], &How::default())
        .unwrap();
    println!("{title}: {} kB", fs::metadata(&path).unwrap().len() / 1000);
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
        document.querySelector('#towers').dispatchEvent(
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
        browser.open(&path, 1280, 800);
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
