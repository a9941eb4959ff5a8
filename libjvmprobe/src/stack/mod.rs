//! Stacks: walked stacks, names of their frames, and profiles.
//!
//! | module | contents |
//! |---|---|
//! | [`raw`] | stacks as the walker sends them, and why a walk ended |
//! | `frame` | a named frame |
//! | `record` | a frame in JSON lines and text |
//! | [`merging`] | merging profiles of successive periods |
//! | [`name`] | names of addresses: all sources behind one trait |
//! | [`code_log`] | history of a code cache |
//! | [`java_frames`] | names of Java frames |
//! | `kernel` | symbols of the kernel |
//! | `known_functions` | functions of files that were found before |
//! | [`native`] | symbols of ELF files |
//! | [`symbolizer`] | symbols of ELF files, read by a confined child |
//! | `thread_entry` | entry functions of threads |
//! | [`namer`] | stacks named one by one as they arrive |
//! | [`profile`] | samples with named stacks |
//! | [`span`] | trace contexts of samples |
//! | [`times`] | counts per time slot |
//! | [`timeline`] | the time axis of a profile in a file |
//! | [`waiting`] | placeholder frames of threads that do not run |
//!
//! *Walking* happens in the kernel or, for sleeping threads, in [`crate::bpf::user_walker`], and yields
//! [`raw::RawStack`]s; *naming* happens here. Java frames are named as soon as they are received
//! ([`crate::stack::java_frames`]), which turns a raw stack into a [`raw::Stack`]; the remaining addresses go
//! through [`name`]. The walker does not depend on names, so that walking and naming can be replaced
//! separately.

pub mod code_log;
pub(crate) mod frame;
pub mod java_frames;
mod kernel;
mod known_functions;
pub mod merging;
pub mod name;
pub mod namer;
pub mod native;
pub mod profile;
pub mod raw;
mod record;
pub mod span;
pub mod symbolizer;
pub(crate) mod thread_entry;
pub mod timeline;
pub mod times;
pub mod waiting;

pub use frame::{Frame, Kind};
pub(crate) use raw::CodeLocation;
pub use raw::Stack;
pub(crate) use raw::WalkEnd;
pub use record::StackFrame;
