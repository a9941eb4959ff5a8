//! Helpers for tests of whole tools against real JVMs.
//!
//! | module | what it does |
//! |---|---|
//! | [`prometheus`] | runs Prometheus and its tools |
//! | [`manifests`] | renders and checks Kubernetes manifests |
//! | [`receiver`] | receives and decodes the requests that jvmprobed pushes |
//! | [`runtimes`] | Java runtimes and their collectors |
//! | [`load`] | starts and controls a Java load program |
//! | [`allocated`] | allocation that `AllocLoad` reports |
//! | [`stackload`] | starts and controls `StackLoad`, a load with a known call graph |
//! | [`callgraph`] | checks stacks against that call graph |
//! | [`cgroup`] | control groups with limits |
//! | [`cluster`] | a Kubernetes cluster of one node, and kubectl |
//! | [`classfile`] | calls that class files contain |
//! | [`calls`] | checks the calls on a profile's stacks against class files |
//! | [`programs`] | large Java programs to profile, and their class files |
//! | [`gclog`] | parser for the JVM's own log, used as reference |
//! | [`browser`] | a headless browser |
//! | [`synthetic`] | synthetic profiles |
//! | [`bench`](mod@bench) | helpers for benchmarks |
//! | [`folded`] | parser for folded stacks |
//! | [`fake`] | fires HotSpot's probes faster than any JVM |
//! | [`container`] | a JVM in a container |
//! | [`pod`] | a pod as its node sees it |
//! | [`userns`] | a JVM in a user namespace |
//! | [`child_process`] | processes other than load programs |
//! | [`attack`] | hostile processes, to test the daemon's limits |
//! | [`fuse`] | a FUSE server that stops answering |
//! | [`scrape`] | reads the metrics of a running jvmprobed |
//! | [`page`] | parser for the timelines in javaprof's page |
//! | [`bpf`] | BPF objects that a process holds |
//! | [`proc`] | process data from /proc |
//! | [`pprof`] | parser for profiles in the pprof format |
//! | [`jfr`] | reads recordings with the JDK's `jfr` command |
//! | [`speedscope`] | parser for profiles in the speedscope format |
//! | [`tool`] | starts a tool and reads its output |
//! | [`turn`] | which tests may run at the same time |
//! | [`windows`] | synthetic jvmprobed windows |

pub mod allocated;
pub mod attack;
pub mod bench;
pub mod bpf;
pub mod browser;
pub mod callgraph;
pub mod calls;
pub mod cgroup;
pub mod child_process;
pub mod classfile;
pub mod cluster;
pub mod container;
pub mod fake;
pub mod folded;
pub mod fuse;
pub mod gclog;
pub mod jfr;
pub mod load;
pub mod manifests;
pub mod page;
pub mod pod;
pub mod pprof;
pub mod proc;
pub mod programs;
pub mod prometheus;
pub mod receiver;
pub mod runtimes;
pub mod scrape;
pub mod speedscope;
pub mod stackload;
pub mod synthetic;
pub mod tool;
pub mod turn;
pub mod userns;
pub mod windows;

pub use turn::{run_alone, run_beside_others};

/// Returns how many times longer than a real machine this one needs for the same work: 1, or the number in the environment
/// variable `JVMPROBE_SLOWNESS`, which is set on emulated machines.
pub fn slowness() -> f64 {
    std::env::var("JVMPROBE_SLOWNESS").ok().and_then(|n| n.parse().ok()).unwrap_or(1.0)
}
