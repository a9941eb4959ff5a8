//! Pictures of a page, light and dark: `cargo run -p jvmprobe-tests --example pictures -- PAGE.html
//! PREFIX [WIDTH HEIGHT [JAVASCRIPT]]` writes PREFIX-light.png and PREFIX-dark.png. The README's pictures
//! show a profile of the Kotlin compiler in a window of 1,280 by 720.
#![allow(clippy::unwrap_used, reason = "a developer tool fails by panicking")]

use std::{env, fs, path::Path};

use jvmprobe_tests::browser::Browser;

fn main() {
    let args: Vec<_> = env::args().skip(1).collect();
    let [page, prefix, rest @ ..] = &args[..] else {
        panic!("usage: pictures PAGE.html PREFIX [WIDTH HEIGHT [JAVASCRIPT]]")
    };
    let number = |at: usize, default| rest.get(at).map_or(default, |text| text.parse().unwrap());
    let mut browser = Browser::start();
    browser.open(&Path::new(page).canonicalize().unwrap(), number(0, 1280), number(1, 720));
    if let Some(code) = rest.get(2) {
        browser.evaluate(code);
    }
    for (is_dark, name) in [(false, "light"), (true, "dark")] {
        browser.prefer_dark(is_dark);
        fs::write(format!("{prefix}-{name}.png"), browser.screenshot()).unwrap();
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
