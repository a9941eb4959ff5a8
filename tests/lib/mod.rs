//! Helpers for tests of whole tools against real JVMs.
//!
//! | module | what it does |
//! |---|---|
//! | [`receiver`] | receives what jvmprobed pushes, and decodes it |
//! | [`runtimes`] | which Java runtimes and collectors there are |
//! | [`load`] | starts a Java load and steers it |
//! | [`allocated`] | what `AllocLoad` says that it has allocated |
//! | [`stackload`] | the same for the load that knows its own call graph |
//! | [`callgraph`] | whether stacks agree with that call graph |
//! | [`cgroup`] | control groups with limits |
//! | [`classfile`] | what class files say of who calls whom |
//! | [`calls`] | whether the calls on a profile's stacks are possible by that |
//! | [`programs`] | big Java programs to profile, and their class files |
//! | [`gclog`] | what the JVM's own log says: the truth to compare with |
//! | [`browser`] | a browser without a window |
//! | [`made_up`] | profiles that nobody took |
//! | [`bench`](mod@bench) | what benchmarks have in common |
//! | [`folded`] | folded stacks, read back |
//! | [`fake`] | fires HotSpot's probes faster than any JVM |
//! | [`container`] | a JVM as in a container |
//! | [`userns`] | a JVM in a user namespace |
//! | [`other`] | processes that are no load |
//! | [`page`] | the times that a page has, read back |
//! | [`bpf`] | what a tool holds of the kernel's BPF system |
//! | [`proc`] | what /proc tells of a process |
//! | [`pprof`] | a profile in pprof's format, read back |
//! | [`speedscope`] | a profile in speedscope's format, read back |
//! | [`tool`] | starts a tool and collects what it says |
//! | [`turn`] | which tests run at the same time |
//! | [`windows`] | windows of jvmprobed's that nobody took |

pub mod allocated;
pub mod attack;
pub mod bench;
pub mod bpf;
pub mod browser;
pub mod callgraph;
pub mod calls;
pub mod cgroup;
pub mod classfile;
pub mod container;
pub mod fake;
pub mod folded;
pub mod fuse;
pub mod gclog;
pub mod load;
pub mod made_up;
pub mod other;
pub mod page;
pub mod pprof;
pub mod proc;
pub mod programs;
pub mod receiver;
pub mod runtimes;
pub mod scrape;
pub mod speedscope;
pub mod stackload;
pub mod tool;
pub mod turn;
pub mod userns;
pub mod windows;

pub use turn::{beside_others, need_root};
