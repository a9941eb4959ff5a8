//! The configuration file, in TOML. All keys are optional. An unknown key is an error, because it may be a
//! spelling mistake.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use libjvmprobe::jvms::known_attributes;
use regex::Regex;
use serde::{Deserialize, Deserializer, de::Error};

use crate::{
    args::{Log, parse_min_wait, parse_window},
    metrics,
    push::target,
    store::folder::parse_mode,
};

/// Default path of the configuration file.
pub const PATH: &str = "/etc/jvmprobe/jvmprobed.toml";

/// Maximum size of the file, in bytes. No real configuration file is that large.
const MAX_BYTES: u64 = 1 << 20;

/// Content of the file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Log format, as `--log`.
    pub log: Option<Log>,
    /// Attributes that rules may use, in addition to the known ones.
    #[serde(default)]
    pub attributes: Vec<String>,
    /// Settings of the store.
    #[serde(default)]
    pub store: StoreSection,
    /// Settings of tracing and its cost.
    #[serde(default)]
    pub take: TakeSection,
    /// Settings of the metrics server.
    #[serde(default)]
    pub metrics: metrics::Options,
    /// Push targets.
    #[serde(default, rename = "push")]
    pub targets: Vec<target::Options>,
    /// Rules that select and rename JVMs, applied in this order.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// `[store]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StoreSection {
    /// Directory, as `--dir`.
    pub dir: Option<PathBuf>,
    /// Maximum age of windows, as `--keep`.
    #[serde(default, deserialize_with = "age")]
    pub keep: Option<Duration>,
    /// Maximum size of the store in bytes, as `--keep-size`.
    #[serde(default, deserialize_with = "size")]
    pub keep_size: Option<u64>,
    /// Permission bits of the directory. They decide which other users may read it.
    #[serde(default, deserialize_with = "mode")]
    pub mode: Option<u32>,
}

/// `[take]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TakeSection {
    /// CPU samples per second, as `--frequency`.
    pub frequency: Option<u64>,
    /// Whether off-CPU time is traced, as `--off-cpu`.
    #[serde(default)]
    pub off_cpu: bool,
    /// Minimum length of traced waits, as `--waits`. Without it, waits are not traced.
    #[serde(default, deserialize_with = "min_wait")]
    pub waits: Option<Duration>,
    /// Whether allocation is traced.
    pub allocation: Option<bool>,
    /// Length of a window, as `--window`.
    #[serde(default, deserialize_with = "window")]
    pub window: Option<Duration>,
    /// Time without progress after which a thread dump is stored, as `--thread-dumps`.
    #[serde(default, deserialize_with = "age")]
    pub thread_dumps: Option<Duration>,
    /// Memory limit in bytes, as `--max-memory`.
    #[serde(default, deserialize_with = "size")]
    pub max_memory: Option<u64>,
    /// CPU limit in percent of one processor, as `--max-cpu`.
    pub max_cpu: Option<f64>,
}

/// `[[rule]]`: an action on JVMs whose attributes all match.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// Action to take.
    pub action: Action,
    /// Regular expressions by attribute name. A missing attribute counts as empty.
    #[serde(default)]
    pub when: BTreeMap<String, Pattern>,
    /// New name, for renaming rules. `$1` is replaced by the first capture group of the expression for
    /// `service.name`.
    pub to: Option<String>,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Changes `service.name`.
    Rename,
    /// Does not trace the JVM.
    Drop,
    /// Traces the JVM. If there are rules with this action, a JVM that matches none of them is not traced.
    Select,
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(pub Regex);

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // The regex crate's message is not used, because it has several lines.
        let wrong = |_| D::Error::custom(format!("`{text}` is not a valid regular expression"));
        Regex::new(&text).map(Self).map_err(wrong)
    }
}

fn age<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parse_age(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn min_wait<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parse_min_wait(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn window<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    parse_window(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

fn size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(from)?;
    libjvmprobe::cli::parse_bytes(&text).map(Some).map_err(D::Error::custom)
}

fn mode<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    parse_mode(&String::deserialize(from)?).map(Some).map_err(D::Error::custom)
}

/// Parses a duration with its unit: `90s`, `10m`, `24h`, `7d`. The duration must be from one second to 366
/// days.
pub fn parse_age(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(seconds)
    });
    seconds
        .filter(|&seconds| (1..=366 * 86_400).contains(&seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| "expected a time, for example 90s, 10m, 24h or 7d".into())
}

impl Config {
    /// Reads the given file. Without one, reads [`PATH`], which may be missing.
    ///
    /// # Errors
    /// A line that says what is wrong and where.
    pub fn read(given: Option<&Path>) -> Result<Self> {
        let path = given.unwrap_or(Path::new(PATH));
        let shown = path.display();
        let file = match File::open(path) {
            Err(e) if given.is_none() && e.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            file => file.with_context(|| format!("cannot read {shown}"))?,
        };
        let mut text = String::new();
        file.take(MAX_BYTES)
            .read_to_string(&mut text)
            .with_context(|| format!("cannot read {shown}"))?;
        Self::parse(&text).with_context(|| shown.to_string())
    }

