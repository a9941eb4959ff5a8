//! The web configuration in use: read again when one of its files changes.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::metrics::web_config::{Stamp, WebConfig, stamp};

/// Interval at which the files are checked for changes.
const CHECK: Duration = Duration::from_secs(1);

/// The web configuration in use.
#[derive(Debug, Default)]
pub struct Web {
    path: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    config: Arc<WebConfig>,
    stamps: Vec<Stamp>,
    checked: Option<Instant>,
}

fn stamps(config: &WebConfig) -> Vec<Stamp> {
    config.files.iter().map(|path| stamp(path)).collect()
}

impl Web {
    /// Reads a web configuration file. Without one, metrics are served by plain HTTP to every client.
    ///
    /// # Errors
    /// One line that says what is wrong with the file.
    pub fn open(path: Option<PathBuf>) -> Result<Self> {
        let config = path.as_deref().map(WebConfig::read).transpose()?.unwrap_or_default();
        let stamps = stamps(&config);
        let state = State { config: Arc::new(config), stamps, checked: None };
        Ok(Self { path, state: Mutex::new(state) })
    }

    /// Returns the configuration. If one of its files has changed, the configuration is read again; if that
    /// fails, the last valid one stays in use.
    pub fn current(&self) -> Arc<WebConfig> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.path else { return Arc::clone(&state.config) };
        if state.checked.is_some_and(|at| at.elapsed() < CHECK) {
            return Arc::clone(&state.config);
        }
        state.checked = Some(Instant::now());
        // The stamps are read before the files, so that a file that changes in between is read once more.
        let now = stamps(&state.config);
        if now != state.stamps {
            state.stamps = now;
            match WebConfig::read(path) {
                Ok(config) => {
                    if config.files != state.config.files {
                        state.stamps = stamps(&config);
                    }
                    state.config = Arc::new(config);
                    log::info!("reloaded the web configuration");
                }
                Err(error) => log::warn!(
                    "cannot reload the web configuration, keeping the previous one: {error:#}"
                ),
            }
        }
        Arc::clone(&state.config)
    }
}
