//! Web configuration file: TLS and basic authentication, in the format of Prometheus's exporters.
//!
//! Source: <https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>. If the
//! file sets an option of this format that jvmprobed does not support, reading fails with an error that names
//! the option. jvmprobed does not ignore the option, because the user relies on it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use bcrypt::HashParts;
use http::{HeaderName, HeaderValue};
use rustls::{
    NamedGroup, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};
use serde::{Deserialize, de::IgnoredAny};

/// Maximum size of the file, of a certificate file and of a key file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum cost of a bcrypt hash. Checking a password against a hash of this cost takes about 4 s of CPU
/// time.
const MAX_COST: u32 = 16;
/// Maximum number of users.
const MAX_USERS: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Format {
    tls_server_config: Option<Tls>,
    http_server_config: Option<Http>,
    basic_auth_users: Option<BTreeMap<String, String>>,
    rate_limit: Option<IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Tls {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    client_auth_type: Option<String>,
    client_allowed_sans: Option<IgnoredAny>,
    min_version: Option<String>,
    max_version: Option<String>,
    cipher_suites: Option<Vec<String>>,
    prefer_server_cipher_suites: Option<bool>,
    curve_preferences: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Http {
    http2: Option<bool>,
    headers: Option<BTreeMap<String, String>>,
}

/// Headers that may be set, with their allowed values; an empty list allows any value.
const HEADERS: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("Strict-Transport-Security", &[]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-XSS-Protection", &[]),
];

/// A validated web configuration, with the certificates that it names. The default is plain HTTP without
/// authentication.
#[derive(Clone, Debug, Default)]
pub struct WebConfig {
    /// TLS settings; `None` for plain HTTP.
    pub tls: Option<Arc<ServerConfig>>,
    /// bcrypt hashes by user name; empty if no authentication is required.
    pub users: BTreeMap<String, String>,
    /// Headers of each answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Files that the configuration was read from.
    pub files: Vec<PathBuf>,
}

/// Identity and modification time of a file, which change when the file is written or replaced.
pub type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Returns the identity and modification time of a file; `None` if it does not exist.
pub fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

impl WebConfig {
    /// Reads a web configuration file and the files that it names. Relative paths in it start at the
    /// directory of the web configuration file.
    ///
    /// # Errors
    /// One line that says what is wrong in which file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut config = Self::parse(&text, folder).with_context(|| path.display().to_string())?;
        config.files.insert(0, path.to_owned());
        Ok(config)
    }

    /// Parses the text of a web configuration file; relative paths in it start at `folder`.
    ///
    /// # Errors
    /// One line that says what is wrong.
    pub fn parse(text: &str, folder: &Path) -> Result<Self> {
        // A file without any key is null in YAML, so the result is optional.
        let options = serde_saphyr::options! { with_snippet: false };
        let format: Option<Format> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let line = error.location().map(|location| location.line());
                let at = line.map_or_else(String::new, |line| format!("line {line}: "));
                let text = error.without_snippet().to_string();
                // The parser's message ends with its own description of the position, which is cut off.
                let text = text.lines().next().unwrap_or_default();
                anyhow::anyhow!("{at}{}", text.split(" at line ").next().unwrap_or(text))
            })?;
        let format = format.unwrap_or_default();
        ensure!(
            format.rate_limit.is_none(),
            unsupported("rate_limit", "CPU time is always limited")
        );
        let mut config = Self::default();
        let http = format.http_server_config.unwrap_or_default();
        ensure!(
            http.http2 != Some(true),
            unsupported("http_server_config: http2: true", "only HTTP/1.1 is served")
        );
        for (name, value) in http.headers.unwrap_or_default() {
            config.headers.push(header(&name, &value)?);
        }
        config.users = format.basic_auth_users.unwrap_or_default();
        ensure!(config.users.len() <= MAX_USERS, "basic_auth_users: at most {MAX_USERS} users");
        for (user, hash) in &config.users {
            let user = user.escape_debug();
            ensure!(
                !user.clone().any(|c| c == ':'),
                "basic_auth_users: {user}: a name cannot contain a colon"
            );
            let parts = HashParts::from_str(hash);
            let parts = parts.ok().filter(|_| hash.len() == 60).with_context(|| {
                format!(
                    "basic_auth_users: {user}: not a bcrypt hash; create one with `htpasswd -nBC \
                     10`"
                )
            })?;
            ensure!(
                (4..=MAX_COST).contains(&parts.get_cost()),
                "basic_auth_users: {user}: the cost of the hash is {}, at most {MAX_COST} is allowed",
                parts.get_cost()
            );
        }
        if let Some(tls) = format.tls_server_config {
            let loaded = tls.load(folder, &mut config.files).context("tls_server_config")?;
            config.tls = Some(Arc::new(loaded));
        }
        Ok(config)
    }
}

