//! What a scraper of metrics gets.
//!
//! | module | what it knows |
//! |---|---|
//! | [`figures`] | what is handed in: of a JVM, and of the daemon itself |
//! | [`histogram`] | durations, in classic and in native buckets |
//! | [`book`] | what has been added up, for how many JVMs, and for how long after their end |
//! | [`families`] | the book as a list of metrics, whatever they are written as |
//! | [`encode`] | OpenMetrics, Prometheus's older text and its protocol buffers |
//! | [`server`] | HTTP |
//! | [`web_config`] | TLS and basic authentication, in the format of Prometheus' exporters |
//! | [`taken`] | figures out of what was taken in a window |
//!
//! Counts are added up from what collection hands on; nothing here knows how it was taken.

pub mod book;
pub mod encode;
pub mod families;
pub mod figures;
pub mod histogram;
pub mod server;
pub mod taken;
pub mod web_config;

pub use book::{Book, Limits, SharedBook};

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use serde::Deserialize;

/// `[metrics]` in the configuration, and the options of the same names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Where metrics are served: an address with its port, or `none`.
    pub listen: Listen,
    /// Address of health, as `--health-listen`.
    pub health_listen: Option<Listen>,
    /// Web configuration file, as `--web-config`.
    pub web_config: Option<PathBuf>,
}

/// Where metrics are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen(pub Option<SocketAddr>);

impl Default for Listen {
    fn default() -> Self {
        Self(Some(server::DEFAULT_LISTEN))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|address| Self(Some(address))).map_err(|_| {
                format!("{text:?}: say an address and a port, for example 127.0.0.1:9464, or none")
            }),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
