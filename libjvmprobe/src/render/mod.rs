//! Turning numbers into text: for people, and for programs that read pipes.
//!
//! | module | what it makes |
//! |---|---|
//! | [`output`] | a stream that is flushed line by line and knows a closed pipe |
//! | [`units`] | milliseconds, bytes, rates, shares, each with its unit |
//! | [`columns`] | names cut to a column, sentences broken into lines |
//! | [`table`] | tables, and how times stand in them |
//! | [`histogram`] | log2 histograms as bcc's tools print them |
//! | [`files`](mod@files) | files with profiles, in the format of their names |
//! | [`folded`] | folded stacks |
//! | [`flamegraph`] | flame graphs, also of differences |
//! | [`perfmap`](mod@perfmap) | perf-PID.map files |
//! | [`pprof`] | pprof's format |
//! | [`speedscope`] | speedscope's format |
//! | [`stack`] | frames as JSON lines show them |

pub mod columns;
pub mod files;
pub mod flamegraph;
pub mod folded;
pub mod histogram;
pub mod output;
pub mod perfmap;
pub mod pprof;
pub mod speedscope;
pub mod stack;
pub mod table;
pub mod units;