fn unsupported(option: &str, why: &str) -> String {
    format!("{option} is not supported: {why}; remove it")
}

/// Returns the text of a file of at most [`MAX_BYTES`].
fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut text = String::new();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    ensure!(
        file.metadata().is_ok_and(|file| file.is_file()),
        "cannot read {shown}: not a regular file"
    );
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    let length = read.with_context(|| format!("cannot read {shown}"))?;
    ensure!(length as u64 <= MAX_BYTES, "cannot read {shown}: longer than {MAX_BYTES} bytes");
    Ok(text)
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let shown = name.escape_debug();
    let known = HEADERS.iter().find(|(known, _)| *known == name);
    let (_, values) =
        known.with_context(|| format!("http_server_config: header {shown} cannot be set"))?;
    ensure!(
        values.is_empty() || values.contains(&value),
        "http_server_config: {shown}: expected one of {}",
        values.join(", ")
    );
    let value = HeaderValue::from_str(value)
        .ok()
        .with_context(|| format!("http_server_config: {shown}: not a valid header value"))?;
    Ok((HeaderName::from_bytes(name.as_bytes())?, value))
}

impl Tls {
    /// Loads certificates and keys, and adds their files to `files`.
    fn load(self, folder: &Path, files: &mut Vec<PathBuf>) -> Result<ServerConfig> {
        ensure!(
            self.client_allowed_sans.is_none(),
            unsupported(
                "client_allowed_sans",
                "a client's certificate is checked against its CA only"
            )
        );
        let mut pem = |name: &str, text: Option<String>, file: Option<PathBuf>| match (
            text.filter(|t| !t.is_empty()),
            file.filter(|f| !f.as_os_str().is_empty()),
        ) {
            (Some(_), Some(_)) => bail!("{name} and {name}_file cannot be combined"),
            (Some(text), None) => Ok(Some((name.to_owned(), text))),
            (None, None) => Ok(None),
            (None, Some(file)) => {
                let path = folder.join(file);
                let text = read(&path);
                let shown = format!("{name}_file {}", path.display());
                files.push(path);
                text.map(|text| Some((shown, text)))
            }
        };
        let cert = pem("cert", self.cert, self.cert_file)?.context("cert_file is missing")?;
        let key = pem("key", self.key, self.key_file)?.context("key_file is missing")?;
        let client_ca = pem("client_ca", self.client_ca, self.client_ca_file)?;

        let provider = Arc::new(provider(self.cipher_suites, self.curve_preferences)?);
        let versions = versions(self.min_version.as_deref(), self.max_version.as_deref())?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .context("cipher_suites do not fit min_version and max_version")?;
        let verifier = match (self.client_auth_type.as_deref(), client_ca) {
            (None | Some("" | "NoClientCert"), None) => None,
            (None | Some("" | "NoClientCert"), Some(_)) => {
                bail!("client_ca_file needs client_auth_type: RequireAndVerifyClientCert")
            }
            (Some("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven"), None) => {
                bail!("client_ca_file is missing: specify the CA that verifies client certificates")
            }
            (Some(kind @ ("RequireAndVerifyClientCert" | "VerifyClientCertIfGiven")), Some(ca)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(&ca)? {
                    roots
                        .add(certificate)
                        .with_context(|| format!("{}: not a CA certificate", ca.0))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match kind {
                    "VerifyClientCertIfGiven" => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                Some(verifier.build().with_context(|| ca.0.clone())?)
            }
            (
                Some(kind @ ("RequestClientCert" | "RequireAnyClientCert" | "RequireClientCert")),
                _,
            ) => {
                let why = "it accepts any certificate; use RequireAndVerifyClientCert";
                bail!("client_auth_type: {kind} is not supported: {why}")
            }
            (Some(kind), _) => bail!("client_auth_type: {} is unknown", kind.escape_debug()),
        };
        let builder = match verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let private = PrivateKeyDer::from_pem_slice(key.1.as_bytes());
        let private =
            private.ok().with_context(|| format!("{}: contains no private key", key.0))?;
        let mut config = builder
            .with_single_cert(certificates(&cert)?, private)
            .with_context(|| format!("{} and {}", cert.0, key.0))?;
        config.ignore_client_order = self.prefer_server_cipher_suites.unwrap_or(true);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Returns the certificates in a PEM text; at least one.
fn certificates((name, pem): &(String, String)) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.with_context(|| format!("{name}: contains no certificate"))
}

/// Returns the protocol versions from `min` to `max`, which are given by the names that Go uses.
fn versions(
    min: Option<&str>,
    max: Option<&str>,
) -> Result<Vec<&'static SupportedProtocolVersion>> {
    let number = |key: &str, name: Option<&str>, default| match name {
        None => Ok(default),
        Some("TLS12") => Ok(2),
        Some("TLS13") => Ok(3),
        Some(old @ ("TLS10" | "TLS11")) => {
            bail!("{key}: {old} is not supported: the oldest supported version is TLS12")
        }
        Some(other) => bail!("{key}: {}: expected TLS12 or TLS13", other.escape_debug()),
    };
    let (min, max) = (number("min_version", min, 2)?, number("max_version", max, 3)?);
    ensure!(min <= max, "min_version is above max_version");
    let all = [(2, &TLS12), (3, &TLS13)];
    Ok(all
        .into_iter()
        .filter(|(n, _)| (min..=max).contains(n))
        .map(|(_, version)| version)
        .collect())
}

/// Returns the crypto provider. If curves are given, it supports only these; the same applies to cipher
/// suites of TLS 1.2.
fn provider(suites: Option<Vec<String>>, curves: Option<Vec<String>>) -> Result<CryptoProvider> {
    let mut provider = ring::default_provider();
    if let Some(names) = suites.filter(|names| !names.is_empty()) {
        let all = std::mem::take(&mut provider.cipher_suites);
        let is_new = |suite: &rustls::SupportedCipherSuite| suite.version() == &TLS13;
        // All cipher suites of TLS 1.3 stay enabled, as in Prometheus's exporters: Go does not let the user
        // choose among them.
        provider.cipher_suites = all.iter().copied().filter(is_new).collect();
        for name in names {
            let shown = name.escape_debug();
            // Go's names of TLS 1.3's cipher suites lack the version.
            let is_named = |suite: &&rustls::SupportedCipherSuite| {
                let own = format!("{:?}", suite.suite());
                own == name || own.replacen("TLS13_", "TLS_", 1) == name
            };
            let suite = *all.iter().find(is_named).with_context(|| {
                format!(
                    "cipher_suites: {shown} is not supported: choose suites of ECDHE with GCM or \
                     ChaCha20"
                )
            })?;
            if !is_new(&suite) {
                provider.cipher_suites.push(suite);
            }
        }
    }
    if let Some(names) = curves.filter(|names| !names.is_empty()) {
        let all = std::mem::take(&mut provider.kx_groups);
        for name in names {
            let group = match &*name {
                "CurveP256" => NamedGroup::secp256r1,
                "CurveP384" => NamedGroup::secp384r1,
                "X25519" => NamedGroup::X25519,
                other => bail!(
                    "curve_preferences: {} is not supported: choose from X25519, CurveP256 and \
                     CurveP384",
                    other.escape_debug()
                ),
            };
            let group = all.iter().find(|one| one.name() == group);
            provider
                .kx_groups
                .push(*group.context("curve_preferences: the curve is not available")?);
        }
    }
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

    fn error(text: &str) -> String {
        let error = WebConfig::parse(text, Path::new("/nowhere")).unwrap_err();
        let error = format!("{error:#}");
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }

    #[test]
    fn users_and_headers_are_read() {
        let config = WebConfig::parse(
            &format!(
                "# comment\nbasic_auth_users:\n  alice: {HASH}\n  bob: '{HASH}'\n\
                 http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n"
            ),
            Path::new("/"),
        );
        let config = config.unwrap();
        assert_eq!(config.users["alice"], HASH);
        assert_eq!(config.users.len(), 2);
        assert_eq!(config.headers.len(), 1);
        assert!(config.tls.is_none());
        for empty in ["", "# nothing\n", "{}"] {
            assert!(WebConfig::parse(empty, Path::new("/")).unwrap().users.is_empty());
        }
    }

    #[test]
    fn errors_are_one_line_and_name_the_setting() {
        let tls = |line: &str| format!("tls_server_config:\n  cert: x\n  key: y\n  {line}\n");
        for (text, words) in [
            ("tls_serve_config: {}".to_owned(), &["line 1", "tls_serve_config"][..]),
            (tls("certfile: x"), &["line 4", "certfile"]),
            ("basic_auth_users:\n  a: [1]".into(), &["line 2"]),
            ("basic_auth_users:\n  a: secret".into(), &["basic_auth_users: a", "htpasswd"]),
            (format!("basic_auth_users:\n  a: {}", HASH.replace("$10$", "$31$")), &["31", "16"]),
            (format!("basic_auth_users:\n  a: {HASH}\n  a: {HASH}"), &["line 3", "a"]),
            ("a: b: c".into(), &["line 1"]),
            ("rate_limit:\n  burst: 5".into(), &["rate_limit is not supported"]),
            ("http_server_config:\n  http2: true".into(), &["http2", "not supported"]),
            ("http_server_config:\n  headers:\n    Server: x".into(), &["Server cannot be set"]),
            (
                "http_server_config:\n  headers:\n    X-Frame-Options: x".into(),
                &["X-Frame-Options", "deny, sameorigin"],
            ),
            ("tls_server_config:\n  key: x".into(), &["cert_file is missing"]),
            ("tls_server_config:\n  cert: x".into(), &["key_file is missing"]),
            ("tls_server_config:\n  cert_file: x".into(), &["/nowhere/x", "No such file"]),
            (tls("cert_file: x"), &["cert and cert_file cannot be combined"]),
            (tls("client_allowed_sans: [a]"), &["client_allowed_sans is not supported"]),
            (tls("min_version: TLS10"), &["min_version: TLS10 is not supported"]),
            (tls("min_version: TLS14"), &["min_version: TLS14", "expected"]),
            (tls("min_version: TLS13\n  max_version: TLS12"), &["above"]),
            (
                tls("cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]"),
                &["TLS_RSA_WITH_AES_128_CBC_SHA is not supported"],
            ),
            (tls("curve_preferences: [CurveP521]"), &["CurveP521 is not supported"]),
            (tls("client_auth_type: RequireAnyClientCert"), &["RequireAnyClientCert is not"]),
            (tls("client_auth_type: Sometimes"), &["Sometimes is unknown"]),
            (tls("client_auth_type: VerifyClientCertIfGiven"), &["client_ca_file is missing"]),
            (tls("client_ca: x"), &["client_ca_file needs client_auth_type"]),
            (tls("min_version: TLS12"), &["key: contains no private key"]),
        ] {
            let error = error(&text);
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
        }
    }

    #[test]
    fn cipher_suites_and_curves_are_selected_by_go_names() {
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        let chosen = provider(
            names(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]),
            names(&["X25519"]),
        );
        let chosen = chosen.unwrap();
        let old = chosen.cipher_suites.iter().filter(|suite| suite.version() == &TLS12).count();
        assert_eq!((old, chosen.cipher_suites.len(), chosen.kx_groups.len()), (1, 4, 1));
        assert_eq!(versions(Some("TLS13"), None).unwrap().len(), 1);
        assert_eq!(versions(None, None).unwrap().len(), 2);
    }
}
