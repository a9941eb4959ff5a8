//! Push targets: `pyroscope=URL`, `otlp=URL` or `dir=PATH`, with their options.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::Read,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use reqwest::Url;
use serde::{Deserialize, Deserializer, de::Error};

use crate::config::parse_age;

/// Maximum size of a file with a secret, in bytes. Its content is one line.
const MAX_SECRET: u64 = 64 << 10;

/// Options of a target in the configuration file (`[[push]]`). The command line (`--push`) gives the address
/// only; the other options then have their defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Options {
    /// `pyroscope=URL`, `otlp=URL` (http, https, grpc or grpcs) or `dir=PATH`.
    pub to: Address,
    /// Headers of each request; metadata for gRPC.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are read from files.
    #[serde(default)]
    pub header_files: BTreeMap<String, PathBuf>,
    /// File with `user:password`. Files with secrets are read again for each request.
    pub basic_auth_file: Option<PathBuf>,
    /// File with a bearer token.
    pub bearer_token_file: Option<PathBuf>,
    /// File with certificates (PEM) that are trusted in addition to those of the host.
    pub ca_file: Option<PathBuf>,
    /// File with the client certificate and its key (PEM), if the target requires one.
    pub client_cert_file: Option<PathBuf>,
    /// URL of a proxy (http, https, socks5 or socks5h), or `none`. By default, `HTTPS_PROXY`, `HTTP_PROXY`,
    /// `ALL_PROXY` and `NO_PROXY` apply.
    pub proxy: Option<String>,
    /// Maximum time of a request, for example `30s`.
    #[serde(default = "thirty_seconds", deserialize_with = "seconds")]
    pub timeout: Duration,
    /// Maximum size of the queue on disk, for example `64M`. The oldest entries beyond it are dropped and counted.
    #[serde(default = "sixty_four_megabytes", deserialize_with = "bytes")]
    pub queue_size: u64,
    /// Whether metrics are pushed, too (`otlp` only).
    #[serde(default = "yes")]
    pub metrics: bool,
}

fn thirty_seconds() -> Duration {
    Duration::from_secs(30)
}

fn sixty_four_megabytes() -> u64 {
    64 << 20
}

fn yes() -> bool {
    true
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
    let time = parse_age(&String::deserialize(from)?).ok().filter(|&time| time <= MAX_TIMEOUT);
    time.ok_or_else(|| D::Error::custom("expected a time of at most one hour, for example 30s"))
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    libjvmprobe::cli::parse_bytes(&text).map_err(D::Error::custom)
}

impl Options {
    /// Returns the default options of a target.
    pub fn new(to: Address) -> Self {
        Self {
            to,
            headers: BTreeMap::new(),
            header_files: BTreeMap::new(),
            basic_auth_file: None,
            bearer_token_file: None,
            ca_file: None,
            client_cert_file: None,
            proxy: None,
            timeout: thirty_seconds(),
            queue_size: sixty_four_megabytes(),
            metrics: true,
        }
    }

    /// Returns a warning if secrets are sent over a network without TLS.
    pub fn insecurity_warning(&self) -> Option<String> {
        let url = self.to.url().filter(|url| url.scheme() == "http" && !is_loopback(url))?;
        let is_secret = |name: &String| {
            let names = ["authorization", "proxy-authorization", "cookie"];
            names.iter().any(|secret| name.eq_ignore_ascii_case(secret))
        };
        let has_secret = self.basic_auth_file.is_some()
            || self.bearer_token_file.is_some()
            || !self.header_files.is_empty()
            || self.headers.keys().any(is_secret);
        has_secret.then(|| {
            let secure = if matches!(self.to, Address::OtlpGrpc(_)) { "grpcs" } else { "https" };
            format!(
                "{}: sending secrets unencrypted to {}; use {secure}://",
                self.to,
                url.host_str().unwrap_or_default()
            )
        })
    }

