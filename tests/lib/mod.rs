//! Helpers for tests of whole tools against real JVMs.
//!
//! | module | what it does |
//! |---|---|
//! | [`runtimes`] | which Java runtimes and collectors there are |
//! | [`load`] | starts a Java load and steers it |
//! | [`allocated`] | what `AllocLoad` says that it has allocated |
//! | [`stackload`] | the same for the load that knows its own call graph |
//! | [`callgraph`] | whether stacks agree with that call graph |
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
//! | [`bpf`] | what a tool holds of the kernel's BPF system |
//! | [`proc`] | what /proc tells of a process |
//! | [`pprof`] | a profile in pprof's format, read back |
//! | [`speedscope`] | a profile in speedscope's format, read back |
//! | [`tool`] | starts a tool and collects what it says |

pub mod allocated;
pub mod bench;
pub mod bpf;
pub mod browser;
pub mod callgraph;
pub mod calls;
pub mod classfile;
pub mod container;
pub mod fake;
pub mod folded;
pub mod gclog;
pub mod load;
pub mod made_up;
pub mod other;
pub mod pprof;
pub mod proc;
pub mod programs;
pub mod runtimes;
pub mod speedscope;
pub mod stackload;
pub mod tool;
pub mod userns;

/// Fails a test that this machine cannot run: a test that does nothing must not pass.
///
/// # Panics
/// Without root.
pub fn need_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test attaches BPF programs: run it as root (sudo make test)"
    );
}