    /// Parses the text of a configuration file.
    ///
    /// # Errors
    /// A line that says what is wrong and where.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = match toml::from_str(text) {
            Ok(config) => config,
            Err(e) => {
                let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
                let line = before.matches('\n').count() + 1;
                bail!("line {line}: {}", e.message().replace('\n', " "));
            }
        };
        if config.take.frequency.is_some_and(|hertz| !(1..=999).contains(&hertz)) {
            bail!("[take] frequency: expected 1 to 999 samples per second");
        }
        if config.take.max_cpu.is_some_and(|percent| !(0.01..=100_000.0).contains(&percent)) {
            bail!("[take] max-cpu: expected a percentage of one CPU");
        }
        for (number, rule) in (1..).zip(&config.rules) {
            match (rule.action, &rule.to) {
                (Action::Rename, None) => {
                    bail!("rule {number}: `to` is missing: specify the new name")
                }
                (Action::Drop | Action::Select, Some(_)) => {
                    bail!("rule {number}: `to` is only valid if `action` is \"rename\"")
                }
                _ => {}
            }
            if rule.when.is_empty() {
                bail!("rule {number}: `when` is missing: specify which JVMs the rule applies to");
            }
            let is_known = |key: &str| {
                known_attributes().any(|known| known == key)
                    || config.attributes.iter().any(|known| known == key)
            };
            if let Some(key) = rule.when.keys().find(|key| !is_known(key)) {
                let mut known: Vec<_> = known_attributes().collect();
                known.sort_unstable();
                bail!(
                    "rule {number}: unknown attribute `{key}`; if your JVMs set it in \
                     OTEL_RESOURCE_ATTRIBUTES, add `attributes = [\"{key}\"]`; known attributes: {}",
                    known.join(", ")
                );
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_parsed() {
        let config = Config::parse(
            "[take]\nwaits = \"2ms\"\nwindow = \"30s\"\n[store]\ndir = \"/srv/x\"\nkeep = \"7d\"\nkeep-size = \"2G\"\nmode = \"0750\"\n\
             [[rule]]\naction = \"rename\"\nwhen = { \"service.name\" = \"^com\\\\.(.*)$\" }\nto = \"$1\"\n",
        );
        let config = config.unwrap();
        assert_eq!(config.take.waits, Some(Duration::from_millis(2)));
        assert_eq!(config.take.window, Some(Duration::from_secs(30)));
        assert_eq!(config.store.keep, Some(Duration::from_secs(7 * 86_400)));
        assert_eq!((config.store.keep_size, config.store.mode), (Some(2 << 30), Some(0o750)));
        assert_eq!(config.rules[0].action, Action::Rename);
        assert!(Config::parse("").unwrap().rules.is_empty());
        let own = "attributes = [\"team\"]\n[[rule]]\naction = \"drop\"\nwhen = { team = \"^x$\" }";
        assert_eq!(Config::parse(own).unwrap().rules.len(), 1);
    }

    #[test]
    fn parse_errors_name_the_line_and_key() {
        for (text, words) in [
            ("[store]\n\nkep = \"1h\"", &["line 3", "unknown field `kep`", "`keep`"][..]),
            ("[stor]\nkeep = \"1h\"", &["line 1", "unknown field `stor`"]),
            ("[store]\nkeep = \"1 hour\"", &["line 2", "24h"]),
            ("[take]\nwaits = \"0\"", &["line 2", "100us"]),
            ("[take]\nwindow = \"90s\"", &["line 2", "5s to 60s"]),
            ("[store]\nmode = \"0777\"", &["line 2", "0750"]),
            ("[store]\nkeep-size = 5", &["line 2", "string"]),
            ("[store\n", &["line 1"]),
            ("\n[[rule]]\naction = \"take\"", &["line 3", "`take`", "`select`"]),
            ("[[rule]]\naction = \"drop\"\nwhen = { a = \"(\" }", &["line 3", "`(`"]),
            ("[[rule]]\naction = \"drop\"", &["rule 1", "`when`"]),
            ("[[rule]]\naction = \"rename\"\nwhen = { a = \"b\" }", &["rule 1", "`to`"]),
            ("[[rule]]\naction = \"drop\"\nto = \"x\"\nwhen = { a = \"b\" }", &["rule 1", "`to`"]),
            (
                "[[rule]]\naction = \"drop\"\nwhen = { \"service.nam\" = \"b\" }",
                &["rule 1", "`service.nam`", "service.name,", "attributes = [\"service.nam\"]"],
            ),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn ages_require_a_unit() {
        assert_eq!(parse_age("10m"), Ok(Duration::from_secs(600)));
        for bad in ["", "10", "m", "-1m", "0s", "10 m", "1.5h", "99999999999999999d", "400d"] {
            assert!(parse_age(bad).is_err(), "{bad}");
        }
    }
}
