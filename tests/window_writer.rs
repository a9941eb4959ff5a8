//! Writes synthetic windows to a directory, one after the other, for tests of the store:
//! `window-writer DIR KEEP_SECONDS KEEP_BYTES BEGIN_SECONDS FIRST COUNT`. The number of each window
//! is printed when it is stored.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::{path::Path, time::Duration};

use jvmprobe_tests::windows::synthetic_window;
use jvmprobed::store::Store;
use libjvmprobe::cli::init_messages;

fn main() {
    init_messages("jvmprobed", false);
    let args: Vec<_> = std::env::args().collect();
    let number = |at: usize| args[at].parse::<u64>().unwrap();
    let age = Duration::from_secs(number(2));
    let mut store = match Store::open(Path::new(&args[1]), age, number(3)) {
        Ok(store) => store,
        Err(e) => {
            println!("{e:#}");
            std::process::exit(1);
        }
    };
    println!("open");
    for at in number(5)..number(5) + number(6) {
        let lost = store.counts().lost;
        store.put(synthetic_window(number(4), at));
        if store.counts().lost == lost {
            println!("{at}");
        } else {
            println!("lost {at}");
        }
    }
}
