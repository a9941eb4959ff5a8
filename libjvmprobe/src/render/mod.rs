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
//! | [`formats`](mod@formats) | these formats |
//! | [`page`] | one of these: a page with flame graph, time axis and methods |
//! | [`perfmap`](mod@perfmap) | perf-PID.map files |
//! | [`stack`] | frames as JSON lines show them |
//! | [`stops`] | stops of applications, a row each |
//! | [`summary`] | a profile at a glance |

pub mod columns;
pub mod files;
pub mod formats;
pub mod histogram;
pub mod output;
pub mod page;
pub mod perfmap;
pub mod stack;
pub mod stops;
pub mod summary;
pub mod table;
pub mod units;