    /// Returns the headers of a request, with secrets read from their files now.
    ///
    /// # Errors
    /// A file cannot be read, or its content cannot be a header.
    pub fn read_headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>> {
        let mut all = Vec::new();
        for (name, value) in &self.headers {
            all.push((name_of(name)?, plain(name, value)?));
        }
        for (name, file) in &self.header_files {
            all.push((name_of(name)?, secret(name, &read_secret(file)?)?));
        }
        if let Some(file) = &self.basic_auth_file {
            let user = read_secret(file)?;
            ensure!(user.contains(':'), "{}: expected user:password", file.display());
            let text = format!("Basic {}", STANDARD.encode(user));
            all.push((http::header::AUTHORIZATION, secret("basic", &text)?));
        }
        if let Some(file) = &self.bearer_token_file {
            let text = format!("Bearer {}", read_secret(file)?);
            all.push((http::header::AUTHORIZATION, secret("bearer", &text)?));
        }
        Ok(all)
    }
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

fn name_of(name: &str) -> Result<HeaderName> {
    name.parse().with_context(|| format!("{name:?} is not a valid header name"))
}

fn plain(name: &str, value: &str) -> Result<HeaderValue> {
    value.parse().with_context(|| format!("the value of {name} is not a valid header value"))
}

/// Returns a header value that is never shown in messages.
fn secret(name: &str, value: &str) -> Result<HeaderValue> {
    let mut value = plain(name, value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns the content of a file without surrounding whitespace.
fn read_secret(path: &Path) -> Result<String> {
    let mut text = String::new();
    let at = || format!("cannot read {}", path.display());
    File::open(path)
        .with_context(at)?
        .take(MAX_SECRET)
        .read_to_string(&mut text)
        .with_context(at)?;
    let text = text.trim().to_owned();
    ensure!(!text.is_empty(), "{} is empty", path.display());
    Ok(text)
}

/// Address of a target.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// Pyroscope's push API.
    Pyroscope(Url),
    /// OTLP over HTTP.
    OtlpHttp(Url),
    /// OTLP over gRPC; the URL's scheme is http or https.
    OtlpGrpc(Url),
    /// A directory for pprof files.
    Dir(PathBuf),
}

impl FromStr for Address {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let hint = "use pyroscope=URL, otlp=URL or dir=PATH";
        let Some((kind, rest)) = text.split_once('=') else { bail!("{text:?}: {hint}") };
        match kind {
            "pyroscope" => Ok(Self::Pyroscope(url(rest)?)),
            "otlp" => match rest.strip_prefix("grpc") {
                Some(rest) if rest.starts_with("://") || rest.starts_with("s://") => {
                    Ok(Self::OtlpGrpc(url(&format!("http{rest}"))?))
                }
                _ => Ok(Self::OtlpHttp(url(rest)?)),
            },
            "dir" => {
                ensure!(!rest.is_empty(), "dir= needs a directory");
                Ok(Self::Dir(rest.into()))
            }
            _ => bail!("unknown kind of target {kind:?}: {hint}"),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

fn url(text: &str) -> Result<Url> {
    let url: Url = text.parse().with_context(|| format!("{text:?} is not a URL"))?;
    ensure!(
        matches!(url.scheme(), "http" | "https") && url.has_host(),
        "{text:?}: use http://HOST or https://HOST; for OTLP also grpc:// and grpcs://"
    );
    ensure!(
        url.username().is_empty() && url.password().is_none(),
        "a URL is visible to all users: write user:password into a file, see basic-auth-file"
    );
    ensure!(
        url.query().is_none() && url.fragment().is_none(),
        "{text:?}: the URL of a target cannot have a query or a fragment"
    );
    Ok(url)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pyroscope(url) => write!(f, "pyroscope={url}"),
            Self::OtlpHttp(url) => write!(f, "otlp={url}"),
            Self::OtlpGrpc(url) => {
                write!(f, "otlp=grpc{}", url.as_str().strip_prefix("http").unwrap_or(""))
            }
            Self::Dir(path) => write!(f, "dir={}", path.display()),
        }
    }
}

impl Address {
    /// Returns the URL of a target that is reached by HTTP.
    fn url(&self) -> Option<&Url> {
        match self {
            Self::Pyroscope(url) | Self::OtlpHttp(url) | Self::OtlpGrpc(url) => Some(url),
            Self::Dir(_) => None,
        }
    }

    /// Returns the name of the directory for the target's queue. The name begins with the address, so that
    /// people recognize the target. It ends with a checksum, so that different targets have different names.
    pub fn folder(&self) -> String {
        let text = self.to_string();
        let mut crc = flate2::Crc::new();
        crc.update(text.as_bytes());
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let short: String = text.chars().map(safe).take(60).collect();
        format!("{short}-{:08x}", crc.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<Address> {
        text.parse()
    }

    #[test]
    fn addresses_are_parsed_and_displayed() {
        for (text, shown) in [
            ("pyroscope=http://p:4040", "pyroscope=http://p:4040/"),
            ("otlp=https://c:4318/base", "otlp=https://c:4318/base"),
            ("otlp=grpc://c:4317", "otlp=grpc://c:4317/"),
            ("otlp=grpcs://c:4317", "otlp=grpcs://c:4317/"),
            ("dir=/var/tmp/x=y", "dir=/var/tmp/x=y"),
        ] {
            assert_eq!(address(text).unwrap().to_string(), shown);
        }
        assert!(matches!(address("otlp=grpcs://c:1").unwrap(),
            Address::OtlpGrpc(url) if url.scheme() == "https"));
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_hint() {
        for (text, hint) in [
            ("http://p:4040", "pyroscope=URL"),
            ("loki=http://p", "unknown kind of target"),
            ("otlp=localhost:4318", "http://HOST"),
            ("otlp=ftp://c", "http://HOST"),
            ("pyroscope=http://me:secret@p", "file"),
            ("pyroscope=http://p?tenant=1", "a query or a fragment"),
            ("dir=", "directory"),
        ] {
            let error = format!("{:#}", address(text).unwrap_err());
            assert!(error.contains(hint), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn target_table_is_parsed_and_validated() {
        let read = serde_json::from_str::<Options>;
        let options = read(
            r#"{"to": "otlp=http://c", "timeout": "2m", "queue-size": "256M", "metrics": false}"#,
        );
        let options = options.unwrap();
        assert_eq!((options.timeout.as_secs(), options.queue_size), (120, 256 << 20));
        for (text, words) in [
            (r#"{"to": "otlp=http://c", "timeout": "2"}"#, "30s"),
            (r#"{"to": "otlp=http://c", "timeout": "99999999999999999999m"}"#, "30s"),
            (r#"{"to": "otlp=c"}"#, "is not a URL"),
            (r#"{"to": "dir=/x", "tiemout": "2s"}"#, "unknown field"),
            (r#"{"timeout": "2s"}"#, "`to`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn secrets_over_plain_http_are_warned_about() {
        let with = |to: &str, set: fn(&mut Options)| {
            let mut options = Options::new(address(to).unwrap());
            set(&mut options);
            options.insecurity_warning()
        };
        let token: fn(&mut Options) = |options| options.bearer_token_file = Some("/t".into());
        let header: fn(&mut Options) =
            |options| _ = options.headers.insert("Authorization".into(), "Basic eA==".into());
        let file: fn(&mut Options) =
            |options| _ = options.header_files.insert("X-Key".into(), "/k".into());
        for secret in [token, header, file, |options| options.basic_auth_file = Some("/b".into())] {
            let warning = with("pyroscope=http://p.example:4040", secret).unwrap();
            assert!(warning.contains("p.example") && warning.contains("https://"), "{warning}");
        }
        assert!(with("otlp=grpc://10.0.0.1:4317", token).unwrap().contains("grpcs://"));
        for to in [
            "pyroscope=https://p.example",
            "otlp=grpcs://p.example",
            "otlp=http://localhost:4318",
            "otlp=grpc://127.0.0.9:4317",
            "otlp=http://[::1]:4318",
            "dir=/srv/x",
        ] {
            assert_eq!(with(to, token), None, "{to}");
        }
        let plain: fn(&mut Options) =
            |options| _ = options.headers.insert("X-Scope-OrgID".into(), "a".into());
        assert_eq!(with("pyroscope=http://p.example", plain), None);
    }

    #[test]
    fn credentials_are_read_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("auth");
        std::fs::write(&file, "Aladdin:open sesame\n").unwrap();
        let mut options = Options::new(address("otlp=http://c").unwrap());
        options.basic_auth_file = Some(file.clone());
        let (_, value) = options.read_headers().unwrap().remove(0);
        // RFC 7617's own example.
        assert_eq!(value.to_str().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(value.is_sensitive());
        std::fs::write(&file, "").unwrap();
        assert!(options.read_headers().is_err());
    }
}
