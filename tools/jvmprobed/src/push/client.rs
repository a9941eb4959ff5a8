//! HTTP requests to a target, and their outcome.

use std::{error::Error as _, fs, time::Duration};

use anyhow::{Context, Result, ensure};
use http::{HeaderMap, StatusCode, header};
use reqwest::{Certificate, Client, Identity, Proxy, Response, Url, redirect};

use crate::push::{
    retry::retry_after,
    target::{Address, Options},
};

/// Maximum number of bytes of an answer that are read.
const MAX_ANSWER: usize = 64 << 10;

/// Outcome of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target has accepted the request, except for this number of profiles or data points. The text is
    /// the target's message about the ones that it rejected.
    Accepted(u64, String),
    /// The target has not accepted the request. The request should be sent again; if the target gave a delay,
    /// not before this time has passed.
    Later(Option<Duration>, String),
    /// The target has failed, perhaps because of the content of the request.
    Failed(String),
    /// The target will never accept the request.
    Refused(String),
}

impl Outcome {
    /// Returns the outcome of a request that was accepted completely.
    pub fn accepted() -> Self {
        Self::Accepted(0, String::new())
    }
}

/// A target that is reached by HTTP.
#[derive(Debug)]
pub struct Target {
    client: Client,
    options: Options,
}

impl Target {
    /// Creates the HTTP client; nothing is sent.
    ///
    /// # Errors
    /// A file is missing or wrong, or the URL of the proxy is invalid.
    pub fn new(options: &Options, url: &Url) -> Result<Self> {
        ensure!(
            options.basic_auth_file.is_none() || options.bearer_token_file.is_none(),
            "basic-auth-file and bearer-token-file cannot be combined"
        );
        options.read_headers()?;
        // The crypto provider is global. A second call fails because the provider is already installed, which
        // does no harm.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .user_agent(concat!("jvmprobed/", env!("CARGO_PKG_VERSION")))
            .timeout(options.timeout)
            .connect_timeout(options.timeout)
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(1);
        if matches!(options.to, Address::OtlpGrpc(_)) {
            builder = builder.http2_prior_knowledge();
        }
        if let Some(path) = &options.ca_file {
            let pem = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .ok()
                .filter(|found| !found.is_empty())
                .with_context(|| format!("{} contains no certificate", path.display()))?;
            builder = builder.tls_certs_merge(certificates);
        } else if url.scheme() == "http" {
            // Without TLS, the host's certificates are not needed and not loaded.
            builder = builder.tls_certs_only([]);
        }
        if let Some(path) = &options.client_cert_file {
            let pem = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let identity = Identity::from_pem(&pem).with_context(|| {
                format!("{}: expected a certificate and its key", path.display())
            })?;
            builder = builder.identity(identity);
        }
        builder = match options.proxy.as_deref() {
            None => builder,
            Some("none") => builder.no_proxy(),
            Some(proxy) => {
                let all =
                    Proxy::all(proxy).with_context(|| format!("{proxy:?} is not a proxy URL"))?;
                builder.no_proxy().proxy(all)
            }
        };
        let client = builder.build().context("cannot set up TLS")?;
        Ok(Self { client, options: options.clone() })
    }

    /// Posts a request with these headers and those of the target's options. Returns the answer, or the
    /// outcome if there is no answer.
    pub async fn post(
        &self,
        url: Url,
        headers: &[(&'static str, &'static str)],
        body: Vec<u8>,
    ) -> Result<Response, Outcome> {
        let own = self.options.read_headers();
        let own = own.map_err(|error| Outcome::Later(None, format!("{error:#}")))?;
        let mut all = HeaderMap::new();
        let fixed = headers.iter().map(|(name, value)| {
            (header::HeaderName::from_static(name), header::HeaderValue::from_static(value))
        });
        all.extend(fixed.chain(own));
        let request = self.client.post(url).headers(all).body(body);
        request.send().await.map_err(|error| Outcome::Later(None, chain(&error)))
    }

