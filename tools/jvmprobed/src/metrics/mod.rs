//! Metrics for scrapers.
//!
//! | module | content |
//! |---|---|
//! | [`figures`] | input of the totals: figures of a JVM, and of the daemon itself |
//! | [`histogram`] | durations, in classic and in native buckets |
//! | [`totals`] | totals of all metrics, with limits on their size |
//! | [`table`] | names, units, types and help texts of all metrics |
//! | [`families`] | the totals as a list of metrics, independent of the output format |
//! | [`semconv`] | metrics by OpenTelemetry's semantic conventions |
//! | [`encode`] | OpenMetrics, Prometheus's older text format and its protocol buffers |
//! | [`server`] | HTTP server |
//! | [`web_config`] | TLS and basic authentication, in the format of Prometheus' exporters |
//! | [`window_figures`] | figures computed from a window |
//!
//! This module adds up figures, and does not depend on how they were recorded.

pub mod encode;
pub mod families;
pub mod figures;
pub mod histogram;
pub mod semconv;
pub mod server;
pub mod table;
pub mod totals;
pub mod web_config;
pub mod window_figures;

pub use totals::{Limits, SharedTotals, Totals};

use std::{net::SocketAddr, path::PathBuf, str::FromStr};

use clap::ValueEnum;
use serde::Deserialize;

/// `[metrics]` in the configuration, and the options of the same names.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// Address and port of metrics, or `none`, as `--listen`.
    pub listen: Listen,
    /// Address and port of the health checks, or `none`, as `--health-listen`.
    pub health_listen: Option<Listen>,
    /// Web configuration file, as `--web-config`.
    pub web_config: Option<PathBuf>,
    /// Sets of metrics of JVMs, as `--metrics`.
    pub set: Option<Sets>,
}

/// The sets of metrics of JVMs that are exported, by OTLP and to scrapers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sets {
    /// Metrics of jvmprobe's own (`jvmprobe_*`).
    Jvmprobe,
    /// Metrics of OpenTelemetry's semantic conventions (`jvm_*`), and `jvmprobe_jvm_info`.
    Otel,
    /// Both.
    #[default]
    All,
}

/// Address and port of a listener; `None` if it is disabled.
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
                format!(
                    "{text:?}: expected an address and a port, for example 127.0.0.1:9464, or none"
                )
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
