//! HTTP server: `/metrics`, `/-/healthy` and `/-/ready`, with the paths of Prometheus's own programs.
//!
//! | module | content |
//! |---|---|
//! | [`auth`] | basic authentication |
//! | [`cache`] | cache of the exposition, which is written at most once a second |
//! | [`cost`] | CPU time spent serving, and its limit |
//! | [`slots`] | connection slots, and which connection is closed for a new one |
//! | [`web`] | the web configuration in use: TLS, users, headers |
//!
//! There are two listeners, each served by its own thread without capabilities: one for metrics, and one for
//! health only. So the kubelet gets its answer whatever clients do to the metrics listener. Requests and
//! connections have deadlines, and the number of connections and the CPU time of each listener are limited.

pub mod auth;
pub mod cache;
pub mod cost;
pub mod slots;
pub mod web;

use std::{
    convert::Infallible,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    metrics::{
        Listen, SharedTotals,
        encode::Exposition,
        server::{
            auth::{Verdict, Verifier},
            cache::Cache,
            cost::Allowance,
            slots::{Slot, Slots},
            web::Web,
        },
    },
    net::Net,
};

/// Address at which metrics are served by default. Only this host can reach it.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// Listeners and the web configuration, as configured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Address of metrics.
    pub listen: Option<SocketAddr>,
    /// Address of health; if it is `None`, see [`default_health`].
    pub health: Option<Listen>,
    /// Web configuration file of the metrics listener.
    pub web_config: Option<PathBuf>,
}

/// State of the daemon, as its main loop reports it.
#[derive(Debug, Default)]
pub struct Health {
    ready: AtomicBool,
    last_report: Mutex<Option<Instant>>,
}

impl Health {
    /// Sets whether the daemon is collecting data.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Reports that the main loop is alive. The loop must call this function at least once a minute.
    pub fn report_alive(&self) {
        *self.last_report.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns whether the main loop is alive. Before the loop's first report, the daemon is still starting,
    /// and the loop counts as alive.
    fn is_alive(&self) -> bool {
        let last = *self.last_report.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|at| at.elapsed() < MAX_REPORT_AGE)
    }

    /// Returns the answer to a request for health; `None` for other paths.
    fn answer(&self, path: &str) -> Option<Response<Full<Bytes>>> {
        let (is_ok, ok_text, error_text) = match path {
            "/-/healthy" => {
                (self.is_alive(), "jvmprobed is healthy\n", "jvmprobed is not responding\n")
            }
            "/-/ready" => (
                self.ready.load(Ordering::Relaxed),
                "jvmprobed is ready\n",
                "jvmprobed is not ready yet\n",
            ),
            _ => return None,
        };
        Some(match is_ok {
            true => plain(StatusCode::OK, ok_text),
            false => plain(StatusCode::SERVICE_UNAVAILABLE, error_text),
        })
    }
}

/// Age of the main loop's last report at which the loop counts as hung.
const MAX_REPORT_AGE: Duration = Duration::from_secs(120);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Maximum number of connections.
    connections: usize,
    /// Maximum time for the TLS handshake, and for receiving the header of a request.
    header_timeout: Duration,
    /// Maximum time that a connection lasts.
    connection_timeout: Duration,
    /// Whether a connection may carry several requests.
    keep_alive: bool,
}

const METRICS: Bounds = Bounds {
    connections: 16,
    header_timeout: Duration::from_secs(10),
    connection_timeout: Duration::from_secs(120),
    keep_alive: true,
};

const HEALTH: Bounds = Bounds {
    connections: 32,
    header_timeout: Duration::from_secs(2),
    connection_timeout: Duration::from_secs(3),
    keep_alive: false,
};

/// CPU time that each listener may use: this share of one processor on average, and up to `BURST` at once.
const SHARE: f64 = 0.1;
const BURST: Duration = Duration::from_secs(2);

fn allowance() -> Arc<Allowance> {
    Arc::new(Allowance::new(SHARE, BURST))
}

