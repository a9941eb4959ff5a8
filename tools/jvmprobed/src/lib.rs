//! Modules of jvmprobed(8).

pub mod args;
pub mod clock;
pub mod collect;
pub mod config;
pub mod hourly;
pub mod identity;
pub mod metrics;
pub mod net;
pub mod notify;
pub mod push;
pub mod remote;
pub mod settings;
pub mod show;
pub mod stops;
pub mod store;
pub mod suspects;
pub mod thread_dump;
pub mod window;
