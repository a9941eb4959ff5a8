//! HTTP: `/metrics`, `/-/healthy` and `/-/ready`, as Prometheus's own programs have them.
//!
//! Whoever reaches the port may read: by default that is this host. A request is read for so long,
//! and so many at a time are answered, that a scraper that hangs is none of our trouble.

use std::{
    convert::Infallible,
    io::{self, Write},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use libjvmprobe::own::note;
use tokio::{sync::Semaphore, time::timeout};

use crate::metrics::{SharedBook, encode::Exposition};

/// Where metrics are served if nothing else is asked for: this host alone.
pub const DEFAULT_LISTEN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9464);

/// How the daemon is, as its main loop says.
#[derive(Debug, Default)]
pub struct Health {
    ready: AtomicBool,
    last_sign: Mutex<Option<Instant>>,
}

impl Health {
    /// Whether it collects.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// The main loop comes by: to be called at least once a minute.
    pub fn alive(&self) {
        *self.last_sign.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Before the first sign, it is still starting.
    fn is_alive(&self) -> bool {
        let last = *self.last_sign.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|at| at.elapsed() < LONG_AGO)
    }
}

/// After so long without a sign, the main loop hangs.
const LONG_AGO: Duration = Duration::from_secs(120);
/// Scrapers at a time.
const CONNECTIONS: usize = 16;
/// How long a request may take to arrive.
const HEADER: Duration = Duration::from_secs(10);
/// How long a connection may last.
const CONNECTION: Duration = Duration::from_secs(120);

/// Takes the port.
///
/// # Errors
/// It is in use, or there is no such address: one line that says what to do.
pub fn bind(listen: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(listen).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "is in use, perhaps by another jvmprobed: stop that, or choose another with --listen"
            }
            io::ErrorKind::AddrNotAvailable => "is no address of this host: see --listen",
            io::ErrorKind::PermissionDenied => "is not ours to take: choose a port above 1023",
            _ => return anyhow::Error::new(error).context(format!("cannot listen on {listen}")),
        };
        anyhow::anyhow!("cannot serve metrics: {listen} {hint}")
    })?;
    bound.set_nonblocking(true).with_context(|| format!("cannot listen on {listen}"))?;
    Ok(bound)
}

/// Serves until the runtime ends.
///
/// # Errors
/// Those of handing the port to the runtime.
pub async fn serve(port: TcpListener, book: SharedBook, health: Arc<Health>) -> io::Result<()> {
    let port = tokio::net::TcpListener::from_std(port)?;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(seat) = room.clone().acquire_owned().await else { return Ok(()) };
        let stream = match port.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Without descriptors, for example: it gets better, or it does not.
                note(&format!("metrics: cannot accept a connection: {error}"));
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let (book, health) = (book.clone(), Arc::clone(&health));
        tokio::spawn(async move {
            let _seat = seat;
            let answer = service_fn(move |request: Request<Incoming>| {
                let answer = answer(
                    request.method(),
                    request.uri().path(),
                    request.headers(),
                    &book,
                    &health,
                );
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER)
                .max_buf_size(16 << 10)
                .serve_connection(TokioIo::new(stream), answer);
            // That a scraper goes away is its own affair.
            let _ = timeout(CONNECTION, connection).await;
        });
    }
}

fn answer(
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    book: &SharedBook,
    health: &Health,
) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
    }
    match path {
        "/metrics" => metrics(headers, book),
        "/-/healthy" if !health.is_alive() => {
            plain(StatusCode::SERVICE_UNAVAILABLE, "jvmprobed hangs\n")
        }
        "/-/healthy" => plain(StatusCode::OK, "jvmprobed runs\n"),
        "/-/ready" if health.ready.load(Ordering::Relaxed) => {
            plain(StatusCode::OK, "jvmprobed collects\n")
        }
        "/-/ready" => plain(StatusCode::SERVICE_UNAVAILABLE, "jvmprobed is not ready yet\n"),
        _ => plain(StatusCode::NOT_FOUND, "there are /metrics, /-/healthy and /-/ready\n"),
    }
}

fn metrics(headers: &HeaderMap, book: &SharedBook) -> Response<Full<Bytes>> {
    let said = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
    let exposition = Exposition::accepted(said(header::ACCEPT));
    let Ok(body) = exposition.write(book) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n");
    };
    let answer = Response::builder()
        .header(header::CONTENT_TYPE, exposition.content_type())
        .header(header::VARY, "Accept, Accept-Encoding");
    let zipped = match said(header::ACCEPT_ENCODING).contains("gzip") {
        true => gzip(&body).ok(),
        false => None,
    };
    let answer = match zipped {
        Some(zipped) => {
            answer.header(header::CONTENT_ENCODING, "gzip").body(Full::new(zipped.into()))
        }
        None => answer.body(Full::new(body.into())),
    };
    answer.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "no answer\n"))
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *answer.status_mut() = status;
    answer
}

/// Bytes, compressed.
pub(crate) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes)?;
    gzip.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_hangs_is_not_healthy() {
        let (book, health) = (SharedBook::default(), Health::default());
        let status = || {
            answer(&Method::GET, "/-/healthy", &HeaderMap::new(), &book, &health).status().as_u16()
        };
        assert_eq!(status(), 200);
        health.alive();
        assert_eq!(status(), 200);
        *health.last_sign.lock().unwrap() = Instant::now().checked_sub(2 * LONG_AGO);
        assert_eq!(status(), 503);
    }
}