/// Returns the default address of health: the loopback address, and the port after the one for metrics.
pub fn default_health(listen: Option<SocketAddr>) -> Option<SocketAddr> {
    let listen = listen?;
    let port = if listen.port() == 0 { 0 } else { listen.port().checked_add(1)? };
    let address = match listen.ip() {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    Some(SocketAddr::new(address, port))
}

/// Listeners whose ports are bound, but on which no connections are accepted yet.
#[derive(Debug)]
pub struct Listeners {
    metrics: Option<TcpListener>,
    health: Option<TcpListener>,
    web: Arc<Web>,
}

/// Threads of the listeners.
#[derive(Debug)]
pub struct Serving(#[expect(dead_code, reason = "dropping the value ends the threads")] Vec<Net>);

impl Listeners {
    /// Binds the ports and reads the web configuration.
    ///
    /// # Errors
    /// One line that says what to do. If the default port of health cannot be bound, this is only
    /// logged, because the metrics port answers health checks, too.
    pub fn open(options: &Options) -> Result<Self> {
        ensure!(
            options.web_config.is_none() || options.listen.is_some(),
            "--web-config needs --listen: no metrics are served"
        );
        let metrics = options.listen.map(bind).transpose()?;
        let health = match options.health {
            Some(Listen(health)) => health.map(|at| bind_for("health", "--health-listen", at)),
            None => {
                default_health(options.listen).map(|at| bind_for("health", "--health-listen", at))
            }
        };
        let health = match (health, options.health) {
            (Some(Err(error)), None) => {
                log::warn!("{error:#}; meanwhile, use /-/healthy of the metrics port");
                None
            }
            (health, _) => health.transpose()?,
        };
        let web = Arc::new(Web::open(options.web_config.clone())?);
        Ok(Self { metrics, health, web })
    }

    /// Serves until the returned value is dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(self, totals: &SharedTotals, health: &Arc<Health>) -> io::Result<Serving> {
        let mut threads = Vec::new();
        if let Some(port) = self.health {
            let (allowance, health) = (allowance(), Arc::clone(health));
            let net = Net::serving("jvmprobed-health", &allowance)?;
            net.spawn(async move {
                report("health", listen(port, HEALTH, allowance, Answers::health(health)).await);
            });
            threads.push(net);
        }
        if let Some(port) = self.metrics {
            let (allowance, answers) =
                (allowance(), Answers::metrics(totals.clone(), Arc::clone(health), self.web));
            let net = Net::serving("jvmprobed-serve", &allowance)?;
            net.spawn(async move {
                report("metrics", listen(port, METRICS, allowance, answers).await);
            });
            threads.push(net);
        }
        Ok(Serving(threads))
    }
}

fn report(what: &str, outcome: io::Result<Infallible>) {
    let Err(error) = outcome;
    log::warn!("{what} server stopped: {error}");
}

/// Binds the port of metrics.
///
/// # Errors
/// An error with one line of advice if the port is in use or the address does not exist.
pub fn bind(listen: SocketAddr) -> Result<TcpListener> {
    bind_for("metrics", "--listen", listen)
}

fn bind_for(what: &str, option: &str, listen: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(listen).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                "is in use, perhaps by another jvmprobed: stop it, or choose another address with \
                 {option}"
            ),
            io::ErrorKind::AddrNotAvailable => {
                format!("is not an address of this host: change {option}")
            }
            io::ErrorKind::PermissionDenied => {
                "requires a privilege that is missing: choose a port above 1023".into()
            }
            _ => return anyhow::Error::new(error).context(format!("cannot listen on {listen}")),
        };
        anyhow::anyhow!("cannot serve {what}: {listen} {hint}")
    })?;
    bound.set_nonblocking(true).with_context(|| format!("cannot listen on {listen}"))?;
    Ok(bound)
}

/// Serves metrics and health by plain HTTP until the runtime ends.
///
/// # Errors
/// The runtime cannot use the port.
pub async fn serve(port: TcpListener, totals: SharedTotals, health: Arc<Health>) -> io::Result<()> {
    let answers = Answers::metrics(totals, health, Arc::default());
    listen(port, METRICS, allowance(), answers).await.map(|never| match never {})
}

async fn listen(
    port: TcpListener,
    bounds: Bounds,
    allowance: Arc<Allowance>,
    answers: Answers,
) -> io::Result<Infallible> {
    let port = tokio::net::TcpListener::from_std(port)?;
    let slots = Slots::new(bounds.connections);
    let server = Arc::new(Server { bounds, allowance, answers });
    loop {
        server.allowance.wait().await;
        let stream = match port.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example, no file descriptors are left. Keep trying.
                log::warn!("cannot accept a connection: {error}");
                sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (slot, server) = (Arc::new(slots.take().await), Arc::clone(&server));
        tokio::spawn(async move {
            tokio::select! {
                () = slot.closed() => {}
                // A client that disconnects or is too slow is not an error.
                _ = timeout(
                    server.bounds.connection_timeout,
                    server.connection(stream, &slot),
                ) => {}
            }
        });
    }
}