    /// Posts a request by HTTP, and returns its outcome. `read` extracts from a successful answer how much
    /// was rejected.
    pub async fn send(
        &self,
        url: Url,
        headers: &[(&'static str, &'static str)],
        body: Vec<u8>,
        read: impl Fn(&[u8]) -> Option<Outcome>,
    ) -> Outcome {
        let answer = match self.post(url, headers, body).await {
            Ok(answer) => answer,
            Err(outcome) => return outcome,
        };
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = match read_answer(answer).await {
            Ok(text) => text,
            // The request may have been accepted. Sending it twice is better than losing it.
            Err(error) => return Outcome::Later(None, chain(&error)),
        };
        if status.is_success() {
            let is_page = |value: &header::HeaderValue| value.as_bytes().starts_with(b"text/html");
            if headers.get(header::CONTENT_TYPE).is_some_and(is_page) {
                let text = "the target answered with a web page; check the URL";
                return Outcome::Later(None, text.into());
            }
            return read(&text).unwrap_or_else(Outcome::accepted);
        }
        outcome_of(status, &headers, &text)
    }
}

/// Maps an HTTP status to an outcome. Requests are sent again after errors that the administrator can fix,
/// such as a wrong URL or password; until then, they stay in the queue. A status of 500 may be a bug of the
/// receiver that this request triggers, so other requests are sent first.
fn outcome_of(status: StatusCode, headers: &HeaderMap, text: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(text);
    let first = text.lines().next().unwrap_or("").chars().take(200).collect::<String>();
    let text = format!("the target answered {status} {first}").trim_end().to_owned();
    let fixable = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        StatusCode::REQUEST_TIMEOUT,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    match status {
        StatusCode::INTERNAL_SERVER_ERROR => Outcome::Failed(text),
        status if status.is_client_error() && !fixable.contains(&status) => Outcome::Refused(text),
        _ => {
            let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            Outcome::Later(after.and_then(retry_after), text)
        }
    }
}

/// Reads the first part of an answer, at most `MAX_ANSWER` bytes. The rest is not read.
pub(super) async fn read_answer(mut answer: Response) -> Result<Vec<u8>, reqwest::Error> {
    let mut text = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        let free_space = MAX_ANSWER - text.len();
        text.extend_from_slice(&chunk[..chunk.len().min(free_space)]);
        if text.len() == MAX_ANSWER {
            break;
        }
    }
    Ok(text)
}

/// Formats an error with its causes, without the URL, because messages begin with the target's name.
pub(super) fn chain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "the target did not answer in time".into();
    }
    let mut text = match error.is_connect() {
        true => "cannot be reached".to_owned(),
        false => "the request failed".to_owned(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    let foreign = ["http2 error", "invalid HTTP version", "InvalidContentType"];
    let hint = if foreign.iter().any(|words| text.contains(words)) {
        " (the target uses another protocol; check its URL)"
    } else if text.contains("invalid peer certificate") {
        " (use ca-file to trust a CA that the host does not trust)"
    } else {
        ""
    };
    text + hint
}

/// Appends a path to a target's URL.
pub(super) fn with_path(url: &Url, path: &str) -> Url {
    let mut url = url.clone();
    let all = format!("{}/{path}", url.path().trim_end_matches('/'));
    url.set_path(&all);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_status_selects_retry_or_rejection() {
        let headers = HeaderMap::from_iter([(header::RETRY_AFTER, "7".parse().unwrap())]);
        let later = |code: u16| {
            let status = StatusCode::from_u16(code).unwrap();
            match outcome_of(status, &headers, b"no\nreally") {
                Outcome::Later(after, said) => {
                    assert_eq!(after, Some(Duration::from_secs(7)));
                    assert!(said.contains(" no") && !said.contains("really"), "{said}");
                    true
                }
                Outcome::Refused(_) | Outcome::Failed(_) => false,
                Outcome::Accepted(..) => panic!("{code} was accepted"),
            }
        };
        let failed = outcome_of(StatusCode::INTERNAL_SERVER_ERROR, &headers, b"oops");
        assert!(matches!(failed, Outcome::Failed(_)), "{failed:?}");
        for code in [301, 401, 403, 404, 408, 429, 502, 503, 504] {
            assert!(later(code), "{code}");
        }
        for code in [400, 413, 415, 422] {
            assert!(!later(code), "{code}");
        }
    }

    #[test]
    fn paths_are_appended_to_the_target_url() {
        for (base, whole) in [
            ("http://c:1", "http://c:1/v1/metrics"),
            ("http://c:1/a/b/", "http://c:1/a/b/v1/metrics"),
        ] {
            assert_eq!(with_path(&base.parse().unwrap(), "v1/metrics").as_str(), whole);
        }
    }
}
