//! Collection of data from all JVMs of the host, window by window.
//!
//! | module | content |
//! |---|---|
//! | [`tracers`] | threads of the library's tracers |
//! | [`batch`] | batches that the tracers deliver |
//! | [`jvms`] | the running JVMs and their identities |
//! | [`limit_log`] | log lines about tenants that exceed their share |
//! | [`values`] | values of the semantic conventions' metrics |
//! | [`window_builder`] | builds windows out of batches, and adds them to the totals |
//! | [`costs`] | CPU time and memory that the daemon has used, by measure |
//! | [`ladder`] | the set of collected measures, and its reductions |
//! | [`saving`] | keeps CPU time and memory within limits by reducing what is collected |
//! | [`stalls`] | thread dumps of JVMs with a deadlock or without progress |
//! | [`waits`] | adds up waits by window, JVM, kind and stack |
//! | [`watchdog`] | whether the tracers report at the end of each window |
//! | [`window_worker`] | worker thread that passes windows on to the store and to push targets |
//! | [`signals`] | requests received as signals |
//! | [`daemon`] | the main loop |

pub mod batch;
pub mod costs;
pub mod daemon;
pub mod jvms;
pub mod ladder;
pub mod limit_log;
pub mod saving;
pub mod signals;
pub mod stalls;
pub mod tracers;
pub mod values;
pub mod waits;
pub mod watchdog;
pub mod window_builder;
pub mod window_worker;
