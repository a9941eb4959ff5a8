//! Turning numbers into text: for people, and for programs that read pipes.
//!
//! | module | what it makes |
//! |---|---|
//! | [`output`] | a stream that is flushed line by line and knows a closed pipe |
//! | [`units`] | milliseconds, bytes, rates, shares, each with its unit |
//! | [`histogram`] | log2 histograms as bcc's tools print them |

pub mod histogram;
pub mod output;
pub mod units;
