//! What a piece of code is called.
//!
//! | module | what it knows |
//! |---|---|
//! | [`code`] | a piece of generated code, and what was inlined into it |
//! | [`java`] | parameters of methods, as class files have them |
//! | [`demangle`](mod@demangle) | names that C++ and Rust compilers give |
//! | [`perfmap`] | perf-PID.map files |
//! | [`clean`] | words of others, made harmless |

pub mod clean;
pub mod code;
pub mod demangle;
pub mod java;
pub mod perfmap;