/// One listener.
#[derive(Debug)]
struct Server {
    bounds: Bounds,
    allowance: Arc<Allowance>,
    answers: Answers,
}

impl Server {
    async fn connection(&self, stream: TcpStream, slot: &Arc<Slot>) {
        // A client that has disconnected already needs no answer.
        let Ok(client) = stream.peer_addr().map(|address| address.ip()) else { return };
        let Some(tls) = self.answers.web().and_then(|web| web.current().tls.clone()) else {
            return self.http(stream, client, slot).await;
        };
        let handshake = async {
            let mut first = [0];
            stream.peek(&mut first).await?;
            if first[0].is_ascii_alphabetic() {
                return Ok(Err(stream));
            }
            TlsAcceptor::from(tls).accept(stream).await.map(Ok)
        };
        match timeout(self.bounds.header_timeout, handshake).await {
            Ok(Ok(Ok(stream))) => self.http(stream, client, slot).await,
            Ok(Ok(Err(stream))) => reject_plain_http(stream).await,
            // The client failed the handshake: wrong certificate, unsupported version, or too slow.
            Ok(Err::<_, io::Error>(_)) | Err(_) => {}
        }
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        client: IpAddr,
        slot: &Arc<Slot>,
    ) {
        let answer = service_fn(|request: Request<Incoming>| async move {
            let _answering = slot.answering();
            self.allowance.wait().await;
            Ok::<_, Infallible>(self.answers.answer(&request, client).await)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.bounds.header_timeout)
            .keep_alive(self.bounds.keep_alive)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(stream), answer);
        let _ = connection.await;
    }
}

/// Answers plain HTTP on a TLS port with an error.
async fn reject_plain_http(mut stream: TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
        this port speaks TLS: use https\n";
    let _ = stream.write_all(ANSWER).await;
    let _ = stream.shutdown().await;
    // If the connection were closed with unread data, the kernel would reset it, and the client might not get
    // the answer. So read the request.
    let mut rest = [0; 4096];
    for _ in 0..16 {
        let read = async {
            stream.readable().await?;
            stream.try_read(&mut rest)
        };
        match timeout(Duration::from_secs(1), read).await {
            Ok(Ok(1..)) => {}
            _ => break,
        }
    }
}

/// Content that a listener serves.
#[derive(Debug)]
enum Answers {
    Health(Arc<Health>),
    Metrics { health: Arc<Health>, cache: Arc<Cache>, web: Arc<Web>, verifier: Box<Verifier> },
}

impl Answers {
    fn health(health: Arc<Health>) -> Self {
        Self::Health(health)
    }

    fn metrics(totals: SharedTotals, health: Arc<Health>, web: Arc<Web>) -> Self {
        Self::Metrics { health, cache: Cache::new(totals), web, verifier: Box::default() }
    }

    fn web(&self) -> Option<&Web> {
        match self {
            Self::Health(_) => None,
            Self::Metrics { web, .. } => Some(web),
        }
    }

