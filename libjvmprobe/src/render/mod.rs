//! Output: text for people, and formats for programs.
//!
//! | module | contents |
//! |---|---|
//! | [`output`] | a stream that is flushed line by line and detects a closed pipe |
//! | [`units`] | milliseconds, bytes, rates and shares, each with its unit |
//! | [`columns`] | names cut to a column width, sentences broken into lines |
//! | [`table`] | tables, and the format of times in them |
//! | [`files`](mod@files) | profile files in the formats given by their names |
//! | [`formats`](mod@formats) | definitions of the formats of profile files |
//! | [`page`] | the HTML format: a page with flame graph, time axis and methods |
//! | [`perfmap`](mod@perfmap) | perf-PID.map files |
//! | [`spans`] | profiles by span |
//! | [`stops`] | stops of applications, one row each |
//! | [`summary`] | summary of a profile |
//! | [`threads`] | thread dumps in jstack's format |

pub mod columns;
pub mod files;
pub mod formats;
pub mod output;
pub mod page;
pub mod perfmap;
pub mod spans;
pub mod stops;
pub mod summary;
pub mod table;
pub mod threads;
pub mod units;
