//! Prints how many BPF programs, links and maps the kernel has: what is left over when no tool
//! runs any more.
#![allow(clippy::print_stdout, reason = "the figures are printed")]

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};

fn main() {
    println!(
        "{} programs, {} links, {} maps",
        ProgInfoIter::default().count(),
        LinkInfoIter::default().count(),
        MapInfoIter::default().count()
    );
}