    async fn answer<B>(&self, request: &Request<B>, client: IpAddr) -> Response<Full<Bytes>> {
        let (health, cache, web, verifier) = match self {
            Self::Health(health) => return health_only(request, health),
            Self::Metrics { health, cache, web, verifier } => (health, cache, web, verifier),
        };
        let config = web.current();
        let verdict = match config.users.is_empty() {
            true => Verdict::Right,
            false => {
                let header = request.headers().get(header::AUTHORIZATION);
                let header = header.and_then(|value| value.to_str().ok());
                verifier.check(&config.users, header, client).await
            }
        };
        let mut answer = match verdict {
            Verdict::Right => metrics_and_health(request, health, cache),
            Verdict::Wrong => plain(StatusCode::UNAUTHORIZED, "user and password are required\n"),
            Verdict::TooMany => {
                plain(StatusCode::TOO_MANY_REQUESTS, "too many wrong passwords: try again later\n")
            }
        };
        if verdict == Verdict::Wrong {
            let basic = HeaderValue::from_static("Basic realm=\"jvmprobed\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
        }
        answer.headers_mut().extend(config.headers.iter().cloned());
        answer
    }
}

fn is_get_or_head<B>(request: &Request<B>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

fn health_only<B>(request: &Request<B>, health: &Health) -> Response<Full<Bytes>> {
    match is_get_or_head(request) {
        false => plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n"),
        true => health.answer(request.uri().path()).unwrap_or_else(|| {
            plain(StatusCode::NOT_FOUND, "not found; use /-/healthy or /-/ready\n")
        }),
    }
}

fn metrics_and_health<B>(
    request: &Request<B>,
    health: &Health,
    cache: &Arc<Cache>,
) -> Response<Full<Bytes>> {
    match request.uri().path() {
        _ if !is_get_or_head(request) => {
            plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n")
        }
        "/metrics" => metrics(request.headers(), cache),
        path => health.answer(path).unwrap_or_else(|| {
            plain(StatusCode::NOT_FOUND, "not found; use /metrics, /-/healthy or /-/ready\n")
        }),
    }
}

fn metrics(headers: &HeaderMap, cache: &Arc<Cache>) -> Response<Full<Bytes>> {
    let header_text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let exposition = Exposition::accepted(header_text(header::ACCEPT));
    let is_gzip = accepts_gzip(header_text(header::ACCEPT_ENCODING));
    let Ok((body, is_new)) = cache.get(exposition, is_gzip) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "failed to write the metrics\n");
    };
    if is_new {
        // Frees the memory even if no further scrape comes.
        let expiring = Arc::clone(cache);
        tokio::spawn(async move {
            sleep(cache::FRESH).await;
            expiring.drop_old();
        });
    }
    let mut answer = Response::builder()
        .header(header::CONTENT_TYPE, exposition.content_type())
        .header(header::VARY, "Accept, Accept-Encoding");
    if is_gzip {
        answer = answer.header(header::CONTENT_ENCODING, "gzip");
    }
    let answer = answer.body(Full::new(body));
    answer.unwrap_or_else(|_| {
        plain(StatusCode::INTERNAL_SERVER_ERROR, "failed to build the answer\n")
    })
}

/// Returns whether an `Accept-Encoding` header allows gzip: RFC 9110, 12.5.3. A weight of 0 excludes an encoding.
fn accepts_gzip(header: &str) -> bool {
    header.split(',').any(|encoding| {
        let mut parts = encoding.split(';').map(str::trim);
        parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"))
            && parts.all(|part| match part.split_once('=') {
                Some((name, weight)) if name.eq_ignore_ascii_case("q") => {
                    weight.parse().is_ok_and(|weight: f32| weight > 0.0)
                }
                _ => true,
            })
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

/// Compresses bytes.
pub(crate) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes)?;
    gzip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hung_main_loop_is_reported_unhealthy() {
        let health = Health::default();
        let status = || health.answer("/-/healthy").unwrap().status().as_u16();
        assert_eq!(status(), 200);
        health.report_alive();
        assert_eq!(status(), 200);
        *health.last_report.lock().unwrap() = Instant::now().checked_sub(2 * MAX_REPORT_AGE);
        assert_eq!(status(), 503);
    }

    #[test]
    fn gzip_is_sent_only_if_the_client_accepts_it() {
        for header in ["gzip", "deflate, GZIP", "br;q=1.0,gzip;q=0.5", "gzip; q=1"] {
            assert!(accepts_gzip(header), "{header}");
        }
        for header in ["", "identity", "gzip;q=0", "br, gzip; q=0.000", "notgzip"] {
            assert!(!accepts_gzip(header), "{header}");
        }
    }

    #[test]
    fn health_port_defaults_to_the_port_after_metrics() {
        let of = |listen: &str| default_health(Some(listen.parse().unwrap()));
        assert_eq!(of("127.0.0.1:9464"), Some("127.0.0.1:9465".parse().unwrap()));
        assert_eq!(of("0.0.0.0:9000"), Some("127.0.0.1:9001".parse().unwrap()));
        assert_eq!(of("[::]:9464"), Some("[::1]:9465".parse().unwrap()));
        assert_eq!(of("127.0.0.1:65535"), None);
        assert_eq!(default_health(None), None);
    }
}
