//! Prints the numbers of BPF programs, links and maps in the kernel. The smoke test compares them before
//! and after the tools have run, to find objects that were left over.
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
